//! Rows in the messages of devices.

use crate::boxes::{root, start};
use crate::broker::Broker;
use crate::daemon::write;
use crate::message::Outgoing;
use crate::mqtt::Peer;
use crate::table_golden::{Golden, MODELS, exports};

#[test]
fn rows_of_a_message_are_predicted_as_the_library_of_each_export_predicts_them() {
    let broker = Broker::new();
    let _daemon = start(exports(root(&broker)));
    let peer = Peer::subscribed(&broker, "answers", "ledge/v1/box/result/#");
    for model in MODELS {
        let golden = Golden::of(model);
        peer.send(Outgoing::json(&format!("ledge/v1/box/infer/{model}"), &golden.json()));
        let answer = peer.receive();
        assert_eq!(answer.topic, format!("ledge/v1/box/result/{model}"));
        golden.compare(model, &Golden::answers(&answer.json()["rows"]));
    }
}

#[test]
fn a_row_that_a_device_publishes_becomes_a_class() {
    let broker = Broker::new();
    let root = exports(root(&broker));
    let binding = "[[mqtt.bindings]]\ntopic = \"plant/+/state\"\nmodel = \"machine_condition\"\n\
                   publish = \"plant/{1}/condition\"\nselect = \"$.rows[0].class\"\npublish_errors = true\n";
    write(&root.folder.path().join("ledge.toml"), binding.as_bytes());
    let _daemon = start(root);
    let peer = Peer::subscribed(&broker, "watcher", "plant/+/condition");
    let row = r#"{"temperature": 95, "vibration": "7.5", "hours": 8000, "machine": "saw", "shift": "night"}"#;
    peer.send(Outgoing::new("plant/7/state", row));
    let answer = peer.receive();
    assert_eq!((answer.topic.as_str(), &*answer.text()), ("plant/7/condition", "service"));
    peer.send(Outgoing::new("plant/8/state", row.replace("95", "\"hot\"")));
    let answer = peer.receive();
    assert!(answer.text().contains("row 0: column \\\"temperature\\\" is \\\"hot\\\""), "{answer:?}");
}
