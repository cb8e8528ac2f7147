//! Answers to `/get-online-features`, written straight from the store's columns.

use std::collections::HashSet;
use std::fmt;

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use ledge_base::clock;
use ledge_features::LongFeatureRead;
use ledge_features::online::{FeatureCell, FeatureCells, FieldStatus, FrameColumns, OnlineFeatures};
use ledge_features::value::Value;
use ledge_features::view::{Feature, ViewId};
use serde::ser::{Serialize, SerializeSeq, SerializeStruct, Serializer};

use super::error::FeastError;

/// Writes the answer: a vector for each join key and each feature, and their names.
pub fn encode_online_features(features: &OnlineFeatures, full_feature_names: bool) -> Result<Vec<u8>, FeastError> {
    let reply = FeaturesReply { features, full: full_feature_names };
    if let Some(twice) = reply.duplicate() {
        return Err(FeastError::collision(&twice.to_string(), full_feature_names));
    }
    // An estimate for a number with its status and timestamp.
    let mut json = Vec::with_capacity(256 + 64 * features.cells.count());
    match serde_json::to_writer(&mut json, &reply) {
        Ok(()) => Ok(json),
        Err(reason) => Err(FeastError::new(500, format!("the answer cannot be written: {reason}"))),
    }
}

/// The most bytes of a number in JSON, with its comma.
const JSON_NUMBER_BYTES: usize = 26;

/// An answer of many values, made of slices and written in pieces. Only the values are stored as text; the rest, most
/// of its length, is written while it is sent.
#[derive(Debug)]
pub struct LongFeaturesAnswer {
    metadata: Vec<u8>,
    /// Those of the join keys, then those of the features.
    columns: Vec<LongAnswerColumn>,
    /// The number of join keys.
    keys: usize,
    /// The event times of the entities in each view, in microseconds since the Unix epoch; the first are those of join
    /// keys.
    times: Vec<Vec<i64>>,
}

#[derive(Debug)]
struct LongAnswerColumn {
    /// JSON, with commas between.
    values: Vec<u8>,
    statuses: Vec<FieldStatus>,
    /// The index of the column's times in [`LongFeaturesAnswer::times`].
    times: usize,
    /// True when those times are read from this column.
    brings_times: bool,
}

impl LongFeaturesAnswer {
    /// An answer to `read`, with nothing read yet.
    pub fn new(read: &LongFeatureRead, full_feature_names: bool) -> Result<Self, FeastError> {
        let join_keys: FrameColumns = read.join_keys().map(|(name, _)| (name.clone(), Vec::new())).collect();
        let features = OnlineFeatures { join_keys, features: read.features().to_vec(), cells: FeatureCells::default() };
        let reply = FeaturesReply { features: &features, full: full_feature_names };
        if let Some(twice) = reply.duplicate() {
            return Err(FeastError::collision(&twice.to_string(), full_feature_names));
        }
        let metadata = serde_json::to_vec(&ReplyMetadata(reply)).map_err(|reason| unwritten(&reason))?;

        let key_times = read.join_keys().next().map_or(0, |(_, values)| values.len());
        let mut columns = Vec::new();
        for (_, keys) in read.join_keys() {
            let mut values = serde_json::to_vec(keys).map_err(|reason| unwritten(&reason))?;
            // Without the brackets.
            values.pop();
            values.drain(..1);
            let statuses = vec![FieldStatus::Present; keys.len()];
            columns.push(LongAnswerColumn { values, statuses, times: 0, brings_times: false });
        }
        let keys = columns.len();
        let mut views: Vec<ViewId> = Vec::new();
        for feature in read.features() {
            let known = views.iter().position(|view| *view == feature.view.id);
            let place = known.unwrap_or(views.len());
            let brings_times = known.is_none();
            if brings_times {
                views.push(feature.view.id);
            }
            let statuses = Vec::with_capacity(read.count());
            columns.push(LongAnswerColumn { values: Vec::new(), statuses, times: place + 1, brings_times });
        }
        let mut times = vec![vec![0; key_times]];
        times.extend(views.iter().map(|_| Vec::with_capacity(read.count())));
        Ok(Self { metadata, columns, keys, times })
    }

    /// Adds the features of the next entities.
    pub fn add(&mut self, slice: &FeatureCells) -> Result<(), FeastError> {
        for (feature, column) in self.columns.iter_mut().skip(self.keys).enumerate() {
            let cells = slice.column(feature);
            for cell in cells {
                if !column.statuses.is_empty() {
                    column.values.push(b',');
                }
                serde_json::to_writer(&mut column.values, &cell.value.as_ref().map(FeastValue))
                    .map_err(|reason| unwritten(&reason))?;
                column.statuses.push(cell.status);
            }
            if let Some(times) = self.times.get_mut(column.times).filter(|_| column.brings_times) {
                times.extend(cells.iter().map(|cell| cell.event_us));
            }
        }
        Ok(())
    }

    /// The memory of an answer to `read` in bytes, without the values that are not read yet.
    pub fn bytes_of(read: &LongFeatureRead) -> usize {
        let entities = read.count();
        let views: HashSet<ViewId> = read.features().iter().map(|feature| feature.view.id).collect();
        let text = |key: &serde_json::Value| JSON_NUMBER_BYTES + 2 * key.as_str().map_or(0, str::len);
        let keys: usize = read.join_keys().flat_map(|(_, values)| values).map(text).sum();
        let statuses = (read.join_keys().count() + read.features().len()) * entities;
        keys + statuses + size_of::<i64>() * (1 + views.len()) * entities
    }

    /// The most bytes by which an answer grows by the values of a slice, and those of the slice.
    pub fn bytes_of_values(slice: &FeatureCells) -> usize {
        // Of a text, one byte becomes six at most.
        (size_of::<FeatureCell>() + JSON_NUMBER_BYTES) * slice.count() + 7 * slice.value_bytes()
    }

    /// Frees the memory that was allocated for more values.
    pub fn shrink(&mut self) {
        for column in &mut self.columns {
            column.values.shrink_to_fit();
            column.statuses.shrink_to_fit();
        }
    }

    /// Its memory in bytes.
    pub fn bytes(&self) -> usize {
        let columns = self.columns.iter().map(|column| column.values.capacity() + column.statuses.capacity());
        columns.chain(self.times.iter().map(|times| 8 * times.capacity())).sum()
    }

    /// The text of the answer, in pieces.
    pub fn into_pieces(self) -> LongFeaturesAnswerPieces {
        LongFeaturesAnswerPieces { answer: self, column: 0, part: ReplyPart::Begin, at: 0, is_over: false }
    }
}

fn unwritten(reason: &serde_json::Error) -> FeastError {
    FeastError::new(500, format!("the answer cannot be written: {reason}"))
}

/// The text of a [`LongFeaturesAnswer`], in pieces of about [`PIECE_BYTES`] bytes.
#[derive(Debug)]
pub struct LongFeaturesAnswerPieces {
    answer: LongFeaturesAnswer,
    column: usize,
    part: ReplyPart,
    /// Length of the part that is written.
    at: usize,
    is_over: bool,
}

#[derive(Debug, Clone, Copy)]
enum ReplyPart {
    Begin,
    Values,
    Statuses,
    Timestamps,
}

/// Bytes of a piece: one is written in a fraction of a millisecond.
const PIECE_BYTES: usize = 64 << 10;
/// Number of statuses or timestamps written in one step.
const ELEMENTS_PER_STEP: usize = 1024;

impl Iterator for LongFeaturesAnswerPieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        let mut text = Vec::with_capacity(2 * PIECE_BYTES);
        while text.len() < PIECE_BYTES && !self.is_over {
            self.step(&mut text);
        }
        Some(text.into())
    }
}

impl LongFeaturesAnswerPieces {
    fn step(&mut self, text: &mut Vec<u8>) {
        let LongFeaturesAnswer { metadata, columns, times, .. } = &self.answer;
        let Some(column) = columns.get(self.column) else {
            text.extend_from_slice(b"],\"metadata\":");
            text.extend_from_slice(metadata);
            text.push(b'}');
            self.is_over = true;
            return;
        };

        let begin = self.at;
        let (length, step) = match self.part {
            ReplyPart::Begin => (0, 0),
            ReplyPart::Values => (column.values.len(), PIECE_BYTES),
            ReplyPart::Statuses | ReplyPart::Timestamps => (column.statuses.len(), ELEMENTS_PER_STEP),
        };
        self.at = begin.saturating_add(step).min(length);

        match self.part {
            ReplyPart::Begin => {
                text.extend_from_slice(if self.column == 0 { b"{\"results\":[" } else { b"," });
                text.extend_from_slice(b"{\"values\":[");
            }
            ReplyPart::Values => text.extend_from_slice(column.values.get(begin..self.at).unwrap_or_default()),
            ReplyPart::Statuses => {
                for (place, status) in column.statuses.iter().enumerate().take(self.at).skip(begin) {
                    text.extend_from_slice(if place > 0 { b",\"" } else { b"\"" });
                    text.extend_from_slice(status.as_str().as_bytes());
                    text.push(b'"');
                }
            }
            ReplyPart::Timestamps => {
                let mut last = (0, EPOCH.into());
                let times = times.get(column.times).map_or(&[][..], Vec::as_slice);
                for (place, &event_us) in times.iter().enumerate().take(self.at).skip(begin) {
                    if event_us != last.0 {
                        last = (event_us, clock::rfc3339_micros(event_us));
                    }
                    text.extend_from_slice(if place > 0 { b",\"" } else { b"\"" });
                    text.extend_from_slice(last.1.as_bytes());
                    text.push(b'"');
                }
            }
        }

        if self.at < length {
            return;
        }
        self.at = 0;

        let (next, between): (ReplyPart, &[u8]) = match self.part {
            ReplyPart::Begin => (ReplyPart::Values, b""),
            ReplyPart::Values => (ReplyPart::Statuses, b"],\"statuses\":["),
            ReplyPart::Statuses => (ReplyPart::Timestamps, b"],\"event_timestamps\":["),
            ReplyPart::Timestamps => (ReplyPart::Begin, b"]}"),
        };
        text.extend_from_slice(between);
        if matches!(self.part, ReplyPart::Timestamps) {
            self.column += 1;
        }
        self.part = next;
    }
}

#[derive(Clone, Copy)]
struct FeaturesReply<'a> {
    features: &'a OnlineFeatures,
    full: bool,
}

impl<'a> FeaturesReply<'a> {
    fn names(self) -> impl Iterator<Item = AnsweredFeatureName<'a>> {
        self.features.features.iter().map(move |feature| AnsweredFeatureName { feature, full: self.full })
    }

    /// Returns a name that two features would have.
    fn duplicate(self) -> Option<AnsweredFeatureName<'a>> {
        let mut seen = HashSet::with_capacity(self.features.features.len());
        self.names().find(|name| !seen.insert((self.full.then_some(name.feature.view.id), &**name.feature.name())))
    }
}

impl Serialize for FeaturesReply<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("OnlineFeaturesResponse", 2)?;
        object.serialize_field("results", &ReplyResults(self.features))?;
        object.serialize_field("metadata", &ReplyMetadata(*self))?;
        object.end()
    }
}

struct ReplyMetadata<'a>(FeaturesReply<'a>);

impl Serialize for ReplyMetadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("OnlineFeaturesMetadata", 1)?;
        object.serialize_field("feature_names", &FeatureNames(self.0))?;
        object.end()
    }
}

struct FeatureNames<'a>(FeaturesReply<'a>);

impl Serialize for FeatureNames<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let OnlineFeatures { join_keys: keys, features, .. } = self.0.features;
        let mut names = serializer.serialize_seq(Some(keys.len() + features.len()))?;
        keys.iter().try_for_each(|(key, _)| names.serialize_element(key))?;
        self.0.names().try_for_each(|name| names.serialize_element(&name))?;
        names.end()
    }
}

/// The name of a feature in the answer.
struct AnsweredFeatureName<'a> {
    feature: &'a Feature,
    full: bool,
}

impl fmt::Display for AnsweredFeatureName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.full {
            write!(f, "{}__", self.feature.view.name)?;
        }
        f.write_str(self.feature.name())
    }
}

impl Serialize for AnsweredFeatureName<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.full { serializer.collect_str(self) } else { serializer.serialize_str(self.feature.name()) }
    }
}

struct ReplyResults<'a>(&'a OnlineFeatures);

impl Serialize for ReplyResults<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let OnlineFeatures { join_keys: keys, features, .. } = self.0;
        let mut results = serializer.serialize_seq(Some(keys.len() + features.len()))?;
        keys.iter().try_for_each(|(_, values)| results.serialize_element(&JoinKeyVector(values)))?;
        self.0.columns().try_for_each(|(_, cells)| results.serialize_element(&FeatureVector(cells)))?;
        results.end()
    }
}

/// A join key of every entity: always present, without an event time.
struct JoinKeyVector<'a>(&'a [serde_json::Value]);

impl Serialize for JoinKeyVector<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("FeatureVector", 3)?;
        object.serialize_field("values", self.0)?;
        object
            .serialize_field("statuses", &ArraySerializer(|| self.0.iter().map(|_| FieldStatus::Present.as_str())))?;
        object.serialize_field("event_timestamps", &TimestampsSerializer(|| self.0.iter().map(|_| 0)))?;
        object.end()
    }
}

/// A feature of every entity.
struct FeatureVector<'a>(&'a [FeatureCell]);

impl Serialize for FeatureVector<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("FeatureVector", 3)?;
        object.serialize_field(
            "values",
            &ArraySerializer(|| self.0.iter().map(|cell| cell.value.as_ref().map(FeastValue))),
        )?;
        object.serialize_field("statuses", &ArraySerializer(|| self.0.iter().map(|cell| cell.status.as_str())))?;
        object
            .serialize_field("event_timestamps", &TimestampsSerializer(|| self.0.iter().map(|cell| cell.event_us)))?;
        object.end()
    }
}

/// An array of an iterator's items.
struct ArraySerializer<F>(F);

impl<I, F> Serialize for ArraySerializer<F>
where
    I: Iterator<Item: Serialize>,
    F: Fn() -> I,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// An array of moments. Neighbours are often the same: rows are pushed together.
struct TimestampsSerializer<F>(F);

impl<I, F> Serialize for TimestampsSerializer<F>
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

/// The time of a value without an event time.
const EPOCH: &str = "1970-01-01T00:00:00Z";

/// A value as Feast's server writes it: bytes in base64, timestamps in seconds, single precision as its value in double
/// precision, and numbers that are not finite by name, as protobuf does in JSON.
struct FeastValue<'a>(&'a Value);

impl Serialize for FeastValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Bytes(bytes) => Base64Bytes(bytes).serialize(serializer),
            Value::String(text) => serializer.serialize_str(text),
            Value::Int32(number) => serializer.serialize_i32(*number),
            Value::Int64(number) | Value::UnixTimestamp(number) => serializer.serialize_i64(*number),
            Value::Float32(number) => FeastFloat(f64::from(*number)).serialize(serializer),
            Value::Float64(number) => FeastFloat(*number).serialize(serializer),
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::BytesList(values) => serializer.collect_seq(values.iter().map(|bytes| Base64Bytes(bytes))),
            Value::StringList(values) => serializer.collect_seq(values),
            Value::Int32List(values) => serializer.collect_seq(values),
            Value::Int64List(values) | Value::UnixTimestampList(values) => serializer.collect_seq(values),
            Value::Float32List(values) => {
                serializer.collect_seq(values.iter().map(|number| FeastFloat(f64::from(*number))))
            }
            Value::Float64List(values) => serializer.collect_seq(values.iter().copied().map(FeastFloat)),
            Value::BoolList(values) => serializer.collect_seq(values),
        }
    }
}

struct FeastFloat(f64);

impl Serialize for FeastFloat {
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

struct Base64Bytes<'a>(&'a [u8]);

impl Serialize for Base64Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Base64Display::new(self.0, &STANDARD))
    }
}
