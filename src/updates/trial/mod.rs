//! A release tried in a process of its own, before anything of it is loaded where requests are answered.
//!
//! The process is this same program (`ledge update trial`): it limits itself, reads one order from its standard input,
//! loads and runs what it is told to, and says on its standard output how far it has come and what came of it. The daemon
//! watches its memory and its time. Whatever becomes of it, a crash included, is one [`Reason`] here and harms nothing.
//! It ends with its standard input, so it never outlives the daemon.

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
use ledge_models::repository::VersionOnDisk;
use serde::{Deserialize, Serialize};

use super::package::{DeclaredPort, Package};
use super::plan::Gate;
use super::state::{Cause, Reason};
pub use model::{LiveModel, ModelTrial, RuntimeTrial};
pub use requirements::Facts;
pub use watch::fuzz_trial_report;

/// The time of a trial whose package says nothing, in seconds.
const DEFAULT_SECONDS: u64 = 120;

/// What every trial on this box starts from.
#[derive(Debug, Clone)]
pub struct TrialSettings {
    /// The program to start; this same one by default.
    pub program: PathBuf,
    /// The folder with the runtimes' shared libraries.
    pub runtimes: PathBuf,
    /// The folders of those runtimes that came as releases, by their names.
    pub own_folders: BTreeMap<String, PathBuf>,
    /// How many cores it may use; 0 is every physical core that this process may use.
    pub threads: usize,
    /// Whether a model that several runtimes accept is tried in each, as the daemon does when it measures them.
    pub measure: bool,
    /// The deadline of a model whose config names none.
    pub timeout: Duration,
    /// Opens what is sealed, here: the process of the trial gets plain files in memory, and no key.
    pub sealer: Sealer,
}

impl TrialSettings {
    /// For the runtimes in this folder, and models that are to answer within `timeout`.
    pub fn new(runtimes: PathBuf, timeout: Duration) -> Self {
        // Through the kernel: the file may have been replaced since this program was started.
        let own_folders = BTreeMap::new();
        let (threads, measure, sealer) = (1, true, Sealer::none());
        Self { program: "/proc/self/exe".into(), runtimes, own_folders, threads, measure, timeout, sealer }
    }

    fn of_model(&self, files: Option<PathBuf>, golden_min: Option<f64>) -> What {
        let Self { runtimes, own_folders, threads, measure, timeout, .. } = self.clone();
        What::Model(ModelTrial { runtimes, own_folders, threads, measure, files, golden_min, timeout })
    }

    fn facts(&self) -> Facts {
        Facts::gather(&Runtimes::with_own_folders(self.runtimes.clone(), &self.own_folders))
    }
}

/// How a release did that passed its trial.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TrialReport {
    /// The runtime that would be taken.
    pub runtime: String,
    /// The time to load it, warmed up, in milliseconds.
    pub load_ms: u64,
    pub golden_right: u64,
    pub golden_total: u64,
    /// How the first wrong answer was wrong.
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

/// Why a trial was not passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum TrialError {
    /// The release is at fault, and would be again.
    #[error("{0}")]
    Failed(Reason),
    /// It could not be tried, for a reason that may pass.
    #[error("{0}")]
    Interrupted(Reason),
}

impl From<Reason> for TrialError {
    fn from(reason: Reason) -> Self {
        Self::Failed(reason)
    }
}

/// What the process is asked to try.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// The folder of the release.
    pub release: PathBuf,
    pub what: What,
    /// The most memory, in bytes.
    pub memory_bytes: u64,
    /// The most time, in seconds.
    pub seconds: u64,
}

/// What is tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// The model in the folder.
    Model(ModelTrial),
    /// The settings in the folder.
    Configuration(ConfigurationTrial),
    /// The libraries of a runtime in the folder.
    Runtime(RuntimeTrial),
}

/// How settings are tried: as this daemon would read its configuration with them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationTrial {
    /// The daemon's command line, without the program.
    pub arguments: Vec<String>,
    /// Its variables that start with `LEDGE_`.
    pub environment: Vec<(String, String)>,
}

impl ConfigurationTrial {
    /// As this process was started.
    pub fn of_this_process() -> Self {
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        let variables = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
        Self {
            arguments: std::env::args_os().skip(1).map(text).collect(),
            environment: variables.filter(|(name, _)| names::is_setting(name)).collect(),
        }
    }
}

/// A line of what the process says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    Step(String),
    Done(TrialReport),
    /// It is done, and was not passed.
    Stopped(TrialError),
}

/// Tries the model of the release in `folder`, whose files are plain: see [`open`]. `Err` says why it must not run here.
pub async fn run(
    settings: &TrialSettings,
    folder: &Path,
    package: &Package,
    gate: &Gate,
) -> Result<TrialReport, TrialError> {
    let facts = settings.facts();
    requirements::check(&package.requires, &facts)?;
    let order = order(folder, settings.of_model(None, gate.golden_min), package, &facts);
    let report = watch::run(&settings.program, &order).await?;
    same_signature(&report, package)?;
    Ok(report)
}

/// Tries a version of a model, whatever brought it here, whose files are plain. `Err` says why it must not be loaded.
pub async fn run_version(settings: &TrialSettings, version: VersionOnDisk) -> Result<(), TrialError> {
    let VersionOnDisk { folder, files, golden_min } = version;
    let order = order(&folder, settings.of_model(Some(files), golden_min), &Package::default(), &settings.facts());
    match watch::run(&settings.program, &order).await {
        // A slow model is loaded all the same, and harms nothing.
        Err(TrialError::Failed(reason)) if reason.cause == Cause::Latency => Ok(()),
        tried => tried.map(drop),
    }
}

/// Whether this box is what a release asks for.
pub fn check_requirements(package: &Package, settings: &TrialSettings) -> Result<(), Reason> {
    requirements::check(&package.requires, &settings.facts())
}

/// The runtime that a release of libraries is of, by its name.
pub fn runtime_named(name: &ModelName) -> Option<Runtime> {
    Runtime::ALL.into_iter().find(|runtime| runtime.as_str() == name.as_str())
}

/// Tries the libraries of the release in `folder`: they are loaded, and then `models`, those that they would run, on their
/// golden inputs. The models' files are plain: see [`open_all`]. `Err` says why they must not be used here.
pub async fn run_runtime(
    settings: &TrialSettings,
    name: &ModelName,
    folder: &Path,
    package: &Package,
    models: Vec<LiveModel>,
) -> Result<(), TrialError> {
    let facts = settings.facts();
    requirements::check(&package.requires, &facts)?;
    let unknown = || Reason::new(Cause::Load, format!("{name} is no runtime that Ledge knows"));
    let runtime = runtime_named(name).ok_or_else(unknown)?;
    let how = RuntimeTrial { runtime, threads: settings.threads, models };
    let order = order(folder, What::Runtime(how), package, &facts);
    watch::run(&settings.program, &order).await.map(drop)
}

/// The files of a model in memory, where they are sealed: as long as the process of the trial runs. `Err` says why there can
/// be no trial now, which is no fault of the release.
pub async fn open(folder: &Path, settings: &TrialSettings) -> Result<Option<Arc<OpenedFolder>>, Reason> {
    let (folder, sealer) = (folder.to_owned(), settings.sealer.clone());
    let opening = tokio::task::spawn_blocking(move || {
        let found = SealedFolder::find(&folder, SealPurpose::Model, &sealer)?;
        found.as_ref().map(SealedFolder::open).transpose()
    });
    let opened = opening.await.map_err(|panic| Reason::new(Cause::Disk, format!("opening it panicked: {panic}")))?;
    opened.map_err(|error| Reason::new(Cause::Disk, error.to_string()))
}

/// The same for every one of `models`, which are then where it was opened.
pub async fn open_all(models: &mut [LiveModel], settings: &TrialSettings) -> Result<Vec<Arc<OpenedFolder>>, Reason> {
    let mut opened = Vec::new();
    // The owner's, whose files lie apart from its folder, are never sealed.
    for model in models.iter_mut().filter(|model| model.files == model.folder) {
        if let Some(open) = open(&model.files, settings).await? {
            (model.folder, model.files) = (open.path().to_owned(), open.path().to_owned());
            opened.push(open);
        }
    }
    Ok(opened)
}

/// Tries the settings of the release in `folder`. `Err` says why they do not fit this box.
pub async fn run_configuration(
    settings: &TrialSettings,
    folder: &Path,
    package: &Package,
    how: ConfigurationTrial,
) -> Result<(), TrialError> {
    let facts = settings.facts();
    requirements::check(&package.requires, &facts)?;
    let order = order(folder, What::Configuration(how), package, &facts);
    watch::run(&settings.program, &order).await.map(drop)
}

fn order(folder: &Path, what: What, package: &Package, facts: &Facts) -> Order {
    let declared = package.limits.memory_mb.or(package.requires.memory_mb.map(|needed| needed.saturating_mul(2)));
    let memory_bytes = declared.map_or(facts.memory_bytes / 2, |megabytes| megabytes.saturating_mul(1 << 20));
    let seconds = package.limits.seconds.unwrap_or(DEFAULT_SECONDS).max(1);
    Order { release: folder.to_owned(), what, memory_bytes, seconds }
}

/// Whether the model takes and gives what was signed.
fn same_signature(report: &TrialReport, package: &Package) -> Result<(), Reason> {
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
                "{kind} {:?} is {} {:?}, signed was {} {:?}",
                port.name, found.datatype, found.shape, port.datatype, port.shape
            ));
        }
    }
    match found.iter().find(|found| declared.iter().all(|port| port.name != found.name)) {
        Some(other) => Err(format!("the model has an {kind} {:?} that was not signed", other.name)),
        None => Ok(()),
    }
}

/// How often the memory of the process is looked at.
const LOOK: Duration = Duration::from_millis(50);
