//! What must hold whatever bytes come as a file of a log: one that the platform answers with, or that a disk damaged. The
//! folder `fuzz/` and `tests/it/fuzz.rs` feed it.

use super::key::SignedCheckpoint;
use super::layout::{TilePath, entries, push_entry, whole_entries};
use super::proof::Proof;
use super::record::AuditRecord;

/// A verifier key whose private key nobody has.
const VERIFIER_KEY: &str = "ledge.audit/box-1+7ab8d4f4+AW4bPxCTKfTRFXBCVBvGjIwDyGYtLyVLVlqLIcYrGtLo";

/// Its first byte chooses what the rest is read as.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_audit_files(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 4 {
        0 => {
            let (whole, rest) = whole_entries(bytes);
            assert_eq!(whole.iter().map(|entry| entry.len() + 2).sum::<usize>() + rest.len(), bytes.len());
            if let Ok(found) = entries(bytes) {
                let mut again = Vec::new();
                for entry in found {
                    assert!(push_entry(&mut again, entry).is_some());
                }
                assert_eq!(again, bytes);
            }
        }
        1 => {
            if let Ok(record) = AuditRecord::parse(bytes) {
                assert_eq!(AuditRecord::parse(&record.to_line()).as_ref(), Ok(&record));
            }
        }
        2 => {
            let path = String::from_utf8_lossy(bytes);
            if let Some(tile) = TilePath::parse(&path) {
                assert!(tile.path() == path && !path.contains(".."));
            }
        }
        // Nobody signed it.
        _ => assert!(SignedCheckpoint::open(bytes, VERIFIER_KEY).is_err()),
    }
}

/// Reads a proof; whether it is one in form.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_audit_proof(data: &[u8]) -> bool {
    let Ok(proof) = Proof::parse(data) else { return false };
    assert_eq!(Proof::parse(&proof.to_bytes()).ok().as_ref(), Some(&proof));
    assert!(proof.check(VERIFIER_KEY).is_err(), "nobody signed it");
    true
}
