//! The check of the broker, in short.

use std::time::Duration;

use ledge_mqtt::check::{CheckStep, Finding};

use crate::cli::checks::Check;
use crate::cli::mqtt::check::findings;
use crate::config::Config;

/// How long the broker may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Whether the broker grants what the server needs; `None` without a broker.
pub fn check(config: &Config) -> Option<Check> {
    let name = "mqtt";
    let broker = config.mqtt.broker.as_ref()?;
    Some(match findings(config, LIMIT) {
        Ok(findings) if findings.iter().all(|finding| finding.ok) => {
            let granted = findings.iter().filter(|finding| finding.step == CheckStep::Subscription).count();
            let trip = findings.iter().find(|finding| finding.step == CheckStep::RoundTrip);
            let trip = trip.map_or("unknown", |finding| &finding.detail);
            Check::ok(name, format!("{broker} is connected; subscriptions granted: {granted}; round trip: {trip}"))
        }
        Ok(findings) => {
            let told = |finding: &Finding| format!("{}: {}", finding.step.as_str(), finding.detail);
            let refused: Vec<_> = findings.iter().filter(|finding| !finding.ok).map(told).collect();
            Check::fail(name, refused.join("\n"), "see `ledge mqtt check`; HTTP does not need the broker")
        }
        Err(error) => Check::fail(name, format!("{error:#}"), "HTTP does not need the broker"),
    })
}
