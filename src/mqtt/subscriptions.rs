//! The subscriptions of this box, and those that the broker refused.

use super::bindings::Bindings;
use super::client::packet::{Qos, Reason, RetainHandling, Subscription};
use super::client::session::Session;
use super::topics::{DeviceTopics, TopicFilter};

/// Filters in one SUBSCRIBE: some brokers, that of AWS among them, accept no more.
pub const FILTERS_PER_PACKET: usize = 8;

/// The subscriptions of this box.
#[derive(Debug)]
pub struct Subscriptions {
    wanted: Vec<Subscription>,
    /// Indices of those that were refused on this connection.
    refused: Vec<usize>,
}

/// All subscriptions that this box needs, each filter once; `heard` are those of other parts.
pub fn wanted_subscriptions(topics: &DeviceTopics, bindings: &Bindings, heard: &[TopicFilter]) -> Vec<Subscription> {
    // The box must not receive its own messages; the standard forbids this option for a shared subscription.
    let subscription = |(filter, qos, retain_handling): (TopicFilter, Qos, RetainHandling)| Subscription {
        no_local: !filter.is_shared(),
        filter,
        qos,
        retain_handling,
    };
    let own = [Some(topics.infer()), topics.group_infer()].into_iter().flatten();
    let own = own.map(|filter| (filter, Qos::AtLeastOnce, RetainHandling::Never));
    // The retained hint reaches a box that was away for hours.
    let desired = topics.desired().map(|filter| (filter, Qos::AtLeastOnce, RetainHandling::IfNew));
    let bound = bindings.subscriptions(topics.group.as_ref());
    let heard: Vec<_> = heard.iter().filter(|heard| !bound.iter().any(|(bound, _)| bound == *heard)).collect();
    let heard = heard.into_iter().map(|filter| (filter.clone(), Qos::AtLeastOnce, RetainHandling::IfNew));
    own.chain(desired)
        .chain(bound.into_iter().map(|(filter, qos)| (filter, qos, RetainHandling::IfNew)))
        .chain(heard)
        .map(subscription)
        .collect()
}

impl Subscriptions {
    pub fn new(topics: &DeviceTopics, bindings: &Bindings, heard: &[TopicFilter]) -> Self {
        Self { wanted: wanted_subscriptions(topics, bindings, heard), refused: Vec::new() }
    }

    /// The filters of shared subscriptions.
    pub fn shared(&self) -> impl Iterator<Item = &TopicFilter> {
        self.wanted.iter().map(|subscription| &subscription.filter).filter(|filter| filter.is_shared())
    }

    /// Subscribes to all of them on a new connection; to the shared ones only where the broker supports them.
    pub fn ask(&mut self, session: &mut Session, knows_shared: bool) {
        self.refused.clear();
        let wanted = self.wanted.iter().filter(|subscription| knows_shared || !subscription.filter.is_shared());
        send(session, wanted);
    }

    /// Sends the refused ones again: the broker's access list may have changed.
    pub fn ask_again(&mut self, session: &mut Session) {
        let refused = std::mem::take(&mut self.refused);
        send(session, refused.into_iter().filter_map(|index| self.wanted.get(index)));
    }

    /// Returns `true` if the broker has refused one on this connection.
    pub fn lacks_one(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Notes the broker's answer. Returns the number of the subscription when it was refused.
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
    for packet in subscriptions.chunks(FILTERS_PER_PACKET) {
        session.subscribe(packet.to_vec());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bindings::BindingConfig;
    use crate::client::packet::{ConnAck, Outgoing};
    use crate::client::session::NextPacket;

    fn subscriptions(count: usize) -> (Subscriptions, Session) {
        let binding = |index| -> BindingConfig {
            let text = format!(r#"{{"topic": "cameras/{index}", "model": "m", "publish": "seen/{index}"}}"#);
            serde_json::from_str(&text).unwrap()
        };
        let bindings: Vec<_> = (0..count).map(binding).collect();
        let topics = DeviceTopics { device: "box".parse().unwrap(), group: "shop".parse().ok(), has_platform: false };
        let mut session = Session::default();
        session.connected(&ConnAck::accepting());
        (Subscriptions::new(&topics, &Bindings::new(&bindings), &[]), session)
    }

    fn asked(session: &mut Session) -> Vec<Vec<String>> {
        let steps = std::iter::from_fn(|| session.next(|_| 1));
        let filters = steps.map(|step| match step {
            NextPacket::Send(_, Outgoing::Subscribe { subscriptions, .. }) => {
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
        let asked = |has_platform| {
            let topics = DeviceTopics { device: "box".parse().unwrap(), group: None, has_platform };
            let filters = wanted_subscriptions(&topics, &Bindings::new(&[]), &[]).into_iter();
            filters.map(|subscription| subscription.filter.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(asked(true), ["ledge/v1/box/infer/#", "ledge/v1/box/desired"]);
        assert_eq!(asked(false), ["ledge/v1/box/infer/#"]);
    }

    #[test]
    fn a_filter_of_a_part_and_of_a_binding_is_asked_for_once() {
        let topics = DeviceTopics { device: "box".parse().unwrap(), group: None, has_platform: false };
        let binding = r#"{"topic": "home/status", "model": "m", "publish": "seen"}"#;
        let bindings = Bindings::new(&[serde_json::from_str(binding).unwrap()]);
        let heard = ["home/status".parse().unwrap(), "away/status".parse().unwrap()];
        let wanted = wanted_subscriptions(&topics, &bindings, &heard).into_iter();
        let filters: Vec<_> = wanted.map(|subscription| subscription.filter.to_string()).collect();
        assert_eq!(filters, ["ledge/v1/box/infer/#", "home/status", "away/status"]);
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
