//! Findings about alerts that depend on other sections: the broker, and the permitted destinations.

use ledge_base::toml_check::ValueProblem;
use ledge_egress::{EgressContent, HostPort};
use ledge_part::section::ConfigSection;

use super::Config;

impl Config {
    /// The alerts that could reach no receiver.
    pub(super) fn alert_problems(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        let over_mqtt = || self.alert.iter().enumerate().filter(|(_, alert)| alert.mqtt);
        let brokers: Vec<HostPort> = self.mqtt.destinations().into_iter().map(|broker| broker.at).collect();
        for (index, _) in over_mqtt() {
            let key = format!("alert[{index}].mqtt");
            if self.mqtt.broker.is_none() {
                let problem = "needs a broker, which gets the messages: set mqtt.broker";
                problems.push(ValueProblem::new(key, problem));
                continue;
            }
            problems.extend(brokers.iter().filter_map(|at| self.alert_refusal(&key, at)));
        }
        for (index, alert) in self.alert.iter().enumerate() {
            let key = format!("alert[{index}].url");
            let hops = alert.url.iter().map(|url| &url.at).chain(&alert.proxy);
            problems.extend(hops.filter_map(|at| self.alert_refusal(&key, at)));
        }
        problems
    }

    /// The mistake of a destination that may get data, but no alerts. One that may get nothing is reported elsewhere.
    fn alert_refusal(&self, key: &str, at: &HostPort) -> Option<ValueProblem> {
        let grant = self.egress.grant(at).ok()?;
        if grant.permits(EgressContent::Alert) {
            return None;
        }
        let problem = format!(
            "has no effect, because the entry of {at} in egress.allow does not let alerts out: add \"{}\" to its `send`",
            EgressContent::Alert
        );
        Some(ValueProblem::new(key, problem))
    }
}
