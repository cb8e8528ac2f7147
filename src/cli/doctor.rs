//! `ledge doctor`

mod access;
mod machine;
mod models;
mod mqtt;
mod unit;

use std::io::Write;
use std::path::Path;

use clap::Args;
use ledge_egress::DaemonConnection;
use ledge_part::section::Site;
use serde_json::Value;

use super::checks::{Check, Status, text};
use super::top::own_daemon;
use super::{BadConfiguration, Exit, Globals, Output, block_on};
use crate::config::Config;
use crate::daemon::formats;

/// The arguments of `ledge doctor`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// Write JSON instead of text.
    #[arg(long)]
    pub json: bool,
    /// Only write the form of each store that this version knows: a version that knows less cannot be gone back to.
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
        write!(out, "{}", formats::known())?;
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
                0 => "every key has its default".to_owned(),
                count => format!("{count} set, every other key has its default"),
            };
            checks.push(Check::ok("configuration", detail));
            loaded.config
        }
        Err(mistakes) => {
            let advice = "correct it; what follows looks at the defaults";
            checks.push(Check::fail("configuration", BadConfiguration(mistakes).to_string(), advice));
            defaults(globals)
        }
    };
    checks.extend(machine::checks(&config, Path::new("/")));
    checks.extend(unit::check(&config));
    checks.push(access::check(&config));
    let site = Site {
        state: &config.state.path,
        device: &config.device,
        encryption: &config.encryption,
        egress: &config.egress,
        ask_daemon: &|path| own_answer(&config, path),
    };
    checks.extend(config.sections().iter().flat_map(|(_, section)| section.doctor(&site)));
    checks.extend(mqtt::check(&config));
    checks.extend(models::checks(&config));
    checks
}

/// The configuration as it would be without a file and without mistakes.
fn defaults(globals: &Globals) -> Config {
    let root = globals.root.clone().or_else(|| globals.config.as_ref()?.parent().map(Path::to_owned));
    root.map_or_else(Config::packaged, |root| Config::with_root(&root))
}

/// What the daemon of this configuration answers at `path`, if it does.
fn own_answer(config: &Config, path: &str) -> Option<Value> {
    let url = own_daemon(&config.http.listen).ok()?;
    let asked = block_on(async { DaemonConnection::open(&url.as_str().into()).await?.get(path).await });
    serde_json::from_slice(&asked.ok()?.ok()?.body).ok()
}
