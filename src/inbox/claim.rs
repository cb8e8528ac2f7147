//! A claimed file: its id, and the names of the files that come of it.

use std::ffi::{OsStr, OsString};
use std::fmt;

use ledge_base::clock;

/// The longest part of a file's own name in the names of others, in bytes. With the id and an ending it stays below
/// the 255 bytes that file systems take.
const NAME_BYTES_MAX: usize = 160;

/// Characters that Windows and SMB do not take in names.
const FOREIGN_CHARS: &str = "\\/:*?\"<>|";

/// The id of a claimed file: the time in UTC, and a random number. Ids sort by time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimId(String);

/// A file that this box has taken out of the watched folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub id: ClaimId,
    /// Its name, as whoever wrote it chose it.
    pub name: OsString,
}

impl ClaimId {
    /// The id of a file that is claimed now.
    pub fn generate(now_ms: u64) -> std::io::Result<Self> {
        let mut random = [0; 4];
        getrandom::fill(&mut random).map_err(std::io::Error::other)?;
        Ok(Self(format!("{}-{:08x}", compact_time(now_ms), u32::from_be_bytes(random))))
    }

    /// True if the file was claimed more than this time ago, in milliseconds, by the clock of the box that did.
    pub fn is_older(&self, than_ms: u64) -> bool {
        *self.0 < *compact_time(clock::unix_millis().saturating_sub(than_ms))
    }

    /// The id of a document of the file: that of the file, with a number if it has several.
    pub fn of_document(&self, number: Option<usize>) -> String {
        number.map_or_else(|| self.0.clone(), |number| format!("{}-{number}", self.0))
    }

    /// The id that is the name of a folder or of a file.
    pub fn parse(name: &OsStr) -> Option<Self> {
        let text = name.to_str()?;
        let (time, random) = text.split_once('-')?;
        let (day, second) = time.split_once('T')?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_id = day.len() == 8 && is_number(day) && is_number(second.strip_suffix('Z')?);
        let is_random = random.len() == 8 && random.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_id && is_random).then(|| Self(text.to_owned()))
    }

    /// The month in which the file was claimed, such as `2026-12`.
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

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Claim {
    /// The name of a file that comes of this one: the id, its name without the ending, and another ending.
    pub fn output(&self, extension: &str) -> OsString {
        let name = self.shown_name();
        let stem = name.rsplit_once('.').map_or(name.as_str(), |(stem, _)| stem);
        format!("{}-{}.{extension}", self.id, shortened(stem)).into()
    }

    /// The name of the original where it is moved to.
    pub fn original(&self) -> OsString {
        let name = self.shown_name();
        match name.rsplit_once('.') {
            Some((stem, extension)) if extension.len() <= 10 => {
                format!("{}-{}.{extension}", self.id, shortened(stem)).into()
            }
            _ => format!("{}-{}", self.id, shortened(&name)).into(),
        }
    }

    /// Its name as it is shown: without control characters, and without those that some file systems do not take.
    pub fn shown_name(&self) -> String {
        let is_wrong = |c: char| c.is_control() || FOREIGN_CHARS.contains(c);
        self.name.to_string_lossy().chars().map(|c| if is_wrong(c) { '_' } else { c }).collect()
    }
}

/// The beginning of a text, with at most [`NAME_BYTES_MAX`] bytes, and without the spaces and dots at its ends.
fn shortened(text: &str) -> &str {
    let text = text.get(..text.floor_char_boundary(NAME_BYTES_MAX)).unwrap_or(text);
    text.trim_matches([' ', '.'])
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use proptest::prelude::*;

    use super::*;

    fn claim(name: impl Into<OsString>) -> Claim {
        Claim { id: ClaimId("20261201T111438123Z-1f3a9c2e".to_owned()), name: name.into() }
    }

    #[test]
    fn an_id_has_its_time_and_is_read_again() {
        let id = ClaimId::generate(1_796_123_678_123).unwrap();
        assert!(id.as_str().starts_with("20261201T") && id.as_str().len() == 28, "{id}");
        assert_eq!((ClaimId::parse(OsStr::new(id.as_str())), id.month().as_str()), (Some(id), "2026-12"));
        let made_now = ClaimId::generate(clock::unix_millis()).unwrap();
        assert!(!made_now.is_older(60_000) && claim("a").id.is_older(0) == (made_now.as_str() > "20261201T111438123Z"));
        for other in ["", "results", "20261201T111438123Z", "20261201T111438123Z-1f3a9c2", "x20261201T1Z-1f3a9c2e"] {
            assert_eq!(ClaimId::parse(OsStr::new(other)), None, "{other}");
        }
    }

    #[test]
    fn outputs_have_the_name_of_the_file_behind_the_id() {
        let names =
            |name: &str| [claim(name).output("json"), claim(name).original()].map(|name| name.into_string().unwrap());
        let id = "20261201T111438123Z-1f3a9c2e-";
        assert_eq!(names("scan 1.PDF"), [format!("{id}scan 1.json"), format!("{id}scan 1.PDF")]);
        assert_eq!(names("no ending"), [format!("{id}no ending.json"), format!("{id}no ending")]);
        assert_eq!(names("a\n\u{1b}:b.tif"), [format!("{id}a___b.json"), format!("{id}a___b.tif")]);
    }

    proptest! {
        #[test]
        fn any_name_becomes_one_that_every_file_system_takes(name in prop::collection::vec(1_u8.., 1..255)) {
            let claim = claim(OsString::from_vec(name));
            for name in [claim.output("json"), claim.original()] {
                let name = name.into_string().unwrap();
                prop_assert!(name.len() <= 255 - 16, "{}", name.len());
                prop_assert!(!name.contains(|c: char| c.is_control() || FOREIGN_CHARS.contains(c)));
                prop_assert!(name.starts_with("20261201T"));
            }
        }
    }
}
