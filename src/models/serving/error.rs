//! Reasons why a call has no answer.

use std::time::{Duration, Instant};

use ledge_base::memory_budget::MemoryBudgetExhausted;
use ledge_base::names::ModelName;
use ledge_engine::pipeline::content::ContentError;
use ledge_engine::pipeline::kind::PreprocessError;

use crate::repository::statistics::RefusalReason;
use crate::repository::{LoadedModel, PinError};
use crate::scheduling::outcome::{FailureClass, InferError};
use crate::serving::admission::AdmissionError;
use crate::serving::feature_inputs::FeatureInputError;
use crate::serving::inputs::InvalidRequest;

/// The time after which another try may succeed: a queue of small models drains in much less, and most models are
/// loaded by then.
const RETRY_TIME: Duration = Duration::from_secs(1);

/// Reason why a call was not answered.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// No such model or version, or none is loaded.
    #[error(transparent)]
    Pin(#[from] PinError),
    #[error(transparent)]
    InvalidRequest(#[from] InvalidRequest),
    /// Texts in a tensor that are none, or too many.
    #[error(transparent)]
    Content(#[from] ContentError),
    #[error(transparent)]
    Features(#[from] FeatureInputError),
    #[error(transparent)]
    Refused(#[from] AdmissionError),
    /// There is no memory now for what the call is made into.
    #[error(transparent)]
    NoRoom(#[from] MemoryBudgetExhausted),
    /// The model gave no answer.
    #[error("{}", run_message(model, *waited, error))]
    Run {
        model: ModelName,
        /// Since the call came in.
        waited: Duration,
        error: InferError,
    },
}

/// The message about a run without an answer.
fn run_message(model: &ModelName, waited: Duration, error: &InferError) -> String {
    match (error.class(), error) {
        (_, InferError::Overloaded { depth }) => {
            format!("Exceeds maximum queue size: {depth} requests wait for '{model}'")
        }
        (FailureClass::DeadlineExceeded, _) => {
            format!("Request timeout expired for '{model}' after {} ms", waited.as_millis())
        }
        (_, InferError::Unavailable { reason }) => format!("model '{model}' cannot be loaded again: {reason}"),
        (FailureClass::Unavailable, error) => format!("model '{model}' cannot be loaded again: {error}"),
        (FailureClass::Crashed, error) => format!("model '{model}': {error}; this call was in its run"),
        (_, error) => format!("model '{model}': {error}"),
    }
}

impl ServingError {
    /// Time after which another try may succeed; `None` for a call that will fail again.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(refused) => Some(refused.retry_after()),
            Self::Pin(PinError::Loading { .. }) => Some(RETRY_TIME),
            Self::Features(error) => error.retry_after(),
            Self::NoRoom(_) => Some(MemoryBudgetExhausted::RETRY_AFTER),
            Self::Run { error: InferError::Blamed(blamed), .. } => blamed.retry_after(),
            Self::Run { error, .. } => {
                let is_short = matches!(error.class(), FailureClass::Overloaded | FailureClass::Crashed);
                is_short.then_some(RETRY_TIME)
            }
            Self::Pin(_) | Self::InvalidRequest(_) | Self::Content(_) => None,
        }
    }

    /// Reason under which it counts as refused, if it does.
    pub(super) fn refusal(&self) -> Option<RefusalReason> {
        match self {
            Self::Refused(_) => Some(RefusalReason::Quota),
            Self::Run { error, .. } => match error.class() {
                FailureClass::Overloaded => Some(RefusalReason::QueueFull),
                FailureClass::Blamed => Some(RefusalReason::Blame),
                FailureClass::DeadlineExceeded => Some(RefusalReason::Deadline),
                FailureClass::Unavailable
                | FailureClass::Crashed
                | FailureClass::BadInput
                | FailureClass::NoRoom
                | FailureClass::Failed => None,
            },
            Self::Pin(_) | Self::InvalidRequest(_) | Self::Content(_) | Self::Features(_) | Self::NoRoom(_) => None,
        }
    }

    /// The class of a run that gave no answer; `None` for a call without a run.
    pub(super) fn class(&self) -> Option<FailureClass> {
        if let Self::Run { error, .. } = self { Some(error.class()) } else { None }
    }

    /// The error of a call that came in at `started`.
    pub(super) fn of_run(model: &LoadedModel, started: Instant, error: InferError) -> Self {
        match error {
            InferError::Preparation(PreprocessError::Content(reason)) => InvalidRequest::Content { reason }.into(),
            InferError::Preparation(PreprocessError::NoRoom(error)) => error.into(),
            error => Self::Run { model: model.name.clone(), waited: started.elapsed(), error },
        }
    }

    /// The error of a call whose deadline passed before or beside its run.
    pub(super) fn late(model: &LoadedModel, started: Instant) -> Self {
        let waited = started.elapsed();
        Self::of_run(model, started, InferError::DeadlineExceeded { waited, run: None })
    }
}
