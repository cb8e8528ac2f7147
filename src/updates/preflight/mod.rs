//! The preflight: a trial run of a release in a process of its own, before anything of it is loaded where requests are
//! answered.
//!
//! The process is this same program (`ledge update trial`): it limits itself, reads one order from its standard input,
//! loads and runs the release, and reports its steps and its result on its standard output. The daemon watches its
//! memory and its time. Any failure, a crash included, is one [`Reason`] here and harms nothing. The process ends with
//! its standard input, so it never outlives the daemon.

pub mod child;
pub mod model;
mod requirements;
mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ledge_base::names::{self, ModelName};
use ledge_engine::Runtimes;
use ledge_engine::backend::Runtime;
use ledge_identity::sealing::{OpenedFolder, SealPurpose, SealedFolder, Sealer};
use ledge_isolation::Starter;
use ledge_models::repository::VersionOnDisk;
use ledge_service::limited_process::THIS_PROGRAM;
use serde::{Deserialize, Serialize};

use super::package::{DeclaredPort, Package};
use super::plan::Gate;
use super::state::{Cause, Reason};
pub use model::{LiveModel, ModelPreflight, RuntimePreflight};
pub use requirements::HostCapabilities;
pub use watch::fuzz_preflight_report;

/// Timeout of a preflight whose package names none, in seconds.
const DEFAULT_TIMEOUT_S: u64 = 120;

/// Settings of every preflight on this box.
#[derive(Debug, Clone)]
pub struct PreflightSettings {
    /// Starts the process. It must be able to load every runtime.
    pub starter: Starter,
    /// The folder with the runtimes' shared libraries.
    pub runtimes: PathBuf,
    /// The folders of those runtimes that came as releases, by their names.
    pub own_folders: BTreeMap<String, PathBuf>,
    /// The number of cores it may use; 0 is every physical core that this process may use.
    pub threads: usize,
    /// Set to try a model in each runtime that accepts it, as the daemon does when it measures them.
    pub measure: bool,
    /// The deadline of a model whose config names none.
    pub timeout: Duration,
    /// Decrypts files, here: the preflight process gets plain files in memory, and no key.
    pub sealer: Sealer,
}

impl PreflightSettings {
    /// Makes settings for the runtimes in this folder, and models that must answer within `timeout`. This process starts
    /// its own program.
    pub fn new(runtimes: PathBuf, timeout: Duration) -> Self {
        let own_folders = BTreeMap::new();
        let (threads, measure, sealer) = (1, true, Sealer::none());
        let starter = Starter::Direct(THIS_PROGRAM.into());
        Self { starter, runtimes, own_folders, threads, measure, timeout, sealer }
    }

    fn of_model(&self, files: Option<PathBuf>, golden_min: Option<f64>) -> PreflightKind {
        let Self { runtimes, own_folders, threads, measure, timeout, .. } = self.clone();
        PreflightKind::Model(ModelPreflight { runtimes, own_folders, threads, measure, files, golden_min, timeout })
    }

    fn facts(&self) -> HostCapabilities {
        HostCapabilities::gather(&Runtimes::with_own_folders(self.runtimes.clone(), &self.own_folders))
    }
}

/// The figures of a release that passed its preflight.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
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
    Failed(Reason),
    /// The release could not be tried, for a reason that may pass.
    #[error("{0}")]
    Interrupted(Reason),
}

impl From<Reason> for PreflightError {
    fn from(reason: Reason) -> Self {
        Self::Failed(reason)
    }
}

/// The order to the preflight process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PreflightOrder {
    /// The folder of the release.
    pub release: PathBuf,
    pub what: PreflightKind,
    /// The most memory, in bytes.
    pub memory_bytes: u64,
    /// The most time, in seconds.
    pub seconds: u64,
}

/// The kind of a release, with the settings of its preflight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PreflightKind {
    /// The model in the folder.
    Model(ModelPreflight),
    /// The settings in the folder.
    Configuration(ConfigurationPreflight),
    /// The libraries of a runtime in the folder.
    Runtime(RuntimePreflight),
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

/// A message of the process to the daemon, one a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PreflightMessage {
    Step(String),
    Done(PreflightReport),
    /// It ended, and was not passed.
    Stopped(PreflightError),
}

/// Tries the model of the release in `folder`, whose files are plain: see [`open`]. `Err` is the reason why it must not
/// run here.
pub async fn run(
    settings: &PreflightSettings,
    folder: &Path,
    package: &Package,
    gate: &Gate,
) -> Result<PreflightReport, PreflightError> {
    let facts = settings.facts();
    requirements::check(&package.requires, &facts)?;
    let order = order(folder, settings.of_model(None, gate.golden_min), package, &facts);
    let report = watch::run(&settings.starter, &order).await?;
    same_signature(&report, package)?;
    Ok(report)
}

/// Tries any version of a model, of a release or not, whose files are plain. `Err` is the reason why it must not be
/// loaded.
pub async fn run_version(settings: &PreflightSettings, version: VersionOnDisk) -> Result<(), PreflightError> {
    let VersionOnDisk { folder, files, golden_min } = version;
    let order = order(&folder, settings.of_model(Some(files), golden_min), &Package::default(), &settings.facts());
    match watch::run(&settings.starter, &order).await {
        // A slow model is loaded anyway, and harms nothing.
        Err(PreflightError::Failed(reason)) if reason.cause == Cause::Latency => Ok(()),
        tried => tried.map(drop),
    }
}

/// Checks that this box meets the requirements of a release.
pub fn check_requirements(package: &Package, settings: &PreflightSettings) -> Result<(), Reason> {
    requirements::check(&package.requires, &settings.facts())
}

/// Returns the runtime of this name.
pub fn runtime_named(name: &ModelName) -> Option<Runtime> {
    Runtime::ALL.into_iter().find(|runtime| runtime.as_str() == name.as_str())
}

/// Tries the libraries of the release in `folder`: loads them, and then `models`, those that they would run, on their
/// golden inputs. The models' files are plain: see [`open_all`]. `Err` is the reason why they must not be used here.
pub async fn run_runtime(
    settings: &PreflightSettings,
    name: &ModelName,
    folder: &Path,
    package: &Package,
    models: Vec<LiveModel>,
) -> Result<(), PreflightError> {
    let facts = settings.facts();
    requirements::check(&package.requires, &facts)?;
    let unknown = || Reason::new(Cause::Load, format!("Ledge does not know a runtime {name}"));
    let runtime = runtime_named(name).ok_or_else(unknown)?;
    let how = RuntimePreflight { runtime, threads: settings.threads, models };
    let order = order(folder, PreflightKind::Runtime(how), package, &facts);
    watch::run(&settings.starter, &order).await.map(drop)
}

/// Decrypts the files of a model into memory, where they are encrypted, for as long as the preflight process runs.
/// `Err` is the reason why there can be no preflight now, which is not the fault of the release.
pub async fn open(folder: &Path, settings: &PreflightSettings) -> Result<Option<Arc<OpenedFolder>>, Reason> {
    let (folder, sealer) = (folder.to_owned(), settings.sealer.clone());
    let opening = tokio::task::spawn_blocking(move || {
        let found = SealedFolder::find(&folder, SealPurpose::Model, &sealer)?;
        found.as_ref().map(SealedFolder::open).transpose()
    });
    let opened =
        opening.await.map_err(|panic| Reason::new(Cause::Disk, format!("decrypting its files panicked: {panic}")))?;
    opened.map_err(|error| Reason::new(Cause::Disk, error.to_string()))
}

/// Decrypts the files of each of `models`, and points it to them.
pub async fn open_all(
    models: &mut [LiveModel],
    settings: &PreflightSettings,
) -> Result<Vec<Arc<OpenedFolder>>, Reason> {
    let mut opened = Vec::new();
    // The owner's models, whose files are apart from their folder, are never encrypted.
    for model in models.iter_mut().filter(|model| model.files == model.folder) {
        if let Some(open) = open(&model.files, settings).await? {
            (model.folder, model.files) = (open.path().to_owned(), open.path().to_owned());
            opened.push(open);
        }
    }
    Ok(opened)
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
    let order = order(folder, PreflightKind::Configuration(how), package, &facts);
    watch::run(&settings.starter, &order).await.map(drop)
}

fn order(folder: &Path, what: PreflightKind, package: &Package, facts: &HostCapabilities) -> PreflightOrder {
    let declared = package.limits.memory_mb.or(package.requires.memory_mb.map(|needed| needed.saturating_mul(2)));
    let memory_bytes = declared.map_or(facts.memory_bytes / 2, |megabytes| megabytes.saturating_mul(1 << 20));
    let seconds = package.limits.seconds.unwrap_or(DEFAULT_TIMEOUT_S).max(1);
    PreflightOrder { release: folder.to_owned(), what, memory_bytes, seconds }
}

/// Checks that the model has the signed inputs and outputs.
fn same_signature(report: &PreflightReport, package: &Package) -> Result<(), Reason> {
    for (kind, declared, found) in
        [("input", &package.inputs, &report.inputs), ("output", &package.outputs, &report.outputs)]
    {
        same_ports(kind, declared, found).map_err(|detail| Reason::new(Cause::Load, detail))?;
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

/// Interval at which the memory of the process is read.
const MEMORY_POLL_INTERVAL: Duration = Duration::from_millis(50);
