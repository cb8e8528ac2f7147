//! Answers: JSON, errors, and their headers.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ledge_base::memory_budget::NoRoom;
use ledge_features::online::FeatureError;
use ledge_models::repository::{LoadModelError, PinError, UnloadModelError};
use ledge_models::serving::ServingError;
use ledge_protocol::call::{CallError, ErrorBody};
use ledge_protocol::feast::FeastError;
use ledge_protocol::{ProtocolError, status};
use serde::Serialize;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// An error answer: a status and the protocol's `{"error": message}`.
pub fn error(status: StatusCode, message: &str) -> Response {
    let mut response = Response::new(Body::from(ErrorBody::new(message).to_json()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

/// A 503 for a server or model that cannot be asked yet: an error, with what KServe's clients look for.
pub fn not_ready(message: &str) -> Response {
    #[derive(Serialize)]
    struct NotReady<'a> {
        ready: bool,
        error: &'a str,
    }
    let mut response = json(&NotReady { ready: false, error: message });
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

/// A 200 with a JSON body.
pub fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => json_bytes(body),
        Err(reason) => error(StatusCode::INTERNAL_SERVER_ERROR, &format!("the answer cannot be written: {reason}")),
    }
}

/// A 200 with a body that is JSON already.
pub fn json_bytes(body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

/// An error on its way out of a handler.
#[derive(Debug)]
pub struct Failure {
    status: StatusCode,
    message: String,
    /// In whole seconds.
    retry_after_s: Option<u64>,
}

impl Failure {
    /// A failure of the transport's own.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), retry_after_s: None }
    }

    /// A failure that may be none after `wait`.
    pub fn later(status: StatusCode, message: impl Into<String>, wait: Duration) -> Self {
        let retry_after_s = wait.as_millis().div_ceil(1000).max(1).try_into().ok();
        Self { retry_after_s, ..Self::new(status, message) }
    }

    /// The same in the words of Feast's feature server.
    pub fn into_feast(self) -> FeastError {
        FeastError { retry_after_s: self.retry_after_s, ..FeastError::new(self.status.as_u16(), self.message) }
    }
}

/// An error of Feast's feature server, as an answer.
#[derive(Debug)]
pub struct FeastFailure(FeastError);

impl From<FeastError> for FeastFailure {
    fn from(error: FeastError) -> Self {
        Self(error)
    }
}

impl IntoResponse for FeastFailure {
    fn into_response(self) -> Response {
        let Self(error) = self;
        let mut response = json_bytes(error.to_json());
        *response.status_mut() = status_code(error.status);
        if let Some(seconds) = error.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = error(self.status, &self.message);
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

fn status_code(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

impl From<ServingError> for Failure {
    fn from(error: ServingError) -> Self {
        CallError::from(error).into()
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self { retry_after_s: error.retry_after_s(), ..Self::new(status_code(error.status()), error.to_string()) }
    }
}

impl From<NoRoom> for Failure {
    fn from(error: NoRoom) -> Self {
        Self::later(StatusCode::SERVICE_UNAVAILABLE, error.to_string(), NoRoom::RETRY_AFTER)
    }
}

impl From<FeatureError> for Failure {
    fn from(error: FeatureError) -> Self {
        let FeastError { status, retry_after_s, .. } = FeastError::of_store(&error, "");
        Self { retry_after_s, ..Self::new(status_code(status), error.to_string()) }
    }
}

impl From<ProtocolError> for Failure {
    fn from(error: ProtocolError) -> Self {
        Self::new(status_code(error.status()), error.to_string())
    }
}

impl From<PinError> for Failure {
    fn from(error: PinError) -> Self {
        Self::new(status_code(status::of_pin(&error)), error.to_string())
    }
}

impl From<LoadModelError> for Failure {
    fn from(error: LoadModelError) -> Self {
        Self::new(status_code(status::of_load(&error)), error.to_string())
    }
}

impl From<UnloadModelError> for Failure {
    fn from(error: UnloadModelError) -> Self {
        Self::new(status_code(status::of_unload(&error)), error.to_string())
    }
}
