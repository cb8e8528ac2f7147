//! What must hold whatever comes; fed by `tests/it/fuzz.rs` and `fuzz/`.

use serde_json::Value as Json;

use super::catalog::Catalog;
use super::value::{ScalarType, Value, ValueType};
use super::{record, registry};

/// Feeds arbitrary bytes to the reader of declarations: it ends with views or mistakes, and the same text declares the same.
///
/// # Panics
/// When that does not hold, which is a bug.
pub fn fuzz_feature_views(data: &[u8]) {
    registry::fuzz(data);
}

/// Feeds arbitrary bytes to the readers of what is on disk: rows, records and the catalog.
///
/// # Panics
/// When that does not hold, which is a bug.
pub fn fuzz_feature_records(data: &[u8]) {
    record::fuzz(data);
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(catalog) = Catalog::from_json(text)
    {
        assert_eq!(catalog.to_json(), text);
    }
}

/// Feeds arbitrary bytes to the readers of key files, below their seal; how many keys and heads they are.
///
/// # Panics
/// When that does not hold, which is a bug.
pub fn fuzz_feature_keys(data: &[u8]) -> usize {
    super::entity_keys::form::fuzz(data)
}

/// Feeds arbitrary bytes as JSON to every type of value: what is read is read again from what it is written as.
///
/// # Panics
/// When that does not hold, which is a bug.
pub fn fuzz_feature_values(data: &[u8]) {
    let Ok(json) = serde_json::from_slice::<Json>(data) else { return };
    let kinds = ScalarType::ALL.into_iter().flat_map(|kind| [ValueType::Scalar(kind), ValueType::Array(kind)]);
    for kind in kinds {
        let Ok(Some(value)) = Value::from_json(kind, &json) else { continue };
        assert_eq!(value.value_type(), kind, "{json}");
        // JSON and not values: a NaN, which null is in a list of floats, is not equal to itself.
        let again = Value::from_json(kind, &value.to_json()).ok().flatten();
        assert_eq!(again.map(|again| again.to_json()), Some(value.to_json()), "{json}");
    }
}
