//! The instances of one version of a model: how callers run it, whatever instance that takes.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ledge_base::principal::Principal;
use ledge_base::tensor::Tensor;
use ledge_engine::backend::{ComputeTime, LoadError, LoadOptions, ModelFiles, RunError, RunResult, Runtime, Signature};
use ledge_identity::sealing::SealedFolder;
use tokio::sync::{oneshot, watch};

use super::batcher::BatchPolicy;
use super::engine::Engine;
use super::queue::{Job, JobInputs, Preparation, QueueLimits, Unprepared};
use super::scheduler::Scale;
use super::terms::{Priority, Terms};
use super::warm_up::WarmUp;

/// Why a run gave no tensors.
#[derive(Debug, thiserror::Error)]
pub enum InferError {
    #[error("the queue is full ({depth} waiting)")]
    Overloaded { depth: usize },
    /// The deadline passed, in the queue or during the run.
    #[error("the deadline passed after {waited:?}")]
    DeadlineExceeded {
        /// Time since the call was queued.
        waited: Duration,
        /// The run, which may still be under way; `None` when the call was not queued.
        run: Option<LateRun>,
    },
    /// The model had been given up while idle, and cannot be loaded again.
    #[error("the model cannot be loaded again: {reason}")]
    Unavailable { reason: String },
    /// What came could not be made into the model's inputs.
    #[error(transparent)]
    Unprepared(#[from] Unprepared),
    #[error(transparent)]
    Run(#[from] RunError),
}

/// A finished run.
#[derive(Debug)]
pub struct Answer {
    /// The outputs and the time they took.
    pub run: RunResult,
    pub queue: Duration,
    /// Time of making the inputs, where they were not tensors.
    pub prepare: Duration,
}

/// A call whose deadline passed before its answer came. Its run may be under way, or never begin.
#[derive(Debug)]
pub struct LateRun(oneshot::Receiver<Result<Answer, InferError>>);

impl LateRun {
    /// Waits for the answer. `None`: the run never began.
    pub async fn ended(self) -> Option<Result<Answer, InferError>> {
        self.0.await.ok()
    }
}

/// Is told of each run of a model.
pub trait Observer: Send + Sync {
    /// A run over `rows` batch elements took `time`, and `cpu` of its worker's CPU time; a runtime's own threads are
    /// not in it.
    fn executed(&self, rows: usize, time: ComputeTime, cpu: Duration);

    /// Making the inputs of a request took that much of the worker's CPU time.
    fn prepared(&self, cpu: Duration);

    /// From now on runs answer requests; those before were warm-up.
    fn start(&self);
}

/// What a model is loaded from and how.
pub struct Spec {
    /// The model's name: the runtime's own threads carry it.
    pub name: String,
    pub runtime: Runtime,
    pub files: ModelFiles,
    /// Where they are to be opened first, whenever an instance is loaded.
    pub sealed: Option<SealedFolder>,
    /// How to load them. `threads` is the number of cores of one run.
    pub options: LoadOptions,
    pub scale: Scale,
    pub limits: QueueLimits,
    /// The workers that may run it: indices into the engine's cores. Empty is all of them.
    pub workers: Vec<usize>,
    /// Who is told of runs.
    pub observer: Arc<dyn Observer>,
    /// What every later instance runs before it serves; set once the first one has told its signature.
    pub warm_up: OnceLock<WarmUp>,
}

impl std::fmt::Debug for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spec").field("name", &self.name).field("runtime", &self.runtime).finish_non_exhaustive()
    }
}

/// A handle to the instances of one version of a model. Dropping it gives up the instances, which frees the model.
#[derive(Debug)]
pub struct Instances {
    engine: Engine,
    id: u64,
    spec: Arc<Spec>,
    signature: Signature,
    alive: Arc<watch::Sender<()>>,
}

/// How many instances there are, and what they take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Residence {
    pub instances: usize,
    /// Their memory together, in bytes, as far as it could be measured when they were loaded.
    pub bytes: u64,
    /// The memory of one instance, also when there is none now: known since the first was loaded.
    pub bytes_each: u64,
    pub queued: usize,
}

impl Instances {
    /// Loads the minimum of instances, one at least.
    pub async fn start(engine: &Engine, spec: Spec) -> Result<Self, LoadError> {
        let (spec, alive) = (Arc::new(spec), Arc::<watch::Sender<()>>::default());
        let first = engine.load(&spec, &alive).await?;
        let signature = first.backend.signature().clone();
        // Made now: when a later instance fails to load, dropping this gives up the earlier ones.
        let instances = Self { id: engine.add(&spec, first), engine: engine.clone(), spec, signature, alive };
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

    /// Lets requests be put together from now on.
    pub fn batch(&self, policy: BatchPolicy) {
        self.engine.with(self.id, |entry| entry.batching = Some(policy));
    }

    /// How requests are put together now; `None` when each runs alone.
    pub fn batching(&self) -> Option<BatchPolicy> {
        self.engine.with(self.id, |entry| entry.batching.clone())?
    }

    /// How much of each priority may wait.
    pub fn limits(&self) -> QueueLimits {
        self.spec.limits
    }

    /// How many wait, when another call of that caller would be refused for their number as things stand.
    pub fn refusal(&self, priority: Priority, principal: &Principal) -> Option<usize> {
        self.engine.with(self.id, |entry| entry.queue.refusal(priority, principal))?
    }

    /// Has every later instance run this before it serves. The first call counts.
    pub fn warm_up_with(&self, warm_up: WarmUp) {
        let _ = self.spec.warm_up.set(warm_up);
    }

    /// Tells the observer that from now on runs answer requests.
    pub fn count_runs(&self) {
        self.spec.observer.start();
    }

    /// The runtime that runs the model.
    pub fn runtime(&self) -> Runtime {
        self.spec.runtime
    }

    /// What the model takes and gives.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Between which numbers of instances, and cores of one run.
    pub fn scale(&self) -> Scale {
        self.spec.scale
    }

    /// How many instances there are now.
    pub fn residence(&self) -> Residence {
        self.engine.with(self.id, |entry| entry.residence()).unwrap_or_default()
    }

    /// A future that ends when the last instance has ended and its memory is given back.
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
    ) -> Result<Answer, InferError> {
        if Instant::now() >= terms.deadline {
            return Err(InferError::DeadlineExceeded { waited: Duration::ZERO, run: None });
        }
        if let Some(result) = self.engine.run_brief(self.id, &inputs, &outputs, rows) {
            return Ok(Answer { run: result?, queue: Duration::ZERO, prepare: Duration::ZERO });
        }
        self.run_queued(JobInputs::Tensors(inputs), outputs, rows, terms).await
    }

    /// Makes the inputs of one batch element on a worker, from `bytes` bytes that wait meanwhile, and runs the model on
    /// them.
    pub async fn run_prepared(
        &self,
        make: Preparation,
        bytes: usize,
        outputs: Vec<usize>,
        terms: Terms,
    ) -> Result<Answer, InferError> {
        self.run_queued(JobInputs::Prepare { make, bytes }, outputs, 1, terms).await
    }

    async fn run_queued(
        &self,
        inputs: JobInputs,
        outputs: Vec<usize>,
        rows: usize,
        terms: Terms,
    ) -> Result<Answer, InferError> {
        let (queued, deadline) = (Instant::now(), terms.deadline);
        let (reply, mut answer) = oneshot::channel();
        self.engine.offer(self.id, &self.spec, &self.alive, Job { inputs, outputs, rows, terms, queued, reply });
        match tokio::time::timeout_at(deadline.into(), &mut answer).await {
            Ok(Ok(answer)) => answer,
            // The queue drops a job unanswered only when its deadline passed.
            Ok(Err(_)) => Err(InferError::DeadlineExceeded { waited: queued.elapsed(), run: None }),
            Err(_) => Err(InferError::DeadlineExceeded { waited: queued.elapsed(), run: Some(LateRun(answer)) }),
        }
    }
}

impl Drop for Instances {
    fn drop(&mut self) {
        self.engine.remove(self.id);
    }
}
