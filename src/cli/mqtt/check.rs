//! `ledge mqtt check`: checks that the broker grants everything that the server needs.

use std::io::Write;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use ledge_egress::Egress;
use ledge_mqtt::check::{self, ProbeTopics, StepFinding};
use ledge_service::audit_event::AuditSink;
use serde_json::json;

use super::topics;
use crate::cli::checks::{Finding, FindingStatus, text};
use crate::cli::{Exit, Output, block_on};
use crate::config::Config;

/// The arguments of `ledge mqtt check`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BrokerCheckArgs {
    /// The time limit of the whole check, in seconds.
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub timeout: u64,
    /// Write JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ledge mqtt check
  ledge mqtt check --set mqtt.broker=mqtt://127.0.0.1:1883 --json";

/// Runs the verb.
pub fn run(config: &Config, args: &BrokerCheckArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let Some(broker) = &config.mqtt.broker else {
        bail!("no broker is set: add mqtt.broker = \"mqtt://HOST\" to the configuration");
    };
    let findings = findings(config, ProbeTopics::All, Duration::from_secs(args.timeout))?;
    let ok = findings.iter().all(|finding| finding.ok);
    if args.json {
        let report = json!({"broker": broker, "ok": ok, "findings": findings});
        writeln!(out, "{report:#}")?;
    } else {
        topics::note_unnamed(config, &topics::topics(config)?, out)?;
        let checks: Vec<_> = findings.iter().map(line).collect();
        write!(out, "{}", text(&checks, out.columns()))?;
    }
    Ok(if ok { Exit::Success } else { Exit::Failure })
}

/// Checks the permissions that the broker grants.
pub fn findings(config: &Config, probes: ProbeTopics, limit: Duration) -> anyhow::Result<Vec<StepFinding>> {
    let topics = topics::topics(config)?;
    // The events of a command are not recorded.
    let audit = AuditSink::to_nowhere();
    let egress = Egress::new(&config.egress, audit);
    let heard = config.home_assistant_status();
    let heard: Vec<_> = heard.into_iter().collect();
    Ok(block_on(check::check(&config.mqtt, &topics, &heard, &egress, probes, limit))?)
}

fn line(finding: &StepFinding) -> Finding {
    let status = match (finding.ok, finding.untested) {
        (true, false) => FindingStatus::Ok,
        (true, true) => FindingStatus::Warn,
        (false, _) => FindingStatus::Fail,
    };
    Finding { status, ..Finding::ok(finding.step.as_str(), finding.detail.clone()) }
}
