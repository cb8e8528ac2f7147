//! Removal of files that no release needs any more.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::layout::entries;
use super::release::{remove_folder, remove_release};
use super::sealed::SEALING_EXTENSION;
use super::{StoreError, UpdateStore};
use crate::artifact::{Artifact, ArtifactKind};
use crate::state::InstalledRelease;

impl UpdateStore {
    /// Removes releases that are not kept, blobs of no release that are not `wanted`, parts that are not wanted, and
    /// leftovers of a power cut. Returns the bytes freed.
    ///
    /// Kept releases are never touched: a release has its own links to its files, so it is complete without the blobs.
    /// Files that were not removed before a power cut are removed the next time.
    pub fn collect(
        &self,
        keep: &BTreeMap<Artifact, Vec<InstalledRelease>>,
        wanted: &BTreeSet<String>,
    ) -> Result<u64, StoreError> {
        let _alone = self.names();
        let kept = |(subject, releases): (&Artifact, &Vec<InstalledRelease>)| -> Vec<PathBuf> {
            releases.iter().map(|release| self.release_folder(subject, release)).collect()
        };
        let kept: BTreeSet<PathBuf> = keep.iter().flat_map(kept).collect();

        let mut freed = 0;
        for release in self.all_releases()? {
            if kept.contains(&release) {
                continue;
            }
            freed += freed_by(&release)?;
            if is_hidden(&release) { remove_folder(&release)? } else { remove_release(&release)? }
        }

        let mut linked = BTreeSet::new();
        for release in kept.iter().filter(|release| release.is_dir()) {
            for entry in entries(release)? {
                linked.insert(entry.metadata().map_err(StoreError::at("read the metadata of", release))?.ino());
            }
        }

        for entry in entries(&self.blobs())? {
            let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
            let facts = entry.metadata().map_err(StoreError::at("read the metadata of", &path))?;
            let sha256 = name.split('.').next().unwrap_or_default();
            // The list of synced bytes goes with its part.
            if wanted.contains(sha256) || linked.contains(&facts.ino()) {
                continue;
            }
            fs::remove_file(&path).map_err(StoreError::at("remove", &path))?;
            freed += if facts.nlink() == 1 { facts.len() } else { 0 };
        }
        Ok(freed)
    }

    /// Removes the releases that were being made or removed, and the files that were being encrypted again, when the
    /// power was cut. To be called with the lock of names held.
    pub(super) fn remove_half_done(&self) -> Result<(), StoreError> {
        for release in self.all_releases()?.iter().filter(|release| is_hidden(release)) {
            remove_folder(release)?;
        }
        for path in entries(&self.blobs())?.into_iter().map(|entry| entry.path()) {
            if path.extension().is_some_and(|extension| extension == SEALING_EXTENSION) {
                fs::remove_file(&path).map_err(StoreError::at("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Returns the folders of all releases, including hidden ones.
    fn all_releases(&self) -> Result<Vec<PathBuf>, StoreError> {
        let mut found = Vec::new();
        for kind in ArtifactKind::ALL {
            let folder = self.folder.join("releases").join(kind.folder());
            if !folder.is_dir() {
                continue;
            }
            for subject in entries(&folder)?.into_iter().map(|entry| entry.path()).filter(|path| path.is_dir()) {
                found.extend(entries(&subject)?.into_iter().map(|entry| entry.path()).filter(|path| path.is_dir()));
            }
        }
        Ok(found)
    }
}

/// Returns the bytes of a release that are in no other place. Its blobs are counted when they are removed.
fn freed_by(release: &Path) -> Result<u64, StoreError> {
    let mut freed = 0;
    for entry in entries(release)? {
        let facts = entry.metadata().map_err(StoreError::at("read the metadata of", release))?;
        freed += if facts.nlink() == 1 { facts.len() } else { 0 };
    }
    Ok(freed)
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}
