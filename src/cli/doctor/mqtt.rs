//! The check of the MQTT broker: a summary of `ledge mqtt check`.

use std::time::Duration;

use ledge_mqtt::check::{CheckStep, ProbeTopics, StepFinding};

use crate::cli::checks::Finding;
use crate::cli::mqtt::check::findings;
use crate::config::Config;

/// The most time for all checks of the broker.
const BROKER_CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks that the broker grants everything that the server needs; `None` without a broker.
pub fn check(config: &Config) -> Option<Finding> {
    let name = "mqtt";
    let broker = config.mqtt.broker.as_ref()?;
    Some(match findings(config, ProbeTopics::MadeUp, BROKER_CHECK_TIMEOUT) {
        Ok(findings) if findings.iter().all(|finding| finding.ok) => {
            let untested = findings.iter().filter(|finding| finding.untested).count();
            let granted = findings.iter().filter(|finding| finding.step == CheckStep::Subscription).count();
            let trip = findings.iter().find(|finding| finding.step == CheckStep::RoundTrip);
            let trip = trip.map_or("unknown", |finding| &finding.detail);
            let more = match untested {
                0 => String::new(),
                count => format!("; not tested: {count} (see `ledge mqtt check`)"),
            };
            let granted = format!("connected to {broker}; subscriptions granted: {granted}");
            Finding::ok(name, format!("{granted}; round trip: {trip}{more}"))
        }
        Ok(findings) => {
            let line = |finding: &StepFinding| format!("{}: {}", finding.step.as_str(), finding.detail);
            let refused: Vec<_> = findings.iter().filter(|finding| !finding.ok).map(line).collect();
            Finding::fail(
                name,
                refused.join("\n"),
                "run `ledge mqtt check` for details; calls over HTTP do not need the broker",
            )
        }
        Err(error) => Finding::fail(name, format!("{error:#}"), "calls over HTTP do not need the broker"),
    })
}
