//! What this box asks its broker for, and what of that it was refused.

use super::bindings::Bindings;
use super::client::packet::{Kept, Qos, Reason, Subscription};
use super::client::session::Session;
use super::topics::{DeviceTopics, TopicFilter};

/// How many filters go into one packet: some brokers, that of AWS among them, take no more.
pub const IN_A_PACKET: usize = 8;

/// The subscriptions of this box.
#[derive(Debug)]
pub struct Subscriptions {
    wanted: Vec<Subscription>,
    /// Indices of those that were refused on this connection.
    refused: Vec<usize>,
}

/// Everything that this box answers, each filter once.
pub fn wanted(topics: &DeviceTopics, bindings: &Bindings) -> Vec<Subscription> {
    // A box's own messages are nothing for it to answer; for a shared subscription that cannot be asked for.
    let subscription = |(filter, qos, kept): (TopicFilter, Qos, Kept)| Subscription {
        no_local: !filter.is_shared(),
        filter,
        qos,
        kept,
    };
    let own = [Some(topics.infer()), topics.group_infer()].into_iter().flatten();
    let own = own.map(|filter| (filter, Qos::AtLeastOnce, Kept::Never));
    // Whoever comes back after hours learns from the one that was kept that there is something new.
    let desired = topics.desired().map(|filter| (filter, Qos::AtLeastOnce, Kept::IfNew));
    let bound = bindings.subscriptions(topics.group.as_ref()).into_iter();
    own.chain(desired).chain(bound.map(|(filter, qos)| (filter, qos, Kept::IfNew))).map(subscription).collect()
}

impl Subscriptions {
    /// Those of a box.
    pub fn new(topics: &DeviceTopics, bindings: &Bindings) -> Self {
        Self { wanted: wanted(topics, bindings), refused: Vec::new() }
    }

    /// The filters that a group shares.
    pub fn shared(&self) -> impl Iterator<Item = &TopicFilter> {
        self.wanted.iter().map(|subscription| &subscription.filter).filter(|filter| filter.is_shared())
    }

    /// Asks for all of them on a new connection; for the shared ones only where the broker knows such.
    pub fn ask(&mut self, session: &mut Session, knows_shared: bool) {
        self.refused.clear();
        let wanted = self.wanted.iter().filter(|subscription| knows_shared || !subscription.filter.is_shared());
        send(session, wanted);
    }

    /// Asks again for those that were refused: somebody may have changed the broker's access list.
    pub fn ask_again(&mut self, session: &mut Session) {
        let refused = std::mem::take(&mut self.refused);
        send(session, refused.into_iter().filter_map(|index| self.wanted.get(index)));
    }

    /// Whether the broker has refused one on this connection.
    pub fn lacks_one(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Notes the broker's answer. Gives the number of the subscription when it was refused.
    pub fn note(&mut self, filter: &TopicFilter, reason: Reason) -> Option<usize> {
        let index = self.wanted.iter().position(|subscription| subscription.filter == *filter)?;
        if !reason.is_failure() {
            return None;
        }
        self.refused.push(index);
        Some(index)
    }
}

fn send<'s>(session: &mut Session, subscriptions: impl Iterator<Item = &'s Subscription>) {
    let subscriptions: Vec<Subscription> = subscriptions.cloned().collect();
    for packet in subscriptions.chunks(IN_A_PACKET) {
        session.subscribe(packet.to_vec());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bindings::BindingConfig;
    use crate::client::packet::{ConnAck, Outgoing};
    use crate::client::session::Step;

    fn subscriptions(count: usize) -> (Subscriptions, Session) {
        let binding = |index| -> BindingConfig {
            let text = format!(r#"{{"topic": "cameras/{index}", "model": "m", "publish": "seen/{index}"}}"#);
            serde_json::from_str(&text).unwrap()
        };
        let bindings: Vec<_> = (0..count).map(binding).collect();
        let topics = DeviceTopics { device: "box".parse().unwrap(), group: "shop".parse().ok(), looked_after: false };
        let mut session = Session::default();
        session.connected(&ConnAck::accepting());
        (Subscriptions::new(&topics, &Bindings::new(&bindings)), session)
    }

    fn asked(session: &mut Session) -> Vec<Vec<String>> {
        let steps = std::iter::from_fn(|| session.next(|_| 1));
        let filters = steps.map(|step| match step {
            Step::Send(_, Outgoing::Subscribe { subscriptions, .. }) => {
                subscriptions.into_iter().map(|subscription| subscription.filter.to_string()).collect()
            }
            other => panic!("{other:?}"),
        });
        filters.collect()
    }

    #[test]
    fn many_go_in_packets_of_eight_and_shared_ones_only_where_they_are_known() {
        let (mut subscriptions, mut session) = subscriptions(16);
        subscriptions.ask(&mut session, true);
        assert_eq!(asked(&mut session).iter().map(Vec::len).collect::<Vec<_>>(), [8, 8, 2]);
        subscriptions.ask(&mut session, false);
        let asked = asked(&mut session).concat();
        assert_eq!((asked.len(), asked.iter().any(|filter| filter.starts_with("$share"))), (17, false));
    }

    #[test]
    fn hints_are_asked_for_where_a_platform_looks_after_the_box() {
        let asked = |looked_after| {
            let topics = DeviceTopics { device: "box".parse().unwrap(), group: None, looked_after };
            let filters = wanted(&topics, &Bindings::new(&[])).into_iter();
            filters.map(|subscription| subscription.filter.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(asked(true), ["ledge/v1/box/infer/#", "ledge/v1/box/desired"]);
        assert_eq!(asked(false), ["ledge/v1/box/infer/#"]);
    }

    #[test]
    fn only_what_was_refused_is_asked_for_again() {
        let (mut subscriptions, mut session) = subscriptions(2);
        subscriptions.ask(&mut session, true);
        asked(&mut session);
        assert_eq!(subscriptions.note(&"cameras/0".parse().unwrap(), Reason::NOT_AUTHORIZED), Some(2));
        assert_eq!(subscriptions.note(&"cameras/1".parse().unwrap(), Reason(1)), None);
        assert!(subscriptions.lacks_one());
        subscriptions.ask_again(&mut session);
        assert_eq!(asked(&mut session), [["cameras/0"]]);
        assert!(!subscriptions.lacks_one());
    }
}
