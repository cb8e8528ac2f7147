//! Messages of devices become features, and models are called with only entity keys.

use serde_json::{Value, json};

use crate::boxes::{logged, root, start, wait_until};
use crate::broker::Broker;
use crate::daemon::{TestDaemon, TestRoot, write};
use crate::message::Outgoing;
use crate::mqtt::Peer;

const VIEWS: &str = r#"
[[entity]]
name = "wine"
join_key = "wine_id"
value_type = "String"

[[feature_view]]
name = "lab"
entities = ["wine"]
schema = [{ name = "measured", dtype = "Array(Float32)" }]
source = { name = "lab_push", timestamp_field = "event_timestamp" }
"#;

const MODEL: &str = "max_batch_size = 64\n[[input]]\nname = \"features\"\nfeatures = [\"lab:measured\"]\n";

/// A binding that pushes the values of the laboratory, and one that also scores them.
const BINDINGS: &str = r#"
[[mqtt.bindings]]
topic = "cellar/+/lab"
feature_view = "lab"
event_timestamp = "$.at"
entities = { wine_id = "{1}" }
features = { measured = "$.values.all" }

[[mqtt.bindings]]
topic = "press/+/lab"
push_source = "lab_push"
entities = { wine_id = "$.wine" }
model = "wine_mlp"
publish = "cultivar/{1}"
"#;

/// Rows of the model's golden input, of the first and of the third cultivar.
const FIRST: [f64; 13] = [14.37, 1.95, 2.5, 16.8, 113.0, 3.85, 3.49, 0.24, 2.18, 7.8, 0.86, 3.45, 1480.0];
const THIRD: [f64; 13] = [12.87, 4.61, 2.48, 21.5, 86.0, 1.7, 0.65, 0.47, 0.86, 7.65, 0.54, 1.86, 625.0];

const PATH: &str = "/v2/models/wine_mlp/infer";

fn cellar(broker: &Broker) -> TestRoot {
    let root = root(broker).models(&["wine_mlp"]).file("wine_mlp/model.toml", MODEL).views(VIEWS);
    write(&root.folder.path().join("ledge.toml"), BINDINGS.as_bytes());
    root
}

/// The model's answer to rows that are sent whole.
fn outputs(daemon: &TestDaemon, rows: &[[f64; 13]]) -> Value {
    let input = json!({"name": "features", "datatype": "FP32", "shape": [rows.len(), 13], "data": rows.concat()});
    daemon.client().post_json(PATH, &json!({"inputs": [input]})).json()["outputs"].clone()
}

#[test]
fn features_that_a_binding_pushed_answer_calls_by_entity_key_over_http_and_mqtt() {
    let broker = Broker::new();
    let daemon = start(cellar(&broker));
    let peer = Peer::subscribed(&broker, "winery", "answers");
    peer.send(Outgoing::json("cellar/barolo/lab", &json!({"values": {"all": FIRST}, "at": 1_795_222_800})));
    let request = json!({"entities": {"wine_id": ["barolo"]}});
    // The push is on its way while the first calls are made.
    wait_until("the pushed wine", || daemon.client().post_json(PATH, &request).status == 200);
    let expected = outputs(&daemon, &[FIRST]);
    assert_eq!(daemon.client().post_json(PATH, &request).json()["outputs"], expected);
    peer.send(Outgoing::json("ledge/v1/box/infer/wine_mlp", &request).answer_to("answers"));
    let answer = peer.receive();
    assert_eq!((answer.status(), &answer.json()["outputs"]), (200, &expected), "{answer:?}");
    // An older event changes nothing.
    peer.send(Outgoing::json("cellar/barolo/lab", &json!({"values": {"all": THIRD}, "at": 1_795_222_799})));
    peer.send(Outgoing::json("cellar/dolcetto/lab", &json!({"values": {"all": THIRD}, "at": 1_795_222_799})));
    wait_until("the other wine", || {
        let other = json!({"entities": {"wine_id": ["dolcetto"]}});
        daemon.client().post_json(PATH, &other).status == 200
    });
    assert_eq!(daemon.client().post_json(PATH, &request).json()["outputs"], expected);
}

#[test]
fn rows_are_pushed_and_scored_in_one_go() {
    let broker = Broker::new();
    let daemon = start(cellar(&broker));
    let peer = Peer::subscribed(&broker, "winery", "cultivar/#");
    peer.send(Outgoing::json("press/7/lab", &json!({"wine": "barolo", "measured": FIRST})));
    let answer = peer.receive();
    assert_eq!((answer.topic.as_str(), answer.status()), ("cultivar/7", 200), "{answer:?}");
    assert_eq!(answer.json()["outputs"], outputs(&daemon, &[FIRST]));
    // Two rows of one message, in their order.
    let rows = json!([{"wine": "barolo", "measured": THIRD}, {"wine": "dolcetto", "measured": FIRST}]);
    peer.send(Outgoing::json("press/8/lab", &rows));
    let answer = peer.receive();
    assert_eq!(answer.json()["outputs"], outputs(&daemon, &[THIRD, FIRST]), "{answer:?}");
}

#[test]
fn a_message_that_makes_no_row_is_told_in_the_log_and_holds_nothing_up() {
    let broker = Broker::new();
    let daemon = start(cellar(&broker));
    let peer = Peer::subscribed(&broker, "winery", "cultivar/#");
    peer.send(Outgoing::json("press/7/lab", &json!({"wine": "barolo", "measured": "much"})));
    let complaint = logged(&daemon, "binding.failed", 1);
    assert_eq!((complaint["binding"].as_str(), complaint["status"].as_u64()), (Some("press/+/lab"), Some(400)));
    assert!(complaint["reason"].as_str().unwrap().contains("measured"), "{complaint}");
    peer.send(Outgoing::json("press/7/lab", &json!({"wine": "barolo", "measured": FIRST})));
    assert_eq!(peer.receive().status(), 200);
}

#[test]
fn a_binding_to_a_view_that_is_not_declared_is_a_mistake_in_the_configuration() {
    let broker = Broker::new();
    let root = cellar(&broker).views("");
    let output = root.command(&["config", "check"]).output().unwrap();
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("mqtt.bindings[0].feature_view") && text.contains("mqtt.bindings[1].push_source"), "{text}");
}
