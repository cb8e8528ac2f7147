//! Alerts: tells people, by a webhook or over MQTT, what is wrong with this box and when it is right again.
//!
//! Files, in reading order:
//! * `config.rs` - `[[alert]]`
//! * `tracker.rs` - what one receiver should know, and what it was told: pending, firing, resolved
//! * `message.rs` - the message, in JSON
//! * `receiver.rs` - one receiver, and the way to it
//! * `store.rs` - what receivers were told, in a file, for the next start
//! * `alerts.rs` - all receivers, and the task that looks for findings
//! * `http.rs`, `metrics.rs`, `doctor.rs` - the state of alerts, and test messages
//! * `part.rs` - the part: the section `[[alert]]`, that task, and one for each receiver, which backs off
//!
//! Invariants:
//! * The crate does not know how findings are found, nor MQTT: both are passed in.
//! * `tracker.rs` is pure: findings and times are passed in.
//! * A message that could not be sent is not kept: what is due follows from the state, so the newest one is sent.
//! * What was told is on the disk before the next message is sent.
//! * Neither a receiver that hangs nor a search for findings that does delays anything else.
//!
//! # Where it is decided
//!
//! * The time at which a finding, and its end, is reported: `tracker.rs`
//! * The next try of a message that was not sent: `receiver.rs`
#![forbid(unsafe_code)]

pub mod alerts;
pub mod config;
mod doctor;
pub mod http;
pub mod message;
mod metrics;
mod part;
pub mod receiver;
mod store;
mod tracker;
