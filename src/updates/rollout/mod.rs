//! The rollout manifest: checks the platform for a new one, and decides which of its rollouts apply to this box now.
//!
//! Files, in reading order:
//! * `manifest.rs`, `manifest/` - the rollout manifest, parsed; `validate.rs` has the rules of a rollout
//! * `waves.rs` - waves: a rollout reaches a growing share of the fleet
//! * `window.rs`, `window/` - maintenance windows: times at which a box may change
//! * `decide.rs`, `decide/` - the desired states for this box at this time
//! * `check.rs`, `check/` - one check of the platform: fresh metadata, and the manifest that it signs
//! * `manifest_file.rs` - the last accepted manifest on disk
//! * `schedule.rs` - the time of the next check
//! * `poller.rs`, `poller/` - the one task that checks, and decides again between checks
//! * `fuzz.rs` - properties that hold for any bytes in place of a manifest
//!
//! Folders without a named file hold tests.
//!
//! Invariants:
//! * A manifest with an unknown field is refused, not read in part: an ignored condition would run the wrong version.
//! * A check that fails changes nothing but the reported status.
//! * Before the first manifest is accepted, no desired states are sent. That is not the same as an empty list of them.
//! * A signed manifest without a rollout for a trial ends that trial. A signed revocation ends a running version.
//! * `manifest.rs`, `waves.rs`, `decide.rs` and `schedule.rs` are pure. Time and chance are passed in.

pub mod check;
pub mod decide;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod manifest;
pub mod manifest_file;
pub mod poller;
mod schedule;
pub mod waves;
pub mod window;
