//! The folder of the keys for tags. Where sealing is on, each key is sealed under the name of its own file.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ledge_base::durable;
use ledge_identity::sealing::{OpenError, Rekeyed, SealPurpose, Sealer, Survey};
use ledge_service::audit_event::tag::TagKey;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::TagsError;

const FOLDER: &str = "tags";
const LIST: &str = "list.json";

/// The folder.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    sealer: Sealer,
}

/// A key with its period.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyFile {
    pub period: u32,
    pub begins_ms: u64,
    pub ends_ms: u64,
    /// 32 bytes in base64.
    key: String,
}

impl KeyFile {
    pub fn tag_key(&self) -> TagKey {
        TagKey::new(self.period, decoded(&self.key).unwrap_or_default())
    }
}

fn decoded(key: &str) -> Option<[u8; 32]> {
    STANDARD.decode(key).ok()?.try_into().ok()
}

impl Folder {
    /// The one in the folder `audit`.
    pub fn of(audit: &Path, sealer: &Sealer) -> Self {
        Self { path: audit.join(FOLDER), sealer: sealer.clone() }
    }

    /// The same, which is there after this, without what a killed process left.
    pub fn create(audit: &Path, sealer: &Sealer) -> Result<Self, TagsError> {
        let folder = Self::of(audit, sealer);
        durable::create_folder(&folder.path).map_err(failed(&folder.path))?;
        // A key that is being sealed anew looks like a leftover.
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

    /// Whether a key is there, or what is left of a damaged one: most of it may be whole. What cannot be looked at is.
    pub fn has(&self, period: u32) -> bool {
        !is_absent(&self.key(period)) || !is_absent(&self.aside(period))
    }

    /// Whether a key was set aside because it is damaged.
    pub fn is_aside(&self, period: u32) -> bool {
        is_absent(&self.key(period)) && !is_absent(&self.aside(period))
    }

    /// The periods that have a key, in order.
    pub fn periods(&self) -> Result<Vec<u32>, TagsError> {
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
    pub fn read(&self, period: u32) -> Result<KeyFile, TagsError> {
        let path = self.key(period);
        let content = Zeroizing::new(std::fs::read(&path).map_err(failed(&path))?);
        let plain = self.opened(period, &content)?;
        let parsed: Option<KeyFile> = serde_json::from_slice(&plain).ok();
        let is_whole = |file: &KeyFile| file.period == period && decoded(&file.key).is_some();
        parsed.filter(is_whole).ok_or(TagsError::Damaged { path })
    }

    /// The plain content of a key's file. One whose master key is not here is as good as before once that is back; one
    /// that was changed is damaged.
    fn opened(&self, period: u32, content: &[u8]) -> Result<Zeroizing<Vec<u8>>, TagsError> {
        if !Sealer::is_sealed(content) {
            return Ok(Zeroizing::new(content.to_vec()));
        }
        let opened = self.sealer.open(SealPurpose::TagKey, &sealed_for(period), content).map(Zeroizing::new);
        opened.map_err(|error| match error {
            OpenError::NoKey(_) | OpenError::Unsealable => TagsError::Sealed { path: self.key(period), error },
            OpenError::Forged | OpenError::NotSealed => TagsError::Damaged { path: self.key(period) },
        })
    }

    fn write(&self, period: u32, plain: &[u8]) -> Result<(), TagsError> {
        let path = self.key(period);
        let content = self.sealer.seal(SealPurpose::TagKey, &sealed_for(period), plain);
        let content = content.map_err(|error| TagsError::Sealed { path: path.clone(), error })?;
        durable::replace_private(&path, &content).map_err(failed(&path))
    }

    /// Seals every key under the current master key, where it is not. The first fault is told when all were tried.
    pub fn rekey(&self, done: &mut Rekeyed) -> Result<(), TagsError> {
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
                Ok(()) => *done += Rekeyed { plain: was_plain, old: 1 - was_plain },
                // It is for whoever reads it to set it aside.
                Err(TagsError::Damaged { .. }) => {}
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        fault.map_or(Ok(()), Err)
    }

    /// Under which master key each key is.
    pub fn survey(&self, survey: &mut Survey) -> Result<(), TagsError> {
        for period in self.periods()? {
            let path = self.key(period);
            let content = Zeroizing::new(std::fs::read(&path).map_err(failed(&path))?);
            survey.count(Sealer::key_of(&content));
        }
        Ok(())
    }

    /// Keeps other processes from destroying a key while it is sealed anew, which would bring it back. It ends with the
    /// handle.
    fn lock(&self) -> Result<File, TagsError> {
        let folder = File::open(&self.path).map_err(failed(&self.path))?;
        folder.lock().map_err(failed(&self.path))?;
        Ok(folder)
    }

    /// The key of a period. A damaged one gets another name, so that it stays for whoever can repair it, and is in
    /// nobody's way.
    pub fn read_or_set_aside(&self, period: u32) -> Result<Option<KeyFile>, TagsError> {
        match self.read(period) {
            Err(TagsError::Damaged { path }) => {
                let aside = self.aside(period);
                durable::rename(&path, &aside).map_err(failed(&path))?;
                let aside = aside.display();
                tracing::error!(period, %aside, "a key for tags is damaged: its tags cannot be found any more; it is set aside");
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    /// Makes a key. When this returns, it survives a power cut.
    pub fn make(&self, period: u32, begins_ms: u64, ends_ms: u64) -> Result<KeyFile, TagsError> {
        let path = self.key(period);
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(io::Error::from).map_err(failed(&path))?;
        let file = KeyFile { period, begins_ms, ends_ms, key: STANDARD.encode(key) };
        let plain = Zeroizing::new(serde_json::to_vec(&file).map_err(io::Error::from).map_err(failed(&path))?);
        self.write(period, &plain)?;
        Ok(file)
    }

    /// Overwrites and removes the key of a period, and what was set aside of it; whether there was any.
    pub fn destroy(&self, period: u32) -> Result<bool, TagsError> {
        if is_absent(&self.path) {
            return Ok(false);
        }
        let _alone = self.lock()?;
        let mut any = false;
        for path in [self.key(period), self.aside(period)] {
            match shred(&path) {
                Ok(()) => any = true,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(TagsError::File { path, error }),
            }
        }
        if any {
            durable::sync_folder(&self.path).map_err(failed(&self.path))?;
        }
        Ok(any)
    }

    pub fn read_list<L: DeserializeOwned>(&self) -> Result<Option<L>, TagsError> {
        let path = self.path.join(LIST);
        match std::fs::read(&path) {
            Ok(content) => serde_json::from_slice(&content).map(Some).map_err(|_| TagsError::Damaged { path }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(TagsError::File { path, error }),
        }
    }

    pub fn save_list(&self, list: &impl Serialize) -> Result<(), TagsError> {
        let path = self.path.join(LIST);
        let content = serde_json::to_vec(list).map_err(io::Error::from).map_err(failed(&path))?;
        durable::replace_private(&path, &content).map_err(failed(&path))
    }
}

/// What the key of a period is sealed with beside.
fn sealed_for(period: u32) -> Vec<u8> {
    format!("audit/{FOLDER}/{period}.key").into_bytes()
}

fn is_absent(path: &Path) -> bool {
    matches!(path.symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound)
}

fn shred(path: &Path) -> io::Result<()> {
    // Never through a symbolic link, one that comes in between included: the file behind it would be overwritten, and is no
    // key of ours.
    if path.symlink_metadata()?.is_file() {
        let no_link = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).map_err(io::Error::other)?;
        let mut file: File = OpenOptions::new().write(true).custom_flags(no_link).open(path)?;
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX).min(1 << 20);
        file.write_all(&vec![0; length])?;
        file.sync_all()?;
    }
    std::fs::remove_file(path)
}

fn failed(path: &Path) -> impl Fn(io::Error) -> TagsError + use<> {
    let path = path.to_owned();
    move |error| TagsError::File { path: path.clone(), error }
}
