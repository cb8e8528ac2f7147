//! `ledge audit verify`: checks that logs are complete and unchanged, and reports each problem with its place.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use ledge_audit::key::SignedCheckpoint;
use ledge_audit::verify::findings::LogFindingKind;
use ledge_audit::verify::{self, LogVerificationReport};
use ledge_base::clock;
use serde_json::json;

use super::super::{Exit, GlobalArgs, Output, block_on};
use super::logs::AuditLogArgs;

/// The arguments of `ledge audit verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    pub log: AuditLogArgs,
    /// An earlier checkpoint of the log. The log must contain it, so records that were removed or rewritten since are
    /// found.
    ///
    /// Keep the checkpoint of each verification for the next one, out of reach of whoever holds the log.
    #[arg(long, value_name = "CHECKPOINT")]
    pub from: Option<PathBuf>,
    /// Write JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &VerifyArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let (reports, key_from) = block_on(async {
        let found = args.log.find(globals).await?;
        let earlier = args.from.as_ref().map(|path| {
            let note = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
            let keys = found.places.iter().flat_map(|place| &place.keys);
            let opened = keys.map(|key| SignedCheckpoint::open(&note, key)).reduce(Result::or);
            let opened = opened.context("there is no verifier key for this log")?;
            opened.with_context(|| format!("{} is not an earlier checkpoint of this box", path.display()))
        });
        let reports = verify::verify(&found.places, found.scope, earlier.transpose()?.as_ref()).await?;
        Ok::<_, anyhow::Error>((reports, found.key_from))
    })??;

    let verdict = reports.iter().filter_map(LogVerificationReport::verdict).max();
    if args.json {
        let verdict = verdict.map_or("whole", LogFindingKind::name);
        let document = json!({ "verdict": verdict, "key_from": key_from, "logs": reports });
        writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
    } else {
        for report in &reports {
            write_report(report, &key_from, out)?;
        }
        writeln!(out, "A log cannot show events that were never written to it.")?;
    }
    Ok(match verdict {
        None => Exit::Success,
        Some(LogFindingKind::Gap) => Exit::Gap,
        Some(LogFindingKind::Fork) => Exit::Fork,
        Some(LogFindingKind::Tampered) => Exit::Tampered,
    })
}

fn write_report(report: &LogVerificationReport, key_from: &str, out: &mut Output) -> anyhow::Result<()> {
    let LogVerificationReport { size, unsigned, summary, .. } = report;
    writeln!(out, "{}", report.origin.as_deref().unwrap_or(&report.place))?;
    let mut line = |name: &str, text: &str| writeln!(out, "  {name:<10} {text}");
    line("place", &report.place)?;
    if let Some(key) = &report.verifier_key {
        line("key", &format!("{key} ({key_from})"))?;
    }
    if let Some(root) = &report.root {
        line("head", &format!("{size} records, root {root}"))?;
    }
    if *unsigned > 0 {
        line("unsigned", &format!("{unsigned} records after the head; only their form was checked"))?;
    }
    if let (Some(since), Some(until)) = (summary.since, summary.until) {
        line("time", &format!("{} to {}", clock::rfc3339(since.0), clock::rfc3339(until.0)))?;
    }
    if !summary.actions.is_empty() {
        let counts: Vec<_> = summary.actions.iter().map(|(action, count)| format!("{action} {count}")).collect();
        line("records", &counts.join(", "))?;
    }
    if report.first > 0 {
        let first = report.first;
        line(
            "pruned",
            &format!("records 0 to {} are no longer on this box; their hashes lead to the root", first - 1),
        )?;
    }

    if summary.lost_calls > 0 || summary.lost_events > 0 {
        let (calls, events) = (summary.lost_calls, summary.lost_events);
        line(
            "lost",
            &format!("{calls} inference calls and {events} other events were lost before they became records:"),
        )?;
        for lost in &summary.lost {
            let (seq, at) = (lost.seq, clock::rfc3339(lost.ts.0));
            line("", &format!("record {seq}, {at}: {} calls, {} events ({})", lost.calls, lost.events, lost.cause))?;
        }
    }

    if let Some(size) = report.contains {
        line("contains", &format!("the earlier checkpoint, of {size} records"))?;
    }
    for finding in &report.findings {
        let at = finding.seq.map(|seq| format!("record {seq}: ")).unwrap_or_default();
        line(&finding.wrong.name().to_uppercase(), &format!("{at}{}", finding.what))?;
    }
    match (report.findings.is_empty(), report.more) {
        (true, _) => line("whole", "every record is the one that was signed")?,
        (false, 0) => {}
        (false, more) => line("", &format!("and {more} more of these"))?,
    }
    writeln!(out)?;
    Ok(())
}
