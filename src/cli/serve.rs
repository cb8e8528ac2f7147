//! `ledge serve`

use clap::Args;

use super::{Exit, Globals, Output, load_registry};
use crate::config::Loaded;
use crate::daemon::{self, Ended};
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
    let Loaded { config, left_out, .. } = globals.load()?;
    let registry = load_registry(&config)?;
    logging::init(&config.log)?;
    for mistake in left_out {
        tracing::error!(%mistake, "signed settings do not fit this box and are left out");
    }
    match daemon::run(config, registry)? {
        Ended::Stopped => Ok(Exit::Success),
        Ended::ToRestart => Err(start_anew().into()),
    }
}

/// Starts this program anew in the same process, with the same arguments, so that whoever looks after the process sees none
/// end. It returns only when that fails.
fn start_anew() -> std::io::Error {
    use std::os::unix::process::CommandExt as _;
    // By its path: after the package was upgraded it is the new program.
    let program = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    std::process::Command::new(program).args(std::env::args_os().skip(1)).exec()
}
