//! Reasons why golden inputs are not answered right.

use ledge_engine::backend::ModelRunError;
use ledge_engine::pipeline::kind::PreprocessError;

use super::super::scheduling::outcome::InferError;

/// Reason why a model did not pass its golden inputs. One line for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GoldenError {
    /// The answers are wrong, or a golden input is itself wrong. Another try ends the same.
    #[error("{0}")]
    Wrong(String),
    /// A golden input could not be read, or got no answer. Another try may succeed.
    #[error("{0}")]
    Unchecked(String),
}

impl GoldenError {
    /// The same error, with the file that it is about.
    pub(super) fn of(self, thing: &str) -> Self {
        match self {
            Self::Wrong(reason) => Self::Wrong(format!("{thing}: {reason}")),
            Self::Unchecked(reason) => Self::Unchecked(format!("{thing}: {reason}")),
        }
    }
}

impl From<InferError> for GoldenError {
    fn from(error: InferError) -> Self {
        match error {
            InferError::Preparation(PreprocessError::Content(_))
            | InferError::Run(ModelRunError::Input { .. } | ModelRunError::Output { .. })
            | InferError::Outputs(_) => Self::Wrong(error.to_string()),
            // A runtime that fails may lack memory.
            InferError::Run(
                ModelRunError::Runtime { .. }
                | ModelRunError::Interrupted { .. }
                | ModelRunError::Crashed { .. }
                | ModelRunError::InProgress
                | ModelRunError::Cancelled,
            )
            | InferError::Preparation(PreprocessError::NoRoom(_) | PreprocessError::StateLost(_))
            | InferError::Overloaded { .. }
            | InferError::DeadlineExceeded { .. }
            | InferError::Blamed(_)
            | InferError::Unavailable { .. } => Self::Unchecked(error.to_string()),
        }
    }
}
