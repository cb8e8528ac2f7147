//! The form of errors: `{"error": {"code", "message", "innererror"}}` (error guide, version 4.0).

use ledge_part::api_error::{ApiError, StatusCode};
use serde::Serialize;

/// The body of an error answer, and the error of an operation that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AnalysisErrorBody<'a> {
    error: AnalysisError<'a>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct AnalysisError<'a> {
    code: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    innererror: Option<InnerError<'a>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct InnerError<'a> {
    code: &'static str,
    message: &'a str,
}

/// The subject of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorSubject {
    Request,
    Document,
}

impl<'a> AnalysisErrorBody<'a> {
    /// The body for an error of this box.
    pub fn new(failure: &'a ApiError, subject: ErrorSubject) -> Self {
        let (code, inner) = codes(failure.status, subject);
        let message = failure.message.as_str();
        let innererror = inner.map(|code| InnerError { code, message });
        Self { error: AnalysisError { code, message, innererror } }
    }

    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// The code of a status, and that of the inner error.
fn codes(status: StatusCode, subject: ErrorSubject) -> (&'static str, Option<&'static str>) {
    match status {
        StatusCode::BAD_REQUEST if subject == ErrorSubject::Document => ("InvalidRequest", Some("InvalidContent")),
        StatusCode::BAD_REQUEST => ("InvalidRequest", Some("InvalidParameter")),
        StatusCode::PAYLOAD_TOO_LARGE => ("InvalidRequest", Some("InvalidContentLength")),
        StatusCode::UNAUTHORIZED => ("Unauthorized", None),
        StatusCode::FORBIDDEN => ("Forbidden", None),
        StatusCode::NOT_FOUND => ("NotFound", None),
        StatusCode::METHOD_NOT_ALLOWED => ("MethodNotAllowed", None),
        StatusCode::UNSUPPORTED_MEDIA_TYPE => ("UnsupportedMediaType", None),
        StatusCode::TOO_MANY_REQUESTS => ("TooManyRequests", None),
        StatusCode::SERVICE_UNAVAILABLE => ("ServiceUnavailable", None),
        status if status.is_client_error() => ("InvalidRequest", None),
        _ => ("InternalServerError", None),
    }
}
