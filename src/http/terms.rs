//! The terms of a call that its headers set, whatever its body is.

use std::time::{Duration, Instant};

use axum::http::{HeaderMap, StatusCode};
use ledge_models::scheduling::terms::Priority;
use ledge_part::failure::Failure;

/// How urgent the call is: `interactive`, `batch`, or a level as in Triton.
const PRIORITY: &str = "x-ledge-priority";

/// How long the caller waits, in milliseconds.
const TIMEOUT: &str = "x-ledge-timeout-ms";

/// What the headers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderTerms {
    /// How urgent the call is.
    pub priority: Option<Priority>,
    /// When the caller stops caring.
    pub deadline: Option<Instant>,
}

impl HeaderTerms {
    /// Reads the headers of a call that came in at `arrived`.
    pub fn read(headers: &HeaderMap, arrived: Instant) -> Result<Self, Failure> {
        let priority = value(headers, PRIORITY, "interactive, batch or a level from 0", |text| text.parse().ok())?;
        let timeout = value(headers, TIMEOUT, "milliseconds from 1", |text| number(text).filter(|&ms| ms > 0))?;
        // Later than the clock can say is as good as never.
        let deadline = timeout.and_then(|ms| arrived.checked_add(Duration::from_millis(ms)));
        Ok(Self { priority, deadline })
    }
}

/// Digits alone: no sign.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// The value of a header that may come once.
fn value<T>(
    headers: &HeaderMap,
    name: &str,
    expected: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, Failure> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else { return Ok(None) };
    let bad =
        |got: &str| Failure::new(StatusCode::BAD_REQUEST, format!("header {name}: expected {expected}, got {got}"));
    if values.next().is_some() {
        return Err(bad("it more than once"));
    }
    // Shown escaped: a header may hold any byte.
    parse(first.to_str().unwrap_or_default().trim()).map(Some).ok_or_else(|| bad(&format!("{first:?}")))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn read(values: &[(&'static str, &str)]) -> Option<HeaderTerms> {
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        HeaderTerms::read(&headers, Instant::now()).ok()
    }

    #[test]
    fn a_priority_is_a_word_or_a_level() {
        let priority = |text| read(&[(PRIORITY, text)]).and_then(|terms| terms.priority);
        for text in ["interactive", "Interactive", "0", "1"] {
            assert_eq!(priority(text), Some(Priority::Interactive), "{text}");
        }
        for text in ["batch", " BATCH ", "2", "99"] {
            assert_eq!(priority(text), Some(Priority::Batch), "{text}");
        }
        for text in ["", "urgent", "-1", "+1", "1.5", "batch,batch", "99999999999999999999"] {
            assert!(read(&[(PRIORITY, text)]).is_none(), "{text}");
        }
        assert!(read(&[(PRIORITY, "batch"), (PRIORITY, "batch")]).is_none());
    }

    #[test]
    fn a_timeout_counts_from_the_arrival() {
        for text in ["", "0", "-5", "+5", "1e3", "1s"] {
            assert!(read(&[(TIMEOUT, text)]).is_none(), "{text}");
        }
        let terms = read(&[]).unwrap();
        assert_eq!(terms, HeaderTerms { priority: None, deadline: None });
        let arrived = Instant::now();
        let mut headers = HeaderMap::new();
        headers.insert(TIMEOUT, HeaderValue::from_static("250"));
        let terms = HeaderTerms::read(&headers, arrived).unwrap();
        assert_eq!(terms.deadline, Some(arrived + Duration::from_millis(250)));
    }
}
