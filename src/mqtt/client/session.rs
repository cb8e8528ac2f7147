//! The session between this client and a broker: messages to send, messages in flight, and acknowledgements due.
//!
//! Pure: no connection, no clock. It survives connections (MQTT 5.0, section 4.1), so a QoS 1 message is sent until the
//! broker has acknowledged it, and a received one is acknowledged only when it is settled.

use std::collections::VecDeque;

use ledge_egress::EgressContent;

use super::codec::PACKET_MAX_BYTES;
use super::packet::{
    ConnAck, IncomingPacket, MqttMessage, OutgoingPacket, PacketId, Qos, ReasonCode, ReceivedMessage, Subscription,
};
use super::receipt::PublicationReceipt;
use crate::topics::TopicFilter;

/// The most QoS 1 messages that wait for their acknowledgement, even if a broker accepts more.
const IN_FLIGHT_MAX: usize = 128;

/// Connections in a row that ended before the broker acknowledged anything, after which the oldest message is dropped.
const UNACKNOWLEDGED_CONNECTIONS_MAX: u32 = 5;

/// Memory for a message besides its payload and texts, in bytes.
const OUTBOUND_OVERHEAD_BYTES: usize = 256;

/// A QoS 1 message from the broker that is not acknowledged yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PendingDelivery(u64);

/// A message to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboundMessage {
    pub message: MqttMessage,
    /// The kind of content, for the egress policy.
    pub content: EgressContent,
    /// The delivery that it answers: settled when the broker has acknowledged this message.
    pub settles: Option<PendingDelivery>,
    /// Tells the part that published it what became of it.
    pub receipt: Option<PublicationReceipt>,
}

impl OutboundMessage {
    /// Tells the part that published it what became of it.
    pub fn end(&self, result: Result<(), &str>) {
        if let Some(receipt) = &self.receipt {
            receipt.settle(result.map_err(str::to_owned));
        }
    }

    fn bytes(&self) -> usize {
        let properties = &self.message.properties;
        let texts: usize = properties.user.iter().map(|(key, value)| key.len() + value.len()).sum();
        OUTBOUND_OVERHEAD_BYTES
            + self.message.payload.len()
            + self.message.topic.as_str().len()
            + properties.correlation_data.as_ref().map_or(0, bytes::Bytes::len)
            + texts
    }
}

/// The meaning of a packet from the broker for the application.
#[derive(Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// A message. One of QoS 1 has a delivery to settle.
    Message(ReceivedMessage, Option<PendingDelivery>),
    /// A message that cannot be read, and the reason. It is settled.
    Unusable(String),
    /// The broker refused a published message.
    Refused(OutboundMessage, ReasonCode),
    Subscribed(Vec<(TopicFilter, ReasonCode)>),
    /// The broker closes the connection.
    Disconnected(ReasonCode, Option<String>),
    None,
}

/// The next packet for the connection.
#[derive(Debug, PartialEq, Eq)]
pub enum NextPacket {
    Send(EgressContent, OutgoingPacket),
    /// A message is larger than the broker accepts, so it was removed. Its delivery is still to be settled.
    TooLarge(OutboundMessage),
}

/// The limits that the broker announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BrokerLimits {
    window: usize,
    packet_size: usize,
    qos: Qos,
    retain: bool,
}

#[derive(Debug)]
struct InFlight {
    packet_id: PacketId,
    outbound: OutboundMessage,
    sent: bool,
}

#[derive(Debug)]
struct PendingAck {
    delivery: PendingDelivery,
    packet_id: PacketId,
    /// The reason code of its end; `None` while it is in progress.
    settled: Option<ReasonCode>,
    /// The number of settlements that are missing.
    left: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub struct MqttSession {
    /// `None` without a connection.
    limits: Option<BrokerLimits>,
    /// Acknowledgements and subscriptions, which are sent first. They belong to the connection.
    control: VecDeque<OutgoingPacket>,
    /// Published, in order, and not acknowledged yet.
    in_flight: VecDeque<InFlight>,
    waiting: VecDeque<OutboundMessage>,
    /// Messages of QoS 0, which no window limits.
    waiting_unacknowledged: VecDeque<OutboundMessage>,
    /// Deliveries on this connection, in their order, which is also that of their acknowledgements.
    pending_acks: VecDeque<PendingAck>,
    /// Deliveries on earlier connections. The broker delivers them again while it still expects their acknowledgement.
    earlier_pending_acks: Vec<PendingAck>,
    subscribing: Vec<(PacketId, Vec<TopicFilter>)>,
    unsubscribing: Vec<PacketId>,
    last_packet_id: u16,
    last_delivery: u64,
    bytes: usize,
    /// Connections in a row on which messages were sent and none was acknowledged.
    unacknowledged_connections: u32,
}

impl MqttSession {
    /// The memory of the messages that wait or are in flight, in bytes.
    pub fn outbox_bytes(&self) -> usize {
        self.bytes
    }

    /// The number of messages that wait or are in flight.
    pub fn outbox_messages(&self) -> usize {
        self.in_flight.len() + self.waiting.len() + self.waiting_unacknowledged.len()
    }

    /// Returns `true` if every published message has been sent, and acknowledged if it is of QoS 1.
    pub fn is_idle(&self) -> bool {
        self.outbox_messages() == 0 && self.control.is_empty()
    }

    /// Starts a connection that the broker has accepted. Returns the message that is dropped, if there is one: the
    /// broker has closed several connections in a row after it was sent, so it must be the cause.
    ///
    /// A broker without the session has forgotten its deliveries, and delivers them again; messages that it had not
    /// acknowledged are sent again as new ones (section 4.4).
    pub fn connected(&mut self, broker: &ConnAck) -> Option<OutboundMessage> {
        self.disconnected();
        self.limits = Some(BrokerLimits {
            window: usize::from(broker.receive_maximum).clamp(1, IN_FLIGHT_MAX),
            packet_size: broker
                .maximum_packet_size
                .map_or(PACKET_MAX_BYTES, |size| PACKET_MAX_BYTES.min(size as usize)),
            qos: broker.maximum_qos,
            retain: broker.retain_available,
        });

        if !broker.session_present {
            self.earlier_pending_acks.clear();
            while let Some(unacknowledged) = self.in_flight.pop_back() {
                self.waiting.push_front(unacknowledged.outbound);
            }
        }

        if self.unacknowledged_connections < UNACKNOWLEDGED_CONNECTIONS_MAX {
            return None;
        }
        self.unacknowledged_connections = 0;
        let oldest = match self.in_flight.pop_front() {
            Some(message) => message.outbound,
            None => self.waiting.pop_front()?,
        };
        self.bytes -= oldest.bytes();
        if let Some(delivery) = oldest.settles {
            self.settle(delivery, ReasonCode::UNSPECIFIED_ERROR);
        }
        Some(oldest)
    }

    /// Notes that the connection is gone.
    pub fn disconnected(&mut self) {
        if self.in_flight.iter().any(|message| message.sent) {
            self.unacknowledged_connections += 1;
        }
        self.limits = None;
        self.control.clear();
        self.subscribing.clear();
        self.unsubscribing.clear();
        for message in &mut self.in_flight {
            message.sent = false;
        }
        self.earlier_pending_acks.extend(self.pending_acks.drain(..));
    }

    /// Subscribes, on this connection.
    pub fn subscribe(&mut self, subscriptions: Vec<Subscription>) {
        let Some(packet_id) = self.new_packet_id() else { return };
        let filters = subscriptions.iter().map(|subscription| subscription.filter.clone()).collect();
        self.subscribing.push((packet_id, filters));
        self.control.push_back(OutgoingPacket::Subscribe { packet_id, subscriptions });
    }

    /// Returns `true` if the broker has answered each SUBSCRIBE of this connection.
    pub fn is_subscribed(&self) -> bool {
        self.subscribing.is_empty()
    }

    pub fn unsubscribe(&mut self, filters: Vec<TopicFilter>) {
        let Some(packet_id) = self.new_packet_id() else { return };
        self.unsubscribing.push(packet_id);
        self.control.push_back(OutgoingPacket::Unsubscribe { packet_id, filters });
    }

    /// Returns `true` if the broker has answered each UNSUBSCRIBE of this connection.
    pub fn is_unsubscribed(&self) -> bool {
        self.unsubscribing.is_empty()
    }

    /// Sends a PINGREQ.
    pub fn ping(&mut self) {
        self.control.push_back(OutgoingPacket::PingReq);
    }

    /// Publishes a message, now or when there is a connection.
    pub fn publish(&mut self, outbound: OutboundMessage) {
        self.bytes += outbound.bytes();
        match outbound.message.qos {
            Qos::AtMostOnce => self.waiting_unacknowledged.push_back(outbound),
            Qos::AtLeastOnce => self.waiting.push_back(outbound),
        }
    }

    /// Publishes a retained message. It replaces one for the same topic that has not been sent.
    pub fn publish_latest(&mut self, outbound: OutboundMessage) {
        let topic = &outbound.message.topic;
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.message.topic == *topic)
            && let Some(older) = self.waiting.remove(at)
        {
            self.bytes -= older.bytes();
        }
        if let Some(at) = self.in_flight.iter().position(|old| !old.sent && old.outbound.message.topic == *topic)
            && let Some(older) = self.in_flight.remove(at)
        {
            self.bytes -= older.outbound.bytes();
        }
        self.publish(outbound);
    }

    /// Makes a delivery wait for this many settlements instead of one, because it has several answers.
    pub fn expect_settlements(&mut self, delivery: PendingDelivery, times: usize) {
        if let Some(pending) = self.find_pending_ack(delivery) {
            pending.left = times.max(1);
        }
    }

    /// Settles a delivery. It is acknowledged in the order of the deliveries (section 4.6).
    pub fn settle(&mut self, delivery: PendingDelivery, reason: ReasonCode) {
        // A delivery from before a lost session is not acknowledged.
        let Some(pending) = self.find_pending_ack(delivery) else { return };
        pending.left = pending.left.saturating_sub(1);
        if pending.left == 0 {
            pending.settled.get_or_insert(reason);
            self.acknowledge();
        }
    }

    fn find_pending_ack(&mut self, delivery: PendingDelivery) -> Option<&mut PendingAck> {
        self.pending_acks.iter_mut().chain(&mut self.earlier_pending_acks).find(|pending| pending.delivery == delivery)
    }

    fn acknowledge(&mut self) {
        while let Some(PendingAck { packet_id, settled: Some(reason), .. }) = self.pending_acks.front() {
            self.control.push_back(OutgoingPacket::PubAck { packet_id: *packet_id, reason: *reason });
            self.pending_acks.pop_front();
        }
    }

    /// Handles a packet from the broker.
    pub fn receive(&mut self, packet: IncomingPacket) -> SessionEvent {
        match packet {
            IncomingPacket::Publish(received) => self.deliver(received),
            IncomingPacket::Unusable { packet_id, reason } => {
                if let Some(packet_id) = packet_id {
                    self.add_pending_ack(packet_id, Some(ReasonCode::IMPLEMENTATION_SPECIFIC));
                    self.acknowledge();
                }
                SessionEvent::Unusable(reason)
            }
            IncomingPacket::PubAck { packet_id, reason } => self.acknowledged(packet_id, reason),
            IncomingPacket::SubAck { packet_id, reasons } => {
                let Some(at) = self.subscribing.iter().position(|(id, _)| *id == packet_id) else {
                    return SessionEvent::None;
                };
                let (_, filters) = self.subscribing.swap_remove(at);
                SessionEvent::Subscribed(filters.into_iter().zip(reasons).collect())
            }
            IncomingPacket::UnsubAck { packet_id } => {
                self.unsubscribing.retain(|open| *open != packet_id);
                SessionEvent::None
            }
            IncomingPacket::Disconnect { reason, text } => SessionEvent::Disconnected(reason, text),
            IncomingPacket::ConnAck(_) | IncomingPacket::PingResp => SessionEvent::None,
        }
    }

    fn deliver(&mut self, received: ReceivedMessage) -> SessionEvent {
        let Some(packet_id) = received.packet_id else { return SessionEvent::Message(received, None) };
        if self.pending_acks.iter().any(|pending| pending.packet_id == packet_id) {
            return SessionEvent::None;
        }
        // Delivered again after a reconnect while the first delivery is in progress: its end answers both. Without the
        // DUP flag, the broker has dropped the old message and uses the number for another.
        let earlier = self.earlier_pending_acks.iter().position(|pending| pending.packet_id == packet_id);
        let earlier = earlier.map(|at| self.earlier_pending_acks.swap_remove(at)).filter(|_| received.duplicate);
        if let Some(pending) = earlier {
            self.pending_acks.push_back(pending);
            self.acknowledge();
            return SessionEvent::None;
        }
        let delivery = self.add_pending_ack(packet_id, None);
        SessionEvent::Message(received, Some(delivery))
    }

    fn add_pending_ack(&mut self, packet_id: PacketId, settled: Option<ReasonCode>) -> PendingDelivery {
        self.last_delivery += 1;
        let delivery = PendingDelivery(self.last_delivery);
        self.pending_acks.push_back(PendingAck { delivery, packet_id, settled, left: 1 });
        delivery
    }

    fn acknowledged(&mut self, packet_id: PacketId, reason: ReasonCode) -> SessionEvent {
        let Some(at) = self.in_flight.iter().position(|message| message.packet_id == packet_id) else {
            return SessionEvent::None;
        };
        let Some(InFlight { outbound, .. }) = self.in_flight.remove(at) else { return SessionEvent::None };
        self.unacknowledged_connections = 0;
        self.bytes -= outbound.bytes();
        if let Some(delivery) = outbound.settles {
            self.settle(delivery, if reason.is_failure() { reason } else { ReasonCode::SUCCESS });
        }
        if reason.is_failure() {
            outbound.end(Err(&format!("the broker refuses it: {reason}")));
            return SessionEvent::Refused(outbound, reason);
        }
        outbound.end(Ok(()));
        SessionEvent::None
    }

    /// The next packet; `None` without one that the broker accepts now. `size` measures a packet.
    pub fn next(&mut self, size: impl Fn(&OutgoingPacket) -> usize) -> Option<NextPacket> {
        let limits = self.limits?;
        if let Some(packet) = self.control.pop_front() {
            return Some(NextPacket::Send(EgressContent::Protocol, packet));
        }
        if let Some(outbound) = self.waiting_unacknowledged.pop_front() {
            self.bytes -= outbound.bytes();
            let packet = publish(outbound.message.clone(), None, false, limits);
            if !limits.fits(&packet, size) {
                return Some(NextPacket::TooLarge(outbound));
            }
            // Nothing more will be known of it.
            outbound.end(Ok(()));
            if let Some(delivery) = outbound.settles {
                self.settle(delivery, ReasonCode::SUCCESS);
            }
            return Some(NextPacket::Send(outbound.content, packet));
        }
        self.next_acknowledged(limits, size)
    }

    fn next_acknowledged(
        &mut self,
        limits: BrokerLimits,
        size: impl Fn(&OutgoingPacket) -> usize,
    ) -> Option<NextPacket> {
        if self.in_flight.iter().filter(|message| message.sent).count() >= limits.window {
            return None;
        }
        // Resend in the old order, before any new message.
        if let Some(at) = self.in_flight.iter().position(|message| !message.sent) {
            let message = self.in_flight.get_mut(at)?;
            let packet = publish(message.outbound.message.clone(), Some(message.packet_id), true, limits);
            // The broker may accept less than before.
            if !limits.fits(&packet, size) {
                return self.in_flight.remove(at).map(|message| self.remove_too_large(message.outbound));
            }
            message.sent = true;
            return Some(NextPacket::Send(message.outbound.content, packet));
        }

        let outbound = self.waiting.pop_front()?;
        if limits.qos == Qos::AtMostOnce {
            // A broker without QoS 1 acknowledges nothing.
            self.waiting_unacknowledged.push_back(outbound);
            return self.next(size);
        }
        let Some(packet_id) = self.new_packet_id() else {
            self.waiting.push_front(outbound);
            return None;
        };
        let packet = publish(outbound.message.clone(), Some(packet_id), false, limits);
        if !limits.fits(&packet, size) {
            return Some(self.remove_too_large(outbound));
        }
        let content = outbound.content;
        self.in_flight.push_back(InFlight { packet_id, outbound, sent: true });
        Some(NextPacket::Send(content, packet))
    }

    fn remove_too_large(&mut self, outbound: OutboundMessage) -> NextPacket {
        self.bytes -= outbound.bytes();
        NextPacket::TooLarge(outbound)
    }

    /// A number that no unacknowledged packet has.
    fn new_packet_id(&mut self) -> Option<PacketId> {
        for _ in 0..=u16::MAX {
            self.last_packet_id = self.last_packet_id.wrapping_add(1);
            let Some(id) = PacketId::new(self.last_packet_id) else { continue };
            let used = self.in_flight.iter().any(|message| message.packet_id == id)
                || self.subscribing.iter().any(|(other, _)| *other == id)
                || self.unsubscribing.contains(&id);
            if !used {
                return Some(id);
            }
        }
        None
    }
}

impl BrokerLimits {
    /// Returns `true` if the broker accepts a packet. Most brokers accept any size, and then only a giant is measured.
    fn fits(&self, packet: &OutgoingPacket, size: impl Fn(&OutgoingPacket) -> usize) -> bool {
        let is_giant =
            matches!(packet, OutgoingPacket::Publish { message, .. } if message.payload.len() > PACKET_MAX_BYTES / 2);
        (self.packet_size == PACKET_MAX_BYTES && !is_giant) || size(packet) <= self.packet_size
    }
}

fn publish(
    mut message: MqttMessage,
    packet_id: Option<PacketId>,
    duplicate: bool,
    limits: BrokerLimits,
) -> OutgoingPacket {
    message.retain &= limits.retain;
    message.qos = if packet_id.is_some() { Qos::AtLeastOnce } else { Qos::AtMostOnce };
    OutgoingPacket::Publish { message, packet_id, duplicate }
}

#[cfg(test)]
mod tests;
