//! The queue before a model's instances: bounded, by priority, and fair between callers.
//!
//! Callers never wait to get in: a full queue is an answer. Within one priority the callers of a model take turns, so one
//! that floods it delays itself alone; what one caller sent keeps its order. A job whose caller left or whose deadline
//! passed is dropped when its turn comes, before any work is done for it.

use std::collections::VecDeque;
use std::time::Instant;

use tokio::sync::oneshot;

use super::batcher::{BatchPolicy, batch_together};
use super::instance::{Answer, InferError};
use super::terms::{Priority, Terms};
use crate::principal::Principal;
use crate::tensor::Tensor;

/// One call of a model, waiting for an instance.
#[derive(Debug)]
pub struct Job {
    /// What the model is run on.
    pub inputs: JobInputs,
    /// Indices of the outputs wanted.
    pub outputs: Vec<usize>,
    /// Batch elements.
    pub rows: usize,
    /// Until when, how urgently and by whom.
    pub terms: Terms,
    /// When it was queued.
    pub queued: Instant,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<Answer, InferError>>,
}

/// The inputs of a job, in the signature's order; they fit it.
pub enum JobInputs {
    /// Tensors.
    Tensors(Vec<Tensor>),
    /// Something smaller, such as a photograph, that becomes tensors on the worker's core, when its turn has come.
    Prepare {
        /// Makes the tensors, or says what is wrong.
        make: Preparation,
        /// The bytes that wait meanwhile.
        bytes: usize,
    },
}

/// Makes a job's tensors, or says what is wrong.
pub type Preparation = Box<dyn FnOnce() -> Result<Vec<Tensor>, String> + Send>;

impl std::fmt::Debug for JobInputs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tensors(tensors) => f.debug_tuple("Tensors").field(tensors).finish(),
            Self::Prepare { bytes, .. } => f.debug_struct("Prepare").field("bytes", bytes).finish_non_exhaustive(),
        }
    }
}

impl Job {
    /// Its tensors, unless they are still to be made.
    pub fn tensors(&self) -> Option<&[Tensor]> {
        match &self.inputs {
            JobInputs::Tensors(tensors) => Some(tensors),
            JobInputs::Prepare { .. } => None,
        }
    }

    fn goes_with(&self, other: &Self) -> bool {
        let both = self.tensors().zip(other.tensors());
        both.is_some_and(|(own, others)| batch_together(own, &self.outputs, others, &other.outputs))
    }

    fn is_wanted(&self, now: Instant) -> bool {
        !self.reply.is_closed() && now < self.terms.deadline
    }

    /// Bytes of its inputs.
    pub fn bytes(&self) -> usize {
        match &self.inputs {
            JobInputs::Tensors(tensors) => tensors.iter().map(|tensor| tensor.data().len()).sum(),
            JobInputs::Prepare { bytes, .. } => *bytes,
        }
    }
}

/// How much may wait before one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// Jobs of one priority.
    pub jobs: usize,
    /// Bytes of the inputs of all jobs.
    pub bytes: usize,
}

/// When the next batch of a priority may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Nothing waits.
    Never,
    /// At once.
    Now,
    /// Not before more jobs came, or this instant.
    At(Instant),
}

/// The jobs that wait for one model.
#[derive(Debug)]
pub struct Queue {
    levels: [Level; 2],
    limits: QueueLimits,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Level {
    /// In the order of their turns.
    lanes: VecDeque<Lane>,
    jobs: usize,
    rows: usize,
}

/// What one caller sent, oldest first; never empty.
#[derive(Debug)]
struct Lane {
    principal: Principal,
    jobs: VecDeque<Job>,
}

impl Queue {
    /// An empty queue.
    pub fn new(limits: QueueLimits) -> Self {
        Self { levels: Default::default(), limits, bytes: 0 }
    }

    /// Adds a job, or refuses it at once. A caller that holds more of a full queue than the newcomer makes room: its
    /// newest job is refused instead.
    pub fn offer(&mut self, job: Job) {
        let now = job.queued;
        let bytes = job.bytes();
        if self.is_full(job.terms.priority, bytes) {
            // Those whose callers left must not keep others out.
            self.purge(now);
        }
        // An input above the limit by itself still gets in when nothing else waits: the transport bounds it.
        while self.is_full(job.terms.priority, bytes) && self.len() > 0 {
            let depth = self.level(job.terms.priority).jobs;
            let Some(displaced) = self.displace(job.terms.priority, &job.terms.principal) else {
                return refuse(job, depth);
            };
            refuse(displaced, depth);
        }
        self.bytes += bytes;
        let level = self.level_mut(job.terms.priority);
        level.jobs += 1;
        level.rows += job.rows;
        match level.lanes.iter_mut().find(|lane| lane.principal == job.terms.principal) {
            Some(lane) => lane.jobs.push_back(job),
            None => level.lanes.push_back(Lane { principal: job.terms.principal.clone(), jobs: [job].into() }),
        }
    }

    /// How many jobs wait.
    pub fn len(&self) -> usize {
        self.levels.iter().map(|level| level.jobs).sum()
    }

    /// When the oldest job of a priority was queued.
    pub fn oldest(&self, priority: Priority) -> Option<Instant> {
        self.level(priority).lanes.iter().filter_map(|lane| Some(lane.jobs.front()?.queued)).min()
    }

    /// Whether a batch can be taken now. Drops unwanted jobs at the heads of the lanes.
    pub fn due(&mut self, priority: Priority, policy: Option<&BatchPolicy>, now: Instant) -> Due {
        self.drop_unwanted_heads(priority, now);
        let level = self.level(priority);
        let Some(oldest) = self.oldest(priority) else { return Due::Never };
        let Some(policy) = policy else { return Due::Now };
        let at = oldest + policy.delay;
        if at <= now || level.rows >= policy.worth_waiting_for() { Due::Now } else { Due::At(at) }
    }

    /// Takes the jobs of one run, callers in turn: one job, or with a policy as many as belong together.
    pub fn take(&mut self, priority: Priority, policy: Option<&BatchPolicy>, now: Instant) -> Vec<Job> {
        self.drop_unwanted_heads(priority, now);
        let level = self.level_mut(priority);
        let turns = level.turns(policy, now);
        let mut jobs = Vec::with_capacity(turns.len());
        for &lane in &turns {
            jobs.extend(level.lanes.get_mut(lane).and_then(|lane| lane.jobs.pop_front()));
        }
        // Who was served last goes to the back, and with it those before.
        if let Some(last) = turns.last() {
            level.lanes.rotate_left((last + 1) % level.lanes.len().max(1));
        }
        level.lanes.retain(|lane| !lane.jobs.is_empty());
        level.jobs -= jobs.len();
        level.rows -= jobs.iter().map(|job| job.rows).sum::<usize>();
        self.bytes -= jobs.iter().map(Job::bytes).sum::<usize>();
        jobs
    }

    /// Takes every job, as when the model cannot be loaded.
    pub fn drain(&mut self) -> Vec<Job> {
        self.bytes = 0;
        let levels = self.levels.iter_mut().map(std::mem::take);
        levels.flat_map(|level| level.lanes).flat_map(|lane| lane.jobs).collect()
    }

    fn is_full(&self, priority: Priority, bytes: usize) -> bool {
        self.level(priority).jobs >= self.limits.jobs || self.bytes.saturating_add(bytes) > self.limits.bytes
    }

    /// The newest job of the caller that holds most, when that is more than `newcomer` would hold.
    fn displace(&mut self, priority: Priority, newcomer: &Principal) -> Option<Job> {
        let level = self.level_mut(priority);
        let own = level.lanes.iter().find(|lane| lane.principal == *newcomer).map_or(0, |lane| lane.jobs.len());
        let longest = level.lanes.iter_mut().max_by_key(|lane| lane.jobs.len())?;
        if longest.jobs.len() <= own + 1 {
            return None;
        }
        let job = longest.jobs.pop_back()?;
        level.jobs -= 1;
        level.rows -= job.rows;
        self.bytes -= job.bytes();
        Some(job)
    }

    fn purge(&mut self, now: Instant) {
        for level in &mut self.levels {
            for lane in &mut level.lanes {
                lane.jobs.retain(|job| job.is_wanted(now));
            }
            level.settle();
        }
        let jobs = self.levels.iter().flat_map(|level| &level.lanes).flat_map(|lane| &lane.jobs);
        self.bytes = jobs.map(Job::bytes).sum();
    }

    fn drop_unwanted_heads(&mut self, priority: Priority, now: Instant) {
        let level = self.level_mut(priority);
        let mut freed = 0;
        for lane in &mut level.lanes {
            while let Some(job) = lane.jobs.pop_front_if(|job| !job.is_wanted(now)) {
                level.jobs -= 1;
                level.rows -= job.rows;
                freed += job.bytes();
            }
        }
        level.lanes.retain(|lane| !lane.jobs.is_empty());
        self.bytes -= freed;
    }

    fn level(&self, priority: Priority) -> &Level {
        let [interactive, batch] = &self.levels;
        match priority {
            Priority::Interactive => interactive,
            Priority::Batch => batch,
        }
    }

    fn level_mut(&mut self, priority: Priority) -> &mut Level {
        let [interactive, batch] = &mut self.levels;
        match priority {
            Priority::Interactive => interactive,
            Priority::Batch => batch,
        }
    }
}

impl Level {
    /// The lanes whose heads form the next run, in order; a lane once for each of its jobs.
    fn turns(&self, policy: Option<&BatchPolicy>, now: Instant) -> Vec<usize> {
        let Some(policy) = policy else { return if self.lanes.is_empty() { Vec::new() } else { vec![0] } };
        let mut taken = vec![0; self.lanes.len()];
        let (mut turns, mut rows, mut best) = (Vec::new(), 0, 0);
        let mut first: Option<&Job> = None;
        'gather: loop {
            let before = turns.len();
            for (index, (lane, taken)) in self.lanes.iter().zip(&mut taken).enumerate() {
                let Some(job) = lane.jobs.get(*taken) else { continue };
                let fits = first.is_none_or(|first| first.goes_with(job));
                if !fits || (first.is_some() && rows + job.rows > policy.max_rows) || !job.is_wanted(now) {
                    // What comes later must not overtake it.
                    break 'gather;
                }
                first = first.or(Some(job));
                *taken += 1;
                rows += job.rows;
                turns.push(index);
                if policy.is_preferred(rows) {
                    best = turns.len();
                }
            }
            if turns.len() == before || rows >= policy.max_rows {
                break;
            }
        }
        if best > 0 {
            turns.truncate(best);
        }
        turns
    }

    /// Counts anew after jobs were taken out anywhere.
    fn settle(&mut self) {
        self.lanes.retain(|lane| !lane.jobs.is_empty());
        self.jobs = self.lanes.iter().map(|lane| lane.jobs.len()).sum();
        self.rows = self.lanes.iter().flat_map(|lane| &lane.jobs).map(|job| job.rows).sum();
    }
}

fn refuse(job: Job, depth: usize) {
    // The caller may have left.
    let _ = job.reply.send(Err(InferError::Overloaded { depth }));
}

#[cfg(test)]
mod tests;
