//! The verb of each command.

use super::verbs::{Cli, Command};
use super::{
    Exit, Output, accounts, audit, backup, capacity, config, doctor, encryption, features, health, infer, jobs, join,
    keys, login, models, mqtt, report, restore, serve, sizing, tls, top, tune, unusual, update, upgrade,
};

impl Cli {
    /// Runs the verb.
    pub fn run(self, out: &mut Output) -> anyhow::Result<Exit> {
        let globals = &self.globals;
        match self.command {
            Command::Serve(args) => serve::run(globals, &args, out),
            Command::Infer(args) => infer::run(globals, &args, out),
            Command::Jobs(args) => jobs::run(globals, &args, out),
            Command::Top(args) => top::run(globals, &args, out),
            Command::Unusual(args) => unusual::run(globals, &args, out),
            Command::Accounts(args) => accounts::run(globals, &args, out),
            Command::Capacity(args) => capacity::run(globals, &args, out),
            Command::Sizing(args) => sizing::run(globals, &args, out),
            Command::Models(args) => models::run(globals, &args, out),
            Command::Features(args) => features::run(globals, &args, out),
            Command::Mqtt(args) => mqtt::run(globals, &args, out),
            Command::Update(args) => update::run(globals, &args, out),
            Command::Backup(args) => backup::run(globals, &args, out),
            Command::Restore(args) => restore::run(globals, &args, out),
            Command::Audit(args) => audit::run(globals, &args, out),
            Command::Report(args) => report::run(globals, &args, out),
            Command::Tls(args) => tls::run(globals, &args, out),
            Command::Encryption(args) => encryption::run(globals, &args, out),
            Command::Join(args) => join::run(globals, &args, out),
            Command::Upgrade(args) => upgrade::run(globals, &args, out),
            Command::Login(args) => login::run(globals, &args, out),
            Command::Keys(args) => keys::run(globals, &args, out),
            Command::Tune(args) => tune::run(globals, &args, out),
            Command::Config(args) => config::run(globals, &args, out),
            Command::Health(args) => health::run(globals, &args, out),
            Command::Doctor(args) => doctor::run(globals, &args, out),
        }
    }
}
