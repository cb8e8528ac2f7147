//! The folder of the keys for tags. With a master key, each key is encrypted for the name of its file.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ledge_base::durable;
use ledge_identity::sealing::{CipherError, EncryptionPurpose, MasterKeyCounts, RekeyCounts, Sealer};
use ledge_service::audit_event::tag::TagKey;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::TagKeysError;

const TAGS_FOLDER: &str = "tags";
const LIST_FILE: &str = "list.json";

/// The folder.
#[derive(Debug)]
pub(super) struct TagKeyFolder {
    path: PathBuf,
    sealer: Sealer,
}

/// A key with its period.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TagKeyFile {
    pub period: u32,
    pub begins_ms: u64,
    pub ends_ms: u64,
    /// 32 bytes in base64.
    key: String,
}

impl TagKeyFile {
    pub fn tag_key(&self) -> TagKey {
        TagKey::new(self.period, decoded(&self.key).unwrap_or_default())
    }
}

fn decoded(key: &str) -> Option<[u8; 32]> {
    STANDARD.decode(key).ok()?.try_into().ok()
}

impl TagKeyFolder {
    /// The folder in the folder `audit`.
    pub fn of(audit: &Path, sealer: &Sealer) -> Self {
        Self { path: audit.join(TAGS_FOLDER), sealer: sealer.clone() }
    }

    /// The same, created if necessary, and without the leftovers of a killed process.
    pub fn create(audit: &Path, sealer: &Sealer) -> Result<Self, TagKeysError> {
        let folder = Self::of(audit, sealer);
        durable::create_folder(&folder.path).map_err(failed(&folder.path))?;
        // A key that is being encrypted again looks like a leftover.
        let alone = folder.lock()?;
        durable::remove_leftovers(&folder.path).map_err(failed(&folder.path))?;
        drop(alone);
        Ok(folder)
    }

    fn key(&self, period: u32) -> PathBuf {
        self.path.join(format!("{period}.key"))
    }

    fn aside(&self, period: u32) -> PathBuf {
        self.path.join(format!("{period}.key.damaged"))
    }

    /// Returns true if there is a key, or the file of a damaged one, most of which may be whole. A file that cannot be
    /// examined counts as present.
    pub fn has(&self, period: u32) -> bool {
        !is_absent(&self.key(period)) || !is_absent(&self.aside(period))
    }

    /// Returns true if a key was set aside because it is damaged.
    pub fn is_aside(&self, period: u32) -> bool {
        is_absent(&self.key(period)) && !is_absent(&self.aside(period))
    }

    /// The periods that have a key, in order.
    pub fn periods(&self) -> Result<Vec<u32>, TagKeysError> {
        let listed = || -> io::Result<Vec<u32>> {
            let mut periods = Vec::new();
            for entry in std::fs::read_dir(&self.path)? {
                let name = entry?.file_name();
                let number = name.to_str().and_then(|name| name.strip_suffix(".key"));
                let period = number.and_then(|number| number.parse::<u32>().ok().filter(|it| it.to_string() == number));
                periods.extend(period);
            }
            periods.sort_unstable();
            Ok(periods)
        };
        match listed() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            listed => listed.map_err(failed(&self.path)),
        }
    }

    /// The key of a period.
    pub fn read(&self, period: u32) -> Result<TagKeyFile, TagKeysError> {
        let path = self.key(period);
        let content = Zeroizing::new(std::fs::read(&path).map_err(failed(&path))?);
        let plain = self.opened(period, &content)?;
        let parsed: Option<TagKeyFile> = serde_json::from_slice(&plain).ok();
        let is_whole = |file: &TagKeyFile| file.period == period && decoded(&file.key).is_some();
        parsed.filter(is_whole).ok_or(TagKeysError::Damaged { path })
    }

    /// The decrypted content of the file of a key. A file that was changed is damaged; one without its master key is
    /// not: it can be read when the master key is back.
    fn opened(&self, period: u32, content: &[u8]) -> Result<Zeroizing<Vec<u8>>, TagKeysError> {
        if !Sealer::is_sealed(content) {
            return Ok(Zeroizing::new(content.to_vec()));
        }
        let opened = self.sealer.open(EncryptionPurpose::TagKey, &associated_data(period), content).map(Zeroizing::new);
        opened.map_err(|error| match error {
            CipherError::NoKey(_) | CipherError::Unsealable => TagKeysError::Sealed { path: self.key(period), error },
            CipherError::Forged | CipherError::NotSealed => TagKeysError::Damaged { path: self.key(period) },
        })
    }

    fn write(&self, period: u32, plain: &[u8]) -> Result<(), TagKeysError> {
        let path = self.key(period);
        let content = self.sealer.seal(EncryptionPurpose::TagKey, &associated_data(period), plain);
        let content = content.map_err(|error| TagKeysError::Sealed { path: path.clone(), error })?;
        durable::replace_private(&path, &content).map_err(failed(&path))
    }

    /// Encrypts every key under the current master key, unless it is already. Tries all, and returns the first error.
    pub fn rekey(&self, done: &mut RekeyCounts) -> Result<(), TagKeysError> {
        let mut fault = None;
        for period in self.periods()? {
            let _alone = self.lock()?;
            let path = self.key(period);
            let content = match std::fs::read(&path) {
                // Destroyed since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                content => Zeroizing::new(content.map_err(failed(&path))?),
            };
            if !self.sealer.is_outdated(&content) {
                continue;
            }

            let was_plain = u64::from(!Sealer::is_sealed(&content));
            match self.opened(period, &content).and_then(|plain| self.write(period, &plain)) {
                Ok(()) => *done += RekeyCounts { plain: was_plain, old: 1 - was_plain },
                // Reading sets it aside.
                Err(TagKeysError::Damaged { .. }) => {}
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        fault.map_or(Ok(()), Err)
    }

    /// Counts the keys by the master key that they are encrypted under.
    pub fn survey(&self, survey: &mut MasterKeyCounts) -> Result<(), TagKeysError> {
        for period in self.periods()? {
            let path = self.key(period);
            let content = Zeroizing::new(std::fs::read(&path).map_err(failed(&path))?);
            survey.count(Sealer::key_of(&content));
        }
        Ok(())
    }

    /// Keeps other processes from destroying a key while it is encrypted again, which would bring it back. Dropping the
    /// handle releases the lock.
    fn lock(&self) -> Result<File, TagKeysError> {
        let folder = File::open(&self.path).map_err(failed(&self.path))?;
        folder.lock().map_err(failed(&self.path))?;
        Ok(folder)
    }

    /// The key of a period. A damaged file is renamed, so that it is kept for a repair and is not read again.
    pub fn read_or_set_aside(&self, period: u32) -> Result<Option<TagKeyFile>, TagKeysError> {
        match self.read(period) {
            Err(TagKeysError::Damaged { path }) => {
                let aside = self.aside(period);
                durable::rename(&path, &aside).map_err(failed(&path))?;
                let aside = aside.display();
                tracing::error!(period, %aside, "a key for tags is damaged and is set aside: its tags can no longer be resolved");
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    /// Makes a key. When this returns, it survives a power cut.
    pub fn make(&self, period: u32, begins_ms: u64, ends_ms: u64) -> Result<TagKeyFile, TagKeysError> {
        let path = self.key(period);
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(io::Error::from).map_err(failed(&path))?;
        let file = TagKeyFile { period, begins_ms, ends_ms, key: STANDARD.encode(key) };
        let plain = Zeroizing::new(serde_json::to_vec(&file).map_err(io::Error::from).map_err(failed(&path))?);
        self.write(period, &plain)?;
        Ok(file)
    }

    /// Overwrites and removes the key of a period, also one that was set aside. Returns whether there was one.
    pub fn destroy(&self, period: u32) -> Result<bool, TagKeysError> {
        if is_absent(&self.path) {
            return Ok(false);
        }
        let _alone = self.lock()?;
        let mut any = false;
        for path in [self.key(period), self.aside(period)] {
            match shred(&path) {
                Ok(()) => any = true,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(TagKeysError::File { path, error }),
            }
        }
        if any {
            durable::sync_folder(&self.path).map_err(failed(&self.path))?;
        }
        Ok(any)
    }

    pub fn read_list<L: DeserializeOwned>(&self) -> Result<Option<L>, TagKeysError> {
        let path = self.path.join(LIST_FILE);
        match std::fs::read(&path) {
            Ok(content) => serde_json::from_slice(&content).map(Some).map_err(|_| TagKeysError::Damaged { path }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(TagKeysError::File { path, error }),
        }
    }

    pub fn save_list(&self, list: &impl Serialize) -> Result<(), TagKeysError> {
        let path = self.path.join(LIST_FILE);
        let content = serde_json::to_vec(list).map_err(io::Error::from).map_err(failed(&path))?;
        durable::replace_private(&path, &content).map_err(failed(&path))
    }
}

/// The associated data of the encryption of a key.
fn associated_data(period: u32) -> Vec<u8> {
    format!("audit/{TAGS_FOLDER}/{period}.key").into_bytes()
}

fn is_absent(path: &Path) -> bool {
    matches!(path.symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound)
}

fn shred(path: &Path) -> io::Result<()> {
    // Not through a symbolic link, even one that is put there meanwhile: it would overwrite a file that is not a key.
    if path.symlink_metadata()?.is_file() {
        let no_link = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).map_err(io::Error::other)?;
        let mut file: File = OpenOptions::new().write(true).custom_flags(no_link).open(path)?;
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX).min(1 << 20);
        file.write_all(&vec![0; length])?;
        file.sync_all()?;
    }
    std::fs::remove_file(path)
}

fn failed(path: &Path) -> impl Fn(io::Error) -> TagKeysError + use<> {
    let path = path.to_owned();
    move |error| TagKeysError::File { path: path.clone(), error }
}
