//! Why a release was stopped.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What stopped a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A target is not signed as it must be.
    Signature,
    /// The package asks for what this box is not: another runtime, more memory, a newer Ledge.
    Requirements,
    /// A file is not to be had, or is another than was signed.
    Download,
    /// The rollout's byte budget is used up.
    Budget,
    /// There is no room for it.
    Disk,
    Load,
    Crash,
    /// It took more memory than it may.
    Memory,
    /// Golden inputs have other answers.
    Golden,
    Latency,
    Errors,
    /// It answers otherwise than the version before.
    Agreement,
    /// Its classes are not distributed as they should be.
    Drift,
    /// A stage took too long.
    Deadline,
    /// The stage saw too few requests.
    Quiet,
    /// The daemon did not stay up during the trial.
    Restarts,
    /// It failed for passing reasons too often.
    Attempts,
    /// Another rollout took its place.
    Superseded,
    Withdrawn,
    Revoked,
    /// Somebody at this box said so.
    Operator,
}

impl Cause {
    /// Whether the same release of the same rollout is never tried again.
    pub(super) fn is_final(self) -> bool {
        !matches!(self, Self::Superseded | Self::Withdrawn)
    }

    /// As reported.
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

/// Why a release was rolled back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    pub cause: Cause,
    /// The same for people, with figures. One line.
    pub detail: String,
}

impl Reason {
    /// A reason.
    pub fn new(cause: Cause, detail: impl Into<String>) -> Self {
        Self { cause, detail: detail.into() }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.cause.name(), self.detail)
    }
}
