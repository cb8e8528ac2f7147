//! `ledge update`: signed updates.

mod reset;
mod show;
mod trial;
pub mod tuf;

use std::io::Write as _;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use ledge_updates::artifact::{Artifact, InvalidTarget};
use ledge_updates::handle::UpdateOrder;
use ledge_updates::status_report::UpdatesReport;
use serde_json::json;

use super::features::daemon::DaemonClient;
use super::server::ServerArgs;
use super::{Exit, Globals, Output, block_on};

/// The arguments of `ledge update`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct UpdateArgs {
    /// The server to use, for example http://127.0.0.1:8000 or unix:.ledge/ledge.sock [default: the Unix socket of
    /// the configuration, else its first address].
    #[arg(long, global = true)]
    pub url: Option<String>,
    #[command(flatten)]
    pub server: ServerArgs,
    /// Write JSON instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: UpdateCommand,
}

/// The verbs below `ledge update`.
#[derive(Debug, Subcommand)]
pub enum UpdateCommand {
    /// Show the live versions, the trials, the rollouts that wait and why, and the results of the last rollouts.
    Status,
    /// Make the server check the platform for updates now, and wait for the result.
    Check {
        /// Another repository to use for this check, such as a copy of the platform's on a USB stick:
        /// file:///media/usb.
        ///
        /// Only content that the platform signed is accepted, from any place.
        #[arg(long, value_name = "URL")]
        from: Option<String>,
    },
    /// Show the roles of the trusted metadata, with their versions and expiry times.
    Trust,
    /// Keep a subject at its version on this box, whatever the platform rolls out.
    Pin {
        /// The subject to pin, as models/NAME; a bare NAME is a model.
        #[arg(value_name = "SUBJECT")]
        subject: String,
    },
    /// Remove a pin, so that the platform decides again.
    Unpin {
        /// The pinned subject, as models/NAME; a bare NAME is a model.
        #[arg(value_name = "SUBJECT")]
        subject: String,
    },
    /// Go back to the previous version: the one before the trial, or else the one before the last update. Needs no
    /// network.
    Rollback {
        /// The subject to roll back, as models/NAME; a bare NAME is a model.
        #[arg(value_name = "SUBJECT")]
        subject: String,
    },
    /// Cancel an update in progress. The live version stays.
    Cancel {
        /// The subject of the update, as models/NAME; a bare NAME is a model.
        #[arg(value_name = "SUBJECT")]
        subject: String,
    },
    /// Forget the signed metadata that this box trusts, and begin again with the root file.
    ///
    /// For a box that reports damaged trusted metadata, or whose platform was set up again. First find the cause: a
    /// failing disk, or an intruder. The price: until the next successful check, this box accepts metadata that is
    /// older than what it had, such as a repository of last month with a version that was revoked since; and it forgets
    /// the earliest time that the metadata proved. The live versions stay, and the old metadata is set aside in the
    /// update store. If no daemon runs, this command changes the store itself.
    ResetTrust,
    /// Run a plain TUF client, for the public conformance suite of TUF.
    ///
    /// It neither reads the configuration nor touches the metadata that this box trusts, uses the system clock as it
    /// is, and connects only to servers on this machine.
    Tuf(Box<tuf::TufArgs>),
    /// Try a release in this process. Only the daemon starts it, and sends it an order.
    #[command(hide = true)]
    Trial,
}

const EXAMPLES: &str = "\
Examples:
  ledge update status
  ledge update check                           check the platform now
  ledge update check --from file:///media/usb  take updates from a USB stick
  ledge update pin minilm                      keep its version until unpinned
  ledge update rollback models/minilm
  ledge update trust                           show which metadata is trusted, and until when
  ledge update reset-trust                     after damage, once its cause is known";

/// Runs the verb.
pub fn run(globals: &Globals, args: &UpdateArgs, out: &mut Output) -> anyhow::Result<Exit> {
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
        UpdateCommand::Pin { subject } => (UpdateOrder::Pin, subject),
        UpdateCommand::Unpin { subject } => (UpdateOrder::Unpin, subject),
        UpdateCommand::Rollback { subject } => (UpdateOrder::RollBack, subject),
        UpdateCommand::Cancel { subject } => (UpdateOrder::Cancel, subject),
    };

    let subject = parse_subject(subject).with_context(|| {
        format!("{subject:?} is not a subject of updates: expected models/NAME, or a bare NAME for a model")
    })?;
    let report = post(globals, args, &format!("/updates/{subject}/{}", order.name()), &json!({}))?;
    write_report(&report, args.json, out, |_, out| {
        let done = match order {
            UpdateOrder::Pin => "stays at its version until it is unpinned",
            UpdateOrder::Unpin => "follows the platform again",
            UpdateOrder::RollBack => "goes back to the previous version",
            UpdateOrder::Cancel => "stays at its live version; the update was cancelled",
        };
        Ok(writeln!(out, "{subject} {done}.")?)
    })
}

/// Parses a subject; a bare name is a model's.
fn parse_subject(text: &str) -> Result<Artifact, InvalidTarget> {
    if text.contains('/') { text.parse() } else { Ok(Artifact::model(text.parse()?)) }
}

fn show_report(
    globals: &Globals,
    args: &UpdateArgs,
    out: &mut Output,
    show: impl FnOnce(&UpdatesReport, &mut Output) -> anyhow::Result<()>,
) -> anyhow::Result<Exit> {
    let mut daemon = DaemonClient::new(globals, args.url.as_deref(), &args.server)?;
    let report = block_on(daemon.get("/updates"))??;
    write_report(&report, args.json, out, show)
}

fn post(globals: &Globals, args: &UpdateArgs, path: &str, body: &serde_json::Value) -> anyhow::Result<UpdatesReport> {
    let mut daemon = DaemonClient::new(globals, args.url.as_deref(), &args.server)?;
    block_on(daemon.post(path, body))?
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
