//! Signed updates: what a central platform authorised is fetched, tried, taken or rolled back. One task owns the state.
//!
//! Invariants: nothing runs that the role `models` did not sign; the state on disk says what runs before it runs; no
//! failure here takes a running version away.

pub mod config;
pub mod configuration;
pub mod download;
pub mod gates;
pub mod handle;
pub mod package;
pub mod persisted;
pub mod plan;
pub mod platform;
pub mod runtime_dirs;
pub mod sha256;
pub mod source;
pub mod state;
pub mod status;
pub mod store;
pub mod subject;
pub mod trial;
pub mod trust;
pub mod updater;

pub use handle::Updates;
