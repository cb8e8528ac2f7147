//! `ledge update`: signed updates.

mod args;
mod request;
mod reset;
mod show;
mod trial;
pub mod tuf;

use std::io::Write as _;

use anyhow::Context as _;
use ledge_updates::artifact::{Artifact, InvalidTarget};
use ledge_updates::handle::AdministratorCommand;
use ledge_updates::status_report::UpdatesReport;
use serde_json::json;

use super::features::daemon::DaemonClient;
use super::{Exit, GlobalArgs, Output, block_on};
pub use args::{UpdateArgs, UpdateCommand};
use request::post;

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &UpdateArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let (order, subject) = match &args.command {
        UpdateCommand::Tuf(args) => return tuf::run(args),
        UpdateCommand::Trial => return trial::run(),
        UpdateCommand::Status => return show_report(globals, args, out, show::status),
        UpdateCommand::Trust => return show_report(globals, args, out, show::trust),
        UpdateCommand::ResetTrust => return reset::run(globals, args, out),
        UpdateCommand::Check { from } => {
            let body = from.as_ref().map_or_else(|| json!({}), |from| json!({ "from": from }));
            let report = post(globals, args, "/updates/check", &body)?;
            return write_report(&report, args.json, out, |report, out| {
                writeln!(out, "The check has finished.\n")?;
                show::status(report, out)
            });
        }
        UpdateCommand::Pin { subject } => (AdministratorCommand::Pin, subject),
        UpdateCommand::Unpin { subject } => (AdministratorCommand::Unpin, subject),
        UpdateCommand::Rollback { subject } => (AdministratorCommand::RollBack, subject),
        UpdateCommand::Cancel { subject } => (AdministratorCommand::Cancel, subject),
    };

    let subject = parse_subject(subject).with_context(|| {
        format!("{subject:?} is not a subject of updates: expected models/NAME, or a bare NAME for a model")
    })?;
    let report = post(globals, args, &format!("/updates/{subject}/{}", order.name()), &json!({}))?;
    write_report(&report, args.json, out, |_, out| {
        let done = match order {
            AdministratorCommand::Pin => "stays at its version until it is unpinned",
            AdministratorCommand::Unpin => "follows the platform again",
            AdministratorCommand::RollBack => "goes back to the previous version",
            AdministratorCommand::Cancel => "stays at its live version; the update was cancelled",
        };
        Ok(writeln!(out, "{subject} {done}.")?)
    })
}

fn show_report(
    globals: &GlobalArgs,
    args: &UpdateArgs,
    out: &mut Output,
    show: impl FnOnce(&UpdatesReport, &mut Output) -> anyhow::Result<()>,
) -> anyhow::Result<Exit> {
    let mut daemon = DaemonClient::new(globals, &args.server)?;
    let report = block_on(daemon.get("/updates"))??;
    write_report(&report, args.json, out, show)
}

fn write_report(
    report: &UpdatesReport,
    json: bool,
    out: &mut Output,
    show: impl FnOnce(&UpdatesReport, &mut Output) -> anyhow::Result<()>,
) -> anyhow::Result<Exit> {
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(report)?)?;
    } else {
        show(report, out)?;
    }
    Ok(Exit::Success)
}

/// Parses a subject; a bare name is a model's.
pub(super) fn parse_subject(text: &str) -> Result<Artifact, InvalidTarget> {
    if text.contains('/') { text.parse() } else { Ok(Artifact::model(text.parse()?)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_is_a_model() {
        assert_eq!(parse_subject("minilm").unwrap().to_string(), "models/minilm");
        assert_eq!(parse_subject("runtimes/openvino").unwrap().to_string(), "runtimes/openvino");
        for bad in ["", "../x", "models/", "fleet/x", "models/a/1"] {
            assert!(parse_subject(bad).is_err(), "{bad}");
        }
    }
}
