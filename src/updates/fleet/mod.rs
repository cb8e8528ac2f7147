//! The fleet: reads the signed rollout manifest, decides which of it applies to this box now, and reports the state
//! of this box to the platform.
//!
//! Files, in reading order:
//! * `manifest.rs`, `manifest/` - the rollout manifest, parsed; `check.rs` has the rules of a rollout
//! * `waves.rs` - waves: a rollout reaches a growing share of the fleet
//! * `window.rs`, `window/` - maintenance windows: times at which a box may change
//! * `decide.rs`, `decide/` - the wishes for this box at this time
//! * `look.rs`, `look/` - one look at the platform: fresh metadata, and the manifest that it signs
//! * `kept.rs` - the last accepted manifest on disk
//! * `pace.rs` - the time of the next look
//! * `poller.rs`, `poller/` - the one task that looks, and decides again between looks
//! * `reported.rs` - the document that reports this box to its platform, over MQTT
//! * `reported/` - its parts: `updates.rs`, and `audit.rs` with the head of the audit log
//! * `fuzz.rs` - properties that hold for any bytes in place of a manifest
//!
//! Folders without a named file hold tests.
//!
//! Invariants:
//! * A manifest with an unknown field is refused, not read in part: an ignored condition would run the wrong version.
//! * A look that fails changes nothing but the reported status.
//! * Before the first manifest is accepted, no wishes are sent. That is not the same as an empty list of wishes.
//! * A signed manifest without a rollout for a trial ends that trial. A signed revocation ends a running version.
//! * `manifest.rs`, `waves.rs`, `decide.rs` and `pace.rs` are pure. Time and chance are passed in.

pub mod decide;
pub mod fuzz;
pub mod kept;
pub mod look;
pub mod manifest;
mod pace;
pub mod poller;
pub mod reported;
pub mod waves;
pub mod window;
