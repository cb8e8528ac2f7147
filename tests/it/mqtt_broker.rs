//! A broker of MQTT 5 for one client, the daemon: it grants every subscription, delivers with QoS 1, and counts.

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// A test that waits longer than this has found a hang.
const LIMIT: Duration = Duration::from_mins(2);

/// The most messages that wait for their acknowledgement.
const QUEUE: usize = 8;

#[derive(Default)]
struct State {
    stream: Option<TcpStream>,
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
}

/// The broker; it ends with the process of the test.
pub struct TestBroker {
    port: u16,
    shared: Arc<Shared>,
}

impl TestBroker {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, shared) = (listener.local_addr().unwrap().port(), Arc::new(Shared::default()));
        let serving = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                serving.serve(&stream.unwrap());
            }
        });
        Self { port, shared }
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
        let mut state = self.shared.wait(|state| state.stream.is_some() && state.waiting.len() < QUEUE);
        state.last_id = state.last_id % u16::MAX + 1;
        let id = state.last_id;
        state.waiting.push(id);
        let head = [&string(topic)[..], &id.to_be_bytes(), &variable(properties.len()), properties].concat();
        let packet = [&[0x32][..], &variable(head.len() + payload.len()), &head, payload].concat();
        state.stream.as_mut().unwrap().write_all(&packet).unwrap();
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

    fn serve(&self, stream: &TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some((kind, packet)) = next(&mut reader) {
            let mut state = self.lock();
            let reply: Vec<u8> = match kind >> 4 {
                1 => {
                    state.stream = Some(stream.try_clone().unwrap());
                    vec![0x20, 3, 0, 0, 0]
                }
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
                    let filters = filters(&packet);
                    state.subscriptions += filters;
                    let granted = vec![1; filters];
                    [&[0x90][..], &variable(3 + filters), &packet[..2], &[0], &granted].concat()
                }
                12 => vec![0xd0, 0],
                _ => Vec::new(),
            };
            if let Some(stream) = &mut state.stream {
                stream.write_all(&reply).unwrap();
            }
            drop(state);
            self.changed.notify_all();
        }
        self.lock().stream = None;
    }
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

/// The number of filters of a SUBSCRIBE.
fn filters(packet: &[u8]) -> usize {
    // Properties of a subscription are short.
    let mut at = 3 + usize::from(packet[2]);
    let mut count = 0;
    while at < packet.len() {
        at += 3 + usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
        count += 1;
    }
    count
}

/// The value of the user property `status`.
fn status(packet: &[u8]) -> String {
    let name = string("status");
    let at = packet.windows(name.len()).position(|window| window == name).unwrap() + name.len();
    let length = usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    String::from_utf8_lossy(&packet[at + 2..at + 2 + length]).into_owned()
}
