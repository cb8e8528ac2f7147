//! Errors as a status of gRPC. <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>

use std::fmt::Write as _;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;

use crate::api_error::ApiError;

/// The content type of requests and answers of gRPC. A request may have a suffix, as in `application/grpc+proto`.
pub const CONTENT_TYPE: &str = "application/grpc";

/// The time after which a client that retries by itself may do so, in milliseconds; clients give up where it is
/// missing.
pub const RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The header or trailer with the number of the status code.
pub const STATUS: HeaderName = HeaderName::from_static("grpc-status");

const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The status codes of gRPC that this box answers with. <https://grpc.io/docs/guides/status-codes/>
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrpcCode {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

impl GrpcCode {
    /// The code for an error of HTTP.
    pub fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 => Self::NotFound,
            408 | 504 => Self::DeadlineExceeded,
            409 | 422 => Self::FailedPrecondition,
            413 | 429 => Self::ResourceExhausted,
            405 | 406 | 415 | 501 | 505 => Self::Unimplemented,
            502 | 503 | 507 => Self::Unavailable,
            400..=499 => Self::InvalidArgument,
            _ => Self::Internal,
        }
    }
}

/// An answer without a message: only headers, which are the trailers too ("Trailers-Only").
pub fn error_response(error: &ApiError) -> Response {
    let mut response = Response::new(Body::empty());
    *response.headers_mut() = status(error);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    response
}

/// The status of an error, as trailers.
pub fn status(error: &ApiError) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(STATUS, HeaderValue::from(GrpcCode::of(error.status) as u16));
    if let Ok(message) = HeaderValue::from_str(&percent_encoded(&error.message)) {
        headers.insert(MESSAGE, message);
    }
    if let Some(seconds) = error.retry_after_s {
        headers.insert(RETRY_PUSHBACK, HeaderValue::from(seconds.saturating_mul(1000)));
    }
    headers
}

/// The message as gRPC sends it: everything but the printable characters of ASCII is percent-encoded, and `%`.
fn percent_encoded(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes() {
        if (b' '..=b'~').contains(&byte) && byte != b'%' {
            encoded.push(byte.into());
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_error_is_a_status_with_its_message_and_the_time_to_try_again() {
        let error =
            ApiError::later(StatusCode::TOO_MANY_REQUESTS, "queue of \u{e9} is 100 %\n", Duration::from_secs(2));
        let response = error_response(&error);
        let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap());
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(header("content-type"), Some("application/grpc"));
        assert_eq!(header("grpc-status"), Some("8"));
        assert_eq!(header("grpc-message"), Some("queue of %C3%A9 is 100 %25%0A"));
        assert_eq!(header("grpc-retry-pushback-ms"), Some("2000"));
    }
}
