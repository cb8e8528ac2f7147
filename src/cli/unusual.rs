//! `ledge unusual`: what a running daemon finds unusual, and "this was normal".

use std::io::Write as _;

use anyhow::bail;
use clap::{Args, Subcommand};
use ledge_history::unusual::http::{EventDocument, SeriesDocument, UnusualDocument};
use serde_json::json;

use super::features::daemon::{DaemonClient, message};
use super::server::ServerArgs;
use super::{Exit, GlobalArgs, Output, block_on};

/// The ended events that are written as text.
const ENDED_SHOWN_MAX: usize = 10;

/// The arguments of `ledge unusual`.
#[derive(Debug, Args)]
pub struct UnusualArgs {
    /// Write JSON instead of text.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(subcommand)]
    pub command: Option<UnusualCommand>,
}

/// The verbs below `ledge unusual`.
#[derive(Debug, Subcommand)]
pub enum UnusualCommand {
    /// Say that what was reported of a series was normal: the same is not reported again. It is recorded in the audit log.
    Normal {
        /// The series: box, or model:NAME.
        #[arg(value_name = "SERIES")]
        series: String,
        /// The column, such as disk_free_bytes.
        #[arg(value_name = "COLUMN")]
        column: String,
    },
}

/// Runs the verb. Exit code 1 while something is unusual.
pub fn run(globals: &GlobalArgs, args: &UnusualArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let mut daemon = DaemonClient::new(globals, &args.server)?;
    block_on(async {
        if let Some(UnusualCommand::Normal { series, column }) = &args.command {
            let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":_.-".contains(&byte));
            if !is_word(series) || !is_word(column) {
                bail!("a series is `box` or `model:NAME`, and a column has a-z and _: see `ledge unusual`");
            }
            let answer = daemon.try_post(&format!("/unusual/{series}/{column}/normal"), &json!({})).await?;
            if answer.status != 200 {
                bail!("{}", message(answer.status, &answer.body));
            }
            writeln!(out, "{column} of {series}: what was reported counts as normal.")?;
            return Ok(Exit::Success);
        }
        let document: UnusualDocument = daemon.get("/unusual").await?;
        if args.json {
            writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
        } else {
            show(&document, out)?;
        }
        let is_unusual = document.series.iter().any(|series| series.state == "unusual");
        Ok(if is_unusual { Exit::Failure } else { Exit::Success })
    })?
}

fn show(document: &UnusualDocument, out: &mut Output) -> std::io::Result<()> {
    if document.series.is_empty() {
        return writeln!(
            out,
            "nothing is watched yet (history.unusual_alarms_per_week = {})",
            document.alarms_per_week
        );
    }
    for series in &document.series {
        let SeriesDocument { series: name, column, state, needed_minutes, band, text, bands: _ } = series;
        let usual = band.map_or_else(String::new, |band| format!("usual is {:.4} to {:.4}", band.low, band.high));
        let told = match text {
            Some(text) => text.clone(),
            None if *needed_minutes > 0 => format!("{needed_minutes} more minutes are needed"),
            None => usual,
        };
        writeln!(out, "{name:<20} {column:<24} {state:<9} {told}")?;
    }
    let ended = document.events.iter().filter(|event| event.ended.is_some()).take(ENDED_SHOWN_MAX);
    for (at, event) in ended.enumerate() {
        if at == 0 {
            writeln!(out, "\nThe last events that ended:")?;
        }
        let EventDocument { began, ended, end, text, .. } = event;
        let (ended, end) = (ended.as_deref().unwrap_or_default(), end.as_deref().unwrap_or_default());
        writeln!(out, "{began} to {ended} ({end}): {text}")?;
    }
    Ok(())
}
