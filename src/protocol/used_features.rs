//! The feature values that an answer says were used: `"features": {"VIEW:FEATURE": {...}}`, a list each for values, statuses,
//! event timestamps and sources, with an element for each batch element. Values, statuses and timestamps are as Feast writes them.

use serde::ser::{SerializeMap, SerializeStruct};
use serde::{Serialize, Serializer};

use crate::clock;
use crate::serving::request::{UsedCell, UsedFeature};

/// All of them, in the order of the model's inputs.
#[derive(Debug, Clone, Copy)]
pub(super) struct UsedFeatures<'a>(pub &'a [UsedFeature]);

impl Serialize for UsedFeatures<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for used in self.0 {
            map.serialize_entry(&used.name, &Cells(&used.cells))?;
        }
        map.end()
    }
}

struct Cells<'a>(&'a [UsedCell]);

impl Serialize for Cells<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut cells = serializer.serialize_struct("Cells", 4)?;
        let values: Vec<_> = self.0.iter().map(|cell| cell.value.as_ref()).collect();
        cells.serialize_field("values", &values)?;
        let statuses: Vec<_> = self.0.iter().map(|cell| cell.status.as_str()).collect();
        cells.serialize_field("statuses", &statuses)?;
        let times: Vec<_> = self.0.iter().map(|cell| clock::rfc3339_micros(cell.event_us)).collect();
        cells.serialize_field("event_timestamps", &times)?;
        let sources: Vec<_> = self.0.iter().map(|cell| cell.source.as_str()).collect();
        cells.serialize_field("sources", &sources)?;
        cells.end()
    }
}
