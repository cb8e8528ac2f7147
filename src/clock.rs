//! The only place that reads the wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Wall-clock time in milliseconds since the Unix epoch; 0 when the clock is before it.
///
/// For showing to people and for protocol fields. Durations are measured with `Instant`, which no clock change disturbs.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn unix_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Wall-clock time in microseconds since the Unix epoch, as event times are; 0 when the clock is before it.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn unix_micros() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// A moment in RFC 3339, in microseconds since the Unix epoch. Without an offset it is in UTC, as Feast writes it.
pub fn parse_micros(text: &str) -> Option<i64> {
    let with_offset = text.parse::<jiff::Timestamp>().ok();
    let moment = with_offset.or_else(|| {
        let local: jiff::civil::DateTime = text.parse().ok()?;
        Some(local.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
    });
    moment.map(jiff::Timestamp::as_microsecond)
}

/// Microseconds since the Unix epoch in RFC 3339 in UTC, as in `2026-01-01T00:00:00.500Z`: no fraction, or one of three or
/// six digits, as protobuf writes it. Python before 3.11 reads no other.
pub fn rfc3339_micros(unix_micros: i64) -> String {
    let last = if unix_micros < 0 { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX };
    let moment = jiff::Timestamp::from_microsecond(unix_micros).unwrap_or(last);
    let digits = match moment.subsec_microsecond() {
        0 => 0,
        micros if micros % 1000 == 0 => 3,
        _ => 6,
    };
    jiff::fmt::temporal::DateTimePrinter::new().precision(Some(digits)).timestamp_to_string(&moment)
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

    #[test]
    fn a_moment_is_read_with_and_without_an_offset() {
        for text in ["2026-11-21T01:00:00", "2026-11-21T01:00:00Z", "2026-11-21 02:00:00+01:00"] {
            assert_eq!(parse_micros(text), Some(1_795_222_800_000_000), "{text}");
        }
        assert_eq!(parse_micros("2026-11-21T01:00:00.000001"), Some(1_795_222_800_000_001));
        for (micros, text) in [
            (1_795_222_800_500_000, "2026-11-21T01:00:00.500Z"),
            (1_795_222_800_000_001, "2026-11-21T01:00:00.000001Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
            (0, "1970-01-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339_micros(micros), text);
        }
        for text in ["", "yesterday", "2026-13-01T00:00:00Z", "1795222800"] {
            assert_eq!(parse_micros(text), None, "{text}");
        }
    }
}
