//! The history of the figures: of the box, of the busiest models and callers, at 5 s for an hour, at a minute for a day
//! and at an hour for two years, in a bounded store on the disk.
//!
//! Files, in reading order:
//! * `config.rs` - `[history]`
//! * `part.rs` - the history as a part of the daemon, and the one task that reads all figures
//! * `http.rs` - `ROUTES`, the table of the routes of this crate; `query.rs` what callers ask and what answers it
//! * `figures.rs` - figures of the last hour and the last day in memory; `ring.rs` the samples of one of these,
//!   `readings.rs` what they are made of
//! * `live.rs` - each new sample as a server-sent event
//! * `recorder.rs` - makes records of the readings, on a clock that may be set
//! * `series.rs` - the names of series, their columns and resolutions
//! * `store.rs` - all series in a folder, and which of them are kept for two years
//! * `unusual.rs` - what is unusual of the figures of a minute, as findings; its events and its routes in `unusual/`
//! * `file.rs` - one series in a file; `record.rs` one record
//! * `fuzz.rs` - properties that hold for any input
//!
//! Invariants:
//! * The store has a bound that the compiler checks: 50 MB.
//! * Counters are those of the parts that own them. Nothing is counted twice, also where the clock goes back.
//! * The place of a record follows from its time, so a damaged block or a power cut costs only the records in it.
//! * Records hold numbers only. The names in the store are those of models and callers.
//! * An answer that lasts ends with the shutdown, and when its caller is no longer admitted.
//! * The crate opens no connection.
//!
//! # Where it is decided
//!
//! * The series that counts a caller: `HistoryStore::place`; the series that are kept for two years:
//!   `HistoryStore::take_hours`
//! * The time at which records are written: `recorder.rs`
//! * The end of an answer that lasts: `live.rs`, at the shutdown, or when `Authenticator::is_current` denies its caller
#![forbid(unsafe_code)]

pub mod config;
mod figures;
mod file;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod http;
mod live;
pub mod part;
mod query;
mod readings;
mod record;
mod recorder;
mod ring;
mod series;
mod store;
pub mod unusual;

pub use part::{History, HistoryPart};
pub use unusual::message as unusual_message;
