//! `ledge doctor`

mod models;
mod mqtt;
mod unit;

use std::io::Write;
use std::path::Path;

use clap::Args;
use ledge_egress::DaemonConnection;
use serde_json::Value;

use super::checks::{Check, Status, text};
use super::top::own_daemon;
use super::{BadConfiguration, Exit, Globals, Output, block_on};
use crate::config::Config;
use crate::daemon::{formats, own_seal};
use crate::findings::{Seeker, findings};

/// The arguments of `ledge doctor`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// Write JSON instead of text.
    #[arg(long)]
    pub json: bool,
    /// Write only the format version of each store that this version knows: a downgrade to a version that knows a lower
    /// one is not possible.
    #[arg(long, conflicts_with = "json")]
    pub formats: bool,
}

const EXAMPLES: &str = "\
Examples:
  ledge doctor
  ledge doctor --root .ledge --json";

/// Runs the verb.
pub fn run(globals: &Globals, args: &DoctorArgs, out: &mut Output) -> anyhow::Result<Exit> {
    if args.formats {
        write!(out, "{}", formats::content())?;
        return Ok(Exit::Success);
    }
    let checks = checks(globals);
    let worst = checks.iter().map(|check| check.status).max().unwrap_or(Status::Ok);
    if args.json {
        let report = serde_json::json!({ "version": env!("CARGO_PKG_VERSION"), "status": worst, "checks": checks });
        writeln!(out, "{report:#}")?;
    } else {
        write!(out, "{}", text(&checks))?;
    }
    Ok(if worst == Status::Fail { Exit::Failure } else { Exit::Success })
}

fn checks(globals: &Globals) -> Vec<Check> {
    let mut checks = Vec::new();
    let config = match globals.sources().load() {
        Ok(loaded) => {
            let detail = match loaded.origins.len() {
                0 => "all settings have their defaults".to_owned(),
                count => format!("{count} set, all others have their defaults"),
            };
            checks.push(Check::ok("configuration", detail));
            loaded.config
        }
        Err(mistakes) => {
            let advice = "correct it; the checks below use the defaults";
            checks.push(Check::fail("configuration", BadConfiguration(mistakes).to_string(), advice));
            defaults(globals)
        }
    };

    checks.extend(unit::check(&config));
    checks.extend(findings(&config, Seeker::Command, &|path| ask_own_daemon(&config, path)));
    let found = ask_own_daemon(&config, "/findings");
    let sealed = found.as_ref().and_then(own_seal::found);
    checks.push(sealed.unwrap_or_else(own_seal::expected));
    checks.extend(mqtt::check(&config));
    checks.extend(models::checks(&config));
    checks
}

/// The configuration without its file, for the checks after a mistake in it.
fn defaults(globals: &Globals) -> Config {
    let root = globals.root.clone().or_else(|| globals.config.as_ref()?.parent().map(Path::to_owned));
    root.map_or_else(Config::packaged, |root| Config::with_root(&root))
}

/// The JSON that the daemon of this configuration answers at `path`; `None` without an answer, and where it is an error.
fn ask_own_daemon(config: &Config, path: &str) -> Option<Value> {
    let url = own_daemon(&config.http.listen).ok()?;
    let answer = block_on(async { DaemonConnection::open(&url.as_str().into()).await?.get(path).await }).ok()?.ok()?;
    if answer.status != 200 {
        return None;
    }
    serde_json::from_slice(&answer.body).ok()
}
