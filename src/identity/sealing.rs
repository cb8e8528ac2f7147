//! What is sealed at rest: bytes under keys that are derived from the box's master key, one for each purpose.
//!
//! AES-256-GCM-SIV (RFC 8452) with a random nonce: unlike GCM it loses nothing but equality when a nonce comes twice, so
//! that a box may seal for years under one key. Sealed bytes name the master key that they need, so that what was sealed
//! under an old one still opens while everything is sealed anew.
//!
//! A rotation needs no restart: [`Sealer::reload`] changes the keys of every clone at once, and each store that holds
//! sealed bytes seals them anew when it is told ([`Reseal`]). Until then both keys open.

mod folder;
pub mod fuzz;
mod stream;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, Nonce, UnboundKey};
use ledge_base::secret::{SecretError, SecretFile};
use ledge_base::toml_check::{empty_if_none, none_if_empty};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

pub use folder::{FolderError, OpenedFolder, SealedFolder, remove_leftovers};
pub use stream::{CHUNK, Header, StreamError, chunk_ids, chunks, open_chunk, open_stream, seal_chunk, seal_stream};

/// What sealed bytes begin with.
const MAGIC: &[u8; 4] = b"LSE1";
const ID: usize = 4;
const NONCE: usize = 12;
const TAG: usize = 16;

/// The bytes that sealing adds.
pub const OVERHEAD: usize = MAGIC.len() + ID + NONCE + TAG;

/// The length of a master key, in bytes.
pub const KEY: usize = 32;

/// The section `[encryption]` of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EncryptionConfig {
    /// The file with the master key: 32 bytes, or 64 hexadecimal digits. Where it has several lines of digits, the first
    /// is the key and the others are those before it. `None` seals nothing.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub master_key_file: Option<SecretFile>,
    /// Files with the master keys before it, which open what was sealed under them.
    pub old_key_files: Vec<SecretFile>,
}

impl EncryptionConfig {
    /// The key files that others than their owner may read.
    pub fn exposed(&self) -> impl Iterator<Item = &SecretFile> {
        self.master_key_file.iter().chain(&self.old_key_files).filter(|file| file.is_exposed())
    }

    /// Makes relative paths relative to `root`.
    pub fn resolve(&mut self, root: &Path) {
        self.master_key_file.iter_mut().chain(&mut self.old_key_files).for_each(|file| file.resolve(root));
    }
}

/// What bytes are sealed for: each has keys of its own, so that a file is worth nothing in the place of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SealPurpose {
    /// The key that signs the audit log.
    AuditKey,
    /// A key for tags of the audit log.
    TagKey,
    /// Files of models that updates brought.
    Model,
    /// The key file of the feature store.
    FeatureKeys,
    /// The feature store's own secrets and values that belong to no entity.
    FeatureStore,
}

impl SealPurpose {
    const ALL: [Self; 5] = [Self::AuditKey, Self::TagKey, Self::Model, Self::FeatureKeys, Self::FeatureStore];

    /// The context of BLAKE3's key derivation: never changed, since what it derives is on disks.
    fn context(self) -> &'static str {
        match self {
            Self::AuditKey => "ledge 2026-11 sealing v1 audit key",
            Self::TagKey => "ledge 2026-11 sealing v1 tag key",
            Self::Model => "ledge 2026-11 sealing v1 model",
            Self::FeatureKeys => "ledge 2026-11 sealing v1 feature keys",
            Self::FeatureStore => "ledge 2026-11 sealing v1 feature store",
        }
    }
}

/// Which master key: the first bytes of a hash of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; ID]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub enum MasterKeyError {
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(
        "{file} holds no master key: it has to be {KEY} random bytes, or lines of 64 hexadecimal digits, \
         as `ledge encryption make-key FILE` makes it; a passphrase is no key"
    )]
    Malformed { file: SecretFile },
    #[error(
        "encryption.old_key_files is set without encryption.master_key_file: old keys only open, nothing would be sealed"
    )]
    OnlyOld,
}

/// Why sealed bytes do not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("it is not sealed as this box seals")]
    NotSealed,
    #[error(
        "it is sealed under the master key {0}, which this box does not have: set encryption.master_key_file or \
         old_key_files; if that key is lost for good, stop the daemon, and move audit/key, audit/tags/*.key, updates and \
         features aside: what was in them begins anew"
    )]
    NoKey(KeyId),
    #[error("it was changed since it was sealed, or it belongs to something else")]
    Forged,
    /// The system has no random numbers, or the library failed.
    #[error("it cannot be sealed")]
    Unsealable,
}

/// Seals and opens. Clones share the keys, also those that [`Sealer::reload`] brings.
#[derive(Clone, Default)]
pub struct Sealer {
    keys: Arc<ArcSwap<Keys>>,
}

/// The current one first.
type Keys = Vec<Arc<MasterKey>>;

struct MasterKey {
    id: KeyId,
    // The library cleans their memory when they are dropped.
    derived: Vec<(SealPurpose, LessSafeKey)>,
}

impl MasterKey {
    fn new(secret: &[u8; KEY]) -> Option<Self> {
        let mut id = [0; ID];
        id.copy_from_slice(blake3::derive_key("ledge 2026-11 sealing v1 key id", secret).get(..ID)?);
        let derive = |purpose: SealPurpose| {
            let key = Zeroizing::new(blake3::derive_key(purpose.context(), secret));
            Some((purpose, LessSafeKey::new(UnboundKey::new(&AES_256_GCM_SIV, key.as_slice()).ok()?)))
        };
        Some(Self { id: KeyId(id), derived: SealPurpose::ALL.into_iter().map(derive).collect::<Option<_>>()? })
    }

    fn key(&self, purpose: SealPurpose) -> Option<&LessSafeKey> {
        self.derived.iter().find(|(of, _)| *of == purpose).map(|(_, key)| key)
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ids()).finish()
    }
}

impl Sealer {
    /// Seals nothing, and opens nothing that is sealed.
    pub fn none() -> Self {
        Self::default()
    }

    /// With the keys of the configuration, which are read now.
    pub fn load(config: &EncryptionConfig) -> Result<Self, MasterKeyError> {
        Ok(Self { keys: Arc::new(ArcSwap::from_pointee(read(config)?)) })
    }

    /// With these master keys, the current one first.
    pub fn with_keys(secrets: &[[u8; KEY]]) -> Self {
        let keys = secrets.iter().filter_map(MasterKey::new).map(Arc::new).collect();
        Self { keys: Arc::new(ArcSwap::from_pointee(keys)) }
    }

    /// Reads the keys of the configuration again, for every clone; whether another one seals now. With an error nothing
    /// changes. The keys that this process had go on opening until it ends: who forgot to keep the old one as such loses
    /// nothing, as long as everything is sealed anew before the end.
    pub fn reload(&self, config: &EncryptionConfig) -> Result<bool, MasterKeyError> {
        let mut keys = read(config)?;
        let before = self.keys.load_full();
        let is_new = keys.first().map(|key| key.id) != before.first().map(|key| key.id);
        for known in before.iter() {
            if !keys.is_empty() && keys.iter().all(|key| key.id != known.id) {
                keys.push(known.clone());
            }
        }
        self.keys.store(Arc::new(keys));
        Ok(is_new)
    }

    /// Whether anything is sealed.
    pub fn is_on(&self) -> bool {
        !self.keys.load().is_empty()
    }

    /// The master key that seals now.
    pub fn current(&self) -> Option<KeyId> {
        self.keys.load().first().map(|key| key.id)
    }

    /// Every master key that opens, the current one first.
    pub fn ids(&self) -> Vec<KeyId> {
        self.keys.load().iter().map(|key| key.id).collect()
    }

    /// Whether bytes as they lie on the disk are to be sealed anew: they are plain or under an old key, and sealing is on.
    pub fn is_outdated(&self, bytes: &[u8]) -> bool {
        self.is_on() && Self::key_of(bytes) != self.current()
    }

    /// Whether these are sealed bytes.
    pub fn is_sealed(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC) && bytes.len() >= OVERHEAD
    }

    /// Which master key sealed bytes need; `None` when they are not sealed.
    pub fn key_of(bytes: &[u8]) -> Option<KeyId> {
        let id = bytes.get(MAGIC.len()..MAGIC.len() + ID)?;
        Self::is_sealed(bytes).then_some(KeyId(id.try_into().ok()?))
    }

    /// Seals `plain` for one purpose and one place, which `associated` names; the same bytes where sealing is off.
    pub fn seal(&self, purpose: SealPurpose, associated: &[u8], plain: &[u8]) -> Result<Vec<u8>, OpenError> {
        let keys = self.keys.load();
        let Some(master) = keys.first() else { return Ok(plain.to_vec()) };
        let key = master.key(purpose).ok_or(OpenError::Unsealable)?;
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(|_| OpenError::Unsealable)?;
        let mut sealed = Vec::with_capacity(plain.len() + OVERHEAD);
        sealed.extend_from_slice(MAGIC);
        sealed.extend_from_slice(&master.id.0);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(plain);
        let (_, body) = sealed.split_at_mut_checked(MAGIC.len() + ID + NONCE).ok_or(OpenError::Unsealable)?;
        let tag = key.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(associated), body);
        let tag = tag.map_err(|_| {
            // Half of it may be plain still.
            sealed.zeroize();
            OpenError::Unsealable
        })?;
        sealed.extend_from_slice(tag.as_ref());
        Ok(sealed)
    }

    /// Opens what [`Self::seal`] made for the same purpose and place. What was never sealed is an error: whether that is
    /// acceptable only the caller knows.
    pub fn open(&self, purpose: SealPurpose, associated: &[u8], sealed: &[u8]) -> Result<Vec<u8>, OpenError> {
        let id = Self::key_of(sealed).ok_or(OpenError::NotSealed)?;
        let keys = self.keys.load();
        let master = keys.iter().find(|key| key.id == id).ok_or(OpenError::NoKey(id))?;
        let key = master.key(purpose).ok_or(OpenError::Unsealable)?;
        let (_, rest) = sealed.split_at_checked(MAGIC.len() + ID).ok_or(OpenError::NotSealed)?;
        let (nonce, body) = rest.split_at_checked(NONCE).ok_or(OpenError::NotSealed)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| OpenError::NotSealed)?;
        let mut body = body.to_vec();
        let length = key.open_in_place(nonce, Aad::from(associated), &mut body).map_err(|_| OpenError::Forged)?.len();
        body.truncate(length);
        Ok(body)
    }
}

/// A store whose bytes are sealed, and can be sealed anew while it is in use.
pub trait Reseal: Send + Sync {
    /// What it holds, in a word or two: for the log, the audit log and people.
    fn what(&self) -> &'static str;

    /// Seals under the current master key what is plain or under an old one. It is called on a thread that may wait for the
    /// disk, beside whatever else uses the store; `stop` says that the process ends, and the rest may wait for the next
    /// start. What it has done when it is interrupted, or fails, stays done and is counted in `done`.
    fn reseal(&self, stop: &dyn Fn() -> bool, done: &mut Resealed) -> Result<(), String>;
}

/// What [`Reseal::reseal`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resealed {
    /// Files or values that were plain.
    pub plain: u64,
    /// Files or values that were under an old key.
    pub old: u64,
}

impl Resealed {
    /// Both together.
    pub fn total(self) -> u64 {
        self.plain + self.old
    }
}

impl std::ops::AddAssign for Resealed {
    fn add_assign(&mut self, other: Self) {
        self.plain += other.plain;
        self.old += other.old;
    }
}

/// How many files or values are under which master key; `None` counts those that are plain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey(pub BTreeMap<Option<KeyId>, u64>);

impl Survey {
    /// Counts one.
    pub fn count(&mut self, key: Option<KeyId>) {
        *self.0.entry(key).or_default() += 1;
    }
}

fn read(config: &EncryptionConfig) -> Result<Keys, MasterKeyError> {
    if config.master_key_file.is_none() && !config.old_key_files.is_empty() {
        return Err(MasterKeyError::OnlyOld);
    }
    let mut keys = Keys::new();
    for file in config.master_key_file.iter().chain(&config.old_key_files) {
        let malformed = || MasterKeyError::Malformed { file: file.clone() };
        for secret in parse(&file.read()?).ok_or_else(malformed)?.iter() {
            let key = MasterKey::new(secret).ok_or_else(malformed)?;
            if keys.iter().all(|known| known.id != key.id) {
                keys.push(Arc::new(key));
            }
        }
    }
    Ok(keys)
}

/// The master keys in the content of a key file, the current one first: 32 bytes, or lines of 64 hexadecimal digits.
pub fn parse(content: &[u8]) -> Option<Zeroizing<Vec<[u8; KEY]>>> {
    if let Ok(secret) = content.try_into() {
        // Of random bytes none are a text. A text of this length is a passphrase, which can be guessed.
        let is_text = content.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\r' | b'\n'));
        return (!is_text).then(|| Zeroizing::new(vec![secret]));
    }
    let text = std::str::from_utf8(content).ok()?;
    // Enough at once: one that grows leaves copies behind.
    let mut keys = Zeroizing::new(Vec::with_capacity(text.lines().count()));
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        keys.push(digits(line)?);
    }
    (!keys.is_empty()).then_some(keys)
}

fn digits(text: &str) -> Option<[u8; KEY]> {
    let valid = text.len() == 2 * KEY && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut key = [0; KEY];
    for (at, byte) in key.iter_mut().enumerate().filter(|_| valid) {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    valid.then_some(key)
}

#[cfg(test)]
mod tests;
