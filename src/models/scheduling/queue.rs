//! The queue before a model's instances: bounded, by priority, and fair between callers.
//!
//! A full queue refuses a job at once; callers never wait to be queued. Within one priority the callers of a model take
//! turns, so a caller that floods the queue delays only itself; the jobs of one caller keep their order. A job without
//! its caller, or beyond its deadline, is dropped when its turn comes, before any work is done for it.

use std::collections::VecDeque;
use std::time::Instant;

use ledge_base::principal::Principal;
use ledge_base::tensor::Tensor;
use ledge_engine::backend::RunInputs;
use ledge_engine::batch::batch_together;
use tokio::sync::oneshot;

use super::batch_policy::BatchPolicy;
use super::faults::FaultingCaller;
use super::input_digest::InputDigest;
pub use super::inputs::JobInputs;
use super::inputs::PipelineInputs;
use super::outcome::{FinishedRun, InferError};
use super::terms::{Priority, RunTerms};

/// One call of a model, waiting for an instance.
#[derive(Debug)]
pub struct InferJob {
    /// Inputs of the run.
    pub inputs: JobInputs,
    /// Indices of the outputs wanted.
    pub outputs: Vec<usize>,
    /// Batch elements.
    pub rows: usize,
    /// Deadline, priority and caller.
    pub terms: RunTerms,
    pub queued: Instant,
    /// Set for a job that was in a run when its process ended: it runs again, by itself.
    pub is_second_try: bool,
    /// The number of times that its process ended in its run without a known cause. Such a job runs exclusively, to
    /// find the cause.
    pub unexplained_ends: u8,
    pub reply: ReplySender,
}

/// The way an answer takes to its caller.
pub type ReplySender = oneshot::Sender<Result<FinishedRun, InferError>>;

impl InferJob {
    /// A call that is made now.
    pub fn new(inputs: JobInputs, outputs: Vec<usize>, rows: usize, terms: RunTerms, reply: ReplySender) -> Self {
        let queued = Instant::now();
        Self { inputs, outputs, rows, terms, queued, is_second_try: false, unexplained_ends: 0, reply }
    }

    /// Notes that its process ended in its run, for another reason.
    pub fn was_interrupted(&mut self, is_explained: bool) {
        self.is_second_try = true;
        self.unexplained_ends += u8::from(!is_explained);
    }

    /// The cause of a fault, if this job is.
    pub fn culprit(&self) -> FaultingCaller {
        FaultingCaller { principal: self.terms.principal.clone(), input: InputDigest::of(&self.inputs, &self.outputs) }
    }

    /// Its tensors; `None` while they are not made yet.
    pub fn tensors(&self) -> Option<&[Tensor]> {
        match &self.inputs {
            JobInputs::Tensors(tensors) => Some(tensors),
            JobInputs::Raw(_) => None,
        }
    }

    /// The inputs from which its tensors are made; `None` for a job of tensors.
    pub fn raw(&self) -> Option<&PipelineInputs> {
        match &self.inputs {
            JobInputs::Tensors(_) => None,
            JobInputs::Raw(raw) => Some(raw),
        }
    }

    /// The arguments of its run; without tensors while they are not made yet.
    pub fn run_inputs(&self) -> RunInputs<'_> {
        RunInputs { inputs: self.tensors().unwrap_or_default(), outputs: &self.outputs }
    }

    fn can_batch_with(&self, other: &Self) -> bool {
        if self.is_second_try || other.is_second_try {
            return false;
        }
        match (&self.inputs, &other.inputs) {
            (JobInputs::Tensors(own), JobInputs::Tensors(others)) => {
                batch_together(own, &self.outputs, others, &other.outputs)
            }
            (JobInputs::Raw(own), JobInputs::Raw(others)) => {
                self.outputs == other.outputs && own.can_batch_with(others)
            }
            _ => false,
        }
    }

    /// True for a job that is never one run with others.
    fn runs_alone(&self) -> bool {
        self.raw().is_some_and(|raw| !raw.input.is_photograph())
    }

    /// True while somebody waits for its answer.
    pub fn is_wanted(&self, now: Instant) -> bool {
        !self.reply.is_closed() && now < self.terms.deadline
    }

    /// Bytes of its inputs.
    pub fn bytes(&self) -> usize {
        match &self.inputs {
            JobInputs::Tensors(tensors) => tensors.iter().map(|tensor| tensor.data().len()).sum(),
            JobInputs::Raw(raw) => raw.input.bytes(),
        }
    }
}

/// Bounds on the jobs of each priority that may wait for one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    pub jobs: usize,
    /// Bytes of their inputs.
    pub bytes: usize,
}

/// Time at which the next batch of a priority may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchDue {
    Never,
    Now,
    /// At this time, or earlier when more jobs come.
    At(Instant),
}

/// The jobs that wait for one model.
#[derive(Debug)]
pub struct JobQueue {
    levels: [PriorityLevel; 2],
    limits: QueueLimits,
    /// Inputs of jobs that will not run. They are dropped after the queue's lock is released: they may be large, and
    /// dropping them may take the same lock.
    dropped: Vec<JobInputs>,
}

#[derive(Debug, Default)]
struct PriorityLevel {
    /// Lanes in the order of their turns.
    queues: VecDeque<CallerQueue>,
    jobs: usize,
    rows: usize,
    bytes: usize,
}

/// Jobs of one caller, oldest first; never empty.
#[derive(Debug)]
struct CallerQueue {
    principal: Principal,
    jobs: VecDeque<InferJob>,
}

impl JobQueue {
    /// An empty queue.
    pub fn new(limits: QueueLimits) -> Self {
        Self { levels: Default::default(), limits, dropped: Vec::new() }
    }

    /// Adds a job, or refuses it at once. When the queue is full and another caller holds more of it than this one, the
    /// newest jobs of that caller are refused instead.
    pub fn offer(&mut self, job: InferJob) {
        let (priority, bytes) = (job.terms.priority, job.bytes());
        if self.is_full(priority, bytes) {
            // Jobs without their callers must not exclude others.
            self.purge(job.queued);
            let depth = self.level(priority).jobs;
            let limits = self.limits;
            let displaced = self.level_mut(priority).make_room(&job.terms.principal, bytes, limits);
            for displaced in displaced {
                self.refuse(displaced, depth);
            }
            // An input above the limit is still queued when nothing else waits: the transport bounds its size.
            if self.is_full(priority, bytes) && self.level(priority).jobs > 0 {
                return self.refuse(job, depth);
            }
        }
        let level = self.level_mut(priority);
        level.jobs += 1;
        level.rows += job.rows;
        level.bytes += bytes;
        match level.queues.iter_mut().find(|queue| queue.principal == job.terms.principal) {
            Some(queue) => queue.jobs.push_back(job),
            None => level.queues.push_back(CallerQueue { principal: job.terms.principal.clone(), jobs: [job].into() }),
        }
    }

    /// Number of waiting jobs, when another job of that caller would be refused because the queue is full; otherwise
    /// `None`.
    pub fn refusal(&self, priority: Priority, principal: &Principal) -> Option<usize> {
        let level = self.level(priority);
        let held = |queue: &CallerQueue| queue.jobs.len();
        let own = level.queues.iter().find(|queue| queue.principal == *principal).map_or(0, held);
        let most = level.queues.iter().map(held).max().unwrap_or(0);
        (level.jobs >= self.limits.jobs && most <= own + 1).then_some(level.jobs)
    }

    /// Takes the inputs of jobs that will not run, to be dropped by the caller.
    pub fn take_dropped(&mut self) -> Vec<JobInputs> {
        std::mem::take(&mut self.dropped)
    }

    /// True when no job waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of waiting jobs.
    pub fn len(&self) -> usize {
        self.levels.iter().map(|level| level.jobs).sum()
    }

    /// Number of waiting jobs of a priority.
    pub fn len_of(&self, priority: Priority) -> usize {
        self.level(priority).jobs
    }

    /// Time at which the oldest job of a priority was queued.
    pub fn oldest(&self, priority: Priority) -> Option<Instant> {
        self.level(priority).queues.iter().filter_map(|queue| Some(queue.jobs.front()?.queued)).min()
    }

    /// Returns when a batch can be taken. Drops unwanted jobs at the heads of the callers' queues.
    pub fn due(&mut self, priority: Priority, policy: Option<&BatchPolicy>, now: Instant) -> BatchDue {
        self.drop_unwanted_heads(priority, now);
        let level = self.level(priority);
        let Some(oldest) = self.oldest(priority) else { return BatchDue::Never };
        let Some(policy) = policy else { return BatchDue::Now };
        // Waiting would not join such a job with others.
        let alone = level.queues.iter().filter_map(|queue| queue.jobs.front()).any(InferJob::runs_alone);
        let at = oldest + policy.delay;
        if alone || at <= now || level.rows >= policy.worth_waiting_for() { BatchDue::Now } else { BatchDue::At(at) }
    }

    /// Takes the jobs of one run, callers in turn: one job, or with a policy as many as can be joined.
    pub fn take(&mut self, priority: Priority, policy: Option<&BatchPolicy>, now: Instant) -> Vec<InferJob> {
        self.drop_unwanted_heads(priority, now);
        let level = self.level_mut(priority);
        let turns = level.turns(policy, now);
        let mut jobs = Vec::with_capacity(turns.len());
        for &queue in &turns {
            jobs.extend(level.queues.get_mut(queue).and_then(|queue| queue.jobs.pop_front()));
        }
        // The caller served last moves to the back, and those before it too.
        if let Some(last) = turns.last() {
            level.queues.rotate_left((last + 1) % level.queues.len().max(1));
        }
        level.queues.retain(|queue| !queue.jobs.is_empty());
        level.jobs -= jobs.len();
        level.rows -= jobs.iter().map(|job| job.rows).sum::<usize>();
        level.bytes -= jobs.iter().map(InferJob::bytes).sum::<usize>();
        jobs
    }

    /// Puts jobs back that were taken, before all others.
    pub fn requeue(&mut self, jobs: Vec<InferJob>) {
        for job in jobs.into_iter().rev() {
            let bytes = job.bytes();
            let level = self.level_mut(job.terms.priority);
            level.jobs += 1;
            level.rows += job.rows;
            level.bytes += bytes;
            match level.queues.iter_mut().find(|queue| queue.principal == job.terms.principal) {
                Some(queue) => queue.jobs.push_front(job),
                None => {
                    level.queues.push_front(CallerQueue { principal: job.terms.principal.clone(), jobs: [job].into() });
                }
            }
        }
    }

    /// Takes every job, for example when the model cannot be loaded.
    pub fn drain(&mut self) -> Vec<InferJob> {
        let levels = self.levels.iter_mut().map(std::mem::take);
        levels.flat_map(|level| level.queues).flat_map(|queue| queue.jobs).collect()
    }

    fn is_full(&self, priority: Priority, bytes: usize) -> bool {
        let level = self.level(priority);
        level.jobs >= self.limits.jobs || level.bytes.saturating_add(bytes) > self.limits.bytes
    }

    fn refuse(&mut self, job: InferJob, depth: usize) {
        // The caller may have left.
        let _ = job.reply.send(Err(InferError::Overloaded { depth }));
        self.dropped.push(job.inputs);
    }

    fn purge(&mut self, now: Instant) {
        for level in &mut self.levels {
            for queue in &mut level.queues {
                let (wanted, unwanted) =
                    std::mem::take(&mut queue.jobs).into_iter().partition(|job| job.is_wanted(now));
                queue.jobs = wanted;
                let unwanted: VecDeque<InferJob> = unwanted;
                self.dropped.extend(unwanted.into_iter().map(|job| job.inputs));
            }
            level.recount();
        }
    }

    fn drop_unwanted_heads(&mut self, priority: Priority, now: Instant) {
        let [interactive, batch] = &mut self.levels;
        let level = if priority == Priority::Interactive { interactive } else { batch };
        let mut emptied = false;
        for queue in &mut level.queues {
            while let Some(job) = queue.jobs.pop_front_if(|job| !job.is_wanted(now)) {
                level.jobs -= 1;
                level.rows -= job.rows;
                level.bytes -= job.bytes();
                self.dropped.push(job.inputs);
                emptied |= queue.jobs.is_empty();
            }
        }
        if emptied {
            level.queues.retain(|queue| !queue.jobs.is_empty());
        }
    }

    fn level(&self, priority: Priority) -> &PriorityLevel {
        let [interactive, batch] = &self.levels;
        match priority {
            Priority::Interactive => interactive,
            Priority::Batch => batch,
        }
    }

    fn level_mut(&mut self, priority: Priority) -> &mut PriorityLevel {
        let [interactive, batch] = &mut self.levels;
        match priority {
            Priority::Interactive => interactive,
            Priority::Batch => batch,
        }
    }
}

impl PriorityLevel {
    /// Returns the callers' queues with heads that form the next run, in order; a queue once for each of its jobs.
    fn turns(&self, policy: Option<&BatchPolicy>, now: Instant) -> Vec<usize> {
        let Some(policy) = policy else { return if self.queues.is_empty() { Vec::new() } else { vec![0] } };
        let mut taken = vec![0; self.queues.len()];
        let (mut turns, mut rows, mut best) = (Vec::new(), 0, 0);
        let mut first: Option<&InferJob> = None;

        'gather: loop {
            let before = turns.len();
            for (index, (queue, taken)) in self.queues.iter().zip(&mut taken).enumerate() {
                let Some(job) = queue.jobs.get(*taken) else { continue };
                let fits = first.is_none_or(|first| first.can_batch_with(job));
                if !fits || (first.is_some() && rows + job.rows > policy.max_rows) || !job.is_wanted(now) {
                    // Later jobs must not overtake this one.
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

    /// Takes the newest jobs of the caller with the most, until there is room for a job of `newcomer` with this many
    /// bytes. Takes nothing when that caller would then have less than the newcomer.
    fn make_room(&mut self, newcomer: &Principal, bytes: usize, limits: QueueLimits) -> Vec<InferJob> {
        let size = |queue: &CallerQueue| (queue.jobs.len(), queue.jobs.iter().map(InferJob::bytes).sum::<usize>());
        let (own_jobs, own_bytes) = self.queues.iter().find(|queue| queue.principal == *newcomer).map_or((0, 0), size);
        let excess_jobs = (self.jobs + 1).saturating_sub(limits.jobs);
        let excess_bytes = self.bytes.saturating_add(bytes).saturating_sub(limits.bytes);
        let largest = |queue: &&mut CallerQueue| {
            if excess_bytes > 0 { size(queue).1 } else { queue.jobs.len() }
        };
        let Some(queue) = self.queues.iter_mut().filter(|queue| queue.principal != *newcomer).max_by_key(largest)
        else {
            return Vec::new();
        };
        let (their_jobs, their_bytes) = size(queue);
        if their_jobs < own_jobs + 1 + excess_jobs || their_bytes < own_bytes + bytes + excess_bytes && excess_bytes > 0
        {
            return Vec::new();
        }
        let (mut taken, mut freed) = (Vec::new(), 0);
        while taken.len() < excess_jobs || freed < excess_bytes {
            let Some(job) = queue.jobs.pop_back() else { break };
            freed += job.bytes();
            taken.push(job);
        }
        self.recount();
        taken
    }

    /// Counts jobs, rows and bytes again after jobs were removed anywhere.
    fn recount(&mut self) {
        self.queues.retain(|queue| !queue.jobs.is_empty());
        self.jobs = self.queues.iter().map(|queue| queue.jobs.len()).sum();
        let jobs = || self.queues.iter().flat_map(|queue| &queue.jobs);
        (self.rows, self.bytes) = (jobs().map(|job| job.rows).sum(), jobs().map(InferJob::bytes).sum());
    }
}

#[cfg(test)]
mod tests;
