//! A broker for one client, the daemon, and all of its sessions: it grants every subscription, delivers each message
//! once to the session that has subscribed to it, with QoS 1, and counts.

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// A test that waits longer than this has found a hang.
const LIMIT: Duration = Duration::from_mins(2);

/// The most messages that wait for their acknowledgement.
const QUEUE: usize = 8;

/// A connection of the daemon.
struct Connection {
    stream: TcpStream,
    client_id: String,
    /// The protocol level of its CONNECT: 5, or 4 for MQTT 3.1.1.
    level: u8,
    filters: Vec<String>,
}

#[derive(Default)]
struct State {
    /// By a unique number.
    connections: BTreeMap<usize, Connection>,
    accepted: usize,
    /// The number of CONNECTs that got no answer.
    unanswered: usize,
    subscriptions: usize,
    last_id: u16,
    /// Messages that the daemon has not acknowledged.
    waiting: Vec<u16>,
    /// The messages on topics below `answers/`, by their user property `status`.
    answers: BTreeMap<String, usize>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    rules: Rules,
}

/// The clients that a broker accepts.
#[derive(Clone, Copy, Default)]
pub struct Rules {
    /// It answers nothing to a CONNECT in MQTT 5.
    pub is_silent_to_5: bool,
    /// It refuses client ids that end so.
    pub refuses: Option<&'static str>,
}

/// The broker; it ends with the process of the test.
pub struct TestBroker {
    port: u16,
    shared: Arc<Shared>,
}

impl TestBroker {
    pub fn start() -> Self {
        Self::with(Rules::default())
    }

    pub fn with(rules: Rules) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, shared) = (listener.local_addr().unwrap().port(), Arc::new(Shared { rules, ..Shared::default() }));
        let serving = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let serving = serving.clone();
                std::thread::spawn(move || serving.serve(&stream.unwrap()));
            }
        });
        Self { port, shared }
    }

    /// The filters of each session, by the client id and the protocol level.
    pub fn sessions(&self) -> BTreeMap<(String, u8), Vec<String>> {
        let state = self.shared.lock();
        let of = |it: &Connection| ((it.client_id.clone(), it.level), it.filters.clone());
        state.connections.values().map(of).collect()
    }

    /// The number of CONNECTs that got no answer.
    pub fn unanswered(&self) -> usize {
        self.shared.lock().unanswered
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn wait_for_subscriptions(&self, least: usize) {
        drop(self.shared.wait(|state| state.subscriptions >= least));
    }

    /// Delivers a message.
    pub fn publish(&self, topic: &str, payload: &[u8]) {
        self.deliver(topic, &[], payload);
    }

    /// Delivers a message that wants an answer.
    pub fn call(&self, topic: &str, response_topic: &str, payload: &[u8]) {
        self.deliver(topic, &[&[8], &string(response_topic)[..]].concat(), payload);
    }

    /// Waits until the daemon has acknowledged everything.
    pub fn wait_for_acknowledgements(&self) {
        drop(self.shared.wait(|state| state.waiting.is_empty()));
    }

    /// The answers by their status.
    pub fn answers(&self) -> BTreeMap<String, usize> {
        self.shared.lock().answers.clone()
    }

    fn deliver(&self, topic: &str, properties: &[u8], payload: &[u8]) {
        let taker = |state: &State| {
            let takes = |it: &&Connection| it.filters.iter().any(|filter| matches(filter, topic));
            let of = state.connections.values().find(takes);
            of.map(|it| (it.stream.try_clone().unwrap(), it.level))
        };
        let mut state = self.shared.wait(|state| taker(state).is_some() && state.waiting.len() < QUEUE);
        let (mut stream, level) = taker(&state).unwrap();
        state.last_id = state.last_id % u16::MAX + 1;
        let id = state.last_id;
        state.waiting.push(id);
        let properties = if level == 5 { [&variable(properties.len()), properties].concat() } else { Vec::new() };
        let head = [&string(topic)[..], &id.to_be_bytes(), &properties].concat();
        let packet = [&[0x32][..], &variable(head.len() + payload.len()), &head, payload].concat();
        stream.write_all(&packet).unwrap();
    }
}

/// Returns `true` if a filter matches a topic.
fn matches(filter: &str, topic: &str) -> bool {
    let (mut filter, mut topic) = (filter.split('/'), topic.split('/'));
    loop {
        match (filter.next(), topic.next()) {
            (Some("#"), _) | (None, None) => return true,
            (Some(level), Some(text)) if level == "+" || level == text => {}
            _ => return false,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    #[track_caller]
    fn wait(&self, until: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let (state, waited) = self.changed.wait_timeout_while(self.lock(), LIMIT, |state| !until(state)).unwrap();
        assert!(!waited.timed_out(), "the daemon hangs: {:?} wait, answers {:?}", state.waiting, state.answers);
        state
    }

    /// One connection, until it ends.
    fn serve(&self, stream: &TcpStream) {
        let (mut reader, mut writer) = (BufReader::new(stream.try_clone().unwrap()), stream);
        let Some((0x10, connect)) = next(&mut reader) else { return };
        let (level, client_id) = (connect[6], client_id(&connect));
        let mut state = self.lock();
        if level == 5 && self.rules.is_silent_to_5 {
            state.unanswered += 1;
            drop(state);
            self.changed.notify_all();
            // Until the client gives up.
            while next(&mut reader).is_some() {}
            return;
        }
        if self.rules.refuses.is_some_and(|end| client_id.ends_with(end)) {
            let refusal: &[u8] = if level == 5 { &[0x20, 3, 0, 0x87, 0] } else { &[0x20, 2, 0, 5] };
            return writer.write_all(refusal).unwrap();
        }
        let accepted: &[u8] = if level == 5 { &[0x20, 3, 0, 0, 0] } else { &[0x20, 2, 0, 0] };
        writer.write_all(accepted).unwrap();
        state.accepted += 1;
        let number = state.accepted;
        let connection = Connection { stream: stream.try_clone().unwrap(), client_id, level, filters: Vec::new() };
        state.connections.insert(number, connection);
        drop(state);
        self.changed.notify_all();

        while let Some((kind, packet)) = next(&mut reader) {
            let mut state = self.lock();
            let reply: Vec<u8> = match kind >> 4 {
                // A message of QoS 1 is acknowledged.
                3 => {
                    let length = usize::from(u16::from_be_bytes([packet[0], packet[1]]));
                    let topic = String::from_utf8_lossy(&packet[2..2 + length]).into_owned();
                    if topic.starts_with("answers/") {
                        *state.answers.entry(status(&packet)).or_default() += 1;
                    }
                    if kind & 6 == 2 { vec![0x40, 2, packet[2 + length], packet[3 + length]] } else { Vec::new() }
                }
                4 => {
                    let id = u16::from_be_bytes([packet[0], packet[1]]);
                    state.waiting.retain(|waiting| *waiting != id);
                    Vec::new()
                }
                8 => {
                    let filters = filters(&packet, level);
                    state.subscriptions += filters.len();
                    let granted = vec![1; filters.len()];
                    state.connections.get_mut(&number).unwrap().filters.extend(filters);
                    let properties: &[u8] = if level == 5 { &[0] } else { &[] };
                    let body = [&packet[..2], properties, &granted].concat();
                    [&[0x90][..], &variable(body.len()), &body].concat()
                }
                12 => vec![0xd0, 0],
                _ => Vec::new(),
            };
            writer.write_all(&reply).unwrap();
            drop(state);
            self.changed.notify_all();
        }
        self.lock().connections.remove(&number);
    }
}

/// The client id of a CONNECT.
fn client_id(packet: &[u8]) -> String {
    // After the protocol's name and level, the flags, the keep-alive and the properties, which are short.
    let at = 10 + if packet[6] == 5 { 1 + usize::from(packet[10]) } else { 0 };
    let length = usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    String::from_utf8_lossy(&packet[at + 2..at + 2 + length]).into_owned()
}

fn string(text: &str) -> Vec<u8> {
    [&u16::try_from(text.len()).unwrap().to_be_bytes()[..], text.as_bytes()].concat()
}

/// A variable byte integer.
fn variable(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let byte = u8::try_from(number % 128).unwrap();
        number /= 128;
        bytes.push(if number > 0 { byte | 128 } else { byte });
        if number == 0 {
            return bytes;
        }
    }
}

/// The first byte of the next packet, and its bytes behind the fixed header; `None` at the end.
fn next(reader: &mut impl Read) -> Option<(u8, Vec<u8>)> {
    let mut byte = || {
        let mut byte = [0];
        reader.read_exact(&mut byte).ok().map(|()| byte[0])
    };
    let kind = byte()?;
    let (mut length, mut shift) = (0, 0);
    loop {
        let next = byte()?;
        length |= usize::from(next & 127) << shift;
        shift += 7;
        if next & 128 == 0 {
            break;
        }
    }
    let mut packet = vec![0; length];
    reader.read_exact(&mut packet).ok()?;
    Some((kind, packet))
}

/// The filters of a SUBSCRIBE.
fn filters(packet: &[u8], level: u8) -> Vec<String> {
    // Properties of a subscription are short.
    let mut at = 2 + if level == 5 { 1 + usize::from(packet[2]) } else { 0 };
    let mut filters = Vec::new();
    while at < packet.len() {
        let length = usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
        filters.push(String::from_utf8_lossy(&packet[at + 2..at + 2 + length]).into_owned());
        at += 3 + length;
    }
    filters
}

/// The value of the user property `status`.
fn status(packet: &[u8]) -> String {
    let name = string("status");
    let at = packet.windows(name.len()).position(|window| window == name).unwrap() + name.len();
    let length = usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    String::from_utf8_lossy(&packet[at + 2..at + 2 + length]).into_owned()
}
