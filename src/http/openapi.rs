//! `GET /openapi.json`: every route, for people's tools.

use axum::http::{HeaderValue, header};
use axum::response::Response;

/// The document, written by hand beside this file.
pub const DOCUMENT: &str = include_str!("openapi.json");

/// Answers with the document.
pub async fn document() -> Response {
    let mut response = super::reply::json_bytes(DOCUMENT);
    // A page on another origin may show it.
    response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    response
}
