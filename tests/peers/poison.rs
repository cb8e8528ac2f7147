//! Messages that no honest client sends. The box answers or refuses them, logs it once, and serves on.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::boxes::{call, logged, root, start};
use crate::broker::Broker;
use crate::daemon::TestDaemon;
use crate::message::{Message, Outgoing, add_sub};
use crate::mqtt::Peer;

const INFER: &str = "ledge/v1/box/infer/add_sub";
const RESULT: &str = "ledge/v1/box/result/add_sub";

/// A broker, a box that takes a megabyte, a caller, and one who sees every message.
struct Scene {
    began: Instant,
    broker: Broker,
    daemon: TestDaemon,
    peer: Peer,
    watcher: Peer,
}

impl Scene {
    fn new() -> Self {
        let broker = Broker::new();
        let daemon = start(root(&broker).set("mqtt.max_payload_bytes=1048576"));
        let peer = Peer::subscribed(&broker, "caller", "answers");
        let watcher = Peer::subscribed(&broker, "watcher", "#");
        Self { began: Instant::now(), broker, daemon, peer, watcher }
    }

    /// Everything that anybody sent, but the box's reports of itself and the calls made here to get behind it all: a
    /// message that causes another would have caused many by then.
    #[track_caller]
    fn traffic(&self) -> Vec<Message> {
        for round in 0..20 {
            call(&self.peer, &format!("still there? {round}"));
        }
        self.peer.send(Outgoing::new("end", ""));
        let mut messages: Vec<_> =
            std::iter::repeat_with(|| self.watcher.receive()).take_while(|message| message.topic != "end").collect();
        messages.retain(|message| {
            let about_itself = ["ledge/v1/box/online", "ledge/v1/box/reported"].contains(&message.topic.as_str());
            !about_itself && !message.text().contains("still there?")
        });
        messages
    }

    /// The log lines about requests without an answer.
    fn unanswered(&self) -> Vec<Value> {
        self.daemon.events("mqtt.request_dropped")
    }

    /// Checks that it logged one reason only, and once in each minute of this test.
    #[track_caller]
    fn assert_told_once(&self) {
        let minutes = usize::try_from(self.began.elapsed().as_secs() / 60).unwrap();
        let told = self.unanswered();
        assert!((1..=1 + minutes).contains(&told.len()), "{told:#?}");
        assert!(told.iter().all(|line| line["reason"].is_string() && line["reason"] == told[0]["reason"]), "{told:#?}");
    }
}

#[test]
fn what_is_no_request_is_answered_400() {
    let scene = Scene::new();
    let row = |datatype, shape: &[i64], length| {
        let row = |name| json!({"name": name, "datatype": datatype, "shape": shape, "data": vec![1; length]});
        json!({"id": "x", "inputs": [row("INPUT0"), row("INPUT1")]}).to_string().into_bytes()
    };
    let poison: Vec<(&str, Vec<u8>, &str)> = vec![
        ("no JSON", b"look: a cat".to_vec(), ""),
        ("half of JSON", add_sub("x", 1.0).to_string().into_bytes()[..40].to_vec(), ""),
        ("nothing", Vec::new(), ""),
        ("no text", vec![0xff, 0xfe, 0x00, 0x80], ""),
        ("a list", b"[1, 2, 3]".to_vec(), ""),
        ("brackets", b"[".repeat(100_000), ""),
        ("a wrong datatype", row("INT64", &[1, 16], 16), "INT64"),
        ("a wrong shape", row("FP32", &[1, 17], 17), "[1,17]"),
        ("too few elements", row("FP32", &[1, 16], 15), "INPUT0"),
        ("a shape that overflows", row("FP32", &[i64::MAX, i64::MAX], 16), ""),
    ];
    for (what, payload, named) in &poison {
        scene.peer.send(Outgoing::new(INFER, payload.clone()).answer_to("answers"));
        let answer = scene.peer.receive();
        assert_eq!((answer.status(), answer.device()), (400, "box"), "{what}: {answer:?}");
        assert!(answer.error().contains(named), "{what}: {answer:?}");
    }
    // Headers that lie.
    for length in ["-1", "99999999999999999999", "many", "17"] {
        let request = Outgoing::new(INFER, add_sub("x", 1.0).to_string()).content_type("application/octet-stream");
        scene.peer.send(request.user("inference-header-content-length", length).answer_to("answers"));
        assert_eq!(scene.peer.receive().status(), 400, "length {length}");
    }
    let messages = scene.traffic();
    assert_eq!(messages.len(), 2 * (poison.len() + 4), "one answer each: {messages:#?}");
}

#[test]
fn topics_below_infer_that_name_no_model_are_answered_with_an_error() {
    let scene = Scene::new();
    for topic in ["", "/versions/1", "add_sub/versions", "add_sub/versions/x", "add_sub/versions/1/more", "..", "a b"] {
        let request = Outgoing::add_sub("x", 1.0).to(&format!("ledge/v1/box/infer/{topic}"));
        scene.peer.send(request.answer_to("answers"));
        let answer = scene.peer.receive();
        assert_eq!((answer.status(), answer.id().as_str()), (404, "x"), "{topic}: {answer:?}");
        assert!(!answer.error().is_empty(), "{topic}: {answer:?}");
        call(&scene.peer, "good");
    }
}

#[test]
fn ten_megabytes_to_a_limit_of_one_are_answered_413() {
    let scene = Scene::new();
    let huge = vec![b' '; 10 << 20];
    scene.peer.send(Outgoing::new(INFER, huge.clone()).answer_to("answers").correlation(b"huge"));
    let answer = scene.peer.receive();
    assert_eq!((answer.status(), answer.correlation.as_deref()), (413, Some(b"huge".as_slice())), "{answer:?}");
    assert!(answer.error().contains("1048576"), "{answer:?}");
    // Without a word where to answer: the topic says enough. And with QoS 0.
    scene.peer.subscribe(RESULT);
    scene.peer.send(Outgoing::new(INFER, huge.clone()));
    assert_eq!(scene.peer.receive().status(), 413);
    scene.peer.send(Outgoing::new(INFER, huge).at_most_once());
    assert_eq!(scene.peer.receive().status(), 413);
    // A message just within the limit is read.
    let mut fits = add_sub("fits", 2.0).to_string().into_bytes();
    fits.resize(1 << 20, b' ');
    scene.peer.send(Outgoing::new(INFER, fits.clone()).answer_to("answers"));
    assert_eq!(scene.peer.receive().id(), "fits");
    // And a byte more is not.
    fits.push(b' ');
    scene.peer.send(Outgoing::new(INFER, fits).answer_to("answers"));
    assert_eq!(scene.peer.receive().status(), 413);
    assert_eq!(scene.daemon.events("mqtt.connected").len(), 1, "the connection held");
}

#[test]
fn a_response_topic_with_wildcards_is_not_published_to() {
    let scene = Scene::new();
    // With QoS 0 from a separate client, because a broker may disconnect the sender.
    let rogue = Peer::new(&scene.broker, "rogue");
    for topic in ["answers/#", "+/answers", "#", "ans\u{0}wers", ""] {
        rogue.send(Outgoing::add_sub("wild", 2.0).answer_to(topic).at_most_once());
    }
    rogue.send(Outgoing::new("end of the rogue", ""));
    rogue.flush();
    let messages = scene.traffic();
    let requests = messages.iter().filter(|message| message.topic == INFER).count();
    let answers: Vec<_> =
        messages.iter().filter(|message| !message.topic.contains("rogue") && message.topic != INFER).collect();
    // An empty response topic may be taken as none at all.
    assert!(answers.iter().all(|message| message.topic == RESULT) && answers.len() <= 1, "{answers:#?}");
    let told = scene.unanswered().len();
    assert!(
        told <= requests && (told > 0 || requests == answers.len()),
        "{told} of {requests}: {}",
        scene.daemon.log()
    );
}

#[test]
fn a_request_whose_answer_would_be_a_request_is_refused_once() {
    let scene = Scene::new();
    for topic in [INFER, "ledge/v1/box/infer/slow", "ledge/v1/box/infer/add_sub/versions/1"] {
        scene.peer.send(Outgoing::add_sub("loop", 2.0).answer_to(topic));
    }
    logged(&scene.daemon, "mqtt.request_dropped", 1);
    let messages = scene.traffic();
    assert_eq!(messages.len(), 3, "the three requests and nothing else: {messages:#?}");
    scene.assert_told_once();
}

#[test]
fn the_topics_of_results_take_no_requests() {
    let scene = Scene::new();
    // A message of another client to a result topic, with itself as the response topic.
    scene.peer.send(Outgoing::add_sub("result as request", 2.0).to(RESULT).answer_to(RESULT));
    scene.peer.send(Outgoing::add_sub("result to infer", 2.0).to(RESULT).answer_to(INFER));
    // An honest one: an answer may be wanted there.
    scene.peer.send(Outgoing::add_sub("result as response", 2.0).answer_to(RESULT));
    let messages = scene.traffic();
    let by = |topic: &str| messages.iter().filter(|message| message.topic == topic).count();
    assert_eq!((by(INFER), by(RESULT), messages.len()), (1, 3, 4), "{messages:#?}");
}

#[test]
fn what_a_box_says_of_itself_is_not_written_over_by_an_answer() {
    // A caller need not be allowed to publish there; the box is.
    let scene = Scene::new();
    let words = Peer::subscribed(&scene.broker, "words", "ledge/v1/box/+");
    for topic in ["ledge/v1/box/online", "ledge/v1/box/reported"] {
        scene.peer.send(Outgoing::add_sub("over itself", 2.0).answer_to(topic));
    }
    logged(&scene.daemon, "mqtt.request_dropped", 1);
    scene.traffic();
    let said = words.received();
    assert!(said.iter().all(|message| !message.text().contains("over itself")), "{said:#?}");
}

/// Sends bytes to the broker as they are, and reads until it closes the connection.
fn raw(broker: &Broker, packets: &[&[u8]]) {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, broker.port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // CONNECT: MQTT 5, clean start, keep-alive of a minute, no properties, the client id "raw".
    stream.write_all(b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03raw").unwrap();
    for packet in packets {
        if stream.write_all(packet).is_err() {
            break;
        }
    }
    let _ = stream.read_to_end(&mut Vec::new());
}

/// A PUBLISH packet with QoS 0 and no properties.
fn publish(topic: &[u8], payload: &[u8]) -> Vec<u8> {
    let length = 2 + topic.len() + 1 + payload.len();
    let (low, high) = (u8::try_from(length % 128).unwrap() | 0x80, u8::try_from(length / 128).unwrap());
    let topic_length = u16::try_from(topic.len()).unwrap().to_be_bytes();
    [&[0x30, low, high], topic_length.as_slice(), topic, &[0], payload].concat()
}

#[test]
fn bytes_that_are_no_utf_8_in_a_topic_reach_nobody() {
    let scene = Scene::new();
    let request = add_sub("raw", 2.0).to_string();
    let mut topic = INFER.as_bytes().to_vec();
    // The broker closes the connection at each of these.
    for bad in [&b"\xff\xfe"[..], b"\xc0\x80", b"\xed\xa0\x80", b"\x00", b"/#"] {
        topic.truncate(INFER.len());
        topic.extend_from_slice(bad);
        raw(&scene.broker, &[&publish(&topic, request.as_bytes())]);
    }
    let messages = scene.traffic();
    assert!(messages.is_empty(), "{messages:#?}");
    // The same packet with a good topic is a request: it was the topic that was refused. DISCONNECT ends it.
    scene.peer.subscribe(RESULT);
    raw(&scene.broker, &[&publish(INFER.as_bytes(), request.as_bytes()), b"\xe0\x00"]);
    assert_eq!(scene.peer.receive().id(), "raw");
}

#[test]
fn a_flood_of_loops_is_no_storm() {
    let scene = Scene::new();
    for number in 0..2_000 {
        scene.peer.send(Outgoing::add_sub(&number.to_string(), 1.0).answer_to(INFER));
    }
    scene.peer.flush();
    let messages = scene.traffic();
    assert_eq!(messages.len(), 2_000, "the requests and nothing else");
    scene.assert_told_once();
}
