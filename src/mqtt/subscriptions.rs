//! The subscriptions of one session, and those that the broker refused.

use super::client::packet::{ReasonCode, Subscription};
use super::client::session::MqttSession;
use super::plan::{SessionName, SubscriptionPlan};
use super::topics::TopicFilter;

/// Filters in one packet: some brokers, that of AWS among them, accept no more.
pub const FILTERS_PER_PACKET: usize = 8;

/// The subscriptions of a session.
#[derive(Debug)]
pub struct SessionSubscriptions {
    wanted: Vec<Subscription>,
    /// The filters that other sessions have, and an earlier plan may have left in this one.
    of_others: Vec<TopicFilter>,
    /// Indices of those that were refused on this connection.
    refused: Vec<usize>,
}

impl SessionSubscriptions {
    pub fn new(plan: &SubscriptionPlan, session: SessionName) -> Self {
        let wanted = plan.of(session).cloned().collect();
        Self { wanted, of_others: plan.of_others(session), refused: Vec::new() }
    }

    /// The filters of shared subscriptions.
    pub fn shared(&self) -> impl Iterator<Item = &TopicFilter> {
        self.wanted.iter().map(|subscription| &subscription.filter).filter(|filter| filter.is_shared())
    }

    /// Subscribes to all of them on a new connection; to the shared ones only where the broker supports them.
    pub fn ask(&mut self, session: &mut MqttSession, knows_shared: bool) {
        self.refused.clear();
        let wanted = self.wanted.iter().filter(|subscription| knows_shared || !subscription.filter.is_shared());
        send(session, wanted);
    }

    /// Ends the subscriptions of other sessions in this one, before those subscribe: each message would come twice.
    pub fn leave_others(&self, session: &mut MqttSession) {
        for packet in self.of_others.chunks(FILTERS_PER_PACKET) {
            session.unsubscribe(packet.to_vec());
        }
    }

    /// Sends the refused ones again: the broker's access list may have changed.
    pub fn ask_again(&mut self, session: &mut MqttSession) {
        let refused = std::mem::take(&mut self.refused);
        send(session, refused.into_iter().filter_map(|index| self.wanted.get(index)));
    }

    /// Returns `true` if the broker has refused one on this connection.
    pub fn lacks_one(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Notes the broker's answer. Returns the number of the subscription when it was refused.
    pub fn note(&mut self, filter: &TopicFilter, reason: ReasonCode) -> Option<usize> {
        let index = self.wanted.iter().position(|subscription| subscription.filter == *filter)?;
        if !reason.is_failure() {
            return None;
        }
        self.refused.push(index);
        Some(index)
    }
}

/// The subscriptions in packets as brokers accept them. One with an identifier is in a separate packet (MQTT 5.0,
/// section 3.8.2.1.2).
pub fn packets<'s>(subscriptions: impl Iterator<Item = &'s Subscription>) -> Vec<Vec<Subscription>> {
    let (alone, together): (Vec<Subscription>, Vec<_>) = subscriptions.cloned().partition(|one| one.id.is_some());
    let together = together.chunks(FILTERS_PER_PACKET).map(<[Subscription]>::to_vec);
    together.chain(alone.into_iter().map(|one| vec![one])).collect()
}

fn send<'s>(session: &mut MqttSession, subscriptions: impl Iterator<Item = &'s Subscription>) {
    for packet in packets(subscriptions) {
        session.subscribe(packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bindings::{BindingConfig, Bindings};
    use crate::client::packet::{ConnAck, MqttVersion, OutgoingPacket};
    use crate::client::session::NextPacket;
    use crate::plan::SubscriptionPlanRules;
    use crate::topics::DeviceTopics;

    fn subscriptions(count: usize, has_ids: bool) -> (SessionSubscriptions, MqttSession) {
        let binding = |index| -> BindingConfig {
            let text = format!(r#"{{"topic": "cameras/{index}", "model": "m", "publish": "seen/{index}"}}"#);
            serde_json::from_str(&text).unwrap()
        };
        let bindings: Vec<_> = (0..count).map(binding).collect();
        let topics = DeviceTopics { device: "box".parse().unwrap(), group: "shop".parse().ok(), has_platform: false };
        let mut session = MqttSession::default();
        session.connected(&ConnAck::accepting());
        let plan = SubscriptionPlan::new(
            &topics,
            &Bindings::new(&bindings),
            &[],
            SubscriptionPlanRules { version: MqttVersion::V5, has_ids, splits_rows: true },
        );
        (SessionSubscriptions::new(&plan, SessionName::Main), session)
    }

    fn asked(session: &mut MqttSession) -> Vec<Vec<String>> {
        let steps = std::iter::from_fn(|| session.next(|_| 1));
        let filters = steps.map(|step| match step {
            NextPacket::Send(_, OutgoingPacket::Subscribe { subscriptions, .. }) => {
                subscriptions.into_iter().map(|subscription| subscription.filter.to_string()).collect()
            }
            other => panic!("{other:?}"),
        });
        filters.collect()
    }

    #[test]
    fn many_go_in_packets_of_eight_and_shared_ones_only_where_they_are_known() {
        let (mut subscriptions, mut session) = subscriptions(16, false);
        subscriptions.ask(&mut session, true);
        assert_eq!(asked(&mut session).iter().map(Vec::len).collect::<Vec<_>>(), [8, 8, 2]);
        subscriptions.ask(&mut session, false);
        let asked = asked(&mut session).concat();
        assert_eq!((asked.len(), asked.iter().any(|filter| filter.starts_with("$share"))), (17, false));
    }

    #[test]
    fn one_with_an_identifier_has_a_packet_of_its_own() {
        let (mut subscriptions, mut session) = subscriptions(3, true);
        subscriptions.ask(&mut session, true);
        let calls = vec!["ledge/v1/box/infer/#".to_owned(), "$share/shop/ledge/v1/shop/infer/#".to_owned()];
        let one = |index| vec![format!("cameras/{index}")];
        assert_eq!(asked(&mut session), [calls, one(0), one(1), one(2)]);
    }

    #[test]
    fn only_what_was_refused_is_asked_for_again() {
        let (mut subscriptions, mut session) = subscriptions(2, false);
        subscriptions.ask(&mut session, true);
        asked(&mut session);
        assert_eq!(subscriptions.note(&"cameras/0".parse().unwrap(), ReasonCode::NOT_AUTHORIZED), Some(2));
        assert_eq!(subscriptions.note(&"cameras/1".parse().unwrap(), ReasonCode(1)), None);
        assert!(subscriptions.lacks_one());
        for own in ["ledge/v1/box/infer/#", "$share/shop/ledge/v1/shop/infer/#"] {
            subscriptions.note(&own.parse().unwrap(), ReasonCode(1));
        }
        subscriptions.ask_again(&mut session);
        assert_eq!(asked(&mut session), [["cameras/0"]]);
        assert!(!subscriptions.lacks_one());
    }
}
