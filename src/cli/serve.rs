//! `ledge serve`

use clap::Args;

use super::{Exit, Globals, Output, load_registry};
use crate::daemon;
use crate::telemetry::logging;

/// The arguments of `ledge serve`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {}

const EXAMPLES: &str = "\
Examples:
  ledge serve --root .ledge
  ledge serve --config /etc/ledge/ledge.toml --set log.level=debug";

/// Runs the verb: the daemon, until it is told to stop.
pub fn run(globals: &Globals, _: &ServeArgs, _: &mut Output) -> anyhow::Result<Exit> {
    let config = globals.load_config()?;
    let registry = load_registry(&config)?;
    logging::init(&config.log)?;
    daemon::run(config, registry)?;
    Ok(Exit::Success)
}
