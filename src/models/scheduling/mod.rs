//! Scheduling: runs all models on one budget of cores.
//!
//! Files, in reading order:
//! * `terms.rs` - terms of a run: deadline, priority, caller
//! * `outcome.rs`, `inputs.rs` - the outcome of a run, and the inputs of a job
//! * `queue.rs`, `queue/` - jobs that wait for one model: bounded, by priority, callers in turn
//! * `batch_policy.rs`, `batch_policy/` - the sizes of a joined run, and the time that it waits for requests
//! * `instance_spec.rs` - the files of a model, how to load them, and how many instances there are
//! * `scheduler.rs`, `scheduler/` - the next job and its core: the state and the rules
//! * `worker.rs` - a worker, which is one thread: takes a job, runs it, answers
//! * `waiting_groups.rs` - the jobs of calls that are ready at one moment, until they are run together
//! * `inline.rs` - inline runs on the thread of their callers, several in one hand-over
//! * `shared.rs` - the state behind its one lock; loads
//! * `engine.rs` - the handle of the engine and its threads; one unloads the instances that `scheduler.rs` finds idle
//! * `long_run.rs` - runs that take long: their deadline, their cancellation, and the end of their process
//! * `faults.rs`, `faults/` - the faults of a model in its processes, and the callers and inputs that are refused for
//!   them
//! * `input_digest.rs` - the digest by which such an input is recognized
//! * `exclusive_gate.rs` - concurrent and exclusive runs, to find the unknown cause of the end of a process
//! * `in_process.rs` - models in this process, only for tests
//! * `load_terms.rs` - the time that loads of a version may take
//! * `instance.rs` - the handle of one loaded version, for the layers above
//!
//! The folders hold tests.
//!
//! Invariants:
//! * Every job has a deadline. A queued job is dropped before any work is done for it when its caller left or its
//!   deadline passed.
//! * A run is tried again after its process ended, unless the run is the cause. It counts as the cause when the report
//!   of the crash names it, or when it was in three processes that ended without a known cause, in the last one alone
//!   (`UNEXPLAINED_ENDS_MAX`).
//! * Each core of the budget has two workers, pinned to it: one for the foreground, one for the background (`Tier`).
//!   In each tier, busy workers and workers reserved for a run of another
//!   worker never exceed the cores. One more, the spare, runs only while long runs hold every core.
//! * A run in another process has an end: beyond its deadline it is cancelled, and then its process is ended.
//! * An inference runs on a worker, or on the caller's thread when it is known to be brief. Any other inference never
//!   runs on an async thread.
//! * The state of scheduling is in `SchedulerState`, behind one lock. No model is run or loaded under that lock.
//! * `scheduler.rs` and `faults.rs` are pure: no thread, no clock.
//! * Rows of different callers never mix. An output without the batch as its first dimension turns batching off for
//!   that loaded model. When a joint run fails, each job runs by itself.
//! * Runs are counted through the `RunObserver` of the instance, after the version serves. Warm-up, golden inputs and
//!   measurements are not counted.
//! * A model is torn down before the process ends: destructors of a runtime crash when they run while a model is
//!   loaded.
//! * Workers sleep until they are woken or until something is due.
//! * No socket is opened, and no file written except OpenVINO's cache of compiled models.

pub mod batch_policy;
pub mod inline;
pub mod engine;
pub mod faults;
#[cfg(feature = "in-process")]
pub mod in_process;
mod input_digest;
pub mod inputs;
pub mod instance;
pub mod instance_spec;
pub mod load_terms;
mod long_run;
pub mod outcome;
pub mod queue;
pub mod scheduler;
mod shared;
pub mod terms;
mod exclusive_gate;
mod waiting_groups;
mod worker;
