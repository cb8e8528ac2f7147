//! A worker, one of the two threads of each core: takes the next run, runs it, answers its callers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge_base::sys;
use ledge_base::tensor::Tensor;
use ledge_engine::backend::{ComputeTime, ModelRunError, RunContext, RunResult};
use ledge_engine::batch::{UnbatchableOutput, concat, split};
use ledge_engine::cores;
use ledge_engine::pipeline::picture_reading::PictureReading;
use ledge_engine::pipeline::work::{
    self, FinishedPipelineRun, PipelineCall, PipelineRun, PipelineRunError, PipelineRunTimes,
};

use super::input_digest::InputDigest;
use super::inputs::{JobInputs, PipelineInputs};
use super::long_run::{self, LONG_RUN, LongRun};
use super::outcome::{FinishedRun, InferError};
use super::queue::{InferJob, ReplySender};
use super::scheduler::{ModelInstance, WorkerAction, WorkerTask};
use super::shared::InferSchedulerInner;

pub(super) use ledge_engine::pipeline::work::panic_message;

/// The ends of processes without a known cause after which a run that was in all of them is to blame. After the first
/// it ran while nothing else ran, and after the second in a separate process.
const UNEXPLAINED_ENDS_MAX: u8 = 3;

/// Runs jobs as worker `index` until the engine is closed. The one behind those of both tiers is the spare worker,
/// which shares the first core.
pub(super) fn serve(shared: &Arc<InferSchedulerInner>, index: usize) {
    let own: Vec<usize> = shared.cpus.iter().cycle().nth(index).copied().into_iter().collect();
    let pinned = cores::pin(&own);
    if let Err(error) = &pinned {
        tracing::warn!(%error, core = ?own, "cannot pin a worker to its core; it may run on any core");
    }

    let mut has_run = false;
    let mut state = shared.lock();
    while !state.closed {
        if state.is_reserved(index) {
            // Another worker's run uses this core.
            state = shared.sleep(index, state, None);
            continue;
        }
        state.mark_awake(index);
        match state.next(index, Instant::now()) {
            WorkerAction::Sleep(until) => {
                if std::mem::take(&mut has_run) {
                    let wake = state.worker_to_wake(Some(index), Instant::now());
                    shared.wake(wake);
                }
                let dropped = state.take_dropped();
                if dropped.is_empty() {
                    state = shared.sleep(index, state, until);
                } else {
                    drop(state);
                    drop(dropped);
                    state = shared.lock();
                }
            }
            WorkerAction::Run(task) => {
                shared.unlock_and_wake(state, task.taken);
                shared.set_runs_since(index, Some(task.taken));
                let WorkerTask { model, mut instance, jobs, reserved, taken } = task;
                // A runtime starts its threads on the cores that its caller may use, and may keep them for all models:
                // allow every core. The threads settle on the reserved cores.
                let wide = !reserved.is_empty() && pinned.is_ok() && cores::pin(&shared.cpus).is_ok();

                let bytes = jobs.iter().map(InferJob::bytes).sum();
                let tensors = jobs.iter().all(|job| job.tensors().is_some());
                // The spare worker has no core.
                let cores = if index < 2 * shared.cpus.len() { reserved.len() + 1 } else { 0 };
                let task = RunningTask { shared, model, cores, core: index, is_wide: !reserved.is_empty(), taken };
                let TaskOutcome { went_well, compute, cpu, is_suspect, again } = run(&task, &mut instance, jobs);
                shared.set_runs_since(index, None);

                // The repair counts neither as the caller's time nor as that of a run that hangs.
                long_run::repair(shared, &mut instance, task.long(Instant::now()));
                if is_suspect {
                    shared.suspect_model(model);
                }
                if wide {
                    let _ = cores::pin(&own);
                }

                let now = Instant::now();
                state = shared.lock();
                if let Some(cpu) = cpu {
                    state.record_cpu(model, cpu);
                }
                match went_well {
                    Ok(true) if tensors => state.record_run(model, bytes, compute),
                    Ok(_) => {}
                    Err(reason) => {
                        tracing::warn!(%reason, "dynamic batching is turned off for a model until it is loaded again");
                        if let Some(entry) = state.model(model) {
                            entry.batching = None;
                        }
                    }
                }

                let orphan = state.finish_run(index, model, instance, &reserved, now.duration_since(taken), now);
                // These cores are free again, perhaps for jobs that this worker must not take.
                for &other in &reserved {
                    shared.wake(Some(other));
                }
                state.requeue(model, again);
                has_run = true;
                if orphan.is_some() {
                    drop(state);
                    drop(orphan);
                    sys::return_free_memory();
                    shared.load_missing();
                    state = shared.lock();
                }
            }
        }
    }
}

/// A task that a worker runs.
struct RunningTask<'e> {
    shared: &'e InferSchedulerInner,
    model: u64,
    /// The cores that it holds.
    cores: usize,
    core: usize,
    is_wide: bool,
    taken: Instant,
}

impl RunningTask<'_> {
    /// The place of a run until `deadline`. In another process it is looked after when it is long.
    fn place(&self, deadline: Instant) -> RunContext {
        RunContext { core: self.core, is_wide: self.is_wide, deadline, patience: Some(LONG_RUN) }
    }

    fn long(&self, deadline: Instant) -> LongRun {
        LongRun { model: self.model, worker: self.core, cores: self.cores, deadline }
    }

    /// Runs the model on tensors, to the end of the run.
    fn tensors(
        &self,
        instance: &mut ModelInstance,
        inputs: &[Tensor],
        outputs: &[usize],
        rows: usize,
        deadline: Instant,
    ) -> Result<RunResult, ModelRunError> {
        match run_once(instance, inputs, outputs, rows, self.place(deadline)) {
            Err(ModelRunError::InProgress) => {
                long_run::see_out_tensors(self.shared, instance, rows, self.long(deadline))
            }
            result => result,
        }
    }
}

/// The end of a task.
struct TaskOutcome {
    /// True when all jobs succeeded. `Err` reports that the model mixes the elements of a batch; the jobs were answered
    /// nevertheless.
    went_well: Result<bool, UnbatchableOutput>,
    /// The time that the model took.
    compute: Duration,
    /// The CPU time of all runs, with making their inputs and reading their outputs; `None` when none ended.
    cpu: Option<Duration>,
    /// True when its process ended again without a known cause, in an exclusive run.
    is_suspect: bool,
    /// Jobs that run again, because their process ended and they are not known to be the cause.
    again: Vec<InferJob>,
}

/// Runs the jobs, together where they are several, and answers each that is not run again.
fn run(task: &RunningTask<'_>, instance: &mut ModelInstance, mut jobs: Vec<InferJob>) -> TaskOutcome {
    let (shared, taken) = (task.shared, task.taken);
    let mut went_well = Ok(true);
    if instance.faults.has_any() {
        let before = jobs.len();
        jobs = admitted(instance, jobs);
        went_well = Ok(jobs.len() == before);
    }
    let mut ran = TaskOutcome { went_well, compute: Duration::ZERO, cpu: None, is_suspect: false, again: Vec::new() };
    let is_elsewhere = instance.backend.process().is_some();
    let is_exclusive = jobs.iter().any(|job| job.unexplained_ends > 0);
    let _permit = is_elsewhere.then(|| if is_exclusive { shared.gate.exclusive() } else { shared.gate.shared() });
    if jobs.len() > 1 {
        match run_together(task, instance, &jobs) {
            Ok(Ok(Some(BatchResult { answers, time, cpu, times, pictures }))) => {
                let rows = jobs.iter().map(|job| job.rows).sum::<usize>().max(1);
                let mut pictures = pictures.into_iter();
                for (job, outputs) in jobs.into_iter().zip(answers) {
                    let cpu_share = cpu * u32::try_from(job.rows).unwrap_or(1) / u32::try_from(rows).unwrap_or(1);
                    let queue = taken.saturating_duration_since(job.queued);
                    let pictures = pictures.next().into_iter().collect();
                    let run = RunResult { outputs, time, pictures, ..RunResult::default() };
                    let InferJob { inputs, reply, .. } = job;
                    // The memory of the input is free when its caller has the answer.
                    drop(inputs);
                    answer(reply, Ok(run), JobTimes { queue, cpu_share, ..times });
                }
                return TaskOutcome { compute: time.total(), cpu: Some(cpu), ..ran };
            }
            // One of the jobs is to blame, or none: each runs by itself, when the model is loaded again.
            Ok(Err(BatchInterruption { crashed, is_explained })) => {
                if let Some(reason) = crashed {
                    shared.model_crashed(task.model, &reason, None);
                }
                for job in &mut jobs {
                    job.was_interrupted(is_explained);
                }
                return TaskOutcome { went_well: Ok(false), again: jobs, ..ran };
            }
            // A failure caused by one request must not fail the others: run each by itself.
            Ok(Ok(None)) => ran.went_well = Ok(false),
            Err(reason) => ran.went_well = Err(reason),
        }
    }
    for job in jobs {
        if instance.backend.has_ended() {
            ran.again.push(job);
            continue;
        }
        // Its deadline may have passed in a run with others.
        if !job.is_wanted(Instant::now()) {
            ran.went_well = ran.went_well.map(|_| false);
            continue;
        }
        match run_alone(task, instance, job) {
            SingleJobOutcome::Succeeded { compute, cpu } => {
                ran.compute += compute;
                ran.cpu = Some(ran.cpu.unwrap_or_default() + cpu);
            }
            SingleJobOutcome::Failed => ran.went_well = ran.went_well.map(|_| false),
            SingleJobOutcome::Interrupted(job) => {
                ran.is_suspect |= job.unexplained_ends > 1;
                ran.again.push(*job);
                ran.went_well = ran.went_well.map(|_| false);
            }
        }
    }
    ran
}

/// Answers the jobs that are not admitted any more, because calls of their callers ended the process meanwhile, and
/// returns the others.
fn admitted(instance: &ModelInstance, jobs: Vec<InferJob>) -> Vec<InferJob> {
    let faults = &instance.faults;
    let now = Instant::now();
    jobs.into_iter()
        .filter_map(|job| {
            let input = faults.needs_input().then(|| InputDigest::of(&job.inputs, &job.outputs)).flatten();
            match faults.admit_again(&job.terms.principal, input.as_ref(), job.queued, now) {
                Ok(()) => Some(job),
                Err(blamed) => {
                    let _ = job.reply.send(Err(InferError::Blamed(blamed)));
                    None
                }
            }
        })
        .collect()
}

/// The end of a job that ran by itself. All but an interrupted one are answered.
enum SingleJobOutcome {
    /// With the time that the model took, and the CPU time of the run with making its inputs and reading its outputs.
    Succeeded { compute: Duration, cpu: Duration },
    /// Perhaps its process ended because of it.
    Failed,
    /// Its process ended for another reason.
    Interrupted(Box<InferJob>),
}

fn run_alone(task: &RunningTask<'_>, instance: &mut ModelInstance, mut job: InferJob) -> SingleJobOutcome {
    let (deadline, queue) = (job.terms.deadline, task.taken.saturating_duration_since(job.queued));
    let (mut result, times) = match &job.inputs {
        JobInputs::Tensors(tensors) => {
            let result = task.tensors(instance, tensors, &job.outputs, job.rows, deadline);
            (result.map_err(InferError::Run), JobTimes { queue, ..JobTimes::default() })
        }
        JobInputs::Raw(raw) => {
            let FinishedPipelineRun { result, times } =
                run_raw(task, instance, &[raw], &job.outputs, job.rows, deadline);
            (result.map_err(InferError::from), JobTimes { queue, ..JobTimes::from(times) })
        }
    };
    if let Err(InferError::Run(ModelRunError::Interrupted { reason, is_explained })) = &mut result {
        job.was_interrupted(*is_explained);
        if job.unexplained_ends < UNEXPLAINED_ENDS_MAX {
            return SingleJobOutcome::Interrupted(Box::new(job));
        }
        // It was by itself in the process of a model that is by itself there.
        result = Err(InferError::Run(ModelRunError::Crashed { reason: std::mem::take(reason) }));
    }
    let times = JobTimes { cpu_share: result.as_ref().map_or(Duration::ZERO, |run| run.cpu), ..times };
    let end = match &result {
        Err(InferError::Run(ModelRunError::Crashed { reason })) => {
            // Before its caller knows of it: the next call is judged by it.
            task.shared.model_crashed(task.model, reason, Some(&job.culprit()));
            SingleJobOutcome::Failed
        }
        Ok(run) => SingleJobOutcome::Succeeded { compute: run.time.total(), cpu: run.cpu },
        Err(_) => SingleJobOutcome::Failed,
    };
    let InferJob { inputs, reply, .. } = job;
    // The memory of the input is free when its caller has the answer.
    drop(inputs);
    answer(reply, result, times);
    end
}

/// Makes the inputs of a run, runs the model and makes results of its outputs: those of each call, one call after
/// another.
fn run_raw(
    task: &RunningTask<'_>,
    instance: &mut ModelInstance,
    raw: &[&PipelineInputs],
    outputs: &[usize],
    rows: usize,
    deadline: Instant,
) -> FinishedPipelineRun {
    let Some(PipelineInputs { pipeline, own, .. }) = raw.first() else {
        return FinishedPipelineRun { result: Ok(RunResult::default()), times: PipelineRunTimes::default() };
    };
    let calls: Vec<_> = raw.iter().map(|raw| PipelineCall { input: &raw.input, account: &raw.account }).collect();
    let work = PipelineRun { calls: &calls, outputs, own: *own };
    let mut finished = instance.backend.run_work(&**pipeline, work, task.place(deadline));
    if long_run::is_in_progress(&finished) {
        finished = long_run::see_out(task.shared, instance, task.long(deadline));
    }
    let PipelineRunTimes { compute, run_cpu, pipeline_cpu, .. } = finished.times;
    if let Ok(run) = &mut finished.result {
        run.cpu = run_cpu + pipeline_cpu;
    }
    if let Some(compute) = compute {
        instance.observer.executed(rows, compute, run_cpu);
    }
    instance.observer.prepared(pipeline_cpu);
    finished
}

/// A joint run that succeeded.
struct BatchResult {
    /// The outputs of each job.
    answers: Vec<Vec<Tensor>>,
    time: ComputeTime,
    cpu: Duration,
    /// The times of all jobs together, without their queues.
    times: JobTimes,
    /// Of each job, or none.
    pictures: Vec<PictureReading>,
}

/// The end of the process of a joint run.
struct BatchInterruption {
    /// The reason, if the run is to blame.
    crashed: Option<String>,
    /// True when the cause is known.
    is_explained: bool,
}

/// Runs the jobs as one. `Ok(Ok(None))` when the run failed; `Ok(Err)` when its process ended.
fn run_together(
    task: &RunningTask<'_>,
    instance: &mut ModelInstance,
    jobs: &[InferJob],
) -> Result<Result<Option<BatchResult>, BatchInterruption>, UnbatchableOutput> {
    let Some(first) = jobs.first() else { return Ok(Ok(None)) };
    let rows: Vec<usize> = jobs.iter().map(|job| job.rows).collect();
    // Until then somebody waits for the answer.
    let deadline = jobs.iter().map(|job| job.terms.deadline).max().unwrap_or(task.taken);
    let failure = if let Some(parts) = jobs.iter().map(InferJob::tensors).collect::<Option<Vec<_>>>() {
        let Some(inputs) = concat(&parts) else { return Ok(Ok(None)) };
        match task.tensors(instance, &inputs, &first.outputs, rows.iter().sum(), deadline) {
            Ok(RunResult { outputs, time, cpu, .. }) => {
                return Ok(Ok(Some(BatchResult {
                    answers: split(&outputs, &rows)?,
                    time,
                    cpu,
                    times: JobTimes::default(),
                    pictures: Vec::new(),
                })));
            }
            Err(error) => error,
        }
    } else {
        let Some(raw) = jobs.iter().map(InferJob::raw).collect::<Option<Vec<_>>>() else { return Ok(Ok(None)) };
        let FinishedPipelineRun { result, times } =
            run_raw(task, instance, &raw, &first.outputs, rows.iter().sum(), deadline);
        match result {
            Ok(RunResult { outputs, time, cpu, pictures }) => {
                let of_job = (outputs.len() / jobs.len()).max(1);
                let answers = outputs.chunks(of_job).map(<[Tensor]>::to_vec).collect();
                return Ok(Ok(Some(BatchResult { answers, time, cpu, times: times.into(), pictures })));
            }
            Err(PipelineRunError::Run(error)) => error,
            Err(PipelineRunError::NotBatched(error)) => return Err(error),
            Err(PipelineRunError::Input(_) | PipelineRunError::Outputs(_)) => return Ok(Ok(None)),
        }
    };
    Ok(match failure {
        ModelRunError::Crashed { reason } => Err(BatchInterruption { crashed: Some(reason), is_explained: true }),
        ModelRunError::Interrupted { is_explained, .. } => Err(BatchInterruption { crashed: None, is_explained }),
        _ => Ok(None),
    })
}

pub(super) fn run_once(
    instance: &mut ModelInstance,
    inputs: &[Tensor],
    outputs: &[usize],
    rows: usize,
    place: RunContext,
) -> Result<RunResult, ModelRunError> {
    let (mut result, cpu) = work::run_tensors(&mut *instance.backend, inputs, outputs, place);
    if let Ok(result) = &mut result {
        result.cpu += cpu;
        instance.observer.executed(rows, result.time, result.cpu);
    }
    result
}

/// Times of one job besides its run.
#[derive(Debug, Clone, Copy, Default)]
struct JobTimes {
    queue: Duration,
    prepare: Duration,
    postprocess: Duration,
    cpu_share: Duration,
}

impl From<PipelineRunTimes> for JobTimes {
    fn from(PipelineRunTimes { prepare, postprocess, .. }: PipelineRunTimes) -> Self {
        Self { prepare, postprocess, ..Self::default() }
    }
}

fn answer(reply: ReplySender, result: Result<RunResult, InferError>, times: JobTimes) {
    let JobTimes { queue, prepare, postprocess, cpu_share } = times;
    let finished = |run| FinishedRun { run, queue, prepare, postprocess, cpu_share, stages: Vec::new() };
    // The caller may have left meanwhile.
    let _ = reply.send(result.map(finished));
}
