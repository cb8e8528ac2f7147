//! One inference call from its bytes to its answer's bytes, the same for HTTP, MQTT and the command line.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use ledge_base::log_limiter::LogLimiter;
use ledge_base::memory_budget::{MemoryAccount, MemoryReservation};
use ledge_base::names::{CameraName, ModelName, ModelVersion};
use ledge_base::principal::Principal;
use ledge_engine::pipeline::content::rows::RowsText;
use ledge_engine::pipeline::content::{CallContent, ContentError, PipelineInput, Texts};
use ledge_engine::pipeline::file_format::{FileFormat, UnexpectedFile};
use ledge_engine::pipeline::kind::ResultsToText;
use ledge_identity::access::ViewScope;
use ledge_models::repository::LoadedModel;
use ledge_models::scheduling::terms::Priority;
use ledge_models::serving::Serving;
use ledge_models::serving::request::{CacheOutcome, InferRequest, InferResponse, Payload, ResultForm};
use ledge_part::api_error::{ApiError, StatusCode};
use ledge_service::off_thread::off_thread;

use super::content::PipelineAnswer;
use super::decode::{ModelTarget, ReplyFormat, decode_within};
use super::encode::encode_counted;
use super::error::ProtocolError;
use super::rows::are_rows;

/// The most bytes of JSON that are decoded on an async thread: more would keep other callers waiting.
pub const INLINE_JSON_BYTES_MAX: usize = 256 << 10;

/// Name of the header in HTTP, and of the user property in MQTT, with the length of a body's JSON. The rest of the body
/// is binary tensor data.
pub const HEADER_LENGTH: &str = "inference-header-content-length";

/// The bytes of the answer of a pipeline besides its result: names, times, and the features of the rows.
const ANSWER_HEAD_BYTES: usize = 2 << 10;

/// A call as it was received.
#[derive(Debug, Clone)]
pub struct InferenceCall {
    pub target: ModelTarget,
    pub body: Bytes,
    pub form: BodyKind,
    /// A caller that would rather have the text of a document than JSON.
    pub prefers_text: bool,
    /// Priority from the transport; a priority in the request wins.
    pub priority: Option<Priority>,
    /// Deadline from the transport; an earlier one in the request wins.
    pub deadline: Option<Instant>,
    pub arrived: Instant,
    /// Account that the decoded request and its answer are counted on.
    pub account: MemoryAccount,
    /// The feature views of which the answer may report values.
    pub views: ViewScope,
    /// The camera that took the photograph: the objects that a detector finds on it make its events.
    pub camera: Option<CameraName>,
}

/// Refuses a call that names a camera which takes no pictures of calls.
pub fn check_camera(serving: &Serving, camera: Option<&CameraName>) -> Result<(), ApiError> {
    let Some(camera) = camera else { return Ok(()) };
    if serving.sink().is_some_and(|sink| sink.takes(camera)) {
        return Ok(());
    }
    let message = format!(
        "no camera {camera} takes pictures of calls: configure a [[camera]] of this name without a url, or leave the \
         name out"
    );
    Err(ApiError::new(StatusCode::BAD_REQUEST, message))
}

/// Passes the objects that a detector found on a photograph of a camera to the part that watches cameras. `model` is
/// the version that answered.
pub fn report_sighting(
    serving: &Serving,
    camera: &CameraName,
    photograph: Bytes,
    (answer, model): (&InferResponse, &LoadedModel),
) {
    if let Some(sink) = serving.sink()
        && let Some(detections) = answer.detections()
    {
        sink.on_detections(camera, model, photograph, detections, answer.unreported(model));
    }
}

/// Kind of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyKind {
    /// JPEG, PNG or WebP, whole: a photograph, or a document of one page. GIF or BMP, whole: a document only.
    Photograph,
    /// A PDF, whole; or, without a content type, a TIFF.
    Document,
    /// UTF-8, whole. For a model that takes no texts it is the protocol's request: browsers send JSON under this type.
    Text,
    /// The protocol's request: JSON, with binary data after it if a header length is set. For a model that takes rows,
    /// rows are JSON of this kind too.
    Tensors {
        /// The length of the JSON in bytes; `None` is the whole body.
        header_length: Option<usize>,
    },
}

impl BodyKind {
    /// Kind of a body with this content type; a header length takes precedence.
    pub fn of(content_type: Option<&str>, header_length: Option<usize>) -> Self {
        let begins = |word: &str| {
            let start = content_type.and_then(|kind| kind.trim_start().get(..word.len()));
            header_length.is_none() && start.is_some_and(|start| start.eq_ignore_ascii_case(word))
        };
        if begins("image/") {
            Self::Photograph
        } else if begins("application/pdf") {
            Self::Document
        } else if begins("text/plain") {
            Self::Text
        } else {
            Self::Tensors { header_length }
        }
    }

    /// As [`Self::of`], but without a content type, as with every client of MQTT 3.1.1 and many a device, a photograph
    /// and a document are recognized by their first bytes.
    pub fn sniffed(body: &[u8], content_type: Option<&str>, header_length: Option<usize>) -> Self {
        let untyped = header_length.is_none() && content_type.is_none();
        match untyped.then(|| FileFormat::of(body)).flatten() {
            Some(FileFormat::Image(_) | FileFormat::Gif | FileFormat::Bmp) => Self::Photograph,
            Some(FileFormat::Pdf | FileFormat::Tiff) => Self::Document,
            Some(FileFormat::Foreign(_)) | None => Self::of(content_type, header_length),
        }
    }

    /// As [`Self::sniffed`], for the message of a device that was not made for Ledge: without a content type, anything
    /// but a photograph or a JSON object is a text.
    pub fn of_message(payload: &[u8], content_type: Option<&str>) -> Self {
        match Self::sniffed(payload, content_type, None) {
            Self::Tensors { .. } if content_type.is_none() && !payload.trim_ascii_start().starts_with(b"{") => {
                Self::Text
            }
            kind => kind,
        }
    }
}

/// The answer to a call.
#[derive(Debug, Clone)]
pub struct CallAnswer {
    /// The protocol's answer, or the pipeline's result for a photograph.
    pub body: Bytes,
    pub content_type: ContentType,
    pub version: ModelVersion,
    /// Result of the response cache; `None` for a model without one.
    pub cache: Option<CacheOutcome>,
}

/// Content type of the body of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentType {
    Json,
    /// JSON of this length in bytes, and binary data after it.
    Binary {
        header_length: usize,
    },
    Text,
}

/// A call, decoded for the version that answers it.
struct DecodedCall {
    request: InferRequest,
    answer: ReplyForm,
    /// The memory of values that were copied out of the body.
    copied: Option<MemoryReservation>,
}

/// The form of an answer.
enum ReplyForm {
    /// The protocol's.
    Tensors { id: Option<String>, reply: ReplyFormat },
    /// The result of the pipeline, in JSON.
    Result,
    /// The text of a file, such as a document.
    Text(ResultsToText),
}

/// Answers a call, and logs its caller, model and result.
pub async fn answer(serving: &Serving, call: InferenceCall, principal: &Principal) -> Result<CallAnswer, ApiError> {
    let (model, arrived, mut id) = (call.target.model.clone(), call.arrived, None);
    let answered = answer_pinned(serving, call, principal, &mut id).await;
    log_answered(&model, arrived, id.as_deref(), principal, answered.as_ref().map(|answer| answer.version));
    answered
}

async fn answer_pinned(
    serving: &Serving,
    call: InferenceCall,
    principal: &Principal,
    told_id: &mut Option<String>,
) -> Result<CallAnswer, ApiError> {
    check_camera(serving, call.camera.as_ref())?;
    let pinned = serving.pin(&call.target.model, call.target.version, principal)?;
    let account = call.account.clone();
    let sighted = call.camera.clone().map(|camera| (camera, call.body.clone(), pinned.model.clone()));
    let DecodedCall { request, answer, copied: _copied } = decode(call, &pinned.model).await?;
    if let ReplyForm::Tensors { id, .. } = &answer {
        told_id.clone_from(id);
    }
    let response = serving.infer(pinned, request, principal).await?;
    if let Some((camera, photograph, model)) = sighted {
        report_sighting(serving, &camera, photograph, (&response, &model));
    }
    encode(response, answer, &account)
}

/// Decodes a call, with a body of the kind that `model` takes.
async fn decode(call: InferenceCall, model: &LoadedModel) -> Result<DecodedCall, ApiError> {
    let input = model.input();
    if call.prefers_text
        && let Some(text) = model.config.pipeline.section().and_then(|section| section.kind().text)
    {
        return file_for_text(call, input, text);
    }
    match call.form {
        BodyKind::Photograph | BodyKind::Document => {
            let content = file(call.form, call.body.clone(), input);
            Ok(call.with_content(content))
        }
        BodyKind::Text | BodyKind::Tensors { header_length: None } if has_rows(&call, input).await => rows(call).await,
        BodyKind::Text if call.body.trim_ascii_start().starts_with(b"{") && input != Some(PipelineInput::Texts) => {
            tensors(call, None, input).await
        }
        BodyKind::Text => text(call, input),
        BodyKind::Tensors { header_length } => tensors(call, header_length, input).await,
    }
}

impl InferenceCall {
    /// The call of a pipeline, answered with its result.
    fn with_content(self, content: CallContent) -> DecodedCall {
        let Self { deadline, priority, account, .. } = self;
        let payload = Payload::Content(content, ResultForm::Json);
        let request = InferRequest { payload, deadline, priority, account };
        DecodedCall { request, answer: ReplyForm::Result, copied: None }
    }
}

/// Logs the caller, model and result of a call.
pub fn log_answered(
    model: &ModelName,
    arrived: Instant,
    request_id: Option<&str>,
    principal: &Principal,
    answered: Result<ModelVersion, &ApiError>,
) {
    let latency_us = arrived.elapsed().as_micros();
    match answered {
        Ok(version) => {
            tracing::debug!(
                name: "call.answered",
                %model,
                %version,
                %principal,
                request_id,
                latency_us,
                status = 200,
                "answered"
            );
        }
        Err(error) => {
            let (status, reason) = (error.status.as_u16(), error.message.as_str());
            // A fault of the box is logged, but at a limited rate; a fault of the caller is only reported to the
            // caller.
            if status >= 500
                && let Some(suppressed) = log_permit(status)
            {
                tracing::warn!(
                    name: "call.failed",
                    %model,
                    %principal,
                    request_id,
                    latency_us,
                    status,
                    reason,
                    suppressed,
                    "not answered"
                );
            } else {
                tracing::debug!(
                    name: "call.failed",
                    %model,
                    %principal,
                    request_id,
                    latency_us,
                    status,
                    reason,
                    "not answered"
                );
            }
        }
    }
}

/// Returns the number of suppressed lines when a call of this status may be logged again, otherwise `None`.
fn log_permit(status: u16) -> Option<u64> {
    static LIMITER: LazyLock<Mutex<LogLimiter>> = LazyLock::new(Mutex::default);
    let mut limiter = LIMITER.lock().unwrap_or_else(PoisonError::into_inner);
    limiter.take(("call", status.into()), Instant::now())
}

/// A file as the model takes it: a document for a model that reads documents. `input` is the kind of content that the
/// model takes.
pub(super) fn file(form: BodyKind, body: Bytes, input: Option<PipelineInput>) -> CallContent {
    if form == BodyKind::Document || input == Some(PipelineInput::Document) {
        CallContent::Document(body)
    } else {
        CallContent::Photograph(body)
    }
}

/// A call that is answered with the text of a file.
fn file_for_text(
    call: InferenceCall,
    input: Option<PipelineInput>,
    text: ResultsToText,
) -> Result<DecodedCall, ApiError> {
    if !matches!(call.form, BodyKind::Photograph | BodyKind::Document) {
        let message = "only a document is answered with its text: send it with its content type, such as image/png";
        return Err(ApiError::new(StatusCode::NOT_ACCEPTABLE, message));
    }
    let InferenceCall { body, form, deadline, priority, account, .. } = call;
    let payload = Payload::Content(file(form, body, input), ResultForm::Tensors);
    let request = InferRequest { payload, deadline, priority, account };
    Ok(DecodedCall { request, answer: ReplyForm::Text(text), copied: None })
}

/// True for rows in the place of a request, for a model that takes them.
async fn has_rows(call: &InferenceCall, input: Option<PipelineInput>) -> bool {
    if input != Some(PipelineInput::Rows) {
        return false;
    }
    let body = call.body.clone();
    large_off_thread(call.body.len(), &call.account, move || are_rows(&body)).await
}

async fn rows(call: InferenceCall) -> Result<DecodedCall, ApiError> {
    let body = call.body.clone();
    let rows = large_off_thread(call.body.len(), &call.account, move || RowsText::new(body)).await;
    let content = rows.map(CallContent::Rows).map_err(content_error)?;
    Ok(call.with_content(content))
}

fn text(call: InferenceCall, input: Option<PipelineInput>) -> Result<DecodedCall, ApiError> {
    if let Some(input @ (PipelineInput::Photograph | PipelineInput::Document)) = input {
        return Err(not_a_text(input, &call.body));
    }
    // The bytes are copied.
    let copied = call.account.take(call.body.len())?;
    let texts = Texts::one(&call.body).map_err(content_error)?;
    Ok(DecodedCall { copied: Some(copied), ..call.with_content(CallContent::Texts(texts)) })
}

async fn tensors(
    call: InferenceCall,
    header_length: Option<usize>,
    input: Option<PipelineInput>,
) -> Result<DecodedCall, ApiError> {
    let InferenceCall { target: ModelTarget { model, .. }, body, arrived, priority, deadline, account, views, .. } =
        call;
    let (json, bytes, payer) = (header_length.unwrap_or(body.len()), body.clone(), account.clone());
    let work = move || decode_within(&model, bytes, header_length, arrived, &payer);
    let decoded = large_off_thread(json, &account, work).await;
    let mut decoded = decoded.map_err(|error| match header_length {
        None => not_a_request(input, &body, error),
        Some(_) => error.into(),
    })?;
    decoded.tensors.features.views = views;
    let request = InferRequest {
        payload: Payload::Tensors(decoded.tensors),
        deadline: [deadline, decoded.deadline].into_iter().flatten().min(),
        priority: decoded.priority.or(priority),
        account,
    };
    Ok(DecodedCall { request, answer: ReplyForm::Tensors { id: decoded.id, reply: decoded.reply }, copied: None })
}

/// Writes an answer.
fn encode(response: InferResponse, form: ReplyForm, account: &MemoryAccount) -> Result<CallAnswer, ApiError> {
    let (version, cache) = (response.version, response.cache);
    let (body, content_type) = match form {
        ReplyForm::Tensors { id, reply } => {
            let encoded = encode_counted(response, id.as_deref(), &reply)?;
            let content_type =
                encoded.header_length.map_or(ContentType::Json, |header_length| ContentType::Binary { header_length });
            (encoded.into_bytes()?, content_type)
        }
        ReplyForm::Result => {
            let result = response.result.as_ref().map_or(0, |result| result.json.get().len());
            let mut memory = account.take(ANSWER_HEAD_BYTES + result)?;
            let body = serde_json::to_vec(&PipelineAnswer::new(&response));
            let body = body.map_err(|error| ProtocolError::Encode { reason: error.to_string() })?;
            memory.resize(body.len())?;
            (memory.attach(body.into()), ContentType::Json)
        }
        ReplyForm::Text(text) => {
            let results: Vec<_> = response.outputs.iter().map(|(_, tensor)| tensor).collect();
            // A form feed and a line end between two pages.
            let mut memory = account.take(results.iter().map(|tensor| tensor.data().len()).sum())?;
            let text = text(&results);
            memory.resize(text.len())?;
            (memory.attach(text.into()), ContentType::Text)
        }
    };
    Ok(CallAnswer { body, content_type, version, cache })
}

/// The refusal of texts or rows.
pub fn content_error(error: impl Into<ContentError>) -> ApiError {
    let error = error.into();
    let status = if error.is_too_much() { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST };
    ApiError::new(status, error.to_string())
}

/// The answer to a body that is no inference request, by its actual kind. `input` is the kind of content that the model
/// takes.
fn not_a_request(input: Option<PipelineInput>, body: &[u8], error: ProtocolError) -> ApiError {
    match (FileFormat::of(body), input) {
        (Some(format), _) if format.is_read_as(input.unwrap_or(PipelineInput::Document)) => unmarked_file(format),
        (Some(format), None) => {
            ApiError::new(StatusCode::BAD_REQUEST, format!("the body is {format}, not an inference request"))
        }
        (Some(_), Some(input)) => unexpected_file(input, body),
        (None, _) if is_form_data(body) => form_data(),
        (None, Some(input @ (PipelineInput::Photograph | PipelineInput::Document)))
            if !body.trim_ascii_start().starts_with(b"{") =>
        {
            unexpected_file(input, body)
        }
        (None, Some(input)) if error == ProtocolError::NotText => unexpected_file(input, body),
        (None, _) => error.into(),
    }
}

/// The answer to a body with the content type of a text, for a model that takes files.
fn not_a_text(input: PipelineInput, body: &[u8]) -> ApiError {
    match FileFormat::of(body) {
        Some(format) if format.is_read_as(input) => unmarked_file(format),
        _ => unexpected_file(input, body),
    }
}

fn unexpected_file(input: PipelineInput, body: &[u8]) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, UnexpectedFile::new(input, body).to_string())
}

/// The answer to a photograph or a document that was sent as something else. It says how to send one.
fn unmarked_file(format: FileFormat) -> ApiError {
    let content_type = format.content_type();
    let message = format!(
        "the body is {format}: send it with 'Content-Type: {content_type}', as in curl --data-binary @FILE \
         -H 'Content-Type: {content_type}'"
    );
    ApiError::new(StatusCode::BAD_REQUEST, message)
}

/// The answer to the fields of a web form, as `curl -F` sends them.
fn form_data() -> ApiError {
    let message = "the body is a form (multipart/form-data): send the photograph itself as the body, as in \
                   curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg'";
    ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
}

/// True when a body begins like the parts of a form (RFC 7578): with a boundary and a content disposition.
fn is_form_data(body: &[u8]) -> bool {
    const FORM_PART_HEADER: &[u8] = b"content-disposition: form-data";
    let start = body.get(..body.len().min(512)).unwrap_or_default();
    start.starts_with(b"--")
        && start.windows(FORM_PART_HEADER.len()).any(|window| window.eq_ignore_ascii_case(FORM_PART_HEADER))
}

/// Does `work` on this many bytes of JSON, off the async thread if they are many: 1 MB takes some milliseconds.
async fn large_off_thread<T: Send + 'static>(
    bytes: usize,
    account: &MemoryAccount,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if bytes <= INLINE_JSON_BYTES_MAX { work() } else { off_thread(account, work).await }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_known_by_its_first_part() {
        assert!(is_form_data(b"--X\r\nContent-Disposition: form-data; name=\"f\"\r\n\r\nx\r\n--X--\r\n"));
        assert!(is_form_data(b"--X\r\nContent-Type: image/jpeg\r\ncontent-disposition: Form-Data; name=f\r\n\r\n"));
        for other in [&b""[..], b"--", b"{\"inputs\": \"content-disposition: form-data\"}", b"-- a comment"] {
            assert!(!is_form_data(other), "{other:?}");
        }
    }

    #[test]
    fn an_image_type_means_a_photograph_unless_a_header_length_says_tensors() {
        let tensors = |header_length| BodyKind::Tensors { header_length };
        for (kind, length, form) in [
            (Some("image/jpeg"), None, BodyKind::Photograph),
            (Some(" IMAGE/PNG; q=1"), None, BodyKind::Photograph),
            (Some("image/jpeg"), Some(0), tensors(Some(0))),
            (Some("Application/PDF"), None, BodyKind::Document),
            (Some("application/json"), None, tensors(None)),
            (Some("Text/Plain; charset=utf-8"), None, BodyKind::Text),
            (Some("text/plain"), Some(0), tensors(Some(0))),
            (Some("imageé"), None, tensors(None)),
            (None, Some(7), tensors(Some(7))),
        ] {
            assert_eq!(BodyKind::of(kind, length), form, "{kind:?}");
        }
    }
}
