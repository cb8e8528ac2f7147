//! The sessions of a box with its broker: which there are, when they begin, and which version they speak.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::{TestDaemon, TestRoot};
use crate::failing_models::endless;
use crate::fault_rounds::wait_until;
use crate::mqtt_broker::{Rules, TestBroker};

const LIMIT: Duration = Duration::from_mins(1);

/// Two views of counts, so that a row that comes twice, or not at all, is seen.
const VIEWS: &str = r#"
[[entity]]
name = "device"
value_type = "String"

[[feature_view]]
name = "readings"
entities = ["device"]
lateness = "5m"
schema = [{ name = "reading", dtype = "Int64" }]

[[feature_view.aggregation]]
column = "reading"
function = "count"
time_window = "1h"
name = "readings_1h"

[[feature_view]]
name = "switches"
entities = ["device"]
lateness = "5m"
schema = [{ name = "state", dtype = "Int64" }]

[[feature_view.aggregation]]
column = "state"
function = "count"
time_window = "1h"
name = "states_1h"
"#;

/// Bindings that take some of the same topics.
const BINDINGS: &str = r#"mqtt.bindings=[
    {topic="tele/+/+", feature_view="readings", value="reading", entities={device="{1}"}},
    {topic="+/status/switch:0", feature_view="switches", value="state", entities={device="{1}"}}]"#;

fn root(broker: &TestBroker) -> TestRoot {
    TestRoot::new()
        .views(VIEWS)
        .set(&format!("mqtt.broker=\"mqtt://127.0.0.1:{}\"", broker.port()))
        .set("mqtt.reconnect_max_s=1")
        .set("device.id=\"box\"")
        .set(&BINDINGS.replace('\n', " "))
}

/// The count of rows of a device in the last hour.
fn count(daemon: &TestDaemon, feature: &str, device: &str) -> Value {
    let request = json!({"features": [feature], "entities": {"device": [device]}});
    daemon.client().post_json("/get-online-features", &request).json()["results"][1]["values"][0].clone()
}

/// The filters of each session, by its client id.
fn sessions(broker: &TestBroker) -> BTreeMap<String, Vec<String>> {
    broker.sessions().into_iter().map(|((client_id, _), filters)| (client_id, filters)).collect()
}

#[track_caller]
fn wait_for_sessions(broker: &TestBroker, expected: &[(&str, &[&str])]) {
    let owned = |(id, filters): &(&str, &[&str])| {
        ((*id).to_owned(), filters.iter().map(|filter| (*filter).to_owned()).collect::<Vec<_>>())
    };
    let expected: BTreeMap<_, _> = expected.iter().map(owned).collect();
    let began = std::time::Instant::now();
    while sessions(broker) != expected {
        assert!(began.elapsed() < LIMIT, "{:?}", sessions(broker));
        std::thread::yield_now();
    }
}

const CALLS: &str = "ledge/v1/box/infer/#";

#[test]
fn rows_come_in_before_any_model_serves_and_calls_wait_for_theirs() {
    let broker = TestBroker::start();
    let daemon = root(&broker).file("endless/1/model.onnx", endless::model()).start_unready();
    wait_for_sessions(&broker, &[("box", &[CALLS]), ("box-rows", &["tele/+/+", "+/status/switch:0"])]);
    let tensor = json!({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]});
    broker.call("ledge/v1/box/infer/endless", "answers/endless", tensor.to_string().as_bytes());
    for value in 0..20 {
        broker.publish("tele/kitchen/SENSOR", value.to_string().as_bytes());
    }
    wait_until("the rows", LIMIT, || count(&daemon, "readings:readings_1h", "kitchen") == json!(20));
    let mut client = daemon.client();
    assert_eq!(client.get("/v2/health/ready").status, 503);
    assert_eq!(broker.answers(), BTreeMap::new());

    // Another model does not wait for it.
    crate::daemon::copy(&crate::daemon::model_folder("identity_fp32"), &daemon.root.model("identity_fp32"));
    daemon.signal("HUP");
    wait_until("another model", LIMIT, || client.get("/v2/models/identity_fp32/ready").status == 200);
    broker.call("ledge/v1/box/infer/identity_fp32", "answers/identity", tensor.to_string().as_bytes());
    wait_until("an answer", LIMIT, || !broker.answers().is_empty());
    assert_eq!(broker.answers(), BTreeMap::from([("200".to_owned(), 1)]));
}

#[test]
fn a_call_that_comes_while_its_model_is_loaded_is_answered_by_it() {
    let broker = TestBroker::start();
    let daemon = root(&broker).models(&["identity_fp32", "efficientnet_lite0"]).start_unready();
    // The topics of calls are subscribed to as soon as the models are known by name.
    let tensor = json!({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]});
    for _ in 0..4 {
        broker.call("ledge/v1/box/infer/identity_fp32", "answers/identity", tensor.to_string().as_bytes());
    }
    let photograph = crate::daemon::data("photos/chelsea.jpg");
    broker.call("ledge/v1/box/infer/efficientnet_lite0", "answers/cat", &photograph);
    broker.wait_for_acknowledgements();
    assert_eq!(broker.answers(), BTreeMap::from([("200".to_owned(), 5)]), "{}", daemon.log());
}

#[test]
fn a_broker_that_is_silent_to_mqtt_5_is_spoken_to_in_3_1_1() {
    let broker = TestBroker::with(Rules { is_silent_to_5: true, ..Rules::default() });
    let daemon = root(&broker).start();
    wait_for_sessions(
        &broker,
        &[("box", &[CALLS]), ("box-rows", &["tele/+/+"]), ("box-rows-2", &["+/status/switch:0"])],
    );
    assert!(broker.sessions().keys().all(|(_, level)| *level == 4), "{:?}", broker.sessions());
    // It was asked again after it had answered in 3.1.1, in case that it had only been slow.
    assert_eq!(broker.unanswered(), 2);
    daemon.wait_for_event_since_start("mqtt.version_lowered");
    broker.publish("tele/kitchen/SENSOR", b"1");
    wait_until("a row", LIMIT, || count(&daemon, "readings:readings_1h", "kitchen") == json!(1));

    let refused = TestRoot::new().set(&format!("mqtt.broker=\"mqtt://127.0.0.1:{}\"", broker.port()));
    let daemon = refused.set("mqtt.protocol=\"5\"").start_unready();
    let told = daemon.wait_for_event("mqtt.disconnected");
    assert_eq!(told["reason"], "the broker did not respond within 10 s");
}

#[test]
fn rows_share_the_session_of_calls_where_the_broker_accepts_no_other() {
    let broker = TestBroker::with(Rules { refuses: Some("-rows"), ..Rules::default() });
    let daemon = root(&broker).start();
    let all: &[&str] = &[CALLS, "tele/+/+", "+/status/switch:0"];
    let has_all = || {
        let mut filters = sessions(&broker).remove("box").unwrap_or_default();
        // Those of calls are renewed.
        filters.dedup();
        all.iter().all(|filter| filters.iter().any(|granted| granted == filter))
    };
    wait_until("the subscriptions", LIMIT, has_all);
    assert_eq!(sessions(&broker).len(), 1);
    broker.publish("tele/kitchen/SENSOR", b"1");
    wait_until("a row", LIMIT, || count(&daemon, "readings:readings_1h", "kitchen") == json!(1));
    assert_eq!(daemon.metric::<u64>("ledge_mqtt_connected"), 1);
}

#[test]
fn a_session_that_the_broker_refuses_is_a_finding_with_both_bindings() {
    let broker = TestBroker::with(Rules { refuses: Some("-rows-2"), ..Rules::default() });
    let daemon = root(&broker).set("mqtt.protocol=\"3.1.1\"").start();
    let is_of_other = |line: &Value| line["client_id"] == "box-rows-2";
    wait_until("the refusal", LIMIT, || daemon.events("mqtt.disconnected").iter().any(is_of_other));
    let found = daemon.client().get("/findings").json();
    let finding = found["checks"].as_array().unwrap().iter().find(|check| check["name"] == "mqtt").unwrap();
    assert_eq!(finding["status"], "fail", "{finding}");
    let told = finding["detail"].as_str().unwrap();
    for part in
        ["box-rows-2", "\"tele/+/+\"", "\"+/status/switch:0\"", "take some of the same topics", "not authorized"]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
    // The first of them is served.
    broker.publish("tele/kitchen/SENSOR", b"1");
    wait_until("a row", LIMIT, || count(&daemon, "readings:readings_1h", "kitchen") == json!(1));
}
