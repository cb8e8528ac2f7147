//! What is sealed at rest: bytes under keys that are derived from the box's master key, one for each purpose.
//!
//! AES-256-GCM-SIV (RFC 8452) with a random nonce: unlike GCM it loses nothing but equality when a nonce comes twice, so
//! that a box may seal for years under one key. Sealed bytes name the master key that they need, so that what was sealed
//! under an old one still opens while everything is sealed anew.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};

use crate::secret::{SecretError, SecretFile};
use crate::toml_check::{empty_if_none, none_if_empty};

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
    /// The file with the master key: 32 bytes, or 64 hexadecimal digits. `None` seals nothing.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub master_key_file: Option<SecretFile>,
    /// Files with the master keys before it, which open what was sealed under them.
    pub old_key_files: Vec<SecretFile>,
}

impl EncryptionConfig {
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
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyId([u8; ID]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
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
    /// A file cannot be read.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A file holds something else.
    #[error("{file} holds no master key: it has to be {KEY} random bytes, or 64 hexadecimal digits")]
    Malformed {
        /// As configured.
        file: SecretFile,
    },
}

/// Why sealed bytes do not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// They are not sealed bytes.
    #[error("it is not sealed as this box seals")]
    NotSealed,
    /// Their key is not there.
    #[error(
        "it is sealed under the master key {0}, which this box does not have: set encryption.master_key_file or old_key_files"
    )]
    NoKey(KeyId),
    /// They were changed, or belong elsewhere.
    #[error("it was changed since it was sealed, or it belongs to something else")]
    Forged,
    /// The system has no random numbers, or the library failed.
    #[error("it cannot be sealed")]
    Unsealable,
}

/// Seals and opens. Clones share the keys.
#[derive(Clone, Default)]
pub struct Sealer {
    keys: Arc<[MasterKey]>,
}

struct MasterKey {
    id: KeyId,
    derived: Vec<(SealPurpose, LessSafeKey)>,
}

impl MasterKey {
    fn new(secret: &[u8; KEY]) -> Option<Self> {
        let mut id = [0; ID];
        id.copy_from_slice(blake3::derive_key("ledge 2026-11 sealing v1 key id", secret).get(..ID)?);
        let derive = |purpose: SealPurpose| {
            let key = blake3::derive_key(purpose.context(), secret);
            Some((purpose, LessSafeKey::new(UnboundKey::new(&AES_256_GCM_SIV, &key).ok()?)))
        };
        Some(Self { id: KeyId(id), derived: SealPurpose::ALL.into_iter().map(derive).collect::<Option<_>>()? })
    }

    fn key(&self, purpose: SealPurpose) -> Option<&LessSafeKey> {
        self.derived.iter().find(|(of, _)| *of == purpose).map(|(_, key)| key)
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|key| key.id)).finish()
    }
}

impl Sealer {
    /// Seals nothing, and opens nothing that is sealed.
    pub fn none() -> Self {
        Self::default()
    }

    /// With the keys of the configuration, which are read now.
    pub fn load(config: &EncryptionConfig) -> Result<Self, MasterKeyError> {
        let files = config.master_key_file.iter().chain(&config.old_key_files);
        let keys = files.map(|file| {
            let secret = parse(&file.read()?).ok_or_else(|| MasterKeyError::Malformed { file: file.clone() })?;
            MasterKey::new(&secret).ok_or_else(|| MasterKeyError::Malformed { file: file.clone() })
        });
        Ok(Self { keys: keys.collect::<Result<_, _>>()? })
    }

    /// With these master keys, the current one first.
    pub fn with_keys(secrets: &[[u8; KEY]]) -> Self {
        Self { keys: secrets.iter().filter_map(MasterKey::new).collect() }
    }

    /// Whether anything is sealed.
    pub fn is_on(&self) -> bool {
        !self.keys.is_empty()
    }

    /// The master key that seals now.
    pub fn current(&self) -> Option<KeyId> {
        self.keys.first().map(|key| key.id)
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
        let Some(master) = self.keys.first() else { return Ok(plain.to_vec()) };
        let key = master.key(purpose).ok_or(OpenError::Unsealable)?;
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(|_| OpenError::Unsealable)?;
        let mut sealed = Vec::with_capacity(plain.len() + OVERHEAD);
        sealed.extend_from_slice(MAGIC);
        sealed.extend_from_slice(&master.id.0);
        sealed.extend_from_slice(&nonce);
        let mut body = plain.to_vec();
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(associated), &mut body)
            .map_err(|_| OpenError::Unsealable)?;
        sealed.append(&mut body);
        Ok(sealed)
    }

    /// Opens what [`Self::seal`] made for the same purpose and place. What was never sealed is an error: whether that is
    /// acceptable only the caller knows.
    pub fn open(&self, purpose: SealPurpose, associated: &[u8], sealed: &[u8]) -> Result<Vec<u8>, OpenError> {
        let id = Self::key_of(sealed).ok_or(OpenError::NotSealed)?;
        let master = self.keys.iter().find(|key| key.id == id).ok_or(OpenError::NoKey(id))?;
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

fn parse(content: &[u8]) -> Option<[u8; KEY]> {
    if let Ok(secret) = content.try_into() {
        return Some(secret);
    }
    let text = std::str::from_utf8(content).ok()?.trim();
    let digits = text.len() == 2 * KEY && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let byte = |at: usize| u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = if digits { (0..KEY).map(byte).collect() } else { None };
    bytes?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLACE: &[u8] = b"here";

    #[test]
    fn a_rotation_opens_what_the_old_key_sealed_and_seals_under_the_new_one() {
        let old = Sealer::with_keys(&[[1; KEY]]);
        let both = Sealer::with_keys(&[[2; KEY], [1; KEY]]);
        let sealed = old.seal(SealPurpose::Model, PLACE, b"weights").unwrap();
        assert_eq!(both.open(SealPurpose::Model, PLACE, &sealed).unwrap(), b"weights");
        let again = both.seal(SealPurpose::Model, PLACE, b"weights").unwrap();
        assert_eq!(Sealer::key_of(&again), both.current());
        assert_eq!(old.open(SealPurpose::Model, PLACE, &again), Err(OpenError::NoKey(both.current().unwrap())));
    }

    #[test]
    fn what_is_sealed_for_one_place_does_not_open_in_another() {
        let sealer = Sealer::with_keys(&[[1; KEY]]);
        let sealed = sealer.seal(SealPurpose::AuditKey, PLACE, b"seed").unwrap();
        assert_eq!(sealer.open(SealPurpose::AuditKey, b"there", &sealed), Err(OpenError::Forged));
        assert_eq!(sealer.open(SealPurpose::TagKey, PLACE, &sealed), Err(OpenError::Forged));
        assert!(matches!(Sealer::none().open(SealPurpose::AuditKey, PLACE, &sealed), Err(OpenError::NoKey(_))));
        assert_eq!(sealer.open(SealPurpose::AuditKey, PLACE, b"seed"), Err(OpenError::NotSealed));
        assert_eq!(Sealer::none().seal(SealPurpose::AuditKey, PLACE, b"seed").unwrap(), b"seed");
    }

    #[test]
    fn a_master_key_is_bytes_or_digits() {
        assert_eq!(parse(&[7; KEY]), Some([7; KEY]));
        assert_eq!(parse(format!("{}\n", "07".repeat(KEY)).as_bytes()), Some([7; KEY]));
        for bad in [&b""[..], &[7; 31], &[7; 33], b"+7", "é".repeat(32).as_bytes(), "0g".repeat(32).as_bytes()] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn a_changed_byte_anywhere_is_noticed(plain in proptest::collection::vec(any::<u8>(), 0..200), at: prop::sample::Index, bit in 0..8u32) {
            let sealer = Sealer::with_keys(&[[1; KEY]]);
            let mut sealed = sealer.seal(SealPurpose::Model, PLACE, &plain).unwrap();
            prop_assert_eq!(sealed.len(), plain.len() + OVERHEAD);
            prop_assert_eq!(&sealer.open(SealPurpose::Model, PLACE, &sealed).unwrap(), &plain);
            let at = at.index(sealed.len());
            sealed[at] ^= 1u8 << bit;
            prop_assert!(sealer.open(SealPurpose::Model, PLACE, &sealed).is_err());
        }

        #[test]
        fn any_bytes_are_opened_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Sealer::with_keys(&[[1; KEY]]).open(SealPurpose::Model, PLACE, &bytes);
        }
    }
}
