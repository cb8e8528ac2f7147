//! The preflight: a trial run of a release before it is loaded to answer requests.
//!
//! A model, or every model for other libraries, is loaded and run in a separate sandboxed process, as the daemon's
//! models are with `runtimes.isolation = own`. Its memory and its time are watched. Settings are read by this same
//! program (`ledge update trial`), which limits itself, reads one order from its standard input, and reports its result
//! on its standard output. Any failure, a crash included, is one [`RollbackReason`] here and harms nothing. Both
//! processes end with the daemon.

pub mod child;
mod error;
mod limits;
mod order;
mod requirements;
mod settings;
mod trial;
mod watch;

use std::path::Path;
use std::time::Duration;

use ledge_base::names::ModelName;
use ledge_engine::Runtimes;
use ledge_engine::backend::Runtime;

use super::package::{DeclaredPort, Package};
use super::plan::RolloutGate;
use super::state::{RollbackCause, RollbackReason};
pub use error::PreflightError;
pub use limits::TrialLimits;
pub use order::ConfigurationPreflight;
pub use order::{PreflightRequest, ReleaseTrialFigures};
pub use requirements::HostCapabilities;
pub use settings::PreflightSettings;
pub use trial::LiveModel;
use trial::PreflightTrial;
#[cfg(any(test, feature = "fuzzing"))]
pub use watch::fuzz_preflight_report;

/// Tries the model of the release in `folder`. `Err` is the reason why it must not run here.
pub async fn run(
    settings: &PreflightSettings,
    folder: &Path,
    package: &Package,
    gate: &RolloutGate,
) -> Result<ReleaseTrialFigures, PreflightError> {
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
    let order = PreflightRequest { release: folder.to_owned(), how, limits: TrialLimits::of(package, &facts) };
    watch::run(&settings.children.starter, &order).await
}

/// Checks that the model has the signed inputs and outputs.
fn same_signature(report: &ReleaseTrialFigures, package: &Package) -> Result<(), RollbackReason> {
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
