//! The instances of one version of a model: the handle through which callers run it on any of them.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ledge_base::memory_budget::Account;
use ledge_base::principal::Principal;
use ledge_base::tensor::Tensor;
use ledge_engine::Runtimes;
use ledge_engine::backend::{ComputeTime, LoadError, LoadOptions, ModelFiles, RunError, RunResult, Runtime, Signature};
use ledge_engine::pipeline::kind::{AnswerError, InputError, Pipeline};
use ledge_engine::pipeline::setup::PipelineSetup;
use ledge_engine::pipeline::work::{WorkError, WorkInput};
use ledge_engine::warm_up::WarmUp;
use ledge_identity::sealing::SealedFolder;
use ledge_isolation::Isolation;
use ledge_service::off_thread::blocking;
use tokio::sync::{oneshot, watch};

use super::batcher::BatchPolicy;
use super::brief::{self, BriefRun};
use super::engine::Engine;
use super::faults::{Blamed, ModelFaults};
use super::input_digest::InputDigest;
use super::load_terms::LoadTerms;
use super::queue::{Job, JobInputs, QueueLimits};
use super::scheduler::InstanceScale;
use super::terms::{Priority, Terms};

/// Bytes from which on the digest of an input is computed off the async threads: this many take some tenths of a
/// millisecond.
const OFF_THREAD_DIGEST_BYTES_MIN: usize = 1 << 20;

/// Reason why a run returned no tensors.
#[derive(Debug, thiserror::Error)]
pub enum InferError {
    #[error("the queue is full ({depth} waiting)")]
    Overloaded { depth: usize },
    /// The deadline passed, in the queue or during the run.
    #[error("the deadline passed after {waited:?}")]
    DeadlineExceeded {
        /// Time since the call was queued.
        waited: Duration,
        /// The run, which may still be in progress; `None` when the call was not queued.
        run: Option<LateRun>,
    },
    /// The model was unloaded while idle, and cannot be loaded again.
    #[error("the model cannot be loaded again: {reason}")]
    Unavailable { reason: String },
    /// Calls like it ended the process of the model before.
    #[error(transparent)]
    Blamed(#[from] Blamed),
    /// The data sent could not be made into the model's inputs.
    #[error(transparent)]
    Preparation(#[from] InputError),
    #[error(transparent)]
    Run(#[from] RunError),
    /// The outputs of the run are no results.
    #[error(transparent)]
    Outputs(AnswerError),
}

/// The class of a run that gave no answer, which decides its status and what it says about the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureClass {
    Overloaded,
    DeadlineExceeded,
    /// The model cannot be loaded again now, or its process ended for another reason than this run.
    Unavailable,
    /// This run ended the process of the model.
    Crashed,
    /// Calls like it ended the process of the model before.
    Blamed,
    /// The caller's values.
    BadInput,
    NoRoom,
    /// The model or its runtime.
    Failed,
}

impl InferError {
    pub fn class(&self) -> FailureClass {
        match self {
            Self::Overloaded { .. } => FailureClass::Overloaded,
            // The end of a cancelled run came before its call noticed its deadline.
            Self::DeadlineExceeded { .. } | Self::Run(RunError::Cancelled) => FailureClass::DeadlineExceeded,
            Self::Unavailable { .. }
            | Self::Preparation(InputError::StateLost(_))
            | Self::Run(RunError::Interrupted { .. }) => FailureClass::Unavailable,
            Self::Run(RunError::Crashed { .. }) => FailureClass::Crashed,
            Self::Blamed(_) => FailureClass::Blamed,
            Self::Preparation(InputError::Content(_)) | Self::Run(RunError::Input { .. }) => FailureClass::BadInput,
            Self::Preparation(InputError::NoRoom(_)) => FailureClass::NoRoom,
            Self::Run(RunError::Runtime { .. } | RunError::Output { .. } | RunError::InProgress) | Self::Outputs(_) => {
                FailureClass::Failed
            }
        }
    }
}

impl From<WorkError> for InferError {
    fn from(error: WorkError) -> Self {
        match error {
            WorkError::Input(error) => Self::Preparation(error),
            WorkError::Run(error) => Self::Run(error),
            WorkError::Outputs(error) => Self::Outputs(error),
            // Only of several calls, each of which runs by itself then.
            WorkError::NotBatched(error) => Self::Outputs(AnswerError::Outputs(error.to_string())),
        }
    }
}

/// Inputs that a pipeline makes on a worker.
#[derive(Debug)]
pub struct RawInputs {
    pub pipeline: Arc<dyn Pipeline>,
    pub input: WorkInput,
    /// Pays for intermediate results.
    pub account: Account,
    /// The number of outputs that the caller asked for, in front of those of the pipeline.
    pub own: usize,
}

impl RawInputs {
    /// True when both can be one run: photographs, of which a pipeline makes tensors of one shape.
    pub fn can_batch_with(&self, other: &Self) -> bool {
        let both = [self, other].iter().all(|raw| raw.input.is_photograph());
        both && self.own == other.own && Arc::ptr_eq(&self.pipeline, &other.pipeline)
    }
}

/// A finished run.
#[derive(Debug, Default)]
pub struct FinishedRun {
    /// The outputs and the time they took.
    pub run: RunResult,
    pub queue: Duration,
    /// Time spent making the inputs, where they were not tensors.
    pub prepare: Duration,
    /// Time spent making results of the outputs, where they are not the results.
    pub postprocess: Duration,
    /// The time of each model of a chain, with making its inputs and reading its outputs.
    pub stages: Vec<(&'static str, Duration)>,
}

/// A call whose deadline passed before its answer came. Its run may be in progress, or never begin.
#[derive(Debug)]
pub struct LateRun(oneshot::Receiver<Result<FinishedRun, InferError>>);

impl LateRun {
    /// Waits for the answer. `None`: the run never began.
    pub async fn ended(self) -> Option<Result<FinishedRun, InferError>> {
        self.0.await.ok()
    }
}

/// Is notified of each run of a model.
pub trait Observer: Send + Sync {
    /// Records a run over `rows` batch elements that took `time`, and `cpu` of its worker's CPU time, without a
    /// runtime's own threads.
    fn executed(&self, rows: usize, time: ComputeTime, cpu: Duration);

    /// Records the CPU time that a worker spent making the inputs of a request, or results of its outputs.
    fn prepared(&self, cpu: Duration);

    /// Records that a run, or the load of an instance, ended the process that it was in. `unloaded` is the reason why the
    /// model is not loaded again.
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
    pub sealed: Option<SealedFolder>,
    /// Options of the load. `threads` is the number of cores of one run.
    pub options: LoadOptions,
    pub scale: InstanceScale,
    pub limits: QueueLimits,
    /// The workers that may run it: indices into the engine's cores. Empty is all of them.
    pub workers: Vec<usize>,
    /// Is notified of runs.
    pub observer: Arc<dyn Observer>,
    /// Runs that every later instance does before it serves; set once the signature is known from the first one.
    pub warm_up: OnceLock<WarmUp>,
    /// The process that it runs in.
    pub isolation: Isolation,
    /// The faults of its processes; of a chain, those of all its models, which share states.
    pub faults: Arc<ModelFaults>,
    /// The time that a run may take before it counts as one that never ends.
    pub time_limit: Duration,
    /// The time that a load may take.
    pub load_terms: Arc<LoadTerms>,
}

impl std::fmt::Debug for InstanceSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InstanceSpec").field("name", &self.name).field("runtime", &self.runtime).finish_non_exhaustive()
    }
}

/// A handle to the instances of one version of a model. Dropping it unloads the instances, which frees the model.
#[derive(Debug)]
pub struct Instances {
    engine: Engine,
    id: u64,
    spec: Arc<InstanceSpec>,
    signature: Signature,
    alive: Arc<watch::Sender<()>>,
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
}

impl Instances {
    /// Loads the minimum number of instances, at least one.
    pub async fn start(engine: &Engine, spec: InstanceSpec) -> Result<Self, LoadError> {
        let (spec, alive) = (Arc::new(spec), Arc::<watch::Sender<()>>::default());
        let first = engine.load(&spec, &alive).await?;
        let signature = first.backend.signature().clone();
        // Created now: when a later instance fails to load, dropping this unloads the earlier ones.
        let instances = Self { id: engine.add(&spec, &alive, first), engine: engine.clone(), spec, signature, alive };
        for _ in 1..instances.spec.scale.min {
            match engine.load(&instances.spec, &instances.alive).await {
                Ok(next) => engine.put(instances.id, next),
                Err(error) => {
                    let ended = instances.ended();
                    drop(instances);
                    ended.await;
                    return Err(error);
                }
            }
        }
        Ok(instances)
    }

    /// Joins requests into batches from now on.
    pub fn set_batching(&self, policy: BatchPolicy) {
        self.engine.with(self.id, |entry| entry.batching = Some(policy));
    }

    /// Current rule for joining requests; `None` when each runs by itself.
    pub fn batching(&self) -> Option<BatchPolicy> {
        self.engine.with(self.id, |entry| entry.batching.clone())?
    }

    /// Bounds on the jobs of each priority that may wait.
    pub fn limits(&self) -> QueueLimits {
        self.spec.limits
    }

    /// Number of waiting jobs, when another call of that caller would be refused now because the queue is full;
    /// otherwise `None`.
    pub fn refusal(&self, priority: Priority, principal: &Principal) -> Option<usize> {
        self.engine.with(self.id, |entry| entry.queue.refusal(priority, principal))?
    }

    /// Sets the warm-up that every later instance runs before it serves. Only the first call has an effect.
    pub fn warm_up_with(&self, warm_up: WarmUp) {
        let _ = self.spec.warm_up.set(warm_up);
    }

    /// The pipeline `twin` for these instances, which is bound of `setup`: bytes are read in the process of the instances.
    pub fn pipeline(&self, twin: Arc<dyn Pipeline>, setup: PipelineSetup) -> Arc<dyn Pipeline> {
        if self.is_elsewhere() { self.engine.children().pipeline(twin, setup) } else { twin }
    }

    /// True for instances in another process. All are, but in tests that ask for others.
    fn is_elsewhere(&self) -> bool {
        !self.engine.is_in_process()
    }

    /// Reports to the observer that runs answer requests from now on.
    pub fn count_runs(&self) {
        self.spec.observer.start();
    }

    /// The runtime that runs the model.
    pub fn runtime(&self) -> Runtime {
        self.spec.runtime
    }

    /// True when its instances run in the library of these runtimes.
    pub fn runs_in(&self, runtimes: &Runtimes) -> bool {
        let runtime = self.spec.runtime;
        self.spec.runtimes.folder_of(runtime) == runtimes.folder_of(runtime)
    }

    /// Inputs and outputs of the model.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Bounds of the number of instances, and the cores of one run.
    pub fn scale(&self) -> InstanceScale {
        self.spec.scale
    }

    /// The faults of its processes.
    pub fn faults(&self) -> &Arc<ModelFaults> {
        &self.spec.faults
    }

    /// Unloads the instances that do not run now.
    pub fn evict(&self) {
        self.engine.evict(self.id);
    }

    /// Number of instances now, and their memory.
    pub fn instance_usage(&self) -> InstanceUsage {
        self.engine.with(self.id, |entry| entry.instance_usage()).unwrap_or_default()
    }

    /// Memory of the process that the instances have to themselves, in bytes; `None` where they share one.
    pub fn own_memory(&self) -> Option<u64> {
        self.engine.children().memory_of(&self.spec.own_process)
    }

    /// A future that ends when the last instance has ended and its memory is freed.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let alive = self.alive.clone();
        async move { alive.closed().await }
    }

    /// Runs the model once. The inputs are in the signature's order and fit it; they hold `rows` batch elements.
    pub async fn run(
        &self,
        inputs: Vec<Tensor>,
        outputs: Vec<usize>,
        rows: usize,
        terms: Terms,
    ) -> Result<FinishedRun, InferError> {
        if Instant::now() >= terms.deadline {
            return Err(InferError::DeadlineExceeded { waited: Duration::ZERO, run: None });
        }
        if self.spec.faults.has_any() {
            // Boxed: a call of a model without faults does not reserve space for this future.
            let digest = || {
                let (inputs, outputs) = (inputs.clone(), outputs.clone());
                move || Some(InputDigest::of_tensors(&inputs, &outputs))
            };
            let bytes = inputs.iter().map(|tensor| tensor.data().len()).sum();
            Box::pin(self.admit(&terms.principal, bytes, digest)).await?;
        }
        if self.is_elsewhere() && brief::has_company() {
            return self.run_grouped(inputs, outputs, rows, terms).await;
        }
        let begun = Instant::now();
        let unexplained_ends = match self.engine.shared().run_brief(self.id, &inputs, &outputs, rows, &terms) {
            None => 0,
            Some(BriefRun::Ended(Err(RunError::Interrupted { is_explained, .. }))) => u8::from(!is_explained),
            Some(BriefRun::Ended(result)) => {
                let finished = result.map(|run| FinishedRun { run, ..FinishedRun::default() });
                return finished.map_err(InferError::Run);
            }
            Some(BriefRun::InProgress(answer)) => return answer_within(begun, terms.deadline, answer).await,
        };
        self.run_queued(JobInputs::Tensors(inputs), outputs, rows, terms, unexplained_ends).await
    }

    /// Runs the model together with other calls that are ready now.
    async fn run_grouped(
        &self,
        inputs: Vec<Tensor>,
        outputs: Vec<usize>,
        rows: usize,
        terms: Terms,
    ) -> Result<FinishedRun, InferError> {
        let (deadline, (reply, answer)) = (terms.deadline, oneshot::channel());
        let job = Job::new(JobInputs::Tensors(inputs), outputs, rows, terms, reply);
        let queued = job.queued;
        if let Some(lead) = self.engine.shared().join(self.id, job) {
            // The others that are ready join meanwhile.
            tokio::task::yield_now().await;
            drop(lead);
        }
        answer_within(queued, deadline, answer).await
    }

    /// Makes inputs on a worker, and runs the model on them.
    pub async fn run_raw(&self, raw: RawInputs, outputs: Vec<usize>, terms: Terms) -> Result<FinishedRun, InferError> {
        if self.spec.faults.has_any() {
            let digest = || {
                let (input, outputs) = (raw.input.clone(), outputs.clone());
                move || InputDigest::of_work(&input, &outputs)
            };
            Box::pin(self.admit(&terms.principal, raw.input.bytes(), digest)).await?;
        }
        let rows = raw.input.rows();
        self.run_queued(JobInputs::Raw(raw), outputs, rows, terms, 0).await
    }

    /// Admits a call of a model that had faults. `digest` gives the means to compute that of its input, which has `bytes`.
    async fn admit<D: FnOnce() -> Option<InputDigest> + Send + 'static>(
        &self,
        caller: &Principal,
        bytes: usize,
        digest: impl FnOnce() -> D,
    ) -> Result<(), InferError> {
        let faults = &self.spec.faults;
        if *caller == Principal::Local {
            return Ok(());
        }
        if let Some(reason) = faults.unloaded() {
            return Err(InferError::Unavailable { reason });
        }
        let input = match () {
            () if !faults.needs_input() => None,
            () if bytes < OFF_THREAD_DIGEST_BYTES_MIN => digest()(),
            () => blocking(digest()).await,
        };
        Ok(faults.admit(caller, input.as_ref(), Instant::now())?)
    }

    async fn run_queued(
        &self,
        inputs: JobInputs,
        outputs: Vec<usize>,
        rows: usize,
        terms: Terms,
        unexplained_ends: u8,
    ) -> Result<FinishedRun, InferError> {
        let (deadline, (reply, answer)) = (terms.deadline, oneshot::channel());
        let job = Job { unexplained_ends, ..Job::new(inputs, outputs, rows, terms, reply) };
        let queued = job.queued;
        self.engine.shared().offer(self.id, job);
        answer_within(queued, deadline, answer).await
    }
}

/// Waits for the answer of a call that was queued at `queued`.
async fn answer_within(
    queued: Instant,
    deadline: Instant,
    mut answer: oneshot::Receiver<Result<FinishedRun, InferError>>,
) -> Result<FinishedRun, InferError> {
    match tokio::time::timeout_at(deadline.into(), &mut answer).await {
        Ok(Ok(answer)) => answer,
        // The queue drops a job without an answer only when its deadline passed.
        Ok(Err(_)) => Err(InferError::DeadlineExceeded { waited: queued.elapsed(), run: None }),
        Err(_) => Err(InferError::DeadlineExceeded { waited: queued.elapsed(), run: Some(LateRun(answer)) }),
    }
}

impl Drop for Instances {
    fn drop(&mut self) {
        self.engine.remove(self.id);
    }
}
