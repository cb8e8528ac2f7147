//! Answers: JSON, errors, and their headers.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::protocol::call::CallError;
use crate::protocol::{ProtocolError, status};
use crate::repository::{LoadModelError, PinError};
use crate::serving::ServingError;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// An error answer: a status and the protocol's `{"error": message}`.
pub fn error(status: StatusCode, message: &str) -> Response {
    let mut response = Response::new(Body::from(status::error_body(message)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
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
    retry_after: Option<Duration>,
}

impl Failure {
    /// A failure of the transport's own.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), retry_after: None }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = error(self.status, &self.message);
        if let Some(wait) = self.retry_after {
            // Whole seconds, and not before the time: a caller that comes early is refused again.
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        response
    }
}

fn status_code(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

impl From<ServingError> for Failure {
    fn from(error: ServingError) -> Self {
        let retry_after = error.retry_after();
        Self { retry_after, ..Self::new(status_code(status::of_serving(&error)), error.to_string()) }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let retry_after = error.retry_after();
        Self { retry_after, ..Self::new(status_code(error.status()), error.to_string()) }
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
