//! Messages of Tasmota, ESPHome, Homie and `Zigbee2MQTT`, with the bindings of docs/mqtt.md.

use std::process::Command;

use serde_json::{Value, json};

use crate::boxes::{logged, root, start, wait_until};
use crate::broker::Broker;
use crate::daemon::{TestDaemon, TestRoot, write};
use crate::devices_page::configured;
use crate::message::Outgoing;
use crate::mqtt::Peer;
use crate::table_golden::with_model;
use crate::tools::{mosquitto, run};

/// A time in seconds since 1970, as `date` writes it in a zone.
fn date(seconds: u64, zone: &str, form: &str) -> String {
    let mut date = Command::new("date");
    run(date.env("TZ", zone).args(["-d", &format!("@{seconds}"), form])).trim().to_owned()
}

/// A feature of a room, with its status and its event time.
fn feature(daemon: &TestDaemon, name: &str, room: &str) -> (Value, String, String) {
    let request = json!({"features": [name], "entities": {"room_id": [room]}});
    let answer = daemon.client().post_json("/get-online-features", &request).json();
    let cell = &answer["results"][1];
    let text = |key: &str| cell[key][0].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    (cell["values"][0].clone(), text("statuses"), text("event_timestamps"))
}

fn skipped(daemon: &TestDaemon) -> u64 {
    let metrics = String::from_utf8(daemon.client().get("/metrics").body).unwrap();
    let count = metrics.lines().find_map(|line| line.strip_prefix("ledge_mqtt_skipped_total "));
    count.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap()
}

#[test]
fn devices_that_know_nothing_of_ledge_make_features_and_nothing_else_makes_a_warning() {
    let broker = Broker::new();
    // As devices do: MQTT 3.1.1, last wills and the bridge's own messages retained, most with QoS 0.
    let publish = |topic: &str, payload: &str, more: &[&str]| {
        run(mosquitto("mosquitto_pub", &broker).args(["-V", "311", "-t", topic, "-m", payload]).args(more));
    };
    publish("tele/kitchen/LWT", "Online", &["-r"]);
    publish("tele/attic/LWT", "Offline", &["-r", "-q", "1"]);
    // A list that is judged on another thread, for its size.
    let listed = json!([{"friendly_name": "bath", "definition": {"description": "x".repeat(300_000)}}]).to_string();
    let file = tempfile::NamedTempFile::new().unwrap();
    write(file.path(), listed.as_bytes());
    let list = ["-V", "311", "-r", "-t", "zigbee2mqtt/bridge/devices", "-f", file.path().to_str().unwrap()];
    run(mosquitto("mosquitto_pub", &broker).args(list));
    let daemon = start(configured(root(&broker)));

    let now: u64 = run(Command::new("date").arg("+%s")).trim().parse().unwrap();
    let local = date(now, "Europe/Berlin", "+%Y-%m-%dT%H:%M:%S");
    let utc = date(now, "UTC", "+%Y-%m-%dT%H:%M:%SZ");
    let state = format!(
        r#"{{"Time":"{local}","Uptime":"3T07:12:05","UptimeSec":285125,"Heap":25,"SleepMode":"Dynamic","Sleep":50,"LoadAvg":19,"MqttCount":1,"POWER":"ON","Wifi":{{"AP":1,"SSId":"home","RSSI":84,"Signal":-58}}}}"#
    );
    let sensor = |reading: &str| format!(r#"{{"Time":"{local}","SI7021":{{{reading}}},"TempUnit":"C"}}"#);
    let excluded = [
        ("tele/kitchen/INFO1", r#"{"Info1":{"Module":"Generic","Version":"14.3.0(tasmota)","GroupTopic":"tasmotas"}}"#),
        ("tele/kitchen/STATE", state.as_str()),
        // The sensor is unplugged; and another kind of device on the same topics.
        ("tele/kitchen/SENSOR", &sensor(r#""Temperature":null,"Humidity":null,"DewPoint":null"#)),
        ("tele/plug/SENSOR", &format!(r#"{{"Time":"{local}","ENERGY":{{"Power":12,"Total":3.1}}}}"#)),
        ("esphome/kitchen/sensor/temperature/state", "nan"),
        ("zigbee2mqtt/bridge/state", r#"{"state":"online"}"#),
        ("zigbee2mqtt/bridge/state", "online"),
        (
            "zigbee2mqtt/bridge/info",
            r#"{"version":"2.6.0","permit_join":false,"config":{"mqtt":{"server":"mqtt://h"}}}"#,
        ),
        (
            "zigbee2mqtt/bridge/logging",
            r#"{"level":"info","message":"MQTT publish: topic 'zigbee2mqtt/bath', payload '{\"temperature\":21.34}'"}"#,
        ),
        ("zigbee2mqtt/bath/availability", r#"{"state":"online"}"#),
        ("zigbee2mqtt/bath/set", r#"{"state":"ON"}"#),
        ("zigbee2mqtt/hall/motion", r#"{"battery":90,"linkquality":51,"occupancy":true}"#),
        // Before its first report.
        ("zigbee2mqtt/cellar", r#"{"battery":null,"humidity":null,"linkquality":60,"temperature":null}"#),
    ];
    for (topic, payload) in excluded {
        publish(topic, payload, &[]);
    }
    for (topic, payload) in [
        ("tele/kitchen/SENSOR", sensor(r#""Temperature":21.4,"Humidity":48.2,"DewPoint":10.0"#)),
        ("tele/attic/LWT", "Online".to_owned()),
        ("tele/kitchen/LWT", "Offline".to_owned()),
        ("esphome/kitchen/sensor/temperature/state", "-3.5".to_owned()),
        ("homie/kitchen/lamp/power", "true".to_owned()),
        ("zigbee2mqtt/bath", format!(r#"{{"battery":97,"humidity":44.72,"temperature":21.34,"last_seen":"{utc}"}}"#)),
        ("zigbee2mqtt/floor/two", r#"{"battery":97,"humidity":50,"temperature":20.5}"#.to_owned()),
    ] {
        publish(topic, &payload, &["-q", "1"]);
    }
    let values = || {
        [
            ("climate:temperature", "kitchen"),
            ("climate:humidity", "kitchen"),
            ("device:is_online", "attic"),
            ("device:is_online", "kitchen"),
            ("temperature:temperature", "kitchen"),
            ("light:is_on", "kitchen"),
            ("climate:temperature", "bath"),
            ("climate:temperature", "floor/two"),
        ]
        .map(|(name, room)| feature(&daemon, name, room).0)
    };
    let expected = json!([21.4_f32, 48.2_f32, true, false, -3.5_f32, true, 21.34_f32, 20.5_f32]);
    wait_until("the last feature", || values()[7] != Value::Null);
    wait_until("the features", || values().iter().all(|value| !value.is_null()));
    #[expect(clippy::cast_possible_truncation, reason = "single precision, as the views declare it")]
    let single = |value: Value| value.as_f64().map_or(value, |number| json!(number as f32));
    assert_eq!(json!(values().map(single)), expected);
    // A local time, one of UTC, and the arrival.
    assert_eq!(feature(&daemon, "climate:temperature", "kitchen").2, utc);
    assert_eq!(feature(&daemon, "climate:temperature", "bath").2, utc);
    assert!(feature(&daemon, "climate:temperature", "floor/two").2[..19] >= utc[..19]);
    for room in ["cellar", "hall/motion", "bridge/state", "plug"] {
        assert_eq!(feature(&daemon, "climate:temperature", room).1, "NOT_FOUND", "{room}");
    }

    // Every message to tele/+/+ is for two bindings, and each takes at most its own: of 8 there the sensor's and the
    // last wills' 4 are taken once. All others in the list have one binding.
    let tele = 4 * 2 + 5;
    wait_until("the count", || skipped(&daemon) == tele + 9 + 1);
    assert_eq!(daemon.complaints(), [Value::Null; 0]);

    publish("esphome/kitchen/sensor/temperature/state", "unavailable", &[]);
    let complaint = logged(&daemon, "binding.failed", 1);
    let reason = "the message is \"unavailable\", expected a number such as 21.4 for temperature";
    assert_eq!((&complaint["binding"], &complaint["reason"]), (&json!("esphome"), &json!(reason)));
}

#[test]
fn a_bare_value_is_a_column_or_an_input_of_a_model() {
    let broker = Broker::new();
    let table = "[pipeline.table]\noutput = \"output_label\"\nprobabilities = \"output_probability\"\ncolumns = [\n\
                 { name = \"temperature\" }, { name = \"vibration\", default = 7.5 }, { name = \"hours\", type = \"integer\", default = 8000 },\n\
                 { name = \"machine\", type = \"text\", default = \"saw\" },\n\
                 { name = \"shift\", type = \"text\", default = \"night\" },\n]\n";
    let bindings = "[[mqtt.bindings]]\ntopic = \"shop/+/temperature\"\nmodel = \"machine_condition\"\n\
                    value = \"temperature\"\npublish = \"condition/{1}\"\nselect = \"$.rows[0].class\"\n\
                    [[mqtt.bindings]]\ntopic = \"scales/+/kg\"\nmodel = \"dynamic_sum\"\nvalue = \"IN\"\n\
                    publish = \"sums/{1}\"\nselect = \"$.outputs[0].data[0]\"\npublish_errors = true\n";
    let root: TestRoot = with_model(root(&broker), "machine_condition").file("machine_condition/model.toml", table);
    let root = root.models(&["dynamic_sum"]);
    write(&root.folder.path().join("ledge.toml"), bindings.as_bytes());
    let checked = root.command(&["config", "check"]).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let daemon = start(root);
    let peer = Peer::subscribed(&broker, "watcher", "condition/#");
    peer.subscribe("sums/#");
    let answer = |topic: &str, payload: &str| {
        peer.send(Outgoing::new(topic, payload));
        peer.receive()
    };
    let row = |temperature: f64| {
        let answer =
            daemon.client().post_json("/v2/models/machine_condition/infer", &json!({"temperature": temperature}));
        answer.json()["rows"][0]["class"].as_str().unwrap().to_owned()
    };
    let hot = answer("shop/saw-3/temperature", "95.0\n");
    assert_eq!((hot.topic.as_str(), hot.text()), ("condition/saw-3", row(95.0)));
    assert_eq!(hot.text(), "service");
    for (payload, sum) in [("2.5", 2.5), ("-3", -3.0), ("1e3", 1000.0)] {
        assert_eq!(answer("scales/1/kg", payload).text().parse(), Ok(sum), "{payload}");
    }
    for other in ["12,5", "nan", "[1]"] {
        let refused = answer("scales/1/kg", other);
        assert_eq!(refused.status(), 400);
        assert!(refused.error().contains("expected a number such as 21.4 for IN"), "{refused:?}");
    }
    assert!(daemon.events("binding.misfits").is_empty());
}
