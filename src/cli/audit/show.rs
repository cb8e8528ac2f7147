//! `ledge audit show`: records, the oldest first.

use std::io::Write as _;

use clap::Args;

use super::super::{Exit, Globals, Output, block_on};
use super::filter::FilterArgs;
use super::place::LogArgs;
use super::records::{self, Records};

/// The arguments of `ledge audit show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub log: LogArgs,
    /// Which of the logs of the box [default: the last].
    #[arg(long, value_name = "N")]
    pub generation: Option<u32>,
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Write the records as they are, a line of JSON each.
    #[arg(long)]
    pub json: bool,
}

/// Runs the verb.
pub fn run(globals: &Globals, args: &ShowArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let filter = args.filter.look_up(globals)?;
    block_on(async {
        let found = args.log.find_files(globals).await?;
        let place = found.one(args.generation)?;
        let log = Records::open(&place.files).await?;
        let went_back = log.each(&filter, |line| records::write(&line, args.json, out)).await?;
        let is_of_time = args.filter.since.is_some() || args.filter.until.is_some();
        if let Some(seq) = went_back.filter(|_| is_of_time && !filter.scan) {
            let _ = writeln!(
                std::io::stderr(),
                "The clock of the box went back at record {seq}: more records of that time may lie elsewhere (--scan)."
            );
        }
        Ok(Exit::Success)
    })?
}
