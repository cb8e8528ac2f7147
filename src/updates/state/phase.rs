//! The progress of a trial.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Starts of the daemon in a row that found work of a trial under way, before the trial counts as their cause.
pub(super) const STARTS_MAX: u32 = 3;

/// The progress of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RolloutPhase {
    /// Its files are being fetched.
    Downloading,
    /// All files are here, with their signed hashes.
    Verified,
    /// It passed its preflight in a process of its own.
    Staged,
    /// It is loaded next to the live version, which answers; a share of the requests is mirrored to it.
    Shadow,
    /// It answers a share of the requests.
    Canary,
    /// It answers all of them, and may still fall back.
    Active,
}

impl RolloutPhase {
    /// Returns its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Downloading => "downloading",
            Self::Verified => "verified",
            Self::Staged => "staged",
            Self::Shadow => "shadow",
            Self::Canary => "canary",
            Self::Active => "active",
        }
    }
}

impl fmt::Display for RolloutPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
