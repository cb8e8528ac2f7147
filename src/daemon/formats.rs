//! The form of each store on this box, told to the versions before and after this one.
//!
//! Every store refuses by itself what a later version wrote. This file says it before any of them is touched, and in a form
//! that the scripts of a package read: a package whose program could not go on here is not installed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use ledge_audit::layout;
use ledge_base::durable;
use ledge_features as features;
use ledge_identity::keys;
use ledge_updates::store;

/// The stores, and the form of each that this version writes. A number is raised in the commit after which the version before
/// could not read everything that the store may hold any more; beside each stands why.
pub const KNOWN: [(&str, u32); 4] =
    [("audit", layout::FORM), ("features", features::FORM), ("keys", keys::FORM), ("updates", store::FORM)];

/// The file in the state folder: a line a store.
pub const FILE: &str = "formats";

/// A later version has run here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a later version of Ledge has run here, and wrote what this one cannot read ({}, see {}): install that version again, or \
     move {} away and start with nothing",
    stores.join(", "), file.display(), file.parent().unwrap_or(Path::new("/")).display()
)]
pub struct LaterVersion {
    /// What is later, each with its number.
    pub stores: Vec<String>,
    /// The file that says so.
    pub file: PathBuf,
}

/// Refuses a state folder that a later version wrote; notes for other versions that this one writes there from now on.
pub fn claim(state: &Path) -> Result<(), LaterVersion> {
    let file = state.join(FILE);
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) => {
            if error.kind() != std::io::ErrorKind::NotFound {
                // The stores look for themselves.
                tracing::warn!(file = %file.display(), %error, "which version ran here last cannot be read");
            }
            String::new()
        }
    };
    let stores = later(&text);
    if !stores.is_empty() {
        return Err(LaterVersion { stores, file });
    }
    let now = known();
    if text != now
        && let Err(error) = durable::replace(&file, now.as_bytes())
    {
        tracing::warn!(file = %file.display(), %error, "the form of the stores cannot be noted for other versions");
    }
    Ok(())
}

/// The content of the file as this version writes it.
pub fn known() -> String {
    KNOWN.iter().fold(String::new(), |mut text, (store, format)| {
        let _ = writeln!(text, "{store} {format}");
        text
    })
}

/// What of a file is later than this version. A store that it has never heard of is.
fn later(text: &str) -> Vec<String> {
    let known = BTreeMap::from(KNOWN);
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
    fn what_this_version_wrote_it_takes() {
        let folder = tempfile::tempdir().unwrap();
        claim(folder.path()).unwrap();
        assert_eq!(std::fs::read_to_string(folder.path().join(FILE)).unwrap(), known());
        claim(folder.path()).unwrap();
    }

    #[test]
    fn what_a_later_version_wrote_is_refused_by_name_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let text = "audit 1\nfeatures 7\nspeech 1\n";
        durable::replace(&folder.path().join(FILE), text.as_bytes()).unwrap();
        let refused = claim(folder.path()).unwrap_err();
        assert_eq!(refused.stores, ["features 7", "speech 1"]);
        assert!(refused.to_string().contains("features 7, speech 1"), "{refused}");
        assert_eq!(std::fs::read_to_string(folder.path().join(FILE)).unwrap(), text);
    }

    #[test]
    fn what_an_earlier_version_wrote_is_brought_up_to_date() {
        let folder = tempfile::tempdir().unwrap();
        durable::replace(&folder.path().join(FILE), b"audit 0\n").unwrap();
        claim(folder.path()).unwrap();
        assert_eq!(std::fs::read_to_string(folder.path().join(FILE)).unwrap(), known());
    }

    proptest! {
        #[test]
        fn a_damaged_file_never_panics(text in ".*") {
            let _ = later(&text);
        }
    }
}
