//! A month of the calendar, at the place of a time zone.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::clock::{LocalTimeMapping, TimeZone};

const YEARS: std::ops::RangeInclusive<u16> = 1970..=9998;

/// A month, from 1970-01 to 9998-12.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Month {
    year: u16,
    /// From 1 to 12.
    month: u8,
}

/// A text that is not a month.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a month such as 2026-11, got {text:?}")]
pub struct InvalidMonth {
    text: String,
}

impl Month {
    /// The month of a moment, in milliseconds since the Unix epoch. Moments before the first and after the last month count
    /// as of these.
    pub fn of(zone: &TimeZone, unix_ms: u64) -> Self {
        let (year, month) = zone.year_and_month(unix_ms);
        if year < *YEARS.start() {
            Self { year: *YEARS.start(), month: 1 }
        } else if year > *YEARS.end() {
            Self { year: *YEARS.end(), month: 12 }
        } else {
            Self { year, month }
        }
    }

    #[must_use]
    pub fn next(self) -> Self {
        match self.month {
            12 => Self { year: self.year + 1, month: 1 },
            month => Self { month: month + 1, ..self },
        }
    }

    /// The month before this one; the first one has none before it.
    #[must_use]
    pub fn previous(self) -> Self {
        match (self.year, self.month) {
            (1970, 1) => self,
            (year, 1) => Self { year: year - 1, month: 12 },
            (year, month) => Self { year, month: month - 1 },
        }
    }

    /// The first moment, in milliseconds since the Unix epoch.
    pub fn begin_ms(self, zone: &TimeZone) -> u64 {
        match TimeZone::first_day(self.year, self.month).and_then(|day| zone.wall_time(day, 0)) {
            Some(
                LocalTimeMapping::Once(at)
                | LocalTimeMapping::Twice { first: at, .. }
                | LocalTimeMapping::Skipped { jump: at, .. },
            ) => at,
            None => u64::MAX,
        }
    }

    /// The first moment after it, in milliseconds since the Unix epoch.
    pub fn end_ms(self, zone: &TimeZone) -> u64 {
        self.next().begin_ms(zone)
    }

    /// All moments, in milliseconds since the Unix epoch.
    pub fn span_ms(self, zone: &TimeZone) -> Range<u64> {
        self.begin_ms(zone)..self.end_ms(zone)
    }
}

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}", self.year, self.month)
    }
}

impl FromStr for Month {
    type Err = InvalidMonth;

    fn from_str(text: &str) -> Result<Self, InvalidMonth> {
        let parsed = text.split_once('-').and_then(|(year, month)| {
            let parsed = Self { year: year.parse().ok()?, month: month.parse().ok()? };
            let is_valid = YEARS.contains(&parsed.year) && (1..=12).contains(&parsed.month);
            // No sign and no other number of digits: a month has one form.
            (is_valid && parsed.to_string() == text).then_some(parsed)
        });
        parsed.ok_or_else(|| InvalidMonth { text: text.chars().take(40).collect() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::clock::{parse_micros, rfc3339};

    fn at(text: &str) -> u64 {
        u64::try_from(parse_micros(text).unwrap() / 1000).unwrap()
    }

    #[test]
    fn a_month_begins_and_ends_at_midnight_of_its_place() {
        let berlin = TimeZone::named("Europe/Berlin").unwrap();
        let december: Month = "2026-12".parse().unwrap();
        assert_eq!(december.begin_ms(&berlin), at("2026-11-30T23:00:00Z"));
        assert_eq!(december.end_ms(&berlin), at("2026-12-31T23:00:00Z"));
        assert_eq!(december.next().to_string(), "2027-01");
        assert_eq!(Month::of(&berlin, at("2026-11-30T22:59:59Z")).to_string(), "2026-11");
        assert_eq!(Month::of(&berlin, at("2026-11-30T23:00:00Z")), december);
        let march: Month = "2026-03".parse().unwrap();
        assert_eq!(march.end_ms(&berlin) - march.begin_ms(&berlin), (31 * 24 - 1) * 3_600_000, "the clocks go forward");
    }

    #[test]
    fn a_month_in_utc_ends_where_the_next_one_begins() {
        let month: Month = "2024-02".parse().unwrap();
        let span = month.span_ms(&TimeZone::utc());
        assert_eq!((rfc3339(span.start), (span.end - span.start) / 86_400_000), ("2024-02-01T00:00:00Z".into(), 29));
        assert_eq!("2026-01".parse::<Month>().unwrap().previous().to_string(), "2025-12");
        assert_eq!(Month::of(&TimeZone::utc(), u64::MAX).to_string(), "9998-12");
    }

    #[test]
    fn a_month_has_one_form() {
        assert_eq!("2026-11".parse::<Month>().unwrap().to_string(), "2026-11");
        for bad in [
            "",
            "2026",
            "2026-1",
            "2026-13",
            "2026-00",
            "26-11",
            "+026-11",
            "2026-+1",
            "2026/12",
            "2026-11-01",
            "1969-12",
            "9999-01",
            "../2026",
        ] {
            assert!(bad.parse::<Month>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn each_moment_is_within_its_month(unix_ms in 0_u64..200_000_000_000_000) {
            for zone in ["UTC", "Asia/Dubai", "Pacific/Apia", "America/St_Johns"] {
                let zone = TimeZone::named(zone).unwrap();
                let month = Month::of(&zone, unix_ms);
                prop_assert!(month.end_ms(&zone) > unix_ms);
                // The first month of the epoch begins before it in the east.
                prop_assert!(month.begin_ms(&zone) <= unix_ms);
                prop_assert_eq!(month.to_string().parse(), Ok(month));
            }
        }

        #[test]
        fn a_moment_is_in_its_month_and_not_in_the_next(unix_ms in 0..253_370_764_800_000_u64) {
            let zone = TimeZone::utc();
            let month = Month::of(&zone, unix_ms);
            prop_assert!(month.span_ms(&zone).contains(&unix_ms) || month.to_string() == "9998-12");
            prop_assert_eq!(Month::of(&zone, month.end_ms(&zone)).previous(), month);
        }
    }
}
