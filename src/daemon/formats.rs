//! The format of each store on this box, written down for earlier and later versions of Ledge.
//!
//! Every store refuses by itself the files of a later version. The file `formats` says so before any store is touched,
//! and the scripts of a package read it: a package is not installed if its program cannot read the stores of this box.
//!
//! Files that matter little are not listed, since they must not prevent an earlier version from starting: `egress.json`,
//! `alerts.json` and the files of `accounts/` of a later version are set aside, not overwritten.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use ledge_audit::layout;
use ledge_base::durable;
use ledge_features as features;
use ledge_identity::keys;
use ledge_jobs as jobs;
use ledge_updates::store;

/// The stores, and the format of each that this version writes. A number is raised in the commit after which the
/// previous version could no longer read everything in the store; the constant of each store says why.
pub const STORE_FORMATS: [(&str, u32); 5] = [
    ("audit", layout::FORMAT_VERSION),
    ("features", features::FORMAT_VERSION),
    ("jobs", jobs::FORMAT_VERSION),
    ("keys", keys::FORMAT_VERSION),
    ("updates", store::FORMAT_VERSION),
];

/// The file in the state folder: one line for each store.
pub const FORMATS_FILE: &str = "formats";

/// The refusal of a state folder that a later version wrote.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a later version of Ledge has run on this box, and this version cannot read its stores ({}, see {}): install the \
     later version again, or move {} away and start with an empty state",
    stores.join(", "), file.display(), file.parent().unwrap_or(Path::new("/")).display()
)]
pub struct NewerFormatError {
    /// The stores in a later format, each with its number.
    pub stores: Vec<String>,
    /// The file of formats.
    pub file: PathBuf,
}

/// Refuses a state folder that a later version wrote. Otherwise writes the formats of this version into it.
pub fn claim(state: &Path) -> Result<(), NewerFormatError> {
    let file = state.join(FORMATS_FILE);
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) => {
            if error.kind() != std::io::ErrorKind::NotFound {
                // Each store checks its own format, too.
                tracing::warn!(file = %file.display(), %error, "the formats of the stores cannot be read");
            }
            String::new()
        }
    };

    let stores = later_stores(&text);
    if !stores.is_empty() {
        return Err(NewerFormatError { stores, file });
    }

    let now = content();
    if text != now
        && let Err(error) = durable::replace(&file, now.as_bytes())
    {
        tracing::warn!(
            file = %file.display(),
            %error,
            "the formats of the stores cannot be written for other versions of Ledge"
        );
    }
    Ok(())
}

/// The content of the file as this version writes it.
pub fn content() -> String {
    STORE_FORMATS.iter().fold(String::new(), |mut text, (store, format)| {
        let _ = writeln!(text, "{store} {format}");
        text
    })
}

/// The stores of a file that are in a later format, and those that this version does not know.
pub fn later_stores(text: &str) -> Vec<String> {
    let known = BTreeMap::from(STORE_FORMATS);
    let line = |line: &str| {
        let (store, format) = line.split_once(' ')?;
        let format: u32 = format.trim().parse().ok()?;
        let is_known = known.get(store).is_some_and(|known| format <= *known);
        (!is_known).then(|| format!("{store} {format}"))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_file_of_this_version_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        claim(folder.path()).unwrap();
        assert_eq!(std::fs::read_to_string(folder.path().join(FORMATS_FILE)).unwrap(), content());
        claim(folder.path()).unwrap();
    }

    #[test]
    fn the_file_of_a_later_version_is_refused_by_name_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let text = "audit 1\nfeatures 7\nspeech 1\n";
        durable::replace(&folder.path().join(FORMATS_FILE), text.as_bytes()).unwrap();
        let refused = claim(folder.path()).unwrap_err();
        assert_eq!(refused.stores, ["features 7", "speech 1"]);
        assert!(refused.to_string().contains(&refused.stores.join(", ")), "{refused}");
        assert_eq!(std::fs::read_to_string(folder.path().join(FORMATS_FILE)).unwrap(), text);
    }

    #[test]
    fn the_file_of_an_earlier_version_is_brought_up_to_date() {
        let folder = tempfile::tempdir().unwrap();
        durable::replace(&folder.path().join(FORMATS_FILE), b"audit 0\n").unwrap();
        claim(folder.path()).unwrap();
        assert_eq!(std::fs::read_to_string(folder.path().join(FORMATS_FILE)).unwrap(), content());
    }

    proptest! {
        #[test]
        fn a_damaged_file_never_panics(text in ".*") {
            let _ = later_stores(&text);
        }
    }
}
