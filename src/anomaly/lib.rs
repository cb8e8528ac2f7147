//! Unusual values: detectors that learn the normal of a series, or of rows of features, and judge each new sample.
//!
//! Files, in reading order:
//! * `pace.rs` - the interval of samples, the owner's rate of false alarms, and the times that follow from them
//! * `event.rs` - states, kinds of unusual, bands and verdicts
//! * `detector.rs` - `SeriesDetector`: one series, a sample at a time
//! * `measures.rs` - the statistics that are judged: a sample, means over few and many, the spread
//! * `statistic.rs` - one statistic, with the scale and thresholds that it learns
//! * `tail.rs` - the tail of a distribution, and the quantile for a rate of alarms
//! * `predictors.rs` - predictions of the next sample, of which the best is believed
//! * `autoregression.rs` - the linear one of them
//! * `season.rs` - the profiles of the day and of the week
//! * `ring.rs` - the last samples
//! * `runs.rs` - runs of equal values, and gaps
//! * `trend.rs` - leaks and disks that fill: the slope, and the time to a limit
//! * `lifecycle.rs` - begin and end of events, with hysteresis
//! * `forecast.rs` - the next values, with a band
//! * `rows.rs` - `RowProfile`: rows with several features
//! * `matrix.rs` - linear equations for it
//! * `monitor.rs` - `MonitorSet`: named series together, with events in words
//! * `words.rs` - those words
//! * `codec.rs` - the stored form of each state
//! * `fuzz.rs` - properties that hold for any input
//!
//! Invariants:
//! * No clock, no disk, no thread: the time of a sample is given with it.
//! * A state has a bounded size, whatever it is given, and no NaN ever enters it.
//! * Any bytes decode to a sound state or to an error.
//! * Nothing is judged before enough was seen, and the state says how much is missing.
//!
//! # Where it is decided
//!
//! * That a sample is unusual: `Readings::score` in `measures.rs`; the thresholds: `Tail::quantile`
//! * The name of an event: `Readings::kind`, then `Lifecycle::refine`
//! * That a rise is a trend: `TrendSketch::trend_of`
//! * That a new state is normal: `Lifecycle::turn`, after `Pace::acceptance_samples`; by a person: `teach_normal`
#![forbid(unsafe_code)]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_wrap,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts and places are small, and values are bounded before they are narrowed"
)]

mod pace;
mod event;
mod detector;
mod measures;
mod statistic;
mod tail;
mod predictors;
mod autoregression;
mod season;
mod ring;
mod runs;
mod trend;
mod lifecycle;
mod forecast;
mod rows;
mod matrix;
mod monitor;
mod words;
mod codec;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzz;
#[cfg(test)]
mod tests;

pub use codec::{FORMAT_VERSION, StateError};
pub use detector::SeriesDetector;
pub use event::{Band, Change, Direction, SampleError, SeriesState, Unusual, UnusualKind, Verdict};
pub use forecast::{ForecastError, ForecastPoint, LONGEST_FORECAST};
#[cfg(any(test, feature = "fuzzing"))]
pub use fuzz::fuzz_anomaly_state;
pub use monitor::{
    Limit, MonitorChange, MonitorEvent, MonitorSet, MonitorState, NAME_BYTES_MAX, SERIES_MAX, WatchError,
};
pub use pace::{Pace, PaceError};
pub use rows::{Explanation, FEATURES_MAX, PROBABILITIES, RowError, RowProfile, RowVerdict};
pub use trend::{TimeToLimit, Trend};
