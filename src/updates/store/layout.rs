//! The names and files of the store on the disk, for reading.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::{fs, io};

use ledge_identity::sealing::EncryptedFileHeader;

use super::super::artifact::ArtifactKind;
use super::StoreError;

/// Extension of a blob that is being fetched.
pub(super) const PART_EXTENSION: &str = "part";

/// File with the list of a release: `sha256sum -c .sha256sums` checks it by hand. No file of a release begins with a
/// dot.
pub(super) const LIST_FILE: &str = ".sha256sums";

/// Reads the list of a release: hashes by the names of its files. `None` when it has no readable list.
pub(super) fn read_list(folder: &Path) -> Result<Option<BTreeMap<String, String>>, StoreError> {
    let path = folder.join(LIST_FILE);
    let text = match fs::read(&path) {
        Ok(text) => String::from_utf8(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::at("read", &path)(error)),
    };
    let Ok(text) = text else { return Ok(None) };
    let pair = |line: &str| line.split_once("  ").map(|(sha256, name)| (name.to_owned(), sha256.to_owned()));
    Ok(text.lines().map(pair).collect())
}

pub(super) fn entries(folder: &Path) -> Result<Vec<fs::DirEntry>, StoreError> {
    let read = fs::read_dir(folder).and_then(Iterator::collect);
    read.map_err(StoreError::at("list", folder))
}

/// Returns the folders of models' releases in the store at `folder`, except those that are being made or removed.
pub(super) fn releases(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let models = folder.join("releases").join(ArtifactKind::Model.folder());
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

pub(super) fn is_sealed(path: &Path) -> bool {
    File::open(path).and_then(|mut file| EncryptedFileHeader::read(&mut file)).is_ok_and(|header| header.is_some())
}
