//! `/v1/vision`: the interface of DeepStack, which software for cameras calls.

pub mod config;

use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use ledge_base::memory_budget::MemoryAccount;
use ledge_base::names::{CameraName, ModelName};
use ledge_base::principal::Principal;
use ledge_engine::pipeline::content::CallContent;
use ledge_engine::pipeline::detection::Detection;
use ledge_identity::authentication::RequestPermit;
use ledge_models::repository::PinError;
use ledge_models::serving::ServingError;
use ledge_models::serving::request::{InferRequest, InferResponse, Payload, ResultForm};
use ledge_part::api_error::{ApiError, StatusCode};
use ledge_part::body::{self, ReceivedBody};
use ledge_part::counted_body;
use ledge_part::reply::json;
use ledge_part::route::PathParts;
use ledge_protocol::call::{check_camera, log_answered, report_sighting};
use ledge_protocol::deepstack::{
    DetectionAnswer, FormError, ModelListAnswer, Pong, PredictionFilter, SceneAnswer, VisionForm,
};
use ledge_service::off_thread::off_thread;
use serde::Deserialize;

use super::App;
use super::call_headers::{self, CallHeaders};
use super::guard::{self, FormCaller};
use super::models::target;
use super::reply::VisionErrorResponse;

/// The least confidence of objects where the caller names none, as in DeepStack.
const MIN_CONFIDENCE: f32 = 0.4;

/// The same for faces.
const FACE_MIN_CONFIDENCE: f32 = 0.55;

/// The largest form without a picture, in bytes.
const LIST_FORM_BYTES_MAX: usize = 64 << 10;

/// The roots of the interface's paths.
const PATHS: [&str; 2] = ["/v1/vision", "/v1/status"];

/// True for a path of this interface, also one without a route.
pub(super) fn is_below(path: &str) -> bool {
    let below = |root: &&str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    PATHS.iter().any(below)
}

/// `GET /v1/status/ping`.
pub async fn ping() -> Response {
    json(&Pong::default())
}

/// `POST /v1/vision/detection`: objects with labels and boxes.
pub async fn detection(State(app): State<App>, request: Request) -> Result<Response, VisionErrorResponse> {
    let model = app.vision().detection.clone();
    let call = VisionCall::receive(&app, request, model, "vision.detection").await?;
    Ok(call.objects(&app, MIN_CONFIDENCE, true).await?)
}

/// `POST /v1/vision/face`: boxes of faces.
pub async fn face(State(app): State<App>, request: Request) -> Result<Response, VisionErrorResponse> {
    let model = app.vision().face.clone();
    let call = VisionCall::receive(&app, request, model, "vision.face").await?;
    Ok(call.objects(&app, FACE_MIN_CONFIDENCE, false).await?)
}

/// `POST /v1/vision/custom/{model}`: objects that any model finds.
pub async fn custom(
    State(app): State<App>,
    path: Result<PathParts, ApiError>,
    request: Request,
) -> Result<Response, VisionErrorResponse> {
    let model = target(&path?.0)?.model;
    let call = VisionCall::receive(&app, request, model, "").await?;
    Ok(call.objects(&app, MIN_CONFIDENCE, true).await?)
}

/// `POST /v1/vision/scene`: the class of the whole photograph.
pub async fn scene(State(app): State<App>, request: Request) -> Result<Response, VisionErrorResponse> {
    let Some(model) = app.vision().scene.clone() else {
        body::discard_unless_expected(&request.headers().clone(), request.into_body(), app.context().limits()).await;
        let message = "no model names scenes: set vision.scene to a model that classifies photographs";
        return Err(ApiError::new(StatusCode::FORBIDDEN, message).into());
    };
    let call = VisionCall::receive(&app, request, model, "vision.scene").await?;
    Ok(call.class(&app).await?)
}

/// `POST /v1/vision/custom/list`: the models that find objects.
pub async fn custom_list(State(app): State<App>, request: Request) -> Result<Response, VisionErrorResponse> {
    let (parts, body) = request.into_parts();
    let ReceivedBody { bytes, .. } = body::read(&parts, body, app.context()).await?;
    if bytes.len() > LIST_FORM_BYTES_MAX {
        return Err(bad_request("the form is larger than 64 kB: it needs no picture".into()).into());
    }
    let form = match VisionForm::parse(call_headers::content_type(&parts.headers), bytes) {
        // Without fields there may be no form at all.
        Err(FormError::NoForm) => VisionForm::default(),
        form => form.map_err(|error| bad_request(error.to_string()))?,
    };
    let caller = guard::admit_by_form(&app, &parts, form.api_key.as_deref())?;

    let models = app.serving().repository().all_live();
    let finds_objects = models.iter().filter(|model| {
        let kind = model.pipeline.as_ref().map(|pipeline| pipeline.kind());
        kind.is_some_and(|kind| kind.member == Detection::MEMBER) && caller.has_model(&model.name)
    });
    let mut names: Vec<_> = finds_objects.map(|model| model.name.to_string()).collect();
    names.sort();
    names.dedup();
    Ok(json(&ModelListAnswer::new(names)))
}

/// A call, received and admitted.
struct VisionCall {
    model: ModelName,
    /// The setting that names the model; empty where the caller does.
    setting: &'static str,
    image: Bytes,
    min_confidence: Option<f32>,
    headers: CallHeaders,
    camera: Option<CameraName>,
    arrived: Instant,
    account: MemoryAccount,
    principal: Principal,
    /// Counts the call as running for the key in its form.
    permit: Option<RequestPermit>,
}

impl VisionCall {
    async fn receive(
        app: &App,
        request: Request,
        model: ModelName,
        setting: &'static str,
    ) -> Result<Self, VisionErrorResponse> {
        let arrived = Instant::now();
        let (parts, body) = request.into_parts();
        let headers = CallHeaders::read(&parts.headers, arrived).and_then(|headers| {
            let camera = call_headers::camera(&parts.headers)?;
            check_camera(app.serving(), camera.as_ref()).map(|()| (headers, camera))
        });
        let (headers, camera) = match headers {
            Ok(headers) => headers,
            Err(failure) => {
                body::discard_unless_expected(&parts.headers, body, app.context().limits()).await;
                return Err(failure.into());
            }
        };
        let ReceivedBody { bytes, account } = body::read(&parts, body, app.context()).await?;
        let content_type = call_headers::content_type(&parts.headers).map(str::to_owned);
        // Reading copies the form, and the picture out of it.
        let mut copy = account.take(2 * bytes.len()).map_err(ApiError::from)?;
        let read = off_thread(&account, move || VisionForm::parse(content_type.as_deref(), bytes));
        let form = read.await.map_err(|error: FormError| bad_request(error.to_string()))?;

        let caller = guard::admit_by_form(app, &parts, form.api_key.as_deref())?;
        caller.check_model(app, &parts, &model)?;
        let image = form.image.ok_or_else(|| bad_request("the form has no field image".into()))?;
        // No more than was counted.
        let _ = copy.resize(image.len());
        let (image, min_confidence) = (copy.attach(image), form.min_confidence);
        let FormCaller { principal, permit, .. } = caller;
        Ok(Self { model, setting, image, min_confidence, headers, camera, arrived, account, principal, permit })
    }

    /// Answers with the objects in the photograph.
    async fn objects(self, app: &App, min_confidence: f32, is_labeled: bool) -> Result<Response, ApiError> {
        let answer = self.infer(app).await?;
        let detections = answer.detections().ok_or_else(|| {
            let message = format!("the model '{}' finds no objects in photographs", self.model);
            self.not_set_up(message)
        })?;
        let config = app.vision();
        let selection = PredictionFilter {
            min_confidence: self.min_confidence.unwrap_or(min_confidence),
            labels: if is_labeled { &config.labels } else { &[] },
            max: config.max_predictions,
            is_labeled,
        };
        let duration_ms = u64::try_from(self.arrived.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(self.keep_permit(json(&DetectionAnswer::new(&detections, selection, duration_ms))))
    }

    /// Answers with the best class of the photograph.
    async fn class(self, app: &App) -> Result<Response, ApiError> {
        #[derive(Deserialize)]
        struct SceneClass {
            label: Option<String>,
            index: usize,
            score: f64,
        }
        let answer = self.infer(app).await?;
        let classes: Option<Vec<SceneClass>> =
            answer.result.and_then(|result| serde_json::from_str(result.json.get()).ok());
        let best = classes.into_iter().flatten().next().ok_or_else(|| {
            let message = format!("the model '{}' names no class of a photograph", self.model);
            self.not_set_up(message)
        })?;
        let label = best.label.unwrap_or_else(|| best.index.to_string());
        Ok(self.keep_permit(json(&SceneAnswer::new(&label, best.score))))
    }

    async fn infer(&self, app: &App) -> Result<InferResponse, ApiError> {
        let CallHeaders { priority, deadline } = self.headers;
        let request = InferRequest {
            payload: Payload::Content(CallContent::Photograph(self.image.clone()), ResultForm::Json),
            deadline,
            priority,
            account: self.account.clone(),
        };
        let answered = app.serving().pin_and_infer(&self.model, request, &self.principal).await;
        let answered = answered.map_err(|error| match error {
            ServingError::Pin(PinError::UnknownModel { model }) if !self.setting.is_empty() => {
                self.not_set_up(format!("there is no model '{model}' in the repository"))
            }
            error => error.into(),
        });
        let told = answered.as_ref().map(|(answer, _)| answer.version);
        log_answered(&self.model, self.arrived, None, &self.principal, told);
        if let (Some(camera), Ok((answer, model))) = (&self.camera, &answered) {
            report_sighting(app.serving(), camera, self.image.clone(), (answer, model));
        }
        Ok(answered?.0)
    }

    /// The 403 of DeepStack for a function that the operator has not set up.
    fn not_set_up(&self, message: String) -> ApiError {
        match self.setting {
            "" => bad_request(message),
            setting => ApiError::new(StatusCode::FORBIDDEN, format!("{message}: set {setting}, or add the model")),
        }
    }

    fn keep_permit(self, response: Response) -> Response {
        match self.permit.filter(RequestPermit::is_counted) {
            Some(permit) => counted_body::keep_until_sent(response, permit),
            None => response,
        }
    }
}

fn bad_request(message: String) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, message)
}
