//! Reasons why a release was stopped.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The cause that stopped a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RollbackCause {
    /// A target is not signed by the right role.
    Signature,
    /// The package requires another runtime, more memory or a newer Ledge than this box has.
    Requirements,
    /// A file cannot be fetched, or is not the signed one.
    Download,
    /// The rollout's byte budget is used up.
    Budget,
    /// There is no disk space for it.
    Disk,
    Load,
    Crash,
    /// It took more memory than allowed.
    Memory,
    /// Golden inputs have wrong answers.
    Golden,
    Latency,
    Errors,
    /// It answers otherwise than the previous version.
    Agreement,
    /// The distribution of its classes differs from the reference.
    Drift,
    /// A stage took too long.
    Deadline,
    /// The stage saw too few requests.
    Quiet,
    /// The daemon ended again and again while the release was loaded or ran first.
    Restarts,
    /// It failed too often for passing reasons.
    Attempts,
    /// Another rollout replaced it.
    Superseded,
    Withdrawn,
    Revoked,
    /// The administrator of this box ordered it.
    Operator,
}

impl RollbackCause {
    /// Returns true if the same release of the same rollout is never tried again.
    pub(super) fn is_final(self) -> bool {
        !matches!(self, Self::Superseded | Self::Withdrawn)
    }

    /// Returns its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Signature => "signature",
            Self::Requirements => "requirements",
            Self::Download => "download",
            Self::Budget => "budget",
            Self::Disk => "disk",
            Self::Load => "load",
            Self::Crash => "crash",
            Self::Memory => "memory",
            Self::Golden => "golden",
            Self::Latency => "latency",
            Self::Errors => "errors",
            Self::Agreement => "agreement",
            Self::Drift => "drift",
            Self::Deadline => "deadline",
            Self::Quiet => "quiet",
            Self::Restarts => "restarts",
            Self::Attempts => "attempts",
            Self::Superseded => "superseded",
            Self::Withdrawn => "withdrawn",
            Self::Revoked => "revoked",
            Self::Operator => "operator",
        }
    }
}

/// The reason why a release was rolled back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollbackReason {
    pub cause: RollbackCause,
    /// The cause in words, with figures. One line.
    pub detail: String,
}

impl RollbackReason {
    /// Makes a reason.
    pub fn new(cause: RollbackCause, detail: impl Into<String>) -> Self {
        Self { cause, detail: detail.into() }
    }
}

impl fmt::Display for RollbackReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.cause.name(), self.detail)
    }
}
