//! Folders of sealed files, opened into memory for a while: runtimes load models by path, from files with their own names.
//!
//! The plain files lie in a folder that only this user may enter, on a file system that is in memory, and go with the
//! last handle. What a process that was killed left there goes with the next start, or with the power. What is in memory
//! may be swapped out: a box with swap needs it encrypted, or off.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::stream::{Header, StreamError, open_stream};
use super::{OpenError, SealPurpose, Sealer};

/// Where systemd puts the folder of a service that is gone when it stops (systemd.exec, `RuntimeDirectory=`).
const RUNTIME: &str = "RUNTIME_DIRECTORY";

/// POSIX shared memory, which Linux always has in memory.
const SHARED_MEMORY: &str = "/dev/shm";

/// What the kernel calls file systems in memory (statfs(2)).
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Why a folder is not opened.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// There is no place for plain files.
    #[error(
        "sealed models are opened into memory, and neither the service's RuntimeDirectory nor {SHARED_MEMORY} is a tmpfs \
         that this user may write to: set RuntimeDirectory=ledge in the unit, or mount a tmpfs on {SHARED_MEMORY}"
    )]
    NoMemory,
    /// A file cannot be read or written.
    #[error("{path}: {error}", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file does not open.
    #[error("{path}: {error}", path = path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        error: OpenError,
    },
}

impl FolderError {
    fn at(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        move |error| Self::File { path: path.to_owned(), error }
    }

    fn of(path: &Path, error: StreamError) -> Self {
        match error {
            StreamError::File(error) => Self::File { path: path.to_owned(), error },
            StreamError::Open(error) => Self::Open { path: path.to_owned(), error },
        }
    }
}

/// A folder with sealed files, opened when they are needed. Clones share what is open.
#[derive(Clone)]
pub struct SealedFolder {
    home: Arc<Path>,
    purpose: SealPurpose,
    sealer: Sealer,
    opened: Arc<Mutex<Weak<OpenedFolder>>>,
}

impl fmt::Debug for SealedFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedFolder").field("home", &self.home).finish_non_exhaustive()
    }
}

/// The plain files of a [`SealedFolder`], as long as there is a handle.
#[derive(Debug)]
pub struct OpenedFolder {
    path: PathBuf,
}

impl OpenedFolder {
    /// Where they are.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for OpenedFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "an opened model cannot be removed from memory");
        }
    }
}

impl SealedFolder {
    /// The folder at `home`, if any of its files is sealed.
    pub fn find(home: &Path, purpose: SealPurpose, sealer: &Sealer) -> Result<Option<Self>, FolderError> {
        for path in files(home)? {
            let mut file = File::open(&path).map_err(FolderError::at(&path))?;
            if Header::read(&mut file).map_err(FolderError::at(&path))?.is_some() {
                let (home, sealer, opened) = (home.into(), sealer.clone(), Arc::default());
                return Ok(Some(Self { home, purpose, sealer, opened }));
            }
        }
        Ok(None)
    }

    /// Where it lies, sealed.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Its files, plain. Those that are open already are not opened again.
    pub fn open(&self) -> Result<Arc<OpenedFolder>, FolderError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = opened.upgrade() {
            return Ok(open);
        }
        let open = Arc::new(OpenedFolder { path: fresh()? });
        for path in files(&self.home)? {
            let target = open.path.join(path.file_name().unwrap_or_default());
            self.open_file(&path, &target)?;
        }
        *opened = Arc::downgrade(&open);
        Ok(open)
    }

    fn open_file(&self, path: &Path, target: &Path) -> Result<(), FolderError> {
        let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(target);
        let mut plain = created.map_err(FolderError::at(target))?;
        let mut sealed = File::open(path).map_err(FolderError::at(path))?;
        let Some(header) = Header::read(&mut sealed).map_err(FolderError::at(path))? else {
            sealed.rewind().map_err(FolderError::at(path))?;
            return io::copy(&mut sealed, &mut plain).map(drop).map_err(FolderError::at(target));
        };
        let mut written = Ok(());
        let opened = open_stream(&self.sealer, self.purpose, &header, &mut sealed, |chunk| {
            plain.write_all(chunk).map_err(|error| {
                let kind = error.kind();
                // A place that is full is told with its own path.
                written = Err(error);
                kind.into()
            })
        });
        written.map_err(FolderError::at(target))?;
        opened.map_err(|error| FolderError::of(path, error))
    }
}

/// The files in a folder, but for hidden ones.
fn files(folder: &Path) -> Result<Vec<PathBuf>, FolderError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(FolderError::at(folder))? {
        let entry = entry.map_err(FolderError::at(folder))?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !hidden && entry.path().is_file() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Removes what processes left that were killed, and this one before it was started anew. To be called once, before
/// anything is opened.
pub fn remove_leftovers() {
    let own = prefix();
    for place in places().iter().filter_map(|place| fs::read_dir(place).ok()) {
        for entry in place.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(pid) = name.strip_prefix(&own).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok()) else {
                continue;
            };
            if pid == std::process::id() || !Path::new("/proc").join(pid.to_string()).exists() {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

fn prefix() -> String {
    format!("ledge-opened-{}-", rustix::process::geteuid().as_raw())
}

/// Where plain files may lie, the best first.
fn places() -> Vec<PathBuf> {
    let runtime = std::env::var(RUNTIME).unwrap_or_default();
    // systemd may have made several.
    let runtime = runtime.split(':').filter(|path| !path.is_empty()).map(PathBuf::from);
    runtime.chain([PathBuf::from(SHARED_MEMORY)]).collect()
}

/// A new folder in memory, for this user alone.
fn fresh() -> Result<PathBuf, FolderError> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = format!("{}{}-{}", prefix(), std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    for place in places().into_iter().filter(|place| is_in_memory(place)) {
        let path = place.join(&name);
        // Not one that is there: somebody else could have made it, and could look in.
        let made = DirBuilder::new().mode(0o700).create(&path).and_then(|()| fs::symlink_metadata(&path));
        if made.is_ok_and(|made| made.uid() == rustix::process::geteuid().as_raw() && made.mode() & 0o777 == 0o700) {
            return Ok(path);
        }
    }
    Err(FolderError::NoMemory)
}

fn is_in_memory(place: &Path) -> bool {
    let kind = rustix::fs::statfs(place).map(|found| u64::try_from(found.f_type).unwrap_or_default());
    kind.is_ok_and(|kind| IN_MEMORY.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::super::KEY;
    use super::super::stream::seal_stream;
    use super::*;
    use crate::durable;

    fn sealer() -> Sealer {
        Sealer::with_keys(&[[1; KEY]])
    }

    fn sealed(path: &Path, plain: &[u8]) {
        let header = Header { name: [7; 32], length: plain.len() as u64 };
        let mut bytes = Vec::new();
        seal_stream(&sealer(), SealPurpose::Model, &header, &mut &*plain, &mut bytes).unwrap();
        durable::replace(path, &bytes).unwrap();
    }

    fn find(home: &Path, sealer: &Sealer) -> Option<SealedFolder> {
        SealedFolder::find(home, SealPurpose::Model, sealer).unwrap()
    }

    #[test]
    fn an_opened_folder_holds_every_file_for_this_user_alone_and_is_gone_with_the_last_handle() {
        let home = tempfile::tempdir().unwrap();
        durable::replace(&home.path().join("labels.txt"), b"cat").unwrap();
        durable::replace(&home.path().join(".sha256sums"), b"list").unwrap();
        assert!(find(home.path(), &sealer()).is_none());
        sealed(&home.path().join("model.onnx"), b"weights");
        let folder = find(home.path(), &sealer()).unwrap();
        let open = folder.open().unwrap();
        let path = open.path().to_owned();
        assert_eq!(fs::read(path.join("model.onnx")).unwrap(), b"weights");
        assert_eq!(fs::read(path.join("labels.txt")).unwrap(), b"cat");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 2);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        assert!(is_in_memory(&path));
        let again = folder.clone().open().unwrap();
        assert!(Arc::ptr_eq(&open, &again));
        drop((open, again));
        assert!(!path.exists());
        assert_ne!(folder.open().unwrap().path(), path);
    }

    #[test]
    fn what_does_not_open_leaves_nothing_in_memory_and_names_the_file() {
        let home = tempfile::tempdir().unwrap();
        sealed(&home.path().join("model.onnx"), b"weights");
        let left = || {
            fs::read_dir(SHARED_MEMORY)
                .unwrap()
                .flatten()
                .filter(|entry| {
                    entry.file_name().to_string_lossy().starts_with(&format!("{}{}-", prefix(), std::process::id()))
                })
                .count()
        };
        let before = left();
        let error = find(home.path(), &Sealer::none()).unwrap().open().unwrap_err().to_string();
        assert!(error.contains("model.onnx") && error.contains("encryption.master_key_file"), "{error}");
        assert_eq!(left(), before);
        assert!(!is_in_memory(home.path()) || home.path().starts_with("/dev/shm"));
    }
}
