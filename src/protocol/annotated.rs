//! An annotated photograph as the answer to a call: the objects that a model found, drawn into the sent photograph.

use std::sync::Arc;

use bytes::Bytes;
use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::principal::Principal;
use ledge_engine::pipeline::annotation::{
    Annotation, AnnotationError, PictureFormat, annotate, as_faces, blurred_places, blurs_faces,
};
use ledge_engine::pipeline::content::{CallContent, PipelineInput};
use ledge_engine::pipeline::file_format::FileFormat;
use ledge_engine::pipeline::image::ImageError;
use ledge_models::serving::Serving;
use ledge_models::serving::request::{CacheOutcome, InferRequest, Payload, ResultForm};
use ledge_part::api_error::{ApiError, StatusCode};
use ledge_service::off_thread::off_thread;

use super::call::{BodyKind, InferenceCall, check_camera, file, log_answered, report_sighting};
use super::decode::ModelTarget;

/// The places of photographs that are blurred.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlurRule {
    /// The labels of the objects, as in [`blurred_places`]; `face` stands for each face that `faces` finds.
    pub labels: Arc<[String]>,
    /// The model that finds faces.
    pub faces: ModelName,
}

/// An annotated photograph.
#[derive(Debug, Clone)]
pub struct AnnotatedPhotograph {
    /// The picture, in the format that was asked for.
    pub body: Bytes,
    /// As in [`super::call::CallAnswer`].
    pub cache: Option<CacheOutcome>,
}

/// Answers a call with the photograph that was sent, annotated. The call fails if a face that has to be blurred could
/// not be looked for.
pub async fn answer(
    serving: &Serving,
    call: InferenceCall,
    format: PictureFormat,
    blur: &BlurRule,
    principal: &Principal,
) -> Result<AnnotatedPhotograph, ApiError> {
    let (model, arrived) = (call.target.model.clone(), call.arrived);
    let answered = annotated(serving, call, format, blur, principal).await;
    let told = answered.as_ref().map(|(_, version)| *version);
    log_answered(&model, arrived, None, principal, told);
    answered.map(|(photograph, _)| photograph)
}

async fn annotated(
    serving: &Serving,
    call: InferenceCall,
    format: PictureFormat,
    blur: &BlurRule,
    principal: &Principal,
) -> Result<(AnnotatedPhotograph, ModelVersion), ApiError> {
    let is_document = FileFormat::of(&call.body).is_some_and(|format| {
        format.is_read_as(PipelineInput::Document) && !format.is_read_as(PipelineInput::Photograph)
    });
    if call.form != BodyKind::Photograph || is_document {
        return Err(not_acceptable(
            "only a JPEG, PNG or WebP is answered with a picture: send it with its content type. Boxes in another \
             document are in the answer in JSON",
        ));
    }
    check_camera(serving, call.camera.as_ref())?;
    let InferenceCall { target: ModelTarget { model, version }, body: photograph, form, account, camera, .. } = call;
    let request = |content| InferRequest {
        payload: Payload::Content(content, ResultForm::Json),
        deadline: call.deadline,
        priority: call.priority,
        account: account.clone(),
    };

    let pinned = serving.pin(&model, version, principal)?;
    let loaded = pinned.model.clone();
    let content = file(form, photograph.clone(), loaded.input());
    let answer = serving.infer(pinned, request(content), principal).await?;
    let texts = answer.texts(&loaded);
    let detections = answer.detections().or_else(|| texts.is_some().then(Vec::new)).ok_or_else(|| {
        not_acceptable(&format!(
            "model '{model}' finds no objects or lines to draw: leave out the header accept, for JSON"
        ))
    })?;
    let texts = texts.unwrap_or_default();
    if let Some(camera) = camera {
        report_sighting(serving, &camera, photograph.clone(), (&answer, &loaded));
    }
    let mut found = [&*detections, &*answer.unreported(&loaded)].concat();
    drop(loaded);
    if blurs_faces(&blur.labels) {
        let request = request(CallContent::Photograph(photograph.clone()));
        let (answer, loaded) = serving.pin_and_infer(&blur.faces, request, principal).await?;
        let faces = answer.detections().ok_or_else(|| {
            let message =
                format!("model '{}' finds no faces to blur: set vision.face to a model that does", blur.faces);
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
        })?;
        found.extend(as_faces(faces.into_iter().chain(answer.unreported(&loaded))));
    }

    let (limits, labels, mut hold) = (serving.decode_limits(), blur.labels.clone(), account.hold());
    let picture = off_thread(&account, move || {
        let blurred = blurred_places(&labels, &found);
        let annotation = Annotation { detections: &detections, texts: &texts, zones: &[], blurred: &blurred, format };
        let picture = annotate(&photograph, &annotation, limits, &mut hold)?;
        // The bytes of the answer are left; no more than were counted.
        let _ = hold.resize(picture.len());
        Ok(hold.attach(picture.into()))
    });
    let body = picture.await.map_err(|error: AnnotationError| match error {
        AnnotationError::Photograph(ImageError::NoRoom(error)) => error.into(),
        error => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    })?;
    Ok((AnnotatedPhotograph { body, cache: answer.cache }, answer.version))
}

fn not_acceptable(message: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_ACCEPTABLE, message)
}
