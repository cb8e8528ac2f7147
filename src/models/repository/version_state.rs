//! The states of versions.

use schemars::JsonSchema;
use serde::Serialize;

/// State of a version, in Triton's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionState {
    Ready,
    /// It is being loaded for the first time.
    Loading,
    /// It is waiting for its last requests.
    Unloading,
    /// It does not answer, for this reason.
    Unavailable(UnavailableReason),
}

impl VersionState {
    /// True for a version that should answer and does not.
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Unavailable(reason) if reason.is_failure())
    }

    /// The state of a version that should answer and does not.
    pub fn failed(reason: impl Into<String>) -> Self {
        Self::Unavailable(UnavailableReason::Failed { reason: reason.into() })
    }
}

/// Reason why a version does not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnavailableReason {
    /// It was unloaded on request, in Triton's word.
    #[error("unloaded")]
    Unloaded,
    /// The model has no version yet, and no fault: its first load is not done.
    #[error("")]
    NotLoadedYet,
    #[error("{reason}")]
    Failed { reason: String },
}

impl UnavailableReason {
    /// True for a version that should answer and does not.
    pub fn is_failure(&self) -> bool {
        match self {
            Self::Failed { .. } => true,
            Self::Unloaded | Self::NotLoadedYet => false,
        }
    }
}

/// The state of a model version, as the model repository extension names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum ModelState {
    /// Nothing is known about it.
    Unknown,
    /// It answers.
    Ready,
    /// It was unloaded or did not load.
    Unavailable,
    /// It will be ready soon.
    Loading,
    /// It answers its last requests and is then removed.
    Unloading,
}

impl ModelState {
    /// The word in answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Ready => "READY",
            Self::Unavailable => "UNAVAILABLE",
            Self::Loading => "LOADING",
            Self::Unloading => "UNLOADING",
        }
    }
}

impl From<&VersionState> for ModelState {
    fn from(state: &VersionState) -> Self {
        match state {
            VersionState::Ready => Self::Ready,
            VersionState::Loading => Self::Loading,
            VersionState::Unloading => Self::Unloading,
            VersionState::Unavailable(_) => Self::Unavailable,
        }
    }
}
