//! The instances of one version of a model: the handle through which callers run it on any of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge_base::principal::Principal;
use ledge_base::tensor::Tensor;
use ledge_engine::Runtimes;
use ledge_engine::backend::{ModelLoadError, ModelRunError, ModelSignature, Runtime};
use ledge_engine::pipeline::kind::Pipeline;
use ledge_engine::pipeline::setup::PipelineSetup;
use ledge_engine::warm_up::WarmUp;
use ledge_service::off_thread::blocking;
use tokio::sync::{oneshot, watch};

use super::batch_policy::BatchPolicy;
use super::engine::InferScheduler;
use super::faults::ModelFaults;
use super::inline::{self, InlineRun};
use super::input_digest::InputDigest;
use super::inputs::JobInputs;
pub use super::inputs::PipelineInputs;
use super::instance_spec::InstanceScale;
pub use super::instance_spec::{InstanceSpec, InstanceUsage, RunObserver};
pub use super::outcome::{FailureClass, FinishedRun, InferError, LateAnswer};
use super::queue::{InferJob, QueueLimits};
use super::terms::{Priority, RunTerms};

/// Bytes from which on the digest of an input is computed off the async threads: this many take some tenths of a
/// millisecond.
const OFF_THREAD_DIGEST_BYTES_MIN: usize = 1 << 20;

/// A handle to the instances of one version of a model. Dropping it unloads the instances, which frees the model.
#[derive(Debug)]
pub struct ModelInstances {
    engine: InferScheduler,
    id: u64,
    spec: Arc<InstanceSpec>,
    signature: ModelSignature,
    alive: Arc<watch::Sender<()>>,
}

impl ModelInstances {
    /// Loads the minimum number of instances, at least one.
    pub async fn start(engine: &InferScheduler, spec: InstanceSpec) -> Result<Self, ModelLoadError> {
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

    /// The pipeline `proxy` for these instances, which is bound of `setup`: bytes are read in the process of the
    /// instances.
    pub fn pipeline(&self, proxy: Arc<dyn Pipeline>, setup: PipelineSetup) -> Arc<dyn Pipeline> {
        if self.is_elsewhere() { self.engine.children().pipeline(proxy, setup) } else { proxy }
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
    pub fn signature(&self) -> &ModelSignature {
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

    /// Runs the model once. The inputs are in the signature's order and fit it; they have `rows` batch elements.
    pub async fn run(
        &self,
        inputs: Vec<Tensor>,
        outputs: Vec<usize>,
        rows: usize,
        terms: RunTerms,
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
        if self.is_elsewhere() && inline::has_company() {
            return self.run_grouped(inputs, outputs, rows, terms).await;
        }
        let begun = Instant::now();
        let unexplained_ends = match self.engine.shared().run_inline(self.id, &inputs, &outputs, rows, &terms) {
            None => 0,
            Some(InlineRun::Ended(Err(ModelRunError::Interrupted { is_explained, .. }))) => u8::from(!is_explained),
            Some(InlineRun::Ended(result)) => {
                let finished = result.map(FinishedRun::alone);
                return finished.map_err(InferError::Run);
            }
            Some(InlineRun::InProgress(answer)) => return answer_within(begun, terms.deadline, answer).await,
        };
        self.run_queued(JobInputs::Tensors(inputs), outputs, rows, terms, unexplained_ends).await
    }

    /// Runs the model together with other calls that are ready now.
    async fn run_grouped(
        &self,
        inputs: Vec<Tensor>,
        outputs: Vec<usize>,
        rows: usize,
        terms: RunTerms,
    ) -> Result<FinishedRun, InferError> {
        let (deadline, (reply, answer)) = (terms.deadline, oneshot::channel());
        let job = InferJob::new(JobInputs::Tensors(inputs), outputs, rows, terms, reply);
        let queued = job.queued;
        if let Some(lead) = self.engine.shared().join(self.id, job) {
            // The others that are ready join meanwhile.
            tokio::task::yield_now().await;
            drop(lead);
        }
        answer_within(queued, deadline, answer).await
    }

    /// Makes inputs on a worker, and runs the model on them.
    pub async fn run_raw(
        &self,
        raw: PipelineInputs,
        outputs: Vec<usize>,
        terms: RunTerms,
    ) -> Result<FinishedRun, InferError> {
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

    /// Admits a call of a model that had faults. `digest` gives the means to compute that of its input, which has
    /// `bytes`.
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
        terms: RunTerms,
        unexplained_ends: u8,
    ) -> Result<FinishedRun, InferError> {
        let (deadline, (reply, answer)) = (terms.deadline, oneshot::channel());
        let job = InferJob { unexplained_ends, ..InferJob::new(inputs, outputs, rows, terms, reply) };
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
        Err(_) => Err(InferError::DeadlineExceeded { waited: queued.elapsed(), run: Some(LateAnswer(answer)) }),
    }
}

impl Drop for ModelInstances {
    fn drop(&mut self) {
        self.engine.remove(self.id);
    }
}
