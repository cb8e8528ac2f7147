//! Priority and timeout of a call, from its headers.

use std::time::{Duration, Instant};

use axum::http::{HeaderMap, StatusCode, header};
use ledge_base::names::CameraName;
use ledge_models::scheduling::terms::Priority;
use ledge_part::api_error::ApiError;

/// The priority of the call: `interactive`, `batch`, or a level as in Triton.
const PRIORITY_HEADER: &str = "x-ledge-priority";

/// The time that the caller waits, in milliseconds.
const TIMEOUT_HEADER: &str = "x-ledge-timeout-ms";

/// The camera that took a photograph.
const CAMERA_HEADER: &str = "x-ledge-camera";

/// The content type; `None` also for one that is no text.
pub fn content_type(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::CONTENT_TYPE)?.to_str().ok()
}

/// Reads the name of the camera that took the photograph of a call.
pub fn camera(headers: &HeaderMap) -> Result<Option<CameraName>, ApiError> {
    value(headers, CAMERA_HEADER, "the name of a camera", |text| text.parse().ok())
}

/// The values of the headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallHeaders {
    pub priority: Option<Priority>,
    /// The time after which the answer is useless to the caller.
    pub deadline: Option<Instant>,
}

impl CallHeaders {
    /// Reads the headers of a call that arrived at `arrived`.
    pub fn read(headers: &HeaderMap, arrived: Instant) -> Result<Self, ApiError> {
        let priority =
            value(headers, PRIORITY_HEADER, "interactive, batch or a level from 0", |text| text.parse().ok())?;
        let timeout = value(headers, TIMEOUT_HEADER, "milliseconds from 1", |text| number(text).filter(|&ms| ms > 0))?;
        // A deadline beyond the range of the clock counts as no deadline.
        let deadline = timeout.and_then(|ms| arrived.checked_add(Duration::from_millis(ms)));
        Ok(Self { priority, deadline })
    }
}

/// Parses digits only: no sign.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// The value of a header that may be present once.
fn value<T>(
    headers: &HeaderMap,
    name: &str,
    expected: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else { return Ok(None) };
    let bad =
        |got: &str| ApiError::new(StatusCode::BAD_REQUEST, format!("header {name}: expected {expected}, got {got}"));
    if values.next().is_some() {
        return Err(bad("the header more than once"));
    }
    // Shown escaped: a header may contain any byte.
    parse(first.to_str().unwrap_or_default().trim()).map(Some).ok_or_else(|| bad(&format!("{first:?}")))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn read(values: &[(&'static str, &str)]) -> Option<CallHeaders> {
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        CallHeaders::read(&headers, Instant::now()).ok()
    }

    #[test]
    fn a_priority_is_a_word_or_a_level() {
        let priority = |text| read(&[(PRIORITY_HEADER, text)]).and_then(|terms| terms.priority);
        for text in ["interactive", "Interactive", "0", "1"] {
            assert_eq!(priority(text), Some(Priority::Interactive), "{text}");
        }
        for text in ["batch", " BATCH ", "2", "99"] {
            assert_eq!(priority(text), Some(Priority::Batch), "{text}");
        }
        for text in ["", "urgent", "-1", "+1", "1.5", "batch,batch", "99999999999999999999"] {
            assert!(read(&[(PRIORITY_HEADER, text)]).is_none(), "{text}");
        }
        assert!(read(&[(PRIORITY_HEADER, "batch"), (PRIORITY_HEADER, "batch")]).is_none());
    }

    #[test]
    fn a_timeout_counts_from_the_arrival() {
        for text in ["", "0", "-5", "+5", "1e3", "1s"] {
            assert!(read(&[(TIMEOUT_HEADER, text)]).is_none(), "{text}");
        }
        let terms = read(&[]).unwrap();
        assert_eq!(terms, CallHeaders { priority: None, deadline: None });
        let arrived = Instant::now();
        let mut headers = HeaderMap::new();
        headers.insert(TIMEOUT_HEADER, HeaderValue::from_static("250"));
        let terms = CallHeaders::read(&headers, arrived).unwrap();
        assert_eq!(terms.deadline, Some(arrived + Duration::from_millis(250)));
    }
}
