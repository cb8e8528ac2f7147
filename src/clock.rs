//! The only place that reads the wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Wall-clock time in milliseconds since the Unix epoch; 0 when the clock is before it.
///
/// For showing to people and for protocol fields. Durations are measured with `Instant`, which no clock change disturbs.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn unix_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Milliseconds since the Unix epoch in words: RFC 3339 in UTC, to the second, as in `2026-01-01T00:00:00Z`.
pub fn rfc3339(unix_millis: u64) -> String {
    let seconds = i64::try_from(unix_millis / 1000).unwrap_or(i64::MAX);
    // What lies beyond the year 9999 has no such form.
    jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The seconds since midnight on a clock on the wall here: in the time zone of the system (`TZ`, else
/// `/etc/localtime`), or UTC when that says nothing. From 0 to 86,399.
pub fn local_second_of_day() -> u32 {
    let time = jiff::Zoned::now().time();
    let part = |number: i8| u32::try_from(number).unwrap_or(0);
    // A leap second is not a second of its own in here.
    part(time.hour()) * 3600 + part(time.minute()) * 60 + part(time.second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_told_in_utc() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_827_696_789), "2000-02-29T12:34:56Z");
        assert!(rfc3339(u64::MAX).starts_with("9999-12-3"));
    }
}
