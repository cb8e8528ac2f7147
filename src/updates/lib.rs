//! Signed updates: what a central platform authorised is fetched, tried, taken or rolled back. One task owns the state.
//!
//! Invariants: nothing runs that the role `models` did not sign; the state on disk says what runs before it runs; no
//! failure here takes a running version away.
#![forbid(unsafe_code)]

pub mod config;
pub mod configuration;
pub mod download;
pub mod fleet;
pub mod gates;
pub mod handle;
pub mod package;
pub mod persisted;
pub mod plan;
pub mod platform;
pub mod report;
pub mod runtime_dirs;
pub mod sha256;
pub mod source;
pub mod state;
pub mod status;
#[cfg(test)]
mod status_example;
pub mod store;
pub mod subject;
pub mod trial;
pub mod trust;
pub mod updater;

// So that the example above names its types as other crates do.
#[cfg(test)]
extern crate self as ledge_updates;

pub use handle::Updates;
