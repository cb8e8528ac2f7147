//! Drift: what models get and give after their deployment, compared with a reference.
//!
//! Files, in reading order:
//! * `statistics.rs` - the population stability index and intervals; the gates of a rollout judge by them, too
//! * `column.rs` - one column: bins, counts, judgement, and the change in words
//! * `watch.rs` - one version: learns its reference, then judges window after window
//! * `encoding.rs` - the stored form
//! * `store.rs` - the files of watches
//! * `config.rs` - `[drift]`
//! * `readings.rs` - a call as readings of columns
//! * `drift.rs` - all watched versions: the sample of calls, findings, writes
//! * `evaluation.rs` - the measurement of found drifts and false findings, by hand
//! * `http.rs`, `metrics.rs`, `part.rs` - drift as a part of the daemon
//!
//! Invariants:
//! * `statistics.rs`, `column.rs`, `watch.rs` and `encoding.rs` are pure: no clock, no disk, no model.
//! * No input and no output is stored, and none leaves the box: only bounds, counts, and checksums of the names of
//!   categories.
//! * A reference does not change by itself once it is fixed. It is on the disk before a caller who accepted it has the
//!   answer.
//! * Memory and files are bounded: versions, columns, bins and rows have a most each.
//!
//! # Where it is decided
//!
//! * A column drifts: `Column::judge` in `column.rs`; the drift lasts: `VersionWatch::judgements` in `watch.rs`
//! * A call is in the sample: `Drift::wants` in `drift.rs`
//! * A release on trial drifts: `gates.rs` of updates
#![forbid(unsafe_code)]

pub mod column;
pub mod config;
mod drift;
pub mod encoding;
#[cfg(test)]
mod evaluation;
pub mod http;
mod metrics;
mod part;
mod readings;
pub mod statistics;
mod store;
pub mod watch;

pub use drift::{Drift, stored_documents};
