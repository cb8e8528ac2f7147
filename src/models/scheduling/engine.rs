//! The engine: one budget of cores for all models, a worker pinned to each, and the loading and unloading of instances.

use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use ledge_engine::Runtimes;
use ledge_engine::backend::{ModelLoadError, ModelPort};
use ledge_isolation::{ChildEnd, ChildSettings, ChildUsage, Children, JobChannelThread};
use tokio::sync::{Notify, oneshot, watch};

use super::exclusive_gate::ExclusiveGate;
use super::instance_spec::InstanceSpec;
use super::load_terms::LoadTurns;
use super::queue::JobQueue;
use super::scheduler::{InstanceSource, ModelInstance, ScheduledModel, SchedulerState};
use super::shared::{InferSchedulerInner, load, on_own_thread, unload_in_background};
use super::waiting_groups::WaitingGroups;
use super::worker;

/// Interval between two checks of whether the runs have ended. The callers wait for minutes, so half a second is
/// enough.
const RUN_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A handle to the engine. Clones share it; with the last one the workers end.
#[derive(Debug, Clone)]
pub struct InferScheduler {
    handle: Arc<InferSchedulerHandle>,
}

#[derive(Debug)]
struct InferSchedulerHandle {
    shared: Arc<InferSchedulerInner>,
    started: OnceLock<()>,
}

impl InferScheduler {
    /// An engine over the cores `cpus`, which runs models in sandboxed processes. Its threads start with the first
    /// model. Above `memory_budget` bytes of models the least recently used ones are unloaded until they are called
    /// again.
    pub fn new(runtimes: Runtimes, cpus: Vec<usize>, memory_budget: Option<u64>, children: ChildSettings) -> Self {
        let shared = Arc::new_cyclic(|shared: &Weak<InferSchedulerInner>| {
            let shared = shared.clone();
            let on_end = Arc::new(move |child, end: &ChildEnd| {
                if let Some(shared) = shared.upgrade() {
                    shared.child_ended(child, end);
                }
            });
            // The spare worker has a job channel too, and shares the first core.
            let places = |is_background| cpus.iter().map(move |&core| JobChannelThread { core, is_background });
            let channels: Vec<JobChannelThread> =
                places(false).chain(places(true)).chain(places(false).take(1)).collect();
            let children = Children::new(children, channels.clone(), on_end);
            InferSchedulerInner {
                state: Mutex::new(SchedulerState::new(cpus.len(), memory_budget)),
                wakers: channels.iter().map(|_| Condvar::new()).collect(),
                runs_since: channels.iter().map(|_| Mutex::default()).collect(),
                keeper: Condvar::new(),
                cpus,
                runtimes: ArcSwap::from_pointee(runtimes),
                instances: watch::Sender::default(),
                children,
                gate: ExclusiveGate::default(),
                groups: WaitingGroups::default(),
                faults: Notify::new(),
                loading: LoadTurns::default(),
            }
        });
        Self { handle: Arc::new(InferSchedulerHandle { shared, started: OnceLock::new() }) }
    }

    /// The cores that models run on, one worker each.
    pub fn cores(&self) -> &[usize] {
        &self.handle.shared.cpus
    }

    /// An engine for the first load of a version, apart from this one: it has its own threads, and processes that end
    /// first when memory is short.
    #[must_use]
    pub fn for_first_load(&self) -> Self {
        Self::new(self.runtimes(), self.cores().to_vec(), None, self.children().yielding_settings())
    }

    /// The processes that models run in.
    pub fn children(&self) -> &Children {
        &self.handle.shared.children
    }

    /// The resources of the processes that models run in.
    pub fn processes(&self) -> Vec<ChildUsage> {
        self.children().usage()
    }

    /// True where models run in this process. Only tests can ask for that.
    pub(crate) fn is_in_process(&self) -> bool {
        self.handle.shared.is_in_process()
    }

    /// The runtimes that models are loaded into.
    pub fn runtimes(&self) -> Runtimes {
        Runtimes::clone(&self.handle.shared.runtimes.load())
    }

    /// Loads models into these from now on. Those that are loaded stay where they are.
    pub fn set_runtimes(&self, runtimes: Runtimes) {
        self.handle.shared.runtimes.store(Arc::new(runtimes));
    }

    /// Waits until each worker has ended the run that it is in now. This waits for ever if a worker never returns from
    /// a runtime, or if its thread died in a run.
    pub async fn heartbeat(&self) {
        let shared = &self.handle.shared;
        let before = shared.runs_since();
        let is_same = |(now, before): (Option<Instant>, &Option<Instant>)| now.is_some() && now == *before;
        while shared.runs_since().into_iter().zip(&before).any(is_same) {
            // Polled at long intervals: the exact moment does not matter, and a notification would cost each run.
            tokio::time::sleep(RUN_POLL_INTERVAL).await;
        }
    }

    /// Waits until no instance is left, including those of models that were replaced: their threads may still be
    /// tearing them down.
    pub async fn wait_until_empty(&self) {
        self.handle.shared.instances.closed().await;
    }

    /// Loads one instance on a separate thread.
    pub(super) async fn load(
        &self,
        spec: &Arc<InstanceSpec>,
        alive: &Arc<watch::Sender<()>>,
    ) -> Result<ModelInstance, ModelLoadError> {
        let refused = |reason: String| ModelLoadError::Refused { runtime: spec.runtime, reason };
        let (sender, receiver) = oneshot::channel();
        let (shared, own, alive) = (self.handle.shared.clone(), spec.clone(), self.handle.shared.alive(alive));
        on_own_thread(&spec.name, move || drop(sender.send(load(&shared, &own, alive)))).map_err(refused)?;
        receiver.await.map_err(|_| refused("the thread that loads the model ended without a result".to_owned()))?
    }

    /// Adds a model with its first instance.
    pub(super) fn add(&self, spec: &Arc<InstanceSpec>, alive: &Arc<watch::Sender<()>>, first: ModelInstance) -> u64 {
        self.start();
        let all = 0..self.cores().len();
        let cores = if spec.workers.is_empty() { all.collect() } else { spec.workers.clone() };
        let mut entry = ScheduledModel::new(JobQueue::new(spec.limits), spec.scale, None, cores, Instant::now());
        let fixed = |port: &ModelPort| port.shape.iter().skip(1).all(|&dim| dim >= 0);
        entry.source = Some(InstanceSource { spec: spec.clone(), alive: alive.clone() });
        entry.steady = first.backend.signature().outputs.iter().all(fixed);
        let id = self.handle.shared.lock().add(entry);
        self.put(id, first);
        id
    }

    /// Adds an instance to a model.
    pub(super) fn put(&self, id: u64, instance: ModelInstance) {
        self.handle.shared.put(id, instance, false);
    }

    /// Runs `work` on a model's entry; `None` when the model was removed.
    pub(super) fn with<T>(&self, id: u64, work: impl FnOnce(&mut ScheduledModel) -> T) -> Option<T> {
        self.handle.shared.lock().model(id).map(work)
    }

    /// The state that the engine's threads share: for runs.
    pub(super) fn shared(&self) -> &Arc<InferSchedulerInner> {
        &self.handle.shared
    }

    /// Unloads the instances of a model that do not run now. The next call loads one again.
    pub(super) fn evict(&self, id: u64) {
        let evicted = self.handle.shared.lock().evict(id);
        if !evicted.is_empty() {
            tracing::info!(name: "instance.unloaded", instances = evicted.len(), "instances unloaded until the next call");
        }
        unload_in_background(evicted);
    }

    /// Waits for the next fault of any model.
    pub async fn fault(&self) {
        self.handle.shared.faults.notified().await;
    }

    /// Removes a model; its instances end when their runs do.
    pub(super) fn remove(&self, id: u64) {
        let removed = self.handle.shared.lock().remove(id);
        if let Some(entry) = removed {
            unload_in_background(entry.idle);
        }
    }

    fn start(&self) {
        self.handle.started.get_or_init(|| {
            let shared = &self.handle.shared;
            let mut threads: Vec<(String, Box<dyn FnOnce() + Send>)> = Vec::new();
            let foreground = shared.cpus.iter().map(|cpu| format!("infer-core-{cpu}"));
            let background = shared.cpus.iter().map(|cpu| format!("infer-back-{cpu}"));
            let names = foreground.chain(background).chain(["infer-spare".to_owned()]);
            for (index, name) in names.enumerate() {
                let own = shared.clone();
                threads.push((name, Box::new(move || worker::serve(&own, index))));
            }
            let own = shared.clone();
            threads.push(("instance-keeper".to_owned(), Box::new(move || own.unload_expired())));
            for (name, work) in threads {
                if let Err(error) = std::thread::Builder::new().name(name.clone()).spawn(work) {
                    tracing::error!(name, %error, "cannot start a worker thread; models run on the remaining workers");
                }
            }
        });
    }
}

impl Drop for InferSchedulerHandle {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.wakers.iter().for_each(Condvar::notify_all);
        self.shared.keeper.notify_all();
    }
}
