//! Folders of encrypted files, decrypted into memory for a while: runtimes load models by path, from files with their
//! own names. The content of a folder is in its list, which `sha256sum -c` reads too: an encrypted file decrypts only
//! as the listed one, not as another file of this box, and files that are not listed are ignored.
//!
//! The plain files are in a folder that only this user may enter, on a file system in memory, and are removed with the
//! last handle. Files of a killed process are removed at the next start, or lost with the power. Memory may be swapped
//! out: a box with swap needs it encrypted, or off.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ledge_base::telemetry::process;
use rustix::fs::Access;

use super::stream::{EncryptedFileError, EncryptedFileHeader, open_stream};
use super::{CipherError, EncryptionPurpose, Sealer};

/// The environment variable with the service's folder that systemd removes at the stop (systemd.exec,
/// `RuntimeDirectory=`).
const RUNTIME_DIRECTORY_VARIABLE: &str = "RUNTIME_DIRECTORY";

/// The folder of POSIX shared memory, always a file system in memory on Linux.
const SHARED_MEMORY: &str = "/dev/shm";

/// The list of a folder's files.
const LIST_FILE: &str = ".sha256sums";

/// The types of file systems in memory: tmpfs and ramfs (statfs(2)).
const IN_MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// The reason why a folder cannot be decrypted.
#[derive(Debug, thiserror::Error)]
pub enum EncryptedFolderError {
    #[error(
        "encrypted models are decrypted into memory, but neither the service's RuntimeDirectory nor {SHARED_MEMORY} is \
         a tmpfs that this user may write to: set RuntimeDirectory=ledge in the unit, or mount a tmpfs on \
         {SHARED_MEMORY}"
    )]
    NoMemory,
    #[error(
        "encrypted models are decrypted into memory, and this one needs {needed} bytes of a tmpfs: neither the \
         service's RuntimeDirectory, of which half stays free, nor {SHARED_MEMORY} has enough room"
    )]
    NoRoom { needed: u64 },
    #[error("{path}: {error}", path = path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("{path}: {error}", path = path.display())]
    Open { path: PathBuf, error: CipherError },
}

impl EncryptedFolderError {
    fn at(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        move |error| Self::File { path: path.to_owned(), error }
    }

    fn of(path: &Path, error: EncryptedFileError) -> Self {
        match error {
            EncryptedFileError::File(error) => Self::File { path: path.to_owned(), error },
            EncryptedFileError::Open(error) => Self::Open { path: path.to_owned(), error },
        }
    }
}

/// A folder with encrypted files, decrypted when they are needed. Clones share the decrypted files.
#[derive(Clone)]
pub struct EncryptedFolder {
    home: Arc<Path>,
    purpose: EncryptionPurpose,
    sealer: Sealer,
    opened: Arc<Mutex<Weak<DecryptedFolder>>>,
}

impl fmt::Debug for EncryptedFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncryptedFolder").field("home", &self.home).finish_non_exhaustive()
    }
}

/// The plain files of an [`EncryptedFolder`], which exist while a handle does.
#[derive(Debug)]
pub struct DecryptedFolder {
    path: PathBuf,
}

impl DecryptedFolder {
    /// Their folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for DecryptedFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "decrypted model files cannot be removed from memory");
        }
    }
}

impl EncryptedFolder {
    /// The folder at `home`, if any of its files is encrypted or will be: when encryption is on, a file that is plain
    /// now may be encrypted by the time that it is needed again.
    pub fn find(
        home: &Path,
        purpose: EncryptionPurpose,
        sealer: &Sealer,
    ) -> Result<Option<Self>, EncryptedFolderError> {
        let mut is_sealed = sealer.is_on();
        for path in if is_sealed { Vec::new() } else { files(home)? } {
            let mut file = File::open(&path).map_err(EncryptedFolderError::at(&path))?;
            is_sealed |= EncryptedFileHeader::read(&mut file).map_err(EncryptedFolderError::at(&path))?.is_some();
        }
        let found = || Self { home: home.into(), purpose, sealer: sealer.clone(), opened: Arc::default() };
        Ok(is_sealed.then(found))
    }

    /// As [`Self::find`], and opens the folder that was found.
    pub fn find_open(
        home: &Path,
        purpose: EncryptionPurpose,
        sealer: &Sealer,
    ) -> Result<(Option<Self>, Option<Arc<DecryptedFolder>>), EncryptedFolderError> {
        let found = Self::find(home, purpose, sealer)?;
        let opened = found.as_ref().map(Self::open).transpose()?;
        Ok((found, opened))
    }

    /// The path of the encrypted files.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Decrypts its files. Files that are decrypted already are shared.
    pub fn open(&self) -> Result<Arc<DecryptedFolder>, EncryptedFolderError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = opened.upgrade() {
            return Ok(open);
        }
        let files = listed(&self.home)?;
        let mut needed = 0;
        for (name, _) in &files {
            let path = self.home.join(name);
            needed += plain_length(&path).map_err(EncryptedFolderError::at(&path))?;
        }
        let open = Arc::new(DecryptedFolder { path: create_in_memory(needed, &tmpfs_folders())? });
        for (name, sha256) in &files {
            self.open_file(&self.home.join(name), sha256, &open.path.join(name))?;
        }
        *opened = Arc::downgrade(&open);
        Ok(open)
    }

    fn open_file(&self, path: &Path, sha256: &str, target: &Path) -> Result<(), EncryptedFolderError> {
        let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(target);
        let mut plain = created.map_err(EncryptedFolderError::at(target))?;
        let mut sealed = File::open(path).map_err(EncryptedFolderError::at(path))?;
        let Some(header) = EncryptedFileHeader::read(&mut sealed).map_err(EncryptedFolderError::at(path))? else {
            sealed.rewind().map_err(EncryptedFolderError::at(path))?;
            return io::copy(&mut sealed, &mut plain).map(drop).map_err(EncryptedFolderError::at(target));
        };
        if hex::encode(header.name) != sha256 {
            return Err(EncryptedFolderError::Open { path: path.to_owned(), error: CipherError::Forged });
        }

        let mut written = Ok(());
        let opened = open_stream(&self.sealer, self.purpose, &header, &mut sealed, |chunk| {
            plain.write_all(chunk).map_err(|error| {
                let kind = error.kind();
                // Report a full file system with the path of the target.
                written = Err(error);
                kind.into()
            })
        });
        written.map_err(EncryptedFolderError::at(target))?;
        opened.map_err(|error| EncryptedFolderError::of(path, error))
    }
}

/// The files in a folder, without hidden ones.
fn files(folder: &Path) -> Result<Vec<PathBuf>, EncryptedFolderError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(EncryptedFolderError::at(folder))? {
        let entry = entry.map_err(EncryptedFolderError::at(folder))?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !hidden && entry.path().is_file() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// The files in the list of a folder: names, and hashes in hexadecimal digits.
fn listed(home: &Path) -> Result<Vec<(String, String)>, EncryptedFolderError> {
    let path = home.join(LIST_FILE);
    let text = fs::read_to_string(&path).map_err(EncryptedFolderError::at(&path))?;
    // The list is not encrypted, so make sure that no name in it leads to another folder.
    let is_name = |name: &str| !name.starts_with('.') && Path::new(name).file_name().is_some_and(|own| own == name);
    let entries = text.lines().filter_map(|line| line.split_once("  "));
    let entries = entries.filter(|(_, name)| is_name(name));
    Ok(entries.map(|(sha256, name)| (name.to_owned(), sha256.to_owned())).collect())
}

/// The plain length of a file in bytes. Decryption detects a header that claims more than there is.
fn plain_length(path: &Path) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    Ok(EncryptedFileHeader::read(&mut file)?.map_or(length, |header| header.length.min(length)))
}

/// Removes the decrypted files of killed processes, and those of this process from before its restart. To be called
/// once, before anything is decrypted.
pub fn remove_leftovers() {
    let own = prefix();
    for place in tmpfs_folders().iter().filter_map(|place| fs::read_dir(&place.path).ok()) {
        for entry in place.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(pid) = name.strip_prefix(&own).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok()) else {
                continue;
            };
            if pid == std::process::id() || !process::is_alive(pid) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// A folder on a file system in memory that this user may write to, if there is one.
pub fn memory_folder() -> Option<PathBuf> {
    let may_write = |path: &PathBuf| rustix::fs::access(path, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    tmpfs_folders().into_iter().map(|place| place.path).find(may_write)
}

fn prefix() -> String {
    format!("ledge-opened-{}-", rustix::process::geteuid().as_raw())
}

/// A file system in memory for plain files.
struct TmpfsFolder {
    path: PathBuf,
    /// The divisor of the share that stays free: 2 is a half.
    spare: u64,
}

/// The candidates, the preferred one first.
fn tmpfs_folders() -> Vec<TmpfsFolder> {
    let runtime = std::env::var(RUNTIME_DIRECTORY_VARIABLE).unwrap_or_default();
    // systemd may have made several. They are in /run, which the whole system needs, so half of it stays free.
    let runtime = runtime.split(':').filter(|path| !path.is_empty());
    let runtime = runtime.map(|path| TmpfsFolder { path: path.into(), spare: 2 });
    runtime.chain([TmpfsFolder { path: SHARED_MEMORY.into(), spare: 16 }]).collect()
}

impl TmpfsFolder {
    fn has(&self, needed: u64) -> bool {
        rustix::fs::statvfs(&self.path).is_ok_and(|found| {
            let spare = found.f_blocks / self.spare;
            found.f_bavail.saturating_sub(spare).saturating_mul(found.f_frsize) >= needed
        })
    }
}

/// Creates a folder in memory with room for `needed` bytes, which only this user may enter.
fn create_in_memory(needed: u64, places: &[TmpfsFolder]) -> Result<PathBuf, EncryptedFolderError> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = format!("{}{}-{}", prefix(), std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let mut fault = EncryptedFolderError::NoMemory;
    for place in places.iter().filter(|place| is_in_memory(&place.path)) {
        if !place.has(needed) {
            fault = EncryptedFolderError::NoRoom { needed };
            continue;
        }
        let path = place.path.join(&name);
        // Never use an existing folder: another user could have made it and could read it.
        let made = DirBuilder::new().mode(0o700).create(&path).and_then(|()| fs::symlink_metadata(&path));
        if made.is_ok_and(|made| made.uid() == rustix::process::geteuid().as_raw() && made.mode() & 0o777 == 0o700) {
            return Ok(path);
        }
    }
    Err(fault)
}

fn is_in_memory(place: &Path) -> bool {
    let kind = rustix::fs::statfs(place).map(|found| u64::try_from(found.f_type).unwrap_or_default());
    kind.is_ok_and(|kind| IN_MEMORY_FILE_SYSTEMS.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::super::MASTER_KEY_BYTES;
    use super::super::stream::seal_stream;
    use super::*;
    use ledge_base::durable;

    fn sealer() -> Sealer {
        Sealer::with_keys(&[[1; MASTER_KEY_BYTES]])
    }

    /// Puts an encrypted file into a folder, under this hash of its content.
    fn sealed(path: &Path, plain: &[u8], name: u8) {
        let header = EncryptedFileHeader { name: [name; 32], length: plain.len() as u64 };
        let mut bytes = Vec::new();
        seal_stream(&sealer(), EncryptionPurpose::Model, &header, &mut &*plain, &mut bytes).unwrap();
        durable::replace(path, &bytes).unwrap();
    }

    fn list(home: &Path, files: &[(&str, u8)]) {
        let line = |(name, hash): &(&str, u8)| format!("{}  {name}\n", format!("{hash:02x}").repeat(32));
        durable::replace(&home.join(LIST_FILE), files.iter().map(line).collect::<Vec<_>>().concat().as_bytes())
            .unwrap();
    }

    fn find(home: &Path, sealer: &Sealer) -> Option<EncryptedFolder> {
        EncryptedFolder::find(home, EncryptionPurpose::Model, sealer).unwrap()
    }

    #[test]
    fn an_opened_folder_holds_every_listed_file_for_this_user_alone_and_is_gone_with_the_last_handle() {
        let home = tempfile::tempdir().unwrap();
        durable::replace(&home.path().join("labels.txt"), b"cat").unwrap();
        durable::replace(&home.path().join("notes.txt"), b"somebody else's").unwrap();
        list(home.path(), &[("labels.txt", 1), ("model.onnx", 7), (".hidden", 1), ("../x", 1), ("a/b", 1), ("", 1)]);
        assert!(find(home.path(), &Sealer::none()).is_none());
        assert!(find(home.path(), &sealer()).is_some(), "what is plain now may be sealed at any time");
        sealed(&home.path().join("model.onnx"), b"weights", 7);
        assert!(find(home.path(), &Sealer::none()).is_some());
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
        sealed(&home.path().join("model.onnx"), b"weights", 7);
        let left = || {
            let entries = fs::read_dir(SHARED_MEMORY).unwrap().flatten();
            let own = format!("{}{}-", prefix(), std::process::id());
            entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&own)).count()
        };
        let before = left();
        list(home.path(), &[("model.onnx", 7)]);
        let error = find(home.path(), &Sealer::none()).unwrap().open().unwrap_err().to_string();
        assert!(error.contains("model.onnx") && error.contains("encryption.master_key_file"), "{error}");
        // A file that this box encrypted, in the place of another.
        list(home.path(), &[("model.onnx", 8)]);
        let error = find(home.path(), &sealer()).unwrap().open().unwrap_err();
        assert!(matches!(error, EncryptedFolderError::Open { error: CipherError::Forged, .. }), "{error}");
        assert_eq!(left(), before);
        assert!(!is_in_memory(home.path()) || home.path().starts_with("/dev/shm"));
    }

    #[test]
    fn the_first_place_in_memory_that_has_the_room_is_taken() {
        let [first, second] = [(); 2].map(|()| tempfile::tempdir_in(SHARED_MEMORY).unwrap());
        let place = |folder: &tempfile::TempDir, spare| TmpfsFolder { path: folder.path().to_owned(), spare };
        let parent =
            |needed, places: &[TmpfsFolder]| create_in_memory(needed, places).unwrap().parent().unwrap().to_owned();
        assert_eq!(parent(1, &[place(&first, 2), place(&second, 16)]), first.path());
        // The whole first file system is to stay free.
        assert_eq!(parent(1, &[place(&first, 1), place(&second, 16)]), second.path());
        let fault = |needed, places: &[TmpfsFolder]| create_in_memory(needed, places).unwrap_err();
        assert!(matches!(fault(1, &[place(&first, 1)]), EncryptedFolderError::NoRoom { needed: 1 }));
        assert!(matches!(fault(u64::MAX, &[place(&first, 16)]), EncryptedFolderError::NoRoom { .. }));
        let disk = TmpfsFolder { path: "/proc".into(), spare: 16 };
        assert!(matches!(fault(1, &[disk]), EncryptedFolderError::NoMemory));
    }
}
