//! `ledge health`: asks whether the daemon answers, for the health check of a container and for scripts.

use std::io::Write as _;

use anyhow::bail;
use clap::Args;

use super::features::daemon::message;
use super::server::{self, ServerArgs};
use super::{Exit, GlobalArgs, Output, block_on};

/// The arguments of `ledge health`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct HealthArgs {
    /// Ask whether it is ready: every model that it served before serves again or has failed, and one serves.
    #[arg(long)]
    pub ready: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

const EXAMPLES: &str = "\
Examples:
  ledge health                                the server of this box answers
  until ledge health --ready; do sleep 1; done";

/// Runs the verb. The exit code is 1 when the daemon does not answer, or is not ready.
pub fn run(globals: &GlobalArgs, args: &HealthArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let address = args.server.address(globals)?;
    let state = if args.ready { "ready" } else { "live" };
    let answer = block_on(server::get(&address, &format!("/v2/health/{state}")))??;
    if answer.status != 200 {
        bail!("{}: {}", address.url, message(answer.status, &answer.body));
    }
    writeln!(out, "{state}")?;
    Ok(Exit::Success)
}
