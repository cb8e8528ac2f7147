//! A month of the calendar, in UTC: the times of records are in UTC, and a month in local time would begin at other
//! records after a change of the time zone.

use std::fmt;
use std::str::FromStr;

use ledge_base::clock;

/// A month, from its first moment in UTC to that of the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Month {
    /// From 1970 to 9998.
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

impl FromStr for Month {
    type Err = InvalidMonth;

    fn from_str(text: &str) -> Result<Self, InvalidMonth> {
        let parsed = text.split_once('-').and_then(|(year, month)| {
            let parsed = Self { year: year.parse().ok()?, month: month.parse().ok()? };
            let is_valid = (1970..=9998).contains(&parsed.year) && (1..=12).contains(&parsed.month);
            // No sign and no other number of digits: a month has one form.
            (is_valid && parsed.to_string() == text).then_some(parsed)
        });
        parsed.ok_or_else(|| InvalidMonth { text: text.chars().take(40).collect() })
    }
}

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}", self.year, self.month)
    }
}

impl Month {
    /// The month of a moment, in milliseconds since the Unix epoch.
    pub fn of(unix_ms: u64) -> Self {
        let text = clock::rfc3339(unix_ms);
        // A moment after 9998 counts as the last month.
        text.get(..7).and_then(|text| text.parse().ok()).unwrap_or(Self { year: 9998, month: 12 })
    }

    /// The month before this one; the first one has none before it.
    #[must_use]
    pub fn before(self) -> Self {
        match (self.year, self.month) {
            (1970, 1) => self,
            (year, 1) => Self { year: year - 1, month: 12 },
            (year, month) => Self { year, month: month - 1 },
        }
    }

    fn after(self) -> Self {
        if self.month == 12 {
            Self { year: self.year + 1, month: 1 }
        } else {
            Self { year: self.year, month: self.month + 1 }
        }
    }

    /// The first moment, in milliseconds since the Unix epoch.
    pub fn begins_ms(self) -> u64 {
        let micros = clock::parse_micros(&format!("{self}-01T00:00:00Z")).unwrap_or(0);
        u64::try_from(micros / 1000).unwrap_or(0)
    }

    /// The first moment after it, in milliseconds since the Unix epoch.
    pub fn ends_ms(self) -> u64 {
        self.after().begins_ms()
    }

    /// True for a moment of this month.
    pub fn has(self, unix_ms: u64) -> bool {
        (self.begins_ms()..self.ends_ms()).contains(&unix_ms)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_month_has_one_form() {
        assert_eq!("2026-11".parse::<Month>().unwrap().to_string(), "2026-11");
        for bad in ["", "2026", "2026-1", "2026-13", "2026-00", "26-11", "+026-11", "2026-11-01", "1969-12", "9999-01"]
        {
            assert!(bad.parse::<Month>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_month_is_in_utc_and_ends_where_the_next_one_begins() {
        let month: Month = "2024-02".parse().unwrap();
        assert_eq!(
            (clock::rfc3339(month.begins_ms()), (month.ends_ms() - month.begins_ms()) / 86_400_000),
            ("2024-02-01T00:00:00Z".into(), 29)
        );
        assert!(month.has(month.begins_ms()) && !month.has(month.ends_ms()) && !month.has(month.begins_ms() - 1));
        assert_eq!("2026-01".parse::<Month>().unwrap().before().to_string(), "2025-12");
    }

    proptest! {
        #[test]
        fn a_moment_is_in_its_month(unix_ms in 0..253_370_764_800_000_u64) {
            let month = Month::of(unix_ms);
            prop_assert!(month.has(unix_ms) || month.to_string() == "9998-12");
            prop_assert_eq!(Month::of(month.ends_ms()).before(), month);
        }
    }
}
