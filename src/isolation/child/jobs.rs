//! The thread that serves a job channel: takes the job, runs it, answers.

use std::sync::PoisonError;
use std::time::Instant;

use bytes::Bytes;
use ledge_base::tensor::Tensor;
use ledge_engine::backend::{self, Backend, ModelRunError, RunContext, RunResult};
use ledge_engine::cores;
use ledge_engine::pipeline::work::{
    self, FinishedPipelineRun, PipelineCall, PipelineRun, PipelineRunError, PipelineRunHead, PipelineRunInput,
    PipelineRunTimes,
};

use super::crash::{self, ThreadWork};
use super::models::ChildModels;
use super::running::RunningJobs;
use super::threads::{EndOnPanic, complain};
use crate::job_channel::{AreaWriter, JobChannel, JobChannelError};
use crate::wire::{AnswerHead, JobHead, ModelId, PipelineCallHead, RunHead, TensorHead};

/// Runs the jobs of the channel `index`, on `core` of `all`, until the daemon gives an invalid one.
pub fn serve(
    channel: &JobChannel,
    index: usize,
    core: usize,
    all: &[usize],
    models: &ChildModels,
    running: &RunningJobs,
) {
    let _end = EndOnPanic;
    let is_pinned = cores::pin(&[core]).is_ok();
    channel.serve_on(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
    let (mut last, mut used) = (0, 0);
    loop {
        last = channel.next(last);
        crash::works_at(ThreadWork::Lane { index, job: last });
        let job = ChildJob { channel, number: last, index, core: is_pinned.then_some(core), all, models, running };
        match job.answer(used) {
            Ok(now) => used = now,
            Err(error) => {
                // The daemon ends a child that does not answer, and reports the reason.
                complain(format_args!("invalid job on channel {index}: {error}"));
                return;
            }
        }
    }
}

struct ChildJob<'l> {
    channel: &'l JobChannel,
    number: u32,
    index: usize,
    /// The core to which this thread is pinned.
    core: Option<usize>,
    all: &'l [usize],
    models: &'l ChildModels,
    running: &'l RunningJobs,
}

impl ChildJob<'_> {
    /// Does the job. `used` bytes of the area belong to the answers before it, unless it is the first of its hand-over.
    /// Returns the bytes that are in use afterwards.
    fn answer(&self, used: usize) -> Result<usize, JobChannelError> {
        let (head, is_first) = self.channel.job_head(self.number)?;
        let used = if is_first { 0 } else { used };
        match head {
            JobHead::Run { model, inputs, outputs, is_wide } => {
                let inputs = inputs.into_iter().map(|head| self.tensor(head)).collect::<Result<Vec<_>, _>>()?;
                #[cfg(feature = "fault-injection")]
                self.fault(inputs.iter().map(Tensor::data))?;
                self.run(used, model, is_wide, |backend, place| {
                    let (result, run_cpu) = work::run_tensors(backend, &inputs, &outputs, place);
                    let times = PipelineRunTimes { run_cpu, ..PipelineRunTimes::default() };
                    // Before the answer, after which the daemon may write there.
                    drop(inputs);
                    FinishedPipelineRun { result: result.map_err(PipelineRunError::Run), times }
                })
            }
            JobHead::Work { model, pipeline, calls, outputs, own, is_wide } => {
                let inputs = calls.into_iter().map(|call| self.input(call)).collect::<Result<Vec<_>, _>>()?;
                let Some(pipeline) = self.models.pipeline(pipeline) else { return self.refuse(used, "the pipeline") };
                self.run(used, model, is_wide, |backend, place| {
                    let account = &self.models.account();
                    let calls: Vec<_> = inputs.iter().map(|input| PipelineCall { input, account }).collect();
                    let work = PipelineRun { calls: &calls, outputs: &outputs, own };
                    let finished = work::run(backend, &*pipeline, work, place);
                    drop(inputs);
                    finished
                })
            }
            JobHead::Repair(model) => self.run(used, model, false, |backend, _| {
                backend::repair(backend);
                FinishedPipelineRun { result: Ok(RunResult::default()), times: PipelineRunTimes::default() }
            }),
        }
    }

    fn run(
        &self,
        used: usize,
        model: ModelId,
        is_wide: bool,
        run: impl FnOnce(&mut dyn Backend, RunContext) -> FinishedPipelineRun,
    ) -> Result<usize, JobChannelError> {
        let Some(model) = self.models.get(model) else { return self.refuse(used, "the model") };
        let mut backend = model.backend.lock().unwrap_or_else(PoisonError::into_inner);
        // A runtime starts its threads on the cores that its caller may use, and may keep them for all models: allow
        // every core. The threads settle on the cores that the daemon reserved.
        let is_wide = is_wide && self.core.is_some() && cores::pin(self.all).is_ok();
        let place = RunContext { core: self.index, is_wide, deadline: Instant::now(), patience: None };
        self.running.begin(self.index, self.number, model.canceller.clone());
        let FinishedPipelineRun { mut result, times } = run(&mut **backend, place);
        self.running.end(self.index);
        if result.is_err() && crash::others_hold_memory() {
            // It may have failed for lack of the memory that the other work holds, and soon frees or crashes for.
            let reason = "another call uses up the memory of the process".to_owned();
            result = Err(ModelRunError::Interrupted { reason, is_explained: true }.into());
        }
        if is_wide && let Some(core) = self.core {
            let _ = cores::pin(&[core]);
        }
        let is_sound = backend.is_sound();
        drop(backend);
        self.models.ran(&model);
        self.reply(used, result, is_sound, times)
    }

    fn tensor(&self, TensorHead { datatype, shape, place }: TensorHead) -> Result<Tensor, JobChannelError> {
        let bytes = self.channel.job_bytes(place)?;
        Tensor::new(datatype, shape, bytes).map_err(|_| JobChannelError::Head)
    }

    fn input(
        &self,
        PipelineCallHead { input: head, places }: PipelineCallHead,
    ) -> Result<PipelineRunInput, JobChannelError> {
        // The state of a step stays after it, and must not be in memory that the next job uses.
        let is_kept = matches!(head, PipelineRunHead::Step { .. });
        let own = |bytes: Bytes| {
            if !is_kept {
                return bytes;
            }
            // The daemon has counted it already.
            self.models.account().force_reserve(bytes.len()).attach(Bytes::copy_from_slice(&bytes))
        };
        let bytes =
            places.into_iter().map(|place| self.channel.job_bytes(place).map(own)).collect::<Result<Vec<_>, _>>()?;
        #[cfg(feature = "fault-injection")]
        self.fault(bytes.iter())?;
        PipelineRunInput::from_parts(head, bytes).map_err(|_| JobChannelError::Head)
    }

    fn reply(
        &self,
        used: usize,
        result: Result<RunResult, PipelineRunError>,
        is_sound: bool,
        times: PipelineRunTimes,
    ) -> Result<usize, JobChannelError> {
        let mut area = self.channel.answer(used);
        let result = result.and_then(|run| written(&run, &mut area).map_err(PipelineRunError::Run));
        self.channel.reply(self.number, area, &AnswerHead { result, is_sound, times })
    }

    /// Answers a job of a model or a pipeline that is not here.
    fn refuse(&self, used: usize, what: &str) -> Result<usize, JobChannelError> {
        let reason = format!("{what} is not in this process");
        self.reply(
            used,
            Err(PipelineRunError::Run(ModelRunError::Interrupted { reason, is_explained: false })),
            true,
            PipelineRunTimes::default(),
        )
    }

    /// Goes wrong, if an input asks for that.
    #[cfg(feature = "fault-injection")]
    fn fault<'b>(&self, inputs: impl Iterator<Item = &'b Bytes>) -> Result<(), JobChannelError> {
        match super::faults::InjectedFault::wanted(inputs) {
            Some(fault) => fault.happen(self.channel, self.number),
            None => Ok(()),
        }
    }
}

fn written(run: &RunResult, area: &mut AreaWriter<'_>) -> Result<RunHead, ModelRunError> {
    let write = |tensor: &Tensor| {
        TensorHead::write(tensor, area).map_err(|error| {
            let name = format!("of {} {:?}", tensor.datatype(), tensor.shape());
            ModelRunError::Output { name, reason: format!("does not fit between the processes: {error}") }
        })
    };
    let outputs = run.outputs.iter().map(write).collect::<Result<_, _>>()?;
    Ok(RunHead { outputs, time: run.time, pictures: run.pictures.clone() })
}
