//! `ledge update trial`: the process in which the daemon tries a release. Not for people.

use clap::Parser as _;
use ledge_updates::preflight::{
    ConfigurationPreflight, PreflightError, PreflightKind, PreflightOrder, PreflightReport, child, model,
};
use ledge_updates::state::{Cause, Reason};

use crate::cli::{Cli, Exit, block_on};
use crate::config::Sources;

/// So many mistakes are told; `ledge-platform` and people read one line.
const TOLD: usize = 3;

/// Runs the verb.
pub fn run() -> anyhow::Result<Exit> {
    let order = child::begin()?;
    let outcome = match &order.what {
        PreflightKind::Model(how) => block_on(model::run(&order, how))??,
        PreflightKind::Configuration(how) => configuration(&order, how).map_err(PreflightError::Failed),
        PreflightKind::Runtime(how) => block_on(model::run_runtime(&order, how))??,
    };
    child::finish(outcome)?;
    Ok(Exit::Success)
}

/// Reads the daemon's configuration with the settings of the release in it.
fn configuration(order: &PreflightOrder, how: &ConfigurationPreflight) -> Result<PreflightReport, Reason> {
    let refused = |detail: String| Reason::new(Cause::Load, detail);
    let sources = sources(how).map_err(refused)?;
    sources.try_signed(&order.release).map(|()| PreflightReport::default()).map_err(|mistakes| {
        let told: Vec<String> = mistakes.iter().take(TOLD).map(ToString::to_string).collect();
        let more = mistakes.len().saturating_sub(TOLD);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        refused(told.join("; ") + &more)
    })
}

/// What the daemon reads its configuration from: the environment of this process has nothing of it.
fn sources(how: &ConfigurationPreflight) -> Result<Sources, String> {
    let words = std::iter::once("ledge").chain(how.arguments.iter().map(String::as_str));
    let cli = Cli::try_parse_from(words).map_err(|_| "the daemon's command line cannot be read".to_owned())?;
    let variable = |name: &str| how.environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.into());
    let mut globals = cli.globals;
    globals.root = globals.root.or_else(|| variable("LEDGE_ROOT"));
    globals.config = globals.config.or_else(|| variable("LEDGE_CONFIG"));
    Ok(Sources { environment: how.environment.clone(), ..globals.sources() })
}
