//! A claimed file: its id, and the names of the files that come of it.

use std::ffi::OsString;

use ledge_base::time_id::TimeId;

/// The longest part of a file's own name in the names of others, in bytes. With the id and an ending it stays below
/// the 255 bytes that file systems take.
const NAME_BYTES_MAX: usize = 160;

/// Characters that Windows and SMB do not take in names.
const FOREIGN_CHARS: &str = "\\/:*?\"<>|";

/// A file that this box has taken out of the watched folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub id: TimeId,
    /// Its name, as whoever wrote it chose it.
    pub name: OsString,
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
        Claim { id: TimeId::parse("20261201T111438123Z-1f3a9c2e".as_ref()).unwrap(), name: name.into() }
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
