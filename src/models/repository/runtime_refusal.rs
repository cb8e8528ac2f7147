//! The reason why a runtime cannot load a model.

use ledge_engine::backend::{ModelLoadError, Runtime};

use super::golden_error::GoldenError;

/// Reason why one runtime does not run a version. One line for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeRefusal {
    #[error("{0}")]
    Load(String),
    /// No process could be started for it.
    #[error("{0}")]
    NoProcess(String),
    /// The process that loaded it ended again and again, and not because of this load as far as is known.
    #[error("{0}")]
    Interrupted(String),
    /// It was loaded, and did not pass its golden inputs, or could not be checked at all.
    #[error("{runtime}: {error}")]
    Golden { runtime: Runtime, error: GoldenError },
}

impl RuntimeRefusal {
    /// True when golden inputs were answered wrong.
    pub fn is_wrong(&self) -> bool {
        matches!(self, Self::Golden { error: GoldenError::Wrong(_), .. })
    }

    pub(super) fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::NoProcess(_) | Self::Interrupted(_) | Self::Golden { error: GoldenError::Unchecked(_), .. }
        )
    }

    /// Converts the result of the pipeline check. A pipeline that cannot answer is not a wrong answer, and a run that
    /// failed may succeed another time.
    pub(super) fn of_pipeline_check(runtime: Runtime, error: GoldenError) -> Self {
        match error {
            GoldenError::Wrong(reason) => Self::Load(format!("{runtime}: {reason}")),
            error @ GoldenError::Unchecked(_) => Self::Golden { runtime, error },
        }
    }

    /// The same refusal, of another file than the model's own.
    pub(super) fn of_file(self, file: &str) -> Self {
        match self {
            Self::Load(reason) => Self::Load(format!("{file}: {reason}")),
            Self::NoProcess(reason) => Self::NoProcess(reason),
            Self::Interrupted(reason) => Self::Interrupted(format!("{file}: {reason}")),
            Self::Golden { runtime, error } => Self::Golden { runtime, error: error.of(file) },
        }
    }
}

impl From<ModelLoadError> for RuntimeRefusal {
    fn from(error: ModelLoadError) -> Self {
        match error {
            ModelLoadError::NoProcess { .. } => Self::NoProcess(error.to_string()),
            ModelLoadError::Interrupted { .. } => Self::Interrupted(error.to_string()),
            error => Self::Load(error.to_string()),
        }
    }
}

impl From<String> for RuntimeRefusal {
    fn from(reason: String) -> Self {
        Self::Load(reason)
    }
}
