//! Answers in the forms of other projects: readiness for KServe's clients, errors for the clients of Feast, of
//! DeepStack, of OpenAI and of Azure.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ledge_part::api_error::{ApiError, error_response};
use ledge_part::reply::json;
use ledge_protocol::deepstack::VisionErrorBody;
use ledge_protocol::document_intelligence::{AnalysisErrorBody, ErrorSubject};
use ledge_protocol::feast::FeastError;
use ledge_protocol::openai::OpenAiErrorBody;
use serde::Serialize;

use super::denied::DeniedRequest;

/// A 503 for a server or model that is not ready: an error, with the field that KServe's clients read.
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

/// An error answer in the form of Feast's feature server.
#[derive(Debug)]
pub struct FeastErrorResponse(FeastError);

impl From<FeastError> for FeastErrorResponse {
    fn from(error: FeastError) -> Self {
        Self(error)
    }
}

impl From<ApiError> for FeastErrorResponse {
    fn from(failure: ApiError) -> Self {
        Self(failure.into())
    }
}

impl IntoResponse for FeastErrorResponse {
    fn into_response(self) -> Response {
        let Self(error) = self;
        let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        error_response(status, error.to_json(), error.retry_after_s)
    }
}

/// An error answer in the form of DeepStack.
#[derive(Debug)]
pub struct VisionErrorResponse {
    failure: ApiError,
    /// The challenge of a 401.
    challenge: Option<HeaderValue>,
}

impl From<ApiError> for VisionErrorResponse {
    fn from(failure: ApiError) -> Self {
        Self { failure, challenge: None }
    }
}

impl From<DeniedRequest> for VisionErrorResponse {
    fn from(DeniedRequest { failure, challenge, .. }: DeniedRequest) -> Self {
        Self { failure, challenge }
    }
}

impl IntoResponse for VisionErrorResponse {
    fn into_response(self) -> Response {
        let Self { failure: ApiError { status, message, retry_after_s }, challenge } = self;
        with_challenge(error_response(status, VisionErrorBody::new(&message).to_json(), retry_after_s), challenge)
    }
}

/// Adds the challenge of a 401 (RFC 9110, 15.5.2).
pub fn with_challenge(mut response: Response, challenge: Option<HeaderValue>) -> Response {
    if let Some(challenge) = challenge {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    }
    response
}

/// An error answer in the form of Azure's services.
#[derive(Debug)]
pub struct AnalysisErrorResponse {
    failure: ApiError,
    subject: ErrorSubject,
}

impl AnalysisErrorResponse {
    /// The error of a document.
    pub fn of_document(failure: ApiError) -> Self {
        Self { failure, subject: ErrorSubject::Document }
    }
}

impl From<ApiError> for AnalysisErrorResponse {
    fn from(failure: ApiError) -> Self {
        Self { failure, subject: ErrorSubject::Request }
    }
}

impl From<DeniedRequest> for AnalysisErrorResponse {
    fn from(denied: DeniedRequest) -> Self {
        denied.failure.into()
    }
}

impl IntoResponse for AnalysisErrorResponse {
    fn into_response(self) -> Response {
        let Self { failure, subject } = self;
        let body = AnalysisErrorBody::new(&failure, subject).to_json();
        error_response(failure.status, body, failure.retry_after_s)
    }
}

/// An error answer in the form of OpenAI.
#[derive(Debug)]
pub struct OpenAiErrorResponse(ApiError);

impl From<ApiError> for OpenAiErrorResponse {
    fn from(failure: ApiError) -> Self {
        Self(failure)
    }
}

impl From<DeniedRequest> for OpenAiErrorResponse {
    fn from(denied: DeniedRequest) -> Self {
        Self(denied.failure)
    }
}

impl IntoResponse for OpenAiErrorResponse {
    fn into_response(self) -> Response {
        let Self(ApiError { status, message, retry_after_s }) = self;
        error_response(status, OpenAiErrorBody::new(status, &message).to_json(), retry_after_s)
    }
}
