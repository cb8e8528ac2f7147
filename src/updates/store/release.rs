//! Releases: folders of hard links to blobs.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_identity::sealing::RekeyCounts;

use super::layout::{LIST_FILE, entries, is_sealed, read_list};
use super::{StoreError, UpdateStore, hash};
use crate::artifact::{Artifact, ArtifactKind, FileName};
use crate::state::InstalledRelease;

impl UpdateStore {
    /// Makes the folder of a release from blobs that are here, and returns it.
    ///
    /// The folder is made under a hidden name, fsynced and renamed: after a power cut it is there whole or not at all.
    /// An existing one with the same list is left as it is.
    pub fn assemble(
        &self,
        subject: &Artifact,
        release: &InstalledRelease,
        files: &[(FileName, String)],
    ) -> Result<PathBuf, StoreError> {
        let folder = self.release_folder(subject, release);
        let files: BTreeMap<&str, &str> = files.iter().map(|(name, sha256)| (name.as_str(), sha256.as_str())).collect();
        let lines: Vec<_> = files.iter().map(|(name, sha256)| format!("{sha256}  {name}\n")).collect();
        let list = lines.concat();

        let is_here = fs::read(folder.join(LIST_FILE)).is_ok_and(|found| found == list.as_bytes());
        // A file was fetched again if its master key is lost.
        if is_here && !files.keys().any(|name| self.is_lost(&folder.join(name))) {
            return Ok(folder);
        }

        let _alone = self.names();
        let fresh = hidden(&folder, "new");
        remove_folder(&fresh)?;
        durable::create_folder(&fresh).map_err(StoreError::at("create", &fresh))?;

        for (name, sha256) in files {
            let (blob, path) = (self.blob(sha256)?, fresh.join(name));
            if subject.kind != ArtifactKind::Model && is_sealed(&blob) {
                // The same bytes came with a model: this release needs them unencrypted.
                self.unseal(&blob, &path)?;
                continue;
            }
            if subject.kind == ArtifactKind::Model && self.sealer.is_on() && blob.is_file() {
                // It was fetched while encryption was off, or while the key was changed.
                self.seal_blob(&blob, sha256, &mut RekeyCounts::default())?;
            }
            match fs::hard_link(blob, &path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(StoreError::Missing { sha256: sha256.to_owned() });
                }
                linked => linked.map_err(StoreError::at("link", &path))?,
            }
        }

        // This fsyncs the folder too, and with it the links.
        durable::replace(&fresh.join(LIST_FILE), list.as_bytes())
            .map_err(StoreError::at("write the list of", &fresh))?;
        remove_release(&folder)?;
        durable::rename(&fresh, &folder).map_err(StoreError::at("rename", &fresh))?;
        Ok(folder)
    }

    /// Reads every file of a release again. `false`: it is missing, or damaged. `progress` is called meanwhile:
    /// releases may be large, and disks slow.
    pub fn verify_release(
        &self,
        subject: &Artifact,
        release: &InstalledRelease,
        progress: &dyn Fn(),
    ) -> Result<bool, StoreError> {
        let folder = self.release_folder(subject, release);
        let Some(listed) = read_list(&folder)? else { return Ok(false) };
        let mut found = 0;
        for entry in entries(&folder)? {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name == LIST_FILE {
                continue;
            }
            let path = entry.path();
            // Foreign files in the folder do no harm.
            let Some(sha256) = listed.get(&name) else { continue };
            if hash(&path, &self.sealer, progress)? != *sha256 {
                return Ok(false);
            }
            found += 1;
        }
        // No release is without files.
        Ok(found > 0 && found == listed.len())
    }

    /// Removes a release that [`Self::verify_release`] finds damaged, and its damaged blobs, so that they are fetched
    /// again. `progress` as there.
    pub fn discard(
        &self,
        subject: &Artifact,
        release: &InstalledRelease,
        progress: &dyn Fn(),
    ) -> Result<(), StoreError> {
        let _alone = self.names();
        let folder = self.release_folder(subject, release);
        for sha256 in read_list(&folder)?.unwrap_or_default().into_values() {
            let Ok(blob) = self.blob(&sha256) else { continue };
            let found = hash(&blob, &self.sealer, progress);
            if found.is_ok_and(|found| found != sha256) {
                fs::remove_file(&blob).map_err(StoreError::at("remove", &blob))?;
            }
        }
        remove_release(&folder)
    }
}

/// Removes a release. It is renamed first: a power cut in the middle leaves no release with missing files.
pub(super) fn remove_release(folder: &Path) -> Result<(), StoreError> {
    let old = hidden(folder, "old");
    remove_folder(&old)?;
    if !folder.exists() {
        return Ok(());
    }
    durable::rename(folder, &old).map_err(StoreError::at("rename", folder))?;
    remove_folder(&old)
}

/// Removes a folder of files that are not used any more.
pub(super) fn remove_folder(folder: &Path) -> Result<(), StoreError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::at("remove", folder)(error)),
        _ => Ok(()),
    }
}

fn hidden(folder: &Path, suffix: &str) -> PathBuf {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    folder.with_file_name(format!(".{name}.{suffix}"))
}
