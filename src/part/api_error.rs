//! The error answer of every handler.

use std::time::Duration;

use axum::body::Body;
pub use axum::http::StatusCode;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use ledge_base::memory_budget::MemoryBudgetExhausted;
use schemars::JsonSchema;
use serde::Serialize;

/// The type of every JSON body.
pub(crate) const JSON_CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/json");

/// An error answer: the status, the message, and when to try again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    pub status: StatusCode,
    /// The text for the caller.
    pub message: String,
    /// The time in seconds after which to try again, if that can help.
    pub retry_after_s: Option<u64>,
}

/// The meaning of a failed call for work that nobody waits for, such as a document of an inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The input is wrong, so it fails each time.
    Refused,
    /// The model's process ended or the run failed: it may succeed at another try, or be the fault of the input.
    Crashed,
    /// It may succeed later.
    Later,
}

impl ApiError {
    /// See [`FailureKind`].
    pub fn kind(&self) -> FailureKind {
        match self.status.as_u16() {
            400 | 413 | 415 | 422 => FailureKind::Refused,
            500 | 502 | 504 => FailureKind::Crashed,
            _ => FailureKind::Later,
        }
    }

    /// An error for which trying again does not help.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), retry_after_s: None }
    }

    /// The same by the number of the status. A number that is not a status becomes 500.
    pub fn with_code(status: u16, message: impl Into<String>) -> Self {
        Self::new(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), message)
    }

    /// An error for which trying again after `wait` may help.
    pub fn later(status: StatusCode, message: impl Into<String>, wait: Duration) -> Self {
        Self { retry_after_s: Some(whole_seconds(wait)), ..Self::new(status, message) }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = ErrorBody::new(&self.message).to_json();
        let mut response = error_response(self.status, body, self.retry_after_s);
        // For transports that write errors in another form.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<MemoryBudgetExhausted> for ApiError {
    fn from(error: MemoryBudgetExhausted) -> Self {
        Self::later(StatusCode::SERVICE_UNAVAILABLE, error.to_string(), MemoryBudgetExhausted::RETRY_AFTER)
    }
}

/// An error answer with a JSON body and, with `retry_after_s`, a `Retry-After` header.
pub fn error_response(status: StatusCode, body: impl Into<Body>, retry_after_s: Option<u64>) -> Response {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(header::CONTENT_TYPE, JSON_CONTENT_TYPE);
    *response.status_mut() = status;
    if let Some(seconds) = retry_after_s {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// A duration in whole seconds, at least one, rounded up: a caller that retries early would be refused again.
pub fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

/// The body of every error answer: `{"error": "..."}`.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub struct ErrorBody<'a> {
    /// The reason why there is no result.
    pub error: &'a str,
    /// The status, where the transport may have no other place for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The id of the request, where the transport may have no other place for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'a str>,
}

impl<'a> ErrorBody<'a> {
    /// A body with only a message.
    pub fn new(error: &'a str) -> Self {
        Self { error, status: None, id: None }
    }

    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_else(|_| br#"{"error":"internal error"}"#.to_vec())
    }
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
}
