//! A child, with the pipelines that it has bound.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ledge_engine::Runtimes;
use ledge_engine::pipeline::setup::PipelineSetup;

use crate::own_folders::ChildFolders;
use crate::process::Child;
use crate::wire::{ModelId, PipelineId};

/// The pipelines that children may need.
#[derive(Debug, Default)]
pub(crate) struct ChildPipelines {
    known: Mutex<HashMap<PipelineId, KnownPipeline>>,
    /// Models, pipelines and files have numbers of one sequence.
    next: AtomicU64,
}

#[derive(Debug)]
pub(super) struct KnownPipeline {
    pub(super) setup: Arc<PipelineSetup>,
    /// The children that have it.
    pub(super) homes: Vec<Weak<WorkerProcess>>,
}

impl ChildPipelines {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<PipelineId, KnownPipeline>> {
        // Nothing panics under this lock.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that no model, pipeline or file has.
    pub fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn homes(&self, id: PipelineId) -> Vec<Arc<WorkerProcess>> {
        let known = self.lock();
        known.get(&id).into_iter().flat_map(|known| &known.homes).filter_map(Weak::upgrade).collect()
    }

    /// The setup of a pipeline, for a child that binds it now.
    fn give(&self, id: PipelineId, worker: &Arc<WorkerProcess>) -> Option<Arc<PipelineSetup>> {
        let mut known = self.lock();
        let known = known.get_mut(&id)?;
        // It may have had it before.
        known.homes.retain(|home| home.strong_count() > 0 && home.as_ptr() != Arc::as_ptr(worker));
        known.homes.push(Arc::downgrade(worker));
        Some(known.setup.clone())
    }
}

/// The pipelines that one child has bound, each with the models that it is bound for. Those of a chain have no models
/// here: a page stays with them between steps that different models run.
#[derive(Debug, Default)]
pub(crate) struct BoundPipelines(Mutex<HashMap<PipelineId, HashSet<ModelId>>>);

impl BoundPipelines {
    fn lock(&self) -> MutexGuard<'_, HashMap<PipelineId, HashSet<ModelId>>> {
        // Nothing panics under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A child, and the folders that it may read.
#[derive(Debug)]
pub(crate) struct WorkerProcess {
    pub child: Child,
    pub(super) runtimes: Runtimes,
    pub bound: BoundPipelines,
    pub pipelines: Arc<ChildPipelines>,
    pub(super) folders: ChildFolders,
    pub(super) next_stage: AtomicU64,
}

impl WorkerProcess {
    /// Makes sure that the child has bound the pipeline, for a model of it or for a chain.
    pub fn bind(self: &Arc<Self>, id: PipelineId, model: Option<ModelId>) -> Result<(), String> {
        // Held meanwhile, so that another run waits for the pipeline too.
        let mut bound = self.bound.lock();
        if let Some(models) = bound.get_mut(&id) {
            models.extend(model);
            return Ok(());
        }
        let setup = self.pipelines.give(id, self).ok_or("the pipeline was unloaded")?;
        self.child.bind(id, &setup)?;
        bound.insert(id, model.into_iter().collect());
        Ok(())
    }

    /// Unloads a model when its run has ended, and before it the pipelines that were bound for it alone: a tokenizer may
    /// be larger than the model.
    pub fn unload(&self, model: ModelId) {
        // Held meanwhile, so that no run binds one again before it is dropped.
        let mut bound = self.bound.lock();
        for (id, _) in bound.extract_if(|_, models| models.remove(&model) && models.is_empty()) {
            self.child.unbind(id);
        }
        self.child.unload(model);
    }
}
