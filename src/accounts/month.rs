//! Months of the calendar at the place of this box.

use std::fmt;
use std::str::FromStr;

use ledge_base::clock::{LocalTimeMapping, TimeZone};

/// A month of the local calendar, from 1970 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Month {
    year: u16,
    /// 1 to 12.
    month: u8,
}

/// A text that is no month.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a month such as 2026-12")]
pub struct InvalidMonth;

impl Month {
    /// The month of a moment, in milliseconds since the Unix epoch.
    pub fn of(zone: &TimeZone, unix_ms: u64) -> Self {
        Self::of_day(zone.day(unix_ms))
    }

    /// The month of a day, by its number since 1970-01-01, in the Gregorian calendar. The algorithm is Howard Hinnant's
    /// `civil_from_days`.
    fn of_day(day: i32) -> Self {
        let shifted = i64::from(day.max(0)) + 719_468;
        let era = shifted / 146_097;
        let day_of_era = shifted % 146_097;
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * day_of_year + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        Self { year: u16::try_from(year).unwrap_or(9999).min(9999), month: u8::try_from(month).unwrap_or(12) }
    }

    /// The number of its first day since 1970-01-01 (`days_from_civil`).
    fn first_day(self) -> i32 {
        let (year, month) = (i32::from(self.year) - i32::from(self.month <= 2), i32::from(self.month));
        let year_of_era = year % 400;
        let from_march = if month > 2 { month - 3 } else { month + 9 };
        let day_of_year = (153 * from_march + 2) / 5;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        year / 400 * 146_097 + day_of_era - 719_468
    }

    pub fn next(self) -> Self {
        match self.month {
            12 => Self { year: self.year + 1, month: 1 },
            month => Self { month: month + 1, ..self },
        }
    }

    /// Its beginning, in milliseconds since the Unix epoch.
    pub fn begin_ms(self, zone: &TimeZone) -> u64 {
        match zone.wall_time(self.first_day(), 0) {
            Some(
                LocalTimeMapping::Once(at)
                | LocalTimeMapping::Twice { first: at, .. }
                | LocalTimeMapping::Skipped { jump: at, .. },
            ) => at,
            None => u64::MAX,
        }
    }

    /// The beginning of the next one.
    pub fn end_ms(self, zone: &TimeZone) -> u64 {
        self.next().begin_ms(zone)
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
        let is_form = text.len() == 7
            && text.bytes().enumerate().all(|(at, byte)| if at == 4 { byte == b'-' } else { byte.is_ascii_digit() });
        let (year, month) = text.split_once('-').filter(|_| is_form).ok_or(InvalidMonth)?;
        let (Ok(year), Ok(month)) = (year.parse(), month.parse()) else { return Err(InvalidMonth) };
        let is_month = (1970..=9999).contains(&year) && (1..=12).contains(&month);
        is_month.then_some(Self { year, month }).ok_or(InvalidMonth)
    }
}

#[cfg(test)]
mod tests {
    use ledge_base::clock::parse_micros;
    use proptest::prelude::*;

    use super::*;

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
    fn only_a_year_and_a_month_are_a_month() {
        for text in [
            "",
            "2026",
            "2026-13",
            "2026-00",
            "2026-1",
            "26-12",
            "+026-12",
            "2026-+1",
            "2026/12",
            "1969-12",
            "2026-12-01",
            "../2026",
        ] {
            assert_eq!(text.parse::<Month>(), Err(InvalidMonth), "{text}");
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
    }
}
