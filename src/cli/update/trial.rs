//! `ledge update trial`: the process in which the daemon tries settings. Users do not call it.

use clap::Parser as _;
use ledge_updates::preflight::{ConfigurationPreflight, PreflightRequest, child};
use ledge_updates::state::{RollbackCause, RollbackReason};

use crate::cli::{Cli, Exit};
use crate::config::ConfigSources;

/// The most mistakes in the reason of a failure, which `ledge-platform` and users read as one line.
const MISTAKES_SHOWN_MAX: usize = 3;

/// Runs the verb.
pub fn run() -> anyhow::Result<Exit> {
    let order = child::begin()?;
    child::finish(configuration(&order))?;
    Ok(Exit::Success)
}

/// Reads the daemon's configuration with the settings of the release in it.
fn configuration(order: &PreflightRequest) -> Result<(), RollbackReason> {
    let refused = |detail: String| RollbackReason::new(RollbackCause::Load, detail);
    let sources = sources(&order.how).map_err(refused)?;
    sources.try_signed(&order.release).map_err(|mistakes| {
        let shown: Vec<String> = mistakes.iter().take(MISTAKES_SHOWN_MAX).map(ToString::to_string).collect();
        let more = mistakes.len().saturating_sub(MISTAKES_SHOWN_MAX);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        refused(shown.join("; ") + &more)
    })
}

/// The sources of the daemon's configuration, from the order: this process does not inherit the daemon's environment.
fn sources(how: &ConfigurationPreflight) -> Result<ConfigSources, String> {
    let words = std::iter::once("ledge").chain(how.arguments.iter().map(String::as_str));
    let cli = Cli::try_parse_from(words).map_err(|_| "the daemon's command line cannot be read".to_owned())?;
    let variable = |name: &str| how.environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.into());
    let mut globals = cli.globals;
    globals.root = globals.root.or_else(|| variable("LEDGE_ROOT"));
    globals.config = globals.config.or_else(|| variable("LEDGE_CONFIG"));
    Ok(ConfigSources { environment: how.environment.clone(), ..globals.sources() })
}
