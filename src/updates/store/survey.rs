//! Under which master keys the files of models in the store are, for whoever only looks.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ledge_identity::sealing::{Header, KeyId, Survey, chunk_ids};

use super::StoreError;
use super::part::PART;
use super::release::{entries, listed};
use super::sealed::is_sealed;
use crate::subject::Kind;

/// How a file lies on the disk.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lies {
    Plain,
    /// Sealed under these keys: several, where one came while the key was changed.
    Sealed {
        under: Vec<KeyId>,
        is_whole: bool,
    },
}

impl Lies {
    pub fn of(path: &Path) -> Result<Self, StoreError> {
        let read = StoreError::at("read", path);
        let mut file = File::open(path).map_err(&read)?;
        let Some(header) = Header::read(&mut file).map_err(&read)? else { return Ok(Self::Plain) };
        let (under, is_whole) = chunk_ids(&header, &mut file).map_err(&read)?;
        Ok(Self::Sealed { under, is_whole })
    }

    /// Whether anything of it is under another key, or under none.
    pub fn is_other_than(&self, current: Option<KeyId>) -> bool {
        match self {
            Self::Plain => true,
            Self::Sealed { under, .. } => under.iter().any(|key| Some(*key) != current),
        }
    }

    /// Whether it needs a key that is none of these.
    pub fn needs_other_than(&self, keys: &[KeyId]) -> bool {
        matches!(self, Self::Sealed { under, .. } if under.iter().any(|key| !keys.contains(key)))
    }
}

/// What is in the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreSurvey {
    pub keys: Survey,
    /// Sealed files of releases of which some is missing.
    pub damaged: u64,
}

impl StoreSurvey {
    fn look_at(&mut self, path: &Path, is_on_its_way: bool) -> Result<(), StoreError> {
        match Lies::of(path) {
            Ok(Lies::Plain) => self.keys.count(None),
            Ok(Lies::Sealed { under, is_whole }) => {
                for key in under {
                    self.keys.count(Some(key));
                }
                self.damaged += u64::from(!is_whole && !is_on_its_way);
            }
            // It went meanwhile.
            Err(_) if !path.exists() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// What is in the store at `folder`: files of models' releases, and those that are on their way to one.
pub fn survey(folder: &Path) -> Result<StoreSurvey, StoreError> {
    let mut survey = StoreSurvey::default();
    let mut seen = BTreeSet::new();
    for release in releases(folder)? {
        for name in listed(&release)?.unwrap_or_default().into_keys() {
            let path = release.join(name);
            let Ok(facts) = path.metadata() else { continue };
            // Releases share what they have in common.
            if seen.insert(facts.ino()) {
                survey.look_at(&path, false)?;
            }
        }
    }
    let blobs = folder.join("blobs");
    for entry in if blobs.is_dir() { entries(&blobs)? } else { Vec::new() } {
        let path = entry.path();
        let is_on_its_way = path.extension().is_some_and(|extension| extension == PART);
        // One with a name for it alone was never written to since, and one that is gone is needed no more.
        let Ok(facts) = entry.metadata() else { continue };
        if (path.extension().is_some() && !is_on_its_way) || !seen.insert(facts.ino()) {
            continue;
        }
        // Settings and runtimes are plain for good, and so are parts of theirs.
        if (is_on_its_way || facts.nlink() > 1) && !is_sealed(&path) {
            continue;
        }
        survey.look_at(&path, is_on_its_way)?;
    }
    Ok(survey)
}

/// The folders of models' releases in the store at `folder`, but for those that are being put together or removed.
pub(super) fn releases(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let models = folder.join("releases").join(Kind::Model.folder());
    let mut found = Vec::new();
    if !models.is_dir() {
        return Ok(found);
    }
    for model in entries(&models)?.into_iter().map(|entry| entry.path()).filter(|path| path.is_dir()) {
        let releases = entries(&model)?.into_iter();
        let shown = releases.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
        found.extend(shown.map(|entry| entry.path()).filter(|path| path.is_dir()));
    }
    Ok(found)
}
