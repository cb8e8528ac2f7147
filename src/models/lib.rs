//! Models as they are served: on disk and loaded, scheduled on the cores, and one inference for every protocol.
//!
//! Folders and files, in reading order; the `mod.rs` of each has its map:
//! * `scheduling/` - all models on one budget of cores: queues, batches, two workers a core
//! * `repository/` - the model repository on disk and loaded: versions, golden answers, statistics, candidates of
//!   updates
//! * `serving/` - one inference: admission, response cache, features, the run, the count
//! * `runtimes.rs`, `runtimes/` - `[runtimes]`, and findings about the libraries of the runtimes
//! * `digest.rs` - values of a call in a hash, for the response cache and for inputs that ended a process
//! * `status.rs` - the HTTP status of each error of a call; MQTT answers carry the same numbers
//! * `part.rs`, `metrics.rs` - the models as a part of the daemon, and their metrics
//!
//! Invariants:
//! * A live version is removed only when its replacement is ready.
//! * No protocol is decoded here. HTTP, MQTT and the command line call `serving`.
//! * Rows of different callers never mix.
//! * Requests are counted and audited once, in `serving`. Runs are counted where they happen, in `scheduling`.
//! * `scheduling` knows nothing of `repository`, and `repository` nothing of `serving`.
//!
//! # Where it is decided
//!
//! * The tier of a call: `ScheduledModel::tier` in `scheduling/scheduler.rs`. Interactive calls of models with short
//!   runs are in the foreground; all others are in the background, which gets the CPU time that the foreground leaves
//! * The calls that become one run: `PriorityLevel::turns` in `scheduling/queue.rs`, under the limits of
//!   `scheduling/batch_policy.rs`; the split of its outputs: `engine/batch.rs`
//! * A full queue (429): `scheduling/queue.rs` (`offer`); before a large body is read: `Serving::refusal` in
//!   `serving/mod.rs`
//! * The key of a kept answer: `serving/cache/key.rs`. Its end: a `ResponseCache` belongs to one loaded version
//!   (`LoadedModel::attached`) and is dropped with it
//! * The runtime of a model with `auto`: `load_isolated` and `choose` in `repository/loading.rs`
//! * An idle instance is unloaded: `expired` in `scheduling/scheduler.rs`
//! * The labels of an output fit its classes: `LoadedModel::check_labels` in `repository/loaded_model.rs`
//! * A model gets a process of its own, or is unloaded after crashes: `scheduling/faults.rs`; for a new version:
//!   `repository/loading.rs` (`load_read`, `try_first`)
//! * A caller or an input is refused after crashes: `scheduling/faults.rs`
//! * A run that goes on after its deadline: `scheduling/long_run.rs`; the cores that such runs may hold:
//!   `scheduling/scheduler.rs`
//! * A worker that hangs: `InferScheduler::heartbeat` in `scheduling/engine.rs`, which `daemon/health.rs` waits for
//! * A version is new, known or failed before, and the time of its next try: `repository/known.rs`, from
//!   `repository/load_records.rs` with the file `load_records.json`
//! * The jobs and times of the steps of a chain: `repository/chain.rs`
//! * A missing mechanism of the sandbox is a warning, or only information: `runtimes/sandbox.rs`, by
//!   `Mechanism::is_essential` in `sandbox/report.rs`
#![forbid(unsafe_code)]

mod digest;
mod metrics;
mod part;
pub mod repository;
pub mod runtimes;
pub mod scheduling;
pub mod serving;
pub mod status;
