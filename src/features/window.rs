//! Aggregates over windows of event time, updated with every event. Pure: the time is passed in.
//!
//! # Events that count
//!
//! Event time is cut into **steps** of an aggregation's `slide_interval`, which begin at multiples of it since the Unix
//! epoch. Every step with events has a bucket, and aggregations of the same column and step share the buckets.
//!
//! * **Sliding**: at any time the window is the `time_window` that ends with the current step: the steps that begin at
//!   or after `end - time_window` and before `end`. Events of later steps do not count yet. A window that is not a
//!   multiple of its step has as many complete steps as fit.
//! * **Tumbling**: the last complete window, of those that begin at multiples of `time_window`. Its `slide_interval` is
//!   its `time_window`.
//! * **Null** counts nowhere, and NaN is treated as null. Infinities count. An event without a value of a column is
//!   still an event: it moves the watermark.
//!
//! # Late, out of order, and repeated events
//!
//! The **watermark** is the newest event time of the entity. An event older than the watermark by more than the view's
//! `lateness` is too late and counts nowhere; every other one counts exactly, in whatever order events arrive.
//!
//! A **repeated** event changes nothing. Its identity is its event time and a 64-bit hash of its values, so two events
//! of the same microsecond both count when they differ in any value, and are one event when they do not. A push without
//! an event time is a new event each time. Identities are kept as far back as the lateness reaches (with a lateness of
//! zero: those at the watermark), and at most 2048 of them, or fewer (but 256) where the buckets leave less space. When
//! there are more, the oldest are dropped, and events that are not newer than a dropped one are too late from then on:
//! lateness is reduced, exactness is not.
//!
//! Buckets are dropped when no window at the watermark less the lateness, or later, has them. Reads are therefore exact
//! for every time from there on; where devices' clocks run ahead of this one's, the lateness should be at least as
//! long.
//!
//! # A clock that was ahead
//!
//! An event time far ahead moves the watermark there, and drops earlier buckets and identities. When the clock is set
//! back, [`WindowState::take_back`] drops the steps of that future, and the aggregates continue with the rest. Of the
//! step in which it begins only a later `last` is dropped: the other functions cannot be separated, and keep its later
//! events, which are no longer recognized as repeated.
//!
//! # Exactness
//!
//! * **Count** and **count distinct** of nothing are 0, as in SQL. Every other function of nothing is null.
//! * **Sum** and **mean** of integers, booleans (0 or 1) and timestamps are exact until the result becomes a double; of
//!   floats they are compensated (Neumaier), so that hardly more than the last rounding is lost. A sum beyond the
//!   largest double is infinite, and that of infinities of both signs is null.
//! * **Min** and **max** are exact, as doubles.
//! * **Std** is the sample standard deviation by Welford and Chan, null below two values. Its relative error is about
//!   1e-16 times the mean over the deviation.
//! * **Last** is the newest by event time; of the same time, the one that was pushed later.
//! * **Count distinct** is exact while no step of the window has more than 24 distinct values. Beyond that, it is a
//!   `HyperLogLog` estimate with a standard error of 6.5 % (256 registers), and less below 500.
//!
//! # When the declaration changes
//!
//! The bytes describe their content. Parts that are no longer declared are dropped with the next event; a new
//! aggregation begins with the next event, and so does the additional part of a window that became longer.

mod bucket;
mod distinct;
mod encoding;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzz;
mod limits;
mod state;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub use fuzz::{every_function, view};
#[cfg(any(test, feature = "fuzzing"))]
pub use fuzz::{fuzz_window, window_seeds};
pub use limits::{state_limit_problem, value_problem};

use super::value::Value;
use super::view::{AggregateFunction, FeatureView, FieldId};
use super::wire::{put_value, put_varint};
use bucket::{CountedValue, WindowBucket};
use distinct::hash;
pub use error::DamagedWindow;
use limits::{DeclaredBucketTrack, WindowSpan};
use state::BucketTrack;
pub use state::WindowState;

/// The outcome of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowAddOutcome {
    New,
    /// It was counted before.
    Duplicate,
    /// It is older than the stated lateness allows.
    TooLate,
}

impl WindowState {
    /// Reads the output of [`Self::encode`]. No bytes are the state before the first event.
    pub fn decode(bytes: &[u8]) -> Result<Self, DamagedWindow> {
        encoding::decode(bytes)
    }

    /// Appends its bytes.
    pub fn encode(&self, into: &mut Vec<u8>) {
        encoding::encode(self, into);
    }

    /// Adds an event at `event_us` (microseconds since the epoch). A repeated event, and one that is too late, leave
    /// the state unchanged.
    pub fn add(&mut self, view: &FeatureView, event_us: i64, values: &[(FieldId, Value)]) -> WindowAddOutcome {
        let lateness_us = limits::micros(view.lateness);
        let oldest_us = self.watermark_us.map_or(i64::MIN, |watermark| watermark.saturating_sub(lateness_us));
        if event_us < oldest_us.max(self.floor_us) {
            return WindowAddOutcome::TooLate;
        }
        let identity = (event_us, identity(values));
        let Err(at) = self.identities.binary_search(&identity) else { return WindowAddOutcome::Duplicate };
        self.identities.insert(at, identity);
        let watermark_us = self.watermark_us.map_or(event_us, |watermark| watermark.max(event_us));
        self.watermark_us = Some(watermark_us);

        let declared = limits::tracks(view);
        let horizon_us = watermark_us.saturating_sub(lateness_us);
        self.forget(horizon_us, limits::identities(&declared, lateness_us));
        self.tracks.retain(|track| declared.iter().any(|declared| track.is(declared)));
        for declared in &declared {
            let at = self.tracks.iter().position(|track| track.is(declared));
            if let Some(track) = at.and_then(|at| self.tracks.get_mut(at)) {
                track.trim(declared, horizon_us);
            }
            let value = values.iter().find(|(field, _)| *field == declared.column).map(|(_, value)| value);
            let Some(sample) = value.and_then(CountedValue::new) else { continue };
            let at = at.unwrap_or_else(|| {
                let &DeclaredBucketTrack { column, interval_us, parts, .. } = declared;
                self.tracks.push(BucketTrack { column, interval_us, parts, buckets: Vec::new() });
                self.tracks.len() - 1
            });
            if let Some(track) = self.tracks.get_mut(at) {
                track.add(event_us, &sample);
            }
        }
        self.tracks.retain(|track| !track.buckets.is_empty());
        WindowAddOutcome::New
    }

    /// Drops the steps that begin after `latest_us`, since their times come from a clock that was ahead. Of the step
    /// that has `latest_us`, a later `last` is dropped, and the other functions keep the later events. Events that were
    /// dropped or refused because of that future are lost; the event at `event_us` that is added now, and newer ones,
    /// are not too late.
    pub fn take_back(&mut self, latest_us: i64, event_us: i64) {
        if self.watermark_us.is_none_or(|watermark| watermark <= latest_us) {
            return;
        }
        self.identities.retain(|(event_us, _)| *event_us <= latest_us);
        for track in &mut self.tracks {
            track.take_back(latest_us);
        }
        self.tracks.retain(|track| !track.buckets.is_empty());
        if self.floor_us > latest_us {
            // The identities of earlier events are dropped: accept only events after the last step that has one.
            let end = self.tracks.iter().filter_map(BucketTrack::end_us).max();
            self.floor_us = end.map_or(i64::MIN, |end| end.min(event_us));
        }
        let newest = self.identities.last().map(|(event_us, _)| *event_us);
        let forgotten = Some(self.floor_us).filter(|floor| *floor > i64::MIN).map(|floor| floor - 1);
        self.watermark_us = newest.max(forgotten);
        if self.watermark_us.is_none() {
            *self = Self::default();
        }
    }

    /// The value of an aggregation, by its index in the view, at `now_us`.
    pub fn evaluate(&self, view: &FeatureView, aggregation: usize, now_us: i64) -> Option<Value> {
        let aggregation = view.aggregations.get(aggregation)?;
        let field = view.fields.get(aggregation.column)?;
        let span = WindowSpan::of(aggregation);
        let track = self.tracks.iter().find(|track| track.column == field.id && track.interval_us == span.interval_us);
        let buckets = track.map_or(&[][..], |track| track.within(&span, now_us));
        // A `last` from before the column's type changed is not valid any more.
        bucket::result(aggregation.function, buckets)
            .filter(|value| aggregation.function != AggregateFunction::Last || value.value_type() == field.value_type)
    }

    /// The columns with values.
    pub fn columns(&self) -> impl Iterator<Item = FieldId> {
        self.tracks.iter().map(|track| track.column)
    }

    /// Renumbers the fields, for another store. Identities depend on the numbers: they are dropped, and events that are
    /// not newer than the newest of them are too late from then on.
    pub fn renumber(&mut self, number: impl Fn(FieldId) -> Option<FieldId>) {
        self.tracks.retain_mut(|track| match number(track.column) {
            Some(column) => {
                track.column = column;
                true
            }
            None => false,
        });
        self.forget(i64::MAX, 0);
    }

    /// Drops the identities before `horizon_us`, and the oldest when there are more than `most`.
    fn forget(&mut self, horizon_us: i64, most: usize) {
        let late = self.identities.partition_point(|(event_us, _)| *event_us < horizon_us);
        let excess = self.identities.len().saturating_sub(most);
        let Some(last) = late.max(excess).checked_sub(1) else { return };
        let Some(&(newest_us, _)) = self.identities.get(last) else { return };
        // Drop the others of the same time too, as events of that time are too late now.
        let forgotten = self.identities.partition_point(|(event_us, _)| *event_us <= newest_us);
        self.identities.drain(..forgotten);
        self.floor_us = self.floor_us.max(newest_us.saturating_add(1));
    }
}

impl BucketTrack {
    fn is(&self, declared: &DeclaredBucketTrack) -> bool {
        self.column == declared.column && self.interval_us == declared.interval_us
    }

    /// Drops the buckets that no window needs at `horizon_us` or later, and the parts that are no longer declared.
    fn trim(&mut self, declared: &DeclaredBucketTrack, horizon_us: i64) {
        let first = horizon_us.div_euclid(self.interval_us).saturating_sub(declared.back);
        let over = self.buckets.partition_point(|bucket| bucket.number < first);
        self.buckets.drain(..over);
        if self.parts & !declared.parts != 0 {
            self.buckets.retain_mut(|bucket| bucket.keep(declared.parts));
        }
        self.parts = declared.parts;
    }

    fn add(&mut self, event_us: i64, sample: &CountedValue<'_>) {
        let number = event_us.div_euclid(self.interval_us);
        let offset_us = event_us.rem_euclid(self.interval_us).unsigned_abs();
        let at = match self.buckets.binary_search_by_key(&number, |bucket| bucket.number) {
            Ok(at) => at,
            Err(at) => {
                self.buckets.insert(at, WindowBucket::new(number));
                at
            }
        };
        if let Some(bucket) = self.buckets.get_mut(at) {
            bucket.add(self.parts, offset_us, sample);
        }
    }

    /// Drops the steps that begin after `latest_us`, and the newest value of the step that has it, if that is later.
    fn take_back(&mut self, latest_us: i64) {
        let interval_us = self.interval_us;
        self.buckets.retain_mut(|bucket| {
            let Ok(offset_us) = u64::try_from(latest_us.saturating_sub(bucket.number.saturating_mul(interval_us)))
            else {
                return false;
            };
            bucket.last = bucket.last.take().filter(|last| last.offset_us <= offset_us);
            bucket.parts() != 0
        });
    }

    /// The end of the last step with an event.
    fn end_us(&self) -> Option<i64> {
        self.buckets.last().map(|bucket| bucket.number.saturating_add(1).saturating_mul(self.interval_us))
    }

    /// The buckets of the window at `now_us`.
    fn within(&self, span: &WindowSpan, now_us: i64) -> &[WindowBucket] {
        let (first, last) = span.steps(now_us);
        let begin = self.buckets.partition_point(|bucket| bucket.number < first);
        let end = self.buckets.partition_point(|bucket| bucket.number <= last);
        self.buckets.get(begin..end).unwrap_or_default()
    }
}

/// The hash that distinguishes an event from others of the same time. BLAKE3, because values come from outside: a
/// caller must not be able to make one event hide another.
fn identity(values: &[(FieldId, Value)]) -> u64 {
    let mut bytes = Vec::with_capacity(16 + values.len() * 12);
    for (field, value) in values {
        put_varint(&mut bytes, u64::from(field.0));
        put_value(&mut bytes, value);
    }
    hash(&bytes)
}
