//! The store's folder and its files:
//!
//! ```text
//! catalog.json, catalog.copy.json   the numbers of views and fields
//! hash.key                          the secret behind the index keys
//! keys/                             the keys of the entities, where encryption is on
//! erased.json                       tombstones: hashes of erased entities, which no backup may restore
//! journal/                          pushes acknowledged since the snapshot
//! snapshot-<seq>.ledge              everything before journal entry <seq>
//! index-<generation>/               a layer: what changed since the snapshot that it names
//! clean                             the state of the index at a clean stop
//! acknowledged, acknowledged.copy   the position of the last acknowledged push
//! profiles                          what is usual of the rows of entities, in views that ask for it
//! manifest                          what the last snapshots had, to count what is lost without them
//! reserve                           reserved space, to open the index on a full disk
//! *.damaged                         the last damaged file of each kind that was set aside
//! lock                              locked while a daemon has the store open
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_identity::sealing::{CipherError, EncryptionPurpose, Sealer};
use rustix::fs::FallocateFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::super::index::ContentChecksum;
use super::super::key::HashKey;
use super::super::snapshot::{self, MisplacedSnapshot};
use super::manifest::{SnapshotChanges, SnapshotManifest};

/// The version of the forms of all these files. 2: values may be encrypted under keys of their entities; an older
/// version would read them as plain values. 3: the journal states up to which time event times were trusted, and a
/// replay uses that. 4: rows are packed, snapshots are read in place, and the index has only what changed since.
pub const FORMAT_VERSION: u32 = 4;

/// The space that is reserved for opening the index on a full disk, in bytes: sled writes when it opens. It needs a
/// hundredth of the index, and data that the last moment before a crash had not brought to the disk.
pub const RESERVE_BYTES: u64 = 16 << 20;

/// The space that filling the reserve leaves free on a nearly full disk, in bytes: for other programs, and for the
/// index in use.
const RESERVE_LEAVES_BYTES: u64 = 2 << 20;

/// The size of the write that tests if the disk has any room, in bytes.
const PROBE_BYTES: usize = 64 << 10;

/// The file of that write.
const PROBE_FILE: &str = "room.probe";

/// The file with the contents of the last snapshots.
const MANIFEST_FILE: &str = "manifest";

/// The file with the secret behind the index keys.
pub const HASH_KEY_FILE: &str = "hash.key";
/// The associated data of the encrypted secret.
const HASH_KEY_ASSOCIATED_DATA: &[u8] = b"feature store: hash key";

/// The file's name in the store's folder.
pub const UPLOAD_FILE: &str = "restore.upload";

/// The folder of a store.
#[derive(Debug, Clone)]
pub struct FeatureStoreFiles {
    folder: PathBuf,
}

/// The state of the index at a clean stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleanStopMark {
    pub generation: u64,
    /// Its last journal entry.
    pub applied: u64,
    #[serde(rename = "tally")]
    pub checksum: ContentChecksum,
}

impl FeatureStoreFiles {
    /// Creates `folder` if it does not exist.
    pub fn new(folder: &Path) -> io::Result<Self> {
        durable::create_folder(folder)?;
        Ok(Self { folder: folder.to_owned() })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of the journal.
    pub fn journal(&self) -> PathBuf {
        self.folder.join("journal")
    }

    /// Locks the store against other daemons while the returned file is open.
    pub fn lock(&self) -> io::Result<File> {
        let file = File::options().create(true).truncate(false).write(true).open(self.folder.join("lock"))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(fs::TryLockError::WouldBlock) => Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "another daemon has the feature store open: stop that daemon, or give each its own features.path",
            )),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// The secret behind the index keys. A damaged one is replaced: records contain their entities, so the index can be
    /// rebuilt under a new secret. The flag is true for a new secret.
    pub fn hash_key(&self, sealer: &Sealer) -> io::Result<(HashKey, bool)> {
        let path = self.folder.join(HASH_KEY_FILE);
        match fs::read(&path) {
            Ok(bytes) => {
                if Sealer::is_sealed(&bytes) {
                    match sealer.open(EncryptionPurpose::FeatureStore, HASH_KEY_ASSOCIATED_DATA, &bytes) {
                        Ok(plain) => {
                            if let Some(key) = read_key(&plain) {
                                return Ok((key, false));
                            }
                        }
                        // The file is intact; the master key is missing.
                        Err(error @ CipherError::NoKey(_)) => return Err(io::Error::other(error)),
                        Err(_) => {}
                    }
                } else if let Some(key) = read_key(&bytes) {
                    if sealer.is_on() {
                        durable::replace_private(&path, &sealed(sealer, &bytes)?)?;
                    }
                    return Ok((key, false));
                }
                tracing::warn!(file = %path.display(), "the hash key of the feature index is damaged; a new one is made, and the index is rebuilt");
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }

        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(io::Error::other)?;
        let content = [&key[..], &checksum(&key)].concat();
        durable::replace_private(&path, &sealed(sealer, &content)?)?;
        Ok((HashKey::new(key), true))
    }

    /// True when the secret behind the index keys is encrypted. It never is before the store has keys.
    pub fn is_sealed(&self) -> io::Result<bool> {
        match fs::read(self.folder.join(HASH_KEY_FILE)) {
            Ok(bytes) => Ok(Sealer::is_sealed(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Encrypts the secret behind the index keys again under the current master key.
    pub fn rekey(&self, sealer: &Sealer) -> io::Result<()> {
        let path = self.folder.join(HASH_KEY_FILE);
        let bytes = fs::read(&path)?;
        let plain =
            sealer.open(EncryptionPurpose::FeatureStore, HASH_KEY_ASSOCIATED_DATA, &bytes).map_err(io::Error::other)?;
        durable::replace_private(&path, &sealed(sealer, &plain)?)
    }

    /// The folder of a generation of the index.
    pub fn index(&self, generation: u64) -> PathBuf {
        self.folder.join(format!("index-{generation}"))
    }

    /// The numbers of all index generations, newest first.
    pub fn generations(&self) -> io::Result<Vec<u64>> {
        let mut found: Vec<u64> = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("index-")).and_then(|n| n.parse::<u64>().ok());
            found.extend(number);
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        Ok(found)
    }

    /// Removes a generation of the index.
    pub fn remove_index(&self, generation: u64) -> io::Result<()> {
        let path = self.index(generation);
        if path.exists() { fs::remove_dir_all(path) } else { Ok(()) }
    }

    /// The files that were set aside, by [`Self::set_aside`] or by the journal.
    pub fn damaged(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for folder in [self.folder.clone(), self.journal()] {
            for entry in fs::read_dir(folder)? {
                found.push(entry?.path());
            }
        }
        found.retain(|path| path.extension().is_some_and(|extension| extension == "damaged"));
        Ok(found)
    }

    /// Sets a damaged file or folder aside for inspection. Only the last of its kind (`index`, `journal`, `snapshot`)
    /// is kept.
    pub fn set_aside(&self, path: &Path, kind: &str) -> io::Result<PathBuf> {
        fs::symlink_metadata(path)?;
        let aside = self.folder.join(format!("{kind}.damaged"));
        match fs::metadata(&aside) {
            Ok(kind) if kind.is_dir() => fs::remove_dir_all(&aside)?,
            Ok(_) => fs::remove_file(&aside)?,
            Err(_) => {}
        }
        durable::rename(path, &aside)?;
        Ok(aside)
    }

    /// Removes the files that were set aside, and returns their paths.
    pub fn remove_damaged(&self) -> io::Result<Vec<PathBuf>> {
        let damaged = self.damaged()?;
        for path in &damaged {
            if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        }
        durable::sync_folder(&self.journal())?;
        durable::sync_folder(&self.folder)?;
        Ok(damaged)
    }

    fn reserve(&self) -> PathBuf {
        self.folder.join("reserve")
    }

    /// Reserves [`RESERVE_BYTES`] bytes, or as many as the disk has.
    pub fn hold_reserve(&self) -> io::Result<()> {
        let file = File::options().create(true).truncate(false).write(true).open(self.reserve())?;
        let held = file.metadata()?.len();
        let wanted = RESERVE_BYTES.min(held + self.free()?.saturating_sub(RESERVE_LEAVES_BYTES));
        if wanted > held {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, wanted)?;
        }
        Ok(())
    }

    /// Frees the space that [`Self::hold_reserve`] reserved. Returns how many bytes.
    pub fn release_reserve(&self) -> io::Result<u64> {
        let held = Self::size(&self.reserve());
        match fs::remove_file(self.reserve()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(held),
        }
    }

    /// True when a small file can be written. The free space that the file system reports ignores quotas.
    pub fn has_room(&self) -> bool {
        let path = self.folder.join(PROBE_FILE);
        let written = File::create(&path)
            .and_then(|mut file| file.write_all(&vec![1; PROBE_BYTES]).and_then(|()| file.sync_data()));
        let _ = fs::remove_file(&path);
        !written.is_err_and(|error| durable::is_full(&error))
    }

    /// Records a clean stop of the index.
    pub fn mark_clean(&self, clean: &CleanStopMark) -> io::Result<()> {
        self.write_checked("clean", clean)
    }

    /// The contents of the last snapshots; nothing where that was never written, or is damaged.
    pub fn manifest(&self) -> SnapshotManifest {
        self.read_checked(MANIFEST_FILE).ok().flatten().unwrap_or_default()
    }

    /// Adds a snapshot to the manifest.
    pub fn add_to_manifest(&self, snapshot: SnapshotChanges) -> io::Result<()> {
        let mut manifest = self.manifest();
        manifest.add(snapshot);
        self.write_checked(MANIFEST_FILE, &manifest)
    }

    /// Removes unfinished files of a killed process: of a snapshot, an upload or a small file.
    pub fn remove_leftovers(&self) -> io::Result<()> {
        let freed = snapshot::remove_unfinished(&self.folder)?;
        if freed > 0 {
            tracing::info!(bytes = freed, "the rest of an interrupted snapshot of the feature store is removed");
        }
        for name in [UPLOAD_FILE, PROBE_FILE] {
            match fs::remove_file(self.folder.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        durable::remove_leftovers(&self.folder)
    }

    /// Renames snapshots that were put in the place of others back to their own names. Returns the findings.
    pub fn restore_names(&self) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        for MisplacedSnapshot { path, number } in snapshot::misplaced(&self.folder)? {
            let own = self.folder.join(snapshot::file_name(number));
            let (from, to) = (path.display().to_string(), own.display().to_string());
            if fs::symlink_metadata(&own).is_ok() {
                let aside = self.set_aside(&path, "snapshot")?;
                found.push(format!("{from} is a copy of {to}, and is set aside as {}", aside.display()));
            } else {
                durable::rename(&path, &own)?;
                found.push(format!("{from} is the snapshot of entry {number}, and is now {to}"));
            }
        }
        Ok(found)
    }

    /// Writes a value with a checksum, as one line.
    fn write_checked(&self, name: &str, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_vec(value)?;
        let line = [&checksum(&text)[..], &text].concat();
        durable::replace(&self.folder.join(name), &line)
    }

    /// Reads a file of [`Self::write_checked`]; `None` if it is missing or damaged.
    fn read_checked<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        let content = match fs::read(self.folder.join(name)) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let text = content.split_at_checked(8).filter(|(sum, text)| *sum == checksum(text)).map(|(_, text)| text);
        Ok(text.and_then(|text| serde_json::from_slice(text).ok()))
    }

    /// Reads and removes the record of [`Self::mark_clean`]: from now on the index is in use.
    pub fn take_clean(&self) -> io::Result<Option<CleanStopMark>> {
        let clean = self.read_checked("clean")?;
        match fs::remove_file(self.folder.join("clean")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            removed => removed?,
        }
        durable::sync_folder(&self.folder)?;
        Ok(clean)
    }

    /// The bytes that everything at `path` takes on the disk.
    pub fn size(path: &Path) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
        if !metadata.is_dir() {
            return metadata.blocks() * 512;
        }
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| Self::size(&entry.path())).sum()
    }

    /// The bytes that are free where the store is.
    pub fn free(&self) -> io::Result<u64> {
        let found = rustix::fs::statvfs(&self.folder)?;
        Ok(found.f_bavail * found.f_frsize)
    }
}

fn sealed(sealer: &Sealer, plain: &[u8]) -> io::Result<Vec<u8>> {
    sealer.seal(EncryptionPurpose::FeatureStore, HASH_KEY_ASSOCIATED_DATA, plain).map_err(io::Error::other)
}

fn read_key(bytes: &[u8]) -> Option<HashKey> {
    let (key, sum) = bytes.split_first_chunk::<32>()?;
    (sum == checksum(key)).then(|| HashKey::new(*key))
}

fn checksum(content: &[u8]) -> [u8; 8] {
    let mut sum = [0; 8];
    sum.iter_mut().zip(blake3::hash(content).as_bytes()).for_each(|(sum, byte)| *sum = *byte);
    sum
}
