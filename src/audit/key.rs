//! The key that signs the checkpoints of this box's log (Ed25519, C2SP signed-note).

use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::SigningKey;
use signed_note::{Note, StandardSigner, StandardVerifier, Verifier as _, VerifierList};
use tlog_tiles::{Checkpoint, Hash};

use crate::durable;
use crate::names::DeviceName;

/// The file in the folder of the log. Only its owner may read it.
const FILE: &str = "key";

/// The type of an Ed25519 key (C2SP signed-note).
const ED25519: u8 = 1;

/// The key of this box.
pub struct AuditKey {
    /// As C2SP signed-note writes it.
    key: String,
    verifier_key: String,
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file is there and cannot be read, or a new one cannot be written.
    #[error("the audit key {path}: {error}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's words.
        error: io::Error,
    },
    /// The file holds something else.
    #[error("{path} holds no audit key: restore it; without it, the log begins anew with another key once the file is removed", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
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
    /// The key in the folder, else a new one that is kept there; whether it is new. When this returns, it survives a power
    /// cut.
    pub fn load_or_create(folder: &Path, device: &DeviceName) -> Result<(Self, bool), KeyError> {
        let path = folder.join(FILE);
        let name = key_name(device);
        let (seed, is_new) = match std::fs::read(&path) {
            Ok(content) => {
                let seed = parse(&content).ok_or(KeyError::Damaged { path })?;
                (seed, false)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let seed = create(&path).map_err(|error| KeyError::File { path, error })?;
                (seed, true)
            }
            Err(error) => return Err(KeyError::File { path, error }),
        };
        Ok((Self::new(&name, &seed), is_new))
    }

    /// The verifier key of the key in the folder, for one who only looks; `None` when there is no key yet.
    pub fn verifier_key_in(folder: &Path, device: &DeviceName) -> Result<Option<String>, KeyError> {
        let path = folder.join(FILE);
        match std::fs::read(&path) {
            Ok(content) => {
                let seed = parse(&content).ok_or(KeyError::Damaged { path })?;
                Ok(Some(Self::new(&key_name(device), &seed).verifier_key))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(KeyError::File { path, error }),
        }
    }

    fn new(name: &str, seed: &[u8; 32]) -> Self {
        let key = SigningKey::from_bytes(seed);
        let public = key.verifying_key();
        let encoded = STANDARD.encode([&[ED25519], public.as_bytes().as_slice()].concat());
        let id = signed_note::key_id(name, &[&[ED25519], public.as_bytes().as_slice()].concat());
        let private = STANDARD.encode([&[ED25519], seed.as_slice()].concat());
        Self {
            key: format!("PRIVATE+KEY+{name}+{id:08x}+{private}"),
            verifier_key: format!("{name}+{id:08x}+{encoded}"),
        }
    }

    /// What others check this box's checkpoints with: `<name>+<id>+<key>`, as C2SP signed-note has it.
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

/// The verifier key of the same key under another name; `None` when it is no verifier key.
pub(super) fn under_name(verifier_key: &str, name: &str) -> Option<String> {
    let encoded = verifier_key.splitn(3, '+').nth(2)?;
    let id = signed_note::key_id(name, &STANDARD.decode(encoded).ok()?);
    Some(format!("{name}+{id:08x}+{encoded}"))
}

/// The key in a file: 32 bytes in base64.
fn parse(content: &[u8]) -> Option<[u8; 32]> {
    STANDARD.decode(content.trim_ascii()).ok()?.try_into().ok()
}

fn create(path: &Path) -> io::Result<[u8; 32]> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)?;
    durable::replace_private(path, format!("{}\n", STANDARD.encode(seed)).as_bytes())?;
    Ok(seed)
}

/// A signed tree head (C2SP tlog-checkpoint in a C2SP signed-note).
#[derive(Debug, Clone, PartialEq)]
pub struct SignedCheckpoint {
    /// Which log it is of.
    pub origin: String,
    /// How many records the log has.
    pub size: u64,
    /// The root hash of the tree.
    pub root: Hash,
    /// As it is published.
    pub note: Vec<u8>,
}

/// Why a checkpoint does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// It is none.
    #[error("it is no checkpoint: {reason}")]
    Malformed {
        /// In the library's words.
        reason: String,
    },
    /// It is not signed with the key.
    #[error("it is not signed by {key}: {reason}")]
    Signature {
        /// The name of the key.
        key: String,
        /// In the library's words.
        reason: String,
    },
}

impl SignedCheckpoint {
    /// Reads a checkpoint that has to be signed with a key. Other signatures, such as those of witnesses, may be beside it.
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
        let (key, is_new) = AuditKey::load_or_create(folder.path(), &device).unwrap();
        assert!(is_new && key.verifier_key().starts_with("ledge.audit/box-1+"));
        let signed = key.sign(&origin(&device, 1), 7, record_hash(b"a")).unwrap();
        assert_eq!(SignedCheckpoint::open(&signed.note, key.verifier_key()).unwrap(), signed);
        let (again, is_new) = AuditKey::load_or_create(folder.path(), &device).unwrap();
        assert!(!is_new && again.verifier_key() == key.verifier_key());
        let other = tempfile::tempdir().unwrap();
        let (other, _) = AuditKey::load_or_create(other.path(), &device).unwrap();
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
        durable::replace(&folder.path().join(FILE), b"AAAA\n").unwrap();
        assert!(matches!(AuditKey::load_or_create(folder.path(), &device), Err(KeyError::Damaged { .. })));
        assert_eq!(std::fs::read(folder.path().join(FILE)).unwrap(), b"AAAA\n");
    }
}
