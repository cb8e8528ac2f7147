//! Answers in JSON.

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::api_error::{ApiError, JSON_CONTENT_TYPE};

/// An error answer: the status, and the body `{"error": message}`.
pub fn error(status: StatusCode, message: &str) -> Response {
    ApiError::new(status, message).into_response()
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
    response.headers_mut().insert(header::CONTENT_TYPE, JSON_CONTENT_TYPE);
    response
}
