//! The objects that detectors found on photographs which callers attribute to a camera, for the part that watches cameras.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use ledge_base::names::CameraName;
use ledge_base::principal::Principal;
use ledge_engine::pipeline::detection::Detection;

use super::request::ContentRequest;
use super::{ContentResponse, Serving, ServingError, finish};
use crate::repository::LoadedModel;

/// Takes what was found on the photographs of cameras. It never waits.
pub trait Sightings: Debug + Send + Sync {
    /// True if there is a camera of this name whose pictures come with calls.
    fn takes(&self, camera: &CameraName) -> bool;

    /// Notes the objects that `model` found on a photograph of a camera, those that its answer reports and the others. It
    /// is the version that answered, not the one that is live by now: its labels tell which objects it can find.
    fn saw(
        &self,
        camera: &CameraName,
        model: &LoadedModel,
        photograph: Bytes,
        detections: Vec<Detection>,
        unreported: Vec<Detection>,
    );
}

impl Serving {
    /// Answers as [`Self::infer_content`], and returns the version that answered, too. Its number would not be enough to
    /// find it afterwards: a reload replaces a version by another one with the same number.
    pub async fn infer_sighted(
        &self,
        request: ContentRequest,
        principal: &Principal,
    ) -> Result<(ContentResponse, Arc<LoadedModel>), ServingError> {
        let (call, watched) = self.call(&request.model, request.version, principal)?;
        let model = call.model.clone();
        let answer = if let Some(watched) = watched {
            Box::pin(self.infer_content_watched(call, watched, request)).await
        } else {
            let answered = match self.admit(&call, &call.model, request.priority) {
                Ok(_permit) => self.infer_content_pinned(&call, request).await,
                Err(refused) => Err(refused.into()),
            };
            finish(call, answered)
        };
        Ok((answer?, model))
    }
}

/// The part that takes them, once it is known.
#[derive(Debug, Clone, Default)]
pub(super) struct SightingsSlot(Arc<OnceLock<Arc<dyn Sightings>>>);

impl SightingsSlot {
    pub(super) fn set(&self, sightings: Arc<dyn Sightings>) {
        // Set once, at the start.
        let _ = self.0.set(sightings);
    }

    pub(super) fn get(&self) -> Option<&dyn Sightings> {
        self.0.get().map(AsRef::as_ref)
    }
}
