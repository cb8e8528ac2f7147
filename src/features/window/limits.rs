//! The needs of a view's aggregations: the steps of each column, the number of steps, and the most bytes.

use std::time::Duration;

use super::super::value::{ScalarType, Value, ValueType};
use super::super::view::{Aggregation, FeatureView, FieldId};
use super::super::wire::put_value;
use super::bucket::{self, needs};
use super::distinct;
use crate::view::{AggregateFunction, WindowKind};

/// The most bytes that the aggregates of an entity may take; the rest of the largest record is its row's.
const STATE_BYTES_MAX: u64 = 60_000;

/// The possible numbers of identities that are kept, from the most to the least.
const IDENTITY_COUNTS: [usize; 4] = [2048, 1024, 512, 256];

/// The most bytes of a text or bytes value that `last` keeps for every step.
const LAST_BYTES_MAX: usize = 128;

/// The steps of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowSpan {
    /// The length of a step; at least 1.
    pub interval_us: i64,
    /// The first and the last step, counted back from the current one.
    first: i64,
    last: i64,
}

/// A column and step length with buckets, for one aggregation or several.
#[derive(Debug, Clone, Copy)]
pub struct DeclaredBucketTrack {
    pub column: FieldId,
    pub interval_us: i64,
    pub parts: u8,
    /// The number of steps before the current one that they need.
    pub back: i64,
    value_type: ValueType,
}

impl WindowSpan {
    pub fn of(aggregation: &Aggregation) -> Self {
        let window_us = micros(aggregation.time_window).max(1);
        match aggregation.kind {
            WindowKind::Sliding => {
                let interval_us = micros(aggregation.slide_interval).max(1);
                // A window that is shorter than a step has none.
                Self { interval_us, first: window_us / interval_us - 1, last: 0 }
            }
            WindowKind::Tumbling => Self { interval_us: window_us, first: 1, last: 1 },
        }
    }

    /// The numbers of the first and the last step at `now_us`.
    pub fn steps(&self, now_us: i64) -> (i64, i64) {
        let now = now_us.div_euclid(self.interval_us);
        (now.saturating_sub(self.first), now.saturating_sub(self.last))
    }
}

/// The tracks of a view's aggregations.
pub fn tracks(view: &FeatureView) -> Vec<DeclaredBucketTrack> {
    let mut tracks: Vec<DeclaredBucketTrack> = Vec::with_capacity(view.aggregations.len());
    for aggregation in &view.aggregations {
        let Some(field) = view.fields.get(aggregation.column) else { continue };
        let WindowSpan { interval_us, first, .. } = WindowSpan::of(aggregation);
        let parts = needs(aggregation.function);
        match tracks.iter_mut().find(|track| track.column == field.id && track.interval_us == interval_us) {
            Some(track) => {
                track.parts |= parts;
                track.back = track.back.max(first);
            }
            None => tracks.push(DeclaredBucketTrack {
                column: field.id,
                interval_us,
                parts,
                back: first.max(0),
                value_type: field.value_type,
            }),
        }
    }
    tracks
}

/// The number of identities that are kept: the most that fit next to the buckets.
pub fn identities(tracks: &[DeclaredBucketTrack], lateness_us: i64) -> usize {
    let room = STATE_BYTES_MAX.saturating_sub(buckets_bytes(tracks, lateness_us));
    let [.., least] = IDENTITY_COUNTS;
    IDENTITY_COUNTS.into_iter().find(|count| identities_bytes(*count, lateness_us) <= room).unwrap_or(least)
}

/// The message for aggregations with a state that could grow too large; `None` if it cannot.
pub fn state_limit_problem(view: &FeatureView) -> Option<String> {
    let bytes = most_bytes(view);
    (bytes > STATE_BYTES_MAX).then(|| {
        format!(
            "its aggregations take up to {bytes} bytes an entity, and the limit is {STATE_BYTES_MAX}: make slide_interval longer, or \
             time_window or lateness shorter"
        )
    })
}

/// The message for a row that cannot enter the aggregates, because `last` would keep a long value for every step;
/// `None` when it can. A push has to be checked before it is written.
pub fn value_problem(view: &FeatureView, values: &[(FieldId, Value)]) -> Option<String> {
    let lasts = view.aggregations.iter().filter(|aggregation| aggregation.function == AggregateFunction::Last);
    for field in lasts.filter_map(|aggregation| view.fields.get(aggregation.column)) {
        let value = values.iter().find(|(id, _)| *id == field.id).map(|(_, value)| value);
        let Some(value) = value.filter(|_| scalar_bytes(field.value_type).is_none()) else { continue };
        let mut bytes = Vec::new();
        put_value(&mut bytes, value);
        if bytes.len() > LAST_BYTES_MAX {
            let name = &field.name;
            return Some(format!(
                "'{name}' has {} bytes, and the limit for an aggregation `last` is {LAST_BYTES_MAX}",
                bytes.len()
            ));
        }
    }
    None
}

/// The most bytes that a state of the view can take.
pub fn most_bytes(view: &FeatureView) -> u64 {
    let (tracks, lateness_us) = (tracks(view), micros(view.lateness));
    buckets_bytes(&tracks, lateness_us).saturating_add(identities_bytes(identities(&tracks, lateness_us), lateness_us))
}

/// The most bytes of everything except the identities.
fn buckets_bytes(tracks: &[DeclaredBucketTrack], lateness_us: i64) -> u64 {
    // Version, watermark, floor and two counts, each variable-length number at its longest.
    let state = 1 + 10 + 10 + 3 + 3;
    tracks.iter().fold(state, |sum, track| sum.saturating_add(track.bytes(lateness_us)))
}

impl DeclaredBucketTrack {
    /// The most bytes it can take.
    fn bytes(&self, lateness_us: i64) -> u64 {
        let late = lateness_us / self.interval_us + i64::from(lateness_us % self.interval_us != 0);
        let buckets = self.back.saturating_add(1).saturating_add(late).unsigned_abs();
        // Column, interval, parts, how many buckets, and the number of the first one.
        let head = 3 + 10 + 1 + 10 + 10;
        buckets.saturating_mul(self.bucket_bytes()).saturating_add(head)
    }

    fn bucket_bytes(&self) -> u64 {
        let part = |bit: u8, bytes: u64| if self.parts & bit == 0 { 0 } else { bytes };
        // Assumes at most 2^32 values in a step. The first two bytes are the distance from the step before, as there
        // are no more of those than steps, and the bits of the parts.
        2 + part(bucket::PART_COUNT, 5)
            + part(bucket::PART_SUM, 5 + 16)
            + part(bucket::PART_MOMENTS, 5 + 16)
            + part(bucket::PART_MIN, 8)
            + part(bucket::PART_MAX, 8)
            + part(
                bucket::PART_LAST,
                varint_bytes(self.interval_us) + scalar_bytes(self.value_type).unwrap_or(LAST_BYTES_MAX as u64),
            )
            + part(bucket::PART_DISTINCT, distinct::ENCODED_BYTES_MAX as u64)
    }
}

/// The most bytes of `count` identities: a hash and a difference each. The differences add up to the lateness at most,
/// so not all of them can be long.
fn identities_bytes(count: usize, lateness_us: i64) -> u64 {
    let count = count as u64;
    let long: u64 = (1..9).map(|byte| count.min(lateness_us.unsigned_abs() >> (7 * byte))).sum();
    count * 9 + long
}

/// The bytes of a value, with the number of its type, for a type with values of equal size.
fn scalar_bytes(value_type: ValueType) -> Option<u64> {
    match value_type {
        ValueType::Scalar(ScalarType::Bool) => Some(2),
        ValueType::Scalar(ScalarType::Int32 | ScalarType::Float32) => Some(5),
        ValueType::Scalar(ScalarType::Int64 | ScalarType::Float64 | ScalarType::UnixTimestamp) => Some(9),
        ValueType::Scalar(ScalarType::Bytes | ScalarType::String) | ValueType::Array(_) => None,
    }
}

fn varint_bytes(number: i64) -> u64 {
    u64::from(64 - number.max(1).leading_zeros()).div_ceil(7)
}

/// A duration in microseconds.
pub fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
