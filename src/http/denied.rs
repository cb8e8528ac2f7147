//! The refusal of a request.

use axum::http::HeaderValue;
use ledge_part::api_error::ApiError;

/// The refusal of a request.
pub(super) struct DeniedRequest {
    pub failure: ApiError,
    pub challenge: Option<HeaderValue>,
    /// Set when the caller is authenticated, so that its body is read to the end.
    pub is_known: bool,
}
