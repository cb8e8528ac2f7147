//! Runs the steps of chains: each is a job in the queue of its model, so that other callers can run between two steps.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use ledge_base::memory_budget::MemoryAccount;
use ledge_base::tensor::Tensor;
use ledge_engine::backend::{ComputeTime, RunResult};
use ledge_engine::pipeline::chain::{ChainError, ChainStep, Lease, ModelChain, RunSteps};
use ledge_engine::pipeline::content::CallContent;
use ledge_engine::pipeline::image::DecodeLimits;
use ledge_engine::pipeline::kind::Pipeline;
use ledge_engine::pipeline::work::PipelineRunInput;

use super::super::scheduling::inputs::PipelineInputs;
use super::super::scheduling::outcome::{FinishedRun, InferError};
use super::loaded_model::LoadedModel;
use crate::scheduling::terms::RunTerms;

/// Answers a content with the chain of `pipeline`. `account` pays for the states between the steps.
pub(super) async fn run(
    model: &LoadedModel,
    (pipeline, chain): (&Arc<dyn Pipeline>, &dyn ModelChain),
    content: CallContent,
    limits: DecodeLimits,
    account: MemoryAccount,
    terms: RunTerms,
) -> Result<FinishedRun, InferError> {
    let begun = Instant::now();
    let call = ChainCall { model, pipeline, account, terms, times: Mutex::default() };
    let outputs = chain.run(content, limits, &call).await.map_err(|error| infer_error(error, begun))?;
    let ChainTimes { waits, steps } = call.times.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut whole = wall_times(waits, &steps);
    whole.run.outputs = outputs;
    Ok(whole)
}

/// One call of a chain.
struct ChainCall<'c> {
    model: &'c LoadedModel,
    pipeline: &'c Arc<dyn Pipeline>,
    account: MemoryAccount,
    terms: RunTerms,
    times: Mutex<ChainTimes>,
}

/// The times of a call until now.
#[derive(Debug, Default)]
struct ChainTimes {
    /// The stages that are no model.
    waits: Vec<(&'static str, Duration)>,
    /// The steps. Several may be under way at one time.
    steps: Vec<StepTimes>,
}

/// The times of one step of a model.
#[derive(Debug, Clone, Copy)]
struct StepTimes {
    name: &'static str,
    begun: Instant,
    queue: Duration,
    prepare: Duration,
    run: ComputeTime,
    postprocess: Duration,
    cpu_share: Duration,
}

impl ChainCall<'_> {
    fn times(&self) -> MutexGuard<'_, ChainTimes> {
        // Nothing panics under this lock.
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run_step(&self, name: &'static str, step: ChainStep) -> Result<Vec<Tensor>, InferError> {
        let instances =
            self.model.part(name).ok_or_else(|| InferError::Unavailable { reason: format!("no {name}") })?;
        let (pipeline, account) = (self.pipeline.clone(), self.account.clone());
        let raw = PipelineInputs { pipeline, input: PipelineRunInput::Step(step), account, own: 0 };
        let begun = Instant::now();
        let finished = instances.run_raw(raw, vec![0], self.terms.clone()).await?;
        let FinishedRun { run: RunResult { outputs, time: run, .. }, queue, prepare, postprocess, cpu_share, .. } =
            finished;
        self.times().steps.push(StepTimes { name, begun, queue, prepare, run, postprocess, cpu_share });
        Ok(outputs)
    }
}

impl RunSteps for ChainCall<'_> {
    fn lease(&self) -> Lease {
        let pipeline = self.pipeline.clone();
        Lease::new(move |lease| pipeline.release(lease))
    }

    fn run(&self, model: &'static str, step: ChainStep) -> BoxFuture<'_, Result<Vec<Tensor>, ChainError>> {
        Box::pin(async move { self.run_step(model, step).await.map_err(chain_error) })
    }

    fn at_a_time(&self) -> usize {
        // One more than there are instances, so that none waits for the next step.
        self.model.scale().max + 1
    }

    fn account(&self) -> &MemoryAccount {
        &self.account
    }

    fn deadline(&self) -> Instant {
        self.terms.deadline
    }

    fn waited(&self, stage: &'static str, time: Duration) {
        let waits = &mut self.times().waits;
        match waits.iter_mut().find(|(known, _)| *known == stage) {
            Some((_, all)) => *all += time,
            None => waits.push((stage, time)),
        }
    }
}

/// The error of a step, as the chain gets it.
fn chain_error(error: InferError) -> ChainError {
    match error {
        InferError::Preparation(error) => error.into(),
        InferError::Outputs(error) => error.into(),
        error => ChainError::Step(Box::new(error)),
    }
}

/// The error of a chain that began at `begun`.
fn infer_error(error: ChainError, begun: Instant) -> InferError {
    match error {
        ChainError::Input(error) => error.into(),
        ChainError::Outputs(error) => InferError::Outputs(error),
        ChainError::Deadline => InferError::DeadlineExceeded { waited: begun.elapsed(), run: None },
        ChainError::Step(error) => match error.downcast::<InferError>() {
            Ok(error) => *error,
            Err(error) => InferError::Unavailable { reason: error.to_string() },
        },
    }
}

/// The times of a call from those of its steps, each a part of the time on the clock: while a step runs it is compute,
/// else while one prepares its input or output it is that, and else a wait. Without outputs.
fn wall_times(waits: Vec<(&'static str, Duration)>, steps: &[StepTimes]) -> FinishedRun {
    let union =
        |spans: &dyn Fn(&StepTimes) -> Vec<(Instant, Instant)>| length_of(steps.iter().flat_map(spans).collect());
    let running = |step: &StepTimes| {
        let from = step.begun + step.queue + step.prepare;
        (from, from + step.run.total())
    };
    let preparing = |step: &StepTimes| (step.begun + step.queue, step.begun + step.queue + step.prepare);
    let working = |step: &StepTimes| (step.begun + step.queue, running(step).1 + step.postprocess);
    let run = union(&|step| vec![running(step)]);
    let prepared = union(&|step| vec![running(step), preparing(step)]);
    let worked = union(&|step| vec![working(step)]);
    let all = union(&|step| vec![(step.begun, working(step).1)]);

    let waited: Duration = waits.iter().map(|(_, time)| *time).sum();
    let mut stages = waits;
    for StepTimes { name, .. } in steps {
        if stages.iter().all(|(known, _)| known != name) {
            let of_model = steps.iter().filter(|step| step.name == *name).map(working);
            stages.push((*name, length_of(of_model.collect())));
        }
    }
    let mut sum = ComputeTime::default();
    for step in steps {
        sum += step.run;
    }
    let result = RunResult { time: shortened(sum, run), ..RunResult::default() };
    FinishedRun {
        run: result,
        queue: all.saturating_sub(worked),
        prepare: waited + prepared.saturating_sub(run),
        postprocess: worked.saturating_sub(prepared),
        cpu_share: steps.iter().map(|step| step.cpu_share).sum(),
        stages,
    }
}

/// The phases of `time`, scaled so that their sum is `total`.
fn shortened(time: ComputeTime, total: Duration) -> ComputeTime {
    let whole = time.total().as_secs_f64();
    let part = |phase: Duration| if whole > 0.0 { total.mul_f64(phase.as_secs_f64() / whole) } else { Duration::ZERO };
    ComputeTime { input: part(time.input), infer: part(time.infer), output: part(time.output) }
}

/// The time that some spans take together, where they overlap once.
fn length_of(mut spans: Vec<(Instant, Instant)>) -> Duration {
    spans.sort_unstable();
    let (mut length, mut until) = (Duration::ZERO, None);
    for (from, to) in spans {
        let from = until.map_or(from, |until| from.max(until));
        length += to.saturating_duration_since(from);
        until = Some(from.max(to));
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_steps_at_one_time_are_parts_of_the_time_on_the_clock() {
        let (begin, ms) = (Instant::now(), Duration::from_millis);
        let step = |name, begun, [queue, prepare, infer, postprocess]: [u64; 4]| StepTimes {
            name,
            begun: begin + ms(begun),
            queue: ms(queue),
            prepare: ms(prepare),
            run: ComputeTime { infer: ms(infer), ..ComputeTime::default() },
            postprocess: ms(postprocess),
            cpu_share: ms(prepare + infer + postprocess),
        };
        let steps = [
            step("find", 0, [10, 5, 20, 5]),
            // Two at a time on two cores, and a third that waits for one of these.
            step("read", 40, [0, 10, 50, 0]),
            step("read", 40, [0, 10, 40, 0]),
            step("read", 40, [50, 10, 40, 10]),
        ];
        let whole = wall_times(vec![("draw", ms(7))], &steps);
        let times =
            [whole.queue, whole.prepare, whole.run.time.total(), whole.postprocess].map(|time| time.as_millis());
        assert_eq!(whole.cpu_share, ms(200), "that of two steps at one time is twice as much");
        // find runs from 15 to 35; read from 50 to 100 and from 100 to 140.
        assert_eq!(times, [10, 7 + 5 + 10, 20 + 90, 5 + 10]);
        assert_eq!(whole.stages, [("draw", ms(7)), ("find", ms(30)), ("read", ms(110))]);
        let end = 150 + 7;
        assert_eq!(times.iter().sum::<u128>(), end);

        let none = wall_times(Vec::new(), &[]);
        assert_eq!((none.queue, none.run.time.total(), none.stages), (Duration::ZERO, Duration::ZERO, Vec::new()));
    }

    #[test]
    fn spans_at_one_time_count_once() {
        let begin = Instant::now();
        let span = |from, to| (begin + Duration::from_millis(from), begin + Duration::from_millis(to));
        let length = |spans: &[_]| length_of(spans.to_vec()).as_millis();
        assert_eq!(length(&[]), 0);
        assert_eq!(length(&[span(20, 30), span(0, 10)]), 20);
        assert_eq!(length(&[span(2, 5), span(0, 10), span(8, 12), span(11, 11)]), 12);
    }
}
