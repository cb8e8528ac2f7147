//! Errors of a preflight.

use serde::{Deserialize, Serialize};

use super::super::state::{RollbackCause, RollbackReason};

/// Reasons why a preflight was not passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum PreflightError {
    /// The release is at fault, and would fail again.
    #[error("{0}")]
    Failed(RollbackReason),
    /// The release could not be tried, for a reason that may pass.
    #[error("{0}")]
    Interrupted(RollbackReason),
    /// This box cannot try any release now.
    #[error("{0}")]
    Postponed(RollbackReason),
}

impl From<RollbackReason> for PreflightError {
    fn from(reason: RollbackReason) -> Self {
        Self::Failed(reason)
    }
}

/// The kernel ended the process, which had less memory than it may take, or the watch would have ended it.
pub(super) fn out_of_memory(step: &str) -> PreflightError {
    let detail = format!("was killed by the system while {step}, probably because memory ran out");
    PreflightError::Interrupted(RollbackReason::new(RollbackCause::Memory, detail))
}
