//! The folders of added models in the model repository.
//!
//! `NAME/.catalogue.sha256` lists the files that the catalogue or an upload brought, as `sha256sum` does. A folder
//! under a name without a dot is whole: it appears by a rename, after everything in it was fsynced.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{self, Context, SHA256};
use ledge_base::durable;
use ledge_base::names::ModelName;
use ledge_base::telemetry::system::DiskSpace;

use super::{CatalogueError, CatalogueModel};
use crate::store::UpdateStore;

/// The SHA-256 of files, by their paths below the folder of a model.
pub(super) type FileDigests = BTreeMap<String, String>;

/// The list of the files that were brought, in the folder of a model.
const LIST_FILE: &str = ".catalogue.sha256";

/// Bytes of one read.
const READ_BLOCK_BYTES: usize = 256 << 10;

/// The state of a model of the catalogue in the model repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CataloguePresence {
    Absent,
    /// It is there as the catalogue has it, unless somebody changed the files.
    Added,
    /// It was added from a catalogue that had other files.
    Outdated,
    /// A model of this name is there that no catalogue brought.
    Own,
}

impl CataloguePresence {
    /// Returns it as the command line shows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Absent => "not added",
            Self::Added => "added",
            Self::Outdated => "added, and the catalogue has another release",
            Self::Own => "a model of your own has this name",
        }
    }
}

pub(super) fn presence(model: &CatalogueModel, repository: &Path) -> CataloguePresence {
    let folder = repository.join(model.name.as_str());
    if folder.symlink_metadata().is_err() {
        return CataloguePresence::Absent;
    }
    match read_list(&folder) {
        Some(list) if list == list_of(model) => CataloguePresence::Added,
        Some(_) => CataloguePresence::Outdated,
        None => CataloguePresence::Own,
    }
}

/// The origin of a folder that is being made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FolderOrigin {
    /// A command or the daemon adds it, and the next attempt removes the remainder of an interrupted one.
    Catalogue,
    /// Only the daemon takes uploads, and its next start removes the remainder of an interrupted one.
    Upload,
}

impl FolderOrigin {
    fn state(self) -> &'static str {
        match self {
            Self::Catalogue => "new",
            Self::Upload => "upload",
        }
    }
}

/// The state in the name of a folder that is being removed.
const REMOVED: &str = "removed";

/// Removes the remainders of uploads and removals that the end of the process interrupted.
pub(super) fn remove_interrupted(repository: &Path) {
    let ends = [FolderOrigin::Upload.state(), REMOVED].map(|state| format!(".{state}"));
    let is_left = |name: &str| name.starts_with('.') && ends.iter().any(|end| name.ends_with(end));
    for entry in fs::read_dir(repository).into_iter().flatten().flatten() {
        if !entry.file_name().to_str().is_some_and(is_left) {
            continue;
        }
        let path = entry.path();
        match fs::remove_dir_all(&path) {
            Ok(()) => tracing::info!(folder = %path.display(), "removed what an interrupted upload or removal left"),
            Err(error) => {
                tracing::warn!(folder = %path.display(), %error, "what an interrupted upload or removal left cannot be removed");
            }
        }
    }
}

/// A folder that was made.
#[derive(Debug)]
pub(super) struct MadeModelFolder {
    pub folder: PathBuf,
    /// SHA-256 of its list of files.
    pub digest: String,
}

/// Makes the folder of a model, whole or not at all. `fill` puts files into a hidden folder and returns their digests.
/// `may_appear` is asked right before the folder gets its name.
pub(super) fn make<E: From<CatalogueError>>(
    repository: &Path,
    name: &ModelName,
    origin: FolderOrigin,
    fill: impl FnOnce(&Path) -> Result<FileDigests, E>,
    may_appear: impl FnOnce() -> Result<(), E>,
) -> Result<MadeModelFolder, E> {
    let (folder, new) = (repository.join(name.as_str()), hidden(repository, name, origin.state()));
    if folder.symlink_metadata().is_ok() {
        return Err(CatalogueError::Exists { folder }.into());
    }
    durable::create_folder(repository).map_err(CatalogueError::at("create", repository))?;
    remove_if_there(&new)?;

    let filled = durable::create_folder(&new)
        .map_err(|error| CatalogueError::at("create", &new)(error).into())
        .and_then(|()| fill(&new))
        .and_then(|files| {
            let digest = finish(&new, &files)?;
            may_appear()?;
            durable::rename(&new, &folder).map_err(CatalogueError::at("rename", &new))?;
            Ok(digest)
        });
    // Files that stay after an error are removed later: see [`FolderOrigin`].
    let digest = filled.inspect_err(|_| drop(remove_if_there(&new)))?;
    Ok(MadeModelFolder { folder, digest })
}

/// Copies the files of a model from `store` into a folder.
pub(super) fn copy_files(
    store: &UpdateStore,
    model: &CatalogueModel,
    folder: &Path,
    min_free_bytes: u64,
) -> Result<FileDigests, CatalogueError> {
    room_for(folder, model.bytes(), min_free_bytes)?;
    for (path, target) in &model.files {
        let blob = store.blob(&target.sha256).map_err(CatalogueError::Store)?;
        let mut new = new_file(folder, path)?;
        let digest = File::open(&blob)
            .and_then(|mut from| copy(&mut from, &mut new))
            .map_err(CatalogueError::at("write", &folder.join(path)))?;
        if digest != target.sha256 {
            // It would be copied again otherwise.
            let _ = fs::remove_file(&blob);
            return Err(CatalogueError::Changed { file: blob });
        }
    }
    Ok(list_of(model))
}

/// Checks that `bytes` fit on the disk of a folder, where `kept` stay free.
pub(super) fn room_for(folder: &Path, bytes: u64, kept: u64) -> Result<(), CatalogueError> {
    let disk = DiskSpace::of(folder).map_err(CatalogueError::at("read the free space of", folder))?;
    let free = disk.available_bytes;
    if free < bytes.saturating_add(kept) {
        return Err(CatalogueError::Room { needed: bytes, free, kept });
    }
    Ok(())
}

/// Creates the file at a path below the folder of a model, with the folders on its way.
pub(super) fn new_file(folder: &Path, path: &str) -> Result<File, CatalogueError> {
    let file = folder.join(path);
    if let Some(parent) = file.parent() {
        durable::create_folder(parent).map_err(CatalogueError::at("create", parent))?;
    }
    File::create_new(&file).map_err(CatalogueError::at("create", &file))
}

/// Writes the list of files, and waits until all folders are on the disk. Returns the SHA-256 of the list.
fn finish(folder: &Path, files: &FileDigests) -> Result<String, CatalogueError> {
    let list = folder.join(LIST_FILE);
    let lines: Vec<String> = files.iter().map(|(path, sha256)| format!("{sha256}  {path}\n")).collect();
    let content = lines.concat();
    durable::replace(&list, content.as_bytes()).map_err(CatalogueError::at("write", &list))?;

    let mut folders: Vec<PathBuf> = files.keys().filter_map(|path| Some(folder.join(path).parent()?.into())).collect();
    folders.dedup();
    folders.iter().try_for_each(|folder| durable::sync_folder(folder).map_err(CatalogueError::at("write", folder)))?;
    Ok(hex::encode(digest::digest(&SHA256, content.as_bytes())))
}

/// Removes a model that a catalogue or an upload brought; with `force` also one with files that none has.
pub fn remove(repository: &Path, name: &ModelName, force: bool) -> Result<(), CatalogueError> {
    let (folder, old) = (repository.join(name.as_str()), hidden(repository, name, REMOVED));
    match folder.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(CatalogueError::NoModel { name: name.clone(), repository: repository.to_owned() });
        }
        Err(error) => return Err(CatalogueError::at("read", &folder)(error)),
        Ok(facts) if facts.is_symlink() => return Err(CatalogueError::Link { folder }),
        Ok(_) => {}
    }

    if !force && let Some(what) = own_content(&folder)? {
        return Err(CatalogueError::Own { folder, what });
    }
    remove_if_there(&old)?;
    durable::rename(&folder, &old).map_err(CatalogueError::at("rename", &folder))?;
    remove_if_there(&old)
}

/// Returns the models of a repository that came from a catalogue or an upload.
pub(super) fn brought(repository: &Path) -> Vec<ModelName> {
    let entries = fs::read_dir(repository).into_iter().flatten().flatten();
    let is_brought = |name: &ModelName| read_list(&repository.join(name.as_str())).is_some();
    let mut names: Vec<ModelName> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_brought).collect();
    names.sort();
    names
}

/// True if a catalogue or an upload brought the folder of this model.
pub fn is_brought(folder: &Path) -> bool {
    folder.join(LIST_FILE).is_file()
}

/// Returns a description of the files in a folder that did not come from the catalogue or upload, if there are any.
fn own_content(folder: &Path) -> Result<Option<String>, CatalogueError> {
    let Some(list) = read_list(folder) else { return Ok(Some("no catalogue and no upload brought it".to_owned())) };
    let mut waiting = vec![folder.to_owned()];
    while let Some(within) = waiting.pop() {
        let entries = fs::read_dir(&within).map_err(CatalogueError::at("read", &within))?;
        for entry in entries {
            let path = entry.map_err(CatalogueError::at("read", &within))?.path();
            let facts = path.symlink_metadata().map_err(CatalogueError::at("read", &path))?;
            let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
            if name == LIST_FILE {
                continue;
            }
            if facts.is_dir() {
                waiting.push(path);
            } else if !facts.is_file() || !list.contains_key(&name) {
                return Ok(Some(format!("{name} was added")));
            } else if list.get(&name) != Some(&digest_of(&path).map_err(CatalogueError::at("read", &path))?) {
                return Ok(Some(format!("{name} was changed")));
            }
        }
    }
    Ok(None)
}

fn hidden(repository: &Path, name: &ModelName, state: &str) -> PathBuf {
    repository.join(format!(".{name}.{state}"))
}

fn remove_if_there(folder: &Path) -> Result<(), CatalogueError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CatalogueError::at("remove", folder)(error)),
        _ => Ok(()),
    }
}

/// Returns the SHA-256 of each file of a model, by its path.
fn list_of(model: &CatalogueModel) -> FileDigests {
    model.files.iter().map(|(path, target)| (path.clone(), target.sha256.clone())).collect()
}

fn read_list(folder: &Path) -> Option<FileDigests> {
    let text = fs::read_to_string(folder.join(LIST_FILE)).ok()?;
    let entry = |line: &str| line.split_once("  ").map(|(sha256, path)| (path.to_owned(), sha256.to_owned()));
    text.lines().map(entry).collect()
}

/// Copies to a new file, which is on the disk afterwards; returns the SHA-256 of the copied bytes.
pub(super) fn copy(from: &mut (impl Read + ?Sized), new: &mut File) -> io::Result<String> {
    let digest = read_hashed(from, |bytes| new.write_all(bytes))?;
    new.sync_all()?;
    Ok(digest)
}

fn digest_of(path: &Path) -> io::Result<String> {
    read_hashed(&mut File::open(path)?, |_| Ok(()))
}

fn read_hashed(from: &mut (impl Read + ?Sized), mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<String> {
    let (mut context, mut block) = (Context::new(&SHA256), vec![0; READ_BLOCK_BYTES]);
    loop {
        let count = match from.read(&mut block) {
            Ok(0) => return Ok(hex::encode(context.finish())),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let bytes = block.get(..count).unwrap_or_default();
        context.update(bytes);
        take(bytes)?;
    }
}
