//! `ledge serve`

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use ledge_base::sys;
use ledge_base::telemetry::logging;
use ledge_isolation::{SPAWNER_VARIABLE, SpawnerProcess};
use ledge_listener::{Handover, LISTENERS_VARIABLE};
use rustix::process::DumpableBehavior;

use super::{BadConfiguration, Exit, GlobalArgs, Output};
use crate::config::LoadedConfig;
use crate::daemon::own_sandbox::DaemonSandbox;
use crate::daemon::{self, DaemonEnd};

/// The arguments of `ledge serve`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {}

const EXAMPLES: &str = "\
Examples:
  ledge serve --root .ledge
  ledge serve --config /etc/ledge/ledge.toml --set log.level=debug";

/// Runs the verb: the daemon, until it is stopped.
pub fn run(globals: &GlobalArgs, _: &ServeArgs, _: &mut Output) -> anyhow::Result<Exit> {
    // The bodies of calls come and go. Processes of models, which this one does not start itself, keep theirs.
    sys::return_large_blocks();
    // The memory holds keys and the data of callers: disable core files, and access by other processes of the same
    // user. A program that this one starts is unaffected.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // First of all: the spawner must not inherit secrets that this process reads, nor the restrictions that it puts on
    // itself.
    let spawner = SpawnerProcess::inherited_or_new();
    let handover = Handover::inherited();
    let (loaded, registry) = globals.sources().load_with_views().map_err(BadConfiguration)?;
    if let Some(closed) = loaded.lets_nobody_in() {
        return Err(BadConfiguration(vec![closed]).into());
    }
    let warnings = loaded.warnings();
    let LoadedConfig { config, rejected_signed, .. } = loaded;
    config.membership.open_private_keys();
    logging::init(&config.log)?;

    for warning in warnings {
        tracing::warn!(name: "setting.ignored", %warning, "a setting has no effect here, or not the one that it names");
    }
    for mistake in rejected_signed {
        tracing::error!(%mistake, "a signed setting is not valid on this box and is ignored");
    }

    let sandbox = DaemonSandbox::apply(spawner)?;
    match daemon::run(config, registry, &handover, &sandbox)? {
        DaemonEnd::Stopped => Ok(Exit::Success),
        DaemonEnd::ToRestart => Err(restart_in_place(&handover, &sandbox).into()),
    }
}

/// Replaces this process by a new start of the program, with the same arguments, listening sockets and spawner, so that
/// the process id stays and the service manager sees no end. Returns only when that fails.
fn restart_in_place(handover: &Handover, sandbox: &DaemonSandbox) -> std::io::Error {
    use std::os::unix::process::CommandExt as _;
    let listeners = handover.leave();
    let spawner = match sandbox.leave() {
        Ok(spawner) => spawner,
        Err(error) => return error,
    };
    let start = |program: &Path| {
        let mut command = Command::new(program);
        command.args(std::env::args_os().skip(1)).env(LISTENERS_VARIABLE, &listeners);
        match &spawner {
            Some(spawner) => command.env(SPAWNER_VARIABLE, spawner),
            // One of a former restart.
            None => command.env_remove(SPAWNER_VARIABLE),
        };
        command.exec()
    };
    // Start it by its path: after an upgrade of the package that is the new program. If that fails, start the file that
    // this process runs.
    if let Some(program) = std::env::current_exe().ok().and_then(|program| program.to_str().map(program_path)) {
        let error = start(&program);
        tracing::warn!(
            program = %program.display(), %error,
            "cannot restart the program by its path; restarting the file of this process instead"
        );
    }
    start(Path::new("/proc/self/exe"))
}

/// The path of a program without the ` (deleted)` that the kernel appends when the file was replaced.
fn program_path(program: &str) -> PathBuf {
    program.strip_suffix(" (deleted)").unwrap_or(program).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_program_is_started_by_its_path() {
        assert_eq!(program_path("/usr/bin/ledge (deleted)"), Path::new("/usr/bin/ledge"));
        assert_eq!(program_path("/usr/bin/ledge"), Path::new("/usr/bin/ledge"));
    }
}
