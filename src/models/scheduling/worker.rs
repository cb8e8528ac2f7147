//! The thread behind each core: takes the next run, runs it, answers its callers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge_base::sys;
use ledge_base::tensor::Tensor;
use ledge_engine::backend::{self, ComputeTime, RunError, RunPlace, RunResult};
use ledge_engine::cores;
use ledge_engine::pipeline::work::{self, FinishedWork, Work, WorkTimes};

use super::batcher::{NotBatched, concat, split};
use super::engine::EngineInner;
use super::instance::{FinishedRun, InferError, RawInputs};
use super::queue::{Job, JobInputs};
use super::scheduler::{Instance, NextAction, Task};

pub(super) use ledge_engine::pipeline::work::panic_message;

/// The ends of processes without a known cause after which a run that was in all of them is to blame. After the first it
/// ran while nothing else ran, and after the second in a process of its own.
const UNEXPLAINED_ENDS_MAX: u8 = 3;

type Sender = tokio::sync::oneshot::Sender<Result<FinishedRun, InferError>>;

/// Runs jobs as worker `index` until the engine is closed.
pub(super) fn serve(shared: &Arc<EngineInner>, index: usize) {
    let own: Vec<usize> = shared.cpus.get(index).copied().into_iter().collect();
    let pinned = cores::pin(&own);
    if let Err(error) = &pinned {
        tracing::warn!(%error, core = ?own, "cannot pin a worker to its core; it may run on any core");
    }

    let mut state = shared.lock();
    while !state.closed {
        if state.is_reserved(index) {
            // Another worker's run uses this core.
            state = shared.sleep(index, state, None);
            continue;
        }
        state.mark_awake(index);
        match state.next(index, Instant::now()) {
            NextAction::Sleep(until) => {
                let dropped = state.take_dropped();
                if dropped.is_empty() {
                    state = shared.sleep(index, state, until);
                } else {
                    drop(state);
                    drop(dropped);
                    state = shared.lock();
                }
            }
            NextAction::Run(task) => {
                shared.unlock_and_wake(state, task.taken);
                shared.set_runs_since(index, Some(task.taken));
                let Task { model, mut instance, jobs, reserved, taken } = task;
                // A runtime starts its threads on the cores that its caller may use, and may keep them for all models:
                // allow every core. The threads settle on the reserved cores.
                let wide = !reserved.is_empty() && pinned.is_ok() && cores::pin(&shared.cpus).is_ok();

                let bytes = jobs.iter().map(Job::bytes).sum();
                let tensors = jobs.iter().all(|job| job.tensors().is_some());
                let deadline = jobs.iter().map(|job| job.terms.deadline).max().unwrap_or(taken);
                let place = RunPlace { core: index, is_wide: !reserved.is_empty(), deadline, patience: None };
                let Ran { went_well, compute, crashed, is_suspect, again } =
                    run(shared, &mut instance, jobs, taken, place);
                shared.set_runs_since(index, None);

                // The repair counts neither as the caller's time nor as that of a run that hangs.
                backend::repair(&mut *instance.backend);
                if let Some(reason) = crashed {
                    shared.model_crashed(model, &reason);
                }
                if is_suspect {
                    shared.suspect_model(model);
                }
                if wide {
                    let _ = cores::pin(&own);
                }

                let now = Instant::now();
                state = shared.lock();
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
                // These cores are free again, perhaps for jobs that this worker may not take.
                for &other in &reserved {
                    shared.wake(Some(other));
                }
                state.requeue(model, again);
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

/// The end of a task.
struct Ran {
    /// True when all jobs succeeded. `Err` reports that the model mixes the elements of a batch; the jobs were answered
    /// nevertheless.
    went_well: Result<bool, NotBatched>,
    /// The time that the model took.
    compute: Duration,
    /// The reason why its process ended, if a run is to blame.
    crashed: Option<String>,
    /// True when its process ended again without a cause that is known, in a run beside which nothing else ran.
    is_suspect: bool,
    /// Jobs that run again, because their process ended and they are not known to be the cause.
    again: Vec<Job>,
}

/// Runs the jobs, together where they are several, and answers each that is not run again.
fn run(shared: &EngineInner, instance: &mut Instance, mut jobs: Vec<Job>, taken: Instant, place: RunPlace) -> Ran {
    let mut ran =
        Ran { went_well: Ok(true), compute: Duration::ZERO, crashed: None, is_suspect: false, again: Vec::new() };
    let is_elsewhere = instance.backend.process().is_some();
    let is_exclusive = jobs.iter().any(|job| job.unexplained_ends > 0);
    let _turn = is_elsewhere.then(|| if is_exclusive { shared.turns.exclusive() } else { shared.turns.shared() });
    if jobs.len() > 1 {
        match run_together(instance, &jobs, place) {
            Ok(Ok(Some((answers, time)))) => {
                for (job, outputs) in jobs.into_iter().zip(answers) {
                    let queue = taken.saturating_duration_since(job.queued);
                    let run = RunResult { outputs, time, ..RunResult::default() };
                    answer(job.reply, Ok(run), Times { queue, ..Times::default() });
                }
                return Ran { compute: time.total(), ..ran };
            }
            // One of the jobs is to blame, or none: each runs by itself, when the model is loaded again.
            Ok(Err(Interruption { crashed, is_explained })) => {
                for job in &mut jobs {
                    job.is_second_try = true;
                    job.unexplained_ends += u8::from(!is_explained);
                }
                return Ran { went_well: Ok(false), crashed, again: jobs, ..ran };
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
        match run_alone(instance, job, taken, place) {
            Alone::Succeeded(time) => ran.compute += time,
            Alone::Failed => ran.went_well = ran.went_well.map(|_| false),
            Alone::Crashed(reason) => {
                ran.crashed = Some(reason);
                ran.went_well = ran.went_well.map(|_| false);
            }
            Alone::Interrupted(job) => {
                ran.is_suspect |= job.unexplained_ends > 1;
                ran.again.push(*job);
                ran.went_well = ran.went_well.map(|_| false);
            }
        }
    }
    ran
}

/// The end of a job that ran by itself. All but an interrupted one are answered.
enum Alone {
    /// With the time that the model took.
    Succeeded(Duration),
    Failed,
    /// Its process ended because of it.
    Crashed(String),
    /// Its process ended for another reason.
    Interrupted(Box<Job>),
}

fn run_alone(instance: &mut Instance, mut job: Job, taken: Instant, place: RunPlace) -> Alone {
    let queue = taken.saturating_duration_since(job.queued);
    let (mut result, times) = match &job.inputs {
        JobInputs::Tensors(tensors) => {
            let result = run_once(instance, tensors, &job.outputs, job.rows, place);
            (result.map_err(InferError::Run), Times { queue, ..Times::default() })
        }
        JobInputs::Raw(raw) => {
            let FinishedWork { result, times } = run_raw(instance, raw, &job.outputs, job.rows, place);
            let WorkTimes { prepare, postprocess, .. } = times;
            (result.map_err(InferError::from), Times { queue, prepare, postprocess })
        }
    };
    if let Err(InferError::Run(RunError::Interrupted { reason, is_explained })) = &mut result {
        job.is_second_try = true;
        job.unexplained_ends += u8::from(!*is_explained);
        if job.unexplained_ends < UNEXPLAINED_ENDS_MAX {
            return Alone::Interrupted(Box::new(job));
        }
        // It was by itself in the process of a model that is by itself there.
        result = Err(InferError::Run(RunError::Crashed { reason: std::mem::take(reason) }));
    }
    let end = match &result {
        Err(InferError::Run(RunError::Crashed { reason })) => Alone::Crashed(reason.clone()),
        Ok(run) => Alone::Succeeded(run.time.total()),
        Err(_) => Alone::Failed,
    };
    let Job { inputs, reply, .. } = job;
    // The memory of the input is free when its caller has the answer.
    drop(inputs);
    answer(reply, result, times);
    end
}

/// Makes the inputs of a run, runs the model and makes results of its outputs.
fn run_raw(instance: &mut Instance, raw: &RawInputs, outputs: &[usize], rows: usize, place: RunPlace) -> FinishedWork {
    let RawInputs { pipeline, input, account, own, .. } = raw;
    let work = Work { input, outputs, own: *own, account };
    let finished = work::run(&mut *instance.backend, &**pipeline, work, place);
    let WorkTimes { compute, run_cpu, pipeline_cpu, .. } = finished.times;
    if let Some(compute) = compute {
        instance.observer.executed(rows, compute, run_cpu);
    }
    instance.observer.prepared(pipeline_cpu);
    finished
}

/// The answers of a joint run, each as the outputs of its job, and the time of the run.
type Joint = (Vec<Vec<Tensor>>, ComputeTime);

/// The end of the process of a joint run.
struct Interruption {
    /// The reason, if the run is to blame.
    crashed: Option<String>,
    /// True when it is known what the cause is.
    is_explained: bool,
}

/// Runs the jobs as one. `Ok(Ok(None))` when the run failed; `Ok(Err)` when its process ended.
fn run_together(
    instance: &mut Instance,
    jobs: &[Job],
    place: RunPlace,
) -> Result<Result<Option<Joint>, Interruption>, NotBatched> {
    let Some(parts) = jobs.iter().map(Job::tensors).collect::<Option<Vec<&[Tensor]>>>() else { return Ok(Ok(None)) };
    let rows: Vec<usize> = jobs.iter().map(|job| job.rows).collect();
    let (Some(inputs), Some(first)) = (concat(&parts), jobs.first()) else { return Ok(Ok(None)) };
    Ok(match run_once(instance, &inputs, &first.outputs, rows.iter().sum(), place) {
        Ok(RunResult { outputs, time, .. }) => Ok(Some((split(&outputs, &rows)?, time))),
        Err(RunError::Crashed { reason }) => Err(Interruption { crashed: Some(reason), is_explained: true }),
        Err(RunError::Interrupted { is_explained, .. }) => Err(Interruption { crashed: None, is_explained }),
        Err(_) => Ok(None),
    })
}

pub(super) fn run_once(
    instance: &mut Instance,
    inputs: &[Tensor],
    outputs: &[usize],
    rows: usize,
    place: RunPlace,
) -> Result<RunResult, RunError> {
    let (result, cpu) = work::run_tensors(&mut *instance.backend, inputs, outputs, place);
    if let Ok(result) = &result {
        instance.observer.executed(rows, result.time, cpu + result.cpu_elsewhere);
    }
    result
}

/// Waits for the end of a run that is in progress.
pub(super) fn finish(instance: &mut Instance, rows: usize) -> Result<RunResult, RunError> {
    let result = instance.backend.finish();
    if let Ok(result) = &result {
        instance.observer.executed(rows, result.time, result.cpu_elsewhere);
    }
    result
}

/// Times of one job beside its run.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    queue: Duration,
    prepare: Duration,
    postprocess: Duration,
}

fn answer(reply: Sender, result: Result<RunResult, InferError>, times: Times) {
    let Times { queue, prepare, postprocess } = times;
    // The caller may have left meanwhile.
    let _ = reply.send(result.map(|run| FinishedRun { run, queue, prepare, postprocess, stages: Vec::new() }));
}
