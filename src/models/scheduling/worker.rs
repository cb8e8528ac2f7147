//! The thread behind each core: takes the next run, runs it, answers its callers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use ledge_base::sys;
use ledge_base::tensor::Tensor;
use ledge_engine::backend::{Backend, ComputeTime, RunError, RunPlace, RunResult};
use ledge_engine::cores;
use ledge_engine::pipeline::kind::{AnswerError, InputError, Postprocess, Prepared};
use rustix::time::{ClockId, clock_gettime};

use super::batcher::{NotBatched, concat, split};
use super::engine::EngineInner;
use super::instance::{FinishedRun, InferError};
use super::queue::{Job, JobInputs};
use super::scheduler::{Instance, NextAction, Task};

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
                let deadline = jobs.iter().map(|job| job.terms.deadline).max().unwrap_or(taken);
                let place = RunPlace { core: index, is_wide: !reserved.is_empty(), deadline };
                let ran = run(&mut instance, jobs, taken, place);
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
fn run(instance: &mut Instance, jobs: Vec<Job>, taken: Instant, place: RunPlace) -> Result<bool, NotBatched> {
    let mut went_well = Ok(true);
    if jobs.len() > 1 {
        match run_together(instance, &jobs, place) {
            Ok(Some((answers, time))) => {
                for (job, outputs) in jobs.into_iter().zip(answers) {
                    let queue = taken.saturating_duration_since(job.queued);
                    answer(
                        job.reply,
                        Ok(RunResult { outputs, time, ..RunResult::default() }),
                        Times { queue, ..Times::default() },
                    );
                }
                return Ok(true);
            }
            // A failure caused by one request must not fail the others: run each by itself.
            Ok(None) => went_well = Ok(false),
            Err(reason) => went_well = Err(reason),
        }
    }
    for job in jobs {
        let well = run_alone(instance, job, taken, place);
        went_well = went_well.map(|before| before && well);
    }
    went_well
}

fn run_alone(instance: &mut Instance, job: Job, taken: Instant, place: RunPlace) -> bool {
    let Job { inputs, outputs, rows, queued, reply, .. } = job;
    let start = Instant::now();
    let (prepared, prepare) = match inputs {
        JobInputs::Tensors(inputs) => (Prepared { inputs, postprocess: None }, Duration::ZERO),
        JobInputs::Prepare { make, .. } => {
            let cpu = thread_cpu_time();
            let made = catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|panic| {
                Err(InputError::Content(format!("the input cannot be decoded: panicked: {}", panic_message(&*panic))))
            });
            instance.observer.prepared(thread_cpu_time().saturating_sub(cpu));
            match made {
                Ok(prepared) => (prepared, start.elapsed()),
                Err(error) => {
                    let _ = reply.send(Err(error.into()));
                    return false;
                }
            }
        }
    };

    let Prepared { inputs, postprocess } = prepared;
    let result = run_once(instance, &inputs, &outputs, rows, place);
    let well = result.is_ok();
    let (result, postprocess) = match (result, postprocess) {
        (Ok(run), Some(make)) => postprocessed(instance, run, make),
        (result, _) => (result.map_err(InferError::Run), Duration::ZERO),
    };
    answer(reply, result, Times { queue: taken.saturating_duration_since(queued), prepare, postprocess });
    well
}

/// Makes results of the outputs of a run, and measures the time of that.
fn postprocessed(
    instance: &Instance,
    RunResult { outputs, time, cpu_elsewhere }: RunResult,
    make: Postprocess,
) -> (Result<RunResult, InferError>, Duration) {
    let (start, cpu) = (Instant::now(), thread_cpu_time());
    let results = catch_unwind(AssertUnwindSafe(move || make(outputs))).unwrap_or_else(|panic| {
        Err(AnswerError::Values(format!("the outputs cannot be read: panicked: {}", panic_message(&*panic))))
    });
    instance.observer.prepared(thread_cpu_time().saturating_sub(cpu));
    (results.map(|outputs| RunResult { outputs, time, cpu_elsewhere }).map_err(InferError::Outputs), start.elapsed())
}

/// Runs the jobs as one; `Ok(None)` when the run failed.
#[expect(clippy::type_complexity, reason = "named nowhere else")]
fn run_together(
    instance: &mut Instance,
    jobs: &[Job],
    place: RunPlace,
) -> Result<Option<(Vec<Vec<Tensor>>, ComputeTime)>, NotBatched> {
    let Some(parts) = jobs.iter().map(Job::tensors).collect::<Option<Vec<&[Tensor]>>>() else { return Ok(None) };
    let rows: Vec<usize> = jobs.iter().map(|job| job.rows).collect();
    let (Some(inputs), Some(first)) = (concat(&parts), jobs.first()) else { return Ok(None) };
    match run_once(instance, &inputs, &first.outputs, rows.iter().sum(), place) {
        Ok(RunResult { outputs, time, .. }) => Ok(Some((split(&outputs, &rows)?, time))),
        Err(_) => Ok(None),
    }
}

pub(super) fn run_once(
    instance: &mut Instance,
    inputs: &[Tensor],
    outputs: &[usize],
    rows: usize,
    place: RunPlace,
) -> Result<RunResult, RunError> {
    let backend = &mut *instance.backend;
    let cpu = thread_cpu_time();
    let result = catch_unwind(AssertUnwindSafe(|| backend.run(inputs, outputs, place))).unwrap_or_else(|panic| {
        let reason = format!("panicked: {}", panic_message(&*panic));
        Err(RunError::Runtime { runtime: backend.runtime(), reason })
    });
    if let Ok(result) = &result {
        let own = thread_cpu_time().saturating_sub(cpu);
        instance.observer.executed(rows, result.time, own + result.cpu_elsewhere);
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

/// The CPU time of this thread.
fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

pub(super) fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}
