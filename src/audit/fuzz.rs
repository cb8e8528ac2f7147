//! Properties that must hold for any bytes in place of a file of a log, such as an answer of the platform or a damaged
//! file. The folder `fuzz/` and `tests/it/fuzz.rs` run them.

use std::sync::LazyLock;

use ledge_service::audit_event::erasure::ErasureStatement;
use tlog_tiles::{Hash, node_hash, record_hash};

use super::certificate::ErasureCertificate;
use super::key::{AuditKey, SignedCheckpoint};
use super::layout::{TilePath, entries, push_entry, whole_entries};
use super::proof::InclusionProof;
use super::record::AuditRecord;

/// A log of two records, the proof of the second, and the key that signed it. The key is public, and signs nothing
/// else.
struct GenuineLog {
    key: AuditKey,
    checkpoint: SignedCheckpoint,
    proof: InclusionProof,
}

static GENUINE: LazyLock<GenuineLog> = LazyLock::new(|| {
    let record =
        br#"{"v":1,"seq":1,"ts":"2026-01-01T00:00:00Z","actor":{"kind":"local"},"event":{"action":"stopped"}}"#;
    let first = record_hash(b"the record before it");
    let key = AuditKey::new("ledge.audit/box-1", &[7; 32]);
    let checkpoint = key.sign("ledge.audit/box-1/1", 2, node_hash(first, record_hash(record)));
    let checkpoint = checkpoint.unwrap_or_else(|error| unreachable!("{error}"));
    let proof =
        InclusionProof { record: record.to_vec(), index: 1, hashes: vec![first], checkpoint: checkpoint.note.clone() };
    GenuineLog { key, checkpoint, proof }
});

/// A checkpoint that is signed.
pub fn audit_checkpoint_seed() -> Vec<u8> {
    GENUINE.checkpoint.note.clone()
}

/// A proof that holds.
pub fn audit_proof_seed() -> Vec<u8> {
    GENUINE.proof.to_bytes()
}

/// A certificate of erasure that is valid.
pub fn audit_certificate_seed() -> Vec<u8> {
    let view = r#"{"name":"v","records":1,"earliest":"2026-01-01T00:00:00Z","latest":"2026-01-01T00:00:00Z"}"#;
    let (salt, hash) = ("00".repeat(32), "11".repeat(32));
    let statement = format!(
        r#"{{"form":"ledge.erasure/1","salt":"{salt}","entity_sha256":"{hash}","records":1,"feature_views":[{view}]}}"#
    );
    let record = format!(
        r#"{{"v":1,"seq":0,"ts":"2026-01-01T00:00:00Z","actor":{{"kind":"local"}},"event":{{"action":"feature_entity_erased","records":1,"views":1,"statement":"{}"}}}}"#,
        ErasureStatement::hash_of(&statement)
    );
    let record = record.into_bytes();
    let checkpoint = GENUINE.key.sign("ledge.audit/box-1/1", 1, record_hash(&record));
    let checkpoint = checkpoint.unwrap_or_else(|error| unreachable!("{error}")).note;
    let proof = InclusionProof { record, index: 0, hashes: Vec::new(), checkpoint }.to_bytes();
    let proof = String::from_utf8_lossy(&proof).into_owned();
    ErasureCertificate::new(statement, proof, GENUINE.key.verifier_key().to_owned()).to_bytes()
}

/// Reads a bundle of records; true when it is whole. Written again it has the same bytes, and a cut one keeps its whole
/// records.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_audit_bundle(data: &[u8]) -> bool {
    let (whole, rest) = whole_entries(data);
    assert_eq!(whole.iter().map(|entry| entry.len() + 2).sum::<usize>() + rest.len(), data.len());
    let Ok(found) = entries(data) else { return false };
    assert!(rest.is_empty() && found == whole);
    let mut again = Vec::new();
    for entry in found {
        assert!(push_entry(&mut again, entry).is_some());
    }
    assert_eq!(again, data);
    true
}

/// Reads a record; true when it is one. Written and read again it is the same.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_audit_record(data: &[u8]) -> bool {
    let Ok(record) = AuditRecord::parse(data) else { return false };
    assert_eq!(AuditRecord::parse(&record.to_line()).as_ref(), Ok(&record));
    true
}

/// Reads the path of a tile; true when it is one. A path has one form, and does not leave its folder.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_audit_path(data: &[u8]) -> bool {
    let Some((path, tile)) = std::str::from_utf8(data).ok().and_then(|path| Some((path, TilePath::parse(path)?)))
    else {
        return false;
    };
    assert!(tile.path() == path && path.starts_with("tile/") && !path.contains(".."), "{path}");
    true
}

/// Reads a checkpoint; true when it is signed. Its content is that which was signed.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_audit_checkpoint(data: &[u8]) -> bool {
    let Ok(opened) = SignedCheckpoint::open(data, GENUINE.key.verifier_key()) else { return false };
    assert_eq!(signed(&opened), signed(&GENUINE.checkpoint));
    true
}

fn signed(SignedCheckpoint { origin, size, root, .. }: &SignedCheckpoint) -> (&str, u64, Hash) {
    (origin, *size, *root)
}

/// Reads a proof; true when it has the form of one. It is valid only for the record that is in the log, in its place.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_audit_proof(data: &[u8]) -> bool {
    let Ok(proof) = InclusionProof::parse(data) else { return false };
    assert_eq!(InclusionProof::parse(&proof.to_bytes()).ok().as_ref(), Some(&proof));
    let genuine = &GENUINE.proof;
    let is_genuine = (&proof.record, proof.index, &proof.hashes) == (&genuine.record, 1, &genuine.hashes)
        && SignedCheckpoint::open(&proof.checkpoint, GENUINE.key.verifier_key()).is_ok();
    assert_eq!(proof.check(GENUINE.key.verifier_key()).is_ok(), is_genuine);
    true
}

/// Reads a certificate of erasure; true when it has the form of one. Written again it has the same bytes, and it is valid
/// only as it was made.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_audit_certificate(data: &[u8]) -> bool {
    let Ok(certificate) = ErasureCertificate::parse(data) else { return false };
    assert_eq!(certificate.to_bytes(), data);
    let is_genuine = data == audit_certificate_seed();
    assert_eq!(certificate.check(GENUINE.key.verifier_key()).is_ok(), is_genuine);
    true
}
