//! `ledge capacity`: how much more work the box of a running daemon can take, and what runs out first.

use std::io::Write as _;

use anyhow::{Context as _, bail};
use clap::Args;
use ledge_capacity::report::CapacityReport;

use super::features::daemon::message;
use super::server::{self, ServerArgs};
use super::{Exit, GlobalArgs, Output, block_on};

/// The arguments of `ledge capacity`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CapacityArgs {
    /// The server to ask, for example http://127.0.0.1:8000 or unix:.ledge/ledge.sock [default: the Unix socket of the
    /// configuration, or its first address].
    #[arg(long)]
    pub url: Option<String>,
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
    let address = args.server.find(globals, args.url.as_deref())?;
    let answer = block_on(server::get(&address, "/capacity"))??;
    if answer.status != 200 {
        bail!("{}: {}", address.url, message(answer.status, &answer.body));
    }
    let report: CapacityReport =
        serde_json::from_slice(&answer.body).with_context(|| format!("{} answers something else", address.url))?;
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
