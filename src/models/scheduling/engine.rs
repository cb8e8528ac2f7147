//! The engine: one budget of cores for all models, a worker pinned to each, and the loading and giving up of instances.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ledge_base::sys;
use ledge_base::telemetry::process;
use ledge_base::tensor::Tensor;
use ledge_engine::backend::{Backend, LoadError, Port, RunError, RunResult, Runtime};
use ledge_engine::{Runtimes, cores};
use ledge_identity::sealing::{FolderError, SealedFolder};
use tokio::sync::{oneshot, watch};

use super::instance::{InferError, Spec};
use super::queue::{Job, Queue};
use super::scheduler::{Alive, Entry, Instance, State};
use super::warm_up::WarmUp;
use super::worker;

/// How often it is looked whether a run has ended.
const LOOK: Duration = Duration::from_millis(500);

/// A handle to the engine. Clones share it; with the last one the workers end.
#[derive(Debug, Clone)]
pub struct Engine {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    started: OnceLock<()>,
}

/// What the engine's threads share.
pub(super) struct Shared {
    state: Mutex<State>,
    wakers: Vec<Condvar>,
    /// Woken when something may expire sooner than it knew.
    keeper: Condvar,
    /// The core of each worker.
    pub cpus: Vec<usize>,
    runtimes: Runtimes,
    /// When each worker took the run that it is in.
    runs_since: Vec<Mutex<Option<Instant>>>,
    /// Closed while there is no instance, whoever it belonged to: see [`Alive`].
    instances: watch::Sender<()>,
    /// Loads take turns where there is a budget, so that what each adds to the process can be told.
    loading: Mutex<()>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("cpus", &self.cpus).finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine over the cores `cpus`. Its threads start with the first model. Above `memory_budget` bytes of models
    /// those that were used least recently are given up until they are asked for again.
    pub fn new(runtimes: Runtimes, cpus: Vec<usize>, memory_budget: Option<u64>) -> Self {
        let shared = Shared {
            state: Mutex::new(State::new(cpus.len(), memory_budget)),
            wakers: cpus.iter().map(|_| Condvar::new()).collect(),
            runs_since: cpus.iter().map(|_| Mutex::default()).collect(),
            keeper: Condvar::new(),
            cpus,
            runtimes,
            instances: watch::Sender::default(),
            loading: Mutex::default(),
        };
        Self { handle: Arc::new(Handle { shared: Arc::new(shared), started: OnceLock::new() }) }
    }

    /// The cores that models run on, one worker each.
    pub fn cores(&self) -> &[usize] {
        &self.handle.shared.cpus
    }

    /// The runtimes that models are loaded into.
    pub fn runtimes(&self) -> &Runtimes {
        &self.handle.shared.runtimes
    }

    /// Waits until each worker has ended the run that it is in now. One that never comes back from a runtime, and one whose
    /// thread died in a run, keeps this waiting for ever.
    pub async fn turned(&self) {
        let shared = &self.handle.shared;
        let before = shared.runs_since();
        let is_same = |(now, before): (Option<Instant>, &Option<Instant>)| now.is_some() && now == *before;
        while shared.runs_since().into_iter().zip(&before).any(is_same) {
            // Looked for seldom: nobody waits for the moment, and telling it would cost each run.
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until no instance is left, those of models that were replaced included: their threads may still tear them down.
    pub async fn emptied(&self) {
        self.handle.shared.instances.closed().await;
    }

    /// Loads one instance on a thread of its own.
    pub(super) async fn load(&self, spec: &Arc<Spec>, alive: &Arc<watch::Sender<()>>) -> Result<Instance, LoadError> {
        let refused = |reason: String| LoadError::Refused { runtime: spec.runtime, reason };
        let (sender, receiver) = oneshot::channel();
        let (shared, own, alive) = (self.handle.shared.clone(), spec.clone(), self.handle.shared.alive(alive));
        on_own_thread(&spec.name, move || drop(sender.send(load(&shared, &own, alive)))).map_err(refused)?;
        receiver.await.map_err(|_| refused("the loading thread died".to_owned()))?
    }

    /// Adds a model with its first instance.
    pub(super) fn add(&self, spec: &Spec, first: Instance) -> u64 {
        self.start();
        let all = 0..self.cores().len();
        let workers = if spec.workers.is_empty() { all.collect() } else { spec.workers.clone() };
        let mut entry = Entry::new(Queue::new(spec.limits), spec.scale, None, workers, Instant::now());
        let fixed = |port: &Port| port.shape.iter().skip(1).all(|&dim| dim >= 0);
        entry.steady = first.backend.signature().outputs.iter().all(fixed);
        let id = self.handle.shared.lock().add(entry);
        self.put(id, first);
        id
    }

    /// Adds an instance to a model.
    pub(super) fn put(&self, id: u64, instance: Instance) {
        self.handle.shared.put(id, instance, false);
    }

    /// Does something with a model's entry; `None` when it was removed.
    pub(super) fn with<T>(&self, id: u64, work: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        self.handle.shared.lock().model(id).map(work)
    }

    /// Runs the model at once on the calling thread, when that is known to be brief; `None` when it must be queued.
    pub(super) fn run_brief(
        &self,
        id: u64,
        inputs: &[Tensor],
        outputs: &[usize],
        rows: usize,
    ) -> Option<Result<RunResult, RunError>> {
        let shared = &self.handle.shared;
        let bytes = inputs.iter().map(|tensor| tensor.data().len()).sum();
        let (mut instance, worker) = shared.lock().take_brief(id, bytes)?;
        let start = Instant::now();
        let result = worker::run_once(&mut instance, inputs, outputs, rows);
        let now = Instant::now();
        let spent = now.duration_since(start);
        let mut state = shared.lock();
        if result.is_ok() {
            state.ran(id, bytes, spent);
        }
        let orphan = state.done_brief(worker, id, instance, spent, now);
        shared.unlock_and_wake(state, now);
        give_up(orphan.into_iter().collect());
        Some(result)
    }

    /// Queues a job, and has another instance loaded when the model needs one.
    pub(super) fn offer(&self, id: u64, spec: &Arc<Spec>, alive: &Arc<watch::Sender<()>>, job: Job) {
        let shared = &self.handle.shared;
        let now = job.queued;
        let mut state = shared.lock();
        let wake = state.offer(id, job);
        let grow = wake.is_none() && state.wants_instance(id, now);
        let dead = state.take_dead();
        drop(state);
        drop(dead);
        shared.wake(wake);
        if grow {
            let (own, alive, shared) = (spec.clone(), shared.alive(alive), shared.clone());
            let grown = on_own_thread(&spec.name, move || shared.grow(id, &own, alive));
            if let Err(reason) = grown {
                self.handle.shared.not_grown(id, &spec.name, &reason);
            }
        }
    }

    /// Takes a model out; its instances end when their runs do.
    pub(super) fn remove(&self, id: u64) {
        let removed = self.handle.shared.lock().remove(id);
        if let Some(entry) = removed {
            give_up(entry.idle);
        }
    }

    fn start(&self) {
        self.handle.started.get_or_init(|| {
            let shared = &self.handle.shared;
            let mut threads: Vec<(String, Box<dyn FnOnce() + Send>)> = Vec::new();
            for (index, cpu) in shared.cpus.iter().enumerate() {
                let own = shared.clone();
                threads.push((format!("infer-core-{cpu}"), Box::new(move || worker::serve(&own, index))));
            }
            let own = shared.clone();
            threads.push(("instance-keeper".to_owned(), Box::new(move || own.keep())));
            for (name, work) in threads {
                if let Err(error) = std::thread::Builder::new().name(name.clone()).spawn(work) {
                    tracing::error!(name, %error, "a thread could not be started; models run on the others");
                }
            }
        });
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.wakers.iter().for_each(Condvar::notify_all);
        self.shared.keeper.notify_all();
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes when `worker` took the run that it is in; `None` when it has ended.
    pub(super) fn set_runs_since(&self, worker: usize, since: Option<Instant>) {
        if let Some(place) = self.runs_since.get(worker) {
            *place.lock().unwrap_or_else(PoisonError::into_inner) = since;
        }
    }

    fn runs_since(&self) -> Vec<Option<Instant>> {
        self.runs_since.iter().map(|since| *since.lock().unwrap_or_else(PoisonError::into_inner)).collect()
    }

    /// Sleeps as `worker` until woken, or until `until`.
    pub(super) fn sleep<'a>(
        &self,
        worker: usize,
        state: MutexGuard<'a, State>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, State> {
        let Some(waker) = self.wakers.get(worker) else { return state };
        match until {
            None => waker.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let time = until.saturating_duration_since(Instant::now());
                waker.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    pub(super) fn wake(&self, worker: Option<usize>) {
        if let Some(waker) = worker.and_then(|worker| self.wakers.get(worker)) {
            waker.notify_one();
        }
    }

    /// Gives the lock back, drops what is not run without it, and wakes another worker that could work.
    pub(super) fn unlock_and_wake(&self, mut state: MutexGuard<'_, State>, now: Instant) {
        let (wake, dead) = (state.another(now), state.take_dead());
        drop(state);
        drop(dead);
        self.wake(wake);
    }

    /// For an instance of a model that is about to be loaded.
    fn alive(&self, of_model: &watch::Sender<()>) -> Alive {
        Alive { of_model: of_model.subscribe(), of_engine: self.instances.subscribe() }
    }

    /// Adds a loaded instance to its model. `counted` says that the model counts it as loading.
    fn put(&self, id: u64, instance: Instance, counted: bool) {
        let mut state = self.lock();
        let mut orphan = Some(instance);
        if let Some(entry) = state.model(id) {
            entry.loading -= usize::from(counted);
            entry.instances += 1;
            let instance = orphan.take();
            entry.bytes_each =
                instance.iter().map(|instance| instance.bytes).chain([entry.bytes_each]).max().unwrap_or(0);
            entry.idle.extend(instance);
        }
        let mut given_up = Vec::new();
        while state.memory_budget.is_some_and(|budget| state.bytes() > budget) {
            let Some(instances) = state.least_recently_used(id) else { break };
            given_up.extend(instances);
        }
        self.unlock_and_wake(state, Instant::now());
        self.keeper.notify_one();
        // The model was removed while this was loading.
        given_up.extend(orphan);
        give_up(given_up);
    }

    fn grow(&self, id: u64, spec: &Spec, alive: Alive) {
        let loaded = catch_unwind(AssertUnwindSafe(|| load(self, spec, alive))).unwrap_or_else(|panic| {
            let reason = format!("panicked: {}", worker::panic_message(&*panic));
            Err(LoadError::Refused { runtime: spec.runtime, reason })
        });
        match loaded {
            Ok(instance) => {
                tracing::info!(model = spec.name, "instance loaded");
                self.put(id, instance, true);
            }
            Err(error) => self.not_grown(id, &spec.name, &error.to_string()),
        }
    }

    /// Another instance could not be loaded: with others the model goes on; without any its callers are told.
    fn not_grown(&self, id: u64, name: &str, reason: &str) {
        tracing::warn!(model = name, reason, "an instance could not be loaded");
        let mut state = self.lock();
        let Some(entry) = state.model(id) else { return };
        entry.loading -= 1;
        // With others left it is not tried again until the model is loaded anew, or comes back from idleness.
        entry.growth_failed = entry.instances > 0;
        let jobs = if entry.instances == 0 { entry.queue.drain() } else { Vec::new() };
        drop(state);
        for job in jobs {
            let _ = job.reply.send(Err(InferError::Unavailable { reason: reason.to_owned() }));
        }
    }

    /// Gives up instances that were idle for too long. Sleeps until the first of them will have been: an engine in
    /// which nothing expires costs nothing.
    fn keep(&self) {
        let mut state = self.lock();
        while !state.closed {
            let (expired, look_again) = state.expired(Instant::now());
            if !expired.is_empty() {
                drop(state);
                tracing::info!(instances = expired.len(), "idle instances given up");
                drop(expired);
                sys::return_free_memory();
                state = self.lock();
                continue;
            }
            state = match look_again {
                None => self.keeper.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let time = at.saturating_duration_since(Instant::now());
                    self.keeper.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// Loads an instance on the calling thread, and runs its warm-up.
fn load(shared: &Shared, spec: &Spec, alive: Alive) -> Result<Instance, LoadError> {
    // The runtime's own threads inherit the cores of the thread that loads.
    let of_worker = |&worker: &usize| shared.cpus.get(worker).copied();
    let own: Vec<usize> = spec.workers.iter().filter_map(of_worker).collect();
    let cpus = if own.is_empty() { &shared.cpus } else { &own };
    if let Err(error) = cores::pin(cpus) {
        tracing::warn!(%error, ?cpus, "threads cannot be pinned to cores; models run on any");
    }
    // Where nothing is decided by it, a figure that another load has a part in is good enough, and waiting is not.
    let bounded = shared.lock().memory_budget.is_some();
    let _turn = bounded.then(|| shared.loading.lock().unwrap_or_else(PoisonError::into_inner));
    let before = process::resident_bytes();
    let refused = |error: FolderError| LoadError::Refused { runtime: spec.runtime, reason: error.to_string() };
    // A runtime may read on in a file that it has mapped: the memory stays as long as that does, the name goes at once.
    let opened = spec.sealed.as_ref().map(SealedFolder::open).transpose().map_err(refused)?;
    let files = opened.as_ref().map_or_else(|| spec.files.clone(), |opened| spec.files.moved_to(opened.path()));
    let mut backend = protected(spec.runtime, || shared.runtimes.load(spec.runtime, &files, &spec.options))?;
    let on_disk = files.bytes();
    drop(opened);
    let outputs: Vec<usize> = (0..backend.signature().outputs.len()).collect();
    for (_, inputs) in spec.warm_up.get().into_iter().flat_map(WarmUp::runs) {
        // What the first instance took, this one takes.
        let _ = catch_unwind(AssertUnwindSafe(|| backend.run(&inputs, &outputs)));
    }
    worker::repair(&mut *backend);
    let grown = process::resident_bytes().saturating_sub(before);
    let observer = spec.observer.clone();
    let bytes = grown.max(on_disk);
    Ok(Instance { backend, last_worker: usize::MAX, last_used: Instant::now(), bytes, observer, alive })
}

/// Runs `load`, and makes a panic of a runtime's binding an error.
fn protected(
    runtime: Runtime,
    load: impl FnOnce() -> Result<Box<dyn Backend>, LoadError>,
) -> Result<Box<dyn Backend>, LoadError> {
    catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|panic| {
        Err(LoadError::Refused { runtime, reason: format!("panicked: {}", worker::panic_message(&*panic)) })
    })
}

/// Drops instances on a thread of their own: a runtime may take its time to tear a model down.
fn give_up(instances: Vec<Instance>) {
    if instances.is_empty() {
        return;
    }
    let work = move || {
        drop(instances);
        sys::return_free_memory();
    };
    // Without a thread the instances were dropped with the closure.
    let _ = on_own_thread("unload", work);
}

fn on_own_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    // Linux shows 15 bytes of it; the runtime's own threads inherit it.
    let thread = std::thread::Builder::new().name(format!("infer-{name}")).spawn(work);
    thread.map(drop).map_err(|error| format!("no thread could be started: {error}"))
}
