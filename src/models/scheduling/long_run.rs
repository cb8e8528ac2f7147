//! Long runs in other processes, and runs that continue beyond their deadlines.
//!
//! A run that is long leaves the other models the spare worker (`scheduler.rs`). Beyond its deadline it is cancelled by
//! its runtime. If it goes on nevertheless, for a grace of CPU time, its process is ended. A run that waits for a core
//! uses none of its grace.

use std::time::{Duration, Instant};

use ledge_engine::backend::{self, ModelRunError, RunActivity, RunResult};
use ledge_engine::pipeline::work::{FinishedPipelineRun, PipelineRunError, PipelineRunTimes};

use super::scheduler::ModelInstance;
use super::shared::InferSchedulerInner;

/// The time from which a run is long. Before, it is not cancelled either: a cancelled run may cost a repair of the
/// model, which takes longer than the rest of a shorter run.
pub const LONG_RUN: Duration = Duration::from_secs(1);

/// The CPU time after which a run that was cancelled has its process ended. A runtime looks between two operators if it
/// is cancelled, and one operator takes less than this.
const CANCEL_GRACE: Duration = Duration::from_secs(2);

/// The same while runs beyond their deadlines occupy every core.
const LAST_CORE_GRACE: Duration = Duration::from_millis(250);

/// The longest time that a run which was cancelled may wait for something other than a core.
const WAITING_MAX: Duration = Duration::from_secs(10);

/// The time between two looks at a run that was cancelled.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A run in another process that has not ended within [`LONG_RUN`].
#[derive(Debug, Clone, Copy)]
pub struct LongRun {
    pub model: u64,
    /// The worker that it holds, and the number of cores.
    pub worker: usize,
    pub cores: usize,
    pub deadline: Instant,
}

/// The account of a long run in the scheduler, until this is dropped.
struct LongRunGuard<'e> {
    shared: &'e InferSchedulerInner,
    run: LongRun,
    is_overdue: bool,
}

impl<'e> LongRunGuard<'e> {
    fn new(shared: &'e InferSchedulerInner, run: LongRun) -> Self {
        let wake = shared.lock().begin_long_run(run.model, run.worker, run.cores);
        shared.wake(wake);
        Self { shared, run, is_overdue: false }
    }

    fn set_overdue(&mut self) {
        self.is_overdue = true;
        self.shared.lock().begin_overdue_run(self.run.worker, self.run.cores);
    }
}

impl Drop for LongRunGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.end_long_run(self.run.model, self.run.worker, self.run.cores);
        if self.is_overdue {
            state.end_overdue_run(self.run.worker, self.run.cores);
        }
    }
}

/// Waits for the end of a long run, and sees to it that there is one.
pub fn see_out(shared: &InferSchedulerInner, instance: &mut ModelInstance, run: LongRun) -> FinishedPipelineRun {
    let mut held = LongRunGuard::new(shared, run);
    let left = run.deadline.saturating_duration_since(Instant::now());
    let finished = instance.backend.finish(left);
    if !is_in_progress(&finished) {
        return finished;
    }

    held.set_overdue();
    instance.backend.cancel();
    instance.observer.cancelled();
    let mut watch = CancelledRunWatch::new(instance.backend.activity());
    loop {
        let finished = instance.backend.finish(LOOK_INTERVAL);
        if !is_in_progress(&finished) {
            return cancelled(finished);
        }
        let is_last = shared.lock().is_overdue_everywhere(run.worker);
        let grace = if is_last { LAST_CORE_GRACE } else { CANCEL_GRACE };
        if let Some(reason) = watch.look(instance.backend.activity(), grace) {
            let error = instance.backend.end_process(reason.to_owned());
            return FinishedPipelineRun { result: Err(error.into()), times: PipelineRunTimes::default() };
        }
    }
}

/// Repairs a model after a failed run, so that its next caller does not wait. It may take as long as a load, so
/// meanwhile the cores count as occupied by a long run.
pub fn repair(shared: &InferSchedulerInner, instance: &mut ModelInstance, run: LongRun) {
    if !instance.backend.is_sound() {
        let _held = LongRunGuard::new(shared, run);
        backend::repair(&mut *instance.backend);
    }
}

/// As [`see_out`], for a run over `rows` batch elements without a pipeline.
pub fn see_out_tensors(
    shared: &InferSchedulerInner,
    instance: &mut ModelInstance,
    rows: usize,
    run: LongRun,
) -> Result<RunResult, ModelRunError> {
    let result = of_tensors(see_out(shared, instance, run));
    if let Ok(result) = &result {
        instance.observer.executed(rows, result.time, result.cpu);
    }
    result
}

/// The result of a run without a pipeline.
pub fn of_tensors(finished: FinishedPipelineRun) -> Result<RunResult, ModelRunError> {
    finished.result.map_err(|error| match error {
        PipelineRunError::Run(error) => error,
        // Only a pipeline has others.
        error => ModelRunError::Interrupted { reason: error.to_string(), is_explained: false },
    })
}

/// True for a run that goes on.
pub fn is_in_progress(finished: &FinishedPipelineRun) -> bool {
    matches!(finished.result, Err(PipelineRunError::Run(ModelRunError::InProgress)))
}

/// The end of a run that was cancelled: its error is that, unless its process ended.
fn cancelled(finished: FinishedPipelineRun) -> FinishedPipelineRun {
    let FinishedPipelineRun { result, times } = finished;
    let result = result.map_err(|error| match error {
        PipelineRunError::Run(error @ (ModelRunError::Crashed { .. } | ModelRunError::Interrupted { .. })) => {
            error.into()
        }
        _ => ModelRunError::Cancelled.into(),
    });
    FinishedPipelineRun { result, times }
}

/// The activity of a run since it was cancelled.
struct CancelledRunWatch {
    /// Its CPU time then, and at the last look.
    before: Option<Duration>,
    last: Option<RunActivity>,
    waited: Duration,
}

impl CancelledRunWatch {
    fn new(activity: Option<RunActivity>) -> Self {
        Self { before: activity.map(|activity| activity.cpu), last: activity, waited: Duration::ZERO }
    }

    /// The reason why its process is ended now, if it is.
    fn look(&mut self, activity: Option<RunActivity>, grace: Duration) -> Option<&'static str> {
        let used = activity.zip(self.before).map_or(Duration::ZERO, |(now, before)| now.cpu.saturating_sub(before));
        let is_still = activity.is_none_or(|now| now.is_waiting && self.last.is_none_or(|last| last.cpu == now.cpu));
        // Not by the clock: this thread may have to wait for a core, too.
        self.waited += if is_still { LOOK_INTERVAL } else { Duration::ZERO };
        self.last = activity;
        if used >= grace {
            Some("a run of the model went on after its deadline, although it was cancelled")
        } else if self.waited >= WAITING_MAX {
            Some("a run of the model did nothing any more after its deadline, and did not end")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn activity(cpu: Duration, is_waiting: bool) -> RunActivity {
        RunActivity { cpu, is_waiting }
    }

    #[test]
    fn a_run_that_waits_for_a_core_is_not_ended() {
        let mut watch = CancelledRunWatch::new(Some(activity(500 * MS, false)));
        assert!((0..10_000).all(|_| watch.look(Some(activity(500 * MS, false)), CANCEL_GRACE).is_none()));
        assert_eq!(watch.look(Some(activity(749 * MS, false)), LAST_CORE_GRACE), None);
        assert!(watch.look(Some(activity(750 * MS, false)), LAST_CORE_GRACE).is_some());
        assert_eq!(watch.look(Some(activity(2499 * MS, false)), CANCEL_GRACE), None);
        assert!(watch.look(Some(activity(2500 * MS, false)), CANCEL_GRACE).is_some());
    }

    #[test]
    fn a_run_that_does_nothing_or_cannot_be_seen_is_ended_after_a_while() {
        for still in [Some(activity(500 * MS, true)), None] {
            let mut watch = CancelledRunWatch::new(still);
            let looks = (0..10_000).take_while(|_| watch.look(still, CANCEL_GRACE).is_none()).count();
            assert_eq!(u128::try_from(looks + 1), Ok(WAITING_MAX.as_millis() / LOOK_INTERVAL.as_millis()));
        }
        // Its runtime's threads work.
        let mut watch = CancelledRunWatch::new(Some(activity(Duration::ZERO, true)));
        assert!((1..1000).all(|look| watch.look(Some(activity(look * MS, true)), CANCEL_GRACE).is_none()));
    }

    #[test]
    fn a_cancelled_run_that_ended_in_time_keeps_its_answer() {
        let end = |result: Result<RunResult, ModelRunError>| {
            let result = result.map_err(PipelineRunError::from);
            of_tensors(cancelled(FinishedPipelineRun { result, times: PipelineRunTimes::default() }))
        };
        assert!(end(Ok(RunResult::default())).is_ok());
        assert_eq!(end(Err(ModelRunError::InProgress)), Err(ModelRunError::Cancelled));
        let crashed = ModelRunError::Crashed { reason: "SIGSEGV".to_owned() };
        assert_eq!(end(Err(crashed.clone())), Err(crashed));
    }
}
