//! One inference call from its bytes to its answer's bytes, whatever carried it: HTTP, MQTT or the command line.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ledge_base::complaints::Complaints;
use ledge_base::memory_budget::{Account, NoRoom};
use ledge_base::names::ModelVersion;
use ledge_base::principal::Principal;
use ledge_engine::pipeline::image::ImageFormat;
use ledge_features::online::bytes_of;
use ledge_identity::access::ViewScope;
use ledge_models::scheduling::terms::Priority;
use ledge_models::serving::request::{CacheOutcome, PhotographRequest};
use ledge_models::serving::{Serving, ServingError};
use ledge_service::off_thread::off_thread;
use schemars::JsonSchema;
use serde::Serialize;

use super::decode::{DecodedRequest, Target, decode_within};
use super::encode::encode_within;
use super::error::ProtocolError;
use super::photograph::PhotographAnswer;
use super::status;

/// JSON above this, in bytes, is not decoded on an async thread, which would keep other callers waiting.
pub const LARGE_JSON: usize = 256 << 10;

/// How much of a body is JSON; what follows is binary tensor data. A header in HTTP, a user property in MQTT.
pub const HEADER_LENGTH: &str = "inference-header-content-length";

/// A call as it came in.
#[derive(Debug, Clone)]
pub struct Call {
    pub target: Target,
    pub body: Bytes,
    pub form: Form,
    /// How urgent the transport says it is; a priority in the request wins.
    pub priority: Option<Priority>,
    /// When the caller stops caring, as the transport says; an earlier one in the request wins.
    pub deadline: Option<Instant>,
    pub arrived: Instant,
    /// Who pays for what is made of it.
    pub account: Account,
    /// The feature views whose values the answer may say.
    pub views: ViewScope,
}

/// What a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// JPEG, PNG or WebP, whole.
    Photograph,
    /// The protocol's request, of which so many bytes are JSON and the rest binary; `None`: all of it.
    Tensors {
        /// The length of the JSON, in bytes.
        header_length: Option<usize>,
    },
}

impl Form {
    /// What a body of this content type is; the header length goes before it.
    pub fn of(content_type: Option<&str>, header_length: Option<usize>) -> Self {
        let image = |kind: &str| kind.trim_start().get(..6).is_some_and(|start| start.eq_ignore_ascii_case("image/"));
        if header_length.is_none() && content_type.is_some_and(image) {
            Self::Photograph
        } else {
            Self::Tensors { header_length }
        }
    }

    /// As [`Self::of`], but without a content type, as with every client of MQTT 3.1.1 and many a device, a photograph is
    /// known by its first bytes.
    pub fn sniffed(body: &[u8], content_type: Option<&str>, header_length: Option<usize>) -> Self {
        let untyped = header_length.is_none() && content_type.is_none();
        if untyped && ImageFormat::sniff(body).is_some() {
            Self::Photograph
        } else {
            Self::of(content_type, header_length)
        }
    }
}

/// The answer to a call.
#[derive(Debug, Clone)]
pub struct Answered {
    /// The protocol's answer, or the pipeline's result for a photograph.
    pub body: Bytes,
    /// The length of the JSON at its beginning when binary data follow it.
    pub header_length: Option<usize>,
    pub version: ModelVersion,
    /// What the response cache did; `None` for a model without one.
    pub cache: Option<CacheOutcome>,
}

/// Why a call was not answered.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The request is not one, or its answer cannot be written as asked for.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error(transparent)]
    Serving(#[from] ServingError),
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    #[error(
        "the body is a photograph: send it with 'Content-Type: {content_type}', as in curl --data-binary @photo \
         -H 'Content-Type: {content_type}'"
    )]
    UnmarkedPhotograph { content_type: &'static str },
    /// The fields of a web form, as `curl -F` sends them.
    #[error(
        "the body is a form (multipart/form-data): send the photograph itself as the body, as in \
         curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg'"
    )]
    FormData,
}

impl CallError {
    /// The HTTP status; answers over MQTT carry the same number.
    pub fn status(&self) -> u16 {
        match self {
            Self::Protocol(error) => error.status(),
            Self::Serving(error) => status::of_serving(error),
            Self::NoRoom(_) => 503,
            Self::UnmarkedPhotograph { .. } => 400,
            Self::FormData => 415,
        }
    }

    /// For a call that may be answered later: after how many seconds it is worth another try.
    pub fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::Serving(error) => error.retry_after().map(whole_seconds),
            Self::NoRoom(_) | Self::Protocol(ProtocolError::NoRoom(_)) => Some(whole_seconds(NoRoom::RETRY_AFTER)),
            Self::Protocol(_) | Self::UnmarkedPhotograph { .. } | Self::FormData => None,
        }
    }
}

/// Not before the time: a caller that comes early is refused again.
fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

/// The body of every answer that is not a success: `{"error": "..."}`.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub struct ErrorBody<'a> {
    /// Why there is no result.
    pub error: &'a str,
    /// The status, where the transport may have no other place for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The id of the request, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'a str>,
}

impl<'a> ErrorBody<'a> {
    /// With a message alone.
    pub fn new(error: &'a str) -> Self {
        Self { error, status: None, id: None }
    }

    /// As JSON.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_else(|_| br#"{"error":"internal error"}"#.to_vec())
    }
}

/// Answers a call, and says so in the log: whose it was, of which model, what came of it.
pub async fn answer(serving: &Serving, call: Call, principal: &Principal) -> Result<Answered, CallError> {
    let (model, arrived, mut id) = (call.target.model.clone(), call.arrived, None);
    let answered = match call.form {
        Form::Photograph => photograph(serving, call, principal).await,
        Form::Tensors { header_length } => tensors(serving, call, header_length, principal, &mut id).await,
    };
    let latency_us = arrived.elapsed().as_micros();
    let request_id = id.as_deref();
    match &answered {
        Ok(Answered { version, .. }) => {
            tracing::debug!(%model, %version, %principal, request_id, latency_us, status = 200, "answered");
        }
        Err(error) => {
            let (status, reason) = (error.status(), error.to_string());
            // The box's own fault is worth a line, but not thousands in each second; the caller's is told to the caller.
            if status >= 500
                && let Some(suppressed) = complain(status)
            {
                tracing::warn!(%model, %principal, request_id, latency_us, status, reason, suppressed, "not answered");
            } else {
                tracing::debug!(%model, %principal, request_id, latency_us, status, reason, "not answered");
            }
        }
    }
    answered
}

/// Whether calls of this status are to be told of again, and how many were not since the last.
fn complain(status: u16) -> Option<u64> {
    static COMPLAINTS: LazyLock<Mutex<Complaints>> = LazyLock::new(Mutex::default);
    let mut complaints = COMPLAINTS.lock().unwrap_or_else(PoisonError::into_inner);
    complaints.take(("call", status.into()), Instant::now())
}

async fn photograph(serving: &Serving, call: Call, principal: &Principal) -> Result<Answered, CallError> {
    let Call { target: Target { model, version }, body: photograph, priority, deadline, account, .. } = call;
    let request = PhotographRequest { model, version, photograph, deadline, priority, account };
    let answer = serving.infer_photograph(request, principal).await?;
    let body = serde_json::to_vec(&PhotographAnswer::new(&answer));
    let body = body.map_err(|error| ProtocolError::Encode { reason: error.to_string() })?.into();
    let response = answer.response;
    Ok(Answered { body, header_length: None, version: response.version, cache: response.cache })
}

async fn tensors(
    serving: &Serving,
    call: Call,
    header_length: Option<usize>,
    principal: &Principal,
    told_id: &mut Option<String>,
) -> Result<Answered, CallError> {
    let looks_like = ImageFormat::sniff(&call.body).filter(|_| header_length.is_none());
    let is_form = is_form_data(&call.body);
    let (priority, deadline, account, views) = (call.priority, call.deadline, call.account, call.views);
    let decoded = decode(call.target, call.body, header_length, call.arrived, &account).await;
    let DecodedRequest { id, mut request, reply } = decoded.map_err(|error| match looks_like {
        Some(format) => CallError::UnmarkedPhotograph { content_type: format.content_type() },
        None if is_form => CallError::FormData,
        None => error.into(),
    })?;
    told_id.clone_from(&id);
    request.priority = request.priority.or(priority);
    request.features.views = views;
    request.deadline = [deadline, request.deadline].into_iter().flatten().min();
    let cells = || account.take(bytes_of(&request.features.entities) + bytes_of(&request.features.given));
    let _cells = if request.features.is_empty() { None } else { Some(cells()?) };
    let mut hold = account.take(serving.output_bytes(&request))?;
    let response = serving.infer(request, principal).await?;
    hold.resize(response.outputs.iter().map(|(_, tensor)| tensor.data().len()).sum())?;
    let outputs = hold.bytes();
    let encoded = encode_within(&response, id.as_deref(), &reply, &mut hold)?;
    hold.cover(outputs + encoded.content_length())?;
    let header_length = encoded.header_length;
    let body = encoded.into_bytes();
    hold.resize(body.len())?;
    Ok(Answered { body: hold.keep(body), header_length, version: response.version, cache: response.cache })
}

/// Whether a body begins as the parts of a form do (RFC 7578): with a boundary, and a line that says so.
fn is_form_data(body: &[u8]) -> bool {
    const SIGN: &[u8] = b"content-disposition: form-data";
    let start = body.get(..body.len().min(512)).unwrap_or_default();
    start.starts_with(b"--") && start.windows(SIGN.len()).any(|window| window.eq_ignore_ascii_case(SIGN))
}

/// Decodes a request, a large one off the async thread: 1 MB of JSON takes some milliseconds.
async fn decode(
    target: Target,
    body: Bytes,
    header_length: Option<usize>,
    arrived: Instant,
    account: &Account,
) -> Result<DecodedRequest, ProtocolError> {
    if header_length.unwrap_or(body.len()) <= LARGE_JSON {
        return decode_within(target, body, header_length, arrived, account);
    }
    let payer = account.clone();
    off_thread(account, move || decode_within(target, body, header_length, arrived, &payer)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_body_is_json_whatever_the_message() {
        let body = ErrorBody::new("input 'a\"b\u{0}\n' é").to_json();
        let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(value, serde_json::json!({"error": "input 'a\"b\u{0}\n' é"}));
    }

    #[test]
    fn nobody_is_told_to_come_back_too_early() {
        for (millis, seconds) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (59_999, 60)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds, "{millis} ms");
        }
    }

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
        let tensors = |header_length| Form::Tensors { header_length };
        for (kind, length, form) in [
            (Some("image/jpeg"), None, Form::Photograph),
            (Some(" IMAGE/PNG; q=1"), None, Form::Photograph),
            (Some("image/jpeg"), Some(0), tensors(Some(0))),
            (Some("application/json"), None, tensors(None)),
            (Some("imageé"), None, tensors(None)),
            (None, Some(7), tensors(Some(7))),
        ] {
            assert_eq!(Form::of(kind, length), form, "{kind:?}");
        }
    }
}
