//! `ledge report`: the report of a month.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use ledge_base::clock::TimeZone;
use ledge_base::month::Month;
use ledge_base::{clock, durable};
use ledge_report::page::page;
use ledge_report::read;

use super::{Exit, GlobalArgs, Output, block_on};
use crate::monthly_report;

/// The arguments of `ledge report`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ReportArgs {
    /// The month, in UTC [default: the last complete one].
    #[arg(long, value_name = "YYYY-MM")]
    pub month: Option<Month>,
    /// The format.
    #[arg(long, value_enum, default_value_t = ReportFormat::Html)]
    pub format: ReportFormat,
    /// The file to write the report to [default: standard output].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// The format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// A page that prints on A4, complete in itself.
    Html,
    /// The same as JSON, with the command that prints the records of each number.
    Json,
}

const EXAMPLES: &str = "\
Examples:
  ledge report --month 2026-11 --out 2026-11.html
  ledge report --month 2026-11 --format json

Run it on the box as root or as the user ledge, who may read the audit log. The exit code is 3, 4 or 5 when the log is not
whole, as for `ledge audit verify`; the report says so, too.";

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &ReportArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let now_ms = clock::unix_millis();
    let month = args.month.unwrap_or_else(|| Month::of(&TimeZone::utc(), now_ms).previous());
    let source = monthly_report::source(&globals.load_config()?, month)?;
    let report = block_on(read::report(&source, month, now_ms))??;
    let content = match args.format {
        ReportFormat::Html => page(&report).into_bytes(),
        ReportFormat::Json => {
            let mut content = serde_json::to_vec_pretty(&report)?;
            content.push(b'\n');
            content
        }
    };
    match &args.out {
        // Private: it names callers.
        Some(path) => {
            durable::replace_private(path, &content)
                .with_context(|| format!("{} cannot be written", path.display()))?;
        }
        None => out.write_all(&content)?,
    }
    let worst = report.coverage.logs.iter().map(|log| match log.verdict {
        "whole" => Exit::Success,
        "gap" => Exit::Gap,
        "fork" => Exit::Fork,
        _ => Exit::Tampered,
    });
    let order = [Exit::Tampered, Exit::Fork, Exit::Gap];
    let found: Vec<Exit> = worst.collect();
    Ok(order.into_iter().find(|exit| found.contains(exit)).unwrap_or(Exit::Success))
}
