//! The stored watches: a file for each version in the folder `drift` of the state folder, replaced whole. At most
//! [`VERSIONS_MAX`] files of [`FILE_BYTES_MAX`] bytes. A damaged file is set aside, and its version is learnt anew.

use std::io;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_base::names::{ModelName, ModelVersion};

use crate::encoding::{FILE_BYTES_MAX, decode, encode};
use crate::watch::WatchState;

/// The most versions that are watched; the one that was not called for the longest time makes room.
pub const VERSIONS_MAX: usize = 64;

/// A version of a model.
pub type WatchedVersion = (ModelName, ModelVersion);

/// The folder of the watches.
#[derive(Debug, Clone)]
pub struct DriftStore {
    folder: PathBuf,
}

impl DriftStore {
    pub fn new(state: &Path) -> Self {
        Self { folder: state.join("drift") }
    }

    /// Reads all watches, the last written first. Changes nothing.
    pub fn view(&self) -> Vec<(WatchedVersion, WatchState)> {
        self.read_each(|_, _| {})
    }

    /// Reads all watches, the last written first, and sets damaged files aside.
    pub fn read(&self) -> Vec<(WatchedVersion, WatchState)> {
        self.read_each(|path, error| {
            tracing::error!(
                name: "drift.damaged",
                path = %path.display(),
                %error,
                "the reference of a model cannot be read; it is set aside, and learnt anew"
            );
            let _ = durable::set_aside(path);
        })
    }

    fn read_each(&self, damaged: impl Fn(&Path, io::Error)) -> Vec<(WatchedVersion, WatchState)> {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return Vec::new() };
        let mut found = Vec::new();
        for entry in entries.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let Some(version) = name.to_str().and_then(version_of) else { continue };
            let written = entry.metadata().and_then(|facts| facts.modified()).ok();
            match read(&path) {
                Ok(state) => found.push((written, version, state)),
                Err(error) => damaged(&path, error),
            }
        }
        found.sort_by_key(|(written, ..)| std::cmp::Reverse(*written));
        found.into_iter().map(|(_, version, state)| (version, state)).take(VERSIONS_MAX).collect()
    }

    /// Writes the watch on a version. Once it returns, it survives a power cut.
    pub fn write(&self, version: &WatchedVersion, state: &WatchState) -> io::Result<()> {
        durable::replace_in_new_folder(&self.path(version), &encode(state))
    }

    /// Removes the file of a version that is watched no more.
    pub fn remove(&self, version: &WatchedVersion) {
        // A file that stays is read again at the next start, and makes room for later ones then.
        let _ = std::fs::remove_file(self.path(version));
    }

    fn path(&self, (model, version): &WatchedVersion) -> PathBuf {
        self.folder.join(format!("{model}@{version}"))
    }
}

fn version_of(file: &str) -> Option<WatchedVersion> {
    let (model, version) = file.rsplit_once('@')?;
    Some((model.parse().ok()?, version.parse().ok()?))
}

fn read(path: &Path) -> io::Result<WatchState> {
    let length = std::fs::metadata(path)?.len();
    if usize::try_from(length).is_ok_and(|length| length <= FILE_BYTES_MAX) {
        decode(&std::fs::read(path)?).map_err(io::Error::other)
    } else {
        Err(io::Error::other(format!("it has {length} bytes, more than {FILE_BYTES_MAX}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_is_set_aside_and_costs_its_version_only() {
        let folder = tempfile::tempdir().unwrap();
        let store = DriftStore::new(folder.path());
        assert!(store.read().is_empty());
        let version = |name: &str| (name.parse().unwrap(), "1".parse().unwrap());
        let state = WatchState { calls: 7, ..WatchState::default() };
        store.write(&version("m"), &state).unwrap();
        store.write(&version("n"), &state).unwrap();
        let damaged = folder.path().join("drift/n@1");
        #[expect(clippy::disallowed_methods, reason = "damage on purpose")]
        std::fs::write(&damaged, b"LDR1 and nothing else").unwrap();
        assert_eq!(store.read(), [(version("m"), state)]);
        assert!(!damaged.exists() && folder.path().join("drift/n@1.set-aside-1").exists());
        store.remove(&version("m"));
        assert!(store.read().is_empty());
    }
}
