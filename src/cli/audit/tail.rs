//! `ledge audit tail`: the last records, and new ones as they are written.

use std::collections::VecDeque;
use std::io::Write as _;
use std::time::Duration;

use clap::Args;
use ledge_audit::layout::TILE_WIDTH;

use super::super::{Exit, GlobalArgs, Output, block_on};
use super::filter::{AuditFilterArgs, RecordFilter};
use super::logs::AuditLogArgs;
use super::records::{self, AuditLogLine, LogReader};

/// The interval between reads of the log for new records.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The arguments of `ledge audit tail`.
#[derive(Debug, Args)]
pub struct TailArgs {
    #[command(flatten)]
    pub log: AuditLogArgs,
    /// The number of records to print.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    pub lines: usize,
    /// Print new records as they are written, until interrupted. Only for this box's own log.
    #[arg(long, short = 'f', conflicts_with = "log")]
    pub follow: bool,
    #[command(flatten)]
    pub filter: AuditFilterArgs,
    /// Write the records unchanged, one line of JSON each.
    #[arg(long)]
    pub json: bool,
}

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &TailArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let filter = args.filter.resolve(globals)?;
    block_on(async {
        let found = args.log.find_files(globals).await?;
        let place = found.select(None)?;
        let log = LogReader::open(&place.files).await?;
        let (lines, mut next) = last(&log, &filter, args.lines).await?;
        for line in &lines {
            records::write(line, args.json, out)?;
        }
        if !args.follow {
            return Ok(Exit::Success);
        }
        out.flush()?;

        let (mut files, mut generation) = (place.files.clone(), place.generation);
        loop {
            // Look for a later log first: if there is one, this one is complete.
            let later = args.log.find_files(globals).await?;
            let later = later.places.into_iter().find(|place| place.generation > generation);
            next = follow(&LogReader::open(&files).await?, &filter, next, args.json, out).await?;
            out.flush()?;
            match later {
                Some(place) => (files, generation, next) = (place.files, place.generation, 0),
                None => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    })?
}

/// The last records that a filter selects, and the sequence number of the next record.
async fn last(
    log: &LogReader<'_>,
    filter: &RecordFilter,
    count: usize,
) -> anyhow::Result<(VecDeque<AuditLogLine>, u64)> {
    let (first, end) = log.range()?;
    let (mut found, mut next) = (VecDeque::new(), None);
    for index in (first..end).rev() {
        if found.len() >= count && next.is_some() {
            break;
        }
        let lines = log.bundle(index).await?.unwrap_or_default();
        next = next.or_else(|| lines.last().map(|line| line.seq + 1));
        for line in lines.into_iter().rev() {
            match &line.record {
                Some(record) if filter.matches(record) => found.push_front(line),
                Some(_) => {}
                None => records::report_damaged(line.seq),
            }
            if found.len() >= count {
                break;
            }
        }
    }
    found.drain(..found.len().saturating_sub(count));
    Ok((found, next.unwrap_or(first * TILE_WIDTH)))
}

/// Writes the records from `next` on, and returns the sequence number of the next record.
async fn follow(
    log: &LogReader<'_>,
    filter: &RecordFilter,
    mut next: u64,
    json: bool,
    out: &mut Output,
) -> anyhow::Result<u64> {
    while let Some(lines) = log.bundle(next / TILE_WIDTH).await? {
        let before = next;
        for line in lines.into_iter().filter(|line| line.seq >= before) {
            next = line.seq + 1;
            match &line.record {
                Some(record) if filter.matches(record) => records::write(&line, json, out)?,
                Some(_) => {}
                None => records::report_damaged(line.seq),
            }
        }
        if next == before || !next.is_multiple_of(TILE_WIDTH) {
            break;
        }
    }
    Ok(next)
}
