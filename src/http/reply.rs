//! Answers that only the API has: readiness as KServe's clients read it, errors as Feast's clients read them.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use ledge_part::failure::{Failure, error_response};
use ledge_part::reply::json;
use ledge_protocol::feast::FeastError;
use serde::Serialize;

/// A 503 for a server or model that cannot be asked yet: an error, with the field that KServe's clients look for.
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

/// An error of Feast's feature server, as an answer.
#[derive(Debug)]
pub struct FeastFailure(FeastError);

impl From<FeastError> for FeastFailure {
    fn from(error: FeastError) -> Self {
        Self(error)
    }
}

impl From<Failure> for FeastFailure {
    fn from(failure: Failure) -> Self {
        Self(failure.into())
    }
}

impl IntoResponse for FeastFailure {
    fn into_response(self) -> Response {
        let Self(error) = self;
        let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        error_response(status, error.to_json(), error.retry_after_s)
    }
}
