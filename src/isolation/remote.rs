//! A model in a child, behind the interface that models in this process have.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge_base::sys;
use ledge_base::telemetry::process::{self, ThreadActivity};
use ledge_base::tensor::Tensor;
use ledge_engine::backend::{
    Backend, ModelRunError, ModelSignature, RunActivity, RunContext, RunInputs, RunResult, Runtime,
};
use ledge_engine::pipeline::kind::{Pipeline, PostprocessError, PreprocessError};
use ledge_engine::pipeline::work::{
    self, FinishedPipelineRun, PipelineCall, PipelineRun, PipelineRunError, PipelineRunInput, PipelineRunTimes,
    RunPipeline,
};

use crate::child::crash::ThreadWork as ChildWork;
use crate::job_channel::{AreaWriter, JobAnswerError, JobChannel, JobChannelError};
use crate::process::{ChildEnd, ChildId, SETUP_TIME_MAX};
use crate::staged_files::StagedFiles;
use crate::wire::{AnswerHead, JobHead, LoadedModelFacts, ModelId, PipelineCallHead, RunHead, TensorHead};
use crate::worker_process::WorkerProcess;

/// The time beyond its deadline, or beyond the model's own time limit, after which unwatched work, such as a repair,
/// counts as work that never ends. Runs are watched by the scheduler.
const UNWATCHED_GRACE: Duration = Duration::from_secs(10);

/// A model that a child has loaded. Dropping it unloads it there.
#[derive(Debug)]
pub struct RemoteBackend {
    /// The first field, so that files are removed before their folder is.
    _stage: StagedFiles,
    worker: Arc<WorkerProcess>,
    model: ModelId,
    runtime: Runtime,
    signature: ModelSignature,
    is_sound: bool,
    /// The time that a run may always take, even beyond its deadline.
    time_limit: Duration,
    /// The core of the last run, and its number there.
    core: usize,
    last_job: u32,
    in_progress: Option<UnfinishedRun>,
}

/// A run that continues after its caller stopped waiting.
#[derive(Debug)]
struct UnfinishedRun {
    job: SentJob,
    expected: ExpectedOutputs<'static>,
    /// True for a run without a pipeline.
    is_of_tensors: bool,
    is_wide: bool,
}

/// The outputs that an answer must have.
#[derive(Debug, Default)]
struct ExpectedOutputs<'o> {
    calls: usize,
    /// The positions of the outputs asked for by each call, and the number of results of a pipeline behind them.
    asked: Cow<'o, [usize]>,
    others: usize,
}

/// A job that the child has.
#[derive(Debug, Clone, Copy)]
struct SentJob {
    number: u32,
    /// The last job of its hand-over.
    last: u32,
    /// The bytes of the inputs of the hand-over.
    bytes: usize,
    /// The time after which it counts as one that never ends, if it is not watched.
    until: Instant,
}

impl RemoteBackend {
    pub(crate) fn new(
        worker: Arc<WorkerProcess>,
        (model, runtime): (ModelId, Runtime),
        facts: LoadedModelFacts,
        time_limit: Duration,
        stage: StagedFiles,
    ) -> Self {
        let LoadedModelFacts { signature, .. } = facts;
        Self {
            _stage: stage,
            worker,
            model,
            runtime,
            signature,
            is_sound: true,
            time_limit,
            core: 0,
            last_job: 0,
            in_progress: None,
        }
    }

    /// Gives a job to the child, and waits for its answer. `read` parses the answer, or returns the reason why it is
    /// invalid.
    fn ask<T>(
        &mut self,
        place: RunContext,
        make: impl FnOnce(&mut AreaWriter<'_>) -> Result<JobHead, JobChannelError>,
        read: impl FnOnce(&ModelSignature, &JobChannel, RunHead) -> Result<T, String>,
    ) -> (Result<T, PipelineRunError>, PipelineRunTimes) {
        let mut times = PipelineRunTimes::default();
        let result = self.ask_measured(place, make, read, &mut times);
        (result, times)
    }

    fn ask_measured<T>(
        &mut self,
        place: RunContext,
        make: impl FnOnce(&mut AreaWriter<'_>) -> Result<JobHead, JobChannelError>,
        read: impl FnOnce(&ModelSignature, &JobChannel, RunHead) -> Result<T, String>,
        times: &mut PipelineRunTimes,
    ) -> Result<T, PipelineRunError> {
        self.core = place.core;
        let worker = self.worker.clone();
        let channel = worker.child.channel(place.core).ok_or_else(|| no_channel(place.core))?;
        let mut area = channel.jobs();
        let head = make(&mut area).map_err(too_large)?;
        let number = channel.add(&mut area, 0, &head).map_err(too_large)?;
        let job = self.sent(&channel, number, area.used(), place);
        if let Some(patience) = place.patience
            && job.wait(&channel, &worker, patience) == Err(JobAnswerError::Late)
        {
            let (expected, is_wide) = (ExpectedOutputs::default(), place.is_wide);
            self.in_progress = Some(UnfinishedRun { job, expected, is_of_tensors: true, is_wide });
            return Err(ModelRunError::InProgress.into());
        }
        self.receive(&worker, &channel, job, read, times)
    }

    /// Gives the child the jobs that end with `last`, with `bytes` of inputs. Returns the last one.
    fn sent(&mut self, channel: &JobChannel, last: u32, bytes: usize, place: RunContext) -> SentJob {
        channel.ask(last);
        self.last_job = last;
        let until = place.deadline.max(Instant::now() + self.time_limit) + UNWATCHED_GRACE;
        SentJob { number: last, last, bytes, until }
    }

    /// Gives the child all `runs` in one hand-over, and waits for their answers. Those that it has not begun when the
    /// time for inline runs is over are taken back.
    fn hand_over(
        &mut self,
        runs: &[RunInputs<'_>],
        place: RunContext,
    ) -> Result<Vec<Result<RunResult, ModelRunError>>, ModelRunError> {
        self.core = place.core;
        let worker = self.worker.clone();
        let channel = worker.child.channel(place.core).ok_or_else(|| no_channel(place.core))?;
        let (mut area, mut numbers) = (channel.jobs(), Vec::with_capacity(runs.len()));
        for (position, run) in runs.iter().enumerate() {
            let head = run_head(self.model, *run, false, &mut area).map_err(too_large)?;
            numbers.push(channel.add(&mut area, position, &head).map_err(too_large)?);
        }
        let (Some(&last), Ok(count)) = (numbers.last(), u32::try_from(runs.len())) else { return Ok(Vec::new()) };
        let mut job = self.sent(&channel, last, area.used(), place);
        let patience = place.patience.unwrap_or(self.time_limit);
        if job.wait(&channel, &worker, patience) == Err(JobAnswerError::Late) {
            job.last = channel.withdraw(last, count);
            self.last_job = job.last;
        }

        let mut results = Vec::with_capacity(runs.len());
        for (run, number) in runs.iter().zip(numbers) {
            job.number = number;
            let is_taken_back = last.wrapping_sub(number) < last.wrapping_sub(job.last);
            results.push(if is_taken_back {
                let reason = "a run before it in its hand-over took long".to_owned();
                Err(ModelRunError::Interrupted { reason, is_explained: true })
            } else if job.wait(&channel, &worker, Duration::ZERO) != Err(JobAnswerError::Late) {
                let mut times = PipelineRunTimes::default();
                let expected = ExpectedOutputs::of_tensors(run.outputs);
                let read = |signature: &ModelSignature, channel: &JobChannel, head| {
                    outputs(signature, channel, head, &expected)
                };
                let result = self.receive(&worker, &channel, job, read, &mut times);
                self.of_tensors(result, times)
            } else if number == job.last {
                let expected = ExpectedOutputs::of_tensors(run.outputs).into_owned();
                self.in_progress = Some(UnfinishedRun { job, expected, is_of_tensors: true, is_wide: false });
                Err(ModelRunError::InProgress)
            } else {
                Err(end(&worker, self.core, number, "the process of the runtimes left out a run".to_owned()))
            });
        }
        Ok(results)
    }

    /// Waits for the answer to a job.
    fn receive<T>(
        &mut self,
        worker: &WorkerProcess,
        channel: &JobChannel,
        SentJob { number, last, bytes, until }: SentJob,
        read: impl FnOnce(&ModelSignature, &JobChannel, RunHead) -> Result<T, String>,
        times: &mut PipelineRunTimes,
    ) -> Result<T, PipelineRunError> {
        match channel.wait(number, last, until, || worker.child.is_closed()) {
            Ok(()) => {}
            Err(JobAnswerError::Closed) => return Err(ended(worker, self.core, number).into()),
            Err(JobAnswerError::Late) => {
                let reason = "a run or a repair of the model did not end in time".to_owned();
                return Err(end(worker, self.core, number, reason).into());
            }
        }

        let answer = channel.answer_head::<AnswerHead>(number);
        let received = answer.as_ref().map_or(0, |answer| answer.result.as_ref().map_or(0, RunHead::end));
        let answer = answer.map_err(|error| format!("returned an invalid answer: {error}"));
        let answer = answer.and_then(|answer| {
            self.is_sound = answer.is_sound;
            *times = answer.times;
            match answer.result {
                // Only the daemon can know that.
                Err(PipelineRunError::Run(
                    ModelRunError::Crashed { .. } | ModelRunError::InProgress | ModelRunError::Cancelled,
                )) => Err("claims not to have answered".to_owned()),
                Err(error) => Ok(Err(error)),
                Ok(head) => read(&self.signature, channel, head).map(Ok),
            }
        });
        if number == last {
            channel.release(bytes, received);
        }
        let lie = |reason| end(worker, self.core, number, format!("the process of the runtimes {reason}")).into();
        answer.unwrap_or_else(|reason: String| Err(lie(reason)))
    }

    /// Waits `patience` for the answer to the job that is in progress.
    fn finish_within(
        &mut self,
        patience: Duration,
        times: &mut PipelineRunTimes,
    ) -> Result<RunResult, PipelineRunError> {
        let none = |reason: &str| ModelRunError::Interrupted { reason: reason.to_owned(), is_explained: false };
        let run = self.in_progress.take().ok_or_else(|| none("no run is in progress"))?;
        let worker = self.worker.clone();
        let channel = worker.child.channel(self.core).ok_or_else(|| none("the process has no such job channel"))?;
        if run.job.wait(&channel, &worker, patience) == Err(JobAnswerError::Late) {
            self.in_progress = Some(run);
            return Err(ModelRunError::InProgress.into());
        }

        let UnfinishedRun { job, expected, is_of_tensors, .. } = run;
        let read =
            |signature: &ModelSignature, channel: &JobChannel, head| outputs(signature, channel, head, &expected);
        let result = self.receive(&worker, &channel, job, read, times);
        if is_of_tensors { Ok(self.of_tensors(result, *times)?) } else { result }
    }

    /// The result of a run without a pipeline.
    fn of_tensors(
        &self,
        result: Result<RunResult, PipelineRunError>,
        times: PipelineRunTimes,
    ) -> Result<RunResult, ModelRunError> {
        match result {
            Ok(run) => Ok(RunResult { cpu: times.run_cpu, ..run }),
            Err(PipelineRunError::Run(error)) => Err(error),
            Err(PipelineRunError::Input(_) | PipelineRunError::Outputs(_) | PipelineRunError::NotBatched(_)) => {
                Err(end(&self.worker, self.core, self.last_job, "the process of the runtimes confuses jobs".to_owned()))
            }
        }
    }
}

impl SentJob {
    /// Waits `patience` for the answer.
    fn wait(&self, channel: &JobChannel, worker: &WorkerProcess, patience: Duration) -> Result<(), JobAnswerError> {
        channel.wait(self.number, self.last, self.until.min(Instant::now() + patience), || worker.child.is_closed())
    }
}

fn no_channel(core: usize) -> ModelRunError {
    ModelRunError::Interrupted { reason: format!("the process has no job channel {core}"), is_explained: false }
}

/// The error of inputs that are too large for a channel.
fn too_large(error: JobChannelError) -> ModelRunError {
    ModelRunError::Input { name: "of this call".to_owned(), reason: error.to_string() }
}

/// Writes the inputs of a run into the area of its job.
fn run_head(
    model: ModelId,
    RunInputs { inputs, outputs }: RunInputs<'_>,
    is_wide: bool,
    area: &mut AreaWriter<'_>,
) -> Result<JobHead, JobChannelError> {
    let inputs = inputs.iter().map(|tensor| TensorHead::write(tensor, area)).collect::<Result<_, _>>()?;
    Ok(JobHead::Run { model, inputs, outputs: outputs.to_vec(), is_wide })
}

/// Ends the child because of a job on the core.
fn end(worker: &WorkerProcess, index: usize, job: u32, reason: String) -> ModelRunError {
    worker.child.end(ChildEnd::by_us(reason, Some(ChildWork::Lane { index, job })));
    ended(worker, index, job)
}

/// The error of a run on a core after its child has ended.
fn ended(worker: &WorkerProcess, index: usize, job: u32) -> ModelRunError {
    ended_by(worker, ChildWork::Lane { index, job })
}

/// The error of the work `own` after its child has ended.
fn ended_by(worker: &WorkerProcess, own: ChildWork) -> ModelRunError {
    match worker.child.wait_for_end() {
        ChildEnd { reason, blamed: Some(work), .. } if work == own => ModelRunError::Crashed { reason },
        ChildEnd { reason, blamed, .. } => ModelRunError::Interrupted { reason, is_explained: blamed.is_some() },
    }
}

impl<'o> ExpectedOutputs<'o> {
    fn of_tensors(asked: &'o [usize]) -> Self {
        Self { calls: 1, asked: asked.into(), others: 0 }
    }

    fn into_owned(self) -> ExpectedOutputs<'static> {
        ExpectedOutputs { calls: self.calls, asked: self.asked.into_owned().into(), others: self.others }
    }
}

/// The outputs of a run, checked: for each call those at the positions asked for, and behind them the results of a
/// pipeline, of any datatype.
fn outputs(
    signature: &ModelSignature,
    channel: &JobChannel,
    head: RunHead,
    ExpectedOutputs { calls, asked, others }: &ExpectedOutputs<'_>,
) -> Result<RunResult, String> {
    let RunHead { outputs: heads, time, pictures } = head;
    let of_call = asked.len() + others;
    if heads.len() != calls * of_call {
        return Err(format!("gave {} outputs, {} were asked for", heads.len(), calls * of_call));
    }
    let mut outputs = Vec::with_capacity(heads.len());
    for (position, head) in heads.into_iter().enumerate() {
        if let Some(index) = asked.get(position % of_call) {
            let port = signature.outputs.get(*index);
            if port.is_none_or(|port| port.datatype != head.datatype) {
                return Err(format!("gave {} for output {index}", head.datatype));
            }
        }
        outputs.push(tensor(channel, head)?);
    }
    if !pictures.is_empty() && pictures.len() != *calls {
        return Err(format!("gave figures of {} pictures for {calls} calls", pictures.len()));
    }
    Ok(RunResult { outputs, time, cpu: Duration::ZERO, pictures })
}

/// A tensor that a child left, copied and then checked.
fn tensor(channel: &JobChannel, TensorHead { datatype, shape, place }: TensorHead) -> Result<Tensor, String> {
    let bytes = channel.answer_bytes(place).map_err(|error| format!("returned an invalid output: {error}"))?;
    Tensor::new(datatype, shape, bytes.into()).map_err(|error| format!("returned an invalid output: {error}"))
}

impl Backend for RemoteBackend {
    fn runtime(&self) -> Runtime {
        self.runtime
    }

    fn signature(&self) -> &ModelSignature {
        &self.signature
    }

    fn is_sound(&self) -> bool {
        self.is_sound
    }

    fn repair(&mut self) {
        // It may have to load the model again.
        let deadline = Instant::now() + SETUP_TIME_MAX;
        let place = RunContext { core: self.core, is_wide: false, deadline, patience: None };
        let model = self.model;
        let _ = self.ask(place, |_| Ok(JobHead::Repair(model)), |_, _, _| Ok(()));
    }

    fn run(&mut self, inputs: &[Tensor], outputs: &[usize], place: RunContext) -> Result<RunResult, ModelRunError> {
        let model = self.model;
        let make = |area: &mut AreaWriter<'_>| run_head(model, RunInputs { inputs, outputs }, place.is_wide, area);
        let expected = ExpectedOutputs::of_tensors(outputs);
        let read =
            |signature: &ModelSignature, channel: &JobChannel, head| self::outputs(signature, channel, head, &expected);
        let (result, times) = self.ask(place, make, read);
        if let Some(run) = &mut self.in_progress {
            run.expected = expected.into_owned();
        }
        self.of_tensors(result, times)
    }

    fn run_each(&mut self, runs: &[RunInputs<'_>], place: RunContext) -> Vec<Result<RunResult, ModelRunError>> {
        // Each by itself gets its own error.
        let alone = |error: ModelRunError| ModelRunError::Interrupted { reason: error.to_string(), is_explained: true };
        self.hand_over(runs, place).unwrap_or_else(|error| vec![Err(alone(error)); runs.len()])
    }

    fn process(&self) -> Option<ChildId> {
        Some(self.worker.child.id())
    }
}

impl RunPipeline for RemoteBackend {
    fn run_work(&mut self, pipeline: &dyn Pipeline, work: PipelineRun<'_>, place: RunContext) -> FinishedPipelineRun {
        let Some(id) = pipeline.remote_id() else { return work::run(self, pipeline, work, place) };
        let model = self.model;
        // The process works within the memory of the callers, as this one would.
        let reserve = |PipelineCall { input, account }: &PipelineCall<'_>| {
            let is_counted = account.counted_owner().is_some();
            account.take(if is_counted { input.memory_elsewhere(pipeline) } else { 0 })
        };
        let _held = match work.calls.iter().map(reserve).collect::<Result<Vec<_>, _>>() {
            Ok(held) => held,
            Err(no_room) => {
                let result = Err(PreprocessError::from(no_room).into());
                return FinishedPipelineRun { result, times: PipelineRunTimes::default() };
            }
        };
        if let Err(reason) = self.worker.bind(id, pipeline.chain().is_none().then_some(model)) {
            let result = Err(if self.worker.child.is_closed() {
                ended_by(&self.worker, ChildWork::Load(id)).into()
            } else {
                PipelineRunError::Outputs(PostprocessError::Outputs(reason))
            });
            return FinishedPipelineRun { result, times: PipelineRunTimes::default() };
        }
        let make = |area: &mut AreaWriter<'_>| {
            let mut calls = Vec::with_capacity(work.calls.len());
            for call in work.calls {
                let (input, bytes) = call.input.clone().into_parts();
                let places = bytes.iter().map(|bytes| area.put(bytes)).collect::<Result<_, _>>()?;
                calls.push(PipelineCallHead { input, places });
            }
            let (outputs, own, is_wide) = (work.outputs.to_vec(), work.own, place.is_wide);
            Ok(JobHead::Work { model, pipeline: id, calls, outputs, own, is_wide })
        };
        let is_step = work.calls.iter().any(|call| matches!(call.input, PipelineRunInput::Step(_)));
        let (asked, others) = match pipeline.results() {
            // A step of a chain has one result.
            _ if is_step => (&[][..], 1),
            Some(names) => (work.outputs.get(..work.own).unwrap_or_default(), names.len()),
            None => (work.outputs, 0),
        };
        let expected = ExpectedOutputs { calls: work.calls.len(), asked: asked.into(), others };
        let read =
            |signature: &ModelSignature, channel: &JobChannel, head| outputs(signature, channel, head, &expected);
        let (result, times) = self.ask(place, make, read);
        if let Some(run) = &mut self.in_progress {
            (run.expected, run.is_of_tensors) = (expected.into_owned(), false);
        }
        FinishedPipelineRun { result, times }
    }

    fn finish(&mut self, patience: Duration) -> FinishedPipelineRun {
        let mut times = PipelineRunTimes::default();
        let result = self.finish_within(patience, &mut times);
        FinishedPipelineRun { result, times }
    }

    fn cancel(&mut self) {
        if let Some(run) = &self.in_progress {
            self.worker.child.cancel(self.core, run.job.number);
        }
    }

    fn activity(&self) -> Option<RunActivity> {
        let (run, child) = (self.in_progress.as_ref()?, &self.worker.child);
        let thread = child.channel(self.core)?.thread();
        let of_thread = process::thread_activity(child.pid(), thread).filter(|_| !run.is_wide);
        if let Some(ThreadActivity { state, cpu }) = of_thread {
            return Some(RunActivity { cpu, is_waiting: state == 'S' });
        }
        // The runtime's own threads do the work, or the child stated a wrong thread number.
        let cpu = sys::process_cpu_time(child.pid())?;
        let cores = u32::try_from(child.cores()).unwrap_or(u32::MAX).max(1);
        Some(RunActivity { cpu: cpu / cores, is_waiting: true })
    }

    fn end_process(&mut self, reason: String) -> ModelRunError {
        let job = self.in_progress.take().map_or(self.last_job, |run| run.job.number);
        end(&self.worker, self.core, job, reason)
    }

    fn has_ended(&self) -> bool {
        self.worker.child.is_closed()
    }
}

impl Drop for RemoteBackend {
    fn drop(&mut self) {
        if !self.worker.child.is_closed() {
            self.worker.unload(self.model);
        }
    }
}
