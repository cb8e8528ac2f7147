//! Rows in the messages of devices, and models that are trained while the test runs.

use std::path::Path;
use std::process::Command;

use crate::boxes::{root, start};
use crate::broker::Broker;
use crate::daemon::{setup_root, write};
use crate::message::Outgoing;
use crate::mqtt::Peer;
use crate::table_golden::{Golden, MODELS, committed, exports};
use crate::tools::run;

/// Sends the rows of an export to a box as one message.
fn over_mqtt(peer: &Peer, model: &str, golden: &Golden) -> Vec<(String, Vec<f64>)> {
    peer.send(Outgoing::json(&format!("ledge/v1/box/infer/{model}"), &golden.json()));
    let answer = peer.receive();
    assert_eq!(answer.topic, format!("ledge/v1/box/result/{model}"));
    Golden::answers(&answer.json()["rows"])
}

#[test]
fn rows_of_a_message_are_predicted_as_the_library_of_each_export_predicts_them() {
    let broker = Broker::new();
    let _daemon = start(exports(root(&broker), &committed()));
    let peer = Peer::subscribed(&broker, "answers", "ledge/v1/box/result/#");
    for model in MODELS {
        let golden = Golden::of(&committed(), model);
        golden.compare(model, &over_mqtt(&peer, model, &golden));
    }
}

#[test]
fn models_trained_now_answer_over_http_and_mqtt_as_their_library_predicts() {
    let python = setup_root().join("peers/tables/bin/python3");
    assert!(python.exists(), "{} is missing: `make setup-tables` gets it", python.display());
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/table_models.py");
    run(Command::new(python).args(["-B".as_ref(), script.as_os_str(), folder.path().as_os_str()]));

    let broker = Broker::new();
    let daemon = start(exports(root(&broker), folder.path()));
    let peer = Peer::subscribed(&broker, "answers", "ledge/v1/box/result/#");
    let client = &mut daemon.client();
    println!("{:<20} {:>9} {:>9} {:>9}", "largest difference", "JSON", "CSV", "MQTT");
    for model in MODELS {
        let golden = Golden::of(folder.path(), model);
        let mut post = |content_type, body: &[u8]| {
            let answer = client.post(&format!("/v2/models/{model}/infer"), &[("content-type", content_type)], body);
            assert_eq!(answer.status, 200, "{model}: {answer:?}");
            answer
        };
        let json = Golden::answers(&post("application/json", golden.json().to_string().as_bytes()).json()["rows"]);
        let (_, csv) = Golden::csv_answers(&post("text/csv", golden.csv().as_bytes()).body);
        let [json, csv, mqtt] = [json, csv, over_mqtt(&peer, model, &golden)].map(|got| golden.compare(model, &got));
        println!("{model:<20} {json:>9.1e} {csv:>9.1e} {mqtt:>9.1e}");
    }
}

#[test]
fn a_row_that_a_device_publishes_becomes_a_class() {
    let broker = Broker::new();
    let root = exports(root(&broker), &committed());
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
