//! A folder that a foreign library writes, in which it finds only files that were finished.
//!
//! OpenVINO caches compiled models in one. It writes a file in place while another load may have it mapped, and it
//! reads the incomplete file of a killed process: either crashes the reading process.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use crate::{clock, durable};

/// The file that the user of the folder has locked.
const LOCK_FILE: &str = ".lock";

/// The file that lists the others by name and hash, written once they are complete.
const MANIFEST_FILE: &str = ".manifest";

/// The mode of the files. The compiled form of an encrypted or private model is as private as the model.
const FILE_MODE: u32 = 0o600;

/// The bits of a mode that let others than the owner in.
const OF_OTHERS: u32 = 0o077;

/// The pause between two attempts to lock a folder in use.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A folder that one thread of this process has locked, until this is dropped.
#[derive(Debug)]
pub struct CheckedFolder {
    path: PathBuf,
    /// The files at the time of the lock: none, or all that the manifest lists.
    found: Vec<FileEntry>,
    _lock: File,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FileEntry {
    name: String,
    length: u64,
    modified: Option<SystemTime>,
}

impl CheckedFolder {
    /// Locks the folder at `path`, and creates it if necessary. Waits for another user of it, `patience` at most. A
    /// folder with other files than those that [`Self::keep`] listed is emptied. Kept files are found also on a file
    /// system that cannot be written.
    pub fn take(path: &Path, patience: Duration) -> io::Result<Self> {
        durable::create_folder(path)?;
        let lock = open_lock(&path.join(LOCK_FILE))?;
        let until = Instant::now() + patience;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOCK_POLL_INTERVAL),
                Err(error) => return Err(error.into()),
            }
        }

        // On a file system that cannot be written nothing is removed either.
        let _ = lock.set_modified(now());
        let listed = std::fs::read_to_string(path.join(MANIFEST_FILE)).unwrap_or_default();
        let mut found = entries(path)?;
        if manifest(path, &found).ok() != Some(listed) {
            for entry in found.drain(..) {
                let strange = path.join(entry.name);
                let is_folder = strange.symlink_metadata()?.is_dir();
                if is_folder { std::fs::remove_dir_all(strange)? } else { std::fs::remove_file(strange)? }
            }
        }
        Ok(Self { path: path.to_owned(), found, _lock: lock })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of the files that it held when it was locked, all of them complete.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.found.iter().map(|entry| entry.name.as_str())
    }

    /// Lists no file as complete, so that the next [`Self::take`] removes them all.
    pub fn forget(self) -> io::Result<()> {
        match std::fs::remove_file(self.path.join(MANIFEST_FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Lists the current files as complete. The list survives a power cut.
    pub fn keep(self) -> io::Result<()> {
        let now = entries(&self.path)?;
        if now == self.found {
            return Ok(());
        }
        for entry in &now {
            let file = File::open(self.path.join(&entry.name))?;
            // OpenVINO makes the files that it writes readable for the group.
            file.set_permissions(Permissions::from_mode(FILE_MODE))?;
            file.sync_all()?;
        }
        durable::replace(&self.path.join(MANIFEST_FILE), manifest(&self.path, &now)?.as_bytes())
    }
}

fn open_lock(path: &Path) -> io::Result<File> {
    match OpenOptions::new().create(true).truncate(false).write(true).mode(FILE_MODE).open(path) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => File::open(path),
        opened => opened,
    }
}

/// Closes the files and folders below `folder`, and the folder itself, to everybody but their owner: earlier versions
/// left some open. Files with several names stay: the other name may be that of a file of a model.
pub fn close_to_others(folder: &Path) -> io::Result<()> {
    let facts = folder.symlink_metadata()?;
    let (is_folder, is_open) = (facts.is_dir(), facts.mode() & OF_OTHERS != 0);
    if is_open && (is_folder || facts.is_file() && facts.nlink() == 1) {
        std::fs::set_permissions(folder, Permissions::from_mode(facts.mode() & !OF_OTHERS))?;
    }
    if is_folder {
        for entry in std::fs::read_dir(folder)? {
            close_to_others(&entry?.path())?;
        }
    }
    Ok(())
}

/// Removes each folder in `folder` in which no [`CheckedFolder`] was taken and no file changed for this time, if
/// `may_go` says so of its name. Returns their number.
pub fn remove_unused(folder: &Path, unused_for: Duration, may_go: impl Fn(&str) -> bool) -> io::Result<usize> {
    let now = now();
    let mut removed = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir()
            && may_go(&entry.file_name().to_string_lossy())
            // A time to come is that of a clock which was wrong.
            && now.duration_since(last_change(&entry.path())?).is_ok_and(|unused| unused > unused_for)
        {
            std::fs::remove_dir_all(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(clock::unix_millis())
}

/// The last time that something in this folder changed.
fn last_change(folder: &Path) -> io::Result<SystemTime> {
    let mut last = folder.symlink_metadata()?.modified()?;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let is_folder = entry.file_type()?.is_dir();
        last = last.max(if is_folder { last_change(&entry.path())? } else { entry.metadata()?.modified()? });
    }
    Ok(last)
}

/// The files in a folder without lock and manifest, by name.
fn entries(folder: &Path) -> io::Result<Vec<FileEntry>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Metadata of the entry itself: the target of a link is not part of the cache.
        let facts = entry.metadata()?;
        if name != LOCK_FILE && name != MANIFEST_FILE {
            entries.push(FileEntry { name, length: facts.len(), modified: facts.modified().ok() });
        }
    }
    entries.sort_unstable();
    Ok(entries)
}

/// The text of the manifest: one line for each file. An error for a link or a folder, which no manifest lists.
fn manifest(folder: &Path, entries: &[FileEntry]) -> io::Result<String> {
    let line = |entry: &FileEntry| {
        let path = folder.join(&entry.name);
        if !path.symlink_metadata()?.is_file() {
            return Err(io::Error::other(format!("{} is not a file", path.display())));
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(File::open(path)?)?;
        Ok(format!("{} {}\n", hasher.finalize().to_hex(), entry.name))
    };
    entries.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(path: &Path) -> CheckedFolder {
        CheckedFolder::take(path, Duration::ZERO).unwrap()
    }

    fn written(path: &Path, content: &[u8]) {
        durable::replace(path, content).unwrap();
    }

    #[test]
    fn what_was_kept_is_found_again() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("cache/model");
        let folder = take(&path);
        written(&folder.path().join("a.blob"), b"compiled");
        folder.keep().unwrap();

        let folder = take(&path);
        assert_eq!(std::fs::read(path.join("a.blob")).unwrap(), b"compiled");
        written(&path.join("b.blob"), b"for two threads");
        folder.keep().unwrap();
        assert_eq!(take(&path).found.len(), 2);
        take(&path).forget().unwrap();
        assert_eq!(take(&path).found, []);
        assert_eq!(entries(&path).unwrap(), []);
        take(&path).forget().unwrap();
    }

    #[test]
    fn only_what_is_unused_and_not_needed_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let day = Duration::from_hours(24);
        for name in ["unused", "taken", "needed"] {
            let path = root.path().join(name).join("inner");
            take(&path).keep().unwrap();
            for old in [path.join(LOCK_FILE), path.join(MANIFEST_FILE), path.clone(), path.parent().unwrap().to_owned()]
            {
                if old.exists() {
                    File::open(old).unwrap().set_modified(now() - 2 * day).unwrap();
                }
            }
        }
        written(&root.path().join("file"), b"no folder");
        take(&root.path().join("taken/inner"));

        assert_eq!(remove_unused(root.path(), 3 * day, |name| name != "needed").unwrap(), 0);
        assert_eq!(remove_unused(root.path(), day, |name| name != "needed").unwrap(), 1);
        let left = ["unused", "taken", "needed", "file"].map(|name| root.path().join(name).exists());
        assert_eq!(left, [false, true, true, true]);
    }

    #[test]
    fn what_a_killed_process_left_or_anybody_changed_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path();
        let damages: [&dyn Fn(); 6] = [
            &|| std::fs::create_dir_all(path.join("folder/inner")).unwrap(),
            &|| written(&path.join("b.blob"), b"half"),
            &|| written(&path.join("a.blob"), b"compile"),
            &|| written(&path.join("a.blob"), b"Compiled"),
            &|| std::fs::remove_file(path.join(MANIFEST_FILE)).unwrap(),
            &|| std::os::unix::fs::symlink("a.blob", path.join("c.blob")).unwrap(),
        ];
        for damage in damages {
            let folder = take(path);
            written(&path.join("a.blob"), b"compiled");
            folder.keep().unwrap();
            damage();
            assert_eq!(take(path).found, [], "nothing is believed");
            assert!(!path.join("a.blob").exists());
        }
    }

    #[test]
    fn files_are_for_their_owner_alone_once_they_are_kept_and_those_of_before_when_closed() {
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        let root = tempfile::tempdir().unwrap();
        let (path, other) = (root.path().join("model"), root.path().join("other"));
        let folder = take(&path);
        let (compiled, model) = (path.join("a.blob"), path.join("model.onnx"));
        written(&compiled, b"compiled");
        std::fs::set_permissions(&compiled, Permissions::from_mode(0o440)).unwrap();
        folder.keep().unwrap();
        assert_eq!(mode(&compiled), 0o600);

        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        std::fs::set_permissions(&compiled, Permissions::from_mode(0o440)).unwrap();
        written(&model, b"model");
        std::fs::set_permissions(&model, Permissions::from_mode(0o644)).unwrap();
        std::fs::hard_link(&model, &other).unwrap();
        close_to_others(&path).unwrap();
        assert_eq!([mode(&path), mode(&compiled), mode(&other)], [0o700, 0o400, 0o644]);
    }

    #[test]
    fn one_at_a_time_has_the_folder() {
        let root = tempfile::tempdir().unwrap();
        let folder = take(root.path());
        let other = CheckedFolder::take(root.path(), Duration::from_millis(1)).unwrap_err();
        assert_eq!(other.kind(), io::ErrorKind::WouldBlock);
        drop(folder);
        take(root.path());
    }
}
