//! `ledge capacity`: how much more work the box of a running daemon can take, and what runs out first.

use std::io::Write as _;

use clap::Args;
use ledge_capacity::report::CapacityReport;

use super::features::daemon::DaemonClient;
use super::server::ServerArgs;
use super::{Exit, GlobalArgs, Output, block_on};

/// The arguments of `ledge capacity`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CapacityArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    /// Write the answer of the server, in JSON.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ledge capacity
  ledge capacity --json | jq '.work[] | {model, now, headroom, first}'";

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &CapacityArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let mut daemon = DaemonClient::new(globals, &args.server)?;
    let report: CapacityReport = block_on(daemon.get("/capacity"))??;
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
        return Ok(Exit::Success);
    }
    for line in &report.words {
        // The server is not necessarily trusted, and its text must not move the cursor.
        writeln!(out, "{}", line.chars().filter(|c| !c.is_control()).collect::<String>())?;
    }
    Ok(Exit::Success)
}
