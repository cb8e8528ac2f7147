//! A folder next to the one that it replaces. Both are exchanged in one step, so at any moment the place has the folder
//! before or the complete new one.
//!
//! A staged folder has a mark until it is in effect. A folder of the same name without the mark is one that was replaced by
//! a command that was killed right then: it is kept.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, symlink,
};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use ledge_base::durable;

use crate::cli::backup::RESTORING_MARK;
use crate::cli::backup::archive::EntryHead;

/// The room that a restore leaves on the disk, in bytes.
const ROOM_LEFT_BYTES: u64 = 64 << 20;

/// The mode of a new folder in the state.
const FOLDER_MODE: u32 = 0o700;

/// A folder that is not in effect yet.
#[derive(Debug)]
pub struct StagedFolder {
    target: PathBuf,
    path: PathBuf,
    /// The user and the group of the service.
    owner: (u32, u32),
    mode: u32,
}

impl StagedFolder {
    /// Makes an empty folder next to `target`, with room for `bytes`.
    pub fn begin(target: &Path, bytes: u64) -> anyhow::Result<Self> {
        let parent = target.parent().unwrap_or(Path::new("/"));
        durable::create_folder(parent).with_context(|| parent.display().to_string())?;
        let path = beside(target, "restoring");
        tidy(target, &path).with_context(|| path.display().to_string())?;
        let room = rustix::fs::statvfs(parent).map_err(io::Error::from)?;
        let free = room.f_bavail.saturating_mul(room.f_frsize);
        ensure!(
            bytes.saturating_add(ROOM_LEFT_BYTES) <= free,
            "the backup takes {} MiB, and {} has {} MiB free",
            bytes >> 20,
            parent.display(),
            free >> 20
        );
        // The package, or the service manager, made the folder for the user of the service.
        let owner = std::fs::metadata(target).or_else(|_| std::fs::metadata(parent))?;
        let mode = if target.is_dir() { owner.mode() & 0o777 } else { FOLDER_MODE };
        let staged = Self { target: target.to_owned(), path, owner: (owner.uid(), owner.gid()), mode };
        std::fs::DirBuilder::new().mode(FOLDER_MODE).create(&staged.path)?;
        File::create_new(staged.path.join(RESTORING_MARK))?.sync_all()?;
        Ok(staged)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file, whose path was checked.
    pub fn write(
        &mut self,
        path: &str,
        entry: &EntryHead,
        of_service: bool,
        content: &mut dyn Read,
    ) -> anyhow::Result<()> {
        let place = self.path.join(path);
        let mut write = || {
            std::fs::DirBuilder::new()
                .mode(FOLDER_MODE)
                .recursive(true)
                .create(place.parent().unwrap_or(&self.path))?;
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&place)?;
            let copied = io::copy(content, &mut file)?;
            if copied != entry.length {
                return Err(io::Error::from(ErrorKind::UnexpectedEof));
            }
            file.set_modified(UNIX_EPOCH + Duration::from_secs(entry.modified_s))?;
            if of_service && rustix::process::geteuid().is_root() {
                std::os::unix::fs::fchown(&file, Some(self.owner.0), Some(self.owner.1))?;
            }
            file.set_permissions(Permissions::from_mode(entry.mode))
        };
        write().with_context(|| place.display().to_string())
    }

    /// Writes a secret that only this command needs, until the folder is in effect. `None` if it cannot be written.
    pub fn scratch(&self, content: &[u8]) -> Option<PathBuf> {
        let path = self.path.join(format!("{RESTORING_MARK}-key"));
        durable::replace_private(&path, content).ok().map(|()| path)
    }

    /// Makes the links again that are in the folder before: they lead to files that no backup has, such as runtimes.
    pub fn take_links(&self, before: &Path) -> anyhow::Result<()> {
        let entries = match std::fs::read_dir(before) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let place = self.path.join(entry.file_name());
            if entry.file_type()?.is_symlink() && place.symlink_metadata().is_err() {
                symlink(std::fs::read_link(entry.path())?, &place)?;
            }
        }
        Ok(())
    }

    /// Gives the folders, and with `all_files` the files, to the owner of the target, and brings everything to the disk.
    pub fn finish(&self, all_files: bool) -> anyhow::Result<()> {
        let _ = std::fs::remove_file(self.path.join(format!("{RESTORING_MARK}-key")));
        self.own(&self.path, all_files)?;
        std::fs::set_permissions(&self.path, Permissions::from_mode(self.mode))?;
        rustix::fs::syncfs(File::open(&self.path)?).map_err(io::Error::from)?;
        Ok(())
    }

    fn own(&self, folder: &Path, all_files: bool) -> io::Result<()> {
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            chown(folder, Some(self.owner.0), Some(self.owner.1))?;
        }
        for entry in std::fs::read_dir(folder)? {
            let (entry, path) = entry.map(|entry| (entry.file_type(), entry.path()))?;
            let kind = entry?;
            if kind.is_dir() {
                std::fs::set_permissions(&path, Permissions::from_mode(self.mode))?;
                self.own(&path, all_files)?;
            } else if is_root && all_files && kind.is_file() {
                chown(&path, Some(self.owner.0), Some(self.owner.1))?;
            }
        }
        Ok(())
    }

    /// Puts the folder into effect. Returns the new place of the one before; `None` where there was none.
    pub fn exchange(self) -> anyhow::Result<Option<PathBuf>> {
        let failed = || format!("{} cannot be put in the place of {}", self.path.display(), self.target.display());
        let before = if self.target.symlink_metadata().is_ok() {
            durable::exchange(&self.path, &self.target).with_context(failed)?;
            Some(keep_before(&self.target, &self.path)?)
        } else {
            durable::rename(&self.path, &self.target).with_context(failed)?;
            None
        };
        remove_mark(&self.target)?;
        durable::sync_folder(&self.target)?;
        Ok(before)
    }

    /// Removes it.
    pub fn discard(self) {
        // What stays is removed by the next restore.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Removes what an interrupted restore left: the unfinished folder, or the mark in a finished one.
fn tidy(target: &Path, staged: &Path) -> io::Result<()> {
    if target.is_dir() {
        remove_mark(target)?;
    }
    match staged.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(_) if staged.join(RESTORING_MARK).exists() => std::fs::remove_dir_all(staged),
        Ok(_) => keep_before(target, staged).map(drop),
    }
}

fn remove_mark(folder: &Path) -> io::Result<()> {
    match std::fs::remove_file(folder.join(RESTORING_MARK)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Renames a folder that was replaced to the first free name.
fn keep_before(target: &Path, replaced: &Path) -> io::Result<PathBuf> {
    let names = (2_u32..).map(|number| format!("before.{number}"));
    let mut places = std::iter::once("before".to_owned()).chain(names).map(|name| beside(target, &name));
    let before = places.find(|place| place.symlink_metadata().is_err()).unwrap_or_default();
    durable::rename(replaced, &before)?;
    Ok(before)
}

/// `NAME.SUFFIX` next to a folder.
fn beside(folder: &Path, suffix: &str) -> PathBuf {
    let mut name = folder.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{suffix}"));
    folder.with_file_name(name)
}

/// True for a folder that has no file, except below `others`, and links.
pub fn is_empty(folder: &Path, others: &[&Path]) -> anyhow::Result<bool> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        entries => entries.with_context(|| folder.display().to_string())?,
    };
    for entry in entries {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if others.contains(&path.as_path()) || entry.file_name() == RESTORING_MARK {
            continue;
        }
        if kind.is_file() || kind.is_dir() && !is_empty(&path, others)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes a folder without files.
pub fn remove_empty(folder: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() { remove_empty(&entry.path())? } else { std::fs::remove_file(entry.path())? }
    }
    std::fs::remove_dir(folder)
}
