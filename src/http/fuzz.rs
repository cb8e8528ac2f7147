//! Invariants of the readers of headers, for any bytes that a caller sends. The folder `fuzz/` and `tests/it/fuzz.rs`
//! feed them.

use std::time::Instant;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use ledge_part::body::{accepted_encoding, content_encoding};
use ledge_protocol::decode;

use super::call_headers::CallHeaders;
use super::guard::presented_key;
use super::infer::wanted_picture;

/// Reads the headers of a call, one a line, with every reader of headers. `true` when each line is a header, and no
/// header makes the call fail.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_headers(data: &[u8]) -> bool {
    let mut headers = HeaderMap::new();
    let lines = data.split(|byte| *byte == b'\n');
    for line in lines.clone() {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = parts.next().and_then(|name| HeaderName::from_bytes(name).ok());
        let value = parts.next().and_then(|value| HeaderValue::from_bytes(value.trim_ascii()).ok());
        if let (Some(name), Some(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    let arrived = Instant::now();
    let terms = CallHeaders::read(&headers, arrived);
    if let Ok(terms) = &terms {
        assert!(terms.deadline.is_none_or(|deadline| deadline > arrived));
    }
    let key = presented_key(&headers);
    if let Ok(Some(key)) = &key {
        assert_eq!(*key, key.trim_ascii());
        assert!(headers.contains_key("authorization") || headers.contains_key("x-api-key"));
    }
    let _ = accepted_encoding(&headers);
    assert!(wanted_picture(&headers).is_none() || headers.contains_key("accept"));
    for value in headers.values() {
        if let Ok(length) = decode::parse_header_length(value.as_bytes()) {
            assert_eq!(decode::parse_header_length(length.to_string().as_bytes()).ok(), Some(length));
        }
    }
    headers.len() == lines.count() && terms.is_ok() && key.is_ok() && content_encoding(&headers).is_ok()
}
