//! Which job runs next, and on which core: the state that all workers share, and its rules. Pure: no thread, no clock.
//!
//! There is one worker a core of the budget, so models can never have more runnable threads than cores. The rules, in
//! order: interactive before batch; among the models that could run, the one that has had the least core time; within
//! a model callers in turn (`queue.rs`). A run that needs several cores waits until so many are free, and nothing
//! overtakes it meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge_engine::backend::Backend;
use tokio::sync::watch;

use super::batcher::BatchPolicy;
use super::instance::{Observer, Residence};
use super::queue::{Due, Job, JobInputs, Queue};
use super::terms::Priority;

/// A loaded copy of a model.
pub struct Instance {
    /// The model in its runtime.
    pub backend: Box<dyn Backend>,
    /// The worker that ran it last: its caches may still hold the weights.
    pub last_worker: usize,
    /// When it was last used.
    pub last_used: Instant,
    /// Its memory in bytes, as far as it could be measured when it was loaded.
    pub bytes: u64,
    /// Who is told of its runs.
    pub observer: Arc<dyn Observer>,
    /// The last field, so that it is dropped when the memory is given back.
    pub alive: Alive,
}

/// Reports, by being dropped, that an instance is gone: to its model, and to the engine.
pub struct Alive {
    /// What the model waits for.
    pub of_model: watch::Receiver<()>,
    /// What the engine waits for.
    pub of_engine: watch::Receiver<()>,
}

/// How many instances a model has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    /// Kept while the model is in use.
    pub min: usize,
    /// Never more.
    pub max: usize,
    pub threads: usize,
    /// How long jobs may wait for an instance while a core is free, before another instance is loaded.
    pub patience: Duration,
    /// After how long without use all instances are given up; `None` is never.
    pub keep_alive: Option<Duration>,
}

/// After how long without use an instance above the minimum is given up.
const SURPLUS_KEPT: Duration = Duration::from_mins(1);

/// A run that usually takes no longer than this is done by the caller's thread: waking a worker and being woken by it
/// costs the two threads about as much (15 us of CPU time on a busy 2.6 GHz EPYC in a virtual machine, 50 us on an idle
/// one, whose cores have to be woken first). The caller's thread is held up for no longer than by parsing 20 kB of JSON.
const BRIEF: Duration = Duration::from_micros(60);

/// A model that should have been given up, but is in use, is looked at again after a quarter of its time, within these.
const MOMENT: Duration = Duration::from_millis(10);
const HOUR: Duration = Duration::from_hours(1);

/// A model as the scheduler sees it.
pub struct Entry {
    pub queue: Queue,
    /// The instances that are not running, the last used last.
    pub idle: Vec<Instance>,
    /// Instances, running ones included.
    pub instances: usize,
    /// Instances that are being loaded.
    pub loading: usize,
    /// Between which numbers of instances.
    pub scale: Scale,
    /// How requests are put together; `None` runs each alone.
    pub batching: Option<BatchPolicy>,
    /// The workers that may run it.
    pub workers: Vec<usize>,
    /// What its instances take in memory, each.
    pub bytes_each: u64,
    /// How long runs take on average; each run counts for an eighth.
    usual: Duration,
    /// The most bytes of inputs that were run briefly: larger ones are tried on a worker first.
    brief_bytes: usize,
    /// Whether the size of the inputs says how long a run takes: not in a model whose outputs grow with their content.
    pub steady: bool,
    /// Whether the last load of another instance failed; it is not tried again while there is one.
    pub growth_failed: bool,
    /// Core time used, in nanoseconds, brought up to the clock when it comes back from idleness.
    core_time: u64,
    /// Since when jobs wait although a core is free.
    starved_since: Option<Instant>,
    /// When it was last used.
    last_used: Instant,
}

impl Entry {
    /// A model without instances yet.
    pub fn new(queue: Queue, scale: Scale, batching: Option<BatchPolicy>, workers: Vec<usize>, now: Instant) -> Self {
        Self {
            queue,
            idle: Vec::new(),
            instances: 0,
            loading: 0,
            scale,
            batching,
            workers,
            bytes_each: 0,
            usual: Duration::MAX,
            brief_bytes: 0,
            steady: false,
            growth_failed: false,
            core_time: 0,
            starved_since: None,
            last_used: now,
        }
    }

    /// How many instances there are, and what they take.
    pub fn residence(&self) -> Residence {
        let Self { instances, bytes_each, .. } = *self;
        Residence { instances, bytes: bytes_each * instances as u64, bytes_each, queued: self.queue.len() }
    }

    fn running(&self) -> usize {
        self.instances - self.idle.len()
    }

    /// Whether a job waits that an instance could take.
    fn has_work(&self) -> bool {
        !self.idle.is_empty() && !self.queue.is_empty()
    }

    fn is_unused(&self) -> bool {
        self.running() == 0 && self.loading == 0 && self.queue.is_empty()
    }
}

/// What a worker is to do.
pub enum Next {
    Run(Task),
    /// Sleep until woken, or until that instant.
    Sleep(Option<Instant>),
}

/// One run: an instance, the jobs, and the other workers whose cores it takes.
pub struct Task {
    pub model: u64,
    /// The instance that runs it.
    pub instance: Instance,
    /// The jobs, at least one.
    pub jobs: Vec<Job>,
    /// The workers that stand still meanwhile; their cores are the runtime's.
    pub reserved: Vec<usize>,
    pub taken: Instant,
}

/// What all workers share.
#[derive(Default)]
pub struct State {
    models: BTreeMap<u64, Entry>,
    workers: Vec<Worker>,
    /// The core time of the model that ran last, in nanoseconds: where a model that comes back from idleness starts.
    clock: u64,
    next_id: u64,
    /// Inputs of jobs that were not run: whoever holds the lock drops them without it.
    dead: Vec<JobInputs>,
    /// What all instances may take in memory, in bytes.
    pub memory_budget: Option<u64>,
    /// Set when the process ends.
    pub closed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Worker {
    Busy,
    Idle,
    Reserved,
}

impl State {
    /// With `workers` workers, all busy: each says itself when it is not.
    pub fn new(workers: usize, memory_budget: Option<u64>) -> Self {
        Self { workers: vec![Worker::Busy; workers], memory_budget, ..Self::default() }
    }

    /// Adds a model; the number is its handle.
    pub fn add(&mut self, entry: Entry) -> u64 {
        self.next_id += 1;
        self.models.insert(self.next_id, entry);
        self.next_id
    }

    /// The model, unless it was removed.
    pub fn model(&mut self, id: u64) -> Option<&mut Entry> {
        self.models.get_mut(&id)
    }

    /// Takes a model out. Instances that are running come back through [`Self::done`].
    pub fn remove(&mut self, id: u64) -> Option<Entry> {
        self.models.remove(&id)
    }

    /// Queues a job. Returns a worker to wake, if one could take it.
    pub fn offer(&mut self, id: u64, job: Job) -> Option<usize> {
        let (now, clock) = (job.queued, self.clock);
        let entry = self.models.get_mut(&id)?;
        if entry.is_unused() {
            // Idleness saves nothing up: it would be owed the whole machine.
            entry.core_time = entry.core_time.max(clock);
        }
        entry.last_used = now;
        entry.queue.offer(job);
        self.dead.append(&mut entry.queue.take_dead());
        let can_run = !entry.idle.is_empty();
        if can_run {
            entry.starved_since = None;
        }
        let workers = &self.workers;
        let idle = entry.workers.iter().copied().find(|&worker| workers.get(worker) == Some(&Worker::Idle));
        // Where it ran last the weights are still in the cache.
        let warm = entry.idle.last().map(|instance| instance.last_worker);
        let warm = warm.filter(|&worker| workers.get(worker) == Some(&Worker::Idle) && entry.workers.contains(&worker));
        if can_run { warm.or(idle) } else { None }
    }

    /// An instance for a run on the caller's own thread, and the worker whose core it takes meanwhile: when nothing
    /// waits, a core is free, and runs over so many bytes of inputs are known to be brief.
    pub fn take_brief(&mut self, id: u64, bytes: usize) -> Option<(Instance, usize)> {
        // A worker that sleeps may be waiting for other cores to get free, for a run that nothing may overtake.
        if self.models.values().any(Entry::has_work) {
            return None;
        }
        let workers = &self.workers;
        let entry = self.models.get_mut(&id)?;
        // Who wants batches wants them to form: run one by one at once, requests never would.
        let batched = entry.batching.is_some();
        let brief = entry.steady && entry.usual <= BRIEF && bytes <= entry.brief_bytes && entry.scale.threads == 1;
        if !brief || batched || !entry.queue.is_empty() {
            return None;
        }
        let is_idle = |worker: &usize| workers.get(*worker) == Some(&Worker::Idle);
        let worker = entry.workers.iter().copied().find(is_idle)?;
        let sound = entry.idle.iter().rposition(|instance| instance.backend.is_sound())?;
        let instance = entry.idle.remove(sound);
        if entry.instances == entry.idle.len() + 1 {
            entry.core_time = entry.core_time.max(self.clock);
        }
        self.clock = entry.core_time;
        self.set(worker, Worker::Reserved);
        Some((instance, worker))
    }

    /// Notes how long a run over so many bytes of inputs took.
    pub fn ran(&mut self, id: u64, bytes: usize, time: Duration) {
        let Some(entry) = self.models.get_mut(&id) else { return };
        let before = if entry.usual == Duration::MAX { time } else { entry.usual };
        entry.usual = before / 8 * 7 + time / 8;
        if time <= BRIEF {
            entry.brief_bytes = entry.brief_bytes.max(bytes);
        }
    }

    /// What `worker` is to do now.
    pub fn next(&mut self, worker: usize, now: Instant) -> Next {
        loop {
            let (best, wake) = self.best(worker, now);
            let Some((id, priority)) = best else {
                self.set(worker, Worker::Idle);
                return Next::Sleep(wake);
            };
            let Some(reserved) = self.reserve(id, worker) else {
                // The next worker that gets free finds the same job and enough cores.
                self.set(worker, Worker::Idle);
                return Next::Sleep(wake);
            };
            if let Some(task) = self.take(id, priority, worker, reserved, now) {
                return Next::Run(task);
            }
            // Its callers left at this moment: look again.
        }
    }

    /// The model, and which of its jobs, that `worker` should run now; and when a batch will be due.
    fn best(&mut self, worker: usize, now: Instant) -> (Option<(u64, Priority)>, Option<Instant>) {
        let mut wake: Option<Instant> = None;
        for priority in Priority::ALL {
            let mut best: Option<(u64, u64)> = None;
            for (&id, entry) in &mut self.models {
                if !entry.has_work() || !entry.workers.contains(&worker) {
                    continue;
                }
                let due = entry.queue.due(priority, entry.batching.as_ref(), now);
                self.dead.append(&mut entry.queue.take_dead());
                match due {
                    Due::Now if best.is_none_or(|(least, _)| entry.core_time < least) => {
                        best = Some((entry.core_time, id));
                    }
                    Due::Now | Due::Never => {}
                    Due::At(at) => wake = Some(wake.map_or(at, |other| other.min(at))),
                }
            }
            if let Some((_, id)) = best {
                return (Some((id, priority)), wake);
            }
        }
        (None, wake)
    }

    /// A sleeping worker that could take a job now, or see to it that one is taken when its batch is due: whoever took
    /// one wakes the next.
    pub fn another(&mut self, now: Instant) -> Option<usize> {
        if !self.models.values().any(Entry::has_work) {
            return None;
        }
        (0..self.workers.len()).find(|&worker| {
            if self.workers.get(worker) != Some(&Worker::Idle) {
                return false;
            }
            let (best, wake) = self.best(worker, now);
            best.map_or(wake.is_some(), |(id, _)| self.reserve(id, worker).is_some())
        })
    }

    /// What is to be dropped without the lock.
    pub fn take_dead(&mut self) -> Vec<JobInputs> {
        std::mem::take(&mut self.dead)
    }

    /// Takes back a finished run: `spent` is its time. Returns the instance when its model is gone.
    pub fn done(
        &mut self,
        worker: usize,
        model: u64,
        mut instance: Instance,
        reserved: &[usize],
        spent: Duration,
        now: Instant,
    ) -> Option<Instance> {
        for &other in reserved {
            self.set(other, Worker::Idle);
        }
        instance.last_worker = worker;
        self.give_back(model, instance, reserved.len() + 1, spent, now)
    }

    /// Takes back a run on the caller's own thread, for which `worker` stood still. Returns the instance when its model is
    /// gone.
    pub fn done_brief(
        &mut self,
        worker: usize,
        model: u64,
        instance: Instance,
        spent: Duration,
        now: Instant,
    ) -> Option<Instance> {
        self.set(worker, Worker::Idle);
        self.give_back(model, instance, 1, spent, now)
    }

    fn give_back(
        &mut self,
        model: u64,
        mut instance: Instance,
        cores: usize,
        spent: Duration,
        now: Instant,
    ) -> Option<Instance> {
        instance.last_used = now;
        let Some(entry) = self.models.get_mut(&model) else { return Some(instance) };
        let nanos = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
        let cores = u64::try_from(cores).unwrap_or(u64::MAX);
        entry.core_time = entry.core_time.saturating_add(nanos.saturating_mul(cores));
        entry.last_used = now;
        entry.idle.push(instance);
        None
    }

    /// `worker` is awake.
    pub fn awake(&mut self, worker: usize) {
        if self.workers.get(worker) == Some(&Worker::Idle) {
            self.set(worker, Worker::Busy);
        }
    }

    /// Whether a worker's core is taken by a run of another worker.
    pub fn is_reserved(&self, worker: usize) -> bool {
        self.workers.get(worker) == Some(&Worker::Reserved)
    }

    /// Whether the model should get another instance now, and counts it as loading if so: jobs wait and it has fewer than
    /// its minimum, or they have waited for longer than its patience while a core was free, and it fits into memory.
    pub fn wants_instance(&mut self, id: u64, now: Instant) -> bool {
        let fits = |more: u64| self.memory_budget.is_none_or(|budget| self.bytes().saturating_add(more) <= budget);
        let fits = self.models.get(&id).is_some_and(|entry| fits(entry.bytes_each));
        let workers = &self.workers;
        let Some(entry) = self.models.get_mut(&id) else { return false };
        let waits = !entry.queue.is_empty() && entry.idle.is_empty() && entry.loading == 0;
        let free = entry.workers.iter().filter(|&&worker| workers.get(worker) == Some(&Worker::Idle)).count();
        if !waits || (entry.instances > 0 && free < entry.scale.threads) {
            entry.starved_since = None;
            return false;
        }
        let since = *entry.starved_since.get_or_insert(now);
        let starved = entry.instances < entry.scale.min || now.duration_since(since) >= entry.scale.patience;
        let may_grow = entry.instances < entry.scale.max && !entry.growth_failed && fits;
        let wanted = entry.instances == 0 || (may_grow && starved);
        if wanted {
            entry.loading += 1;
            entry.starved_since = None;
        }
        wanted
    }

    /// Takes out the instances that were idle for too long, and says when to look again.
    pub fn expired(&mut self, now: Instant) -> (Vec<Instance>, Option<Instant>) {
        let (mut given_up, mut look_again) = (Vec::new(), None::<Instant>);
        for entry in self.models.values_mut() {
            let mut consider = |at: Instant| look_again = Some(look_again.map_or(at, |other| other.min(at)));
            if let Some(keep_alive) = entry.scale.keep_alive
                && entry.instances > 0
            {
                // Later than the clock can say is never.
                match entry.last_used.checked_add(keep_alive) {
                    Some(at) if at <= now && entry.is_unused() => {
                        entry.instances -= entry.idle.len();
                        entry.growth_failed = false;
                        given_up.append(&mut entry.idle);
                    }
                    Some(at) => consider(at.max(now + (keep_alive / 4).clamp(MOMENT, HOUR))),
                    None => {}
                }
            }
            while entry.instances > entry.scale.min {
                // The first is the one that was used least recently.
                let Some(at) = entry.idle.first().map(|instance| instance.last_used + SURPLUS_KEPT) else { break };
                if at > now {
                    consider(at);
                    break;
                }
                given_up.push(entry.idle.remove(0));
                entry.instances -= 1;
            }
            if entry.instances > entry.scale.min && entry.idle.is_empty() {
                consider(now + SURPLUS_KEPT);
            }
        }
        (given_up, look_again)
    }

    /// The memory of all instances, those that are being loaded included, in bytes.
    pub fn bytes(&self) -> u64 {
        self.models.values().map(|entry| entry.bytes_each * (entry.instances + entry.loading) as u64).sum()
    }

    /// Takes out the instances of the model that was used least recently and is not in use, `keep` apart. `None` when
    /// there is no such model.
    pub fn least_recently_used(&mut self, keep: u64) -> Option<Vec<Instance>> {
        let unused =
            self.models.iter_mut().filter(|(id, entry)| **id != keep && entry.is_unused() && entry.instances > 0);
        let (_, entry) = unused.min_by_key(|(_, entry)| entry.last_used)?;
        entry.instances = 0;
        entry.growth_failed = false;
        Some(std::mem::take(&mut entry.idle))
    }

    fn set(&mut self, worker: usize, state: Worker) {
        if let Some(worker) = self.workers.get_mut(worker) {
            *worker = state;
        }
    }

    /// The idle workers whose cores a run of the model takes beside `worker`; `None` when too few are idle.
    fn reserve(&self, id: u64, worker: usize) -> Option<Vec<usize>> {
        let entry = self.models.get(&id)?;
        let others = entry.workers.iter().copied().filter(|&other| other != worker);
        let idle = others.filter(|&other| self.workers.get(other) == Some(&Worker::Idle));
        let reserved: Vec<usize> = idle.take(entry.scale.threads - 1).collect();
        (reserved.len() + 1 >= entry.scale.threads.min(entry.workers.len())).then_some(reserved)
    }

    fn take(&mut self, id: u64, priority: Priority, worker: usize, reserved: Vec<usize>, now: Instant) -> Option<Task> {
        let entry = self.models.get_mut(&id)?;
        let jobs = entry.queue.take(priority, entry.batching.as_ref(), now);
        self.dead.append(&mut entry.queue.take_dead());
        entry.starved_since = None;
        if jobs.is_empty() {
            return None;
        }
        let warm = entry.idle.iter().rposition(|instance| instance.last_worker == worker);
        let instance = warm.map(|index| entry.idle.remove(index)).or_else(|| entry.idle.pop())?;
        self.clock = entry.core_time;
        for &other in &reserved {
            self.set(other, Worker::Reserved);
        }
        self.set(worker, Worker::Busy);
        Some(Task { model: id, instance, jobs, reserved, taken: now })
    }
}

#[cfg(test)]
mod tests;
