//! The outcome of a run: its tensors, or the reason why there are none.

use std::time::Duration;

use ledge_engine::backend::{ModelRunError, RunResult};
use ledge_engine::pipeline::kind::{PostprocessError, PreprocessError};
use ledge_engine::pipeline::work::PipelineRunError;
use tokio::sync::oneshot;

use super::faults::FaultRefusal;

/// Reason why a run returned no tensors.
#[derive(Debug, thiserror::Error)]
pub enum InferError {
    #[error("the queue is full ({depth} waiting)")]
    Overloaded { depth: usize },
    /// The deadline passed, in the queue or during the run.
    #[error("the deadline passed after {waited:?}")]
    DeadlineExceeded {
        /// Time since the call was queued.
        waited: Duration,
        /// The run, which may still be in progress; `None` when the call was not queued.
        run: Option<LateAnswer>,
    },
    /// The model was unloaded while idle, and cannot be loaded again.
    #[error("the model cannot be loaded again: {reason}")]
    Unavailable { reason: String },
    /// Calls like it ended the process of the model before.
    #[error(transparent)]
    Blamed(#[from] FaultRefusal),
    /// The data sent could not be made into the model's inputs.
    #[error(transparent)]
    Preparation(#[from] PreprocessError),
    #[error(transparent)]
    Run(#[from] ModelRunError),
    /// The outputs of the run are no results.
    #[error(transparent)]
    Outputs(PostprocessError),
}

/// The class of a run that gave no answer, which decides its status and what it says about the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureClass {
    Overloaded,
    DeadlineExceeded,
    /// The model cannot be loaded again now, or its process ended for another reason than this run.
    Unavailable,
    /// This run ended the process of the model.
    Crashed,
    /// Calls like it ended the process of the model before.
    Blamed,
    /// The caller's values.
    BadInput,
    NoRoom,
    /// The model or its runtime.
    Failed,
}

impl InferError {
    pub fn class(&self) -> FailureClass {
        match self {
            Self::Overloaded { .. } => FailureClass::Overloaded,
            // The end of a cancelled run came before its call noticed its deadline.
            Self::DeadlineExceeded { .. } | Self::Run(ModelRunError::Cancelled) => FailureClass::DeadlineExceeded,
            Self::Unavailable { .. }
            | Self::Preparation(PreprocessError::StateLost(_))
            | Self::Run(ModelRunError::Interrupted { .. }) => FailureClass::Unavailable,
            Self::Run(ModelRunError::Crashed { .. }) => FailureClass::Crashed,
            Self::Blamed(_) => FailureClass::Blamed,
            Self::Preparation(PreprocessError::Content(_)) | Self::Run(ModelRunError::Input { .. }) => {
                FailureClass::BadInput
            }
            Self::Preparation(PreprocessError::NoRoom(_)) => FailureClass::NoRoom,
            Self::Run(ModelRunError::Runtime { .. } | ModelRunError::Output { .. } | ModelRunError::InProgress)
            | Self::Outputs(_) => FailureClass::Failed,
        }
    }
}

impl From<PipelineRunError> for InferError {
    fn from(error: PipelineRunError) -> Self {
        match error {
            PipelineRunError::Input(error) => Self::Preparation(error),
            PipelineRunError::Run(error) => Self::Run(error),
            PipelineRunError::Outputs(error) => Self::Outputs(error),
            // Only of several calls, each of which runs by itself then.
            PipelineRunError::NotBatched(error) => Self::Outputs(PostprocessError::Outputs(error.to_string())),
        }
    }
}

/// A finished run.
#[derive(Debug, Default)]
pub struct FinishedRun {
    /// The outputs and the time they took.
    pub run: RunResult,
    pub queue: Duration,
    /// Time spent making the inputs, where they were not tensors.
    pub prepare: Duration,
    /// Time spent making results of the outputs, where they are not the results.
    pub postprocess: Duration,
    /// The call's part of the CPU time, with preparation and results: calls that share a run have parts by their rows.
    pub cpu_share: Duration,
    /// The time of each model of a chain, with making its inputs and reading its outputs.
    pub stages: Vec<(&'static str, Duration)>,
}

impl FinishedRun {
    /// The run of one call on tensors, which waited for nothing.
    pub fn alone(run: RunResult) -> Self {
        Self { cpu_share: run.cpu, run, ..Self::default() }
    }
}

/// A call whose deadline passed before its answer came. Its run may be in progress, or never begin.
#[derive(Debug)]
pub struct LateAnswer(pub(super) oneshot::Receiver<Result<FinishedRun, InferError>>);

impl LateAnswer {
    /// Waits for the answer. `None`: the run never began.
    pub async fn ended(self) -> Option<Result<FinishedRun, InferError>> {
        self.0.await.ok()
    }
}
