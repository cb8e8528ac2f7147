//! Every request is answered, through restarts of the broker and of the box.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::boxes::{call, logged, root, start, wait_until};
use crate::broker::{Broker, Setup};
use crate::daemon::{TestDaemon, TestRoot};
use crate::message::{Message, Outgoing};
use crate::mqtt::{LIMIT, Peer};

/// As many as the claim is for.
const REQUESTS: usize = 10_000;

/// A client asks again when an answer has not come for so long.
const DEADLINE: Duration = Duration::from_secs(3);

/// A box with room for all requests in its queue, however slow the machine is.
fn patient_box(broker: &Broker) -> TestDaemon {
    start(root(broker).set("serving.max_queue_size=20000"))
}

fn persistent() -> Broker {
    Setup::new().persistent().start()
}

fn request(number: usize) -> Outgoing {
    Outgoing::add_sub(&number.to_string(), as_float(number)).answer_to("answers")
}

#[expect(clippy::cast_precision_loss, reason = "numbers of requests are small")]
fn as_float(number: usize) -> f64 {
    number as f64
}

/// The answers by the number of the request, each checked.
#[derive(Default)]
struct Answers {
    times: BTreeMap<usize, usize>,
    duplicates: usize,
}

impl Answers {
    #[track_caller]
    fn add(&mut self, answer: &Message) {
        let number = answer.id().parse().unwrap();
        assert!((answer.sum() - as_float(number) - 1.0).abs() < 1e-3, "{answer:?}");
        *self.times.entry(number).or_default() += 1;
        self.duplicates += usize::from(answer.is_duplicate());
    }

    /// Receives until this many requests are answered.
    #[track_caller]
    fn receive(&mut self, peer: &Peer, requests: usize) {
        while self.times.len() < requests {
            match peer.receive_within(LIMIT) {
                Some(answer) => self.add(&answer),
                None => panic!("never answered: {}", self.missing(requests).len()),
            }
        }
    }

    fn missing(&self, requests: usize) -> Vec<usize> {
        (0..requests).filter(|number| !self.times.contains_key(number)).collect()
    }
}

#[test]
fn restarts_of_the_broker_lose_none_of_ten_thousand_requests() {
    let mut broker = persistent();
    let daemon = patient_box(&broker);
    let peer = Peer::subscribed(&broker, "caller", "answers");
    let mut answers = Answers::default();
    for number in 0..REQUESTS {
        peer.send(request(number));
    }
    for restart in 1..=3 {
        // In the middle: some are answered, most are on their way.
        answers.receive(&peer, restart * REQUESTS / 5);
        broker.stop();
        broker.start_again();
        logged(&daemon, "mqtt.connected", restart + 1);
    }
    answers.receive(&peer, REQUESTS);
    assert_eq!(answers.missing(REQUESTS), [0; 0]);
}

#[test]
fn a_broker_killed_in_the_middle_costs_a_retry_at_most() {
    let mut broker = Setup::new().persistent_when_killed().start();
    let daemon = patient_box(&broker);
    let peer = Peer::subscribed(&broker, "caller", "answers");
    let mut answers = Answers::default();
    let requests = REQUESTS / 2;
    for number in 0..requests {
        peer.send(request(number));
    }
    answers.receive(&peer, requests / 4);
    broker.kill();
    broker.start_again();
    logged(&daemon, "mqtt.connected", 2);
    // A killed mosquitto loses messages that it acknowledged but did not write to disk. Callers ask again.
    let mut asked_again = BTreeSet::new();
    let until = Instant::now() + LIMIT;
    while !answers.missing(requests).is_empty() {
        assert!(Instant::now() < until, "never answered: {}", answers.missing(requests).len());
        match peer.receive_within(DEADLINE) {
            Some(answer) => answers.add(&answer),
            None => {
                for number in answers.missing(requests) {
                    asked_again.insert(number);
                    peer.send(request(number));
                }
            }
        }
    }
    println!("{} of {requests} requests were asked again", asked_again.len());
    assert!(asked_again.len() < requests / 10, "{} were asked again", asked_again.len());
}

#[test]
fn a_box_killed_in_the_middle_answers_everything_when_it_is_back() {
    let broker = persistent();
    let mut daemon = patient_box(&broker);
    let peer = Peer::subscribed(&broker, "caller", "answers");
    let mut answers = Answers::default();
    let requests = REQUESTS / 2;
    for number in 0..requests {
        peer.send(request(number));
    }
    for kill in 1..=2 {
        answers.receive(&peer, kill * requests / 4);
        daemon = start(daemon.kill());
    }
    answers.receive(&peer, requests);
    // It was killed with requests in its hands: those came to it again.
    assert!(answers.duplicates > 0, "no answer is marked as a duplicate");
    let twice = answers.times.values().filter(|times| **times > 1).count();
    assert!(twice <= answers.duplicates, "{twice} were answered again, and {} are marked so", answers.duplicates);
    let line = daemon.events("mqtt.connected").remove(0);
    assert_eq!(line["session_present"], true, "{line}");
}

#[test]
fn a_box_that_is_stopped_leaves_no_request_behind() {
    let broker = persistent();
    let mut daemon = patient_box(&broker);
    let peer = Peer::subscribed(&broker, "caller", "answers");
    let mut answers = Answers::default();
    let requests = REQUESTS / 5;
    for number in 0..requests {
        peer.send(request(number));
    }
    answers.receive(&peer, requests / 4);
    daemon.signal("TERM");
    assert!(daemon.wait().success(), "{}", daemon.log());
    // Requests without an answer wait at the broker.
    let _daemon = start(daemon.kill());
    answers.receive(&peer, requests);
}

#[test]
fn a_box_that_the_broker_forgot_subscribes_again() {
    let mut broker = Broker::new();
    let daemon = patient_box(&broker);
    for restart in 1..=2 {
        broker.stop();
        broker.start_again();
        logged(&daemon, "mqtt.subscribed", restart + 1);
        let line = logged(&daemon, "mqtt.connected", restart + 1);
        assert_eq!(line["session_present"], false, "{line}");
        call(&Peer::subscribed(&broker, "caller", "answers"), "after a restart");
    }
}

#[test]
fn answers_wait_for_a_broker_that_takes_few_at_once() {
    // The broker's receive maximum is below the box's own, and each side keeps to it.
    let broker = Setup::new().line("max_inflight_messages 2").start();
    let _daemon = start(root(&broker).set("mqtt.max_in_flight=50"));
    let peer = Peer::subscribed(&broker, "caller", "answers");
    let mut answers = Answers::default();
    for number in 0..500 {
        peer.send(request(number));
    }
    answers.receive(&peer, 500);
    assert_eq!(answers.times.values().sum::<usize>(), 500, "nothing was answered twice");
    assert!(!broker.log().contains("rotocol error"), "{}", broker.log());
}

#[test]
fn a_broker_that_is_away_when_the_box_starts_is_waited_for() {
    let mut broker = persistent();
    broker.stop();
    let daemon = root(&broker).start();
    let line = logged(&daemon, "mqtt.disconnected", 1);
    assert!(line["reason"].as_str().is_some_and(|reason| reason.contains("refuse")), "{line}");
    assert!(line["retry_in_ms"].as_u64().is_some(), "{line}");
    assert_eq!(daemon.client().get("/v2/health/ready").status, 200, "HTTP does not wait for a broker");
    broker.start_again();
    logged(&daemon, "mqtt.subscribed", 1);
    call(&Peer::subscribed(&broker, "caller", "answers"), "at last");
}

#[test]
fn what_there_is_no_memory_for_is_answered_429_and_holds_nothing_up() {
    const SENT: usize = 300;
    const SIZE: usize = 16_000;
    let broker = Broker::new();
    let settings = root(&broker).models(&["slow"]).file("slow/model.toml", "[queue]\nmax_size = 1000\n");
    let limits = ["mqtt.max_memory_bytes=1048576", "mqtt.max_payload_bytes=16384", "mqtt.max_in_flight=1000"];
    let _daemon = start(limits.into_iter().fold(settings.set("runtimes.threads=1"), TestRoot::set));
    let peer = Peer::subscribed(&broker, "caller", "answers");
    let input = json!({"name": "IN", "datatype": "FP32", "shape": [1, 16], "data": vec![0.0; 16]});
    // More than four times what there is memory for, at once, to a model that needs milliseconds for each.
    for number in 0..SENT {
        let mut request = json!({"id": number.to_string(), "inputs": [input]}).to_string().into_bytes();
        request.resize(SIZE, b' ');
        let request = Outgoing::new("ledge/v1/box/infer/slow", request).answer_to("answers");
        // A request without room is not read, so its answer has no id.
        peer.send(request.correlation(number.to_string().as_bytes()));
    }
    let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
    let mut open: BTreeSet<String> = (0..SENT).map(|number| number.to_string()).collect();
    while !open.is_empty() {
        let answer = peer.receive();
        *statuses.entry(answer.status()).or_default() += 1;
        let number = String::from_utf8(answer.correlation.clone().unwrap()).unwrap();
        assert!(open.remove(&number), "{answer:?}");
        if answer.status() == 429 {
            assert!(answer.error().contains("mqtt.max_memory_bytes"), "{answer:?}");
        }
    }
    assert_eq!(statuses.keys().copied().collect::<Vec<_>>(), [200, 429], "{statuses:?}");
    // The requests that fit into memory are answered.
    assert!(statuses[&200] >= (1 << 20) / SIZE / 2, "{statuses:?}");
}

#[test]
fn a_kept_request_is_answered_once_and_not_at_every_connection() {
    let mut broker = persistent();
    let mut daemon = patient_box(&broker);
    let peer = Peer::subscribed(&broker, "caller", "answers");
    peer.send(Outgoing::add_sub("kept", 2.0).answer_to("answers").retained());
    assert_eq!(peer.receive().id(), "kept");
    // The box acknowledges in order: behind this answer, the kept request is settled.
    call(&peer, "settled");
    for restart in 1..=2 {
        broker.stop();
        broker.start_again();
        logged(&daemon, "mqtt.connected", restart + 1);
        no_answer_to_kept(&call(&peer, &format!("restart {restart} of the broker")));
    }
    daemon = start(daemon.kill());
    no_answer_to_kept(&call(&peer, "restart of the box"));
    no_answer_to_kept(&call(&peer, "end"));
    drop(daemon);
}

#[track_caller]
fn no_answer_to_kept(messages: &[Message]) {
    assert!(messages.iter().all(|message| message.id() != "kept"), "{messages:?}");
}

#[test]
fn this_suite_itself_loses_nothing_when_the_broker_restarts() {
    // Shows that a loss in the tests above is not the fault of the broker or of the tests themselves.
    let mut broker = persistent();
    let receiver = Peer::subscribed(&broker, "receiver", "numbers");
    let sender = Peer::new(&broker, "sender");
    let mut seen = BTreeSet::new();
    for number in 0..REQUESTS {
        sender.send(Outgoing::new("numbers", number.to_string()));
    }
    for restart in 1..=3 {
        wait_until("some messages", || {
            seen.extend(receiver.received().iter().map(Message::text));
            seen.len() >= restart * REQUESTS / 5
        });
        broker.stop();
        broker.start_again();
    }
    sender.flush();
    while seen.len() < REQUESTS {
        seen.insert(receiver.receive().text());
    }
}
