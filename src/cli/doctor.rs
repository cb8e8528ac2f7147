//! `ledge doctor`

mod models;
mod mqtt;
mod progress;
mod unit;

use std::io::Write;
use std::path::Path;

use clap::Args;
use ledge_egress::DaemonConnection;
use ledge_isolation::{ChildStarter, sandbox_report};
use ledge_models::runtimes::sandbox;
use serde_json::Value;

use super::checks::{Finding, FindingStatus, text};
use super::server::own_daemon;
use super::{BadConfiguration, Exit, GlobalArgs, Output, block_on};
use crate::config::Config;
use crate::daemon::{formats, own_sandbox};
use crate::findings::{FindingsRunner, findings};
use progress::DoctorProgress;

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

/// The name of the findings of `ledge-membership`.
const MEMBERSHIP: &str = "membership";

const EXAMPLES: &str = "\
Examples:
  ledge doctor
  ledge doctor --root .ledge --json";

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &DoctorArgs, out: &mut Output) -> anyhow::Result<Exit> {
    if args.formats {
        write!(out, "{}", formats::content())?;
        return Ok(Exit::Success);
    }
    let checks = checks(globals, &DoctorProgress::new());
    let worst = checks.iter().map(|check| check.status).max().unwrap_or(FindingStatus::Ok);
    if args.json {
        let report = serde_json::json!({ "version": env!("CARGO_PKG_VERSION"), "status": worst, "checks": checks });
        writeln!(out, "{report:#}")?;
    } else {
        write!(out, "{}", text(&checks, out.columns()))?;
    }
    Ok(if worst == FindingStatus::Fail { Exit::Failure } else { Exit::Success })
}

fn checks(globals: &GlobalArgs, progress: &DoctorProgress) -> Vec<Finding> {
    let mut checks = Vec::new();
    let config = match globals.sources().load() {
        Ok(loaded) => {
            let detail = match loaded.origins().len() {
                0 => "all settings have their defaults".to_owned(),
                count => format!("{count} set, all others have their defaults"),
            };
            checks.push(Finding::ok("configuration", detail));
            if let Some(metrics) = &loaded.metrics {
                checks.push(match metrics.problem() {
                    Some(problem) => Finding::warn(MEMBERSHIP, problem, metrics.remedy()),
                    None => Finding::ok(MEMBERSHIP, metrics.to_string()),
                });
            }
            loaded.config
        }
        Err(mistakes) => {
            let advice = "correct it; the checks below use the defaults";
            checks.push(Finding::fail("configuration", BadConfiguration(mistakes).to_string(), advice));
            defaults(globals)
        }
    };

    progress.step("checking the machine");
    checks.extend(unit::check(&config));
    checks.extend(findings(&config, FindingsRunner::Command, &|path| ask_own_daemon(&config, path)));
    progress.step("checking the sandbox of the models");
    checks.extend(sandboxes(&config));
    if config.mqtt.broker.is_some() {
        progress.step("asking the MQTT broker");
    }
    checks.extend(mqtt::check(&config));
    checks.extend(models::checks(&config, progress));
    checks
}

/// The findings about the sandboxes of the daemon and of the processes of models. They come from the running daemon,
/// because its service manager may forbid or allow other things than this command may do. Without a daemon, the
/// expected ones.
fn sandboxes(config: &Config) -> Vec<Finding> {
    let answer = ask_own_daemon(config, "/findings");
    let checks = answer.and_then(|mut answer| serde_json::from_value(answer.get_mut("checks")?.take()).ok());
    let found: Vec<Finding> = checks.unwrap_or_default();
    let of_daemon = |name| found.iter().find(|check| check.name == name).cloned();
    let models = || {
        let starter = ChildStarter::of_command(&config.state.path);
        let mut check = sandbox::check(sandbox_report(&starter, &config.runtimes.dir));
        check.detail.insert_str(0, "no daemon answers this; in a process that this command started: ");
        check
    };
    vec![
        of_daemon(own_sandbox::FINDING).unwrap_or_else(own_sandbox::expected),
        of_daemon(sandbox::FINDING).unwrap_or_else(models),
    ]
}

/// The configuration without its file, for the checks after a mistake in it.
fn defaults(globals: &GlobalArgs) -> Config {
    let root = globals.root.clone().or_else(|| globals.config.as_ref()?.parent().map(Path::to_owned));
    root.map_or_else(Config::packaged, |root| Config::with_root(&root))
}

/// The JSON that the daemon of this configuration answers at `path`; `None` without an answer, and where it is an
/// error.
fn ask_own_daemon(config: &Config, path: &str) -> Option<Value> {
    let url = own_daemon(&config.http.listen).ok()?;
    let answer = block_on(async { DaemonConnection::open(&url.as_str().into()).await?.get(path).await }).ok()?.ok()?;
    if answer.status != 200 {
        return None;
    }
    serde_json::from_slice(&answer.body).ok()
}
