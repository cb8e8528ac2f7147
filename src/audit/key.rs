//! The key that signs the checkpoints of this box's log (Ed25519, C2SP signed-note).
//!
//! With a master key, its file is encrypted. The encryption does not depend on the name of the box, so a renamed box
//! keeps its key. The file of another box is of no use here, because its master key differs.

use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::SigningKey;
use ledge_base::durable;
use ledge_base::names::DeviceName;
use ledge_identity::sealing::{CipherError, EncryptionPurpose, MasterKeyCounts, RekeyCounts, Sealer};
use signed_note::{Note, StandardSigner, StandardVerifier, Verifier as _, VerifierList};
use tlog_tiles::{Checkpoint, Hash};
use zeroize::Zeroizing;

/// The file in the folder of the log, readable for its owner only.
const KEY_FILE: &str = "key";

/// The associated data of its encryption.
const ASSOCIATED_DATA: &[u8] = b"audit/key";

/// The type of an Ed25519 key (C2SP signed-note).
const ED25519_TYPE: u8 = 1;

/// The key of this box.
pub struct AuditKey {
    /// The private key in the form of C2SP signed-note.
    key: Zeroizing<String>,
    verifier_key: String,
}

/// Reasons why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum AuditKeyError {
    /// The file exists and cannot be read, or a new one cannot be written.
    #[error("the audit key {path}: {error}", path = path.display())]
    File { path: PathBuf, error: io::Error },
    /// The file is encrypted and cannot be decrypted. No new key is made, because there is one.
    #[error("the audit key {path}: {error}", path = path.display())]
    Sealed { path: PathBuf, error: CipherError },
    #[error("{path} holds no audit key: restore it from a backup, or remove it to begin another log with a new key", path = path.display())]
    Damaged { path: PathBuf },
}

/// The name of the key of a box.
pub fn key_name(device: &DeviceName) -> String {
    format!("ledge.audit/{device}")
}

/// The origin of a log, which is the first line of its checkpoints.
pub fn origin(device: &DeviceName, generation: u32) -> String {
    format!("{}/{generation}", key_name(device))
}

impl AuditKey {
    /// Reads the key in the folder, or makes one; also returns whether it is new. When this returns, the key survives a
    /// power cut.
    pub fn load_or_create(folder: &Path, device: &DeviceName, sealer: &Sealer) -> Result<(Self, bool), AuditKeyError> {
        let name = key_name(device);
        if let Some(seed) = seed_in(folder, sealer)? {
            return Ok((Self::new(&name, &seed), false));
        }
        let path = folder.join(KEY_FILE);
        let mut seed = Zeroizing::new([0; 32]);
        let filled = getrandom::fill(seed.as_mut_slice()).map_err(io::Error::from);
        filled.map_err(|error| AuditKeyError::File { path: path.clone(), error })?;
        write(&path, &seed, sealer)?;
        Ok((Self::new(&name, &seed), true))
    }

    /// The verifier key of the key in the folder; `None` when there is no key yet. Reads only.
    pub fn verifier_key_in(
        folder: &Path,
        device: &DeviceName,
        sealer: &Sealer,
    ) -> Result<Option<String>, AuditKeyError> {
        let seed = seed_in(folder, sealer)?;
        Ok(seed.map(|seed| Self::new(&key_name(device), &seed).verifier_key))
    }

    pub(super) fn new(name: &str, seed: &[u8; 32]) -> Self {
        let key = SigningKey::from_bytes(seed);
        let public = key.verifying_key();
        let encoded = STANDARD.encode([&[ED25519_TYPE], public.as_bytes().as_slice()].concat());
        let id = signed_note::key_id(name, &[&[ED25519_TYPE], public.as_bytes().as_slice()].concat());
        let private = Zeroizing::new([&[ED25519_TYPE], seed.as_slice()].concat());
        let private = Zeroizing::new(STANDARD.encode(&*private));
        Self {
            key: Zeroizing::new(format!("PRIVATE+KEY+{name}+{id:08x}+{}", *private)),
            verifier_key: format!("{name}+{id:08x}+{encoded}"),
        }
    }

    /// The verifier key, with which others check the checkpoints of this box: `<name>+<id>+<key>`, as in C2SP
    /// signed-note.
    pub fn verifier_key(&self) -> &str {
        &self.verifier_key
    }

    /// Signs the head of a log.
    pub fn sign(&self, origin: &str, size: u64, root: Hash) -> Result<SignedCheckpoint, CheckpointError> {
        let malformed = |error: &dyn std::fmt::Display| CheckpointError::Malformed { reason: error.to_string() };
        let signer = StandardSigner::new(&self.key).map_err(|error| malformed(&error))?;
        let text = Checkpoint::new(origin, size, root, "").map_err(|error| malformed(&error))?.to_bytes();
        let mut note = Note::new(&text, &[]).map_err(|error| malformed(&error))?;
        note.add_sigs(&[&signer]).map_err(|error| malformed(&error))?;
        Ok(SignedCheckpoint { origin: origin.to_owned(), size, root, note: note.to_bytes() })
    }
}

/// The verifier key of the same key under another name; `None` when the text is not a verifier key.
pub(super) fn under_name(verifier_key: &str, name: &str) -> Option<String> {
    let encoded = verifier_key.splitn(3, '+').nth(2)?;
    let id = signed_note::key_id(name, &STANDARD.decode(encoded).ok()?);
    Some(format!("{name}+{id:08x}+{encoded}"))
}

/// Encrypts the key in the folder under the current master key, unless it is already. When this returns, that survives
/// a power cut, and no file has the key in plain. Flash memory and file systems that copy on write may keep the old
/// blocks for a while.
pub(super) fn rekey(folder: &Path, sealer: &Sealer) -> Result<RekeyCounts, AuditKeyError> {
    let path = folder.join(KEY_FILE);
    let content = match std::fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(RekeyCounts::default()),
        content => Zeroizing::new(content.map_err(|error| AuditKeyError::File { path: path.clone(), error })?),
    };
    if !sealer.is_outdated(&content) {
        return Ok(RekeyCounts::default());
    }
    let seed = opened(&path, &content, sealer)?;
    write(&path, &seed, sealer)?;
    let was_plain = u64::from(!Sealer::is_sealed(&content));
    Ok(RekeyCounts { plain: was_plain, old: 1 - was_plain })
}

/// Counts the key in the folder under its master key, if there is a key. Reads only.
pub(super) fn survey(folder: &Path, survey: &mut MasterKeyCounts) -> Result<(), AuditKeyError> {
    let path = folder.join(KEY_FILE);
    match std::fs::read(&path) {
        Ok(content) => survey.count(Sealer::key_of(&Zeroizing::new(content))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(AuditKeyError::File { path, error }),
    }
    Ok(())
}

/// The key in the folder, encrypted or not; `None` when there is no file.
fn seed_in(folder: &Path, sealer: &Sealer) -> Result<Option<Zeroizing<[u8; 32]>>, AuditKeyError> {
    let path = folder.join(KEY_FILE);
    match std::fs::read(&path) {
        Ok(content) => opened(&path, &Zeroizing::new(content), sealer).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(AuditKeyError::File { path, error }),
    }
}

fn opened(path: &Path, content: &[u8], sealer: &Sealer) -> Result<Zeroizing<[u8; 32]>, AuditKeyError> {
    let seed = if Sealer::is_sealed(content) {
        let plain = sealer.open(EncryptionPurpose::AuditKey, ASSOCIATED_DATA, content).map(Zeroizing::new);
        parse(&plain.map_err(|error| AuditKeyError::Sealed { path: path.to_owned(), error })?)
    } else {
        parse(content)
    };
    seed.map(Zeroizing::new).ok_or_else(|| AuditKeyError::Damaged { path: path.to_owned() })
}

/// The key in a file: 32 bytes in base64.
fn parse(content: &[u8]) -> Option<[u8; 32]> {
    Zeroizing::new(STANDARD.decode(content.trim_ascii()).ok()?).as_slice().try_into().ok()
}

fn write(path: &Path, seed: &[u8; 32], sealer: &Sealer) -> Result<(), AuditKeyError> {
    let plain = Zeroizing::new(format!("{}\n", STANDARD.encode(seed)));
    let content = sealer.seal(EncryptionPurpose::AuditKey, ASSOCIATED_DATA, plain.as_bytes());
    let content = content.map_err(|error| AuditKeyError::Sealed { path: path.to_owned(), error })?;
    durable::replace_private(path, &content).map_err(|error| AuditKeyError::File { path: path.to_owned(), error })
}

/// A signed tree head (C2SP tlog-checkpoint in a C2SP signed-note).
#[derive(Debug, Clone, PartialEq)]
pub struct SignedCheckpoint {
    /// The origin of its log.
    pub origin: String,
    /// The number of records in the log.
    pub size: u64,
    /// The root hash of the tree.
    pub root: Hash,
    pub note: Vec<u8>,
}

/// Reasons why a checkpoint is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    #[error("not a checkpoint: {reason}")]
    Malformed { reason: String },
    #[error("not signed by {key}: {reason}")]
    Signature {
        /// The name of the key.
        key: String,
        reason: String,
    },
}

impl SignedCheckpoint {
    /// Reads a checkpoint that must be signed with a key. It may have other signatures, such as those of witnesses.
    pub fn open(note: &[u8], verifier_key: &str) -> Result<Self, CheckpointError> {
        let malformed = |error: &dyn std::fmt::Display| CheckpointError::Malformed { reason: error.to_string() };
        let verifier = StandardVerifier::new(verifier_key).map_err(|error| malformed(&error))?;
        let key = verifier.name().to_owned();
        let parsed = Note::from_bytes(note).map_err(|error| malformed(&error))?;
        let known = VerifierList::new(vec![Box::new(verifier)]);
        parsed.verify(&known).map_err(|error| CheckpointError::Signature { key, reason: error.to_string() })?;
        let checkpoint = Checkpoint::from_bytes(parsed.text()).map_err(|error| malformed(&error))?;
        let (origin, size, root) = (checkpoint.origin().to_owned(), checkpoint.size(), *checkpoint.hash());
        Ok(Self { origin, size, root, note: note.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tlog_tiles::record_hash;

    #[test]
    fn a_checkpoint_opens_with_the_key_that_signed_it_and_with_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let device: DeviceName = "box-1".parse().unwrap();
        let (key, is_new) = AuditKey::load_or_create(folder.path(), &device, &Sealer::none()).unwrap();
        assert!(is_new && key.verifier_key().starts_with("ledge.audit/box-1+"));
        let signed = key.sign(&origin(&device, 1), 7, record_hash(b"a")).unwrap();
        assert_eq!(SignedCheckpoint::open(&signed.note, key.verifier_key()).unwrap(), signed);
        let (again, is_new) = AuditKey::load_or_create(folder.path(), &device, &Sealer::none()).unwrap();
        assert!(!is_new && again.verifier_key() == key.verifier_key());
        let other = tempfile::tempdir().unwrap();
        let (other, _) = AuditKey::load_or_create(other.path(), &device, &Sealer::none()).unwrap();
        for wrong in [other.verifier_key(), "box+0+x", ""] {
            assert!(SignedCheckpoint::open(&signed.note, wrong).is_err(), "{wrong}");
        }
        for at in 0..signed.note.len() {
            let mut flipped = signed.note.clone();
            flipped[at] ^= 1;
            assert!(SignedCheckpoint::open(&flipped, key.verifier_key()).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_damaged_key_is_told_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let device: DeviceName = "box-1".parse().unwrap();
        durable::replace(&folder.path().join(KEY_FILE), b"AAAA\n").unwrap();
        assert!(matches!(
            AuditKey::load_or_create(folder.path(), &device, &Sealer::none()),
            Err(AuditKeyError::Damaged { .. })
        ));
        assert_eq!(std::fs::read(folder.path().join(KEY_FILE)).unwrap(), b"AAAA\n");
    }

    #[test]
    fn a_sealed_key_is_the_same_key_and_without_its_master_key_no_other_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let device: DeviceName = "box-1".parse().unwrap();
        let path = folder.path().join(KEY_FILE);
        let (key, _) = AuditKey::load_or_create(folder.path(), &device, &Sealer::none()).unwrap();
        let plain = std::fs::read(&path).unwrap();
        let (old, new) = (Sealer::with_keys(&[[1; 32]]), Sealer::with_keys(&[[2; 32], [1; 32]]));
        assert_eq!(rekey(folder.path(), &Sealer::none()).unwrap(), RekeyCounts::default());
        assert_eq!(rekey(folder.path(), &old).unwrap(), RekeyCounts { plain: 1, old: 0 });
        assert_eq!(rekey(folder.path(), &old).unwrap(), RekeyCounts::default());
        let sealed = std::fs::read(&path).unwrap();
        assert!(!sealed.windows(16).any(|window| plain.windows(16).any(|plain| plain == window)));
        for (wrong, words) in [
            (Sealer::none(), "encryption.master_key_file"),
            (Sealer::with_keys(&[[3; 32]]), "encrypted with the master key"),
        ] {
            let error = AuditKey::load_or_create(folder.path(), &device, &wrong).err().unwrap().to_string();
            assert!(error.contains(words), "{error}");
            assert!(rekey(folder.path(), &Sealer::with_keys(&[[3; 32]])).is_err());
            assert_eq!(std::fs::read(&path).unwrap(), sealed);
        }
        assert_eq!(rekey(folder.path(), &new).unwrap(), RekeyCounts { plain: 0, old: 1 });
        let (again, is_new) = AuditKey::load_or_create(folder.path(), &device, &new).unwrap();
        assert!(!is_new && again.verifier_key() == key.verifier_key());
        let mut found = MasterKeyCounts::default();
        survey(folder.path(), &mut found).unwrap();
        assert_eq!(found.0, [(new.current(), 1)].into());
        // Made while sealing is on, it never was plain.
        let other = tempfile::tempdir().unwrap();
        AuditKey::load_or_create(other.path(), &device, &new).unwrap();
        assert!(Sealer::is_sealed(&std::fs::read(other.path().join(KEY_FILE)).unwrap()));
    }
}
