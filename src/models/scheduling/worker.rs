//! The thread behind each core: takes the next run, runs it, answers its callers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use ledge_base::sys;
use ledge_base::tensor::Tensor;
use ledge_engine::backend::{Backend, ComputeTime, RunError, RunResult};
use ledge_engine::cores;
use ledge_engine::pipeline::work::{self, FinishedWork, Work, WorkError, WorkTimes};

use super::batcher::{NotBatched, concat, split};
use super::engine::EngineInner;
use super::instance::{FinishedRun, InferError, RawInputs};
use super::queue::{Job, JobInputs};
use super::scheduler::{Instance, NextAction, Task};

pub(super) use ledge_engine::pipeline::work::panic_message;

type Sender = tokio::sync::oneshot::Sender<Result<FinishedRun, InferError>>;

/// Runs jobs as worker `index` until the engine is closed.
pub(super) fn serve(shared: &EngineInner, index: usize) {
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
                let ran = run(&mut instance, jobs, taken);
                shared.set_runs_since(index, None);

                // The repair counts neither as the caller's time nor as that of a run that hangs.
                repair(&mut *instance.backend);
                if wide {
                    let _ = cores::pin(&own);
                }

                let now = Instant::now();
                state = shared.lock();
                match ran {
                    Ok(true) if tensors => state.record_run(model, bytes, now.duration_since(taken)),
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
                if orphan.is_some() {
                    drop(state);
                    drop(orphan);
                    sys::return_free_memory();
                    state = shared.lock();
                }
            }
        }
    }
}

/// Runs the jobs together and answers each; returns whether all succeeded. `Err` reports that the model mixes the
/// elements of a batch; the jobs were answered nevertheless.
fn run(instance: &mut Instance, jobs: Vec<Job>, taken: Instant) -> Result<bool, NotBatched> {
    let mut went_well = Ok(true);
    if jobs.len() > 1 {
        match run_together(instance, &jobs) {
            Ok(Some((answers, time))) => {
                for (job, outputs) in jobs.into_iter().zip(answers) {
                    let queue = taken.saturating_duration_since(job.queued);
                    answer(job.reply, Ok(RunResult { outputs, time }), Times { queue, ..Times::default() });
                }
                return Ok(true);
            }
            // A failure caused by one request must not fail the others: run each by itself.
            Ok(None) => went_well = Ok(false),
            Err(reason) => went_well = Err(reason),
        }
    }
    for job in jobs {
        let well = run_alone(instance, job, taken);
        went_well = went_well.map(|before| before && well);
    }
    went_well
}

fn run_alone(instance: &mut Instance, job: Job, taken: Instant) -> bool {
    let Job { inputs, outputs, rows, queued, reply, .. } = job;
    let queue = taken.saturating_duration_since(queued);
    match &inputs {
        JobInputs::Tensors(tensors) => {
            let result = run_once(instance, tensors, &outputs, rows);
            let well = result.is_ok();
            answer(reply, result.map_err(InferError::Run), Times { queue, ..Times::default() });
            well
        }
        JobInputs::Raw(raw) => {
            let FinishedWork { result, times } = run_raw(instance, raw, &outputs, rows);
            // The memory of the input is free when its caller has the answer.
            drop(inputs);
            let well = matches!(result, Ok(_) | Err(WorkError::Outputs(_)));
            let WorkTimes { prepare, postprocess, .. } = times;
            answer(reply, result.map_err(InferError::from), Times { queue, prepare, postprocess });
            well
        }
    }
}

/// Makes the inputs of a run, runs the model and makes results of its outputs.
fn run_raw(instance: &mut Instance, raw: &RawInputs, outputs: &[usize], rows: usize) -> FinishedWork {
    let RawInputs { pipeline, input, account, own, .. } = raw;
    let work = Work { input, outputs, own: *own, account };
    let finished = work::run(&mut *instance.backend, &**pipeline, work);
    let WorkTimes { compute, run_cpu, pipeline_cpu, .. } = finished.times;
    if let Some(compute) = compute {
        instance.observer.executed(rows, compute, run_cpu);
    }
    instance.observer.prepared(pipeline_cpu);
    finished
}

/// Runs the jobs as one; `Ok(None)` when the run failed.
#[expect(clippy::type_complexity, reason = "named nowhere else")]
fn run_together(instance: &mut Instance, jobs: &[Job]) -> Result<Option<(Vec<Vec<Tensor>>, ComputeTime)>, NotBatched> {
    let Some(parts) = jobs.iter().map(Job::tensors).collect::<Option<Vec<&[Tensor]>>>() else { return Ok(None) };
    let rows: Vec<usize> = jobs.iter().map(|job| job.rows).collect();
    let (Some(inputs), Some(first)) = (concat(&parts), jobs.first()) else { return Ok(None) };
    match run_once(instance, &inputs, &first.outputs, rows.iter().sum()) {
        Ok(RunResult { outputs, time }) => Ok(Some((split(&outputs, &rows)?, time))),
        Err(_) => Ok(None),
    }
}

pub(super) fn run_once(
    instance: &mut Instance,
    inputs: &[Tensor],
    outputs: &[usize],
    rows: usize,
) -> Result<RunResult, RunError> {
    let (result, cpu) = work::run_tensors(&mut *instance.backend, inputs, outputs);
    if let Ok(result) = &result {
        instance.observer.executed(rows, result.time, cpu);
    }
    result
}

/// Repairs `backend` after a failed run, so that the next caller does not wait for it.
pub(super) fn repair(backend: &mut dyn Backend) {
    if !backend.is_sound() {
        // A fault here occurs again in the next run, which reports it.
        let _ = catch_unwind(AssertUnwindSafe(|| backend.repair()));
    }
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
