//! Maintenance windows: the times at which a box may change its versions. Pure, except for the time zones of the
//! system.
//!
//! A window follows the local clock: from the first moment of a day at which the clock has reached `from` to the first
//! one after that at which it has reached `to`.
//!
//! * The clock is put forward past `from`: the window begins at that moment.
//! * The clock is put forward past `to`: the window ends as much later as the clock goes forward, so that it keeps its
//!   length.
//! * All of the window is skipped: it keeps its length, from that moment.
//! * The clock is put back: there is one window, which begins at the first of two `from` and ends at the first of two
//!   `to`.
//!
//! For example, 01:30 to 02:30 is an hour in either night, neither lost nor doubled.

use std::fmt;

use ledge_base::clock::{LocalTimeMapping, TimeZone};
use serde::Deserialize;

const DAY_S: u32 = 86_400;

/// The days of a week, Monday first.
const DAY_NAMES: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// Days in which the next opening is searched for: a week, and the days around it.
const LOOK_AHEAD_DAYS: i32 = 9;

/// A time of each day, or of some days of the week.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutWindow {
    timezone: String,
    /// A bit for each day on which it begins, Monday the lowest.
    days: u8,
    from_s: u32,
    to_s: u32,
}

/// A window as a manifest has it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowForm {
    /// The name of a time zone in the IANA database.
    pub timezone: String,
    /// The days on which it begins; every day when left out.
    pub days: Option<Vec<String>>,
    /// From `HH:MM`.
    pub from: String,
    /// To `HH:MM`; a time that is not after `from` is on the next day.
    pub to: String,
}

/// The state of a window at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowOpening {
    Open {
        /// The time at which it closes, in milliseconds since the Unix epoch.
        until_ms: u64,
    },
    Closed {
        /// The time at which it opens; `None` when it does not open within a week.
        opens_ms: Option<u64>,
    },
}

/// The error of a time zone that the system does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("time zone {0:?} is not known on this box: is tzdata installed, and the name right?")]
pub struct UnknownTimeZone(String);

impl RolloutWindow {
    /// Makes the window of this form, or returns all its mistakes.
    pub fn new(form: &WindowForm) -> Result<Self, Vec<String>> {
        let mut mistakes = Vec::new();
        // Only the form of the name is checked: each box knows which zones it has.
        let is_zone = |byte: u8| byte.is_ascii_alphanumeric() || b"/_+-".contains(&byte);
        if form.timezone.is_empty() || form.timezone.len() > 64 || !form.timezone.bytes().all(is_zone) {
            mistakes.push("timezone is not a name such as Asia/Dubai".to_owned());
        }
        let mut time = |key: &str, text: &str| {
            let seconds = seconds(text);
            if seconds.is_none() {
                mistakes.push(format!("{key} is not a time such as 01:30"));
            }
            seconds.unwrap_or(0)
        };

        let (from_s, to_s) = (time("from", &form.from), time("to", &form.to));
        let mut days = 0;
        match &form.days {
            None => days = 0x7f,
            Some(names) if names.is_empty() => {
                mistakes.push("days is empty: leave it out for every day".to_owned());
            }
            Some(names) => {
                for name in names.iter().take(DAY_NAMES.len() + 1) {
                    match DAY_NAMES.iter().position(|day| day == name) {
                        Some(day) => days |= 1 << day,
                        None => {
                            mistakes.push(format!("days has {:?}: expected {}", excerpt(name), DAY_NAMES.join(", ")));
                        }
                    }
                }
                if names.len() > DAY_NAMES.len() {
                    mistakes.push(format!("days has {} entries, 7 at most", names.len()));
                }
            }
        }

        if mistakes.is_empty() {
            Ok(Self { timezone: form.timezone.clone(), days, from_s, to_s })
        } else {
            Err(mistakes)
        }
    }

    /// Returns the state of the window at `now_ms`.
    pub fn at(&self, now_ms: u64) -> Result<WindowOpening, UnknownTimeZone> {
        let zone = TimeZone::named(&self.timezone).ok_or_else(|| UnknownTimeZone(self.timezone.clone()))?;
        let today = zone.day(now_ms);
        // The window of yesterday may pass midnight.
        let mut spans = (-1..LOOK_AHEAD_DAYS).filter_map(|ahead| self.on(&zone, today.checked_add(ahead)?));
        let next = spans.find(|(_, end)| now_ms < *end);
        Ok(match next {
            Some((begin, until_ms)) if begin <= now_ms => WindowOpening::Open { until_ms },
            next => WindowOpening::Closed { opens_ms: next.map(|(begin, _)| begin) },
        })
    }

    /// Returns the beginning and end of the window that begins on a day.
    fn on(&self, zone: &TimeZone, day: i32) -> Option<(u64, u64)> {
        // Day 0, 1 January 1970, was a Thursday.
        let weekday = (day.checked_add(3)?).rem_euclid(7);
        if self.days & (1 << weekday) == 0 {
            return None;
        }
        let (to_day, length_s) = if self.to_s > self.from_s {
            (day, self.to_s - self.from_s)
        } else {
            (day.checked_add(1)?, DAY_S - self.from_s + self.to_s)
        };
        let begin = match zone.wall_time(day, self.from_s)? {
            LocalTimeMapping::Once(moment)
            | LocalTimeMapping::Twice { first: moment, .. }
            | LocalTimeMapping::Skipped { jump: moment, .. } => moment,
        };
        let end = match zone.wall_time(to_day, self.to_s)? {
            LocalTimeMapping::Once(moment)
            | LocalTimeMapping::Twice { first: moment, .. }
            | LocalTimeMapping::Skipped { shifted: moment, .. } => moment,
        };
        let end = if end > begin { end } else { begin.saturating_add(u64::from(length_s) * 1000) };
        Some((begin, end))
    }
}

impl fmt::Display for RolloutWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clock = |seconds: u32| format!("{:02}:{:02}", seconds / 3600, seconds / 60 % 60);
        write!(f, "{} to {} {}", clock(self.from_s), clock(self.to_s), self.timezone)
    }
}

/// Parses `HH:MM` to a second of the day.
fn seconds(text: &str) -> Option<u32> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str, below: u32| {
        let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u32>().ok().filter(|number| digits && *number < below)
    };
    Some(number(hours, 24)? * 3600 + number(minutes, 60)? * 60)
}

fn excerpt(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests;
