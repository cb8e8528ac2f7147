//! Capacity: how much more work this box can take, what runs out first, and how large a box must be.
//!
//! Files, in reading order:
//! * `queueing.rs` - the waiting time of a queue before several cores, and the share of them that may be used
//! * `costs.rs` - the CPU time of a unit of work, fitted to measured intervals
//! * `headroom.rs` - the work that fits until the first resource is used up
//! * `history.rs` - the intervals of the last hours, a ring
//! * `reading.rs` - the counters of the box at one moment
//! * `report.rs` - the answer of `GET /capacity`, with its words
//! * `part.rs`, `http.rs`, `metrics.rs` - capacity as a part of the daemon, its route and its metrics
//! * `sizing.rs`, `sizing/` - `ledge sizing`: the box for a load, from figures of a reference processor in
//!   `reference.tsv`
//!
//! Invariants:
//! * `queueing.rs`, `costs.rs`, `headroom.rs`, `report.rs` and `sizing.rs` are pure: no clock, no counter, no file.
//! * Headroom is never negative, and more cores never give less of it.
//! * A figure that was not measured here is marked: of the reference processor, or not known.
//! * The memory is bounded: so many intervals of so many kinds of work.
//! * The one task wakes up once a minute.
//!
//! # Where it is decided
//!
//! * The share of the cores that may be used: `ceiling` in `queueing.rs`
//! * What runs out first: `headroom` in `headroom.rs`
#![forbid(unsafe_code)]

pub mod costs;
pub mod history;
pub mod http;
mod metrics;
pub mod part;
pub mod queueing;
mod reading;
pub mod report;
pub mod headroom;
pub mod sizing;

pub use reading::{CameraReading, CapacitySources};

/// A count as a number.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53, and a figure has three digits")]
pub(crate) fn whole(count: u64) -> f64 {
    count as f64
}
