//! Models as they are served: on disk and loaded, scheduled on the cores, and one inference for every protocol.
//!
//! Folders, in reading order; the `mod.rs` of each has its map:
//! * `scheduling/` - all models on one budget of cores: queues, batches, one worker a core
//! * `repository/` - the model repository on disk and loaded: versions, golden answers, statistics, candidates of
//!   updates
//! * `serving/` - one inference: admission, response cache, features, the run, the count
//!
//! Invariants:
//! * A live version is removed only when its replacement is ready.
//! * No protocol is decoded here. HTTP, MQTT and the command line call `serving`.
//! * Rows of different callers never mix.
//! * Requests are counted and audited once, in `serving`. Runs are counted where they happen, in `scheduling`.
//! * `scheduling` knows nothing of `repository`, and `repository` nothing of `serving`.
#![forbid(unsafe_code)]

pub mod scheduling;
pub mod repository;
pub mod serving;
