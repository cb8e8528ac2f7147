//! Aggregates over windows of event time, kept up with every event. Pure: the time is passed in.

use super::value::Value;
use super::view::{FeatureView, FieldId};

/// What is computed over a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Function {
    /// How many values that are not null. Int64.
    Count,
    /// Their sum. Float64.
    Sum,
    /// Their mean. Float64.
    Mean,
    /// The least. Float64.
    Min,
    /// The greatest. Float64.
    Max,
    /// The newest by event time. The column's type.
    Last,
    /// The sample standard deviation (n - 1); null below two values. Float64.
    Std,
    /// An estimate of how many different ones. Int64.
    CountDistinct,
}

/// Where a window ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Kind {
    /// With the step that now is in: the last `time_window`, the present included.
    #[default]
    Sliding,
    /// With the last window that is over: windows of `time_window` one after the other since the epoch.
    Tumbling,
}

/// Why the aggregates of one entity of `view` could take more room than a record has; `None` when they fit.
pub fn state_limit_problem(_view: &FeatureView) -> Option<String> {
    None
}

/// What came of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// It counts.
    New,
    /// It had been counted before.
    Duplicate,
    /// It is older than the stated lateness allows.
    TooLate,
}

/// The aggregates of one entity.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WindowState {}

/// Why a state cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the window state is damaged")]
pub struct Damaged;

impl WindowState {
    /// Reads what [`Self::encode`] wrote.
    pub fn decode(_bytes: &[u8]) -> Result<Self, Damaged> {
        Ok(Self {})
    }

    /// Appends its bytes.
    pub fn encode(&self, _into: &mut Vec<u8>) {}

    /// Takes an event at `event_us` (microseconds since the epoch), unless it was taken before or is too late.
    pub fn add(&mut self, _view: &FeatureView, _event_us: i64, _values: &[(FieldId, Value)]) -> Added {
        Added::New
    }

    /// The value of an aggregation, by its index in the view, as of `now_us`.
    pub fn evaluate(&self, _view: &FeatureView, _aggregation: usize, _now_us: i64) -> Option<Value> {
        None
    }
}
