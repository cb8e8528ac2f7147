//! `ledge config`

use std::io::Write;

use clap::{Args, Subcommand};

use super::{BadConfiguration, Exit, Globals, Output};
use crate::features::registry::Registry;
use crate::toml_check::Mistake;

/// The arguments of `ledge config`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ConfigArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Say "ok", or every mistake with its file and line and exit code 78. Nothing is started.
    ///
    /// Looks at the feature views too: each *.toml in the folder features.views, and what the store has of them.
    Check {
        /// Write JSON instead of text: {"ok": false, "mistakes": [...]}.
        #[arg(long)]
        json: bool,
    },
    /// Show every setting in effect, and where those that are no defaults were set.
    Show {
        /// Write JSON instead of TOML.
        #[arg(long)]
        json: bool,
    },
}

const EXAMPLES: &str = "\
Examples:
  ledge config check --config new.toml      before it replaces /etc/ledge/ledge.toml
  ledge config show --root .ledge";

/// Runs the verb.
pub fn run(globals: &Globals, args: &ConfigArgs, out: &mut Output) -> anyhow::Result<Exit> {
    match args.command {
        ConfigCommand::Check { json } => check(globals, json, out),
        ConfigCommand::Show { json } => show(globals, json, out),
    }
}

fn check(globals: &Globals, json: bool, out: &mut Output) -> anyhow::Result<Exit> {
    let checked = globals.sources().load().and_then(|loaded| {
        // Where the views are is known only without a mistake before.
        let features = &loaded.config.features;
        Registry::load(&features.views, &features.path)?;
        if loaded.left_out.is_empty() { Ok(()) } else { Err(loaded.left_out) }
    });
    let mistakes = checked.err().unwrap_or_default();
    if json {
        let places: Vec<_> = mistakes.iter().map(to_json).collect();
        writeln!(out, "{:#}", serde_json::json!({ "ok": mistakes.is_empty(), "mistakes": places }))?;
        return Ok(if mistakes.is_empty() { Exit::Success } else { Exit::Configuration });
    }
    if !mistakes.is_empty() {
        return Err(BadConfiguration(mistakes).into());
    }
    writeln!(out, "ok")?;
    Ok(Exit::Success)
}

fn to_json(mistake: &Mistake) -> serde_json::Value {
    let Mistake { source, line, column, key, message } = mistake;
    serde_json::json!({ "source": source, "line": line, "column": column, "key": key, "message": message })
}

fn show(globals: &Globals, json: bool, out: &mut Output) -> anyhow::Result<Exit> {
    let loaded = globals.load()?;
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&loaded.config)?)?;
    } else {
        write!(out, "{}", loaded.to_toml()?)?;
    }
    Ok(Exit::Success)
}
