//! One run of a model around which a pipeline works: its inputs are made, the model runs, results are made of its
//! outputs.
//!
//! Everything that comes in and goes out is plain data: it may pass the boundary of a process.
//!
//! Files, in reading order:
//! * `work.rs` - the run
//! * `work/input.rs` - the data that inputs are made of

mod input;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use ledge_base::memory_budget::MemoryAccount;
use ledge_base::tensor::Tensor;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

pub use self::input::{InvalidRunParts, PipelineRunHead, PipelineRunInput};
use super::error::{PostprocessError, PreprocessError};
use super::kind::Pipeline;
use super::picture_reading::PictureReading;
use super::prepared_inputs::{Postprocess, PreprocessedInputs};
use crate::backend::{Backend, ComputeTime, ModelRunError, RunActivity, RunContext, RunInputs, RunResult};
use crate::batch::{UnbatchableOutput, concat, split};

/// One run of a model with its pipeline.
#[derive(Debug, Clone, Copy)]
pub struct PipelineRun<'w> {
    /// The calls that it answers: one, or several whose inputs are one batch. The outputs of the run are those of each
    /// call, one call after another.
    pub calls: &'w [PipelineCall<'w>],
    /// The positions of the outputs that are computed: those that the caller asked for, and behind them those of
    /// [`Pipeline::outputs`].
    pub outputs: &'w [usize],
    /// The number of outputs that the caller asked for. They stay as they are, in front of the pipeline's results.
    pub own: usize,
}

/// One call of a run.
#[derive(Debug, Clone, Copy)]
pub struct PipelineCall<'w> {
    pub input: &'w PipelineRunInput,
    /// Pays for intermediate results.
    pub account: &'w MemoryAccount,
}

/// The end of a run.
#[derive(Debug)]
pub struct FinishedPipelineRun {
    pub result: Result<RunResult, PipelineRunError>,
    pub times: PipelineRunTimes,
}

/// The times of a run. Zero for a part that was not reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PipelineRunTimes {
    /// Making the inputs.
    pub prepare: Duration,
    /// Making results of the outputs.
    pub postprocess: Duration,
    /// The CPU time of this thread for both.
    pub pipeline_cpu: Duration,
    /// The time of the model's run; `None` without a run, or if it failed.
    pub compute: Option<ComputeTime>,
    /// The CPU time of this thread for the model, without a runtime's own threads.
    pub run_cpu: Duration,
}

/// The reason why a run gave no results.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum PipelineRunError {
    /// No inputs were made; the model did not run.
    #[error(transparent)]
    Input(#[from] PreprocessError),
    #[error(transparent)]
    Run(#[from] ModelRunError),
    /// The model ran, and its outputs are no results.
    #[error(transparent)]
    Outputs(#[from] PostprocessError),
    /// The model ran for several calls, and its outputs cannot be split among them.
    #[error(transparent)]
    NotBatched(#[from] UnbatchableOutput),
}

/// A model that runs with its pipeline where it is, perhaps in another process.
pub trait RunPipeline: Backend {
    /// Runs the model with `pipeline` around it. A panic anywhere is an error of this run only.
    fn run_work(&mut self, pipeline: &dyn Pipeline, work: PipelineRun<'_>, place: RunContext) -> FinishedPipelineRun;

    /// Waits `patience` for the end of the run that is [`ModelRunError::InProgress`]. The result is that of a run with
    /// or without a pipeline, or that it is still in progress.
    fn finish(&mut self, patience: Duration) -> FinishedPipelineRun;

    /// Asks the runtime to cancel the run that is [`ModelRunError::InProgress`]. The run ends with an error soon, if
    /// the runtime can cancel its present operation.
    fn cancel(&mut self) {}

    /// The activity of the run that is [`ModelRunError::InProgress`]; `None` when that is not known.
    fn activity(&self) -> Option<RunActivity> {
        None
    }

    /// Ends the process of the run that is [`ModelRunError::InProgress`], for this reason.
    fn end_process(&mut self, reason: String) -> ModelRunError {
        ModelRunError::Interrupted { reason, is_explained: false }
    }

    /// True when its process has ended, so that no run succeeds any more.
    fn has_ended(&self) -> bool {
        false
    }
}

/// Does one run in this process. A panic anywhere is an error of this run only.
pub fn run(
    backend: &mut dyn Backend,
    pipeline: &dyn Pipeline,
    work: PipelineRun<'_>,
    place: RunContext,
) -> FinishedPipelineRun {
    let mut times = PipelineRunTimes::default();
    let result = run_measured(backend, pipeline, work, place, &mut times);
    FinishedPipelineRun { result, times }
}

fn run_measured(
    backend: &mut dyn Backend,
    pipeline: &dyn Pipeline,
    PipelineRun { calls, outputs, own }: PipelineRun<'_>,
    place: RunContext,
    times: &mut PipelineRunTimes,
) -> Result<RunResult, PipelineRunError> {
    let (start, cpu) = (Instant::now(), thread_cpu_time());
    let prepare = || calls.iter().map(|call| call.input.prepare(pipeline, call.account)).collect::<Result<Vec<_>, _>>();
    let prepared = catch_unwind(AssertUnwindSafe(prepare)).unwrap_or_else(|panic| {
        Err(PreprocessError::Content(format!("the input cannot be decoded: panicked: {}", panic_message(&*panic))))
    });
    let joined = prepared.map_err(PipelineRunError::from).and_then(JoinedInputs::new);
    times.pipeline_cpu = thread_cpu_time().saturating_sub(cpu);
    let JoinedInputs { inputs, rows, postprocess, pictures } = joined?;
    times.prepare = start.elapsed();

    let (ran, run_cpu) = run_tensors(backend, &inputs, outputs, place);
    times.run_cpu = run_cpu;
    let RunResult { outputs, time, .. } = ran?;
    let outputs = if calls.len() > 1 { split(&outputs, &rows)? } else { vec![outputs] };
    // Until results are made of them.
    let bytes = |outputs: &[Tensor]| outputs.iter().map(|tensor| tensor.data().len()).sum();
    let _held = (calls.iter().zip(&outputs).map(|(call, outputs)| call.account.take(bytes(outputs))))
        .collect::<Result<Vec<_>, _>>()
        .map_err(PreprocessError::from)?;
    times.compute = Some(time);
    if postprocess.iter().all(Option::is_none) {
        let outputs = outputs.into_iter().flatten().collect();
        return Ok(RunResult { outputs, time, pictures, ..RunResult::default() });
    }

    let (start, cpu) = (Instant::now(), thread_cpu_time());
    let make = move || {
        let results = outputs.into_iter().zip(postprocess).map(|(outputs, make)| results_behind(own, outputs, make));
        results.collect::<Result<Vec<_>, _>>()
    };
    let results = catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|panic| {
        Err(PostprocessError::Values(format!("the outputs cannot be read: panicked: {}", panic_message(&*panic))))
    });
    times.pipeline_cpu += thread_cpu_time().saturating_sub(cpu);
    times.postprocess = start.elapsed();
    let outputs = results?.into_iter().flatten().collect();
    Ok(RunResult { outputs, time, pictures, ..RunResult::default() })
}

/// The inputs of all calls of a run.
struct JoinedInputs {
    inputs: Vec<Tensor>,
    /// The rows of each call. Not read for a single one.
    rows: Vec<usize>,
    postprocess: Vec<Option<Postprocess>>,
    /// Of each call, or none.
    pictures: Vec<PictureReading>,
}

impl JoinedInputs {
    fn new(prepared: Vec<PreprocessedInputs>) -> Result<Self, PipelineRunError> {
        let pictures = prepared.iter().map(|prepared| prepared.picture).collect::<Option<_>>().unwrap_or_default();
        let (mut inputs, postprocess): (Vec<_>, Vec<_>) =
            prepared.into_iter().map(|prepared| (prepared.inputs, prepared.postprocess)).unzip();
        let rows =
            inputs.iter().map(|inputs| *inputs.first().and_then(|input| input.shape().first()).unwrap_or(&0)).collect();
        let inputs = if inputs.len() == 1 {
            inputs.pop()
        } else {
            concat(&inputs.iter().map(Vec::as_slice).collect::<Vec<_>>())
        };
        let inputs = inputs.ok_or_else(|| {
            let reason = "they cannot be one batch, or there is no memory for it".to_owned();
            ModelRunError::Input { name: "of several calls".to_owned(), reason }
        })?;
        Ok(Self { inputs, rows, postprocess, pictures })
    }
}

/// Runs the model on tensors; returns the CPU time of this thread too, of a model in this process. A panic is an error
/// of this run only.
pub fn run_tensors(
    backend: &mut dyn Backend,
    inputs: &[Tensor],
    outputs: &[usize],
    place: RunContext,
) -> (Result<RunResult, ModelRunError>, Duration) {
    // Another process measures its own. The clock is a system call.
    let before = backend.process().is_none().then(thread_cpu_time);
    let result = catch_unwind(AssertUnwindSafe(|| backend.run(inputs, outputs, place)))
        .unwrap_or_else(|panic| Err(panicked(backend, &*panic)));
    (result, before.map_or(Duration::ZERO, |before| thread_cpu_time().saturating_sub(before)))
}

/// Runs the model for several callers. A panic is an error of all these runs.
pub fn run_each(
    backend: &mut dyn Backend,
    runs: &[RunInputs<'_>],
    place: RunContext,
) -> Vec<Result<RunResult, ModelRunError>> {
    catch_unwind(AssertUnwindSafe(|| backend.run_each(runs, place)))
        .unwrap_or_else(|panic| vec![Err(panicked(backend, &*panic)); runs.len()])
}

fn panicked(backend: &dyn Backend, panic: &(dyn Any + Send)) -> ModelRunError {
    ModelRunError::Runtime { runtime: backend.runtime(), reason: format!("panicked: {}", panic_message(panic)) }
}

/// Leaves the first `own` outputs as they are, and makes results of the others.
fn results_behind(
    own: usize,
    mut outputs: Vec<Tensor>,
    make: Option<Postprocess>,
) -> Result<Vec<Tensor>, PostprocessError> {
    if let Some(make) = make {
        let results = make(outputs.split_off(own.min(outputs.len())))?;
        outputs.extend(results);
    }
    Ok(outputs)
}

/// The message of a panic.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}

/// The CPU time of this thread.
fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use ledge_base::tensor::DataType;

    use super::*;
    use crate::backend::{ModelPort, ModelSignature, Runtime};
    use crate::pipeline::content::{CallContent, PipelineInput, Texts};
    use crate::pipeline::image::DecodeLimits;
    use crate::pipeline::setup::PipelineSetup;

    /// Answers with its output, or panics without one.
    struct Stub(Option<Vec<Tensor>>);

    impl Backend for Stub {
        fn runtime(&self) -> Runtime {
            Runtime::OnnxRuntime
        }

        fn signature(&self) -> &ModelSignature {
            unreachable!("not asked for")
        }

        fn run(&mut self, _: &[Tensor], _: &[usize], _: RunContext) -> Result<RunResult, ModelRunError> {
            let outputs = self.0.clone().expect("an output");
            let time = ComputeTime { infer: Duration::from_secs(1), ..ComputeTime::default() };
            Ok(RunResult { outputs, time, ..RunResult::default() })
        }
    }

    fn pipeline() -> std::sync::Arc<dyn Pipeline> {
        let config = r#"{"object_detection": {"size": [2, 2], "boxes": {"detections": "y"}}}"#;
        let config = serde_json::from_str(config).unwrap_or_else(|error| panic!("{error}"));
        let port =
            |name: &str, shape: &[i64]| ModelPort { name: name.into(), datatype: DataType::Fp32, shape: shape.into() };
        let signature =
            ModelSignature { inputs: vec![port("x", &[1, 3, 2, 2])], outputs: vec![port("y", &[1, -1, 6])] };
        PipelineSetup { signature, ..PipelineSetup::new(&config, &[]).unwrap() }.bind().unwrap()
    }

    fn done(backend: &mut Stub, content: CallContent, own: usize) -> FinishedPipelineRun {
        done_for(backend, &[content], own)
    }

    fn done_for(backend: &mut Stub, contents: &[CallContent], own: usize) -> FinishedPipelineRun {
        let (outputs, account, limits) = (vec![0; own + 1], MemoryAccount::unlimited(), DecodeLimits::default());
        let inputs: Vec<_> =
            contents.iter().map(|content| PipelineRunInput::Content { content: content.clone(), limits }).collect();
        let calls: Vec<_> = inputs.iter().map(|input| PipelineCall { input, account: &account }).collect();
        let work = PipelineRun { calls: &calls, outputs: &outputs, own };
        let place = RunContext { core: 0, is_wide: false, deadline: Instant::now(), patience: None };
        run(backend, pipeline().as_ref(), work, place)
    }

    fn output() -> Tensor {
        Tensor::from_vec(vec![1, 1, 6], vec![0.0_f32, 0.0, 1.0, 1.0, 0.9, 0.0]).unwrap()
    }

    #[test]
    fn outputs_that_the_caller_asked_for_stay_in_front_of_the_results() {
        let finished = done(&mut Stub(Some(vec![output(), output()])), PipelineInput::Photograph.sample(), 1);
        let outputs = finished.result.unwrap().outputs;
        assert_eq!(outputs[0], output());
        assert!(outputs.len() == 2 && outputs[1] != output(), "{outputs:?}");
        assert_eq!(finished.times.compute.unwrap().infer, Duration::from_secs(1));
        assert!(!finished.times.prepare.is_zero() && !finished.times.postprocess.is_zero());
    }

    #[test]
    fn several_calls_are_one_run_with_the_results_of_each_in_their_order() {
        let row = |score: f32| vec![0.0_f32, 0.0, 1.0, 1.0, score, 0.0];
        let both = Tensor::from_vec(vec![2, 1, 6], [row(0.9), row(0.6)].concat()).unwrap();
        let alone = |score| {
            let one = Tensor::from_vec(vec![1, 1, 6], row(score)).unwrap();
            done(&mut Stub(Some(vec![one.clone(), one])), PipelineInput::Photograph.sample(), 1).result.unwrap().outputs
        };
        let finished = done_for(
            &mut Stub(Some(vec![both.clone(), both])),
            &[PipelineInput::Photograph.sample(), PipelineInput::Photograph.sample()],
            1,
        );
        assert_eq!(finished.result.unwrap().outputs, [alone(0.9), alone(0.6)].concat());

        // A model that answers for one row only mixes callers.
        let finished = done_for(
            &mut Stub(Some(vec![output()])),
            &[PipelineInput::Photograph.sample(), PipelineInput::Photograph.sample()],
            0,
        );
        assert!(matches!(finished.result, Err(PipelineRunError::NotBatched(_))), "{:?}", finished.result);
        let mixed = [PipelineInput::Photograph.sample(), CallContent::Texts(Texts::one(b"a").unwrap())];
        let finished = done_for(&mut Stub(None), &mixed, 0);
        assert!(matches!(finished.result, Err(PipelineRunError::Input(_))), "{:?}", finished.result);
    }

    #[test]
    fn a_failure_names_the_part_that_failed() {
        let text = CallContent::Texts(Texts::one(b"a").unwrap());
        let finished = done(&mut Stub(None), text, 0);
        assert!(matches!(finished.result, Err(PipelineRunError::Input(PreprocessError::Content(_)))));
        assert_eq!((finished.times.compute, finished.times.prepare), (None, Duration::ZERO));

        let finished = done(&mut Stub(None), PipelineInput::Photograph.sample(), 0);
        let error = finished.result.unwrap_err();
        assert!(matches!(error, PipelineRunError::Run(ModelRunError::Runtime { .. })), "{error}");
        assert!(error.to_string().contains("panicked: an output"), "{error}");

        let text = Tensor::from_strings(vec![1], ["a"]).unwrap();
        let finished = done(&mut Stub(Some(vec![text])), PipelineInput::Photograph.sample(), 0);
        assert!(matches!(finished.result, Err(PipelineRunError::Outputs(_))));
        assert!(finished.times.compute.is_some());
    }
}
