//! One call after the other, from the clients that people have.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::boxes::{call, logged, receive, root, root_at, start, start_box};
use crate::broker::Broker;
use crate::daemon::data;
use crate::message::{Outgoing, add_sub};
use crate::mqtt::Peer;
use crate::tools::{mosquitto, python, run, run_with};

const INFER: &str = "ledge/v1/box/infer/add_sub";
const RESULT: &str = "ledge/v1/box/result/add_sub";
const PHOTO: &str = "tests/data/photos/chelsea.jpg";

/// Checks that this is the answer to the requests below.
#[track_caller]
fn check_sum(answer: &str, id: &str) {
    let answer: Value = serde_json::from_str(answer).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
    assert_eq!((&answer["id"], &answer["outputs"][0]["data"]), (&json!(id), &json!(vec![3.0; 16])), "{answer}");
}

/// `chelsea.jpg` shows a cat.
#[track_caller]
fn check_cat(answer: &str) {
    let answer: Value = serde_json::from_str(answer).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
    let label = answer["labels"][0]["label"].as_str().unwrap_or_else(|| panic!("no label in {answer}"));
    assert!(label.contains("cat"), "{answer}");
}

#[test]
fn mosquitto_rr_gets_the_answer_to_its_json() {
    let broker = Broker::new();
    let _daemon = start_box(&broker);
    let request = add_sub("7", 2.0).to_string();
    let answer = run(mosquitto("mosquitto_rr", &broker).args([
        "-V",
        "5",
        "-q",
        "1",
        "-W",
        "30",
        "-t",
        INFER,
        "-e",
        "answers/rr",
        "-m",
        &request,
    ]));
    check_sum(&answer, "7");
    // One version of the model, by its number.
    let topic = format!("{INFER}/versions/1");
    let answer = run(mosquitto("mosquitto_rr", &broker).args([
        "-V",
        "5",
        "-W",
        "30",
        "-t",
        &topic,
        "-e",
        "answers/rr",
        "-m",
        &request,
    ]));
    check_sum(&answer, "7");
}

#[test]
fn a_photograph_of_mosquitto_pub_is_answered_with_labels() {
    let broker = Broker::new();
    let _daemon = start(root(&broker).models(&["efficientnet_lite0"]));
    let peer = Peer::subscribed(&broker, "answers", "answers/#");
    let publish = ["-V", "5", "-q", "1", "-t", "ledge/v1/box/infer/efficientnet_lite0", "-f", PHOTO];
    let properties =
        [["response-topic", "answers/photo"], ["content-type", "image/jpeg"], ["correlation-data", "entrance"]]
            .into_iter()
            .flat_map(|[name, value]| ["-D", "publish", name, value]);
    run(mosquitto("mosquitto_pub", &broker).args(publish).args(properties));
    let answer = peer.receive();
    assert_eq!((answer.status(), answer.device(), answer.topic.as_str()), (200, "box", "answers/photo"), "{answer:?}");
    assert_eq!(answer.correlation.as_deref(), Some(b"entrance".as_slice()));
    assert_eq!(answer.content_type.as_deref(), Some("application/json"));
    check_cat(&answer.text());
}

#[test]
fn paho_calls_with_correlation_binary_tensors_deadlines_and_priorities() {
    let broker = Broker::new();
    let _daemon = start(root(&broker).models(&["efficientnet_lite0"]));
    python("paho_calls.py", &broker, &[PHOTO]);
}

#[test]
fn a_client_of_mqtt_3_1_1_finds_its_answer_by_the_id() {
    let broker = Broker::new();
    let _daemon = start(root(&broker).models(&["efficientnet_lite0"]));
    let peer = Peer::subscribed(&broker, "watcher", "ledge/v1/box/result/#");
    // With the broker's own clients, to be sure that nothing of MQTT 5 is sent.
    run_with(
        mosquitto("mosquitto_pub", &broker).args(["-V", "311", "-q", "1", "-t", INFER, "-s"]),
        add_sub("old 1", 2.0).to_string().as_bytes(),
    );
    let answer = peer.receive();
    assert_eq!(answer.topic, RESULT);
    check_sum(&answer.text(), "old 1");
    run(mosquitto("mosquitto_pub", &broker).args([
        "-V",
        "311",
        "-t",
        "ledge/v1/box/infer/efficientnet_lite0",
        "-f",
        PHOTO,
    ]));
    let answer = peer.receive();
    assert_eq!(answer.topic, "ledge/v1/box/result/efficientnet_lite0");
    check_cat(&answer.text());
    let wrong = json!({"id": "old 2", "inputs": []}).to_string();
    run(mosquitto("mosquitto_pub", &broker).args(["-V", "311", "-t", INFER, "-m", &wrong]));
    let answer = peer.receive().json();
    assert_eq!((&answer["id"], &answer["status"]), (&json!("old 2"), &json!(400)), "{answer}");
}

#[test]
fn an_answer_comes_as_the_request_did_and_where_it_asked() {
    let broker = Broker::new();
    let daemon = start_box(&broker);
    let peer = Peer::subscribed(&broker, "caller", "answers/#");
    peer.subscribe("ledge/v1/box/result/#");
    // The same call over HTTP has the right answer.
    let [json, tensors] = binary();
    let length = json.len().to_string();
    let request = Outgoing::new(INFER, [json.clone(), tensors.clone()].concat())
        .content_type("application/octet-stream")
        .user("inference-header-content-length", &length)
        .answer_to("answers/binary")
        .correlation(&[0, 255, 7]);
    peer.send(request.clone());
    let answer = peer.receive();
    let over_http = daemon.client().post(
        "/v2/models/add_sub/infer",
        &[("inference-header-content-length", &length)],
        &[json, tensors].concat(),
    );
    assert_eq!((answer.status(), over_http.status), (200, 200), "{answer:?}");
    assert_eq!(answer.content_type.as_deref(), Some("application/octet-stream"));
    assert_eq!(answer.user("inference-header-content-length"), over_http.header("inference-header-content-length"));
    assert_eq!(answer.payload, over_http.body);
    assert_eq!(answer.correlation, Some(vec![0, 255, 7]));
    // With QoS 0 as well.
    peer.send(request.at_most_once());
    assert_eq!(peer.receive().payload, over_http.body);
    // Without a response topic.
    peer.send(Outgoing::add_sub("here", 2.0));
    let answer = peer.receive();
    assert_eq!((answer.topic.as_str(), answer.id().as_str(), answer.sum()), (RESULT, "here", 3.0));
}

/// A request to `add_sub` in binary, which wants its answer in binary: the JSON and the tensors.
fn binary() -> [Vec<u8>; 2] {
    let input =
        |name| json!({"name": name, "datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": 64}});
    let request = json!({
        "id": "b", "inputs": [input("INPUT0"), input("INPUT1")], "parameters": {"binary_data_output": true},
    });
    let tensors: Vec<u8> = [[2.0_f32; 16], [1.0; 16]].concat().into_iter().flat_map(f32::to_le_bytes).collect();
    [request.to_string().into_bytes(), tensors]
}

#[test]
fn errors_are_answers_with_their_status() {
    let broker = Broker::new();
    let _daemon = start(root(&broker).models(&["slow"]));
    let peer = Peer::subscribed(&broker, "caller", "answers");
    let cases = [
        ("ledge/v1/box/infer/nobody", add_sub("a", 1.0), 404, "nobody"),
        ("ledge/v1/box/infer/add_sub/versions/9", add_sub("b", 1.0), 404, "9"),
        (INFER, json!({"id": "c", "inputs": []}), 400, "INPUT0"),
    ];
    for (topic, request, status, named) in cases {
        peer.send(Outgoing::json(topic, &request).answer_to("answers"));
        let answer = peer.receive();
        assert_eq!((answer.status(), answer.id()), (status, request["id"].as_str().unwrap().to_owned()), "{answer:?}");
        assert!(answer.error().contains(named), "{answer:?}");
    }
    call(&peer, "d");
}

#[test]
fn what_waits_longer_than_its_message_expiry_is_answered_504() {
    let broker = Broker::new();
    let root = root(&broker).models(&["slow"]).file("slow/model.toml", "[queue]\nmax_size = 1000\n");
    let _daemon = start(root.set("runtimes.threads=1").set("mqtt.max_in_flight=1000"));
    let peer = Peer::subscribed(&broker, "caller", "answers");
    // Find the number of requests that keep this machine busy for more than a second.
    let mut before = 64;
    let was_late = (0..10).any(|_round| {
        for id in 0..before {
            peer.send(slow(id).answer_to("answers"));
        }
        let hurried = before.to_string();
        peer.send(slow(before).answer_to("answers").expiry(1));
        peer.send(slow(before + 1).answer_to("answers"));
        let (earlier, last) = receive(&peer, &(before + 1).to_string());
        let (of_hurried, others): (Vec<_>, Vec<_>) = earlier.iter().partition(|answer| answer.id() == hurried);
        assert_eq!(others.len(), before, "{others:?}");
        assert!(others.into_iter().chain([&last]).all(|answer| answer.status() == 200), "without an expiry");
        match of_hurried.first().map(|answer| answer.status()) {
            Some(504) => return true,
            Some(200) => before = (2 * before).min(900),
            // On a very slow machine it expires at the broker, which then does not deliver it.
            None => {}
            Some(_) => panic!("{of_hurried:?}"),
        }
        false
    });
    assert!(was_late, "a second was long enough for all");
    peer.send(slow(1000).expiry(60).answer_to("answers"));
    assert_eq!(receive(&peer, "1000").1.status(), 200);
}

#[test]
fn a_full_queue_answers_429_with_the_time_to_wait() {
    let broker = Broker::new();
    let full = "[queue]\nmax_size = 2\n";
    let _daemon = start(root(&broker).models(&["slow"]).file("slow/model.toml", full).set("runtimes.threads=1"));
    let peer = Peer::subscribed(&broker, "caller", "answers");
    for id in 0..40 {
        peer.send(slow(id).answer_to("answers"));
    }
    let mut statuses = BTreeMap::<u16, usize>::new();
    for _ in 0..40 {
        let answer = peer.receive();
        *statuses.entry(answer.status()).or_default() += 1;
        if answer.status() == 429 {
            assert!(!answer.error().is_empty());
            let wait = answer.user("retry-after").and_then(|seconds| seconds.parse::<u32>().ok());
            assert!(wait.is_some_and(|seconds| seconds > 0), "{answer:?}");
        }
    }
    assert_eq!(statuses.keys().copied().collect::<Vec<_>>(), [200, 429], "{statuses:?}");
    call(&peer, "and another model");
}

/// A request to the model `slow`.
fn slow(id: usize) -> Outgoing {
    let input = json!({"name": "IN", "datatype": "FP32", "shape": [1, 16], "data": vec![0.0; 16]});
    Outgoing::json("ledge/v1/box/infer/slow", &json!({"id": id.to_string(), "inputs": [input]}))
}

#[test]
fn a_broker_that_speaks_3_1_1_only_is_spoken_to_in_it() {
    let broker = Broker::nats();
    let daemon = start(root_at(&broker.url(), "box"));
    let line = logged(&daemon, "mqtt.connected", 1);
    assert!(line["version"].as_str().unwrap().contains("3.1.1"), "{line}");
    let mut watcher = mosquitto("mosquitto_sub", &broker);
    watcher.args(["-V", "311", "-i", "watcher", "-q", "1", "-W", "30", "-C", "1", "-t", RESULT]);
    // A session first, so that the answer is kept for the watcher however soon it comes.
    run(mosquitto("mosquitto_sub", &broker).args(["-V", "311", "-i", "watcher", "-c", "-q", "1", "-E", "-t", RESULT]));
    run(mosquitto("mosquitto_pub", &broker).args([
        "-V",
        "311",
        "-q",
        "1",
        "-t",
        INFER,
        "-m",
        &add_sub("n", 2.0).to_string(),
    ]));
    check_sum(&run(watcher.arg("-c")), "n");
    let online = run(mosquitto("mosquitto_sub", &broker).args([
        "-V",
        "311",
        "-W",
        "30",
        "-C",
        "1",
        "-t",
        "ledge/v1/box/online",
    ]));
    assert_eq!(online.trim(), "online");
}

#[test]
fn the_photograph_of_a_camera_and_its_answer_over_http_are_the_same() {
    let broker = Broker::new();
    let daemon = start(root(&broker).models(&["efficientnet_lite0"]));
    let peer = Peer::subscribed(&broker, "camera", "answers");
    let photo = data("photos/chelsea.jpg");
    peer.send(Outgoing::new("ledge/v1/box/infer/efficientnet_lite0", photo.clone()).answer_to("answers"));
    let over_http =
        daemon.client().post("/v2/models/efficientnet_lite0/infer", &[("content-type", "image/jpeg")], &photo);
    assert_eq!(peer.receive().json()["labels"], over_http.json()["labels"]);
}
