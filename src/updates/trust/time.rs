//! Time that nobody can turn back: a clock at 1970 must not make expired metadata good again.

use std::time::Duration;

use sigstore_tuf::Timestamp as TimestampRole;

/// The field in which the platform writes when it signed the `timestamp` role (RFC 3339).
pub const SIGNED_AT: &str = "x-ledge-signed-at";

/// When this was built, in milliseconds since the Unix epoch.
pub fn built_ms() -> u64 {
    env!("LEDGE_BUILD_SECONDS").parse::<u64>().map_or(0, |seconds| seconds.saturating_mul(1000))
}

/// The trusted time: that of the system, but neither before this was built nor before what is proven.
pub(super) fn now_ms(system_ms: u64, proven_ms: u64) -> u64 {
    system_ms.max(built_ms()).max(proven_ms)
}

/// When the platform says that it signed this.
pub(super) fn signed_at_ms(timestamp: &TimestampRole) -> Option<u64> {
    parse_ms(timestamp.extra.get(SIGNED_AT)?.as_str()?)
}

/// A moment in RFC 3339.
pub(super) fn parse_ms(text: &str) -> Option<u64> {
    Some(unix_ms(text.parse().ok()?))
}

/// In milliseconds since the Unix epoch.
pub(super) fn unix_ms(moment: jiff::Timestamp) -> u64 {
    moment.as_millisecond().try_into().unwrap_or(0)
}

/// What lies beyond the year 9999 is its last moment.
pub(super) fn timestamp(unix_ms: u64) -> jiff::Timestamp {
    let moment = i64::try_from(unix_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    moment.unwrap_or(jiff::Timestamp::MAX)
}

/// Whole milliseconds.
pub(super) fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}
