//! `ledge update`: signed updates.

mod trial;
pub mod tuf;

use clap::{Args, Subcommand};

use super::{Exit, Globals, Output};

/// The arguments of `ledge update`.
#[derive(Debug, Args)]
pub struct UpdateArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: UpdateCommand,
}

/// What to do with updates.
#[derive(Debug, Subcommand)]
pub enum UpdateCommand {
    /// Be a plain TUF client on this machine, as the public conformance suite of TUF drives one.
    ///
    /// It neither reads the configuration nor touches what this box trusts, takes the clock of the system as it is, and
    /// connects to servers on this machine only.
    Tuf(tuf::TufArgs),
    /// Try a release in this process. The daemon starts it, and sends it an order.
    #[command(hide = true)]
    Trial,
}

/// Runs the verb.
pub fn run(_globals: &Globals, args: &UpdateArgs, _out: &mut Output) -> anyhow::Result<Exit> {
    match &args.command {
        UpdateCommand::Tuf(args) => tuf::run(args),
        UpdateCommand::Trial => trial::run(),
    }
}
