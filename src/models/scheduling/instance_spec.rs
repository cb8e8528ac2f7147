//! The files of a model, how to load them, and how many instances there are.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ledge_base::principal::Principal;
use ledge_engine::Runtimes;
use ledge_engine::backend::{ComputeTime, LoadOptions, ModelFiles, Runtime};
use ledge_engine::warm_up::WarmUp;
use ledge_identity::sealing::EncryptedFolder;
use ledge_isolation::Isolation;

use super::faults::ModelFaults;
use super::load_terms::InstanceLoadLimit;
use super::queue::QueueLimits;

/// Is notified of each run of a model.
pub trait RunObserver: Send + Sync {
    /// Records a run over `rows` batch elements that took `time`, and `cpu` of its worker's CPU time, without a
    /// runtime's own threads.
    fn executed(&self, rows: usize, time: ComputeTime, cpu: Duration);

    /// Records the CPU time that a worker spent making the inputs of a request, or results of its outputs.
    fn prepared(&self, cpu: Duration);

    /// Records that a run, or the load of an instance, ended the process that it was in. `unloaded` is the reason why
    /// the model is not loaded again.
    fn crashed(&self, reason: &str, unloaded: Option<&str>);

    /// Records that a run was cancelled, because it went on after its deadline.
    fn cancelled(&self);

    /// Records that calls of this caller are refused for a time, because several ended the process of the model.
    fn refused(&self, caller: &Principal, time: Duration);

    /// Begins to count: runs from now on answer requests; earlier ones were warm-up.
    fn start(&self);
}

/// Files of a model, and how to load them.
pub struct InstanceSpec {
    /// The model's name: the runtime's own threads carry it.
    pub name: String,
    /// The name of the process that it may have to itself: its own, with the version.
    pub own_process: String,
    /// The libraries that every instance runs in.
    pub runtimes: Runtimes,
    pub runtime: Runtime,
    pub files: ModelFiles,
    /// Encrypted folder that is opened first, whenever an instance is loaded.
    pub sealed: Option<EncryptedFolder>,
    /// Options of the load. `threads` is the number of cores of one run.
    pub options: LoadOptions,
    pub scale: InstanceScale,
    pub limits: QueueLimits,
    /// The workers that may run it: indices into the engine's cores. Empty is all of them.
    pub workers: Vec<usize>,
    /// Is notified of runs.
    pub observer: Arc<dyn RunObserver>,
    /// Runs that every later instance does before it serves; set once the signature is known from the first one.
    pub warm_up: OnceLock<WarmUp>,
    /// The process that it runs in.
    pub isolation: Isolation,
    /// The faults of its processes; of a chain, those of all its models, which share states.
    pub faults: Arc<ModelFaults>,
    /// The time that a run may take before it counts as one that never ends.
    pub time_limit: Duration,
    /// The time that a load may take.
    pub load_terms: Arc<InstanceLoadLimit>,
}

impl std::fmt::Debug for InstanceSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InstanceSpec").field("name", &self.name).field("runtime", &self.runtime).finish_non_exhaustive()
    }
}

/// Number of instances, and their memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InstanceUsage {
    pub instances: usize,
    /// Memory of all of them in bytes, as estimated when they were loaded.
    pub bytes: u64,
    /// The estimated memory of one instance, also when there is none now: known since the first was loaded.
    pub bytes_each: u64,
    pub queued: usize,
    /// Those of them for which a caller waits.
    pub queued_interactive: usize,
    /// Its interactive calls run in the background, since its runs are long or were not measured yet.
    pub is_background: bool,
}

/// Number of instances of a model, and the rules that change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstanceScale {
    /// Lowest number while the model is in use. With 0 it has no instance until a call needs one.
    pub min: usize,
    /// Highest number.
    pub max: usize,
    pub threads: usize,
    /// Time that jobs may wait for an instance while a core is free, before another instance is loaded.
    pub target_queue_time: Duration,
    /// Time without use after which all instances are unloaded; `None` is never.
    pub keep_alive: Option<Duration>,
}
