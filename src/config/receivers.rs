//! Findings about receivers of messages that depend on other sections: the broker, and the permitted destinations.

use ledge_base::toml_check::ValueProblem;
use ledge_egress::{EgressContent, HostPort, everything_unnamed};
use ledge_part::section::ConfigSection;

use super::Config;

impl Config {
    /// The alerts and inboxes whose messages could reach no receiver.
    pub(super) fn receiver_problems(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        for (index, alert) in self.alert.iter().enumerate() {
            let section = format!("alert[{index}]");
            let mqtt = format!("{section}.mqtt");
            let hops = alert.url.iter().map(|url| &url.at).chain(&alert.proxy);
            problems.extend(self.broker_problems(&mqtt, alert.mqtt, EgressContent::Alert));
            problems.extend(self.refusals(&format!("{section}.url"), hops, EgressContent::Alert));
        }
        for (index, inbox) in self.inbox.iter().enumerate() {
            let section = format!("inbox[{index}]");
            let mqtt = format!("{section}.mqtt");
            let hops = inbox.webhook.iter().flat_map(|webhook| std::iter::once(&webhook.url.at).chain(&webhook.proxy));
            problems.extend(self.broker_problems(&mqtt, inbox.mqtt, EgressContent::Document));
            problems.extend(self.refusals(&format!("{section}.webhook.url"), hops, EgressContent::Document));
        }
        let publishes = self.history.unusual_mqtt;
        problems.extend(self.broker_problems("history.unusual_mqtt", publishes, EgressContent::Alert));
        problems
    }

    /// The mistakes of a key by which messages go to the broker if `is_used`.
    fn broker_problems(&self, key: &str, is_used: bool, content: EgressContent) -> Vec<ValueProblem> {
        if !is_used {
            return Vec::new();
        }
        if self.mqtt.broker.is_none() {
            let problem = "needs a broker, which gets the messages: set mqtt.broker";
            return vec![ValueProblem::new(key, problem)];
        }
        let brokers: Vec<_> = self.mqtt.destinations().into_iter().map(|broker| broker.at).collect();
        self.refusals(key, &brokers, content)
    }

    /// The mistakes of destinations that may get data, but none of this content. One that may get nothing is reported
    /// elsewhere.
    fn refusals<'a>(
        &self,
        key: &str,
        destinations: impl IntoIterator<Item = &'a HostPort>,
        content: EgressContent,
    ) -> Vec<ValueProblem> {
        let refuses = |at: &&HostPort| self.egress.grant(at).is_ok_and(|grant| !grant.permits(content));
        let problem = |at: &HostPort| ValueProblem::new(key, self.refusal(at, content));
        destinations.into_iter().filter(refuses).map(problem).collect()
    }

    fn refusal(&self, at: &HostPort, content: EgressContent) -> String {
        if everything_unnamed().contains(&content) {
            return format!(
                "has no effect, because the entry of {at} in egress.allow does not let {content} out: add \"{content}\" \
                 to its `send`"
            );
        }
        let entry = self.egress.allow.iter().find(|entry| entry.host == *at);
        let send = entry.map_or_else(everything_unnamed, |entry| entry.send.clone());
        let send: Vec<_> = send.into_iter().chain([content]).map(|it| format!("\"{it}\"")).collect();
        format!(
            "sends {content} to {at}, which only an entry of egress.allow that names them permits: send = [{}]",
            send.join(", ")
        )
    }
}
