//! `ledge mqtt`: the bindings of this box, a dry run of a message, and a check of the broker.

mod bindings;
pub mod check;
pub mod dry_run;
mod topics;

use clap::{Args, Subcommand};

use super::{Exit, GlobalArgs, Output};

/// The arguments of `ledge mqtt`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct MqttArgs {
    #[command(subcommand)]
    pub command: MqttCommand,
}

/// The commands of `ledge mqtt`.
#[derive(Debug, Subcommand)]
pub enum MqttCommand {
    /// List the bindings: which messages go to which model, and where the answers go.
    ///
    /// The exit code is 1 when the model or the version of a binding is not in the repository.
    Bindings {
        /// Write JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Show what this box would do with a message. The dry run needs no broker and sends nothing.
    ///
    /// The message counts as published with QoS 1. Its models are loaded and run in sandboxed processes. Rate limits
    /// are shown and not applied. The exit code is 1 when nothing takes the message, or when a recipient has no result.
    Try(dry_run::MqttTryArgs),
    /// Connect to the broker and show what it grants: the sessions, each subscription, the publishing of answers, and
    /// whether messages come.
    ///
    /// The check connects like the server, but with other client ids and without a last will, so it does not disturb a
    /// running server. For a subscription that a group shares it uses another group name, so that no call is lost.
    ///
    /// It publishes one small message, to the topic ledge/v1/DEVICE/result/check, and one message for each
    /// subscription, which has to come back: a broker can grant a subscription and still withhold its messages, as
    /// mosquitto does with acl_file. These messages are empty and not retained. In the place of each wildcard their
    /// topics have a level that begins with ledge-check-; where a filter has no wildcard, the message goes to that
    /// topic, and other programs there get it, too. Ledge ignores it. A subscription is a warning where this box may
    /// not publish. The exit code is 1 when something is refused, or a message does not come back.
    Check(check::BrokerCheckArgs),
}

const EXAMPLES: &str = "\
Examples:
  ledge mqtt bindings
  ledge mqtt try cameras/door/snapshot coffee.png
  ledge mqtt try ledge/v1/till-7/infer/add_sub request.json
  ledge mqtt check";

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &MqttArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let config = globals.load_config()?;
    match &args.command {
        MqttCommand::Bindings { json } => bindings::run(&config, *json, out),
        MqttCommand::Try(args) => dry_run::run(&config, args, out),
        MqttCommand::Check(args) => check::run(&config, args, out),
    }
}
