//! The end of a new key, as a person writes it.

use std::str::FromStr;

use ledge_base::clock;
use ledge_base::toml_check::from_text;
use serde::{Deserialize, Deserializer};

/// The default lifetime of a key, so that a forgotten key does not stay valid for ever.
pub const DEFAULT_LIFETIME: &str = "52w";

/// The milliseconds of a week.
const WEEK_MS: u64 = 7 * 86_400_000;

/// The end of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiKeyExpiry {
    /// A time, in milliseconds since the Unix epoch.
    At(u64),
    /// A duration from now, in milliseconds.
    After(u64),
    Never,
}

/// The error for an end that has passed already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is in the past: choose a later time")]
pub struct PastExpiry;

impl ApiKeyExpiry {
    /// The time of the end, in milliseconds since the Unix epoch; `None` for a key without one.
    pub fn millis(self, now_ms: u64) -> Result<Option<u64>, PastExpiry> {
        match self {
            Self::At(at) if at <= now_ms => Err(PastExpiry),
            Self::At(at) => Ok(Some(at)),
            Self::After(after) => Ok(Some(now_ms.saturating_add(after))),
            Self::Never => Ok(None),
        }
    }
}

impl Default for ApiKeyExpiry {
    /// [`DEFAULT_LIFETIME`].
    fn default() -> Self {
        Self::After(52 * WEEK_MS)
    }
}

/// A text that is not the end of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a duration such as 30m, 12h, 90d or 52w, a time such as 2027-01-01T00:00:00Z, or never")]
pub struct InvalidExpiry;

impl FromStr for ApiKeyExpiry {
    type Err = InvalidExpiry;

    fn from_str(text: &str) -> Result<Self, InvalidExpiry> {
        if text == "never" {
            return Ok(Self::Never);
        }
        let after = text.split_at_checked(text.len().saturating_sub(1)).and_then(|(number, unit)| {
            let unit: u64 = match unit {
                "m" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                "w" => WEEK_MS,
                _ => return None,
            };
            let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
            number.parse::<u64>().ok().filter(|number| is_number && *number > 0)?.checked_mul(unit)
        });
        let at = || u64::try_from(clock::parse_micros(text)? / 1000).ok().map(Self::At);
        after.map(Self::After).or_else(at).ok_or(InvalidExpiry)
    }
}

impl<'de> Deserialize<'de> for ApiKeyExpiry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_a_time_from_now_or_a_moment() {
        let read = |text: &str| text.parse::<ApiKeyExpiry>().ok()?.millis(1000).unwrap();
        assert_eq!(DEFAULT_LIFETIME.parse(), Ok(ApiKeyExpiry::default()));
        assert_eq!("never".parse::<ApiKeyExpiry>().map(|never| never.millis(1000)), Ok(Ok(None)));
        assert_eq!(read("90d"), Some(90 * 86_400_000 + 1000));
        assert_eq!(read("2w"), read("14d"));
        assert_eq!(read("1970-01-01T00:00:07Z"), Some(7000));
        for bad in ["", "d", "0d", "-1d", "+1d", "1.5d", "1y", "tomorrow", "99999999999999999999d", "ü"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_end_that_has_passed_is_refused() {
        let end = "1970-01-01T00:00:07Z".parse::<ApiKeyExpiry>().unwrap();
        assert_eq!([end.millis(6999), end.millis(7000)], [Ok(Some(7000)), Err(PastExpiry)]);
    }
}
