//! The feature values that an answer says were used: `"features": {"VIEW:FEATURE": {...}}`, a list each for values, statuses,
//! event timestamps and sources, with an element for each batch element. Statuses and timestamps are Feast's.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::ser::{SerializeMap, SerializeStruct};
use serde::{Serialize, Serializer};

use crate::clock;
use crate::features::value::Value;
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
        let values: Vec<_> = self.0.iter().map(|cell| cell.value.as_ref().map(Json)).collect();
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

/// A value as Feast writes it: bytes in base64, times as seconds. A number that is not finite is null.
struct Json<'a>(&'a Value);

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Bytes(bytes) => BASE64_STANDARD.encode(bytes).serialize(serializer),
            Value::BytesList(list) => serializer.collect_seq(list.iter().map(|bytes| BASE64_STANDARD.encode(bytes))),
            Value::String(text) => text.serialize(serializer),
            Value::StringList(list) => list.serialize(serializer),
            Value::Int32(number) => number.serialize(serializer),
            Value::Int32List(list) => list.serialize(serializer),
            Value::Int64(number) | Value::UnixTimestamp(number) => number.serialize(serializer),
            Value::Int64List(list) | Value::UnixTimestampList(list) => list.serialize(serializer),
            Value::Float32(number) => number.serialize(serializer),
            Value::Float32List(list) => list.serialize(serializer),
            Value::Float64(number) => number.serialize(serializer),
            Value::Float64List(list) => list.serialize(serializer),
            Value::Bool(value) => value.serialize(serializer),
            Value::BoolList(list) => list.serialize(serializer),
        }
    }
}
