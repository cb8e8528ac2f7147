//! Answers to `/get-online-features`, written straight from the store's columns.

use std::collections::HashSet;
use std::fmt;

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use serde::ser::{Serialize, SerializeSeq, SerializeStruct, Serializer};

use super::error::FeastError;
use crate::clock;
use crate::features::online::{Cell, FeatureColumn, FieldStatus, OnlineFeatures};
use crate::features::value::Value;

/// Writes the answer: a vector for each join key and each feature, and their names.
pub fn encode_online_features(features: &OnlineFeatures, full_feature_names: bool) -> Result<Vec<u8>, FeastError> {
    let reply = Reply { features, full: full_feature_names };
    if let Some(twice) = reply.duplicate() {
        return Err(FeastError::collision(&twice.to_string(), full_feature_names));
    }
    let cells: usize = features.columns.iter().map(|column| column.cells.len()).sum();
    // About what a number takes with its status and timestamp.
    let mut json = Vec::with_capacity(256 + 64 * cells);
    match serde_json::to_writer(&mut json, &reply) {
        Ok(()) => Ok(json),
        Err(reason) => Err(FeastError::new(500, format!("the answer cannot be written: {reason}"))),
    }
}

#[derive(Clone, Copy)]
struct Reply<'a> {
    features: &'a OnlineFeatures,
    full: bool,
}

impl<'a> Reply<'a> {
    fn names(self) -> impl Iterator<Item = Name<'a>> {
        self.features.columns.iter().map(move |column| Name { column, full: self.full })
    }

    /// A name that two features would have.
    fn duplicate(self) -> Option<Name<'a>> {
        let mut seen = HashSet::with_capacity(self.features.columns.len());
        self.names().find(|name| {
            let feature = &name.column.feature;
            !seen.insert((self.full.then_some(feature.view.id), &**feature.name()))
        })
    }
}

impl Serialize for Reply<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("OnlineFeaturesResponse", 2)?;
        object.serialize_field("results", &Results(self.features))?;
        object.serialize_field("metadata", &Metadata(*self))?;
        object.end()
    }
}

struct Metadata<'a>(Reply<'a>);

impl Serialize for Metadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("OnlineFeaturesMetadata", 1)?;
        object.serialize_field("feature_names", &FeatureNames(self.0))?;
        object.end()
    }
}

struct FeatureNames<'a>(Reply<'a>);

impl Serialize for FeatureNames<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (keys, columns) = (&self.0.features.join_keys, &self.0.features.columns);
        let mut names = serializer.serialize_seq(Some(keys.len() + columns.len()))?;
        keys.iter().try_for_each(|(key, _)| names.serialize_element(key))?;
        self.0.names().try_for_each(|name| names.serialize_element(&name))?;
        names.end()
    }
}

/// The name of a feature in the answer.
struct Name<'a> {
    column: &'a FeatureColumn,
    full: bool,
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let feature = &self.column.feature;
        if self.full {
            write!(f, "{}__", feature.view.name)?;
        }
        f.write_str(feature.name())
    }
}

impl Serialize for Name<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.full { serializer.collect_str(self) } else { serializer.serialize_str(self.column.feature.name()) }
    }
}

struct Results<'a>(&'a OnlineFeatures);

impl Serialize for Results<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (keys, columns) = (&self.0.join_keys, &self.0.columns);
        let mut results = serializer.serialize_seq(Some(keys.len() + columns.len()))?;
        keys.iter().try_for_each(|(_, values)| results.serialize_element(&KeyVector(values)))?;
        columns.iter().try_for_each(|column| results.serialize_element(&FeatureVector(&column.cells)))?;
        results.end()
    }
}

/// A join key of every entity: always present, and of no time.
struct KeyVector<'a>(&'a [serde_json::Value]);

impl Serialize for KeyVector<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("FeatureVector", 3)?;
        object.serialize_field("values", self.0)?;
        object.serialize_field("statuses", &Each(|| self.0.iter().map(|_| FieldStatus::Present.as_str())))?;
        object.serialize_field("event_timestamps", &Timestamps(|| self.0.iter().map(|_| 0)))?;
        object.end()
    }
}

/// A feature of every entity.
struct FeatureVector<'a>(&'a [Cell]);

impl Serialize for FeatureVector<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("FeatureVector", 3)?;
        object.serialize_field("values", &Each(|| self.0.iter().map(|cell| cell.value.as_ref().map(Native))))?;
        object.serialize_field("statuses", &Each(|| self.0.iter().map(|cell| cell.status.as_str())))?;
        object.serialize_field("event_timestamps", &Timestamps(|| self.0.iter().map(|cell| cell.event_us)))?;
        object.end()
    }
}

/// An array of what an iterator gives.
struct Each<F>(F);

impl<I, F> Serialize for Each<F>
where
    I: Iterator<Item: Serialize>,
    F: Fn() -> I,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// An array of moments. Neighbours are often the same: rows are pushed together.
struct Timestamps<F>(F);

impl<I, F> Serialize for Timestamps<F>
where
    I: Iterator<Item = i64>,
    F: Fn() -> I,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut timestamps = serializer.serialize_seq(None)?;
        let mut last = (0, EPOCH.into());
        for event_us in (self.0)() {
            if event_us != last.0 {
                last = (event_us, clock::rfc3339_micros(event_us));
            }
            timestamps.serialize_element(&last.1)?;
        }
        timestamps.end()
    }
}

/// The time of what has none.
const EPOCH: &str = "1970-01-01T00:00:00Z";

/// A value as Feast's server writes it: bytes in base64, timestamps in seconds, single precision as what it is in double
/// precision, and what is not finite by name, as protobuf does in JSON.
struct Native<'a>(&'a Value);

impl Serialize for Native<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Bytes(bytes) => Base64(bytes).serialize(serializer),
            Value::String(text) => serializer.serialize_str(text),
            Value::Int32(number) => serializer.serialize_i32(*number),
            Value::Int64(number) | Value::UnixTimestamp(number) => serializer.serialize_i64(*number),
            Value::Float32(number) => Float(f64::from(*number)).serialize(serializer),
            Value::Float64(number) => Float(*number).serialize(serializer),
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::BytesList(values) => serializer.collect_seq(values.iter().map(|bytes| Base64(bytes))),
            Value::StringList(values) => serializer.collect_seq(values),
            Value::Int32List(values) => serializer.collect_seq(values),
            Value::Int64List(values) | Value::UnixTimestampList(values) => serializer.collect_seq(values),
            Value::Float32List(values) => serializer.collect_seq(values.iter().map(|number| Float(f64::from(*number)))),
            Value::Float64List(values) => serializer.collect_seq(values.iter().copied().map(Float)),
            Value::BoolList(values) => serializer.collect_seq(values),
        }
    }
}

struct Float(f64);

impl Serialize for Float {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() {
            serializer.serialize_f64(self.0)
        } else if self.0.is_nan() {
            serializer.serialize_str("NaN")
        } else {
            serializer.serialize_str(if self.0 > 0.0 { "Infinity" } else { "-Infinity" })
        }
    }
}

struct Base64<'a>(&'a [u8]);

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Base64Display::new(self.0, &STANDARD))
    }
}
