//! The only place that reads the wall clock, and the earliest possible time when the clock is wrong.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::sys;

/// The longest time after a boot in which the clock may be behind. Time servers answer in seconds once there is a
/// network. A box whose clock was ahead before the boot accepts rows of that time for this long.
const SETTLING_TIME_MAX: Duration = Duration::from_mins(15);

/// The smallest jump of the clock that counts as setting it, in microseconds.
const SET_BY_US: i64 = 60_000_000;

/// Wall-clock time in milliseconds since the Unix epoch; 0 when the clock is before it.
///
/// For display and for protocol fields. Durations are measured with `Instant`, which no clock change affects.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn unix_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Wall-clock time in microseconds since the Unix epoch, as event times are; 0 when the clock is before it.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn unix_micros() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// The time of the build, in milliseconds since the Unix epoch.
pub fn built_ms() -> u64 {
    env!("BUILT_AT_UNIX_SECONDS").parse::<u64>().map_or(0, |seconds| seconds.saturating_mul(1000))
}

/// The earliest time that is possible. It starts with the time of the build, and only rises.
#[derive(Debug, Default)]
pub struct ClockFloor {
    proven_ms: AtomicU64,
}

impl ClockFloor {
    /// A floor at the time of the build.
    pub const fn new() -> Self {
        Self { proven_ms: AtomicU64::new(0) }
    }

    /// Raises the floor to a proven time, in milliseconds since the Unix epoch.
    pub fn raise(&self, unix_millis: u64) {
        self.proven_ms.fetch_max(unix_millis, Ordering::Relaxed);
    }

    /// The time by a clock that shows `system_ms`, but never before the floor.
    pub fn plausible_millis(&self, system_ms: u64) -> u64 {
        system_ms.max(built_ms()).max(self.proven_ms.load(Ordering::Relaxed))
    }

    /// The time now, but never before the floor.
    pub fn now_millis(&self) -> u64 {
        self.plausible_millis(unix_millis())
    }

    /// True if a clock that shows `system_ms` is not before the floor.
    pub fn is_plausible(&self, system_ms: u64) -> bool {
        self.plausible_millis(system_ms) == system_ms
    }
}

/// The floor of this process: a box without a clock battery starts in 1970, and no certificate would be valid yet. It
/// is held only in memory; the part that proves a time stores the proof.
pub static FLOOR: ClockFloor = ClockFloor::new();

/// The time after a boot in which the clock may be behind: a box without a clock battery continues from a saved time
/// until it reaches a time server. It ends when the clock is set, or after a quarter of an hour.
///
/// The kernel's state (`adjtimex`) is not used, because `ProtectClock=` forbids that call.
#[derive(Debug)]
pub struct ClockSettling {
    /// The lead of the wall clock over the uptime at the start, in microseconds.
    offset_us: i64,
}

impl ClockSettling {
    /// Begins to watch for a change of the clock.
    pub fn begin() -> Self {
        Self { offset_us: offset_us(unix_micros(), uptime()) }
    }

    /// True once the clock was set, or the waiting time is over.
    pub fn is_over(&self) -> bool {
        self.is_over_at(unix_micros(), uptime())
    }

    fn is_over_at(&self, now_us: i64, uptime: Duration) -> bool {
        uptime >= SETTLING_TIME_MAX
            || offset_us(now_us, uptime).saturating_sub(self.offset_us).saturating_abs() > SET_BY_US
    }
}

/// The largest distance of the wall clock from the running time of a clock that was not set.
pub const STEADY_TOLERANCE: Duration = Duration::from_mins(1);

/// Compares the wall clock with the running time: data must not be removed by its age when the clock was just set.
#[derive(Debug)]
pub struct ClockComparison {
    since: Instant,
    since_ms: u64,
}

impl ClockComparison {
    /// Begins at `now`, when the wall clock shows `now_ms` since the Unix epoch.
    pub fn new(now: Instant, now_ms: u64) -> Self {
        Self { since: now, since_ms: now_ms }
    }

    /// The time since the begin; `None` where the clock was set meanwhile, and the comparison begins again.
    pub fn steady_for(&mut self, now: Instant, now_ms: u64) -> Option<Duration> {
        let elapsed = now.saturating_duration_since(self.since);
        let shown = Duration::from_millis(now_ms.saturating_sub(self.since_ms));
        if shown.abs_diff(elapsed) > STEADY_TOLERANCE {
            *self = Self::new(now, now_ms);
            return None;
        }
        Some(elapsed)
    }
}

/// The uptime; a system that does not report it counts as started long ago.
fn uptime() -> Duration {
    sys::uptime().unwrap_or(Duration::MAX)
}

fn offset_us(now_us: i64, uptime: Duration) -> i64 {
    now_us.saturating_sub(i64::try_from(uptime.as_micros()).unwrap_or(i64::MAX))
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

/// The same for the clock of a device: a moment without an offset is in `zone`. Where clocks are put back, one text is
/// two moments: the one nearer to `near_us` counts, for a message the time at which it came. Where clocks are put
/// forward, a text that they skip counts by the offset before: the device has not changed its clock yet.
pub fn parse_local_micros(text: &str, zone: &TimeZone, near_us: i64) -> Option<i64> {
    if let Ok(with_offset) = text.parse::<jiff::Timestamp>() {
        return Some(with_offset.as_microsecond());
    }
    let wall: jiff::civil::DateTime = text.parse().ok()?;
    let at = |offset: jiff::tz::Offset| offset.to_timestamp(wall).ok().map(jiff::Timestamp::as_microsecond);
    match zone.0.to_ambiguous_timestamp(wall).offset() {
        jiff::tz::AmbiguousOffset::Unambiguous { offset } => at(offset),
        jiff::tz::AmbiguousOffset::Gap { before, .. } => at(before),
        jiff::tz::AmbiguousOffset::Fold { before, after } => {
            let (first, second) = (at(before)?, at(after)?);
            let is_second = second.abs_diff(near_us) < first.abs_diff(near_us);
            Some(if is_second { second } else { first })
        }
    }
}

/// Microseconds since the Unix epoch in RFC 3339 in UTC, as in `2026-01-01T00:00:00.500Z`: no fraction, or one of three
/// or six digits, as protobuf writes it. Python before 3.11 reads no other.
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

/// Milliseconds since the Unix epoch as RFC 3339 in UTC, to the second, as in `2026-01-01T00:00:00Z`.
pub fn rfc3339(unix_millis: u64) -> String {
    let seconds = i64::try_from(unix_millis / 1000).unwrap_or(i64::MAX);
    // This form has no times after the year 9999.
    jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Milliseconds since the Unix epoch as a `jiff::Timestamp`.
pub fn timestamp(unix_millis: u64) -> jiff::Timestamp {
    let millis = i64::try_from(unix_millis).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX)
}

/// The seconds since midnight in local time: in the time zone of the system (`TZ`, else `/etc/localtime`), or UTC
/// without one. From 0 to 86,399.
pub fn local_second_of_day() -> u32 {
    let time = jiff::Zoned::now().time();
    let part = |number: i8| u32::try_from(number).unwrap_or(0);
    // There are no leap seconds here.
    part(time.hour()) * 3600 + part(time.minute()) * 60 + part(time.second())
}

/// A time zone of this system's IANA database, with its rules of daylight saving time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeZone(jiff::tz::TimeZone);

/// The moments at which local clocks show a given time of a day, in milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalTimeMapping {
    /// One moment, as on most days.
    Once(u64),
    /// Two moments: clocks are put back past that time.
    Twice { first: u64, second: u64 },
    /// No moment: clocks are put forward past that time.
    Skipped {
        /// The moment at which clocks are put forward.
        jump: u64,
        /// The skipped time by the offset before the jump.
        shifted: u64,
    },
}

impl TimeZone {
    /// The zone of a name, such as `Asia/Dubai`; `None` if the system does not have it.
    pub fn named(name: &str) -> Option<Self> {
        jiff::tz::TimeZone::get(name).ok().map(Self)
    }

    /// The zone of this system: `TZ`, else `/etc/localtime`, or UTC without one.
    pub fn local() -> Self {
        Self(jiff::tz::TimeZone::system())
    }

    pub fn utc() -> Self {
        Self(jiff::tz::TimeZone::UTC)
    }

    fn date(&self, unix_millis: u64) -> jiff::civil::Date {
        let moment = i64::try_from(unix_millis).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
        self.0.to_datetime(moment.unwrap_or(jiff::Timestamp::MAX)).date()
    }

    /// The local date, as a number of days since 1 January 1970.
    pub fn day(&self, unix_millis: u64) -> i32 {
        days(self.date(unix_millis))
    }

    /// The local year and month, from 1 to 12.
    pub fn year_and_month(&self, unix_millis: u64) -> (u16, u8) {
        let date = self.date(unix_millis);
        (u16::try_from(date.year()).unwrap_or(0), date.month().unsigned_abs())
    }

    /// The first day of a month, as a number of days since 1 January 1970; `None` beyond the calendar.
    pub fn first_day(year: u16, month: u8) -> Option<i32> {
        jiff::civil::Date::new(i16::try_from(year).ok()?, i8::try_from(month).ok()?, 1).ok().map(days)
    }

    /// The moments at which local clocks show second `second` of day `day`; `None` beyond the calendar.
    pub fn wall_time(&self, day: i32, second: u32) -> Option<LocalTimeMapping> {
        let date = EPOCH.checked_add(jiff::Span::new().try_days(day).ok()?).ok()?;
        let wall =
            date.to_datetime(jiff::civil::Time::midnight()).checked_add(jiff::Span::new().seconds(second)).ok()?;
        let at = |offset: jiff::tz::Offset| offset.to_timestamp(wall).ok();
        let millis = |moment: jiff::Timestamp| u64::try_from(moment.as_millisecond()).unwrap_or(0);
        Some(match self.0.to_ambiguous_timestamp(wall).offset() {
            jiff::tz::AmbiguousOffset::Unambiguous { offset } => LocalTimeMapping::Once(millis(at(offset)?)),
            jiff::tz::AmbiguousOffset::Fold { before, after } => {
                LocalTimeMapping::Twice { first: millis(at(before)?), second: millis(at(after)?) }
            }
            jiff::tz::AmbiguousOffset::Gap { before, after } => {
                let jump = self.0.following(at(after)?).next()?.timestamp();
                LocalTimeMapping::Skipped { jump: millis(jump), shifted: millis(at(before)?) }
            }
        })
    }
}

const EPOCH: jiff::civil::Date = jiff::civil::date(1970, 1, 1);

fn days(date: jiff::civil::Date) -> i32 {
    date.since(EPOCH).map_or(0, |since| since.get_days())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_jumps_is_steady_again_from_then_on() {
        let (start, hour) = (Instant::now(), Duration::from_hours(1));
        let mut clock = ClockComparison::new(start, 1_000_000);
        assert_eq!(clock.steady_for(start + hour / 2, 1_000_000 + 1_800_000), Some(hour / 2));
        assert_eq!(clock.steady_for(start + hour, 1_000_000 + 3_600_000), Some(hour));
        let ahead = 365 * 86_400_000;
        assert_eq!(clock.steady_for(start + 2 * hour, ahead), None);
        assert_eq!(clock.steady_for(start + 2 * hour + hour / 2, ahead + 1_800_000), Some(hour / 2));
        assert_eq!(clock.steady_for(start + 3 * hour, ahead + 3_600_000), Some(hour));
        assert_eq!(clock.steady_for(start + 4 * hour, 1_000_000), None, "and back");
    }

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

    #[test]
    fn a_clock_on_the_wall_shows_a_time_once_or_twice_or_never() {
        let berlin = TimeZone::named("Europe/Berlin").unwrap();
        let at = |text: &str| u64::try_from(parse_micros(text).unwrap() / 1000).unwrap();
        let of = |day: &str, hour: u32, minute: u32| {
            berlin.wall_time(berlin.day(at(&format!("{day}T12:00:00Z"))), hour * 3600 + minute * 60).unwrap()
        };
        assert_eq!(of("2026-03-28", 2, 30), LocalTimeMapping::Once(at("2026-03-28T01:30:00Z")));
        let (jump, shifted) = (at("2026-03-29T01:00:00Z"), at("2026-03-29T01:30:00Z"));
        assert_eq!(of("2026-03-29", 2, 30), LocalTimeMapping::Skipped { jump, shifted });
        assert_eq!(of("2026-03-29", 3, 0), LocalTimeMapping::Once(jump));
        let (first, second) = (at("2026-10-25T00:30:00Z"), at("2026-10-25T01:30:00Z"));
        assert_eq!(of("2026-10-25", 2, 30), LocalTimeMapping::Twice { first, second });
        assert_eq!(berlin.day(at("2026-10-25T22:59:59Z")) + 1, berlin.day(at("2026-10-25T23:00:00Z")));
        assert_eq!(TimeZone::named("UTC").unwrap().day(86_400_000 * 3 + 1), 3);
        assert!(TimeZone::named("Europe/Nowhere").is_none() && TimeZone::named("../../etc/passwd").is_none());
    }

    #[test]
    fn a_local_time_is_read_in_its_zone_and_one_with_an_offset_as_it_is() {
        let berlin = TimeZone::named("Europe/Berlin").unwrap();
        let utc = |text: &str| parse_micros(text).unwrap();
        let read = |text: &str, near: &str| parse_local_micros(text, &berlin, utc(near)).map(rfc3339_micros);
        for (text, near, moment) in [
            ("2026-11-25T17:43:12", "2026-11-25T16:43:13Z", "2026-11-25T16:43:12Z"),
            ("2026-07-01 17:43:12.5", "2026-07-01T15:43:13Z", "2026-07-01T15:43:12.500Z"),
            ("2026-11-25T17:43:12Z", "2026-11-25T16:43:13Z", "2026-11-25T17:43:12Z"),
            ("2026-11-25T17:43:12-05:00", "2026-11-25T16:43:13Z", "2026-11-25T22:43:12Z"),
            // 02:30 was an hour ago, and is now again; in the middle the first counts, and of old ones the nearer.
            ("2026-10-25T02:30:00", "2026-10-25T00:30:01Z", "2026-10-25T00:30:00Z"),
            ("2026-10-25T02:30:00", "2026-10-25T01:30:01Z", "2026-10-25T01:30:00Z"),
            ("2026-10-25T02:30:00", "2026-10-25T01:00:00Z", "2026-10-25T00:30:00Z"),
            ("2026-10-25T02:30:00", "2026-10-26T00:00:00Z", "2026-10-25T01:30:00Z"),
            ("2026-10-25T02:30:00", "1970-01-01T00:00:00Z", "2026-10-25T00:30:00Z"),
            ("2026-10-25T03:00:00", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"),
            // No clock that is right shows 02:30.
            ("2026-03-29T02:30:00", "2026-03-29T01:30:01Z", "2026-03-29T01:30:00Z"),
            ("2026-03-29T03:00:00", "2026-03-29T01:00:01Z", "2026-03-29T01:00:00Z"),
        ] {
            assert_eq!(read(text, near).as_deref(), Some(moment), "{text} near {near}");
        }
        for text in ["", "17:43:12", "25.11.2026 17:43", "2026-13-25T17:43:12"] {
            assert_eq!(read(text, "2026-11-25T16:43:13Z"), None, "{text}");
        }
        let utc_zone = TimeZone::named("UTC").unwrap();
        assert_eq!(parse_local_micros("2026-11-25T17:43:12", &utc_zone, 0), parse_micros("2026-11-25T17:43:12"));
    }

    #[test]
    fn the_floor_only_rises() {
        // A build that does not know when it was would trust a clock at 1970.
        assert!(built_ms() > 1_700_000_000_000);
        let (floor, later) = (ClockFloor::new(), built_ms() + 1000);
        assert_eq!(floor.plausible_millis(0), built_ms());
        floor.raise(later);
        floor.raise(1);
        assert_eq!(floor.plausible_millis(0), later);
        assert_eq!(floor.plausible_millis(later + 1), later + 1);
        assert!(floor.is_plausible(later) && !floor.is_plausible(later - 1));
    }

    #[test]
    fn a_clock_settles_when_it_is_set_or_in_a_quarter_of_an_hour() {
        const SECOND: i64 = 1_000_000;
        let boot = |seconds: i64| 1_795_222_800 * SECOND + seconds * SECOND;
        let settling = ClockSettling { offset_us: offset_us(boot(10), Duration::from_secs(10)) };
        let is_over = |now_us: i64, uptime_s: u64| settling.is_over_at(now_us, Duration::from_secs(uptime_s));
        assert!(!is_over(boot(10), 10) && !is_over(boot(899), 899));
        assert!(!is_over(boot(70), 20), "a correction by seconds");
        for set in [3600, -3600, -30 * 86_400] {
            assert!(is_over(boot(20 + set), 20), "{set}");
        }
        assert!(is_over(boot(900), 900));
    }

    #[test]
    fn no_day_is_beyond_words() {
        let zone = TimeZone::named("Pacific/Kiritimati").unwrap();
        assert!(zone.day(u64::MAX) > 2_900_000);
        assert_eq!(zone.wall_time(i32::MAX, 0), None);
        assert_eq!(zone.wall_time(i32::MIN, 0), None);
    }
}
