//! The feature values that an answer reports as used: `"features": {"VIEW:FEATURE": {...}}`, a list each for values,
//! statuses, event timestamps and sources, with an element for each batch element. Values, statuses and timestamps are
//! as Feast writes them.

use ledge_base::clock;
use ledge_features::value::Value;
use ledge_models::serving::request::{UsedCell, UsedFeature};
use schemars::JsonSchema;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// All of them, in the order of the model's inputs.
#[derive(Debug, Clone, Copy)]
pub(super) struct UsedFeatures<'a>(pub &'a [UsedFeature]);

impl Serialize for UsedFeatures<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for used in self.0 {
            map.serialize_entry(&used.name, &UsedFeatureCells::from(used.cells.as_slice()))?;
        }
        map.end()
    }
}

/// Those of one feature, an element for each batch element.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Cells")]
pub(super) struct UsedFeatureCells<'a> {
    /// The values that the model got.
    #[schemars(with = "Vec<Option<serde_json::Value>>")]
    values: Vec<Option<&'a Value>>,
    /// The status of each value, such as `PRESENT`.
    statuses: Vec<&'static str>,
    /// The event timestamp of each value, in RFC 3339.
    event_timestamps: Vec<String>,
    /// The source of each value.
    sources: Vec<&'static str>,
}

impl<'a> From<&'a [UsedCell]> for UsedFeatureCells<'a> {
    fn from(cells: &'a [UsedCell]) -> Self {
        Self {
            values: cells.iter().map(|cell| cell.value.as_ref()).collect(),
            statuses: cells.iter().map(|cell| cell.status.as_str()).collect(),
            event_timestamps: cells.iter().map(|cell| clock::rfc3339_micros(cell.event_us)).collect(),
            sources: cells.iter().map(|cell| cell.source.as_str()).collect(),
        }
    }
}
