//! A bounded set of named series that are judged together, as the daemon does with the figures of the box each minute.

use crate::codec::{self, Sound, StateError};
use crate::detector::SeriesDetector;
use crate::event::{Band, Change, SeriesState, Unusual};
use crate::pace::Pace;
use crate::trend::TimeToLimit;
use crate::words;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bytes of a name, and most series of one set.
pub const NAME_BYTES_MAX: usize = 128;
pub const SERIES_MAX: usize = 256;
/// A warning of a limit ends when the limit is further away than this many times the time of warning.
const LIMIT_HYSTERESIS: f64 = 1.5;

/// A value that a series should not reach, such as the memory of the box.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    pub value: f64,
    /// Warn when a trend reaches it within so many hours.
    pub within_hours: f64,
}

/// A series that cannot be watched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    #[error("the set is full ({SERIES_MAX} series)")]
    Full,
    #[error("a name has from 1 to {NAME_BYTES_MAX} bytes")]
    Name,
    #[error("a limit and its hours are finite, and the hours above 0")]
    Limit,
}

/// A change of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MonitorChange {
    Began(Unusual),
    /// An event that goes on has become clearer: a spike is a trend.
    Renamed(Unusual),
    Ended {
        event: Unusual,
        is_new_normal: bool,
    },
    LimitNear {
        limit: f64,
        time: TimeToLimit,
        per_hour: f64,
    },
    LimitFar {
        limit: f64,
    },
}

/// An event of a series, in numbers and in words.
#[derive(Debug, Clone, PartialEq)]
pub struct MonitorEvent {
    pub name: String,
    pub at_ms: i64,
    pub value: Option<f64>,
    pub band: Option<Band>,
    pub change: MonitorChange,
    pub text: String,
}

/// The state of a series now.
#[derive(Debug, Clone, PartialEq)]
pub struct MonitorState<'a> {
    pub name: &'a str,
    pub state: SeriesState,
    pub time_to_limit: Option<TimeToLimit>,
    /// A warning of the limit has begun, and not ended.
    pub is_limit_near: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Watched {
    detector: SeriesDetector,
    limit: Option<Limit>,
    is_limit_near: bool,
}

/// Series by name, each about 6 KB. Times come with the samples, in Unix milliseconds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MonitorSet {
    series: BTreeMap<String, Watched>,
}

/// The stored form of one series of a set.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Stored {
    name: String,
    watched: Watched,
}

impl MonitorSet {
    /// Watches a series, or changes the limit of one that is watched.
    pub fn watch(&mut self, name: &str, pace: Pace, limit: Option<Limit>) -> Result<(), WatchError> {
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
            return Err(WatchError::Name);
        }
        if limit.is_some_and(|limit| !is_limit(limit)) {
            return Err(WatchError::Limit);
        }
        if let Some(watched) = self.series.get_mut(name).filter(|watched| watched.detector.pace() == pace) {
            watched.limit = limit;
            return Ok(());
        }
        if self.series.len() >= SERIES_MAX && !self.series.contains_key(name) {
            return Err(WatchError::Full);
        }
        let watched = Watched { detector: SeriesDetector::new(pace), limit, is_limit_near: false };
        self.series.insert(name.to_owned(), watched);
        Ok(())
    }

    /// Stops to watch a series. False where it is not watched.
    pub fn forget(&mut self, name: &str) -> bool {
        self.series.remove(name).is_some()
    }

    /// Judges the samples of one time. It says nothing of series without one, such as a time of answers where nobody called;
    /// names that are not watched and values that are no numbers are left out.
    pub fn observe(&mut self, time_ms: i64, samples: &[(&str, f64)]) -> Vec<MonitorEvent> {
        let mut events = Vec::new();
        for (name, value) in samples.iter().filter(|(_, value)| value.is_finite()) {
            if let Some(watched) = self.series.get_mut(*name) {
                watched.observe(name, time_ms, *value, &mut events);
            }
        }
        events
    }

    /// A person says that the state of a series, or its last event, is normal. An event that goes on ends. False where the
    /// series is not watched, or had no event.
    pub fn teach_normal(&mut self, name: &str) -> bool {
        let known = self.series.get_mut(name).filter(|watched| watched.detector.has_event());
        known.is_some_and(|watched| {
            watched.detector.teach_normal();
            true
        })
    }

    pub fn states(&self) -> impl Iterator<Item = MonitorState<'_>> {
        self.series.iter().map(|(name, watched)| MonitorState {
            name,
            state: watched.detector.state(),
            time_to_limit: watched.limit.and_then(|limit| watched.detector.time_to_limit(limit.value)),
            is_limit_near: watched.is_limit_near,
        })
    }

    pub fn detector(&self, name: &str) -> Option<&SeriesDetector> {
        self.series.get(name).map(|watched| &watched.detector)
    }

    pub fn len(&self) -> usize {
        self.series.len()
    }

    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// The stored form of each series, for a store that keeps them one by one.
    pub fn encode(&self) -> impl Iterator<Item = Vec<u8>> {
        self.series
            .iter()
            .map(|(name, watched)| codec::encode(&Stored { name: name.clone(), watched: watched.clone() }))
    }

    /// Takes a series of `encode`, in place of one of the same name, and returns its name.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<String, StateError> {
        let stored: Stored = codec::decode(bytes)?;
        if self.series.len() >= SERIES_MAX && !self.series.contains_key(&stored.name) {
            return Err(StateError::Size);
        }
        self.series.insert(stored.name.clone(), stored.watched);
        Ok(stored.name)
    }
}

impl Watched {
    fn observe(&mut self, name: &str, time_ms: i64, value: f64, events: &mut Vec<MonitorEvent>) {
        let before = self.detector.state();
        let Ok(verdict) = self.detector.observe(time_ms, value) else { return };
        let (value, band) = (Some(value), Some(verdict.band));
        let change = verdict.change.map(monitor_change).or_else(|| renamed(before, verdict.state));
        events.extend(change.map(|change| event_of(name, time_ms, value, band, change)));

        let Some(limit) = self.limit else { return };
        let trend = self.detector.trend();
        let reached = trend.and_then(|trend| Some((trend.reaches(limit.value)?, trend.per_hour)));
        let factor = if self.is_limit_near { LIMIT_HYSTERESIS } else { 1.0 };
        let is_near = reached.is_some_and(|(time, _)| time.hours <= limit.within_hours * factor);
        if is_near == self.is_limit_near {
            return;
        }
        self.is_limit_near = is_near;
        let change = match reached {
            Some((time, per_hour)) if is_near => MonitorChange::LimitNear { limit: limit.value, time, per_hour },
            _ => MonitorChange::LimitFar { limit: limit.value },
        };
        events.push(event_of(name, time_ms, value, band, change));
    }
}

fn event_of(name: &str, at_ms: i64, value: Option<f64>, band: Option<Band>, change: MonitorChange) -> MonitorEvent {
    let text = words::text(name, at_ms, value, band, &change);
    MonitorEvent { name: name.to_owned(), at_ms, value, band, change, text }
}

fn monitor_change(change: Change) -> MonitorChange {
    match change {
        Change::Began(event) => MonitorChange::Began(event),
        Change::Ended { event, is_new_normal } => MonitorChange::Ended { event, is_new_normal },
    }
}

fn renamed(before: SeriesState, now: SeriesState) -> Option<MonitorChange> {
    match (before, now) {
        (SeriesState::Unusual(before), SeriesState::Unusual(event)) if before.kind != event.kind => {
            Some(MonitorChange::Renamed(event))
        }
        _ => None,
    }
}

fn is_limit(limit: Limit) -> bool {
    limit.value.is_finite() && limit.within_hours.is_finite() && limit.within_hours > 0.0
}

impl Sound for Stored {
    fn is_sound(&self) -> bool {
        (1..=NAME_BYTES_MAX).contains(&self.name.len())
            && self.watched.limit.is_none_or(is_limit)
            && self.watched.detector.is_sound()
    }
}
