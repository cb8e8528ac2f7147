//! Inline runs: on the thread of their callers, since waking a worker costs as much as the run.
//!
//! A run in another process costs two switches, to it and back. Callers that are ready at the same time share one
//! hand-over, and so the switches. A single caller never waits for others: a group begins only when the thread had
//! other work since its last inline run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ledge_base::tensor::Tensor;
use ledge_engine::backend::{ModelRunError, RunContext, RunResult};
use ledge_engine::pipeline::work;
use ledge_isolation::HAND_OVER_MAX;
use tokio::sync::oneshot;

use super::exclusive_gate::GatePermit;
use super::faults::FaultingCaller;
use super::input_digest::InputDigest;
use super::inputs::JobInputs;
use super::instance_spec::RunObserver;
use super::long_run::{self, LONG_RUN, LongRun};
use super::outcome::{FinishedRun, InferError};
use super::queue::InferJob;
use super::scheduler::ModelInstance;
use super::shared::{InferSchedulerInner, on_own_thread, unload_in_background};
use super::terms::RunTerms;
use super::worker;

/// The longest wait of a caller's own thread, which other calls need too, for a run in another process that was
/// expected to be brief. A busy machine delays a run by some milliseconds.
const PATIENCE: Duration = Duration::from_millis(10);

/// Set while the thread that serves callers had nothing to do since the last inline run.
static SLEPT: AtomicBool = AtomicBool::new(true);

/// Says that the thread that serves callers has nothing to do now: to be called whenever the async runtime parks it.
pub fn thread_sleeps() {
    SLEPT.store(true, Ordering::Relaxed);
}

/// True when further callers are likely to be ready now.
pub(super) fn has_company() -> bool {
    !SLEPT.load(Ordering::Relaxed)
}

/// A run that began on its caller's own thread.
pub(super) enum InlineRun {
    Ended(Result<RunResult, ModelRunError>),
    /// It was not brief, and ends on another thread.
    InProgress(oneshot::Receiver<Result<FinishedRun, InferError>>),
}

/// Runs the group of a model when it is dropped: also when the first of its callers hangs up.
pub(super) struct BatchGroupLead<'e> {
    shared: &'e Arc<InferSchedulerInner>,
    model: u64,
}

impl Drop for BatchGroupLead<'_> {
    fn drop(&mut self) {
        let jobs = self.shared.groups.lock().remove(&self.model);
        self.shared.run_group(self.model, jobs.unwrap_or_default());
    }
}

/// An instance that inline runs use, and the core that they occupy.
struct TakenInstance {
    model: u64,
    worker: usize,
    instance: ModelInstance,
    start: Instant,
}

impl TakenInstance {
    fn place(&self, deadline: Instant) -> RunContext {
        RunContext { core: self.worker, is_wide: false, deadline, patience: Some(PATIENCE) }
    }
}

impl InferSchedulerInner {
    /// Runs the model at once on the calling thread, when the run is known to be brief; `None` when it must be queued.
    /// A run in another process that turns out not to be brief is finished on a separate thread.
    pub(super) fn run_inline(
        self: &Arc<Self>,
        model: u64,
        inputs: &[Tensor],
        outputs: &[usize],
        rows: usize,
        terms: &RunTerms,
    ) -> Option<InlineRun> {
        let bytes = inputs.iter().map(|tensor| tensor.data().len()).sum();
        let (mut taken, _permit) = self.take_inline(model, bytes)?;
        let place = taken.place(terms.deadline);
        let result = worker::run_once(&mut taken.instance, inputs, outputs, rows, place);
        SLEPT.store(false, Ordering::Relaxed);
        match &result {
            Err(ModelRunError::InProgress) => {
                let (reply, answer) = oneshot::channel();
                let inputs = JobInputs::Tensors(inputs.to_vec());
                self.finish_later(taken, InferJob::new(inputs, outputs.to_vec(), rows, terms.clone(), reply));
                return Some(InlineRun::InProgress(answer));
            }
            Err(ModelRunError::Crashed { reason }) => {
                let input = Some(InputDigest::of_tensors(inputs, outputs));
                self.model_crashed(model, reason, Some(&FaultingCaller { principal: terms.principal.clone(), input }));
            }
            _ => {}
        }
        let time = result.as_ref().ok().map(|run| (bytes, run.time.total()));
        self.give_back(model, Some(taken), time, Vec::new());
        Some(InlineRun::Ended(result))
    }

    /// Adds a job to the group of its model. The first one leads the group; the one that fills it runs it.
    pub(super) fn join(self: &Arc<Self>, model: u64, job: InferJob) -> Option<BatchGroupLead<'_>> {
        let mut groups = self.groups.lock();
        let group = groups.entry(model).or_default();
        group.push(job);
        if group.len() == 1 {
            return Some(BatchGroupLead { shared: self, model });
        }
        let full = if group.len() == HAND_OVER_MAX { groups.remove(&model) } else { None };
        drop(groups);
        self.run_group(model, full.unwrap_or_default());
        None
    }

    /// Runs jobs in one hand-over on the calling thread, or queues them where that is not possible now.
    fn run_group(self: &Arc<Self>, model: u64, mut jobs: Vec<InferJob>) {
        jobs.retain(|job| !job.reply.is_closed());
        let Some(bytes) = jobs.iter().map(InferJob::bytes).max() else { return };
        let Some((mut taken, permit)) = self.take_inline(model, bytes) else {
            for job in jobs {
                self.offer(model, job);
            }
            return;
        };
        let deadline = jobs.iter().map(|job| job.terms.deadline).max().unwrap_or(taken.start);
        let runs: Vec<_> = jobs.iter().map(InferJob::run_inputs).collect();
        let place = taken.place(deadline);
        let results = work::run_each(&mut *taken.instance.backend, &runs, place);
        drop((runs, permit));
        SLEPT.store(false, Ordering::Relaxed);

        let is_late = |(_, result): &(InferJob, _)| matches!(result, Err(ModelRunError::InProgress));
        let (late, ended): (Vec<_>, Vec<_>) = jobs.into_iter().zip(results).partition(is_late);
        let observer = taken.instance.observer.clone();
        match late.into_iter().next() {
            None => self.end_inline(model, &*observer, Some(taken), ended),
            Some((job, _)) => {
                self.end_inline(model, &*observer, None, ended);
                self.finish_later(taken, job);
            }
        }
    }

    /// Takes an instance and a core for inline runs over this many bytes of inputs.
    fn take_inline(&self, model: u64, bytes: usize) -> Option<(TakenInstance, Option<GatePermit<'_>>)> {
        if self.is_yielding() {
            // It would keep the caller's thread waiting for the time that requests leave.
            return None;
        }
        let is_elsewhere = !self.is_in_process();
        // Not held by a run that is not brief in the end: at worst a cause is not found.
        let permit = if is_elsewhere { Some(self.gate.try_shared()?) } else { None };
        let here = is_elsewhere.then(rustix::thread::sched_getcpu);
        let here = here.and_then(|here| self.cpus.iter().position(|cpu| *cpu == here));
        let (instance, worker) = self.lock().take_inline(model, bytes, here)?;
        Some((TakenInstance { model, worker, instance, start: Instant::now() }, permit))
    }

    /// Waits on another thread for a run that was not brief.
    fn finish_later(self: &Arc<Self>, mut taken: TakenInstance, job: InferJob) {
        let own = self.clone();
        let finish: Box<dyn FnOnce() + Send> = Box::new(move || {
            let mut finished = taken.instance.backend.finish(LONG_RUN);
            if long_run::is_in_progress(&finished) {
                let run = LongRun { model: taken.model, worker: taken.worker, cores: 1, deadline: job.terms.deadline };
                finished = long_run::see_out(&own, &mut taken.instance, run);
            }
            let (model, observer) = (taken.model, taken.instance.observer.clone());
            let ended = vec![(job, long_run::of_tensors(finished))];
            own.end_inline(model, &*observer, Some(taken), ended);
        });
        // Sent only after the thread has started, because a thread that fails to start would drop the closure.
        let (give, take) = std::sync::mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let started = on_own_thread("late-run", move || take.into_iter().for_each(|finish| finish()));
        let left = match started {
            Ok(()) => give.send(finish).err().map(|unsent| unsent.0),
            Err(_) => Some(finish),
        };
        // The caller's thread has to wait then.
        if let Some(finish) = left {
            finish();
        }
    }

    /// Answers jobs. A job runs again if its process ended for another reason.
    fn end_inline(
        self: &Arc<Self>,
        model: u64,
        observer: &dyn RunObserver,
        taken: Option<TakenInstance>,
        ended: Vec<(InferJob, Result<RunResult, ModelRunError>)>,
    ) {
        let (mut answers, mut times, mut again) = (Vec::with_capacity(ended.len()), Vec::new(), Vec::new());
        for (mut job, result) in ended {
            match &result {
                Ok(run) => {
                    observer.executed(job.rows, run.time, run.cpu);
                    times.push((job.bytes(), run.time.total()));
                }
                Err(ModelRunError::Crashed { reason }) => self.model_crashed(model, reason, Some(&job.culprit())),
                Err(ModelRunError::Interrupted { is_explained, .. }) => {
                    job.was_interrupted(*is_explained);
                    again.push(job);
                    continue;
                }
                Err(_) => {}
            }
            answers.push((job, result));
        }
        self.give_back(model, taken, times, again);
        for (InferJob { inputs, reply, .. }, result) in answers {
            // The memory of the input is free when its caller has the answer.
            drop(inputs);
            let finished = result.map(FinishedRun::alone);
            // The caller may have left meanwhile.
            let _ = reply.send(finished.map_err(InferError::Run));
        }
    }

    /// Gives back an instance after runs over this many bytes that took these times, and queues jobs that run again.
    fn give_back(
        self: &Arc<Self>,
        model: u64,
        taken: Option<TakenInstance>,
        times: impl IntoIterator<Item = (usize, Duration)>,
        again: Vec<InferJob>,
    ) {
        let now = Instant::now();
        let mut state = self.lock();
        for (bytes, time) in times {
            state.record_run(model, bytes, time);
        }
        let orphan = taken.and_then(|TakenInstance { model, worker, instance, start }| {
            state.finish_inline_run(worker, model, instance, now.duration_since(start), now)
        });
        state.requeue(model, again);
        self.unlock_and_wake(state, now);
        if orphan.is_some() {
            unload_in_background(orphan.into_iter().collect());
            self.load_missing();
        }
    }
}
