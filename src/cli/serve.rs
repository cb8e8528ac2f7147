//! `ledge serve`

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use ledge_base::telemetry::logging;
use ledge_http::{Handover, LISTENERS_VARIABLE};
use rustix::process::DumpableBehavior;

use super::{BadConfiguration, Exit, Globals, Output};
use crate::config::Loaded;
use crate::daemon::{self, Ended};

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
    // The memory has keys and what people sent: no core file, and nobody of the same user looks into it. A program that
    // this one starts is as any other again.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let handover = Handover::taken();
    let (loaded, registry) = globals.sources().load_with_views().map_err(BadConfiguration)?;
    if let Some(closed) = loaded.lets_nobody_in() {
        return Err(BadConfiguration(vec![closed]).into());
    }
    let warnings = loaded.warnings();
    let Loaded { config, left_out, .. } = loaded;
    logging::init(&config.log)?;
    for warning in warnings {
        tracing::warn!(%warning, "the configuration names what is not there");
    }
    for mistake in left_out {
        tracing::error!(%mistake, "signed settings do not fit this box and are left out");
    }
    match daemon::run(config, registry, &handover)? {
        Ended::Stopped => Ok(Exit::Success),
        Ended::ToRestart => Err(start_anew(&handover).into()),
    }
}

/// Starts this program anew in the same process, with the same arguments and listening sockets, so that whoever looks after
/// the process sees none end. It returns only when that fails.
fn start_anew(handover: &Handover) -> std::io::Error {
    use std::os::unix::process::CommandExt as _;
    let listeners = handover.leave();
    let start = |program: &Path| {
        Command::new(program).args(std::env::args_os().skip(1)).env(LISTENERS_VARIABLE, &listeners).exec()
    };
    // By its path: after the package was upgraded it is the new program. Without one, the file that this process runs.
    if let Some(program) = std::env::current_exe().ok().and_then(|program| program.to_str().map(replaced)) {
        let error = start(&program);
        tracing::warn!(program = %program.display(), %error, "the program cannot be started by its path");
    }
    start(Path::new("/proc/self/exe"))
}

/// The path of a program whose file may have been replaced: the kernel says so behind it.
fn replaced(program: &str) -> PathBuf {
    program.strip_suffix(" (deleted)").unwrap_or(program).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_replaced_is_started_in_its_new_form() {
        assert_eq!(replaced("/usr/bin/ledge (deleted)"), Path::new("/usr/bin/ledge"));
        assert_eq!(replaced("/usr/bin/ledge"), Path::new("/usr/bin/ledge"));
    }
}
