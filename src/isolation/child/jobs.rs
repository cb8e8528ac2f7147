//! The thread behind a lane: takes its job, runs it, answers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use ledge_base::tensor::Tensor;
use ledge_engine::backend::{Backend, RunError, RunPlace, RunResult};
use ledge_engine::cores;
use rustix::time::{ClockId, clock_gettime};

use super::crash::{self, Work};
use super::models::{Models, panic_message, repair};
use crate::lane::{Lane, LaneError, Writer};
use crate::wire::{AnswerHead, JobHead, RunHead, TensorHead};

/// Runs the jobs of the lane `index`, on `core` of `all`, for as long as the daemon gives correct ones.
pub fn serve(lane: &Lane, index: usize, core: usize, all: &[usize], models: &Models) {
    crash::works_at(Work::Lane(index));
    let is_pinned = cores::pin(&[core]).is_ok();
    let mut last = 0;
    loop {
        last = lane.next(last);
        let job = Job { lane, number: last, index, core: is_pinned.then_some(core), all };
        if let Err(error) = job.answer(models) {
            // The daemon ends a child that does not answer; it says there what happened.
            eprintln!("a job of lane {index} is none: {error}");
            return;
        }
    }
}

struct Job<'l> {
    lane: &'l Lane,
    number: u32,
    index: usize,
    /// The core to which this thread is pinned.
    core: Option<usize>,
    all: &'l [usize],
}

impl Job<'_> {
    fn answer(&self, models: &Models) -> Result<(), LaneError> {
        let begun = thread_cpu_time();
        match self.lane.job_head()? {
            JobHead::Run { model, inputs, outputs, is_wide } => {
                let Some(model) = models.get(model) else { return self.refuse(begun) };
                let mut backend = model.lock().unwrap_or_else(PoisonError::into_inner);
                let inputs = inputs.into_iter().map(|head| self.tensor(head)).collect::<Result<Vec<_>, _>>()?;
                #[cfg(feature = "fault-injection")]
                if let Some(fault) = super::faults::Fault::wanted(&inputs) {
                    fault.happen(self.lane, self.number);
                }
                // A runtime starts its threads on the cores that its caller may use, and may keep them for all models:
                // allow every core. The threads settle on the cores that the daemon reserved.
                let is_wide = is_wide && self.core.is_some() && cores::pin(self.all).is_ok();
                let result = self.run(&mut **backend, &inputs, &outputs, is_wide);
                if is_wide && let Some(core) = self.core {
                    let _ = cores::pin(&[core]);
                }
                // Before the answer, after which the daemon may write there.
                drop(inputs);
                let mut area = self.lane.answer();
                let result = result.map(|run| self.written(run, &mut area)).and_then(|written| written);
                let is_sound = backend.is_sound();
                drop(backend);
                self.reply(area, result, is_sound, begun)
            }
            JobHead::Repair(model) => {
                let Some(model) = models.get(model) else { return self.refuse(begun) };
                let mut backend = model.lock().unwrap_or_else(PoisonError::into_inner);
                repair(&mut **backend);
                let is_sound = backend.is_sound();
                drop(backend);
                let done = RunHead { outputs: Vec::new(), time: ledge_engine::backend::ComputeTime::default() };
                self.reply(self.lane.answer(), Ok(done), is_sound, begun)
            }
        }
    }

    fn tensor(&self, TensorHead { datatype, shape, place }: TensorHead) -> Result<Tensor, LaneError> {
        let bytes = self.lane.job_bytes(place)?;
        Tensor::new(datatype, shape, bytes).map_err(|_| LaneError::Head)
    }

    fn run(
        &self,
        backend: &mut dyn Backend,
        inputs: &[Tensor],
        outputs: &[usize],
        is_wide: bool,
    ) -> Result<RunResult, RunError> {
        let place = RunPlace { core: self.index, is_wide, deadline: Instant::now() };
        catch_unwind(AssertUnwindSafe(|| backend.run(inputs, outputs, place))).unwrap_or_else(|panic| {
            let reason = format!("panicked: {}", panic_message(&*panic));
            Err(RunError::Runtime { runtime: backend.runtime(), reason })
        })
    }

    fn written(&self, run: RunResult, area: &mut Writer<'_>) -> Result<RunHead, RunError> {
        let write = |tensor: &Tensor| {
            TensorHead::write(tensor, area).map_err(|error| {
                let name = format!("of {} {:?}", tensor.datatype(), tensor.shape());
                RunError::Output { name, reason: format!("does not fit between the processes: {error}") }
            })
        };
        Ok(RunHead { outputs: run.outputs.iter().map(write).collect::<Result<_, _>>()?, time: run.time })
    }

    fn reply(
        &self,
        area: Writer<'_>,
        result: Result<RunHead, RunError>,
        is_sound: bool,
        begun: Duration,
    ) -> Result<(), LaneError> {
        let cpu = thread_cpu_time().saturating_sub(begun);
        self.lane.reply(self.number, area, &AnswerHead { result, is_sound, cpu })
    }

    /// Answers a job of a model that is not here.
    fn refuse(&self, begun: Duration) -> Result<(), LaneError> {
        let reason = "the model is not in this process".to_owned();
        self.reply(self.lane.answer(), Err(RunError::Interrupted { reason }), true, begun)
    }
}

/// The CPU time of this thread.
fn thread_cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
