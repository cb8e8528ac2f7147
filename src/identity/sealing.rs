//! Encryption at rest, with keys that are derived from the box's master key, one for each purpose.
//!
//! The cipher is AES-256-GCM-SIV (RFC 8452) with a random nonce: unlike GCM it reveals only equality when a nonce
//! repeats, so that a box may encrypt for years with one key. Encrypted bytes name the master key that they need, so
//! that those of an old key can be decrypted while all are encrypted again.
//!
//! A rotation needs no restart: [`Sealer::reload`] changes the keys of every clone at once, and each store with
//! encrypted bytes then encrypts them again ([`Rekey`]). Until then both keys decrypt.

mod folder;
#[cfg(any(test, feature = "fuzzing"))]
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

pub use folder::{DecryptedFolder, EncryptedFolder, EncryptedFolderError, memory_folder, remove_leftovers};
pub use stream::{
    CHUNK_BYTES, EncryptedFileError, EncryptedFileHeader, chunk_ids, chunks, open_chunk, open_stream, seal_chunk,
    seal_stream,
};

/// The first bytes of everything encrypted.
pub const MAGIC: &[u8; 4] = b"LSE1";
const ID_BYTES: usize = 4;
const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;

/// The number of bytes that encryption adds.
pub const OVERHEAD_BYTES: usize = MAGIC.len() + ID_BYTES + NONCE_BYTES + TAG_BYTES;

/// The length of a master key, in bytes.
pub const MASTER_KEY_BYTES: usize = 32;

/// The section `[encryption]` of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EncryptionConfig {
    /// The file with the master key: 32 bytes, or 64 hexadecimal digits. Of several lines of digits, the first is the
    /// current key and the others are the previous ones. `None` encrypts nothing.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub master_key_file: Option<SecretFile>,
    /// Files with the previous master keys, which only decrypt.
    pub old_key_files: Vec<SecretFile>,
}

impl EncryptionConfig {
    /// The key files that users other than their owner may read.
    pub fn exposed(&self) -> impl Iterator<Item = &SecretFile> {
        self.master_key_file.iter().chain(&self.old_key_files).filter(|file| file.is_exposed())
    }

    /// Makes relative paths relative to `root`.
    pub fn resolve(&mut self, root: &Path) {
        self.master_key_file.iter_mut().chain(&mut self.old_key_files).for_each(|file| file.resolve(root));
    }
}

/// The purpose of encrypted bytes. Each has its own keys, so that a file cannot take the place of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EncryptionPurpose {
    /// The signing key of the audit log.
    AuditKey,
    /// A key for tags of the audit log.
    TagKey,
    /// Files of models from updates.
    Model,
    /// The key file of the feature store.
    FeatureKeys,
    /// The feature store's own secrets, and values without an entity.
    FeatureStore,
    /// The private keys of the membership of a fleet.
    Membership,
    /// The key of a job, and with that key its input and its results.
    Jobs,
}

impl EncryptionPurpose {
    const ALL: [Self; 7] = [
        Self::AuditKey,
        Self::TagKey,
        Self::Model,
        Self::FeatureKeys,
        Self::FeatureStore,
        Self::Membership,
        Self::Jobs,
    ];

    /// The context of BLAKE3's key derivation. Never change it: data on disks depends on the derived keys.
    fn context(self) -> &'static str {
        match self {
            Self::AuditKey => "ledge 2026-11 sealing v1 audit key",
            Self::TagKey => "ledge 2026-11 sealing v1 tag key",
            Self::Model => "ledge 2026-11 sealing v1 model",
            Self::FeatureKeys => "ledge 2026-11 sealing v1 feature keys",
            Self::FeatureStore => "ledge 2026-11 sealing v1 feature store",
            Self::Membership => "ledge 2026-12 sealing v1 membership",
            Self::Jobs => "ledge 2026-12 sealing v1 jobs",
        }
    }
}

/// The id of a master key: the first bytes of a hash of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MasterKeyId([u8; ID_BYTES]);

impl fmt::Display for MasterKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for MasterKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterKeyId({self})")
    }
}

/// The reason why the master keys cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum MasterKeyError {
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(
        "{file} holds no master key: expected {MASTER_KEY_BYTES} random bytes, or lines of 64 hexadecimal digits, \
         as `ledge encryption make-key FILE` writes them; a passphrase is not a key"
    )]
    Malformed { file: SecretFile },
    #[error(
        "encryption.old_key_files is set without encryption.master_key_file: old keys only decrypt, so nothing would \
         be encrypted"
    )]
    OnlyOld,
}

/// The reason why bytes cannot be decrypted or encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CipherError {
    #[error("it is not encrypted by Ledge")]
    NotSealed,
    #[error(
        "it is encrypted with the master key {0}, which this box does not have: set encryption.master_key_file or \
         encryption.old_key_files; if that key is lost for good, stop the daemon and move audit/key, audit/tags/*.key, \
         updates and features aside: the next start creates them empty"
    )]
    NoKey(MasterKeyId),
    #[error("it was changed after it was encrypted, or it belongs to another file or purpose")]
    Forged,
    /// The system has no random numbers, or the library failed.
    #[error("it cannot be encrypted: the system returned no random numbers, or the cryptographic library failed")]
    Unsealable,
}

/// Encrypts and decrypts. Clones share the keys, also those that [`Sealer::reload`] loads.
#[derive(Clone, Default)]
pub struct Sealer {
    keys: Arc<ArcSwap<MasterKeys>>,
}

/// The current key first.
type MasterKeys = Vec<Arc<MasterKey>>;

struct MasterKey {
    id: MasterKeyId,
    // The library zeroes their memory when they are dropped.
    derived: Vec<(EncryptionPurpose, LessSafeKey)>,
}

impl MasterKey {
    fn new(secret: &[u8; MASTER_KEY_BYTES]) -> Option<Self> {
        let mut id = [0; ID_BYTES];
        id.copy_from_slice(blake3::derive_key("ledge 2026-11 sealing v1 key id", secret).get(..ID_BYTES)?);
        let derive = |purpose: EncryptionPurpose| {
            let key = Zeroizing::new(blake3::derive_key(purpose.context(), secret));
            Some((purpose, LessSafeKey::new(UnboundKey::new(&AES_256_GCM_SIV, key.as_slice()).ok()?)))
        };
        Some(Self {
            id: MasterKeyId(id),
            derived: EncryptionPurpose::ALL.into_iter().map(derive).collect::<Option<_>>()?,
        })
    }

    fn key(&self, purpose: EncryptionPurpose) -> Option<&LessSafeKey> {
        self.derived.iter().find(|(of, _)| *of == purpose).map(|(_, key)| key)
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ids()).finish()
    }
}

impl Sealer {
    /// A sealer without keys, which neither encrypts nor decrypts.
    pub fn none() -> Self {
        Self::default()
    }

    /// Makes a sealer with the keys of the configuration.
    pub fn load(config: &EncryptionConfig) -> Result<Self, MasterKeyError> {
        Ok(Self { keys: Arc::new(ArcSwap::from_pointee(read(config)?)) })
    }

    /// A sealer with these master keys, the current one first.
    pub fn with_keys(secrets: &[[u8; MASTER_KEY_BYTES]]) -> Self {
        let keys = secrets.iter().filter_map(MasterKey::new).map(Arc::new).collect();
        Self { keys: Arc::new(ArcSwap::from_pointee(keys)) }
    }

    /// Reads the keys of the configuration again, for every clone; true if the current key changed. After an error
    /// nothing has changed. The previous keys of this process go on decrypting until it ends: an old key that is
    /// missing in the configuration does no harm if everything is encrypted again before the end.
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

    /// True if there is a key to encrypt with.
    pub fn is_on(&self) -> bool {
        !self.keys.load().is_empty()
    }

    /// The master key that encrypts.
    pub fn current(&self) -> Option<MasterKeyId> {
        self.keys.load().first().map(|key| key.id)
    }

    /// Every master key that decrypts, the current one first.
    pub fn ids(&self) -> Vec<MasterKeyId> {
        self.keys.load().iter().map(|key| key.id).collect()
    }

    /// True if stored bytes are to be encrypted again: they are plain or under an old key, and encryption is on.
    pub fn is_outdated(&self, bytes: &[u8]) -> bool {
        self.is_on() && Self::key_of(bytes) != self.current()
    }

    /// True for encrypted bytes.
    pub fn is_sealed(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC) && bytes.len() >= OVERHEAD_BYTES
    }

    /// The master key that encrypted bytes need; `None` when they are not encrypted.
    pub fn key_of(bytes: &[u8]) -> Option<MasterKeyId> {
        let id = bytes.get(MAGIC.len()..MAGIC.len() + ID_BYTES)?;
        Self::is_sealed(bytes).then_some(MasterKeyId(id.try_into().ok()?))
    }

    /// Encrypts `plain` for one purpose and one place, which `associated` names. Returns the same bytes when encryption
    /// is off.
    pub fn seal(&self, purpose: EncryptionPurpose, associated: &[u8], plain: &[u8]) -> Result<Vec<u8>, CipherError> {
        let keys = self.keys.load();
        let Some(master) = keys.first() else { return Ok(plain.to_vec()) };
        let key = master.key(purpose).ok_or(CipherError::Unsealable)?;
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(|_| CipherError::Unsealable)?;

        let mut sealed = Vec::with_capacity(plain.len() + OVERHEAD_BYTES);
        sealed.extend_from_slice(MAGIC);
        sealed.extend_from_slice(&master.id.0);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(plain);

        let (_, body) =
            sealed.split_at_mut_checked(MAGIC.len() + ID_BYTES + NONCE_BYTES).ok_or(CipherError::Unsealable)?;
        let tag = key.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(associated), body);
        let tag = tag.map_err(|_| {
            // A part of it may still be plain.
            sealed.zeroize();
            CipherError::Unsealable
        })?;
        sealed.extend_from_slice(tag.as_ref());
        Ok(sealed)
    }

    /// Decrypts bytes of [`Self::seal`] for the same purpose and place. Plain bytes are an error: only the caller knows
    /// whether they are acceptable.
    pub fn open(&self, purpose: EncryptionPurpose, associated: &[u8], sealed: &[u8]) -> Result<Vec<u8>, CipherError> {
        let id = Self::key_of(sealed).ok_or(CipherError::NotSealed)?;
        let keys = self.keys.load();
        let master = keys.iter().find(|key| key.id == id).ok_or(CipherError::NoKey(id))?;
        let key = master.key(purpose).ok_or(CipherError::Unsealable)?;
        let (_, rest) = sealed.split_at_checked(MAGIC.len() + ID_BYTES).ok_or(CipherError::NotSealed)?;
        let (nonce, body) = rest.split_at_checked(NONCE_BYTES).ok_or(CipherError::NotSealed)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| CipherError::NotSealed)?;
        let mut body = body.to_vec();
        let length = key.open_in_place(nonce, Aad::from(associated), &mut body).map_err(|_| CipherError::Forged)?.len();
        body.truncate(length);
        Ok(body)
    }
}

/// A store that can encrypt its content again with another key while it is in use.
pub trait Rekey: Send + Sync {
    /// The name of its content in one or two words, for the log and the audit log.
    fn what(&self) -> &'static str;

    /// Encrypts everything that is plain or under an old key with the current master key. It is called on a thread that
    /// may block, while other threads use the store. When `stop` returns true the process ends, and the rest may wait
    /// for the next start. Completed work stays and is counted in `done`, even after an interruption or an error.
    fn rekey(&self, stop: &dyn Fn() -> bool, done: &mut RekeyCounts) -> Result<(), String>;
}

/// The work of [`Rekey::rekey`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RekeyCounts {
    /// Files or values that were plain.
    pub plain: u64,
    /// Files or values that were under an old key.
    pub old: u64,
}

impl RekeyCounts {
    /// The sum of both.
    pub fn total(self) -> u64 {
        self.plain + self.old
    }
}

impl std::ops::AddAssign for RekeyCounts {
    fn add_assign(&mut self, other: Self) {
        self.plain += other.plain;
        self.old += other.old;
    }
}

/// The number of files or values under each master key; `None` counts the plain ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MasterKeyCounts(pub BTreeMap<Option<MasterKeyId>, u64>);

impl MasterKeyCounts {
    /// Counts one.
    pub fn count(&mut self, key: Option<MasterKeyId>) {
        *self.0.entry(key).or_default() += 1;
    }
}

fn read(config: &EncryptionConfig) -> Result<MasterKeys, MasterKeyError> {
    if config.master_key_file.is_none() && !config.old_key_files.is_empty() {
        return Err(MasterKeyError::OnlyOld);
    }
    let mut keys = MasterKeys::new();
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
pub fn parse(content: &[u8]) -> Option<Zeroizing<Vec<[u8; MASTER_KEY_BYTES]>>> {
    if let Ok(secret) = content.try_into() {
        // Random bytes are practically never text. A text of this length is a passphrase, which can be guessed.
        let is_text = content.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\r' | b'\n'));
        return (!is_text).then(|| Zeroizing::new(vec![secret]));
    }
    let text = std::str::from_utf8(content).ok()?;
    // Allocate enough at once: a vector that grows leaves copies of keys in memory.
    let mut keys = Zeroizing::new(Vec::with_capacity(text.lines().count()));
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        keys.push(digits(line)?);
    }
    (!keys.is_empty()).then_some(keys)
}

fn digits(text: &str) -> Option<[u8; MASTER_KEY_BYTES]> {
    let valid = text.len() == 2 * MASTER_KEY_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut key = [0; MASTER_KEY_BYTES];
    for (at, byte) in key.iter_mut().enumerate().filter(|_| valid) {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    valid.then_some(key)
}

#[cfg(test)]
mod tests;
