//! Daemons at a broker, and their logs.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::broker::Broker;
use crate::daemon::{TestDaemon, TestRoot};
use crate::message::{Message, Outgoing};
use crate::mqtt::{LIMIT, Peer};

/// The time between two reads of a log.
const GLANCE: Duration = Duration::from_millis(5);

/// The root of a box with `add_sub`, which connects as `box`.
pub fn root(broker: &Broker) -> TestRoot {
    named_root(broker, "box")
}

/// The same under another name.
pub fn named_root(broker: &Broker, name: &str) -> TestRoot {
    root_at(&broker.url(), name)
}

/// The same with the broker's address, as in the setting.
pub fn root_at(url: &str, name: &str) -> TestRoot {
    TestRoot::new()
        .models(&["add_sub"])
        .set(&format!("mqtt.broker={url:?}"))
        // The pause after a lost connection grows in the field; here a test would wait for it.
        .set("mqtt.reconnect_max_s=1")
        .set(&format!("device.id={name:?}"))
}

/// Starts a box, and waits until its models are loaded and its subscriptions granted.
pub fn start(root: TestRoot) -> TestDaemon {
    let daemon = root.start();
    logged(&daemon, "mqtt.subscribed", 1);
    daemon
}

/// A box with `add_sub`.
pub fn start_box(broker: &Broker) -> TestDaemon {
    start(root(broker))
}

/// Waits until the log has so many events of this name, and gives the last of these.
#[track_caller]
pub fn logged(daemon: &TestDaemon, name: &str, times: usize) -> Value {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        if let Some(line) = daemon.events(name).into_iter().nth(times - 1) {
            return line;
        }
        std::thread::sleep(GLANCE);
    }
    panic!("no {times} events {name:?} in:\n{}", daemon.log());
}

/// Waits until something is true.
#[track_caller]
pub fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_true() {
        assert!(Instant::now() < deadline, "in vain waited for: {what}");
        std::thread::sleep(GLANCE);
    }
}

/// Calls `add_sub` of `box`, and checks the answer. The peer is subscribed to `answers`. Returns the messages before
/// the answer: delivery is at least once, so after a restart it may be an earlier answer again.
#[track_caller]
pub fn call(peer: &Peer, id: &str) -> Vec<Message> {
    peer.send(Outgoing::add_sub(id, 2.0).answer_to("answers"));
    let (before, answer) = receive(peer, id);
    assert!((answer.sum() - 3.0).abs() < 1e-6, "{answer:?}");
    before
}

/// Calls until there is an answer: the box may be on its way.
#[track_caller]
pub fn call_until_answered(peer: &Peer) {
    wait_until("an answer", || {
        peer.send(Outgoing::add_sub("there?", 2.0).answer_to("answers"));
        peer.receive_within(Duration::from_millis(500)).is_some()
    });
}

/// The answer to a request, and the messages before it.
#[track_caller]
pub fn receive(peer: &Peer, id: &str) -> (Vec<Message>, Message) {
    let mut before = Vec::new();
    loop {
        let message = peer.receive();
        if message.id() == id {
            return (before, message);
        }
        before.push(message);
    }
}
