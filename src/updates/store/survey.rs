//! A survey of the master keys of the store's model files, for code that only reads the store.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ledge_identity::sealing::{EncryptedFileHeader, MasterKeyCounts, MasterKeyId, chunk_ids};

use super::StoreError;
use super::layout::{PART_EXTENSION, entries, is_sealed, read_list, releases};

/// The encryption of a file on the disk.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileEncryption {
    Plain,
    /// Encrypted under these keys: several, where the file was fetched while the key was changed.
    Sealed {
        under: Vec<MasterKeyId>,
        is_whole: bool,
    },
}

impl FileEncryption {
    pub fn of(path: &Path) -> Result<Self, StoreError> {
        let read = StoreError::at("read", path);
        let mut file = File::open(path).map_err(&read)?;
        let Some(header) = EncryptedFileHeader::read(&mut file).map_err(&read)? else { return Ok(Self::Plain) };
        let (under, is_whole) = chunk_ids(&header, &mut file).map_err(&read)?;
        Ok(Self::Sealed { under, is_whole })
    }

    /// Returns true if any part of it is under another key, or under none.
    pub fn is_other_than(&self, current: Option<MasterKeyId>) -> bool {
        match self {
            Self::Plain => true,
            Self::Sealed { under, .. } => under.iter().any(|key| Some(*key) != current),
        }
    }

    /// Returns true if it needs a key that is not one of these.
    pub fn needs_other_than(&self, keys: &[MasterKeyId]) -> bool {
        matches!(self, Self::Sealed { under, .. } if under.iter().any(|key| !keys.contains(key)))
    }
}

/// The result of a survey.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreSurvey {
    pub keys: MasterKeyCounts,
    /// Encrypted files of releases that are cut off.
    pub damaged: u64,
}

impl StoreSurvey {
    fn look_at(&mut self, path: &Path, is_on_its_way: bool) -> Result<(), StoreError> {
        match FileEncryption::of(path) {
            Ok(FileEncryption::Plain) => self.keys.count(None),
            Ok(FileEncryption::Sealed { under, is_whole }) => {
                for key in under {
                    self.keys.count(Some(key));
                }
                self.damaged += u64::from(!is_whole && !is_on_its_way);
            }
            // It was removed meanwhile.
            Err(_) if !path.exists() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Surveys the store at `folder`: files of models' releases, and those that are being fetched for one.
pub fn survey(folder: &Path) -> Result<StoreSurvey, StoreError> {
    let mut survey = StoreSurvey::default();
    let mut seen = BTreeSet::new();
    for release in releases(folder)? {
        for name in read_list(&release)?.unwrap_or_default().into_keys() {
            let path = release.join(name);
            let Ok(facts) = path.metadata() else { continue };
            // Releases share equal files.
            if seen.insert(facts.ino()) {
                survey.look_at(&path, false)?;
            }
        }
    }

    let blobs = folder.join("blobs");
    for entry in if blobs.is_dir() { entries(&blobs)? } else { Vec::new() } {
        let path = entry.path();
        let is_on_its_way = path.extension().is_some_and(|extension| extension == PART_EXTENSION);
        // Other extensions are those of notes and leftovers, and a removed file is not needed any more.
        let Ok(facts) = entry.metadata() else { continue };
        if (path.extension().is_some() && !is_on_its_way) || !seen.insert(facts.ino()) {
            continue;
        }
        // Settings and runtimes, and their parts, are never encrypted.
        if (is_on_its_way || facts.nlink() > 1) && !is_sealed(&path) {
            continue;
        }
        survey.look_at(&path, is_on_its_way)?;
    }
    Ok(survey)
}
