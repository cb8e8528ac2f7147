//! The preflight: a trial run of a release before anything of it is loaded where requests are answered.
//!
//! A model, and the models that other libraries would run, are loaded and run in a sealed process of their own, as the
//! daemon's models are with `runtimes.isolation = own`. Its memory and its time are watched. Settings are read by this same
//! program (`ledge update trial`), which limits itself, reads one order from its standard input, and reports its result on its
//! standard output. Any failure, a crash included, is one [`RollbackReason`] here and harms nothing. Both processes end with the
//! daemon.

pub mod child;
mod requirements;
mod trial;
mod watch;

use std::path::{Path, PathBuf};
use std::time::Duration;

use ledge_base::names::{self, ModelName};
use ledge_engine::Runtimes;
use ledge_engine::backend::Runtime;
use ledge_identity::sealing::Sealer;
use ledge_isolation::ChildSettings;
use ledge_models::repository::Predecessor;
use serde::{Deserialize, Serialize};

use super::package::{DeclaredPort, Package};
use super::plan::RolloutGate;
use super::state::{RollbackCause, RollbackReason};
pub use requirements::HostCapabilities;
pub use trial::LiveModel;
use trial::PreflightTrial;
#[cfg(any(test, feature = "fuzzing"))]
pub use watch::fuzz_preflight_report;

/// Timeout of a preflight whose package names none, in seconds.
const DEFAULT_TIMEOUT_S: u64 = 120;

/// Interval at which the memory of a process on trial is read.
const MEMORY_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Memory that a process on trial may reserve beyond twice the watched limit, in bytes. Reserved memory is more than resident
/// memory, and the watch names the cause better.
const DATA_RESERVE_BYTES: u64 = 1 << 30;

/// Settings of every preflight on this box.
#[derive(Debug, Clone)]
pub struct PreflightSettings {
    /// The runtimes that models run in now.
    pub runtimes: Runtimes,
    /// The processes of models on trial; their starter starts that of settings too.
    pub children: ChildSettings,
    /// The number of cores it may use; 0 is every physical core that this process may use.
    pub threads: usize,
    /// Set to try a model in each runtime that accepts it, as the daemon does when it measures them.
    pub measure: bool,
    /// The deadline of a model whose config names none.
    pub timeout: Duration,
    /// Decrypts files.
    pub sealer: Sealer,
    /// The version that a model on trial follows: it runs as that one does.
    pub predecessor: Option<Predecessor>,
}

impl PreflightSettings {
    /// Makes settings for these runtimes, and models that must answer within `timeout`.
    pub fn new(runtimes: Runtimes, children: ChildSettings, timeout: Duration) -> Self {
        let children = ChildSettings { is_trial: true, ..children };
        Self { runtimes, children, threads: 1, measure: true, timeout, sealer: Sealer::none(), predecessor: None }
    }

    fn facts(&self) -> HostCapabilities {
        HostCapabilities::gather(&self.runtimes)
    }
}

/// The figures of a release that passed its preflight.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PreflightReport {
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

/// The most that a process on trial may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialLimits {
    /// The most resident memory, in bytes.
    pub memory_bytes: u64,
    /// The most time, in seconds.
    pub seconds: u64,
}

impl TrialLimits {
    fn of(package: &Package, facts: &HostCapabilities) -> Self {
        let declared = package.limits.memory_mb.or(package.requires.memory_mb.map(|needed| needed.saturating_mul(2)));
        let memory_bytes = declared.map_or(facts.memory_bytes / 2, |megabytes| megabytes.saturating_mul(1 << 20));
        Self { memory_bytes, seconds: package.limits.seconds.unwrap_or(DEFAULT_TIMEOUT_S).max(1) }
    }

    fn data_bytes(self) -> u64 {
        self.memory_bytes.saturating_mul(2).saturating_add(DATA_RESERVE_BYTES)
    }

    /// The process has more than this resident memory.
    fn exceeded(self, bytes: u64, step: &str) -> RollbackReason {
        let (taken, limit) = (bytes >> 20, self.memory_bytes >> 20);
        RollbackReason::new(
            RollbackCause::Memory,
            format!("took {taken} MiB of memory while {step}; at most {limit} MiB are allowed"),
        )
    }

    fn timed_out(self, step: &str) -> RollbackReason {
        RollbackReason::new(RollbackCause::Deadline, format!("was not done after {} s, while {step}", self.seconds))
    }
}

/// The kernel ended the process, which had less memory than it may take, or the watch would have ended it.
fn out_of_memory(step: &str) -> PreflightError {
    let detail = format!("was killed by the system while {step}, probably because memory ran out");
    PreflightError::Interrupted(RollbackReason::new(RollbackCause::Memory, detail))
}

/// The order to the process that reads settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PreflightOrder {
    /// The folder of the release.
    pub release: PathBuf,
    pub how: ConfigurationPreflight,
    pub limits: TrialLimits,
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

/// The result of the process, on a line of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PreflightMessage {
    Passed,
    Failed(RollbackReason),
}

/// Tries the model of the release in `folder`. `Err` is the reason why it must not run here.
pub async fn run(
    settings: &PreflightSettings,
    folder: &Path,
    package: &Package,
    gate: &RolloutGate,
) -> Result<PreflightReport, PreflightError> {
    let facts = settings.facts();
    requirements::check(&package.requires, &facts)?;
    let trial = PreflightTrial::new(settings, settings.runtimes.clone(), TrialLimits::of(package, &facts));
    let report = trial.run(folder, folder, gate.golden_min).await?;
    same_signature(&report, package)?;
    Ok(report)
}

/// Checks that this box meets the requirements of a release.
pub fn check_requirements(package: &Package, settings: &PreflightSettings) -> Result<(), RollbackReason> {
    requirements::check(&package.requires, &settings.facts())
}

/// Returns the runtime of this name.
pub fn runtime_named(name: &ModelName) -> Option<Runtime> {
    Runtime::ALL.into_iter().find(|runtime| runtime.as_str() == name.as_str())
}

/// Tries the libraries of the release in `folder`: loads them, and then `models`, those that they would run, on their
/// golden inputs. `Err` is the reason why they must not be used here.
pub async fn run_runtime(
    settings: &PreflightSettings,
    name: &ModelName,
    folder: &Path,
    package: &Package,
    models: &[LiveModel],
) -> Result<(), PreflightError> {
    let facts = settings.facts();
    requirements::check(&package.requires, &facts)?;
    let unknown = || RollbackReason::new(RollbackCause::Load, format!("Ledge does not know a runtime {name}"));
    let runtime = runtime_named(name).ok_or_else(unknown)?;
    // The other runtime is missing here, so no model falls back to it. No caller waits, and nothing is compared.
    let settings =
        PreflightSettings { measure: false, timeout: Duration::from_hours(1), predecessor: None, ..settings.clone() };
    let trial = PreflightTrial::new(&settings, Runtimes::new(folder.to_owned()), TrialLimits::of(package, &facts));
    trial.run_runtime(runtime, models).await
}

/// Tries the settings of the release in `folder`. `Err` is the reason why they do not fit this box.
pub async fn run_configuration(
    settings: &PreflightSettings,
    folder: &Path,
    package: &Package,
    how: ConfigurationPreflight,
) -> Result<(), PreflightError> {
    let facts = settings.facts();
    requirements::check(&package.requires, &facts)?;
    let order = PreflightOrder { release: folder.to_owned(), how, limits: TrialLimits::of(package, &facts) };
    watch::run(&settings.children.starter, &order).await
}

/// Checks that the model has the signed inputs and outputs.
fn same_signature(report: &PreflightReport, package: &Package) -> Result<(), RollbackReason> {
    for (kind, declared, found) in
        [("input", &package.inputs, &report.inputs), ("output", &package.outputs, &report.outputs)]
    {
        same_ports(kind, declared, found).map_err(|detail| RollbackReason::new(RollbackCause::Load, detail))?;
    }
    Ok(())
}

fn same_ports(kind: &str, declared: &[DeclaredPort], found: &[DeclaredPort]) -> Result<(), String> {
    if declared.is_empty() {
        return Ok(());
    }
    for port in declared {
        let Some(found) = found.iter().find(|found| found.name == port.name) else {
            return Err(format!("the signed {kind} {:?} is not in the model", port.name));
        };
        if found != port {
            return Err(format!(
                "{kind} {:?} is {} {:?}, but {} {:?} is signed",
                port.name, found.datatype, found.shape, port.datatype, port.shape
            ));
        }
    }
    match found.iter().find(|found| declared.iter().all(|port| port.name != found.name)) {
        Some(other) => Err(format!("the model has an {kind} {:?} that was not signed", other.name)),
        None => Ok(()),
    }
}
