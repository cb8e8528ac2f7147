//! `ledge mqtt`: what this box does with messages.

mod bindings;
pub mod trial;

use clap::{Args, Subcommand};

use super::{Exit, Globals, Output};
use crate::config::Config;
use crate::identity::device;
use crate::mqtt::topics::DeviceTopics;

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
}

const EXAMPLES: &str = "\
Examples:
  ledge mqtt bindings
  ledge mqtt try cameras/door/snapshot coffee.png
  ledge mqtt try ledge/v1/till-7/infer/add_sub request.json";

/// Runs the verb.
pub fn run(globals: &Globals, args: &MqttArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let config = globals.load_config()?;
    match &args.command {
        MqttCommand::Bindings { json } => bindings::run(&config, *json, out),
        MqttCommand::Try(args) => trial::run(&config, args, out),
    }
}

/// What stands for the name of a box that has none yet.
const UNNAMED: &str = "unnamed";

/// The topics of this box. Only the server's first start makes a name, so nothing is left behind here.
pub(super) fn topics(config: &Config) -> anyhow::Result<DeviceTopics> {
    Ok(match device::load(&config.state.path, &config.device)? {
        Some(identity) => DeviceTopics { device: identity.id, group: identity.group },
        None => DeviceTopics { device: UNNAMED.parse()?, group: config.device.group.clone() },
    })
}
