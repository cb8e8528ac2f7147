//! The verbs that the daemon and the build of packages start, and that no person types. They are a separate command
//! line, so that no help text, error or completion of the main one names them.

use clap::{CommandFactory as _, Parser, Subcommand};

use super::{Exit, Output, assets};

#[derive(Debug, Parser)]
#[command(name = "ledge", disable_help_subcommand = true)]
pub struct InternalCli {
    #[command(subcommand)]
    verb: InternalVerb,
}

#[derive(Debug, Subcommand)]
enum InternalVerb {
    /// Write the manual pages and the shell completions of this program, for its packages.
    GenerateAssets(assets::AssetsArgs),
    /// Run models for the daemon, which starts it and sends it orders.
    Runtime,
    /// Start the processes of models for the daemon, which starts it and sends it requests.
    Spawner,
    /// Draw the pages of a document. Only the daemon and `ledge infer` start it, and send it an order.
    Pages,
}

impl InternalCli {
    /// The command line of this process, if its verb is one of these.
    pub fn of_process() -> Option<Self> {
        let verb = std::env::args_os().nth(1)?;
        Self::command().find_subcommand(verb).is_some().then(Self::parse)
    }

    /// Runs the verb.
    pub fn run(self, out: &mut Output) -> anyhow::Result<Exit> {
        match self.verb {
            InternalVerb::GenerateAssets(args) => return assets::run(&args, out),
            InternalVerb::Runtime => ledge_isolation::child::run()?,
            InternalVerb::Spawner => ledge_isolation::spawner::run()?,
            InternalVerb::Pages => ledge_documents::process::run()?,
        }
        Ok(Exit::Success)
    }
}
