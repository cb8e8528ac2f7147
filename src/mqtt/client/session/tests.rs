use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

const WINDOW_OF_3: u16 = 3;

/// A new session at a broker that accepts three messages at a time.
fn limits() -> ConnAck {
    ConnAck { receive_maximum: WINDOW_OF_3, ..ConnAck::accepting() }
}

fn message(payload: &str, qos: Qos) -> MqttMessage {
    let properties = crate::client::packet::MessageProperties::default();
    MqttMessage { topic: "t".parse().unwrap(), payload: payload.to_owned().into(), qos, retain: false, properties }
}

fn outbound(payload: &str, qos: Qos, settles: Option<PendingDelivery>) -> OutboundMessage {
    OutboundMessage { message: message(payload, qos), content: EgressContent::Answer, settles, receipt: None }
}

fn received(id: u16, duplicate: bool) -> IncomingPacket {
    let message = message("request", Qos::AtLeastOnce);
    IncomingPacket::Publish(ReceivedMessage {
        message,
        packet_id: PacketId::new(id),
        duplicate,
        oversized: None,
        subscription_ids: Vec::new(),
    })
}

fn delivery(event: SessionEvent) -> PendingDelivery {
    match event {
        SessionEvent::Message(_, Some(delivery)) => delivery,
        other => panic!("no delivery: {other:?}"),
    }
}

fn acknowledge(id: u16, reason: ReasonCode) -> IncomingPacket {
    IncomingPacket::PubAck { packet_id: PacketId::new(id).unwrap(), reason }
}

/// The packets that are sent now, in short.
fn sent(session: &mut MqttSession) -> Vec<String> {
    let steps = std::iter::from_fn(|| session.next(|_| 100));
    let show = |step| match step {
        NextPacket::Send(_, OutgoingPacket::Publish { message, packet_id, duplicate }) => {
            let again = if duplicate { " again" } else { "" };
            let id = packet_id.map_or(0, PacketId::get);
            format!("{id}:{}{again}", String::from_utf8_lossy(&message.payload))
        }
        NextPacket::Send(_, OutgoingPacket::PubAck { packet_id, reason }) => {
            format!("ack {packet_id} {:02x}", reason.0)
        }
        NextPacket::Send(_, other) => format!("{other:?}"),
        NextPacket::TooLarge(outbound) => format!("too large: {}", String::from_utf8_lossy(&outbound.message.payload)),
    };
    steps.map(show).collect()
}

/// The number of deliveries that the broker expects to be acknowledged.
fn owed(session: &MqttSession) -> usize {
    session.pending_acks.len() + session.earlier_pending_acks.len()
}

fn session() -> MqttSession {
    let mut session = MqttSession::default();
    session.connected(&limits());
    session
}

#[test]
fn no_more_is_in_flight_than_the_broker_takes_and_unacknowledged_messages_pass_by() {
    let mut session = session();
    for payload in ["a", "b", "c", "d"] {
        session.publish(outbound(payload, Qos::AtLeastOnce, None));
    }
    session.publish(outbound("free", Qos::AtMostOnce, None));
    assert_eq!(sent(&mut session), ["0:free", "1:a", "2:b", "3:c"]);
    assert_eq!(session.receive(acknowledge(2, ReasonCode::SUCCESS)), SessionEvent::None);
    assert_eq!(sent(&mut session), ["4:d"]);
    for id in [1, 3, 4] {
        session.receive(acknowledge(id, ReasonCode::SUCCESS));
    }
    assert!(session.is_idle());
    assert_eq!(session.outbox_bytes(), 0);
}

#[test]
fn a_broker_with_the_session_gets_everything_unacknowledged_again_in_order_and_one_without_it_as_new() {
    let mut session = session();
    for payload in ["a", "b", "c", "d"] {
        session.publish(outbound(payload, Qos::AtLeastOnce, None));
    }
    assert_eq!(sent(&mut session), ["1:a", "2:b", "3:c"]);
    session.disconnected();
    assert!(sent(&mut session).is_empty());
    session.connected(&ConnAck { session_present: true, receive_maximum: 2, ..limits() });
    assert_eq!(sent(&mut session), ["1:a again", "2:b again"]);
    session.connected(&limits());
    assert_eq!(sent(&mut session), ["4:a", "5:b", "6:c"]);
}

#[test]
fn deliveries_are_acknowledged_in_the_order_they_came_each_after_the_broker_took_its_answer() {
    let mut session = session();
    let [first, second, third] = [7, 8, 9].map(|id| delivery(session.receive(received(id, false))));
    session.settle(third, ReasonCode::SUCCESS);
    session.publish(outbound("answer", Qos::AtLeastOnce, Some(second)));
    assert_eq!(sent(&mut session), ["1:answer"]);
    session.settle(first, ReasonCode::SUCCESS);
    assert_eq!(sent(&mut session), ["ack 7 00"]);
    session.receive(acknowledge(1, ReasonCode::NO_MATCHING_SUBSCRIBERS));
    assert_eq!(sent(&mut session), ["ack 8 00", "ack 9 00"]);
    assert_eq!(owed(&session), 0);
}

#[test]
fn a_delivery_with_several_answers_is_acknowledged_after_the_last() {
    let mut session = session();
    let request = delivery(session.receive(received(7, false)));
    session.expect_settlements(request, 2);
    session.publish(outbound("a", Qos::AtLeastOnce, Some(request)));
    session.settle(request, ReasonCode::SUCCESS);
    assert_eq!(sent(&mut session), ["1:a"]);
    session.receive(acknowledge(1, ReasonCode::SUCCESS));
    assert_eq!(sent(&mut session), ["ack 7 00"]);
}

#[test]
fn an_answer_that_the_broker_refuses_is_told_and_its_delivery_refused_in_turn() {
    let mut session = session();
    let request = delivery(session.receive(received(7, false)));
    session.publish(outbound("answer", Qos::AtLeastOnce, Some(request)));
    assert_eq!(sent(&mut session), ["1:answer"]);
    let refused = session.receive(acknowledge(1, ReasonCode::NOT_AUTHORIZED));
    assert!(
        matches!(refused, SessionEvent::Refused(outbound, ReasonCode::NOT_AUTHORIZED) if outbound.settles == Some(request))
    );
    assert_eq!(sent(&mut session), ["ack 7 87"]);
}

#[test]
fn a_redelivery_of_what_is_still_being_dealt_with_is_not_dealt_with_twice() {
    let mut session = session();
    let request = delivery(session.receive(received(7, false)));
    session.connected(&ConnAck { session_present: true, ..limits() });
    assert_eq!(session.receive(received(7, true)), SessionEvent::None);
    session.settle(request, ReasonCode::SUCCESS);
    assert_eq!(sent(&mut session), ["ack 7 00"]);
    // A delivery that ended while there was no connection is acknowledged when it comes again.
    let request = delivery(session.receive(received(8, false)));
    session.disconnected();
    session.settle(request, ReasonCode::SUCCESS);
    session.connected(&ConnAck { session_present: true, ..limits() });
    assert!(sent(&mut session).is_empty());
    assert_eq!(session.receive(received(8, true)), SessionEvent::None);
    assert_eq!(sent(&mut session), ["ack 8 00"]);
}

#[test]
fn what_the_broker_let_expire_holds_up_no_later_acknowledgement() {
    let mut session = session();
    let [expired, kept] = [7, 8].map(|id| delivery(session.receive(received(id, false))));
    session.connected(&ConnAck { session_present: true, ..limits() });
    session.settle(kept, ReasonCode::SUCCESS);
    assert_eq!(session.receive(received(8, true)), SessionEvent::None);
    assert_eq!(sent(&mut session), ["ack 8 00"]);
    session.settle(expired, ReasonCode::SUCCESS);
    assert!(sent(&mut session).is_empty());
    // The number may be given to another message.
    let other = delivery(session.receive(received(7, false)));
    session.settle(other, ReasonCode::SUCCESS);
    assert_eq!((sent(&mut session), owed(&session)), (vec!["ack 7 00".to_owned()], 0));
}

#[test]
fn a_message_larger_than_the_broker_takes_comes_back_with_its_delivery_open() {
    let mut session = MqttSession::default();
    session.connected(&ConnAck { maximum_packet_size: Some(99), ..limits() });
    let request = delivery(session.receive(received(7, false)));
    for qos in [Qos::AtLeastOnce, Qos::AtMostOnce] {
        session.publish(outbound("big", qos, Some(request)));
        assert_eq!(sent(&mut session), ["too large: big"]);
        assert_eq!((session.outbox_bytes(), owed(&session)), (0, 1));
    }
}

#[test]
fn a_broker_that_takes_less_than_before_gets_no_larger_packet_again() {
    let mut session = session();
    session.publish(outbound("big", Qos::AtLeastOnce, None));
    assert_eq!(sent(&mut session), ["1:big"]);
    session.connected(&ConnAck { session_present: true, maximum_packet_size: Some(99), ..limits() });
    assert_eq!(sent(&mut session), ["too large: big"]);
    assert_eq!((session.outbox_bytes(), session.is_idle()), (0, true));
}

#[test]
fn a_message_that_ends_every_connection_is_given_up_and_its_delivery_settled() {
    let mut session = session();
    let request = delivery(session.receive(received(7, false)));
    session.publish(outbound("poison", Qos::AtLeastOnce, Some(request)));
    session.publish(outbound("good", Qos::AtLeastOnce, None));
    assert_eq!(sent(&mut session), ["1:poison", "2:good"]);
    let again = ConnAck { session_present: true, ..limits() };
    for _ in 1..UNACKNOWLEDGED_CONNECTIONS_MAX {
        assert_eq!(session.connected(&again), None);
        assert_eq!(sent(&mut session), ["1:poison again", "2:good again"]);
    }
    let given_up = session.connected(&again).map(|outbound| outbound.message.payload);
    assert_eq!(given_up.as_deref(), Some(&b"poison"[..]));
    session.receive(received(7, true));
    assert_eq!(sent(&mut session), ["ack 7 80", "2:good again"]);
}

#[test]
fn a_connection_on_which_something_was_acknowledged_speaks_for_all_messages() {
    let mut session = session();
    session.publish(outbound("slow", Qos::AtLeastOnce, None));
    for number in 2..2 * u16::try_from(UNACKNOWLEDGED_CONNECTIONS_MAX).unwrap() {
        session.publish(outbound("taken", Qos::AtLeastOnce, None));
        assert_eq!(sent(&mut session).last(), Some(&format!("{number}:taken")));
        session.receive(acknowledge(number, ReasonCode::SUCCESS));
        assert_eq!(session.connected(&ConnAck { session_present: true, ..limits() }), None);
    }
}

#[test]
fn a_broker_that_acknowledges_nothing_gets_everything_once() {
    let mut session = MqttSession::default();
    session.connected(&ConnAck { maximum_qos: Qos::AtMostOnce, retain_available: false, ..limits() });
    let mut kept = outbound("kept", Qos::AtLeastOnce, None);
    kept.message.retain = true;
    session.publish(kept);
    let Some(NextPacket::Send(_, OutgoingPacket::Publish { message, packet_id: None, .. })) = session.next(|_| 1)
    else {
        panic!()
    };
    assert_eq!((message.qos, message.retain), (Qos::AtMostOnce, false));
    assert!(session.is_idle());
}

#[test]
fn subscriptions_are_told_one_by_one() {
    let mut session = session();
    let filters = ["a/#", "b/+"].map(|text| text.parse::<TopicFilter>().unwrap());
    let subscription = |filter: &TopicFilter| Subscription {
        filter: filter.clone(),
        qos: Qos::AtLeastOnce,
        no_local: true,
        retain_handling: crate::client::packet::RetainHandling::Never,
        id: None,
    };
    session.subscribe(filters.iter().map(subscription).collect());
    let Some(NextPacket::Send(EgressContent::Protocol, OutgoingPacket::Subscribe { packet_id, .. })) =
        session.next(|_| 1)
    else {
        panic!()
    };
    let reasons = vec![ReasonCode(1), ReasonCode::NOT_AUTHORIZED];
    let told = session.receive(IncomingPacket::SubAck { packet_id, reasons: reasons.clone() });
    assert_eq!(told, SessionEvent::Subscribed(filters.into_iter().zip(reasons).collect()));
}

/// A broker that follows the standard, over a connection that breaks.
#[derive(Default)]
struct Broker {
    /// The number of times that each payload came from the client.
    taken: BTreeMap<String, usize>,
    /// Messages of the client to acknowledge.
    to_acknowledge: VecDeque<PacketId>,
    /// Its own messages that are sent and not acknowledged, in order.
    unacknowledged: VecDeque<(u16, u32)>,
    next_id: u16,
    next_request: u32,
}

#[derive(Debug, Clone)]
enum Act {
    Request,
    Answer(usize),
    Publish,
    Exchange,
    Acknowledge,
    Break { session_lost: bool },
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => Just(Act::Request),
        3 => (0..8_usize).prop_map(Act::Answer),
        2 => Just(Act::Publish),
        4 => Just(Act::Exchange),
        4 => Just(Act::Acknowledge),
        1 => any::<bool>().prop_map(|session_lost| Act::Break { session_lost }),
    ]
}

/// The session and its broker, and the invariants between them.
struct World {
    session: MqttSession,
    broker: Broker,
    /// Requests in progress at the client.
    open: Vec<(u32, PendingDelivery)>,
    /// Requests with answers that have reached the broker.
    answered: BTreeSet<u32>,
    published: u32,
    /// Connections that broke since the broker last acknowledged anything.
    unacknowledged_connections: u32,
    /// Payloads of messages that the session dropped because no connection on which they were sent lasted.
    given_up: BTreeSet<String>,
}

impl World {
    fn take(&mut self, packet: IncomingPacket, request: Option<u32>) {
        match self.session.receive(packet) {
            SessionEvent::Message(_, Some(delivery)) => self.open.push((request.unwrap(), delivery)),
            SessionEvent::None => {}
            other => panic!("{other:?}"),
        }
    }

    fn exchange(&mut self) {
        while let Some(step) = self.session.next(|_| 1) {
            let NextPacket::Send(_, packet) = step else { panic!("{step:?}") };
            match packet {
                OutgoingPacket::Publish { message, packet_id, .. } => {
                    let id = packet_id.unwrap();
                    let payload = String::from_utf8(message.payload.to_vec()).unwrap();
                    *self.broker.taken.entry(payload).or_default() += 1;
                    assert!(!self.broker.to_acknowledge.contains(&id), "packet id {id} in use");
                    self.broker.to_acknowledge.push_back(id);
                    assert!(self.broker.to_acknowledge.len() <= usize::from(WINDOW_OF_3));
                }
                OutgoingPacket::PubAck { packet_id, .. } => {
                    let (id, request) = self.broker.unacknowledged.pop_front().expect("nothing to acknowledge");
                    assert_eq!(id, packet_id.get(), "acknowledgements keep the order of the deliveries");
                    assert!(
                        self.answered.contains(&request) || self.given_up.contains(&format!("answer {request}")),
                        "request {request} acknowledged without an answer"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn acknowledge(&mut self) {
        if let Some(packet_id) = self.broker.to_acknowledge.pop_front() {
            // The broker has the message before it acknowledges it.
            self.note_answers();
            self.unacknowledged_connections = 0;
            self.take(IncomingPacket::PubAck { packet_id, reason: ReasonCode::SUCCESS }, None);
        }
    }

    fn note_answers(&mut self) {
        let answers =
            self.broker.taken.keys().filter_map(|payload| payload.strip_prefix("answer ")?.parse::<u32>().ok());
        self.answered.extend(answers);
    }

    fn reconnect(&mut self, session_lost: bool) {
        self.session.disconnected();
        self.broker.to_acknowledge.clear();
        if session_lost {
            self.broker.unacknowledged.clear();
        }
        self.unacknowledged_connections += 1;
        if let Some(outbound) = self.session.connected(&ConnAck { session_present: !session_lost, ..limits() }) {
            assert!(self.unacknowledged_connections >= UNACKNOWLEDGED_CONNECTIONS_MAX, "given up too early");
            self.unacknowledged_connections = 0;
            self.given_up.insert(String::from_utf8(outbound.message.payload.to_vec()).unwrap());
        }
        for (id, request) in self.broker.unacknowledged.clone() {
            self.take(received(id, true), Some(request));
        }
    }

    fn act(&mut self, act: &Act) {
        match act {
            Act::Request if self.broker.unacknowledged.len() < 5 => {
                self.broker.next_id = self.broker.next_id % 9 + 1;
                while self.broker.unacknowledged.iter().any(|(id, _)| *id == self.broker.next_id) {
                    self.broker.next_id = self.broker.next_id % 9 + 1;
                }
                self.broker.next_request += 1;
                let (id, request) = (self.broker.next_id, self.broker.next_request);
                self.broker.unacknowledged.push_back((id, request));
                self.take(received(id, false), Some(request));
            }
            Act::Request => {}
            Act::Answer(which) => {
                if !self.open.is_empty() {
                    let (request, delivery) = self.open.remove(which % self.open.len());
                    self.session.publish(outbound(&format!("answer {request}"), Qos::AtLeastOnce, Some(delivery)));
                }
            }
            Act::Publish => {
                self.published += 1;
                self.session.publish(outbound(&format!("report {}", self.published), Qos::AtLeastOnce, None));
            }
            Act::Exchange => self.exchange(),
            Act::Acknowledge => self.acknowledge(),
            Act::Break { session_lost } => self.reconnect(*session_lost),
        }
    }
}

proptest! {
    #[test]
    fn whatever_breaks_everything_published_arrives_and_every_request_is_acknowledged_after_its_answer(
        acts in proptest::collection::vec(act(), 0..200),
    ) {
        let mut world = World {
            session: MqttSession::default(),
            broker: Broker::default(),
            open: Vec::new(),
            answered: BTreeSet::new(),
            published: 0,
            unacknowledged_connections: 0,
            given_up: BTreeSet::new(),
        };
        world.session.connected(&limits());
        for act in &acts {
            world.act(act);
        }
        // In the end answer all requests and exchange the remaining packets.
        while !world.open.is_empty() {
            world.act(&Act::Answer(0));
        }
        for _ in 0..1000 {
            world.exchange();
            world.acknowledge();
        }
        prop_assert!(world.session.is_idle());
        prop_assert_eq!((world.session.outbox_bytes(), world.session.pending_acks.len()), (0, 0));
        prop_assert!(world.broker.unacknowledged.is_empty());
        let reports = (1..=world.published).map(|report| format!("report {report}"));
        let answers = (1..=world.broker.next_request).map(|request| format!("answer {request}"));
        for name in reports.chain(answers) {
            let arrived = world.broker.taken.contains_key(&name);
            prop_assert!(arrived || world.given_up.contains(&name), "{} lost", name);
        }
    }
}
