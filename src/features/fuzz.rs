//! Properties that hold for any input; fed by `tests/it/fuzz.rs` and `fuzz/`.

use serde_json::Value as Json;

use super::catalog::ViewCatalog;
use super::engine::{commit_watermark, tombstones};
use super::value::{ScalarType, Value, ValueType};
use super::{profiles, record, registry};

/// Feeds arbitrary bytes to the reader of declarations: it ends with views or mistakes, and the same text gives the
/// same declarations. True when there are no mistakes.
///
/// # Panics
/// When that does not hold, which is a bug.
pub fn fuzz_feature_views(data: &[u8]) -> bool {
    registry::fuzz(data)
}

/// Feeds arbitrary bytes to the readers of rows and records: content that was read is written the same. True when they
/// are valid.
///
/// # Panics
/// When that does not hold, which is a bug.
pub fn fuzz_feature_records(data: &[u8]) -> bool {
    record::fuzz(data)
}

/// Feeds arbitrary bytes to the reader of the catalog, as the whole file and as the content behind a valid checksum:
/// only the exact bytes that are written of a catalog are accepted. True when they are one.
///
/// # Panics
/// When that does not hold, which is a bug.
pub fn fuzz_feature_catalog(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let sum = blake3::hash(data).to_hex();
    let below = format!(r#"{{"format":1,"blake3":"{sum}","catalog":{text}}}"#);
    let mut accepted = false;
    for text in [text, &below] {
        if let Ok(catalog) = ViewCatalog::from_json(text) {
            assert_eq!(catalog.to_json(), text);
            accepted = true;
        }
    }
    accepted
}

/// Feeds arbitrary bytes to the readers of decrypted key files; true when there are keys or a head in them.
///
/// # Panics
/// When that does not hold, which is a bug.
pub fn fuzz_feature_keys(data: &[u8]) -> bool {
    super::entity_keys::form::fuzz(data) > 0
}

/// Feeds arbitrary bytes as JSON to every type of value: a value is the same after it was written and read again. True
/// when it is a value of some type.
///
/// # Panics
/// When that does not hold, which is a bug.
pub fn fuzz_feature_values(data: &[u8]) -> bool {
    let Ok(json) = serde_json::from_slice::<Json>(data) else { return false };
    let mut accepted = false;
    let kinds = ScalarType::ALL.into_iter().flat_map(|kind| [ValueType::Scalar(kind), ValueType::Array(kind)]);
    for kind in kinds {
        let Ok(Some(value)) = Value::from_json(kind, &json) else { continue };
        accepted = true;
        assert_eq!(value.value_type(), kind, "{json}");
        // JSON and not values: a NaN, which null is in a list of floats, is not equal to itself.
        let again = Value::from_json(kind, &value.to_json()).ok().flatten();
        assert_eq!(again.map(|again| again.to_json()), Some(value.to_json()), "{json}");
    }
    accepted
}

/// Feeds arbitrary bytes to the reader of the position of the last acknowledged push; true when they are valid.
///
/// When accepted bytes differ from what is written of them, which is a bug.
pub fn fuzz_acknowledged(data: &[u8]) -> bool {
    commit_watermark::fuzz(data)
}

/// Feeds arbitrary bytes to the reader of the decrypted tombstones; true when they are valid.
///
/// # Panics
/// When it is not the same after it was written and read again, which is a bug.
pub fn fuzz_erased_entities(data: &[u8]) -> bool {
    tombstones::fuzz(data)
}

/// Feeds arbitrary bytes to the readers of the profiles of entities; true when one is valid.
///
/// # Panics
/// When it is not the same after it was written and read again, which is a bug.
pub fn fuzz_entity_profiles(data: &[u8]) -> bool {
    profiles::fuzz(data)
}

/// A valid input of [`fuzz_entity_profiles`].
pub fn entity_profiles_seed() -> Vec<u8> {
    profiles::example_file()
}
