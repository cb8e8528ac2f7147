//! Jobs: files and tables that models answer when there is time, in a window of the day, behind all callers.
//!
//! Files, in reading order:
//! * `config.rs` - `[jobs]`
//! * `spec.rs` - a job as it was added and as it ended, and its figures
//! * `cipher.rs` - the key of a job, and encryption with it
//! * `journal.rs` - the ended calls of a job, with their results
//! * `store.rs` - the folder of the queue
//! * `work.rs` - the files of a job that runs
//! * `queue.rs` - all jobs with their states, and the next one to run
//! * `runner.rs` - the task that runs them
//! * `http.rs`, `metrics.rs`, `doctor.rs` - jobs over HTTP, and their state
//! * `part.rs` - jobs as a part of the daemon
//!
//! Invariants:
//! * A call of a job is in its result once, however often the daemon is killed. It has ended when its frame is in the
//!   journal, fsynced.
//! * What came over HTTP, and its result, is on the disk only encrypted under the key of its job. Removing a job removes
//!   the key.
//! * A job reads and writes files of the owner only below `jobs.folders`, and follows no link there.
//! * All calls have the priority batch and the principal of the job's owner. No call is begun while one with a caller who
//!   waits has no place.
//! * Without jobs the task sleeps until one is added.
//! * The names of files, their content and results are in no log and in no audit record.
//!
//! # Where it is decided
//!
//! * The job that runs next, and how long the task sleeps: `queue.rs` (`JobQueue::next`)
//! * A failed call ends its file, its job, or is tried again: `ledge_part::api_error::FailureKind`, `runner.rs`
//!   (`JobCalls::call`), `work.rs` (`JobStop`)
#![forbid(unsafe_code)]

mod cipher;
pub mod config;
mod doctor;
pub mod http;
mod journal;
mod metrics;
pub mod part;
mod queue;
mod runner;
pub mod spec;
mod store;
mod work;

pub use spec::FORMAT_VERSION;
