//! Pictures that may be shown: with the objects that count, and with the places blurred that the configuration names.
//! This is the only way from a picture of a camera to somebody's eyes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ledge_base::memory_budget::MemoryAccount;
use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_engine::pipeline::annotation::{
    Annotation, AnnotationError, PictureFormat, ZoneOutline, annotate, as_faces, blurred_places, blurs_faces, is_face,
};
use ledge_engine::pipeline::content::CallContent;
use ledge_engine::pipeline::image::{ImageError, ImageFormat};
use ledge_models::repository::LoadedModel;
use ledge_models::serving::request::{InferRequest, Payload, ResultForm};
use ledge_models::serving::{Serving, ServingError};
use ledge_service::off_thread::blocking;
use tokio::sync::Semaphore;

use crate::camera::Camera;
use crate::config::CameraConfig;
use crate::found::{ExaminedPicture, FoundObjects};

/// The longest time of an inference, waiting included. A picture is old by then.
const INFERENCE_TIMEOUT: Duration = Duration::from_secs(10);

/// Asks models about pictures, and draws pictures. Clones share the permits.
#[derive(Debug, Clone)]
pub struct PictureRenderer {
    pub serving: Serving,
    /// The model that finds faces to blur.
    faces: ModelName,
    /// Bounds the pictures that are decoded at a time, one for each core.
    permits: Arc<Semaphore>,
}

/// The reason why the model did not answer.
#[derive(Debug, thiserror::Error)]
pub enum DetectObjectsError {
    #[error(transparent)]
    Serving(#[from] ServingError),
    #[error(transparent)]
    Picture(#[from] ImageError),
    #[error("the model does not find objects: its answers have {0:?} and no detections")]
    NoDetector(&'static str),
}

/// The reason why a picture is not shown.
#[derive(Debug, thiserror::Error)]
pub enum PictureRenderError {
    /// Something that is to be blurred cannot be looked for.
    #[error("{0}")]
    Blur(String),
    #[error(transparent)]
    Draw(#[from] AnnotationError),
}

impl From<ImageError> for PictureRenderError {
    fn from(error: ImageError) -> Self {
        Self::Draw(error.into())
    }
}

impl PictureRenderer {
    pub fn new(serving: Serving, faces: ModelName) -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        Self { serving, faces, permits: Arc::new(Semaphore::new(cores)) }
    }

    /// The memory of the pictures of a camera.
    pub fn account(&self, config: &CameraConfig) -> MemoryAccount {
        self.serving.memory().account(principal(config))
    }

    /// Finds the objects on a photograph of a camera.
    pub async fn find(&self, config: &CameraConfig, photograph: Bytes) -> Result<FoundObjects, DetectObjectsError> {
        let (found, model) = self.ask(config, &config.model, photograph).await?;
        Ok(FoundObjects { blur_fault: blur_fault(config, &model), ..found })
    }

    /// The objects on a photograph, and the version that found them: a candidate may have.
    async fn ask(
        &self,
        config: &CameraConfig,
        model: &ModelName,
        photograph: Bytes,
    ) -> Result<(FoundObjects, Arc<LoadedModel>), DetectObjectsError> {
        let request = InferRequest {
            payload: Payload::Content(CallContent::Photograph(photograph), ResultForm::Json),
            deadline: Some(Instant::now() + INFERENCE_TIMEOUT),
            priority: Some(config.priority.into()),
            account: self.account(config),
        };
        let principal = principal(config);
        let (answer, model) = self.serving.pin_and_infer(model, request, &principal).await?;
        let kind = answer.result.as_ref().map_or("", |result| result.kind.member);
        let detections = answer.detections().ok_or(DetectObjectsError::NoDetector(kind))?;
        let unreported = answer.unreported(&model);
        Ok((FoundObjects { detections, unreported, blur_fault: None }, model))
    }

    /// The reason why faces cannot be blurred now, where they are to be.
    pub fn face_fault(&self, config: &CameraConfig) -> Option<String> {
        let is_missing = blurs_faces(&config.blur) && self.serving.repository().pin(&self.faces, None).is_err();
        is_missing.then(|| format!("the model {}, which finds the faces to blur, is not loaded", self.faces))
    }

    /// Blurs the places that must not be shown, and draws `zones` and the objects that count. The answer is a JPEG. A
    /// picture with a [`FoundObjects::blur_fault`] is refused.
    pub async fn draw(
        &self,
        camera: &Arc<Camera>,
        examined: ExaminedPicture,
        zones: Vec<ZoneOutline>,
    ) -> Result<Bytes, PictureRenderError> {
        let ExaminedPicture { photograph, size, found: FoundObjects { detections, unreported, blur_fault } } = examined;
        if let Some(fault) = blur_fault {
            return Err(PictureRenderError::Blur(fault));
        }
        let mut hidden = [&*detections, &*unreported].concat();
        if blurs_faces(&camera.config.blur) {
            let found = self.ask(&camera.config, &self.faces, photograph.clone()).await;
            let fault =
                |error| PictureRenderError::Blur(format!("the model {} does not find faces: {error}", self.faces));
            let (faces, _) = found.map_err(fault)?;
            hidden.extend(as_faces(faces.detections.into_iter().chain(faces.unreported)));
        }
        let (camera, limits, account) = (camera.clone(), self.serving.decode_limits(), self.account(&camera.config));
        self.on_a_core(move || {
            let counted = camera.counted(&detections, size);
            let blurred = blurred_places(&camera.config.blur, &hidden);
            let annotation = Annotation {
                detections: &counted,
                texts: &[],
                zones: &zones,
                blurred: &blurred,
                format: PictureFormat::Jpeg,
            };
            let jpeg = annotate(&photograph, &annotation, limits, &mut account.hold())?;
            Ok(account.force_reserve(jpeg.len()).attach(jpeg.into()))
        })
        .await
    }

    /// Runs work of milliseconds outside of the async threads, for as many cameras at a time as there are cores. A
    /// panic is an error of this picture only: the task of a camera must not end unnoticed.
    pub async fn on_a_core<T: Send + 'static, E: From<ImageError> + Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        // The semaphore is never closed.
        let permit = self.permits.clone().acquire_owned().await.ok();
        blocking(move || {
            let _permit = permit;
            catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
                let reason = "its processing panicked".to_owned();
                Err(ImageError::Malformed { format: ImageFormat::Jpeg, reason }.into())
            })
        })
        .await
    }
}

fn principal(config: &CameraConfig) -> Principal {
    Principal::Camera(config.name.as_str().into())
}

/// The reason why the detections of `model` do not cover all labels to blur. `model` must be the version that answered,
/// because another version may have other labels.
pub fn blur_fault(config: &CameraConfig, model: &LoadedModel) -> Option<String> {
    let has = |label: &str| model.labels.values().any(|labels| labels.iter().any(|known| known == label));
    let mut wanted = config.blur.iter().filter(|label| !is_face(label));
    let unknown = wanted.find(|label| !has(label))?;
    Some(format!("version {} of the model {} has no label {unknown:?}", model.version, model.name))
}
