//! `Peer`: an MQTT 5 client that keeps its promises. Every QoS 1 message is sent until the broker has it, through any
//! number of broken connections, and the session lives while the broker keeps it.
//!
//! Written here because a test that counts messages must not lose any itself, as the event loops of libraries do.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rumqttc::v5::mqttbytes::v5::{
    Connect, ConnectProperties, ConnectReturnCode, Filter, Packet, PingReq, PubAck, PubAckReason, Publish, Subscribe,
    SubscribeReasonCode,
};
use rumqttc::v5::mqttbytes::{Error, QoS};

use crate::broker::Broker;
use crate::message::{Message, Outgoing};

/// A test that waits longer than this for a message has found a loss or a hang.
pub const LIMIT: Duration = Duration::from_mins(1);

/// The pause before reconnecting.
const RETRY: Duration = Duration::from_millis(20);

/// Silence after which the client pings the broker, which disconnects it after one and a half times of it.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// An MQTT 5 client. Its session ends when it is dropped.
pub struct Peer {
    shared: Arc<Shared>,
    messages: Receiver<Message>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    port: u16,
    client_id: String,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Set while the broker has accepted the connection.
    stream: Option<TcpStream>,
    ended: bool,
    /// The filters of the session, each with `true` once the broker has granted it.
    filters: Vec<(String, bool)>,
    /// QoS 1 messages that the broker has not taken, in the order they were first sent in.
    unacknowledged: VecDeque<Publish>,
    waiting: VecDeque<Publish>,
    window: usize,
    last_id: u16,
    /// The number of refused messages, by reason.
    refused: BTreeMap<String, usize>,
}

impl Peer {
    /// Connects with a session that lives while this does.
    pub fn new(broker: &Broker, client_id: &str) -> Self {
        let shared = Arc::new(Shared {
            port: broker.port,
            client_id: client_id.to_owned(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let (sender, messages) = channel();
        let shared_ = shared.clone();
        let thread = Some(std::thread::spawn(move || shared_.run(&sender)));
        let peer = Self { shared, messages, thread };
        peer.wait("a connection", |state| state.stream.is_some());
        peer
    }

    /// The same with a subscription.
    pub fn subscribed(broker: &Broker, client_id: &str, filter: &str) -> Self {
        let peer = Self::new(broker, client_id);
        peer.subscribe(filter);
        peer
    }

    /// Subscribes, and waits until the broker has granted it.
    pub fn subscribe(&self, filter: &str) {
        let mut state = self.shared.lock();
        state.filters.push((filter.to_owned(), false));
        state.send_subscriptions();
        drop(state);
        self.wait("a subscription", |state| state.filters.iter().all(|(_, granted)| *granted));
    }

    /// Sends a message: with QoS 1 until the broker has taken it.
    pub fn send(&self, message: Outgoing) {
        let publish = message.into_publish();
        let mut state = self.shared.lock();
        if publish.qos == QoS::AtMostOnce {
            state.write(&Packet::Publish(publish));
        } else {
            state.waiting.push_back(publish);
            state.send_waiting();
        }
    }

    /// Waits until the broker has taken, or refused, everything that was sent.
    pub fn flush(&self) {
        self.wait("the broker to take all messages", |state| {
            state.waiting.is_empty() && state.unacknowledged.is_empty()
        });
    }

    /// The next message; the test fails when none comes.
    #[track_caller]
    pub fn receive(&self) -> Message {
        self.receive_within(LIMIT).unwrap_or_else(|| panic!("{} waited in vain for a message", self.shared.client_id))
    }

    /// The next message, if one comes.
    pub fn receive_within(&self, limit: Duration) -> Option<Message> {
        self.messages.recv_timeout(limit).ok()
    }

    /// The messages that are here already.
    pub fn received(&self) -> Vec<Message> {
        self.messages.try_iter().collect()
    }

    #[track_caller]
    fn wait(&self, what: &str, until: impl Fn(&State) -> bool) {
        let state = self.shared.lock();
        let (state, timeout) = self.shared.changed.wait_timeout_while(state, LIMIT, |state| !until(state)).unwrap();
        let refused = state.refused.clone();
        drop(state);
        assert!(!timeout.timed_out(), "{} waited in vain for {what} {refused:?}", self.shared.client_id);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ended = true;
        if let Some(stream) = &state.stream {
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(state);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Connects, again and again.
    fn run(&self, messages: &Sender<Message>) {
        while !self.lock().ended {
            let _ = self.connection(messages);
            self.lock().stream = None;
            std::thread::sleep(RETRY);
        }
    }

    /// One connection, until it breaks.
    fn connection(&self, messages: &Sender<Message>) -> std::io::Result<()> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(KEEP_ALIVE / 2))?;
        // A broker that does not read while it ends must not hold up who has the lock.
        stream.set_write_timeout(Some(2 * KEEP_ALIVE))?;
        let connect = Packet::Connect(
            Connect {
                keep_alive: u16::try_from(KEEP_ALIVE.as_secs()).unwrap(),
                client_id: self.client_id.clone(),
                clean_start: false,
                properties: Some(ConnectProperties {
                    session_expiry_interval: Some(3_600),
                    receive_maximum: Some(u16::MAX),
                    ..ConnectProperties::new()
                }),
            },
            None,
            None,
        );
        stream.write_all(&encode(&connect))?;
        let (mut buffer, mut chunk) = (BytesMut::new(), vec![0; 1 << 16]);
        let mut heard = Instant::now();
        loop {
            match Packet::read(&mut buffer, None) {
                Ok(packet) => {
                    self.take(packet, &stream, messages)?;
                    continue;
                }
                Err(Error::InsufficientBytes(_)) => {}
                Err(error) => return Err(std::io::Error::other(format!("{error:?}"))),
            }
            match stream.read(&mut chunk) {
                Ok(0) => return Ok(()),
                Ok(length) => {
                    buffer.extend_from_slice(&chunk[..length]);
                    heard = Instant::now();
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && heard.elapsed() < 2 * KEEP_ALIVE => {
                    self.lock().write(&Packet::PingReq(PingReq));
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn take(&self, packet: Packet, stream: &TcpStream, messages: &Sender<Message>) -> std::io::Result<()> {
        let mut state = self.lock();
        match packet {
            Packet::ConnAck(ack) => {
                if ack.code != ConnectReturnCode::Success {
                    return Err(std::io::Error::other(format!("refused: {:?}", ack.code)));
                }
                let receive_max = ack.properties.and_then(|properties| properties.receive_max);
                state.window = usize::from(receive_max.unwrap_or(u16::MAX));
                state.stream = (!state.ended).then(|| stream.try_clone()).transpose()?;
                if !ack.session_present {
                    state.filters.iter_mut().for_each(|(_, granted)| *granted = false);
                }
                state.send_subscriptions();
                state.send_unacknowledged();
                state.send_waiting();
            }
            Packet::Publish(publish) => {
                if publish.qos == QoS::AtLeastOnce {
                    state.write(&Packet::PubAck(PubAck::new(publish.pkid, None)));
                }
                drop(state);
                let _ = messages.send(Message::new(publish));
                return Ok(());
            }
            Packet::PubAck(ack) => {
                if !matches!(ack.reason, PubAckReason::Success | PubAckReason::NoMatchingSubscribers) {
                    *state.refused.entry(format!("{:?}", ack.reason)).or_default() += 1;
                }
                state.unacknowledged.retain(|publish| publish.pkid != ack.pkid);
                state.send_waiting();
            }
            Packet::SubAck(ack) => {
                // One subscription a packet. Its number is its place in the list.
                let place = usize::from(u16::MAX - ack.pkid);
                if let (Some(filter), [SubscribeReasonCode::Success(_)]) =
                    (state.filters.get_mut(place), ack.return_codes.as_slice())
                {
                    filter.1 = true;
                }
            }
            Packet::Disconnect(_) => return Err(std::io::Error::other("the broker closes the connection")),
            _ => {}
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }
}

impl State {
    /// Writes a packet if there is a connection. When it breaks, the reader learns it too and connects again.
    fn write(&mut self, packet: &Packet) {
        if let Some(stream) = &mut self.stream
            && stream.write_all(&encode(packet)).is_err()
        {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn send_subscriptions(&mut self) {
        let wanted = self.filters.iter().enumerate().filter(|(_, (_, granted))| !granted);
        let packets: Vec<_> = wanted
            .map(|(place, (filter, _))| {
                let mut subscribe = Subscribe::new(Filter::new(filter, QoS::AtLeastOnce), None);
                subscribe.pkid = u16::MAX - u16::try_from(place).unwrap();
                Packet::Subscribe(subscribe)
            })
            .collect();
        for packet in &packets {
            self.write(packet);
        }
    }

    /// Sends unacknowledged messages again, in the same order and with the same numbers.
    fn send_unacknowledged(&mut self) {
        let again: Vec<_> = self
            .unacknowledged
            .iter()
            .map(|publish| Packet::Publish(Publish { dup: true, ..publish.clone() }))
            .collect();
        for packet in &again {
            self.write(packet);
        }
    }

    fn send_waiting(&mut self) {
        while self.stream.is_some() && self.unacknowledged.len() < self.window {
            let Some(mut publish) = self.waiting.pop_front() else { return };
            // Numbers from the top are those of subscriptions.
            while publish.pkid == 0 || self.unacknowledged.iter().any(|other| other.pkid == publish.pkid) {
                self.last_id = if self.last_id >= 60_000 { 1 } else { self.last_id + 1 };
                publish.pkid = self.last_id;
            }
            self.unacknowledged.push_back(publish.clone());
            self.write(&Packet::Publish(publish));
        }
    }
}

fn encode(packet: &Packet) -> BytesMut {
    let mut buffer = BytesMut::new();
    packet.write(&mut buffer, None).unwrap();
    buffer
}
