//! The order of a preflight, and what it reports.

use std::path::PathBuf;

use ledge_base::names;
use serde::{Deserialize, Serialize};

use super::super::package::DeclaredPort;
use super::super::state::RollbackReason;
use super::limits::TrialLimits;

/// The figures of a release that passed its preflight.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReleaseTrialFigures {
    /// The runtime that the daemon would choose.
    pub runtime: String,
    /// The time to load it, warmed up, in milliseconds.
    pub load_ms: u64,
    pub golden_right: u64,
    pub golden_total: u64,
    /// The fault of the first wrong answer.
    pub golden_fault: Option<String>,
    /// Runs that were measured, one at a time; 0 for a model that refuses zeros.
    pub runs: u64,
    /// The median time of a run, in microseconds.
    pub p50_us: u64,
    /// The 95th percentile.
    pub p95_us: u64,
    /// The most memory that the process held, the runtime's libraries included.
    pub peak_bytes: u64,
    pub inputs: Vec<DeclaredPort>,
    pub outputs: Vec<DeclaredPort>,
}

/// The order to the process that reads settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PreflightRequest {
    /// The folder of the release.
    pub release: PathBuf,
    pub how: ConfigurationPreflight,
    pub limits: TrialLimits,
}

/// The result of the process, on a line of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PreflightMessage {
    Passed,
    Failed(RollbackReason),
}

/// Settings of a configuration's preflight: it is read as this daemon would read its configuration with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationPreflight {
    /// The daemon's command line, without the program.
    pub arguments: Vec<String>,
    /// Its variables that start with `LEDGE_`.
    pub environment: Vec<(String, String)>,
}

impl ConfigurationPreflight {
    /// Takes the command line and environment of this process.
    pub fn of_this_process() -> Self {
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        let variables = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
        Self {
            arguments: std::env::args_os().skip(1).map(text).collect(),
            environment: variables.filter(|(name, _)| names::is_setting(name)).collect(),
        }
    }
}
