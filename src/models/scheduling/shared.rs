//! State that the engine's threads share.

use std::ffi::OsStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use ledge_base::sys;
use ledge_base::telemetry::system::MachineMemory;
use ledge_engine::backend::{CompiledModelCache, ModelLoadError, Runtime};
use ledge_engine::pipeline::work::RunPipeline;
use ledge_engine::{Runtimes, cores};
use ledge_identity::sealing::{EncryptedFolder, EncryptedFolderError};
use ledge_isolation::{ChildEnd, ChildId, Children, Isolation, ModelLoadRequest};
use tokio::sync::{Notify, watch};

use super::exclusive_gate::ExclusiveGate;
use super::faults::{FaultCause, FaultConsequences, FaultingCaller};
use super::instance_spec::InstanceSpec;
use super::load_terms::LoadTurns;
use super::outcome::InferError;
use super::queue::InferJob;
use super::scheduler::{AliveToken, InstanceSource, ModelInstance, SchedulerState};
use super::waiting_groups::WaitingGroups;
use super::worker;

/// The most times that an instance is loaded whose process ended meanwhile, unless it is known what else was the cause.
const LOAD_TRIES_MAX: usize = 4;

/// State that the engine's threads share.
pub(super) struct InferSchedulerInner {
    pub(super) state: Mutex<SchedulerState>,
    /// One for each worker: those of the foreground, those of the background, the spare.
    pub(super) wakers: Vec<Condvar>,
    /// Wakes the thread that unloads idle instances, when one may expire sooner than that thread knew.
    pub(super) keeper: Condvar,
    /// The cores of the budget.
    pub cpus: Vec<usize>,
    /// Those that models are loaded into from now on.
    pub(super) runtimes: ArcSwap<Runtimes>,
    /// Time at which each worker took the run that it is in.
    pub(super) runs_since: Vec<Mutex<Option<Instant>>>,
    /// Closed while there is no instance of any model: see [`AliveToken`].
    pub(super) instances: watch::Sender<()>,
    /// The processes that models run in.
    pub(super) children: Children,
    /// The turns of runs in other processes.
    pub gate: ExclusiveGate,
    /// Calls that are about to run together.
    pub groups: WaitingGroups,
    /// Told each fault of a model.
    pub(super) faults: Notify,
    /// The turns of loads where there is a memory budget.
    pub(super) loading: LoadTurns,
}

impl std::fmt::Debug for InferSchedulerInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InferSchedulerInner").field("cpus", &self.cpus).finish_non_exhaustive()
    }
}

impl InferSchedulerInner {
    #[cfg(not(feature = "in-process"))]
    #[expect(clippy::unused_self, reason = "with the feature for tests it depends on the engine")]
    pub(super) fn is_in_process(&self) -> bool {
        false
    }

    #[cfg(feature = "in-process")]
    pub(super) fn is_in_process(&self) -> bool {
        super::in_process::is_asked_for() && !self.children.is_trial()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SchedulerState> {
        // Nothing panics under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes when `worker` took the run that it is in; `None` when it has ended.
    pub(super) fn set_runs_since(&self, worker: usize, since: Option<Instant>) {
        if let Some(place) = self.runs_since.get(worker) {
            *place.lock().unwrap_or_else(PoisonError::into_inner) = since;
        }
    }

    pub(super) fn runs_since(&self) -> Vec<Option<Instant>> {
        self.runs_since.iter().map(|since| *since.lock().unwrap_or_else(PoisonError::into_inner)).collect()
    }

    /// Sleeps as `worker` until woken, or until `until`.
    pub(super) fn sleep<'a>(
        &self,
        worker: usize,
        state: MutexGuard<'a, SchedulerState>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, SchedulerState> {
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

    /// Releases the lock, drops the inputs of jobs that will not run outside of it, and wakes another worker that has
    /// work.
    pub(super) fn unlock_and_wake(&self, mut state: MutexGuard<'_, SchedulerState>, now: Instant) {
        let (wake, dropped) = (state.worker_to_wake(None, now), state.take_dropped());
        drop(state);
        drop(dropped);
        self.wake(wake);
    }

    /// Returns the token for an instance that is about to be loaded.
    pub(super) fn alive(&self, of_model: &watch::Sender<()>) -> AliveToken {
        AliveToken { of_model: of_model.subscribe(), of_engine: self.instances.subscribe() }
    }

    /// Adds a loaded instance to its model. `counted` says that the model counts it as loading.
    pub(super) fn put(&self, id: u64, instance: ModelInstance, counted: bool) {
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
        unload_in_background(given_up);
    }

    fn grow(&self, id: u64, spec: &InstanceSpec, alive: AliveToken) {
        let loaded = catch_unwind(AssertUnwindSafe(|| load(self, spec, alive))).unwrap_or_else(|panic| {
            let reason = format!("panicked: {}", worker::panic_message(&*panic));
            Err(ModelLoadError::Refused { runtime: spec.runtime, reason })
        });
        match loaded {
            Ok(instance) => {
                tracing::info!(name: "instance.loaded", model = spec.name, "instance loaded");
                self.put(id, instance, true);
            }
            Err(error) => self.instance_failed(id, &spec.name, &error.to_string()),
        }
    }

    /// Queues a job, and loads another instance in the background when the model needs one.
    pub(super) fn offer(self: &Arc<Self>, id: u64, job: InferJob) {
        let now = job.queued;
        let mut state = self.lock();
        let wake = state.offer(id, job);
        let grow = wake.is_none() && state.wants_instance(id, now);
        let source = grow.then(|| state.model(id)?.source.clone()).flatten();
        let dropped = state.take_dropped();
        drop(state);
        drop(dropped);
        self.wake(wake);
        if let Some(source) = source {
            self.grow_in_background(id, source);
        }
    }

    /// Handles the end of a process that had models: those are loaded again, in a new one.
    pub(super) fn child_ended(self: &Arc<Self>, child: ChildId, end: &ChildEnd) {
        // A trial, and the first load of a version, report its end themselves.
        if !self.is_yielding() {
            tracing::error!(name: "process.ended",
                process = child,
                reason = end.reason,
                "a process of the runtimes ended; its models are loaded again"
            );
        }
        let lost = self.lock().lose(child);
        unload_in_background(lost);
        self.load_missing();
    }

    /// Loads the instances whose processes have ended.
    pub(super) fn load_missing(self: &Arc<Self>) {
        let missing = self.lock().take_missing();
        for (id, source) in missing {
            self.grow_in_background(id, source);
        }
    }

    /// Loads an instance on a thread of its own. The model counts it as loading.
    fn grow_in_background(self: &Arc<Self>, id: u64, InstanceSource { spec, alive }: InstanceSource) {
        let (shared, own, alive) = (self.clone(), spec.clone(), self.alive(&alive));
        if let Err(reason) = on_own_thread(&spec.name, move || shared.grow(id, &own, alive)) {
            self.instance_failed(id, &spec.name, &reason);
        }
    }

    /// Gives a model a process of its own from its next load on, because it may have ended its process.
    pub(super) fn suspect_model(&self, id: u64) {
        if let Some(InstanceSource { spec, .. }) = self.source(id) {
            tracing::warn!(model = spec.name, "a model gets a process of its own, as it may have ended its process");
            spec.faults.suspect();
        }
    }

    pub(super) fn is_yielding(&self) -> bool {
        self.children.is_yielding()
    }

    fn source(&self, id: u64) -> Option<InstanceSource> {
        self.lock().model(id)?.source.clone()
    }

    /// Counts the fault of a model whose run ended its process; `culprit` is `None` for a run of several callers.
    pub(super) fn model_crashed(&self, id: u64, reason: &str, culprit: Option<&FaultingCaller>) {
        if let Some(InstanceSource { spec, .. }) = self.source(id) {
            self.count_fault(&spec, reason, culprit.map_or(FaultCause::Several, FaultingCaller::cause));
        }
    }

    fn count_fault(&self, spec: &InstanceSpec, reason: &str, cause: FaultCause<'_>) {
        let FaultConsequences { unloaded, refused_for } = spec.faults.count(reason, cause, Instant::now());
        tracing::error!(name: "model.crashed",
            model = spec.name,
            reason,
            unloaded = unloaded.is_some(),
            "a model ended the process that it ran in"
        );
        spec.observer.crashed(reason, unloaded.as_deref());
        if let (FaultCause::Caller(culprit), Some(time)) = (cause, refused_for) {
            spec.observer.refused(&culprit.principal, time);
        }
        self.faults.notify_one();
    }

    /// Handles an instance that could not be loaded: with other instances the model goes on; without any, its waiting
    /// callers get the reason.
    fn instance_failed(&self, id: u64, name: &str, reason: &str) {
        tracing::warn!(model = name, reason, "cannot load an instance of this model");
        let mut state = self.lock();
        let Some(entry) = state.model(id) else { return };
        entry.loading -= 1;
        // With others left, no further load is tried until the model is loaded again or returns from idleness.
        entry.growth_failed = entry.instances > 0;
        let jobs = if entry.instances == 0 { entry.queue.drain() } else { Vec::new() };
        drop(state);
        for job in jobs {
            let _ = job.reply.send(Err(InferError::Unavailable { reason: reason.to_owned() }));
        }
    }

    /// Unloads instances that were idle for too long. Sleeps until the next one expires: an engine in which nothing
    /// expires costs nothing.
    pub(super) fn unload_expired(&self) {
        let mut state = self.lock();
        while !state.closed {
            let (expired, look_again) = state.expired(Instant::now());
            if !expired.is_empty() {
                drop(state);
                tracing::info!(name: "instance.unloaded", instances = expired.len(), "idle instances unloaded");
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

/// Loads an instance on the calling thread, and runs its warm-up. A load whose process ended for another reason is
/// tried again.
pub(super) fn load(
    shared: &InferSchedulerInner,
    spec: &InstanceSpec,
    alive: AliveToken,
) -> Result<ModelInstance, ModelLoadError> {
    let mut tries = LOAD_TRIES_MAX;
    // A process that was killed while the kernel ended none was killed by somebody, which is no fault of the model.
    let ended_by_kernel = || MachineMemory::processes_ended(Path::new("/"));
    loop {
        tries -= 1;
        let before = ended_by_kernel();
        if let Some(reason) = spec.faults.unloadable().or_else(|| spec.load_terms.given_up().map(str::to_owned)) {
            return Err(ModelLoadError::Refused { runtime: spec.runtime, reason });
        }
        match load_once(shared, spec) {
            Ok((backend, bytes)) => {
                let (observer, faults, last_used) = (spec.observer.clone(), spec.faults.clone(), Instant::now());
                return Ok(ModelInstance { backend, last_core: usize::MAX, last_used, bytes, observer, faults, alive });
            }
            // The first load of a version that ended its process would do so again. One whose process was killed is
            // tried twice.
            Err(error @ ModelLoadError::Crashed { .. }) if shared.is_yielding() => return Err(error),
            Err(error @ ModelLoadError::Interrupted { is_explained: false, .. })
                if shared.is_yielding() && tries < LOAD_TRIES_MAX - 1 =>
            {
                return Err(error);
            }
            Err(ModelLoadError::Crashed { reason, .. }) if tries > 0 => {
                shared.count_fault(spec, &reason, FaultCause::Own);
            }
            // A fault of another model, which is unloaded after some.
            Err(ModelLoadError::Interrupted { is_explained: true, .. }) => tries += 1,
            Err(ModelLoadError::Interrupted { .. }) if tries == LOAD_TRIES_MAX - 1 => {}
            // In a process of its own nothing else uses up the memory.
            Err(ModelLoadError::Interrupted { reason, .. }) if tries > 0 => match spec.faults.isolation(spec.isolation)
            {
                Isolation::Own if ended_by_kernel() != before => shared.count_fault(spec, &reason, FaultCause::Own),
                Isolation::Own => {}
                Isolation::Process => spec.faults.suspect(),
            },
            Err(error) => return Err(error),
        }
    }
}

/// Loads a model on the calling thread, and runs its warm-up. Also returns its memory in bytes.
fn load_once(shared: &InferSchedulerInner, spec: &InstanceSpec) -> Result<(Box<dyn RunPipeline>, u64), ModelLoadError> {
    // The runtime's own threads inherit the cores of the thread that loads.
    let of_worker = |&worker: &usize| shared.cpus.get(worker).copied();
    let own: Vec<usize> = spec.workers.iter().filter_map(of_worker).collect();
    let cpus = if own.is_empty() { &shared.cpus } else { &own };
    if let Err(error) = cores::pin(cpus) {
        tracing::warn!(%error, ?cpus, "cannot pin threads to cores; models may run on any core");
    }

    // Without a budget the figure decides nothing: a measurement that includes another load is good enough, and waiting
    // is not worth it.
    let bounded = shared.lock().memory_budget.is_some();
    let _permit = bounded.then(|| shared.loading.take());

    let refused =
        |error: EncryptedFolderError| ModelLoadError::Refused { runtime: spec.runtime, reason: error.to_string() };
    // A runtime may go on reading a file that it has mapped: the memory stays as long as the mapping, the name is
    // removed at once.
    let isolation = spec.faults.isolation(spec.isolation);
    let opened = spec.sealed.as_ref().map(EncryptedFolder::open).transpose().map_err(refused)?;
    let files = opened.as_ref().map_or_else(|| spec.files.clone(), |opened| spec.files.moved_to(opened.path()));
    #[cfg(feature = "in-process")]
    if shared.is_in_process() {
        return super::in_process::load(spec, &files);
    }
    // One for each compiled form: of a part of a chain, and for a number of threads.
    let form = || {
        let library = spec.runtimes.library(Runtime::OpenVino).ok()?;
        let [library, file] = [library.file_name()?, files.model.file_name()?].map(OsStr::to_string_lossy);
        Some(format!("{library}-{file}-{}", spec.options.threads))
    };
    let cache = match &spec.options.cache {
        CompiledModelCache::Shared(folder) if spec.runtime == Runtime::OpenVino => form().map(|name| folder.join(name)),
        _ => None,
    };
    let order = ModelLoadRequest {
        name: &spec.own_process,
        runtimes: &spec.runtimes,
        runtime: spec.runtime,
        files: &files,
        is_secret: opened.is_some(),
        options: &spec.options,
        cache: cache.as_deref(),
        cores: cpus,
        warm_up: spec.warm_up.get(),
        time_limit: spec.time_limit,
        load_limit: spec.load_terms.limit(),
    };
    let on_disk = files.bytes();
    let (backend, grown) = shared.children.load(isolation, &order)?;
    Ok((Box::new(backend), grown.max(on_disk)))
}

/// Drops instances on a separate thread: a runtime may take long to tear a model down.
pub(super) fn unload_in_background(instances: Vec<ModelInstance>) {
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

pub(super) fn on_own_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    // Linux shows 15 bytes of it; the runtime's own threads inherit it.
    let thread = std::thread::Builder::new().name(format!("infer-{name}")).spawn(work);
    thread.map(drop).map_err(|error| format!("cannot start a thread: {error}"))
}
