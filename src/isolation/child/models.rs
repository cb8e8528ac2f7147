//! The models of a child, each behind its own lock, because the daemon runs an instance once at a time.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ledge_base::memory_budget::{MemoryAccount, MemoryBudget};
use ledge_base::principal::Principal;
use ledge_base::telemetry::process;
use ledge_engine::backend::{Backend, CancelRun, ModelLoadError, Runtime};
use ledge_engine::pipeline::kind::Pipeline;
use ledge_engine::pipeline::setup::PipelineSetup;
use ledge_engine::pipeline::work::panic_message;
use ledge_engine::warm_up::WarmUp;
use ledge_engine::{Runtimes, cores};

use super::idle_memory::{IdleMemory, ReleasedMemory};
use crate::wire::{ChildLoadRequest, LoadedModelFacts, ModelId, PipelineId};

/// The models of this process.
pub struct ChildModels {
    runtimes: Runtimes,
    loaded: Mutex<HashMap<ModelId, ChildModel>>,
    pipelines: Mutex<HashMap<PipelineId, Arc<dyn Pipeline>>>,
    /// The memory for prepared content of calls.
    content: MemoryBudget,
    idle_memory: IdleMemory,
}

/// One model; clones share it.
#[derive(Clone)]
pub struct ChildModel {
    pub backend: Arc<Mutex<Box<dyn Backend>>>,
    /// Cancels its run, where its runtime can.
    pub canceller: Option<Arc<dyn CancelRun>>,
    /// The cores that its runtime's own threads inherit from the thread that loads it.
    cores: Arc<[usize]>,
    /// The end of its last run, until the memory that runs have left is released.
    last_run: Arc<Mutex<Option<Instant>>>,
}

impl ChildModel {
    fn last_run(&self) -> MutexGuard<'_, Option<Instant>> {
        // Nothing panics under this lock.
        self.last_run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release_memory(&self) {
        let mut backend = self.backend.lock().unwrap_or_else(PoisonError::into_inner);
        *self.last_run() = None;
        let smallest = WarmUp { signature: backend.signature().clone(), sizes: Vec::new() };
        if let Some((_, inputs)) = smallest.runs().next() {
            let _ = cores::pin(&self.cores);
            backend.release_memory(&inputs);
        }
    }
}

impl ChildModels {
    /// No models yet. Prepared content of calls takes at most `content_bytes` of memory.
    pub fn new(runtimes: Runtimes, content_bytes: usize) -> Self {
        let content = MemoryBudget::new(content_bytes);
        Self {
            runtimes,
            loaded: Mutex::default(),
            pipelines: Mutex::default(),
            content,
            idle_memory: IdleMemory::default(),
        }
    }

    /// The account for the prepared content of one call.
    pub fn account(&self) -> MemoryAccount {
        self.content.account(Principal::Local)
    }

    fn pipelines(&self) -> MutexGuard<'_, HashMap<PipelineId, Arc<dyn Pipeline>>> {
        // Nothing panics under this lock.
        self.pipelines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds a pipeline.
    pub fn bind(&self, id: PipelineId, setup: &PipelineSetup) -> Result<(), String> {
        let bound = catch_unwind(AssertUnwindSafe(|| setup.bind()));
        let pipeline = bound.unwrap_or_else(|panic| Err(format!("panicked: {}", panic_message(&*panic))))?;
        self.pipelines().insert(id, pipeline);
        Ok(())
    }

    /// Drops a pipeline, when its runs have ended.
    pub fn unbind(&self, id: PipelineId) {
        let unbound = self.pipelines().remove(&id);
        drop(unbound);
    }

    /// The pipeline of this number.
    pub fn pipeline(&self, id: PipelineId) -> Option<Arc<dyn Pipeline>> {
        self.pipelines().get(&id).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ModelId, ChildModel>> {
        // Nothing panics under this lock.
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model of this number.
    pub fn get(&self, model: ModelId) -> Option<ChildModel> {
        self.lock().get(&model).cloned()
    }

    /// Notes the end of a run.
    pub fn ran(&self, model: &ChildModel) {
        *model.last_run() = Some(Instant::now());
        self.idle_memory.ran();
    }

    /// Releases the memory that runs have left, for ever.
    pub fn release_idle_memory(&self) -> ! {
        self.idle_memory.release(|idle_since| self.release_memory(idle_since))
    }

    /// Releases memory that runs have left in models that have not run since then.
    fn release_memory(&self, idle_since: Instant) -> ReleasedMemory {
        let models: Vec<ChildModel> = self.lock().values().cloned().collect();
        let mut released = ReleasedMemory { any: false, all: true };
        for model in models {
            let last_run = *model.last_run();
            match last_run {
                Some(end) if end <= idle_since => {
                    model.release_memory();
                    released.any = true;
                }
                Some(_) => released.all = false,
                None => {}
            }
        }
        released
    }

    /// Removes a model; it is torn down when its run has ended.
    pub fn remove(&self, model: ModelId) {
        let removed = self.lock().remove(&model);
        drop(removed);
    }

    /// Loads the library of a runtime, and returns its version.
    pub fn version(&self, runtime: Runtime) -> Result<String, String> {
        self.runtimes.version(runtime).map(str::to_owned).map_err(str::to_owned)
    }

    /// Loads a model, and runs its warm-up.
    pub fn load(&self, order: &ChildLoadRequest) -> Result<LoadedModelFacts, ModelLoadError> {
        // The library is no memory of the first model that runs in it. One that is missing is the error of the load.
        let _ = self.runtimes.version(order.runtime);
        let before = process::resident_bytes();
        let mut backend = self.runtimes.load(order.runtime, &order.files, &order.options)?;
        // Read before the warm-up: a repair in it would find in the cache the model that this load put there.
        let missed_cache = backend.missed_cache();
        if let Some(warm_up) = &order.warm_up {
            warm_up.run(&mut *backend);
        }
        let signature = backend.signature().clone();
        let bytes = process::resident_bytes().saturating_sub(before);
        let canceller = backend.canceller();
        let (backend, cores) = (Arc::new(Mutex::new(backend)), order.cores.as_slice().into());
        let model = ChildModel { backend, canceller, cores, last_run: Arc::default() };
        self.ran(&model);
        self.lock().insert(order.model, model);
        Ok(LoadedModelFacts { signature, bytes, missed_cache })
    }
}
