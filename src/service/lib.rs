//! Parts that a process needs to run for years: an orderly shutdown, a readiness signal, work off the async threads,
//! and the recording of events for the audit log.
//!
//! Files, in reading order:
//! * `shutdown.rs` - tasks whose end is always noticed, and one signal that ends them all
//! * `readiness.rs` - latches, one for each part that starts; the daemon is ready when the last one is dropped
//! * `hint.rs` - the platform's hint, for parts that look for news
//! * `off_thread.rs` - long computations off the async threads: one thread a core, callers in turn
//! * `limited_process.rs` - a second process of this program, with limits, for work that may crash
//! * `child_errors.rs` - the standard error of another process of this program, as lines of this one's log
//! * `audit_event.rs` - the closed list of audit events, and the handle that records them
//! * `audit_event/` - events on their way into the log:
//!   * `sink.rs` - the queue between those who record and the one writer
//!   * `inference.rs` - inference calls, one by one or counted by the minute
//!   * `feature.rs` - reads and pushes of feature views, counted by the minute
//!   * `repeated.rs` - events that repeat while their cause lasts, recorded once a minute: denials, connections, a full
//!     disk; `record_repeated.rs` records them
//!   * `erasure.rs` - the statement of an erasure, of which the record has the hash
//!   * `tag.rs`, `tag/` - keyed hashes that stand in a record for data about a person
//!
//! Invariants:
//! * No task dies unseen: the end, an error or a panic of an essential task stops the daemon with its reason.
//! * Recording an event never blocks and never fails the caller. An event that finds the queue full is counted. A
//!   flood of calls does not push other events out.
//! * An event is reported as recorded only when it is on the disk (`AuditSink::durable`).
//! * An event holds names that the operator of the box chose. Data that a caller chose is in it only as a tag.
//! * The crate uses `base` only, and has no logic of the domain.
//!
//! # Where it is decided
//!
//! * The events that are dropped when the queue is full: `audit_event/sink.rs`
//! * The end of a task stops the daemon: `shutdown.rs`
#![forbid(unsafe_code)]

pub mod shutdown;
pub mod readiness;
pub mod audit_event;
pub mod hint;
pub mod limited_process;
pub mod child_errors;
pub mod off_thread;
