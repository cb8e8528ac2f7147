//! A child, with the pipelines that it has bound.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ledge_engine::Runtimes;
use ledge_engine::pipeline::setup::PipelineSetup;

use crate::own_folders::ChildFolders;
use crate::process::Child;
use crate::wire::PipelineId;

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
        known.homes.retain(|worker| worker.strong_count() > 0);
        known.homes.push(Arc::downgrade(worker));
        Some(known.setup.clone())
    }
}

/// The pipelines that one child has bound.
#[derive(Debug, Default)]
pub(crate) struct BoundPipelines(Mutex<HashSet<PipelineId>>);

/// Makes sure that the child has bound the pipeline.
pub(crate) fn bind(worker: &Arc<WorkerProcess>, pipelines: &ChildPipelines, id: PipelineId) -> Result<(), String> {
    // Held meanwhile, so that another run waits for the pipeline too.
    let mut bound = worker.bound.0.lock().unwrap_or_else(PoisonError::into_inner);
    if bound.contains(&id) {
        return Ok(());
    }
    let setup = pipelines.give(id, worker).ok_or("the pipeline was unloaded")?;
    worker.child.bind(id, &setup)?;
    bound.insert(id);
    Ok(())
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
