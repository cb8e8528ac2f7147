//! `ledge mqtt`: what this box does with messages, and how it gets along with its broker.

mod bindings;
pub mod check;
pub mod trial;

use std::io::Write;

use clap::{Args, Subcommand};
use ledge_identity::device;
use ledge_mqtt::topics::DeviceTopics;

use super::{Exit, Globals, Output};
use crate::config::Config;

/// The arguments of `ledge mqtt`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct MqttArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: MqttCommand,
}

/// What to do with MQTT.
#[derive(Debug, Subcommand)]
pub enum MqttCommand {
    /// List the bindings: which messages go to which model, and where the answers go.
    ///
    /// The exit code is 1 when a model, or the version that a binding names, is not in the repository.
    Bindings {
        /// Write JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Say what this box would do with a message, by doing it here: no broker is needed, and nothing is sent.
    ///
    /// The message is taken as one that was published with QoS 1. Its models are loaded in this process and asked. Rate
    /// limits are told and not applied. The exit code is 1 when nothing takes the message, or something has no result.
    Try(trial::TrialArgs),
    /// Connect to the broker and say what it grants: the connection, each subscription, the publishing of answers.
    ///
    /// It connects as the server does, under a client id of its own and without a last will, so a running server does not
    /// notice. A subscription that a group shares is asked for under another group name, so that no call gets lost. One small
    /// message is published, to the topic ledge/v1/DEVICE/result/check. What a broker withholds from a subscription that it
    /// has granted, as mosquitto does by its acl_file, is not seen. The exit code is 1 when something is refused.
    Check(check::CheckArgs),
}

const EXAMPLES: &str = "\
Examples:
  ledge mqtt bindings
  ledge mqtt try cameras/door/snapshot coffee.png
  ledge mqtt try ledge/v1/till-7/infer/add_sub request.json
  ledge mqtt check";

/// Runs the verb.
pub fn run(globals: &Globals, args: &MqttArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let config = globals.load_config()?;
    match &args.command {
        MqttCommand::Bindings { json } => bindings::run(&config, *json, out),
        MqttCommand::Try(args) => trial::run(&config, args, out),
        MqttCommand::Check(args) => check::run(&config, args, out),
    }
}

/// What stands for the name of a box that has none yet.
const UNNAMED: &str = "unnamed";

/// The topics of this box. Only the server's first start makes a name, so nothing is left behind here.
pub(super) fn topics(config: &Config) -> anyhow::Result<DeviceTopics> {
    let has_platform = config.updates.repository.is_some();
    Ok(match device::load(&config.state.path, &config.device)? {
        Some(identity) => DeviceTopics { device: identity.id, group: identity.group, has_platform },
        None => DeviceTopics { device: UNNAMED.parse()?, group: config.device.group.clone(), has_platform },
    })
}

/// Says that this box has no name yet, where that is so.
fn note_unnamed(config: &Config, topics: &DeviceTopics, out: &mut Output) -> std::io::Result<()> {
    if config.device.id.is_none() && topics.device.as_str() == UNNAMED {
        writeln!(out, "This box has no name yet, the server's first start makes one: {UNNAMED:?} stands for it here.")?;
    }
    Ok(())
}
