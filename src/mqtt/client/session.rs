//! The session between this client and a broker: what is to be sent, what waits for an acknowledgement, what is owed one.
//!
//! Pure: no connection, no clock. It survives connections (MQTT 5.0, section 4.1), so that a QoS 1 message is sent until
//! the broker has acknowledged it, and one that came in is acknowledged only when it is settled.

use std::collections::VecDeque;

use ledge_egress::Content;

use super::codec::MAX_PACKET;
use super::packet::{ConnAck, Incoming, Message, Outgoing, PacketId, Qos, Reason, Received, Subscription};
use crate::topics::TopicFilter;

/// How many QoS 1 messages wait for their acknowledgement at most, however many a broker would take.
const WINDOW: usize = 128;

/// After so many connections in a row that ended before the broker acknowledged anything, the oldest message is given up.
const FRUITLESS: u32 = 5;

/// What an entry costs beside its payload and texts, in bytes.
const OVERHEAD: usize = 256;

/// A QoS 1 message that was taken from the broker and is not acknowledged yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Delivery(u64);

/// A message to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbound {
    pub message: Message,
    /// What it is, for the one who lets it out.
    pub content: Content,
    /// The delivery that it answers: settled when the broker has taken this message.
    pub settles: Option<Delivery>,
}

impl Outbound {
    fn bytes(&self) -> usize {
        let properties = &self.message.properties;
        let texts: usize = properties.user.iter().map(|(key, value)| key.len() + value.len()).sum();
        OVERHEAD
            + self.message.payload.len()
            + self.message.topic.as_str().len()
            + properties.correlation_data.as_ref().map_or(0, bytes::Bytes::len)
            + texts
    }
}

/// What a packet from the broker means for the application.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// A message. One of QoS 1 is to be settled by its delivery.
    Message(Received, Option<Delivery>),
    /// A message that could not be used, and why. It is settled.
    Unusable(String),
    /// The broker refused a published message.
    Refused(Outbound, Reason),
    Subscribed(Vec<(TopicFilter, Reason)>),
    /// The broker ends the connection.
    Disconnected(Reason, Option<String>),
    None,
}

/// The next thing to do with the connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Send(Content, Outgoing),
    /// A message is larger than the broker takes, so it was taken out. Its delivery is still to be settled.
    TooLarge(Outbound),
}

/// What the broker takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limits {
    window: usize,
    packet_size: usize,
    qos: Qos,
    retain: bool,
}

#[derive(Debug)]
struct InFlight {
    packet_id: PacketId,
    outbound: Outbound,
    sent: bool,
}

#[derive(Debug)]
struct Owed {
    delivery: Delivery,
    packet_id: PacketId,
    /// How it ended; `None` while it is being dealt with.
    settled: Option<Reason>,
    /// How many more times it is to be settled.
    left: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Session {
    /// `None` without a connection.
    limits: Option<Limits>,
    /// Acknowledgements and subscriptions, which go first. They belong to the connection.
    control: VecDeque<Outgoing>,
    /// Published, in order, and not acknowledged yet.
    in_flight: VecDeque<InFlight>,
    waiting: VecDeque<Outbound>,
    /// QoS 0: no window holds these up.
    waiting_unacknowledged: VecDeque<Outbound>,
    /// Taken from the broker on this connection, in this order, which is also that of their acknowledgements.
    owed: VecDeque<Owed>,
    /// Taken on an earlier one. The broker delivers again what it still waits for.
    owed_earlier: Vec<Owed>,
    subscribing: Vec<(PacketId, Vec<TopicFilter>)>,
    last_packet_id: u16,
    last_delivery: u64,
    bytes: usize,
    /// Connections in a row on which messages were sent and none was acknowledged.
    fruitless: u32,
}

impl Session {
    /// Bytes of the messages that wait or are in flight.
    pub fn held(&self) -> usize {
        self.bytes
    }

    /// How many messages wait or are in flight.
    pub fn unsent(&self) -> usize {
        self.in_flight.len() + self.waiting.len() + self.waiting_unacknowledged.len()
    }

    /// Whether everything that was published has been sent, and acknowledged where that is wanted.
    pub fn is_idle(&self) -> bool {
        self.unsent() == 0 && self.control.is_empty()
    }

    /// A connection was accepted. Gives the message that is given up, if there is one: the broker has ended so many
    /// connections in a row after it was sent that it must be why.
    ///
    /// With its session gone the broker has forgotten what it delivered, and will deliver it again; what it had not
    /// acknowledged of ours begins anew (section 4.4).
    pub fn connected(&mut self, broker: &ConnAck) -> Option<Outbound> {
        self.disconnected();
        self.limits = Some(Limits {
            window: usize::from(broker.receive_maximum).clamp(1, WINDOW),
            packet_size: broker.maximum_packet_size.map_or(MAX_PACKET, |size| MAX_PACKET.min(size as usize)),
            qos: broker.maximum_qos,
            retain: broker.retain_available,
        });
        if !broker.session_present {
            self.owed_earlier.clear();
            while let Some(unacknowledged) = self.in_flight.pop_back() {
                self.waiting.push_front(unacknowledged.outbound);
            }
        }
        if self.fruitless < FRUITLESS {
            return None;
        }
        self.fruitless = 0;
        let oldest = match self.in_flight.pop_front() {
            Some(message) => message.outbound,
            None => self.waiting.pop_front()?,
        };
        self.bytes -= oldest.bytes();
        if let Some(delivery) = oldest.settles {
            self.settle(delivery, Reason::UNSPECIFIED_ERROR);
        }
        Some(oldest)
    }

    /// The connection is gone.
    pub fn disconnected(&mut self) {
        if self.in_flight.iter().any(|message| message.sent) {
            self.fruitless += 1;
        }
        self.limits = None;
        self.control.clear();
        self.subscribing.clear();
        for message in &mut self.in_flight {
            message.sent = false;
        }
        self.owed_earlier.extend(self.owed.drain(..));
    }

    /// Asks for messages, on this connection.
    pub fn subscribe(&mut self, subscriptions: Vec<Subscription>) {
        let Some(packet_id) = self.new_packet_id() else { return };
        let filters = subscriptions.iter().map(|subscription| subscription.filter.clone()).collect();
        self.subscribing.push((packet_id, filters));
        self.control.push_back(Outgoing::Subscribe { packet_id, subscriptions });
    }

    /// Asks for no more of them.
    pub fn unsubscribe(&mut self, filters: Vec<TopicFilter>) {
        let Some(packet_id) = self.new_packet_id() else { return };
        self.control.push_back(Outgoing::Unsubscribe { packet_id, filters });
    }

    /// Asks for a sign of life.
    pub fn ping(&mut self) {
        self.control.push_back(Outgoing::PingReq);
    }

    /// Takes a message to be published, now or when there is a connection.
    pub fn publish(&mut self, outbound: Outbound) {
        self.bytes += outbound.bytes();
        match outbound.message.qos {
            Qos::AtMostOnce => self.waiting_unacknowledged.push_back(outbound),
            Qos::AtLeastOnce => self.waiting.push_back(outbound),
        }
    }

    /// Takes a message that the broker is to keep: it replaces one for the same topic that has not been sent.
    pub fn publish_latest(&mut self, outbound: Outbound) {
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

    /// A delivery is to be settled so many times, not once: it has several answers.
    pub fn expect(&mut self, delivery: Delivery, times: usize) {
        if let Some(owed) = self.find_owed(delivery) {
            owed.left = times.max(1);
        }
    }

    /// A delivery has been dealt with. The broker learns it in the order of the deliveries (section 4.6).
    pub fn settle(&mut self, delivery: Delivery, reason: Reason) {
        // One from before a lost session is owed no more.
        let Some(owed) = self.find_owed(delivery) else { return };
        owed.left = owed.left.saturating_sub(1);
        if owed.left == 0 {
            owed.settled.get_or_insert(reason);
            self.acknowledge();
        }
    }

    fn find_owed(&mut self, delivery: Delivery) -> Option<&mut Owed> {
        self.owed.iter_mut().chain(&mut self.owed_earlier).find(|owed| owed.delivery == delivery)
    }

    fn acknowledge(&mut self) {
        while let Some(Owed { packet_id, settled: Some(reason), .. }) = self.owed.front() {
            self.control.push_back(Outgoing::PubAck { packet_id: *packet_id, reason: *reason });
            self.owed.pop_front();
        }
    }

    /// A packet came from the broker.
    pub fn receive(&mut self, packet: Incoming) -> Event {
        match packet {
            Incoming::Publish(received) => self.deliver(received),
            Incoming::Unusable { packet_id, reason } => {
                if let Some(packet_id) = packet_id {
                    self.owe(packet_id, Some(Reason::IMPLEMENTATION_SPECIFIC));
                    self.acknowledge();
                }
                Event::Unusable(reason)
            }
            Incoming::PubAck { packet_id, reason } => self.acknowledged(packet_id, reason),
            Incoming::SubAck { packet_id, reasons } => {
                let Some(at) = self.subscribing.iter().position(|(id, _)| *id == packet_id) else { return Event::None };
                let (_, filters) = self.subscribing.swap_remove(at);
                Event::Subscribed(filters.into_iter().zip(reasons).collect())
            }
            Incoming::Disconnect { reason, text } => Event::Disconnected(reason, text),
            Incoming::ConnAck(_) | Incoming::UnsubAck { .. } | Incoming::PingResp => Event::None,
        }
    }

    fn deliver(&mut self, received: Received) -> Event {
        let Some(packet_id) = received.packet_id else { return Event::Message(received, None) };
        if self.owed.iter().any(|owed| owed.packet_id == packet_id) {
            return Event::None;
        }
        // Delivered again after a reconnect while the first delivery is still being dealt with: its end answers both.
        // Without the mark, the broker has given up the old message and the number is another's.
        let earlier = self.owed_earlier.iter().position(|owed| owed.packet_id == packet_id);
        let earlier = earlier.map(|at| self.owed_earlier.swap_remove(at)).filter(|_| received.duplicate);
        if let Some(owed) = earlier {
            self.owed.push_back(owed);
            self.acknowledge();
            return Event::None;
        }
        let delivery = self.owe(packet_id, None);
        Event::Message(received, Some(delivery))
    }

    fn owe(&mut self, packet_id: PacketId, settled: Option<Reason>) -> Delivery {
        self.last_delivery += 1;
        let delivery = Delivery(self.last_delivery);
        self.owed.push_back(Owed { delivery, packet_id, settled, left: 1 });
        delivery
    }

    fn acknowledged(&mut self, packet_id: PacketId, reason: Reason) -> Event {
        let Some(at) = self.in_flight.iter().position(|message| message.packet_id == packet_id) else {
            return Event::None;
        };
        let Some(InFlight { outbound, .. }) = self.in_flight.remove(at) else { return Event::None };
        self.fruitless = 0;
        self.bytes -= outbound.bytes();
        if let Some(delivery) = outbound.settles {
            self.settle(delivery, if reason.is_failure() { reason } else { Reason::SUCCESS });
        }
        if reason.is_failure() { Event::Refused(outbound, reason) } else { Event::None }
    }

    /// What to do next; `None` when there is nothing, or nothing that the broker takes now. `size` is that of a packet.
    pub fn next(&mut self, size: impl Fn(&Outgoing) -> usize) -> Option<Step> {
        let limits = self.limits?;
        if let Some(packet) = self.control.pop_front() {
            return Some(Step::Send(Content::Protocol, packet));
        }
        if let Some(outbound) = self.waiting_unacknowledged.pop_front() {
            self.bytes -= outbound.bytes();
            let Outbound { message, content, settles } = outbound;
            let packet = publish(message, None, false, limits);
            if !limits.fits(&packet, size) {
                let Outgoing::Publish { message, .. } = packet else { return None };
                return Some(Step::TooLarge(Outbound { message, content, settles }));
            }
            if let Some(delivery) = settles {
                self.settle(delivery, Reason::SUCCESS);
            }
            return Some(Step::Send(content, packet));
        }
        self.next_acknowledged(limits, size)
    }

    fn next_acknowledged(&mut self, limits: Limits, size: impl Fn(&Outgoing) -> usize) -> Option<Step> {
        if self.in_flight.iter().filter(|message| message.sent).count() >= limits.window {
            return None;
        }
        // Again, in the old order, before anything new.
        if let Some(at) = self.in_flight.iter().position(|message| !message.sent) {
            let message = self.in_flight.get_mut(at)?;
            let packet = publish(message.outbound.message.clone(), Some(message.packet_id), true, limits);
            // The broker may take less than before.
            if !limits.fits(&packet, size) {
                return self.in_flight.remove(at).map(|message| self.take_out(message.outbound));
            }
            message.sent = true;
            return Some(Step::Send(message.outbound.content, packet));
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
            return Some(self.take_out(outbound));
        }
        let content = outbound.content;
        self.in_flight.push_back(InFlight { packet_id, outbound, sent: true });
        Some(Step::Send(content, packet))
    }

    fn take_out(&mut self, outbound: Outbound) -> Step {
        self.bytes -= outbound.bytes();
        Step::TooLarge(outbound)
    }

    /// A number that nothing unacknowledged has.
    fn new_packet_id(&mut self) -> Option<PacketId> {
        for _ in 0..=u16::MAX {
            self.last_packet_id = self.last_packet_id.wrapping_add(1);
            let Some(id) = PacketId::new(self.last_packet_id) else { continue };
            let used = self.in_flight.iter().any(|message| message.packet_id == id)
                || self.subscribing.iter().any(|(other, _)| *other == id);
            if !used {
                return Some(id);
            }
        }
        None
    }
}

impl Limits {
    /// Whether the broker takes a packet. Most brokers take any, and then only a giant is measured.
    fn fits(&self, packet: &Outgoing, size: impl Fn(&Outgoing) -> usize) -> bool {
        let is_giant = matches!(packet, Outgoing::Publish { message, .. } if message.payload.len() > MAX_PACKET / 2);
        (self.packet_size == MAX_PACKET && !is_giant) || size(packet) <= self.packet_size
    }
}

fn publish(mut message: Message, packet_id: Option<PacketId>, duplicate: bool, limits: Limits) -> Outgoing {
    message.retain &= limits.retain;
    message.qos = if packet_id.is_some() { Qos::AtLeastOnce } else { Qos::AtMostOnce };
    Outgoing::Publish { message, packet_id, duplicate }
}

#[cfg(test)]
mod tests;
