//! What lies in the store's folder:
//!
//! ```text
//! catalog.json, catalog.copy.json   the numbers of views and fields
//! hash.key                          the secret behind the index keys
//! keys/                             the keys of the entities, where sealing is on
//! erased.json                       hashes of what was erased, so that no backup brings it back
//! journal/                          what was acknowledged since the snapshot
//! snapshot-<seq>.ledge              everything before journal entry <seq>
//! index-<generation>/               the index; only the newest complete one counts
//! clean                             how the index was left at an orderly stop
//! acknowledged, acknowledged.copy   how far pushes were acknowledged
//! reserve                           room on the disk for opening the index where others took the rest
//! *.damaged                         the last of each kind that was set aside
//! lock                              one daemon at a time
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_identity::sealing::{OpenError, SealPurpose, Sealer};
use rustix::fs::FallocateFlags;
use serde::{Deserialize, Serialize};

use super::super::key::HashKey;
use super::super::store::Tally;

/// The form of all that lies there. 2: values may be sealed under keys of their entities, which a version that knows no
/// sealing would take for values. 3: the journal says until when event times were believed, by which a replay decides.
pub const FORM: u32 = 3;

/// How much room is set aside for opening the index on a full disk, in bytes: sled writes when it opens. It needs a
/// hundredth of the index, and what the last moment before a crash had not brought to the disk.
pub const RESERVE: u64 = 16 << 20;

/// What is left to others, and to the index in use, when the reserve is filled up on a disk that is nearly full, in bytes.
const RESERVE_LEAVES: u64 = 2 << 20;

/// A write of so many bytes shows whether there is any room at all.
const PROBE: usize = 64 << 10;

/// The file with the secret behind the index keys.
pub const HASH_KEY_FILE: &str = "hash.key";
/// What that secret is sealed as.
const HASH_KEY: &[u8] = b"feature store: hash key";

/// The store's folder.
#[derive(Debug, Clone)]
pub struct Files {
    folder: PathBuf,
}

/// How the index was left at an orderly stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clean {
    pub generation: u64,
    /// Its last journal entry.
    pub applied: u64,
    pub tally: Tally,
}

impl Files {
    /// In `folder`, which is made.
    pub fn new(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder.join("journal"))?;
        durable::sync_folder(folder)?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of the journal.
    pub fn journal(&self) -> PathBuf {
        self.folder.join("journal")
    }

    /// Makes sure that no other daemon has the store, as long as the file is held.
    pub fn lock(&self) -> io::Result<File> {
        let file = File::options().create(true).truncate(false).write(true).open(self.folder.join("lock"))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(fs::TryLockError::WouldBlock) => Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "another daemon has it open: stop that one, or give each its own features.path",
            )),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// The secret behind the index keys. A damaged one is replaced: records carry their entities, so the index is rebuilt
    /// under the new one. The flag says whether it is new.
    pub fn hash_key(&self, sealer: &Sealer) -> io::Result<(HashKey, bool)> {
        let path = self.folder.join(HASH_KEY_FILE);
        match fs::read(&path) {
            Ok(bytes) => {
                if Sealer::is_sealed(&bytes) {
                    match sealer.open(SealPurpose::FeatureStore, HASH_KEY, &bytes) {
                        Ok(plain) => {
                            if let Some(key) = read_key(&plain) {
                                return Ok((key, false));
                            }
                        }
                        // Nothing is wrong with the file.
                        Err(error @ OpenError::NoKey(_)) => return Err(io::Error::other(error)),
                        Err(_) => {}
                    }
                } else if let Some(key) = read_key(&bytes) {
                    if sealer.is_on() {
                        durable::replace_private(&path, &sealed(sealer, &bytes)?)?;
                    }
                    return Ok((key, false));
                }
                tracing::warn!(file = %path.display(), "the key of the feature index is damaged; it is made anew");
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

    /// Whether the secret behind the index keys is sealed. It never is before the store has keys.
    pub fn is_sealed(&self) -> io::Result<bool> {
        match fs::read(self.folder.join(HASH_KEY_FILE)) {
            Ok(bytes) => Ok(Sealer::is_sealed(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Seals the secret behind the index keys under the current master key.
    pub fn reseal(&self, sealer: &Sealer) -> io::Result<()> {
        let path = self.folder.join(HASH_KEY_FILE);
        let bytes = fs::read(&path)?;
        let plain = sealer.open(SealPurpose::FeatureStore, HASH_KEY, &bytes).map_err(io::Error::other)?;
        durable::replace_private(&path, &sealed(sealer, &plain)?)
    }

    /// The folder of a generation of the index.
    pub fn index(&self, generation: u64) -> PathBuf {
        self.folder.join(format!("index-{generation}"))
    }

    /// The generations there are, newest first.
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

    /// What was set aside, by [`Self::set_aside`] or by the journal.
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

    /// Keeps a damaged file or folder for whoever wants to look at it, and only the last of its kind (`index`, `journal`,
    /// `snapshot`).
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

    /// Removes what was set aside; which.
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

    /// Sets [`RESERVE`] bytes aside, or as many as there are.
    pub fn hold_reserve(&self) -> io::Result<()> {
        let file = File::options().create(true).truncate(false).write(true).open(self.reserve())?;
        let held = file.metadata()?.len();
        let wanted = RESERVE.min(held + self.free()?.saturating_sub(RESERVE_LEAVES));
        if wanted > held {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, wanted)?;
        }
        Ok(())
    }

    /// Gives back what [`Self::hold_reserve`] set aside; how many bytes.
    pub fn release_reserve(&self) -> io::Result<u64> {
        let held = Self::size(&self.reserve());
        match fs::remove_file(self.reserve()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(held),
        }
    }

    /// Whether anything can be written: what the file system says of its room knows nothing of quotas.
    pub fn has_room(&self) -> bool {
        let path = self.folder.join("room.probe");
        let written =
            File::create(&path).and_then(|mut file| file.write_all(&vec![1; PROBE]).and_then(|()| file.sync_data()));
        let _ = fs::remove_file(&path);
        !written.is_err_and(|error| durable::is_full(&error))
    }

    /// Says that the index was closed in order.
    pub fn mark_clean(&self, clean: &Clean) -> io::Result<()> {
        let text = serde_json::to_vec(clean)?;
        let line = [&checksum(&text)[..], &text].concat();
        durable::replace(&self.folder.join("clean"), &line)
    }

    /// What [`Self::mark_clean`] said, once: from now on the index is in use.
    pub fn take_clean(&self) -> io::Result<Option<Clean>> {
        let path = self.folder.join("clean");
        let content = match fs::read(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        fs::remove_file(&path)?;
        durable::sync_folder(&self.folder)?;
        let text = content.split_at_checked(8).filter(|(sum, text)| *sum == checksum(text)).map(|(_, text)| text);
        Ok(text.and_then(|text| serde_json::from_slice(text).ok()))
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
    sealer.seal(SealPurpose::FeatureStore, HASH_KEY, plain).map_err(io::Error::other)
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
