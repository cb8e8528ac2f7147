//! `ledge doctor`

mod access;
mod audit;
mod egress;
mod features;
mod machine;
mod models;
mod mqtt;
mod runtimes;
mod tls;
mod unit;
mod updates;

use std::io::Write;
use std::path::Path;

use clap::Args;
use ledge_egress::{DaemonConnection, EgressCounts};
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
    checks.extend(runtimes::checks(&config.runtimes));
    checks.extend(tls::check(&config));
    checks.extend(tls::local(&config));
    checks.extend(unit::check(&config));
    checks.push(access::check(&config));
    checks.extend(mqtt::check(&config));
    checks.extend(features::check(&config));
    checks.extend(updates::checks(&config));
    checks.extend(audit::checks(&config));
    let counts = EgressCounts::read(&config.state.path).ok().flatten();
    checks.push(egress::check(&config.egress, &counts.map(|counts| counts.destinations).unwrap_or_default()));
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

/// A number of bytes for people.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut tenths = u128::from(bytes) * 10;
    let mut unit = "bytes";
    for larger in UNITS {
        if tenths < 10_240 {
            break;
        }
        (tenths, unit) = (tenths / 1024, larger);
    }
    if tenths < 1000 && unit != "bytes" {
        format!("{}.{} {unit}", tenths / 10, tenths % 10)
    } else {
        format!("{} {unit}", tenths / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_two_or_more_digits_and_a_unit() {
        let sizes = [0, 1023, 1024, 1536, 107_374_182_400, u64::MAX].map(size);
        assert_eq!(sizes, ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 KiB", "100 GiB", "16777215 TiB"]);
    }
}
