//! The objects that detectors found on photographs which callers attribute to a camera, for the part that watches
//! cameras.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use ledge_base::names::CameraName;
use ledge_engine::pipeline::detection::Detection;

use crate::repository::LoadedModel;

/// Takes the objects that were found on photographs of cameras. It never waits.
pub trait DetectionSink: Debug + Send + Sync {
    /// True for the name of a camera that gets its pictures with calls.
    fn takes(&self, camera: &CameraName) -> bool;

    /// Notes the objects that `model` found on a photograph of a camera, those that its answer reports and the others.
    /// `model` is the version that answered, not the present live one: its labels show which objects it can find.
    fn on_detections(
        &self,
        camera: &CameraName,
        model: &LoadedModel,
        photograph: Bytes,
        detections: Vec<Detection>,
        unreported: Vec<Detection>,
    );
}

/// The part that takes them, once it is known.
#[derive(Debug, Clone, Default)]
pub(super) struct DetectionSinkSlot(Arc<OnceLock<Arc<dyn DetectionSink>>>);

impl DetectionSinkSlot {
    pub(super) fn set(&self, sink: Arc<dyn DetectionSink>) {
        // Set once, at the start.
        let _ = self.0.set(sink);
    }

    pub(super) fn get(&self) -> Option<&dyn DetectionSink> {
        self.0.get().map(AsRef::as_ref)
    }
}
