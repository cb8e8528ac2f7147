//! `ledge audit show`: records, the oldest first.

use std::io::Write as _;

use clap::Args;

use super::super::{Exit, GlobalArgs, Output, block_on};
use super::filter::AuditFilterArgs;
use super::logs::AuditLogArgs;
use super::records::{self, LogReader};

/// The arguments of `ledge audit show`.
#[derive(Debug, Args)]
pub struct AuditShowArgs {
    #[command(flatten)]
    pub log: AuditLogArgs,
    /// The number of the log, among those of the box [default: the last].
    #[arg(long, value_name = "N")]
    pub generation: Option<u32>,
    #[command(flatten)]
    pub filter: AuditFilterArgs,
    /// Write the records unchanged, one line of JSON each.
    #[arg(long)]
    pub json: bool,
}

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &AuditShowArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let filter = args.filter.resolve(globals)?;
    block_on(async {
        let found = args.log.find_files(globals).await?;
        let place = found.select(args.generation)?;
        let log = LogReader::open(&place.files).await?;
        let went_back = log.for_each(&filter, |line| records::write(&line, args.json, out)).await?;
        let has_time = args.filter.since.is_some() || args.filter.until.is_some();
        if let Some(seq) = went_back.filter(|_| has_time && !filter.scan) {
            let _ = writeln!(
                std::io::stderr(),
                "The clock of the box went back at record {seq}, so records may be missing here: repeat the command \
                 with --scan."
            );
        }
        Ok(Exit::Success)
    })?
}
