//! Lengths of time in declarations: `90s`, `15m`, `1h`, `30d`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Visitor};

/// The longest, in milliseconds: a hundred years of 365 days. Every time of this century plus one more fits in an event
/// time.
const DURATION_MAX_MS: u64 = 36_500 * 86_400_000;

/// A length of time; `0` needs no unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DurationText(pub Duration);

/// A text that is no length of time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a length of time: expected a whole number with a unit (ms, s, m, h, d or w), such as \"90s\" or \"30d\""
)]
pub struct InvalidDuration(String);

impl FromStr for DurationText {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, InvalidDuration> {
        let wrong = || InvalidDuration(text.chars().take(40).collect());
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let unit_ms = match unit.trim_start() {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 7 * 86_400_000,
            "" if number == 0 => 0,
            _ => return Err(wrong()),
        };
        let milliseconds = number.checked_mul(unit_ms).filter(|&length| length <= DURATION_MAX_MS);
        milliseconds.map(|length| Self(Duration::from_millis(length))).ok_or_else(wrong)
    }
}

impl<'de> Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DurationVisitor;

        impl Visitor<'_> for DurationVisitor {
            type Value = DurationText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a length of time such as \"90s\", \"15m\", \"1h\" or \"30d\"")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<DurationText, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<DurationText, E> {
                // A number without a unit is ambiguous, except 0.
                match number {
                    0 => Ok(DurationText::default()),
                    other => Err(E::invalid_value(serde::de::Unexpected::Signed(other), &self)),
                }
            }
        }

        deserializer.deserialize_any(DurationVisitor)
    }
}

/// The text of a length of time, in the largest unit that divides it.
pub fn shown(length: Duration) -> String {
    let ms = length.as_millis();
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    let unit = units.into_iter().find(|(unit, _)| ms >= *unit && ms.is_multiple_of(*unit));
    let (unit, name) = unit.unwrap_or((1, "ms"));
    format!("{}{name}", ms / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_of_time_has_a_unit() {
        for (text, ms) in [
            ("0", 0),
            ("1500ms", 1_500),
            ("90s", 90_000),
            ("15m", 900_000),
            ("1 h", 3_600_000),
            ("30d", 2_592_000_000),
            ("2w", 1_209_600_000),
        ] {
            assert_eq!(text.parse(), Ok(DurationText(Duration::from_millis(ms))), "{text}");
        }
        for wrong in
            ["", "h", "1", "-1s", "1.5h", "1y", "1h30m", "36501d", "99999999999999999999s", "9999999999999999w"]
        {
            assert!(wrong.parse::<DurationText>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_length_of_time_is_shown_as_it_is_written() {
        for text in ["90s", "15m", "1h", "30d", "1500ms"] {
            assert_eq!(shown(text.parse::<DurationText>().unwrap().0), text);
        }
    }
}
