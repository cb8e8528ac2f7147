//! One request after the other over an MQTT connection: the packets of each, and the message that answers it.
//!
//! Pure: packets in, packets out.

use bytes::Bytes;
use ledge_egress::EgressContent;
use ledge_mqtt::client::packet::{
    ConnAck, IncomingPacket, MqttMessage, OutgoingPacket, Qos, ReasonCode, RetainHandling, Subscription,
};
use ledge_mqtt::client::session::{MqttSession, NextPacket, OutboundMessage, SessionEvent};
use ledge_mqtt::topics::{TopicFilter, TopicName};

use crate::random::Random;

/// The reason why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    #[error("the broker refuses the subscription to {0}: {1}")]
    Subscription(TopicFilter, ReasonCode),
    #[error("the broker refuses the request: {0}")]
    Refused(ReasonCode),
    #[error("the request is larger than the broker accepts")]
    TooLarge,
    /// No client is subscribed to the topic of the request.
    #[error("no client receives the request: check that the box is connected to this broker, and its name in --device")]
    NoReceiver,
    #[error("the broker closed the connection: {0}")]
    Disconnected(ReasonCode),
}

/// The event of a received packet.
#[derive(Debug, PartialEq, Eq)]
pub enum DialogueEvent {
    /// The answer to the last request.
    Answer(MqttMessage),
    /// The broker delivers answers from now on.
    Subscribed,
    /// A packet that is neither.
    Unrelated,
}

/// The state of a connection with one request in flight.
#[derive(Debug)]
pub struct Dialogue {
    session: MqttSession,
    /// The topic for the answers.
    answers: TopicName,
    /// The number of the last request. It begins at a random number, so that an answer to an earlier connection does
    /// not match.
    number: u64,
}

impl Dialogue {
    /// Begins on an accepted connection, with a subscription to `answers`.
    pub fn new(accepted: &ConnAck, answers: TopicName, filter: TopicFilter, qos: Qos) -> Self {
        let mut session = MqttSession::default();
        session.connected(accepted);
        let retain_handling = RetainHandling::Never;
        session.subscribe(vec![Subscription { filter, qos, no_local: false, retain_handling, id: None }]);
        Self { session, answers, number: Random::fresh().bits() }
    }

    /// Sends a request. An answer to an earlier request no longer matches.
    pub fn ask(&mut self, mut message: MqttMessage) {
        self.number = self.number.wrapping_add(1);
        message.properties.response_topic = Some(self.answers.as_str().to_owned());
        message.properties.correlation_data = Some(Bytes::copy_from_slice(&self.number.to_be_bytes()));
        self.session.publish(OutboundMessage { message, content: EgressContent::Call, settles: None, receipt: None });
    }

    /// The next packet to send. `size` measures a packet.
    pub fn next(
        &mut self,
        size: impl Fn(&OutgoingPacket) -> usize,
    ) -> Result<Option<(EgressContent, OutgoingPacket)>, Unanswered> {
        match self.session.next(size) {
            Some(NextPacket::Send(content, packet)) => Ok(Some((content, packet))),
            Some(NextPacket::TooLarge(_)) => Err(Unanswered::TooLarge),
            None => Ok(None),
        }
    }

    /// Takes a packet from the broker. Its acknowledgement, if it needs one, is sent with the next packets.
    pub fn take(&mut self, packet: IncomingPacket) -> Result<DialogueEvent, Unanswered> {
        if matches!(packet, IncomingPacket::PubAck { reason: ReasonCode::NO_MATCHING_SUBSCRIBERS, .. }) {
            return Err(Unanswered::NoReceiver);
        }
        match self.session.receive(packet) {
            SessionEvent::Message(received, delivery) => {
                if let Some(delivery) = delivery {
                    self.session.settle(delivery, ReasonCode::SUCCESS);
                }
                let correlation = received.message.properties.correlation_data.as_deref();
                let matches = correlation == Some(&self.number.to_be_bytes()[..]);
                Ok(if matches { DialogueEvent::Answer(received.message) } else { DialogueEvent::Unrelated })
            }
            SessionEvent::Refused(_, reason) => Err(Unanswered::Refused(reason)),
            SessionEvent::Subscribed(filters) => match filters.into_iter().find(|(_, reason)| reason.is_failure()) {
                Some((filter, reason)) => Err(Unanswered::Subscription(filter, reason)),
                None => Ok(DialogueEvent::Subscribed),
            },
            SessionEvent::Disconnected(reason, _) => Err(Unanswered::Disconnected(reason)),
            SessionEvent::Unusable(_) | SessionEvent::None => Ok(DialogueEvent::Unrelated),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_mqtt::client::packet::{MessageProperties, PacketId, ReceivedMessage};

    fn accepted() -> ConnAck {
        ConnAck { receive_maximum: 20, maximum_packet_size: Some(1000), ..ConnAck::accepting() }
    }

    fn dialogue() -> Dialogue {
        let mut dialogue = Dialogue::new(&accepted(), "a/1".parse().unwrap(), "a/1".parse().unwrap(), Qos::AtLeastOnce);
        let Some((_, OutgoingPacket::Subscribe { packet_id, .. })) = dialogue.next(|_| 9).unwrap() else { panic!() };
        let granted = IncomingPacket::SubAck { packet_id, reasons: vec![ReasonCode(1)] };
        assert_eq!(dialogue.take(granted), Ok(DialogueEvent::Subscribed));
        dialogue
    }

    fn request(payload: &'static str) -> MqttMessage {
        let properties = MessageProperties::default();
        let topic = "ledge/v1/box/infer/m".parse().unwrap();
        MqttMessage { topic, payload: payload.into(), qos: Qos::AtLeastOnce, retain: false, properties }
    }

    /// Sends a request, and returns the last published message.
    fn asked(dialogue: &mut Dialogue, payload: &'static str) -> (MqttMessage, PacketId) {
        dialogue.ask(request(payload));
        let sent = std::iter::from_fn(|| dialogue.next(|_| 9).unwrap());
        let published = sent.filter_map(|(content, packet)| match packet {
            OutgoingPacket::Publish { message, packet_id, .. } if content == EgressContent::Call => {
                Some((message, packet_id?))
            }
            _ => None,
        });
        published.last().unwrap()
    }

    fn answer(to: &MqttMessage, packet_id: u16) -> IncomingPacket {
        let properties = MessageProperties {
            correlation_data: to.properties.correlation_data.clone(),
            ..MessageProperties::default()
        };
        let topic = to.properties.response_topic.as_ref().unwrap().parse().unwrap();
        let message = MqttMessage { topic, properties, ..to.clone() };
        let packet_id = PacketId::new(packet_id);
        IncomingPacket::Publish(ReceivedMessage {
            message,
            packet_id,
            duplicate: false,
            oversized: None,
            subscription_ids: Vec::new(),
        })
    }

    #[test]
    fn only_the_answer_to_the_last_request_is_taken_and_each_is_acknowledged() {
        let mut dialogue = dialogue();
        let (first, _) = asked(&mut dialogue, "1");
        let (second, _) = asked(&mut dialogue, "2");
        assert_eq!(dialogue.take(answer(&first, 7)), Ok(DialogueEvent::Unrelated), "too late");
        let Ok(DialogueEvent::Answer(answered)) = dialogue.take(answer(&second, 8)) else { panic!() };
        assert_eq!((answered.topic.as_str(), &answered.payload[..]), ("a/1", &b"2"[..]));
        let acknowledged = std::iter::from_fn(|| dialogue.next(|_| 9).unwrap()).map(|(_, packet)| packet);
        let expected = [7, 8]
            .map(|id| OutgoingPacket::PubAck { packet_id: PacketId::new(id).unwrap(), reason: ReasonCode::SUCCESS });
        assert_eq!(acknowledged.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_request_that_no_client_receives_or_that_is_refused_is_an_error_at_once() {
        let reasons = [
            (ReasonCode::NO_MATCHING_SUBSCRIBERS, Unanswered::NoReceiver),
            (ReasonCode::NOT_AUTHORIZED, Unanswered::Refused(ReasonCode::NOT_AUTHORIZED)),
        ];
        for (reason, expected) in reasons {
            let mut dialogue = dialogue();
            let (_, packet_id) = asked(&mut dialogue, "1");
            assert_eq!(dialogue.take(IncomingPacket::PubAck { packet_id, reason }), Err(expected));
        }
        let mut dialogue = dialogue();
        dialogue.ask(request("large"));
        assert_eq!(dialogue.next(|_| 1001), Err(Unanswered::TooLarge));
    }

    #[test]
    fn a_refused_subscription_is_reported() {
        let filter: TopicFilter = "a/1".parse().unwrap();
        let mut dialogue = Dialogue::new(&accepted(), "a/1".parse().unwrap(), filter.clone(), Qos::AtMostOnce);
        let Some((_, OutgoingPacket::Subscribe { packet_id, .. })) = dialogue.next(|_| 9).unwrap() else { panic!() };
        let refused = IncomingPacket::SubAck { packet_id, reasons: vec![ReasonCode::NOT_AUTHORIZED] };
        assert_eq!(dialogue.take(refused), Err(Unanswered::Subscription(filter, ReasonCode::NOT_AUTHORIZED)));
    }
}
