//! What must hold whatever bytes come as metadata. The folder `fuzz/` and `tests/it/fuzz.rs` feed it.

use sigstore_tuf::{Metadata, Root, Snapshot, Targets, Timestamp, TrustedMetadataSet};

use super::{store, time};

/// Its first byte chooses what the rest is read as.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_metadata(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 5 {
        0 => drop(Metadata::<Root>::from_slice(bytes)),
        1 => {
            if let Ok(timestamp) = Metadata::<Timestamp>::from_slice(bytes) {
                let _ = time::signed_at_ms(timestamp.signed());
            }
        }
        2 => drop(Metadata::<Snapshot>::from_slice(bytes)),
        3 => {
            let Ok(targets) = Metadata::<Targets>::from_slice(bytes) else { return };
            for role in targets.signed().delegations.iter().flat_map(|delegations| &delegations.roles) {
                let _ = role.matches_path("models/minilm/2/model.onnx");
            }
        }
        _ => {
            // Nothing that was not written is read as what was.
            if let Ok(files) = store::decode(bytes) {
                assert!(!files.is_empty());
            }
        }
    }
    // Nobody signed it.
    assert!(TrustedMetadataSet::from_root(bytes).is_err());
}
