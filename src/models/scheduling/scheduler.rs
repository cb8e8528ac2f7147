//! The choice of the next job and its core: the state that all workers share, and its rules. Pure: no thread, no clock.
//!
//! Each core of the budget has two workers. The foreground worker takes the interactive calls of models with short
//! runs. The background worker takes all other jobs, and its thread in the process of the models gives way to the
//! foreground's: a page of a document does not delay a call of a small model, and still gets all the time that is left.
//! Within a tier models can never have more runnable threads than cores.
//!
//! The rules within a tier, in order: interactive before batch; among the models that could run, the one that has had
//! the least core time; within a model callers in turn (`queue.rs`). A run that needs several cores waits until enough
//! are free, and nothing of its tier overtakes it meanwhile.
//!
//! There is also a spare worker without its own core. It runs jobs only while long runs occupy every worker of a tier,
//! and only for models without a long run, so that no model can prevent the others from running.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge_engine::pipeline::work::RunPipeline;
use tokio::sync::watch;

use super::batch_policy::BatchPolicy;
use super::faults::ModelFaults;
use super::inputs::JobInputs;
pub use super::instance_spec::InstanceScale;
use super::instance_spec::{InstanceSpec, InstanceUsage, RunObserver};
use super::queue::{BatchDue, InferJob, JobQueue};
use super::terms::Priority;

/// A loaded copy of a model.
pub struct ModelInstance {
    /// The model in its runtime.
    pub backend: Box<dyn RunPipeline>,
    /// The core that ran it last: its caches may still hold the weights.
    pub last_core: usize,
    /// When it was last used.
    pub last_used: Instant,
    /// Its memory in bytes, as far as it could be measured when it was loaded.
    pub bytes: u64,
    /// Is notified of its runs.
    pub observer: Arc<dyn RunObserver>,
    /// The faults of its model.
    pub faults: Arc<ModelFaults>,
    /// The last field, so that it is dropped after the memory is freed.
    pub alive: AliveToken,
}

/// Reports, by being dropped, that an instance is gone: to its model, and to the engine.
pub struct AliveToken {
    /// Lets the model wait for the end of its instances.
    pub of_model: watch::Receiver<()>,
    /// Lets the engine wait for the end of all instances.
    pub of_engine: watch::Receiver<()>,
}

/// Time without use after which an instance above the minimum is unloaded.
const SURPLUS_IDLE_TIMEOUT: Duration = Duration::from_mins(1);

/// A run that on average takes no longer than this is done on the caller's thread: waking a worker and being woken by
/// it costs the two threads about as much (15 us of CPU time on a busy 2.6 GHz EPYC in a virtual machine, 50 us on an
/// idle one, because its cores have to be woken first). The caller's thread is blocked for no longer than by parsing 20
/// kB of JSON.
const BRIEF_RUN_MAX: Duration = Duration::from_micros(60);

/// A model that takes more CPU time than this in an average run is run in the background. A call in the foreground
/// waits for the run before it, and `benches/README.md` has 20 ms as the goal for a small model next to documents.
pub const FOREGROUND_RUN_MAX: Duration = Duration::from_millis(10);

/// A model of the foreground stays there up to this time: beside documents, which use the same caches, the runs of a
/// photograph take a quarter more CPU time (`benches/capacity.py`, "shop" and "office"), and it would wait behind them.
const FOREGROUND_RUN_KEPT: Duration = Duration::from_millis(15);

/// A model in use after its keep-alive time is checked again after a quarter of that time, but not sooner than this.
const EXPIRY_RECHECK_MIN: Duration = Duration::from_millis(10);
const EXPIRY_RECHECK_MAX: Duration = Duration::from_hours(1);

/// A kind of workers: see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    Foreground,
    Background,
}

impl Tier {
    const ALL: [Self; 2] = [Self::Foreground, Self::Background];
}

/// A model as the scheduler sees it.
pub struct ScheduledModel {
    pub queue: JobQueue,
    /// The instances that are not running, the last used last.
    pub idle: Vec<ModelInstance>,
    /// Instances, running ones included.
    pub instances: usize,
    /// Instances that are being loaded.
    pub loading: usize,
    /// Instances that were lost with their process, and are not loaded again yet.
    lost: usize,
    /// Runs of it that take long.
    long_runs: usize,
    /// Bounds of the number of instances.
    pub scale: InstanceScale,
    /// Rule for joining requests into one run; `None` runs each by itself.
    pub batching: Option<BatchPolicy>,
    /// The cores that it may run on: indices into those of the engine.
    pub cores: Vec<usize>,
    /// The means to load another instance; `None` only in tests.
    pub source: Option<InstanceSource>,
    /// Memory of one instance, in bytes.
    pub bytes_each: u64,
    /// Average time of a run; each new run counts for an eighth.
    average_run: Duration,
    /// Average CPU time of a run, with making its inputs and reading its outputs; `None` before the first. Each new run
    /// counts for an eighth.
    average_cpu: Option<Duration>,
    /// True when its runs are short enough for the foreground.
    is_short: bool,
    /// Largest inputs, in bytes, of a run that was brief: larger ones are tried on a worker first.
    inline_bytes: usize,
    /// True when the time of a run follows from the size of its inputs; false for a model with outputs that grow with
    /// the content.
    pub steady: bool,
    /// True when the last load of another instance failed; no other is tried while there is one.
    pub growth_failed: bool,
    /// Core time used, in nanoseconds; raised to the scheduler's clock when the model returns from idleness.
    core_time: u64,
    /// Time since which jobs wait although a core is free.
    starved_since: Option<Instant>,
    /// When it was last used.
    last_used: Instant,
}

impl ScheduledModel {
    /// A model without instances yet.
    pub fn new(
        queue: JobQueue,
        scale: InstanceScale,
        batching: Option<BatchPolicy>,
        cores: Vec<usize>,
        now: Instant,
    ) -> Self {
        Self {
            queue,
            idle: Vec::new(),
            instances: 0,
            loading: 0,
            lost: 0,
            long_runs: 0,
            scale,
            batching,
            cores,
            source: None,
            bytes_each: 0,
            average_run: Duration::MAX,
            average_cpu: None,
            is_short: false,
            inline_bytes: 0,
            steady: false,
            growth_failed: false,
            core_time: 0,
            starved_since: None,
            last_used: now,
        }
    }

    /// Number of instances, and their memory.
    pub fn instance_usage(&self) -> InstanceUsage {
        let Self { instances, bytes_each, .. } = *self;
        InstanceUsage {
            is_background: self.tier(Priority::Interactive) == Tier::Background,
            instances,
            bytes: bytes_each * instances as u64,
            bytes_each,
            queued: self.queue.len(),
            queued_interactive: self.queue.len_of(Priority::Interactive),
        }
    }

    fn running(&self) -> usize {
        self.instances - self.idle.len()
    }

    /// True when a job waits that an idle instance could take.
    fn has_work(&self) -> bool {
        !self.idle.is_empty() && !self.queue.is_empty()
    }

    /// The workers that run its jobs of a priority. Those of a model without a measured run are in the background.
    fn tier(&self, priority: Priority) -> Tier {
        if priority == Priority::Interactive && self.is_short && self.scale.threads == 1 {
            Tier::Foreground
        } else {
            Tier::Background
        }
    }

    /// True when a job waits for the foreground that an idle instance could take.
    fn has_foreground_work(&self) -> bool {
        self.has_work()
            && self.tier(Priority::Interactive) == Tier::Foreground
            && self.queue.oldest(Priority::Interactive).is_some()
    }

    fn is_unused(&self) -> bool {
        self.running() == 0 && self.loading == 0 && self.queue.is_empty()
    }
}

/// The means to load an instance of a model.
#[derive(Clone)]
pub struct InstanceSource {
    pub spec: Arc<InstanceSpec>,
    pub alive: Arc<watch::Sender<()>>,
}

/// Next action of a worker.
pub enum WorkerAction {
    Run(WorkerTask),
    /// Sleep until woken, or until that instant.
    Sleep(Option<Instant>),
}

/// One run: an instance, the jobs, and the other workers that give it their cores.
pub struct WorkerTask {
    pub model: u64,
    /// The instance that runs it.
    pub instance: ModelInstance,
    /// The jobs, at least one.
    pub jobs: Vec<InferJob>,
    /// The workers that do nothing meanwhile; the runtime uses their cores.
    pub reserved: Vec<usize>,
    pub taken: Instant,
}

/// State that all workers share.
#[derive(Default)]
pub struct SchedulerState {
    models: BTreeMap<u64, ScheduledModel>,
    /// The foreground worker of each core, then the background worker of each.
    workers: Vec<WorkerState>,
    foreground: HeldWorkers,
    background: HeldWorkers,
    /// The core time of the model that ran last, in nanoseconds: the starting point of a model that returns from
    /// idleness.
    clock: u64,
    next_id: u64,
    /// Inputs of jobs that will not run, to be dropped after the lock is released.
    dropped: Vec<JobInputs>,
    /// Bound on the memory of all instances, in bytes.
    pub memory_budget: Option<u64>,
    /// Set when the process ends.
    pub closed: bool,
}

/// The workers of a tier that long runs occupy.
#[derive(Debug, Default)]
struct HeldWorkers {
    by_long_runs: usize,
    /// Those of them that are held beyond the deadline of the run.
    by_overdue_runs: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkerState {
    Busy,
    Idle,
    Reserved,
}

impl SchedulerState {
    /// A scheduler for this many cores, with all workers busy: each reports itself when it is idle.
    pub fn new(cores: usize, memory_budget: Option<u64>) -> Self {
        Self { workers: vec![WorkerState::Busy; 2 * cores], memory_budget, ..Self::default() }
    }

    fn cores(&self) -> usize {
        self.workers.len() / 2
    }

    /// The worker of a core; `None` beyond the last core.
    fn worker(&self, tier: Tier, core: usize) -> Option<usize> {
        let cores = self.cores();
        (core < cores).then_some(core + tier as usize * cores)
    }

    /// The tier and the core of a worker; `None` for the spare.
    fn place(&self, worker: usize) -> Option<(Tier, usize)> {
        let cores = self.cores();
        let core = worker.checked_rem(cores)?;
        Some((*Tier::ALL.get(worker / cores)?, core))
    }

    /// The idle workers of a tier that may run a model on these cores.
    fn idle<'a>(&'a self, tier: Tier, cores: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
        let workers = cores.iter().filter_map(move |&core| self.worker(tier, core));
        workers.filter(|&worker| self.workers.get(worker) == Some(&WorkerState::Idle))
    }

    /// Adds a model; the number is its handle.
    pub fn add(&mut self, entry: ScheduledModel) -> u64 {
        self.next_id += 1;
        self.models.insert(self.next_id, entry);
        self.next_id
    }

    /// The model, unless it was removed.
    pub fn model(&mut self, id: u64) -> Option<&mut ScheduledModel> {
        self.models.get_mut(&id)
    }

    /// Removes a model. Instances that are running are returned by [`Self::finish_run`].
    pub fn remove(&mut self, id: u64) -> Option<ScheduledModel> {
        self.models.remove(&id)
    }

    /// Queues a job. Returns a worker to wake, if one could take it.
    pub fn offer(&mut self, id: u64, job: InferJob) -> Option<usize> {
        let (now, clock, priority) = (job.queued, self.clock, job.terms.priority);
        let entry = self.models.get_mut(&id)?;
        if entry.is_unused() {
            // Idle time is not saved up: the model would be owed the whole machine.
            entry.core_time = entry.core_time.max(clock);
        }
        entry.last_used = now;
        entry.queue.offer(job);
        self.dropped.append(&mut entry.queue.take_dropped());
        if entry.idle.is_empty() {
            return None;
        }
        entry.starved_since = None;
        let entry = self.models.get(&id)?;
        let tier = entry.tier(priority);
        // The core that ran it last may still have the weights in its cache.
        let warm = entry.idle.last().map(|instance| instance.last_core).filter(|core| entry.cores.contains(core));
        let warm = warm.and_then(|core| self.idle(tier, &[core]).next());
        warm.or_else(|| self.idle(tier, &entry.cores).next()).or_else(|| self.spare_if_held_up(tier))
    }

    /// Notes that a run of the model goes on for long on this many cores, one of them that of `worker`. Returns a
    /// worker to wake.
    pub fn begin_long_run(&mut self, model: u64, worker: usize, cores: usize) -> Option<usize> {
        if let Some(entry) = self.models.get_mut(&model) {
            entry.long_runs += 1;
        }
        let (tier, _) = self.place(worker)?;
        self.held_mut(tier).by_long_runs += cores;
        self.spare_if_held_up(tier)
    }

    /// Notes the end of a long run.
    pub fn end_long_run(&mut self, model: u64, worker: usize, cores: usize) {
        if let Some(entry) = self.models.get_mut(&model) {
            entry.long_runs = entry.long_runs.saturating_sub(1);
        }
        if let Some((tier, _)) = self.place(worker) {
            let held = self.held_mut(tier);
            held.by_long_runs = held.by_long_runs.saturating_sub(cores);
        }
    }

    /// Notes that a run beyond its deadline holds this many cores.
    pub fn begin_overdue_run(&mut self, worker: usize, cores: usize) {
        if let Some((tier, _)) = self.place(worker) {
            self.held_mut(tier).by_overdue_runs += cores;
        }
    }

    /// Notes the end of a run beyond its deadline.
    pub fn end_overdue_run(&mut self, worker: usize, cores: usize) {
        if let Some((tier, _)) = self.place(worker) {
            let held = self.held_mut(tier);
            held.by_overdue_runs = held.by_overdue_runs.saturating_sub(cores);
        }
    }

    /// True while runs beyond their deadlines occupy all workers of the tier of `worker`. False for the spare worker,
    /// which is in no tier.
    pub fn is_overdue_everywhere(&self, worker: usize) -> bool {
        self.place(worker).is_some_and(|(tier, _)| self.held(tier).by_overdue_runs >= self.cores())
    }

    /// The spare worker, while long runs occupy every worker of the tier.
    fn spare_if_held_up(&self, tier: Tier) -> Option<usize> {
        (self.held(tier).by_long_runs >= self.cores()).then_some(self.workers.len())
    }

    fn held(&self, tier: Tier) -> &HeldWorkers {
        match tier {
            Tier::Foreground => &self.foreground,
            Tier::Background => &self.background,
        }
    }

    fn held_mut(&mut self, tier: Tier) -> &mut HeldWorkers {
        match tier {
            Tier::Foreground => &mut self.foreground,
            Tier::Background => &mut self.background,
        }
    }

    /// Takes an instance for a run on the caller's own thread, and the worker that gives its core meanwhile. Only when
    /// nothing waits for the foreground, a worker is free there, and runs over this many bytes of inputs are known to
    /// be brief. `here` is the worker of the core that the caller is on: there another process can continue without
    /// waking another core.
    pub fn take_inline(&mut self, id: u64, bytes: usize, here: Option<usize>) -> Option<(ModelInstance, usize)> {
        // A worker that was woken for it finds its core taken again and again.
        if self.models.values().any(ScheduledModel::has_foreground_work) {
            return None;
        }
        let workers = &self.workers;
        let entry = self.models.get_mut(&id)?;
        // Batches form only while requests wait: requests that run at once, one by one, never form any.
        let batched = entry.batching.is_some();
        let brief = entry.steady
            && entry.average_run <= BRIEF_RUN_MAX
            && bytes <= entry.inline_bytes
            && entry.scale.threads == 1;
        if !brief || batched || !entry.queue.is_empty() {
            return None;
        }
        let is_idle = |worker: &usize| workers.get(*worker) == Some(&WorkerState::Idle);
        // The foreground worker of a core has the number of the core.
        let own = here.filter(|core| entry.cores.contains(core) && is_idle(core));
        let worker = own.or_else(|| entry.cores.iter().copied().find(is_idle))?;
        let sound = entry.idle.iter().rposition(|instance| instance.backend.is_sound())?;
        let instance = entry.idle.remove(sound);
        if entry.instances == entry.idle.len() + 1 {
            entry.core_time = entry.core_time.max(self.clock);
        }
        self.clock = entry.core_time;
        self.set(worker, WorkerState::Reserved);
        Some((instance, worker))
    }

    /// Records the time of a run over this many bytes of inputs.
    pub fn record_run(&mut self, id: u64, bytes: usize, time: Duration) {
        let Some(entry) = self.models.get_mut(&id) else { return };
        let before = if entry.average_run == Duration::MAX { time } else { entry.average_run };
        entry.average_run = before / 8 * 7 + time / 8;
        if time <= BRIEF_RUN_MAX {
            entry.inline_bytes = entry.inline_bytes.max(bytes);
        }
    }

    /// Records the CPU time of a run, with making its inputs and reading its outputs.
    pub fn record_cpu(&mut self, id: u64, cpu: Duration) {
        if let Some(entry) = self.models.get_mut(&id) {
            let average = entry.average_cpu.map_or(cpu, |before| before / 8 * 7 + cpu / 8);
            entry.average_cpu = Some(average);
            entry.is_short = average <= if entry.is_short { FOREGROUND_RUN_KEPT } else { FOREGROUND_RUN_MAX };
        }
    }

    /// Returns the next action of `worker`.
    pub fn next(&mut self, worker: usize, now: Instant) -> WorkerAction {
        let Some((tier, core)) = self.place(worker) else { return self.next_of_spare(worker, now) };
        loop {
            let (best, wake) = self.best(tier, core, now);
            let Some((id, priority)) = best else {
                self.set(worker, WorkerState::Idle);
                return WorkerAction::Sleep(wake);
            };
            let Some(reserved) = self.reserve(id, worker) else {
                // The next worker that becomes free finds the same job and enough cores.
                self.set(worker, WorkerState::Idle);
                return WorkerAction::Sleep(wake);
            };
            if let Some(task) = self.take(id, priority, worker, reserved, now) {
                return WorkerAction::Run(task);
            }
            // Its callers left at this moment: choose again.
        }
    }

    /// Returns the next action of the worker `spare`, which is not one of the cores.
    fn next_of_spare(&mut self, spare: usize, now: Instant) -> WorkerAction {
        let mut next_look: Option<Instant> = None;
        loop {
            let held_up = Tier::ALL.into_iter().filter(|tier| self.spare_if_held_up(*tier).is_some());
            let mut found = None;
            for tier in held_up.collect::<Vec<_>>() {
                let (best, wake) = self.best_of(tier, now, |entry| entry.long_runs == 0);
                next_look = [next_look, wake].into_iter().flatten().min();
                found = found.or(best);
            }
            let Some((id, priority)) = found else { return WorkerAction::Sleep(next_look) };
            if let Some(task) = self.take(id, priority, spare, Vec::new(), now) {
                return WorkerAction::Run(task);
            }
        }
    }

    /// Returns the model and the priority that the worker of a core should run now, and the time at which a batch will
    /// be due.
    fn best(&mut self, tier: Tier, core: usize, now: Instant) -> (Option<(u64, Priority)>, Option<Instant>) {
        self.best_of(tier, now, |entry| entry.cores.contains(&core))
    }

    /// Returns the same among the models that `may_run`.
    fn best_of(
        &mut self,
        tier: Tier,
        now: Instant,
        may_run: impl Fn(&ScheduledModel) -> bool,
    ) -> (Option<(u64, Priority)>, Option<Instant>) {
        let mut wake: Option<Instant> = None;
        for priority in Priority::ALL {
            let mut best: Option<(u64, u64)> = None;
            for (&id, entry) in &mut self.models {
                if !entry.has_work() || entry.tier(priority) != tier || !may_run(entry) {
                    continue;
                }
                let due = entry.queue.due(priority, entry.batching.as_ref(), now);
                self.dropped.append(&mut entry.queue.take_dropped());
                match due {
                    BatchDue::Now if best.is_none_or(|(least, _)| entry.core_time < least) => {
                        best = Some((entry.core_time, id));
                    }
                    BatchDue::Now | BatchDue::Never => {}
                    BatchDue::At(at) => wake = Some(wake.map_or(at, |other| other.min(at))),
                }
            }
            if let Some((_, id)) = best {
                return (Some((id, priority)), wake);
            }
        }
        (None, wake)
    }

    /// Returns a sleeping worker that could take a job now, or that should wait for a batch to become due: each worker
    /// that takes a job wakes the next. A worker that found no job after its run leaves itself out: the tier of a model
    /// may have changed with that run, after a job of it was queued.
    pub fn worker_to_wake(&mut self, but: Option<usize>, now: Instant) -> Option<usize> {
        if !self.models.values().any(ScheduledModel::has_work) {
            return None;
        }
        let of_a_core = (0..self.workers.len()).find(|&worker| {
            let Some((tier, core)) = self.place(worker) else { return false };
            if Some(worker) == but || self.workers.get(worker) != Some(&WorkerState::Idle) {
                return false;
            }
            let (best, wake) = self.best(tier, core, now);
            best.map_or(wake.is_some(), |(id, _)| self.reserve(id, worker).is_some())
        });
        of_a_core.or_else(|| Tier::ALL.into_iter().find_map(|tier| self.spare_if_held_up(tier)))
    }

    /// Takes the inputs that must be dropped outside of the lock.
    pub fn take_dropped(&mut self) -> Vec<JobInputs> {
        std::mem::take(&mut self.dropped)
    }

    /// Takes back the instance of a finished run of the time `spent`. Returns the instance when its model was removed.
    pub fn finish_run(
        &mut self,
        worker: usize,
        model: u64,
        mut instance: ModelInstance,
        reserved: &[usize],
        spent: Duration,
        now: Instant,
    ) -> Option<ModelInstance> {
        for &other in reserved {
            self.set(other, WorkerState::Idle);
        }
        // The spare worker shares the first core.
        instance.last_core = self.place(worker).map_or(0, |(_, core)| core);
        self.give_back(model, instance, reserved.len() + 1, spent, now)
    }

    /// Takes back the instance of a run on the caller's own thread, for which `worker` was reserved. Returns the
    /// instance when its model was removed.
    pub fn finish_inline_run(
        &mut self,
        worker: usize,
        model: u64,
        instance: ModelInstance,
        spent: Duration,
        now: Instant,
    ) -> Option<ModelInstance> {
        self.set(worker, WorkerState::Idle);
        self.give_back(model, instance, 1, spent, now)
    }

    fn give_back(
        &mut self,
        model: u64,
        mut instance: ModelInstance,
        cores: usize,
        spent: Duration,
        now: Instant,
    ) -> Option<ModelInstance> {
        instance.last_used = now;
        let Some(entry) = self.models.get_mut(&model) else { return Some(instance) };
        let nanos = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
        let cores = u64::try_from(cores).unwrap_or(u64::MAX);
        entry.core_time = entry.core_time.saturating_add(nanos.saturating_mul(cores));
        entry.last_used = now;
        if instance.backend.has_ended() {
            entry.instances -= 1;
            entry.lost += 1;
            return Some(instance);
        }
        entry.idle.push(instance);
        None
    }

    /// Removes the idle instances in the process of this number, which has ended. Those that are running are returned
    /// by [`Self::finish_run`].
    pub fn lose(&mut self, process: u64) -> Vec<ModelInstance> {
        let mut lost = Vec::new();
        for entry in self.models.values_mut() {
            let before = lost.len();
            lost.extend(entry.idle.extract_if(.., |instance| instance.backend.process() == Some(process)));
            entry.instances -= lost.len() - before;
            entry.lost += lost.len() - before;
        }
        lost
    }

    /// The models that have fewer instances than their minimum because a process has ended, each with the means to load
    /// one. They count as loading from now on.
    pub fn take_missing(&mut self) -> Vec<(u64, InstanceSource)> {
        let mut missing = Vec::new();
        for (&id, entry) in &mut self.models {
            let lost = std::mem::take(&mut entry.lost);
            let Some(source) = &entry.source else { continue };
            let wanted = entry.scale.min.max(1).saturating_sub(entry.instances + entry.loading);
            entry.loading += lost.min(wanted);
            missing.extend(std::iter::repeat_n((id, source.clone()), lost.min(wanted)));
        }
        missing
    }

    /// Queues interrupted jobs again, before all others.
    pub fn requeue(&mut self, id: u64, jobs: Vec<InferJob>) {
        match self.models.get_mut(&id) {
            Some(entry) => entry.queue.requeue(jobs),
            None => self.dropped.extend(jobs.into_iter().map(|job| job.inputs)),
        }
    }

    /// Marks `worker` as awake.
    pub fn mark_awake(&mut self, worker: usize) {
        if self.workers.get(worker) == Some(&WorkerState::Idle) {
            self.set(worker, WorkerState::Busy);
        }
    }

    /// True when a worker's core is used by a run of another worker.
    pub fn is_reserved(&self, worker: usize) -> bool {
        self.workers.get(worker) == Some(&WorkerState::Reserved)
    }

    /// Decides whether the model gets another instance now, and counts it as loading if so: jobs wait and it has fewer
    /// than its minimum, or they have waited longer than its target queue time while a core was free, and the instance
    /// fits into memory.
    pub fn wants_instance(&mut self, id: u64, now: Instant) -> bool {
        let fits = |more: u64| self.memory_budget.is_none_or(|budget| self.bytes().saturating_add(more) <= budget);
        let fits = self.models.get(&id).is_some_and(|entry| fits(entry.bytes_each));
        let free = self.models.get(&id).map_or(0, |entry| {
            let is_interactive = entry.queue.oldest(Priority::Interactive).is_some();
            let first = if is_interactive { Priority::Interactive } else { Priority::Batch };
            self.idle(entry.tier(first), &entry.cores).count()
        });
        let Some(entry) = self.models.get_mut(&id) else { return false };
        let waits = !entry.queue.is_empty() && entry.idle.is_empty() && entry.loading == 0;
        if !waits || (entry.instances > 0 && free < entry.scale.threads) {
            entry.starved_since = None;
            return false;
        }
        let since = *entry.starved_since.get_or_insert(now);
        let starved = entry.instances < entry.scale.min || now.duration_since(since) >= entry.scale.target_queue_time;
        let may_grow = entry.instances < entry.scale.max && !entry.growth_failed && fits;
        let wanted = entry.instances == 0 || (may_grow && starved);
        if wanted {
            entry.loading += 1;
            entry.starved_since = None;
        }
        wanted
    }

    /// Removes the instances that were idle for too long, and returns the time of the next check.
    pub fn expired(&mut self, now: Instant) -> (Vec<ModelInstance>, Option<Instant>) {
        let (mut given_up, mut look_again) = (Vec::new(), None::<Instant>);
        for entry in self.models.values_mut() {
            let mut consider = |at: Instant| look_again = Some(look_again.map_or(at, |other| other.min(at)));
            if let Some(keep_alive) = entry.scale.keep_alive
                && entry.instances > 0
            {
                // A time beyond the range of the clock is never.
                match entry.last_used.checked_add(keep_alive) {
                    Some(at) if at <= now && entry.is_unused() => {
                        entry.instances -= entry.idle.len();
                        entry.growth_failed = false;
                        given_up.append(&mut entry.idle);
                    }
                    Some(at) => consider(at.max(now + (keep_alive / 4).clamp(EXPIRY_RECHECK_MIN, EXPIRY_RECHECK_MAX))),
                    None => {}
                }
            }

            while entry.instances > entry.scale.min {
                // The first one was used least recently.
                let Some(at) = entry.idle.first().map(|instance| instance.last_used + SURPLUS_IDLE_TIMEOUT) else {
                    break;
                };
                if at > now {
                    consider(at);
                    break;
                }
                given_up.push(entry.idle.remove(0));
                entry.instances -= 1;
            }
            if entry.instances > entry.scale.min && entry.idle.is_empty() {
                consider(now + SURPLUS_IDLE_TIMEOUT);
            }
        }
        (given_up, look_again)
    }

    /// Removes the idle instances of a model.
    pub fn evict(&mut self, id: u64) -> Vec<ModelInstance> {
        let Some(entry) = self.models.get_mut(&id) else { return Vec::new() };
        entry.instances -= entry.idle.len();
        std::mem::take(&mut entry.idle)
    }

    /// Memory of all instances in bytes, including those that are being loaded.
    pub fn bytes(&self) -> u64 {
        self.models.values().map(|entry| entry.bytes_each * (entry.instances + entry.loading) as u64).sum()
    }

    /// Removes the instances of the model that was used least recently and is not in use, other than `keep`. `None` if
    /// no model can be unloaded.
    pub fn least_recently_used(&mut self, keep: u64) -> Option<Vec<ModelInstance>> {
        let unused =
            self.models.iter_mut().filter(|(id, entry)| **id != keep && entry.is_unused() && entry.instances > 0);
        let (_, entry) = unused.min_by_key(|(_, entry)| entry.last_used)?;
        entry.instances = 0;
        entry.growth_failed = false;
        Some(std::mem::take(&mut entry.idle))
    }

    fn set(&mut self, worker: usize, state: WorkerState) {
        if let Some(worker) = self.workers.get_mut(worker) {
            *worker = state;
        }
    }

    /// Returns the idle workers that give their cores to a run of the model, besides `worker`; `None` when too few are
    /// idle.
    fn reserve(&self, id: u64, worker: usize) -> Option<Vec<usize>> {
        let entry = self.models.get(&id)?;
        let (tier, _) = self.place(worker)?;
        let others = self.idle(tier, &entry.cores).filter(|&other| other != worker);
        let reserved: Vec<usize> = others.take(entry.scale.threads - 1).collect();
        (reserved.len() + 1 >= entry.scale.threads.min(entry.cores.len())).then_some(reserved)
    }

    fn take(
        &mut self,
        id: u64,
        priority: Priority,
        worker: usize,
        reserved: Vec<usize>,
        now: Instant,
    ) -> Option<WorkerTask> {
        let core = self.place(worker).map(|(_, core)| core);
        let entry = self.models.get_mut(&id)?;
        let jobs = entry.queue.take(priority, entry.batching.as_ref(), now);
        self.dropped.append(&mut entry.queue.take_dropped());
        // While others still wait, one more run by the same instance is no relief.
        if entry.queue.is_empty() {
            entry.starved_since = None;
        }
        if jobs.is_empty() {
            return None;
        }
        let warm = entry.idle.iter().rposition(|instance| Some(instance.last_core) == core);
        let instance = warm.map(|index| entry.idle.remove(index)).or_else(|| entry.idle.pop())?;
        self.clock = entry.core_time;
        for &other in &reserved {
            self.set(other, WorkerState::Reserved);
        }
        self.set(worker, WorkerState::Busy);
        Some(WorkerTask { model: id, instance, jobs, reserved, taken: now })
    }
}

#[cfg(test)]
mod tests;
