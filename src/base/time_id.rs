//! The id of a thing that this box made: the time in UTC, and a random number, such as `20261201T111438123Z-1f3a9c2e`.

use std::ffi::OsStr;
use std::fmt;
use std::io;

use crate::clock;

/// An id. Ids sort by time, and are safe names of files.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeId(String);

impl TimeId {
    /// The id of a thing that is made now.
    pub fn generate(now_ms: u64) -> io::Result<Self> {
        let mut random = [0; 4];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        Ok(Self(format!("{}-{:08x}", compact_time(now_ms), u32::from_be_bytes(random))))
    }

    /// True if the thing was made more than this time ago, in milliseconds, by the clock of the box that did.
    pub fn is_older(&self, than_ms: u64) -> bool {
        *self.0 < *compact_time(clock::unix_millis().saturating_sub(than_ms))
    }

    /// The id of one of several things that come of this one.
    pub fn numbered(&self, number: Option<usize>) -> String {
        number.map_or_else(|| self.0.clone(), |number| format!("{}-{number}", self.0))
    }

    /// The id that is the name of a folder or of a file.
    pub fn parse(name: &OsStr) -> Option<Self> {
        let text = name.to_str()?;
        let (time, random) = text.split_once('-')?;
        let (day, second) = time.split_once('T')?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_time = day.len() == 8 && second.len() == 10 && is_number(day) && is_number(second.strip_suffix('Z')?);
        let is_random = random.len() == 8 && random.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_time && is_random).then(|| Self(text.to_owned()))
    }

    /// The month in which it was made, such as `2026-12`.
    pub fn month(&self) -> String {
        format!("{}-{}", self.0.get(..4).unwrap_or_default(), self.0.get(4..6).unwrap_or_default())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A time such as `20261201T111438123Z`.
fn compact_time(unix_ms: u64) -> String {
    let seconds: String = clock::rfc3339(unix_ms).chars().filter(|c| c.is_ascii_digit() || *c == 'T').collect();
    format!("{seconds}{:03}Z", unix_ms % 1000)
}

impl fmt::Display for TimeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_its_time_and_is_read_again() {
        let id = TimeId::generate(1_796_123_678_123).unwrap();
        assert!(id.as_str().starts_with("20261201T") && id.as_str().len() == 28, "{id}");
        assert_eq!((TimeId::parse(OsStr::new(id.as_str())), id.month().as_str()), (Some(id.clone()), "2026-12"));
        assert_eq!(id.numbered(Some(2)), format!("{id}-2"));
        let made_now = TimeId::generate(clock::unix_millis()).unwrap();
        assert!(!made_now.is_older(60_000) && TimeId::generate(0).unwrap().is_older(60_000));
        for other in ["", "results", "20261201T111438123Z", "20261201T111438123Z-1f3a9c2", "x20261201T1Z-1f3a9c2e"] {
            assert_eq!(TimeId::parse(OsStr::new(other)), None, "{other}");
        }
    }
}
