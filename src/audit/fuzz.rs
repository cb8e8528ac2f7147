//! What must hold whatever bytes come as parts of a log. The folder `fuzz/` and `tests/it/fuzz.rs` feed it.

use super::key::SignedCheckpoint;
use super::layout::{TilePath, push_entry, whole_entries};
use super::proof::Proof;
use super::record::AuditRecord;

/// The base point of the curve: a key that nobody signs with.
const KEY: &str = "ledge.audit/fuzz+849cae9e+AVhmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZm";

/// Its first byte chooses what the rest is read as; whether it was read as something.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_audit(data: &[u8]) -> bool {
    let Some((kind, bytes)) = data.split_first() else { return false };
    match kind % 5 {
        0 => {
            let Ok(proof) = Proof::parse(bytes) else { return false };
            assert_eq!(Proof::parse(&proof.to_bytes()).ok().as_ref(), Some(&proof));
            assert!(proof.check(KEY).is_err(), "nobody signed it");
            true
        }
        1 => {
            assert!(SignedCheckpoint::open(bytes, KEY).is_err(), "nobody signed it");
            false
        }
        2 => {
            let (entries, rest) = whole_entries(bytes);
            let mut again = Vec::new();
            for entry in &entries {
                assert!(push_entry(&mut again, entry).is_some());
            }
            assert_eq!([again.as_slice(), rest].concat(), bytes);
            rest.is_empty()
        }
        3 => {
            let Ok(record) = AuditRecord::parse(bytes) else { return false };
            assert_eq!(AuditRecord::parse(&record.to_line()), Ok(record));
            true
        }
        _ => {
            let path = String::from_utf8_lossy(bytes);
            let Some(tile) = TilePath::parse(&path) else { return false };
            assert_eq!(tile.path(), path, "a tile has one path");
            true
        }
    }
}
