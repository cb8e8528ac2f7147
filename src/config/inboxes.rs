//! Findings about inboxes that depend on other sections: the broker, and the permitted destinations.

use ledge_base::toml_check::ValueProblem;
use ledge_egress::{EgressContent, HostPort, everything_unnamed};
use ledge_part::section::ConfigSection;

use super::Config;

impl Config {
    /// The inboxes whose messages could reach no receiver.
    pub(super) fn inbox_problems(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        let brokers: Vec<HostPort> = self.mqtt.destinations().into_iter().map(|broker| broker.at).collect();
        for (index, inbox) in self.inbox.iter().enumerate() {
            let key = format!("inbox[{index}].mqtt");
            if inbox.mqtt && self.mqtt.broker.is_none() {
                problems.push(ValueProblem::new(&key, "needs a broker, which gets the messages: set mqtt.broker"));
            } else if inbox.mqtt {
                problems.extend(brokers.iter().filter_map(|at| self.document_refusal(&key, at)));
            }
            let key = format!("inbox[{index}].webhook.url");
            let hops = inbox.webhook.iter().flat_map(|webhook| std::iter::once(&webhook.url.at).chain(&webhook.proxy));
            problems.extend(hops.filter_map(|at| self.document_refusal(&key, at)));
        }
        problems
    }

    /// The mistake of a destination that gets no documents. One that may get nothing is reported elsewhere.
    fn document_refusal(&self, key: &str, at: &HostPort) -> Option<ValueProblem> {
        let grant = self.egress.grant(at).ok()?;
        if grant.permits(EgressContent::Document) {
            return None;
        }
        let entry = self.egress.allow.iter().find(|entry| entry.host == *at);
        let send = entry.map_or_else(everything_unnamed, |entry| entry.send.clone());
        let send: Vec<_> = send.into_iter().chain([EgressContent::Document]).map(|it| format!("\"{it}\"")).collect();
        let problem = format!(
            "sends text of documents to {at}, which only an entry of egress.allow that names them permits: \
             send = [{}]",
            send.join(", ")
        );
        Some(ValueProblem::new(key, problem))
    }
}
