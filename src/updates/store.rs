//! The update store: files by their hashes, and releases made of them.
//!
//! ```text
//! .lock                             one process at a time
//! blobs/SHA256                      a file with this hash; never written to again
//! blobs/SHA256.part                 its first bytes, see `part.rs`
//! blobs/SHA256.synced               the number of them that are safe from a power cut
//! releases/KIND/NAME/RELEASE/       hard links to blobs, and `.sha256sums`, their list
//! releases/KIND/NAME/.RELEASE.new   a release that is being made
//! releases/KIND/NAME/.RELEASE.old   one that is being removed
//! marks/KIND/NAME                   `1` while the release on trial is loaded or runs first
//! ```
//!
//! A name without a dot appears by a rename, after everything under it was fsynced. A file under such a name is
//! complete after a power cut; one under another name does not count and may be removed.
//!
//! With encryption on, blobs of models are encrypted, and still named by the hash of their plain content. Those of
//! settings and of runtimes are not: settings are read before a key is available, and runtimes are public and loaded by
//! path. Hashes, names and versions come from signed metadata. This file does not trust any of them to be a safe name.

mod error;
mod garbage;
mod layout;
pub(super) mod part;
mod release;
mod sealed;
mod sealed_part;
mod survey;

/// Returns the folder of a release in the store at `folder`, made or not, for code that only reads it.
pub(super) fn release_folder(folder: &Path, subject: &Artifact, release: &InstalledRelease) -> PathBuf {
    let digits: String = release.digest.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    releases(folder, subject).join(format!("{}-{digits}", release.version))
}

fn releases(folder: &Path, subject: &Artifact) -> PathBuf {
    folder.join("releases").join(subject.kind.folder()).join(subject.name.as_str())
}

/// Returns the path of the mark of a release on trial in the store at `folder`.
pub(super) fn mark_path(folder: &Path, subject: &Artifact) -> PathBuf {
    folder.join("marks").join(subject.kind.folder()).join(subject.name.as_str())
}

#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_lc_rs::digest::{Context, SHA256};
use ledge_base::durable;
use ledge_base::telemetry::system::DiskSpace;
use ledge_identity::sealing::{
    CipherError, EncryptedFileError, EncryptedFileHeader, EncryptionPurpose, Sealer, open_stream,
};

use super::artifact::Artifact;
use super::state::InstalledRelease;
pub use error::StoreError;
use survey::FileEncryption;
pub use survey::{StoreSurvey, survey};

/// The format of the store. 2: blobs may be encrypted in chunks, which a version without encryption would find damaged
/// and give up.
pub const FORMAT_VERSION: u32 = 2;

/// Bytes of one read.
const READ_BLOCK_BYTES: usize = 256 << 10;

/// Bytes of a file between two calls of `progress` while it is hashed: even on a card that reads 1 MB/s, several calls
/// within the two minutes that systemd waits.
const PROGRESS_BYTES: u64 = 16 << 20;

/// The update store of this box. Clones are handles of the same one.
///
/// Its methods read and write files: on an async thread they belong into `spawn_blocking`, but for
/// [`Self::release_folder`].
#[derive(Debug, Clone)]
pub struct UpdateStore {
    folder: Arc<Path>,
    sealer: Sealer,
    /// Bytes that stay free when a file is encrypted again.
    min_free: u64,
    /// Held while names change: releases and blobs are encrypted again while updates go on.
    names: Arc<Mutex<()>>,
    /// The lock of the store, held while a handle exists.
    _lock: Arc<File>,
}

impl UpdateStore {
    /// Opens the store in `folder`, without encryption. See [`Self::open_with`].
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        Self::open_with(folder, &Sealer::none())
    }

    /// Opens the store in `folder`, and makes it if it is missing. No other process can open it while a handle exists.
    /// The lock ends with its process.
    pub fn open_with(folder: &Path, sealer: &Sealer) -> Result<Self, StoreError> {
        for folder in [folder.join("blobs"), folder.join("releases")] {
            durable::create_folder(&folder).map_err(StoreError::at("create", &folder))?;
        }
        let path = folder.join(".lock");
        let opened = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = opened.map_err(StoreError::at("open", &path))?;
        match lock.try_lock() {
            Ok(()) => {
                // Leftovers that cannot be removed do no harm.
                let _ = durable::remove_leftovers(folder);
                let (names, min_free) = (Arc::default(), 0);
                let store =
                    Self { folder: folder.into(), sealer: sealer.clone(), min_free, names, _lock: Arc::new(lock) };
                if let Err(error) = store.forget_plain_parts() {
                    tracing::error!(
                        %error,
                        "parts of models that were fetched before encryption was on may stay unencrypted"
                    );
                }
                Ok(store)
            }
            Err(fs::TryLockError::WouldBlock) => Err(StoreError::Locked { folder: folder.to_owned() }),
            Err(fs::TryLockError::Error(error)) => Err(StoreError::at("lock", &path)(error)),
        }
    }

    /// Sets the bytes of the disk that stay free when files are encrypted again.
    #[must_use]
    pub fn keeping_free(self, min_free: u64) -> Self {
        Self { min_free, ..self }
    }

    /// Returns true if the file is here. It is not read for this: it was checked when it was fetched, and
    /// [`Self::verify_release`] finds later damage. A file whose master key is lost counts as missing, so that it is
    /// fetched again.
    pub fn has(&self, sha256: &str) -> bool {
        self.blob(sha256).is_ok_and(|path| path.is_file() && !self.is_lost(&path))
    }

    /// Returns true if a file is under a master key that this box does not have, while it has another.
    fn is_lost(&self, path: &Path) -> bool {
        let keys = self.sealer.ids();
        !keys.is_empty() && FileEncryption::of(path).is_ok_and(|encryption| encryption.needs_other_than(&keys))
    }

    /// Returns the folder of a release, made or not.
    pub fn release_folder(&self, subject: &Artifact, release: &InstalledRelease) -> PathBuf {
        release_folder(&self.folder, subject, release)
    }

    /// Returns the path of the mark of a release on trial.
    pub fn mark_path(&self, subject: &Artifact) -> PathBuf {
        mark_path(&self.folder, subject)
    }

    /// Removes unencrypted parts of models from a box that never encrypted before: they would stay until the same file
    /// is fetched again. Once it has encrypted, a plain part is one of settings or of a runtime.
    fn forget_plain_parts(&self) -> Result<(), StoreError> {
        if !self.sealer.is_on() || survey(&self.folder)?.keys.0.keys().any(Option::is_some) {
            return Ok(());
        }
        for path in layout::entries(&self.blobs())?.into_iter().map(|entry| entry.path()) {
            if path.extension().is_some_and(|extension| extension == layout::PART_EXTENSION)
                && !layout::is_sealed(&path)
            {
                fs::remove_file(&path).map_err(StoreError::at("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Returns the bytes that are free for the user of this process.
    pub(super) fn free_bytes(&self) -> Result<u64, StoreError> {
        let disk = DiskSpace::of(&self.folder).map_err(StoreError::at("read the free space of", &self.folder))?;
        Ok(disk.available_bytes)
    }

    fn names(&self) -> MutexGuard<'_, ()> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sealed_header(&self, sha256: &str, length: u64) -> Result<EncryptedFileHeader, StoreError> {
        self.blob(sha256)?;
        let mut name = [0; 32];
        for (at, byte) in name.iter_mut().enumerate() {
            let digits = sha256.get(2 * at..2 * at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
            *byte = digits.unwrap_or_default();
        }
        Ok(EncryptedFileHeader { name, length })
    }

    fn blobs(&self) -> PathBuf {
        self.folder.join("blobs")
    }

    /// Returns the place of a file, whether it is here or not.
    pub(super) fn blob(&self, sha256: &str) -> Result<PathBuf, StoreError> {
        let valid = sha256.len() == 64 && sha256.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let digest = || StoreError::Digest { text: sha256.chars().take(100).collect() };
        valid.then(|| self.blobs().join(sha256)).ok_or_else(digest)
    }
}

/// Reads the next `length` bytes, or all, into a hash; returns their number.
fn hash_some(file: &mut File, context: &mut Context, length: u64) -> io::Result<u64> {
    let mut block = vec![0; READ_BLOCK_BYTES];
    let (mut file, mut read) = (file.take(length), 0);
    loop {
        let count = match file.read(&mut block) {
            Ok(0) => return Ok(read),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        context.update(block.get(..count).unwrap_or_default());
        read += count as u64;
    }
}

/// Computes the SHA-256 of the plain content of a file; an empty text for an encrypted one that was changed since.
/// `progress` is called after each [`PROGRESS_BYTES`] and at the end.
fn hash(path: &Path, sealer: &Sealer, progress: &dyn Fn()) -> Result<String, StoreError> {
    let read = StoreError::at("read", path);
    let mut context = Context::new(&SHA256);
    let mut file = File::open(path).map_err(&read)?;

    match EncryptedFileHeader::read(&mut file).map_err(&read)? {
        None => {
            file.rewind().map_err(&read)?;
            while hash_some(&mut file, &mut context, PROGRESS_BYTES).map_err(&read)? == PROGRESS_BYTES {
                progress();
            }
        }
        Some(header) => {
            let mut untold = 0;
            let take = |plain: &[u8]| {
                context.update(plain);
                untold += plain.len() as u64;
                if untold >= PROGRESS_BYTES {
                    progress();
                    untold = 0;
                }
                Ok(())
            };
            match open_stream(sealer, EncryptionPurpose::Model, &header, &mut file, take) {
                Ok(()) => {}
                Err(EncryptedFileError::File(error)) => return Err(read(error)),
                Err(EncryptedFileError::Open(error @ CipherError::NoKey(_))) => {
                    return Err(StoreError::Sealed { path: path.to_owned(), error });
                }
                Err(EncryptedFileError::Open(_)) => return Ok(String::new()),
            }
        }
    }
    progress();
    Ok(hex::encode(context.finish()))
}
