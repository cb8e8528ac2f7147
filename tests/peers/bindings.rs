//! Inference on the messages of devices that know nothing of Ledge, by configuration only.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::boxes::{named_root, root, start};
use crate::broker::Broker;
use crate::daemon::{TestRoot, data, write};
use crate::message::Outgoing;
use crate::mqtt::Peer;
use crate::tools::{mosquitto, run};

/// Sixteen elements of `INPUT1`, which `add_sub` needs besides the temperatures.
const ZEROS: &str = "$.payload.zeros";

/// A root with bindings in its configuration.
fn with(root: TestRoot, bindings: &str) -> TestRoot {
    write(&root.folder.path().join("ledge.toml"), bindings.as_bytes());
    root
}

/// The message of a sensor, with a temperature in it.
fn reading(temperature: f64) -> Value {
    json!({"device": "pump 3", "payload": {"temp": temperature, "zeros": vec![0.0; 16]}, "sequence": 17})
}

/// A binding of a temperature to `add_sub`, sixteen times, with more keys.
fn sensor(more: &str) -> String {
    let temperatures = vec!["\"$.payload.temp\""; 16].join(", ");
    format!(
        "[[mqtt.bindings]]\ntopic = \"plant/+/+/reading\"\nmodel = \"add_sub\"\npublish = \"warm/{{2}}/{{1}}\"\n{more}\n\
         [mqtt.bindings.inputs]\nINPUT0 = [{temperatures}]\nINPUT1 = [\"{ZEROS}\"]\n"
    )
}

#[test]
fn the_snapshots_of_a_camera_become_labels() {
    let broker = Broker::new();
    let bindings = "[[mqtt.bindings]]\ntopic = \"cameras/+/snapshot\"\nmodel = \"efficientnet_lite0\"\n\
                    publish = \"vision/{1}/objects\"\nretain = true\n\
                    [[mqtt.bindings]]\ntopic = \"cameras/+/labelled\"\nmodel = \"efficientnet_lite0\"\n\
                    publish = \"vision/{1}/label\"\nselect = \"$.labels[0].label\"\n";
    let _daemon = start(with(root(&broker).models(&["efficientnet_lite0"]), bindings));
    let peer = Peer::subscribed(&broker, "watcher", "vision/#");
    // As cameras do: MQTT 3.1.1 and QoS 0, without a word about the content.
    let snapshot = |topic: &str| {
        run(mosquitto("mosquitto_pub", &broker).args([
            "-V",
            "311",
            "-t",
            topic,
            "-f",
            "tests/data/photos/chelsea.jpg",
        ]));
    };
    snapshot("cameras/entrance/snapshot");
    let answer = peer.receive();
    assert_eq!(answer.topic, "vision/entrance/objects");
    assert!(answer.json()["labels"][0]["label"].as_str().unwrap().contains("cat"), "{answer:?}");
    snapshot("cameras/yard/labelled");
    let answer = peer.receive();
    assert_eq!(answer.topic, "vision/yard/label");
    assert!(answer.text().contains("cat") && !answer.text().starts_with(['"', '{']), "{answer:?}");
    // A later subscriber gets the last answer of the first binding.
    let late = Peer::subscribed(&broker, "late", "vision/#");
    let kept = late.receive();
    assert!(kept.retained && kept.topic == "vision/entrance/objects", "{kept:?}");
    // A message that is no photograph publishes no label.
    peer.send(Outgoing::new("cameras/entrance/snapshot", b"no camera".to_vec()));
    peer.send(Outgoing::new("cameras/entrance/snapshot", data("photos/coffee.png")));
    let answer = peer.receive();
    assert_eq!(answer.json()["labels"][0]["label"], "espresso", "{answer:?}");
}

#[test]
fn a_field_of_a_message_becomes_an_input_and_a_field_of_the_answer_its_message() {
    let broker = Broker::new();
    let _daemon = start(with(root(&broker), &sensor("select = \"$.outputs[0].data[15]\"")));
    let peer = Peer::subscribed(&broker, "watcher", "warm/#");
    peer.send(Outgoing::json("plant/hall/pump/reading", &reading(21.5)));
    let answer = peer.receive();
    assert_eq!((answer.topic.as_str(), answer.text().parse::<f64>()), ("warm/pump/hall", Ok(21.5)), "{answer:?}");
}

#[test]
fn a_message_without_the_field_is_answered_only_where_errors_are_wanted() {
    let broker = Broker::new();
    let silent = sensor("");
    let told = sensor("publish_errors = true").replace("plant/", "factory/").replace("warm/", "hot/");
    let _daemon = start(with(root(&broker), &(silent + &told)));
    let peer = Peer::subscribed(&broker, "watcher", "warm/#");
    peer.subscribe("hot/#");
    for poison in [json!({"payload": {}}), json!({"payload": {"temp": "warm", "zeros": 3}}), json!([])] {
        peer.send(Outgoing::json("plant/hall/pump/reading", &poison));
        peer.send(Outgoing::json("factory/hall/pump/reading", &poison));
        let answer = peer.receive();
        assert_eq!((answer.topic.as_str(), answer.status()), ("hot/pump/hall", 400), "{answer:?}");
        assert!(!answer.error().is_empty());
    }
    peer.send(Outgoing::json("plant/hall/pump/reading", &reading(1.0)));
    assert_eq!(peer.receive().topic, "warm/pump/hall");
}

#[test]
fn a_topic_with_a_rate_is_answered_that_often_and_with_the_newest() {
    let broker = Broker::new();
    let _daemon = start(with(root(&broker), &sensor("max_rate = 2\nselect = \"$.outputs[0].data[0]\"")));
    let peer = Peer::subscribed(&broker, "watcher", "warm/#");
    let started = Instant::now();
    for value in 0..100 {
        peer.send(Outgoing::json("plant/hall/pump/reading", &reading(f64::from(value))));
        // Each topic has a separate rate.
        if value == 50 {
            peer.send(Outgoing::json("plant/hall/fan/reading", &reading(1000.0)));
        }
    }
    let mut pump = Vec::new();
    let mut fan = 0;
    while pump.last() != Some(&99.0) || fan == 0 {
        let answer = peer.receive();
        match answer.topic.as_str() {
            "warm/pump/hall" => pump.push(answer.text().parse::<f64>().unwrap()),
            "warm/fan/hall" => fan += 1,
            other => panic!("{other}"),
        }
    }
    // Two a second: one at once, and one for each half of a second that began since.
    let most = usize::try_from(started.elapsed().as_millis() / 500).unwrap() + 2;
    assert!(pump.len() >= 2 && pump.len() <= most && fan == 1, "{pump:?} in {:?}", started.elapsed());
    assert!(pump.is_sorted(), "{pump:?}");
    assert!(peer.receive_within(Duration::from_millis(700)).is_none(), "the newest was the last");
}

#[test]
fn the_boxes_of_a_group_share_the_messages_of_a_shared_binding() {
    let broker = Broker::new();
    let member = |name| {
        let root = named_root(&broker, name).set("device.group=\"boxes\"");
        start(with(root, &sensor("shared = true\nselect = \"$.outputs[0].data[0]\"")))
    };
    let _daemons = ["first", "second"].map(member);
    let peer = Peer::subscribed(&broker, "watcher", "warm/#");
    let mut values = Vec::new();
    let mut devices = std::collections::BTreeSet::new();
    for value in 0..100 {
        peer.send(Outgoing::json("plant/hall/pump/reading", &reading(f64::from(value))));
    }
    while values.len() < 100 {
        let answer = peer.receive();
        devices.insert(answer.device().to_owned());
        values.push(answer.text().parse::<f64>().unwrap());
    }
    values.sort_by(f64::total_cmp);
    assert_eq!(values, (0..100).map(f64::from).collect::<Vec<_>>(), "each once");
    assert_eq!(devices.len(), 2, "{devices:?}");
}

#[test]
fn a_text_of_a_device_becomes_its_vector_bare_or_in_a_field() {
    let broker = Broker::new();
    let bindings = "[[mqtt.bindings]]\ntopic = \"tickets/+/bare\"\nmodel = \"word_vectors\"\n\
                    publish = \"vectors/{1}/bare\"\nselect = \"$.embeddings[0].embedding\"\n\
                    [[mqtt.bindings]]\ntopic = \"tickets/+/json\"\nmodel = \"word_vectors\"\n\
                    publish = \"vectors/{1}/json\"\ntext = \"$.note\"\npublish_errors = true\n";
    let config = "[pipeline.text_embedding]\nmax_tokens = 8\nnormalize = false\n";
    let root = root(&broker).models(&["word_vectors"]).file("word_vectors/model.toml", config);
    let _daemon = start(with(root, bindings));
    let peer = Peer::subscribed(&broker, "watcher", "vectors/#");
    // MQTT 3.1.1 has no content type.
    run(mosquitto("mosquitto_pub", &broker).args(["-V", "311", "-t", "tickets/7/bare", "-m", "Red red"]));
    let answer = peer.receive();
    assert_eq!((answer.topic.as_str(), answer.json()), ("vectors/7/bare", json!([3.25, 4.0, 1.0])));
    peer.send(Outgoing::json("tickets/8/json", &json!({"note": "Red red"})));
    let answer = peer.receive();
    assert_eq!(answer.json()["embeddings"][0]["tokens"], 4, "{answer:?}");
    for (refused, status) in
        [(json!({"note": 7}), 400), (json!({"note": " "}), 400), (json!({"note": "a".repeat(300_000)}), 413)]
    {
        peer.send(Outgoing::json("tickets/8/json", &refused));
        assert_eq!(peer.receive().status(), status);
    }
    // A call has the content type of its text.
    let mut call = mosquitto("mosquitto_rr", &broker);
    let call =
        call.args(["-V", "5", "-q", "1", "-t", "ledge/v1/box/infer/word_vectors", "-e", "answers", "-m", "Red red"]);
    let told = run(call.args(["-D", "publish", "content-type", "text/plain"]));
    assert!(told.contains(r#""embedding":[3.25,4.0,1.0]"#), "{told}");
}
