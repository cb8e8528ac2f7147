//! Models in processes of their own: a small daemon, and children that hold the runtimes and whatever reads foreign
//! bytes.
//!
//! Files, in reading order:
//! * `isolation_setting.rs` - `isolation` in files: the process that a model runs in
//! * `child_settings.rs` - the settings of all children
//! * `pool.rs` - the children: the shared one, and those of models that have one to themselves
//! * `own_folders.rs` - `ChildFolders`, the folders of one child
//! * `worker_process.rs` - a child with the pipelines that it has bound
//! * `process.rs` - one child, from the daemon: its start, its orders, its end
//! * `exit_status.rs` - the end of a process, in words
//! * `heartbeat.rs` - signs of life of a child and of the spawner, to notice one that is stopped or frozen
//! * `starter.rs` - the start of a process of this program, by the spawner or directly
//! * `spawner.rs`, `spawner/` - the small process that starts the others, since the daemon may not write code
//! * `doctor.rs` - the sandbox of a child, for findings
//! * `remote.rs` - a model in a child, behind the trait `Backend`
//! * `pipeline.rs` - the daemon's proxies of pipelines that run in children
//! * `staged_files.rs` - the files of a model, laid out where a child may read them
//! * `wire.rs` - what passes between the processes
//! * `channel.rs` - orders and their results, over a socket
//! * `job_channel.rs`, `job_channel/` - jobs and answers, through the shared memory of one core; the folder has tests
//! * `shared_memory.rs` - that memory
//! * `child/` - the child, from inside: `mod.rs` its threads and orders, `reading.rs` model files, `models.rs` what it
//!   loaded, `jobs.rs` the thread of a core, `running.rs` the runs that can be cancelled, `threads.rs` what every
//!   thread needs, `idle_memory.rs` the release of memory after runs, `crash.rs` the note of who crashed, `faults.rs`
//!   faults for tests
//!
//! Invariants:
//! * The daemon loads no runtime, and reads no file of a model but to hash it. A model runs in a child and nowhere
//!   else, except in a build for tests (`models/scheduling/in_process.rs`).
//! * Nothing that a child says is believed: lengths, places, counts and datatypes are checked against what was asked,
//!   on a copy. A child that lies is ended.
//! * A child holds no key, no socket but the one to the daemon, and no file but those that its models need. Its errors
//!   go into a pipe that the daemon reads and bounds; what was left open when Ledge was started is closed there.
//! * A child ends with the daemon, and with its last model.
//! * Unsafe code is in `shared_memory.rs` only.
//!
//! # Where it is decided
//!
//! * A child or the spawner is frozen: `heartbeat.rs`, `spawner.rs`
//! * While the disk cannot be written, a child has folders in memory only: `ChildFolders::create` in `own_folders.rs`
//! * The release of a lease, the state that the steps of a call keep in children: `RemotePipeline::release` in
//!   `pipeline.rs`, in every child that has bound the pipeline; `child/mod.rs` frees it there
//! * The memory that a call may take in a child: `remote.rs` (`run_work`)
//!
//! # One run
//!
//! The worker of a core, or the caller's thread for an inline run, writes the tensors into the job channel of that
//! core, wakes the child's thread there, and sleeps until the answer. Inline runs of several callers go there together.
//! One thread is awake for each core, whichever process it is in, and the scheduler decides about all of them.
//!
//! # The end of a child
//!
//! The watcher of a child sees its socket closed, makes sure that the process is gone, and reads from the crash report
//! which thread of a core, or which load, crashed. That run gets
//! [`ModelRunError::Crashed`](ledge_engine::backend::ModelRunError::Crashed), and the others get `Interrupted`: they
//! may run again elsewhere, since an inference has no side effects. After SIGKILL, or a crash in a runtime's own
//! thread, the cause may not be known. All are `Interrupted` then, and the scheduler finds the cause by more tries.
//!
//! When memory has run out, the thread that crashes is not the cause. The run or load that holds most of the memory is
//! to blame, or the only one that there is; else all are `Interrupted`, as above.
//!
//! A child that is stopped or frozen from outside gets SIGCONT, and is ended when that does not help. No run is to
//! blame then (`ThreadWork::None`).

pub mod child;
mod channel;
mod child_settings;
mod doctor;
mod exit_status;
mod heartbeat;
mod isolation_setting;
mod job_channel;
mod own_folders;
mod pipeline;
mod pool;
mod process;
mod remote;
mod shared_memory;
pub mod spawner;
mod staged_files;
pub mod starter;
mod wire;
mod worker_process;

pub use child::crash::ThreadWork;
pub use child_settings::ChildSettings;
pub use doctor::sandbox_report;
pub use isolation_setting::{Isolation, IsolationFinding, IsolationSetting};
pub use job_channel::JOBS_MAX as HAND_OVER_MAX;
pub use pool::{ChildUsage, Children, KeptWorkerProcess, ModelLoadRequest, TrialProcessFailure, remove_leftovers};
pub use process::{ChildEnd, ChildId, ModelReadError, OnEnd};
pub use remote::RemoteBackend;
pub use spawner::{ForkServer, SPAWNER_VARIABLE, SpawnerProcess};
pub use starter::{ChildStarter, ChildUser};
pub use wire::JobChannelThread;
#[cfg(any(test, feature = "fuzzing"))]
pub use wire::fuzz_child_message;
