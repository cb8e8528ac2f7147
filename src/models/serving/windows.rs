//! The times of day in which background work may run. Pure but for [`pause`]: the time is passed in.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use ledge_base::clock;
use ledge_base::toml_check::from_text;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const DAY_MINUTES: u16 = 24 * 60;
const DAY_S: u32 = 24 * 60 * 60;

/// The longest [`pause`]: the clock may be set meanwhile.
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// A daily window, `20:00-06:00`: from its first minute to before its last, over midnight when it ends earlier than it
/// begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DailyWindow {
    from: u16,
    /// Minutes since midnight; up to 24:00.
    to: u16,
}

impl DailyWindow {
    /// Seconds until it opens, at `second` of the day; 0 when it is open.
    fn opens_in(self, second: u32) -> u32 {
        let (from, to) = (u32::from(self.from) * 60, u32::from(self.to) * 60);
        let open = if from < to { (from..to).contains(&second) } else { second >= from || second < to };
        if open { 0 } else { (from + DAY_S - second) % DAY_S }
    }
}

/// Time for which all windows are still closed at `second` of the local day. `None` when background work may run, which
/// is always the case without any window.
///
/// A change between summer and winter time makes it an hour off; a caller that comes too early is refused again.
pub fn closed_for(windows: &[DailyWindow], second: u32) -> Option<Duration> {
    let opens_in = windows.iter().map(|window| window.opens_in(second)).min()?;
    (opens_in > 0).then(|| Duration::from_secs(opens_in.into()))
}

/// Time for which work that waits for a window sleeps before it looks again, by the clock of this box; `None` when it
/// may run. A clock before the earliest possible time knows no time of day, so all windows count as closed.
pub fn pause(window: Option<DailyWindow>) -> Option<Duration> {
    let window = window?;
    if !clock::FLOOR.is_plausible(clock::unix_millis()) {
        return Some(PAUSE_MAX);
    }
    Some(closed_for(&[window], clock::local_second_of_day())?.min(PAUSE_MAX))
}

/// The windows as text for a message.
pub fn list(windows: &[DailyWindow]) -> String {
    windows.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl FromStr for DailyWindow {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let window = text.split_once('-').and_then(|(from, to)| Some(Self { from: minute(from)?, to: minute(to)? }));
        match window {
            None => Err(format!("expected \"HH:MM-HH:MM\", from 00:00 to 24:00, got {text:?}")),
            Some(Self { from, to }) if from == to || from == DAY_MINUTES => {
                Err(format!("{text:?} begins where it ends; for the whole day leave all windows out"))
            }
            Some(window) => Ok(window),
        }
    }
}

/// `HH:MM` as minutes since midnight.
fn minute(text: &str) -> Option<u16> {
    let (hour, minute) = text.trim().split_once(':')?;
    let number = |text: &str, most: u16| {
        let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|&number: &u16| digits && number <= most)
    };
    Some(number(hour, 24)? * 60 + number(minute, 59)?).filter(|&minutes| minutes <= DAY_MINUTES)
}

impl fmt::Display for DailyWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to } = self;
        write!(f, "{:02}:{:02}-{:02}:{:02}", from / 60, from % 60, to / 60, to % 60)
    }
}

impl Serialize for DailyWindow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DailyWindow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn windows(texts: &[&str]) -> Vec<DailyWindow> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn at(hour: u32, minute: u32) -> u32 {
        hour * 3600 + minute * 60
    }

    #[test]
    fn a_window_may_reach_over_midnight() {
        let night = windows(&["20:00-06:00"]);
        for open in [at(20, 0), at(23, 59), at(0, 0), at(5, 59) + 59] {
            assert_eq!(closed_for(&night, open), None, "{open}");
        }
        assert_eq!(closed_for(&night, at(6, 0)), Some(Duration::from_hours(14)));
        assert_eq!(closed_for(&night, at(20, 0) - 1), Some(Duration::from_secs(1)));
    }

    #[test]
    fn the_next_of_several_windows_counts_and_none_is_always() {
        let breaks = windows(&["12:00-13:00", "22:30-24:00"]);
        assert_eq!(closed_for(&breaks, at(12, 30)), None);
        assert_eq!(closed_for(&breaks, at(13, 0)), Some(Duration::from_mins(9 * 60 + 30)));
        assert_eq!(closed_for(&breaks, 0), Some(Duration::from_hours(12)));
        assert_eq!(closed_for(&[], 0), None);
        assert_eq!(list(&breaks), "12:00-13:00, 22:30-24:00");
    }

    #[test]
    fn what_is_no_window_says_so() {
        for text in ["", "20:00", "20-06", "20:00-6:00", "25:00-06:00", "20:60-06:00", "24:01-06:00", "+1:00-02:00"] {
            assert!(text.parse::<DailyWindow>().unwrap_err().starts_with("expected \"HH:MM-HH:MM\""), "{text}");
        }
        for text in ["06:00-06:00", "24:00-06:00"] {
            assert!(text.parse::<DailyWindow>().unwrap_err().contains("begins where it ends"), "{text}");
        }
    }

    prop_compose! {
        fn any_window()(from in 0_u16..DAY_MINUTES, length in 1_u16..DAY_MINUTES) -> DailyWindow {
            let to = (from + length) % DAY_MINUTES;
            DailyWindow { from, to }
        }
    }

    proptest! {
        #[test]
        fn a_window_survives_being_written(window in any_window()) {
            prop_assert_eq!(window.to_string().parse(), Ok(window));
        }

        #[test]
        fn whoever_waits_as_told_finds_a_window_open_and_none_was_before(
            windows in prop::collection::vec(any_window(), 1..4),
            second in 0..DAY_S,
        ) {
            if let Some(wait) = closed_for(&windows, second) {
                let wait = u32::try_from(wait.as_secs()).unwrap();
                prop_assert_eq!(closed_for(&windows, (second + wait) % DAY_S), None);
                // Windows open on the minute.
                let minutes = (second / 60 + 1) * 60..second + wait;
                for closed in minutes.step_by(60).chain([second + wait - 1]) {
                    prop_assert!(closed_for(&windows, closed % DAY_S).is_some());
                }
            }
        }

        #[test]
        fn a_window_is_open_for_its_length(window in any_window()) {
            let length = (window.to + DAY_MINUTES - window.from) % DAY_MINUTES;
            let open = (0..u32::from(DAY_MINUTES)).filter(|minute| closed_for(&[window], minute * 60).is_none()).count();
            prop_assert_eq!(open, usize::from(length));
        }

        #[test]
        fn no_text_panics(text in "[0-9:\\- ]{0,12}|.{0,12}") {
            if let Ok(window) = text.parse::<DailyWindow>() {
                prop_assert_eq!(window.to_string().parse(), Ok(window));
            }
        }
    }
}
