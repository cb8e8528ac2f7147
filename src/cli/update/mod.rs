//! `ledge update`: signed updates.

mod reset;
mod show;
mod trial;
pub mod tuf;

use std::io::Write as _;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use ledge_updates::handle::UpdateOrder;
use ledge_updates::status_report::UpdatesReport;
use ledge_updates::subject::{InvalidTarget, Subject};
use serde_json::json;

use super::features::daemon::Daemon;
use super::server::ServerArgs;
use super::{Exit, Globals, Output, block_on};

/// The arguments of `ledge update`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct UpdateArgs {
    /// The server to ask, for example http://127.0.0.1:8000 or unix:.ledge/ledge.sock [default: the Unix socket of
    /// the configuration, else its first address].
    #[arg(long, global = true)]
    pub url: Option<String>,
    /// How to come to it.
    #[command(flatten)]
    pub server: ServerArgs,
    /// Write JSON instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: UpdateCommand,
}

/// What to do with updates.
#[derive(Debug, Subcommand)]
pub enum UpdateCommand {
    /// Say what runs, what is on trial, what waits for what, and how the last rollouts ended.
    Status,
    /// Have the server ask the platform now, and wait for what comes of it.
    Check {
        /// Another repository to look at, once: a USB stick with a copy of the platform's, as file:///media/usb.
        ///
        /// Nothing counts but what the platform signed, wherever it lies.
        #[arg(long, value_name = "URL")]
        from: Option<String>,
    },
    /// Show the roles of the trusted metadata, their versions and when they expire.
    Trust,
    /// Keep things as they are at this box, whatever the platform rolls out.
    Pin {
        /// What to keep, as models/NAME; a bare NAME is a model.
        #[arg(value_name = "SUBJECT")]
        subject: String,
    },
    /// Let the platform decide again.
    Unpin {
        /// What was pinned, as models/NAME; a bare NAME is a model.
        #[arg(value_name = "SUBJECT")]
        subject: String,
    },
    /// Go back to the version before: the one before the trial, else the one before the last update. Needs no network.
    Rollback {
        /// What to take back, as models/NAME; a bare NAME is a model.
        #[arg(value_name = "SUBJECT")]
        subject: String,
    },
    /// End an update that is under way. The version that runs goes on.
    Cancel {
        /// What to end, as models/NAME; a bare NAME is a model.
        #[arg(value_name = "SUBJECT")]
        subject: String,
    },
    /// Forget the signed metadata that this box trusts, and begin anew with the root file.
    ///
    /// For a box that says that its trusted metadata was damaged, or whose platform was set up anew. First find out why: a
    /// failing disk, or an intruder. What you give up: until the platform is heard again, this box would take metadata that
    /// is older than what it had, such as a repository of last month with a version that was revoked since; and it forgets
    /// what time it is at least. What runs goes on, and what was trusted is set aside in the update store. When no daemon
    /// runs, it is done in the folder.
    ResetTrust,
    /// Be a plain TUF client on this machine, as the public conformance suite of TUF drives one.
    ///
    /// It neither reads the configuration nor touches what this box trusts, takes the clock of the system as it is, and
    /// connects to servers on this machine only.
    Tuf(Box<tuf::TufArgs>),
    /// Try a release in this process. The daemon starts it, and sends it an order.
    #[command(hide = true)]
    Trial,
}

const EXAMPLES: &str = "\
Examples:
  ledge update status
  ledge update check                           ask the platform now
  ledge update check --from file:///media/usb  take what a USB stick has
  ledge update pin minilm                      no update of it until unpinned
  ledge update rollback models/minilm
  ledge update trust                           who signed what, and until when
  ledge update reset-trust                     after damage was found, and its cause";

/// Runs the verb.
pub fn run(globals: &Globals, args: &UpdateArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let (order, subject) = match &args.command {
        UpdateCommand::Tuf(args) => return tuf::run(args),
        UpdateCommand::Trial => return trial::run(),
        UpdateCommand::Status => return ask(globals, args, out, show::status),
        UpdateCommand::Trust => return ask(globals, args, out, show::trust),
        UpdateCommand::ResetTrust => return reset::run(globals, args, out),
        UpdateCommand::Check { from } => {
            let body = from.as_ref().map_or_else(|| json!({}), |from| json!({ "from": from }));
            let report = post(globals, args, "/updates/check", &body)?;
            return told(&report, args.json, out, |report, out| {
                writeln!(out, "The platform was heard.\n")?;
                show::status(report, out)
            });
        }
        UpdateCommand::Pin { subject } => (UpdateOrder::Pin, subject),
        UpdateCommand::Unpin { subject } => (UpdateOrder::Unpin, subject),
        UpdateCommand::Rollback { subject } => (UpdateOrder::RollBack, subject),
        UpdateCommand::Cancel { subject } => (UpdateOrder::Cancel, subject),
    };
    let subject = named(subject).with_context(|| format!("{subject:?} names nothing that is updated"))?;
    let report = post(globals, args, &format!("/updates/{subject}/{}", order.name()), &json!({}))?;
    told(&report, args.json, out, |_, out| {
        let done = match order {
            UpdateOrder::Pin => "stays as it is until it is unpinned",
            UpdateOrder::Unpin => "follows the platform again",
            UpdateOrder::RollBack => "goes back to the version before",
            UpdateOrder::Cancel => "stays at the version that runs; the update under way has ended",
        };
        Ok(writeln!(out, "{subject} {done}.")?)
    })
}

/// A subject; a bare name is a model's.
fn named(text: &str) -> Result<Subject, InvalidTarget> {
    if text.contains('/') { text.parse() } else { Ok(Subject::model(text.parse()?)) }
}

fn ask(
    globals: &Globals,
    args: &UpdateArgs,
    out: &mut Output,
    show: impl FnOnce(&UpdatesReport, &mut Output) -> anyhow::Result<()>,
) -> anyhow::Result<Exit> {
    let mut daemon = Daemon::new(globals, args.url.as_deref(), &args.server)?;
    let report = block_on(daemon.get("/updates"))??;
    told(&report, args.json, out, show)
}

fn post(globals: &Globals, args: &UpdateArgs, path: &str, body: &serde_json::Value) -> anyhow::Result<UpdatesReport> {
    let mut daemon = Daemon::new(globals, args.url.as_deref(), &args.server)?;
    block_on(daemon.post(path, body))?
}

fn told(
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
        assert_eq!(named("minilm").unwrap().to_string(), "models/minilm");
        assert_eq!(named("runtimes/openvino").unwrap().to_string(), "runtimes/openvino");
        for bad in ["", "../x", "models/", "fleet/x", "models/a/1"] {
            assert!(named(bad).is_err(), "{bad}");
        }
    }
}
