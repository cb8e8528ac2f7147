//! `ledge audit egress`: the data that can leave this box, and the amounts that did.

use std::io::Write as _;

use clap::Args;

use super::super::{Exit, GlobalArgs, Output};
use crate::egress_report::EgressReport;

/// The arguments of `ledge audit egress`.
#[derive(Debug, Args)]
pub struct EgressArgs {
    /// Write JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &EgressArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let report = EgressReport::read(&globals.load_config()?);
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &report)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", report.text())?;
    }
    match report.error {
        None => Ok(Exit::Success),
        Some(error) => Err(anyhow::Error::msg(error)),
    }
}
