//! What must hold whatever a caller sends beside a body. The folder `fuzz/` and `tests/it/fuzz.rs` feed it.

use std::time::Instant;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::body::{accepted, encoding};
use super::guard::presented;
use super::terms::HeaderTerms;
use crate::protocol::decode;

/// Reads the headers of a call, a line each, with everything that reads one; how many were headers.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_headers(data: &[u8]) -> usize {
    let mut headers = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = parts.next().and_then(|name| HeaderName::from_bytes(name).ok());
        let value = parts.next().and_then(|value| HeaderValue::from_bytes(value.trim_ascii()).ok());
        if let (Some(name), Some(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    let arrived = Instant::now();
    if let Ok(terms) = HeaderTerms::read(&headers, arrived) {
        assert!(terms.deadline.is_none_or(|deadline| deadline > arrived));
    }
    if let Ok(Some(key)) = presented(&headers) {
        assert_eq!(key, key.trim_ascii());
        assert!(headers.contains_key("authorization") || headers.contains_key("x-api-key"));
    }
    let _ = (encoding(&headers).is_ok(), accepted(&headers));
    for value in headers.values() {
        let _ = decode::parse_header_length(value.as_bytes());
    }
    headers.len()
}
