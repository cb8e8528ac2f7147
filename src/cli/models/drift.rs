//! `ledge models drift`: the watch of a running daemon on what a model gets and gives.

use std::io::Write;

use anyhow::bail;
use clap::Args;
use ledge_base::names::ModelName;
use ledge_drift::http::{DriftDocument, VersionDocument};
use serde_json::json;

use crate::cli::features::daemon::{DaemonClient, message};
use crate::cli::server::ServerArgs;
use crate::cli::{Exit, GlobalArgs, Output};

/// The arguments of `ledge models drift`.
#[derive(Debug, Args)]
pub struct DriftArgs {
    /// The model, as the daemon serves it.
    model: ModelName,
    /// Make the present window the reference: what calls send now is the new normal. It is recorded in the audit log.
    #[arg(long)]
    accept: bool,
    /// Write JSON instead of text.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Shows the watch on a model, or accepts its present window. Exit code 1 while it drifts.
pub async fn run(globals: &GlobalArgs, args: &DriftArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let mut daemon = DaemonClient::new(globals, &args.server)?;
    let path = format!("/v2/models/{}/drift", args.model);
    if args.accept {
        let answer = daemon.try_post(&format!("{path}/accept"), &json!({})).await?;
        if answer.status != 200 {
            bail!("{}", message(answer.status, &answer.body));
        }
        writeln!(out, "The present window is the reference of {}.", args.model)?;
        return Ok(Exit::Success);
    }
    let document: DriftDocument = daemon.get(&path).await?;
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
    } else {
        document.versions.iter().try_for_each(|version| show(version, out))?;
    }
    let is_drift = document.versions.iter().any(|version| version.drifting);
    Ok(if is_drift { Exit::Failure } else { Exit::Success })
}

fn show(version: &VersionDocument, out: &mut Output) -> std::io::Result<()> {
    let VersionDocument { model, version: number, reference, learnt_windows, window_calls, .. } = version;
    let state = if version.fixed_ms.is_some() {
        format!("reference {reference}")
    } else {
        format!("learning its reference, {learnt_windows} windows so far")
    };
    writeln!(out, "{model} version {number}: {state}; {window_calls} calls in the present window")?;
    if version.judged_calls == 0 {
        return Ok(());
    }
    writeln!(
        out,
        "  {:<32} {:<7} {:>7} {:>7}  in the last window, of {} calls",
        "column", "side", "index", "limit", version.judged_calls
    )?;
    for column in &version.columns {
        let change = column.change.as_deref().unwrap_or_default();
        writeln!(
            out,
            "  {:<32} {:<7} {:>7.3} {:>7.3}  {change}",
            column.name, column.side, column.index, column.limit
        )?;
    }
    Ok(())
}
