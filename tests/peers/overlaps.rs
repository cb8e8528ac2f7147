//! Bindings that take some of the same topics, at a real broker: each row counts once, in MQTT 5 and in 3.1.1.

use std::process::Command;

use serde_json::{Value, json};

use crate::boxes::{root, start, wait_until};
use crate::broker::{Broker, Setup};
use crate::daemon::{TestDaemon, TestRoot, write};
use crate::message::Outgoing;
use crate::mqtt::Peer;
use crate::tools::{mosquitto, run};

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
name = "count"

[[feature_view.aggregation]]
column = "reading"
function = "sum"
time_window = "1h"
name = "sum"

[[feature_view]]
name = "switches"
entities = ["device"]
lateness = "5m"
schema = [{ name = "state", dtype = "Int64" }]

[[feature_view.aggregation]]
column = "state"
function = "count"
time_window = "1h"
name = "count"

[[feature_view]]
name = "events"
entities = ["device"]
lateness = "5m"
schema = [{ name = "event", dtype = "Int64" }]

[[feature_view.aggregation]]
column = "event"
function = "count"
time_window = "1h"
name = "count"
"#;

/// Of each pair of the documents, and one that asks a model on the same topics.
const BINDINGS: &str = r#"
[[mqtt.bindings]]
topic = "tele/+/+"
feature_view = "readings"
features = { reading = "$.value" }
event_timestamp = "$.at"
entities = { device = "{2}" }

[[mqtt.bindings]]
topic = "+/status/switch:0"
feature_view = "switches"
features = { state = "$.value" }
event_timestamp = "$.at"
entities = { device = "{1}" }

[[mqtt.bindings]]
topic = "zigbee2mqtt/#"
feature_view = "readings"
features = { reading = "$.value" }
event_timestamp = "$.at"
entities = { device = "{1}" }

[[mqtt.bindings]]
topic = "+/events/rpc"
feature_view = "events"
features = { event = "$.value" }
event_timestamp = "$.at"
entities = { device = "{1}" }

[[mqtt.bindings]]
topic = "+/status/+"
model = "dynamic_sum"
inputs = { IN = ["$.value"] }
publish = "sums/{1}"
select = "$.outputs[0].data[0]"

[[mqtt.bindings]]
topic = "tele/#"
model = "dynamic_sum"
inputs = { IN = ["$.value"] }
publish = "all"
select = "$.outputs[0].data[0]"
"#;

/// Messages of each kind.
const MESSAGES: i64 = 200;

fn with_bindings(broker: &Broker, more: &[&str]) -> TestRoot {
    let root = root(broker).models(&["dynamic_sum"]).views(VIEWS);
    let root = more.iter().fold(root, |root, setting| root.set(setting));
    write(&root.folder.path().join("ledge.toml"), BINDINGS.as_bytes());
    root
}

fn feature(daemon: &TestDaemon, name: &str, device: &str) -> Value {
    let request = json!({"features": [name], "entities": {"device": [device]}});
    daemon.client().post_json("/get-online-features", &request).json()["results"][1]["values"][0].clone()
}

/// A message of a device at this millisecond of the test, because two equal messages would be one event.
fn reading(began: &Began, at: i64) -> Value {
    json!({"value": 1, "at": began.0 + at})
}

/// The time of the test's begin, in milliseconds since 1970.
struct Began(i64);

impl Began {
    fn now() -> Self {
        let seconds: i64 = run(Command::new("date").arg("+%s")).trim().parse().unwrap();
        Self(1000 * (seconds - 60))
    }
}

/// Publishes this many times to topics of one and of two bindings for rows, and of as many for models.
fn publish_all(broker: &Broker, began: &Began, round: i64) {
    let peer = Peer::new(broker, "devices");
    for number in 0..MESSAGES {
        for topic in [
            "tele/status/switch:0",
            "tele/kitchen/SENSOR",
            "zigbee2mqtt/events/rpc",
            "zigbee2mqtt/bath",
            "shelly/status/switch:0",
            "shelly/events/rpc",
        ] {
            peer.send(Outgoing::json(topic, &reading(began, round * MESSAGES + number)));
        }
    }
    peer.flush();
}

/// Waits until every row is there, and that of one more message at the end: then none comes twice.
fn assert_exact(broker: &Broker, daemon: &TestDaemon, began: &Began, times: i64) {
    let count = MESSAGES * times;
    let expected = [
        ("readings:count", "switch:0", count),
        ("readings:sum", "switch:0", count),
        ("switches:count", "tele", count),
        ("readings:count", "SENSOR", count),
        ("readings:count", "events/rpc", count),
        ("events:count", "zigbee2mqtt", count),
        ("readings:count", "bath", count),
        ("switches:count", "shelly", count),
        ("events:count", "shelly", count),
    ];
    let values = || expected.map(|(name, device, _)| feature(daemon, name, device).as_f64());
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let all = expected.map(|(.., count)| Some(count as f64));
    wait_until("the rows", || values().iter().zip(&all).all(|(value, all)| value >= all));
    // The broker delivers in order: after these, no copy of an earlier message is on its way.
    let peer = Peer::new(broker, "last");
    let last = format!("last-{times}");
    for topic in [format!("tele/x/{last}"), format!("{last}/status/switch:0"), format!("{last}/events/rpc")] {
        peer.send(Outgoing::json(&topic, &reading(began, 0)));
    }
    for name in ["readings:count", "switches:count", "events:count"] {
        wait_until("the last row", || !feature(daemon, name, &last).is_null());
    }
    assert_eq!(values(), all);
    // The store would drop a copy, and count it.
    let metrics = String::from_utf8(daemon.client().get("/metrics").body).unwrap();
    let dropped = |line: &&str| line.starts_with("ledge_feature_rows_pushed_total") && !line.contains("\"accepted\"");
    let dropped: Vec<_> = metrics.lines().filter(dropped).collect();
    assert!(!dropped.is_empty() && dropped.iter().all(|line| line.ends_with(" 0")), "{dropped:#?}");
}

/// The client ids that the broker has connected.
fn clients(broker: &Broker) -> std::collections::BTreeSet<String> {
    let log = broker.log();
    let connected = log.lines().filter(|line| line.contains("New client connected") && line.contains(" as box"));
    connected.filter_map(|line| Some(line.split(" as ").nth(1)?.split(' ').next()?.to_owned())).collect()
}

/// Sums of the answers of both bindings with a model: of `+/status/+` and `tele/#`.
fn answers(peer: &Peer, of_status: i64, of_tele: i64) {
    let (mut sums, mut all) = (0, 0);
    while sums < of_status || all < of_tele {
        let message = peer.receive();
        if message.topic.starts_with("sums/") { sums += 1 } else { all += 1 }
    }
    assert_eq!((sums, all), (of_status, of_tele));
}

fn each_row_counts_once(protocol: &str, expected_clients: &[&str]) {
    let broker = Setup::new().line("log_type all").start();
    let daemon = start(with_bindings(&broker, &[&format!("mqtt.protocol={protocol:?}")]));
    let peer = Peer::subscribed(&broker, "watcher", "sums/#");
    peer.subscribe("all/#");
    let began = Began::now();
    publish_all(&broker, &began, 0);
    answers(&peer, 2 * MESSAGES, 2 * MESSAGES);
    assert_exact(&broker, &daemon, &began, 1);
    let used: Vec<String> = clients(&broker).into_iter().collect();
    assert_eq!(used, expected_clients);
    // The broker gets no filter that is not configured.
    let asked = broker
        .log()
        .lines()
        .filter(|line| line.contains('\t') && line.contains("(QoS"))
        .map(str::to_owned)
        .collect::<Vec<_>>();
    for line in &asked {
        let known = [
            "ledge/v1/box/infer/#",
            "tele/+/+",
            "+/status/switch:0",
            "zigbee2mqtt/#",
            "+/events/rpc",
            "+/status/+",
            "tele/#",
            "sums/#",
            "all/#",
        ];
        assert!(known.iter().any(|filter| line.contains(&format!("\t{filter} (QoS"))), "{line}");
    }
    assert!(!asked.is_empty());

    // Messages that the broker keeps while the box is away come once, too.
    let mut daemon = daemon;
    daemon.signal("TERM");
    assert!(daemon.wait().success());
    let root = daemon.kill();
    publish_all(&broker, &began, 1);
    let daemon = start(root);
    assert_exact(&broker, &daemon, &began, 2);
}

#[test]
fn each_row_counts_once_by_subscription_identifiers_in_mqtt_5() {
    // Sessions that an earlier version needed are ended.
    each_row_counts_once("5", &["box", "box-2", "box-rows", "box-rows-2"]);
}

#[test]
fn each_row_counts_once_in_sessions_of_their_own_in_mqtt_3_1_1() {
    each_row_counts_once("3.1.1", &["box", "box-2", "box-rows", "box-rows-2"]);
}

#[test]
fn sessions_of_mqtt_3_1_1_end_where_identifiers_take_their_place() {
    let broker = Broker::new();
    let mut daemon = start(with_bindings(&broker, &["mqtt.protocol=\"3.1.1\""]));
    daemon.signal("TERM");
    assert!(daemon.wait().success());
    let root = daemon.kill();
    // The sessions keep messages that are published now, in 3.1.1 for ever.
    let began = Began::now();
    publish_all(&broker, &began, 0);
    let root = root.set("mqtt.protocol=\"5\"");
    let daemon = start(root);
    // Of the rows of one session, those that were kept come once.
    wait_until("the kept rows", || feature(&daemon, "readings:count", "SENSOR").as_i64() == Some(MESSAGES));
    publish_all(&broker, &began, 1);
    wait_until("new rows", || feature(&daemon, "readings:count", "bath").as_i64() >= Some(MESSAGES));
    wait_until("rows of both", || feature(&daemon, "events:count", "shelly").as_i64() >= Some(MESSAGES));
    for (name, device) in [("readings:count", "switch:0"), ("events:count", "shelly"), ("switches:count", "shelly")] {
        let value = feature(&daemon, name, device).as_i64();
        assert!(value <= Some(2 * MESSAGES), "{name} {device}: {value:?}");
    }
}

#[test]
fn a_check_finds_the_filter_whose_messages_the_broker_withholds() {
    let acl = "user box\ntopic write #\ntopic read ledge/#\ntopic read tele/#\ntopic read zigbee2mqtt/#\n";
    let broker = Setup::new()
        .users(&[("box", "right"), ("reader", "right")])
        .acl(&format!("{acl}user reader\ntopic read #\n"))
        .start();
    let with_user = |user: &str, protocol: &str| {
        let root = with_bindings(&broker, &[&format!("mqtt.user={user:?}"), &format!("mqtt.protocol={protocol:?}")]);
        let file = root.folder.path().join("password").display().to_string();
        write(std::path::Path::new(&file), b"right");
        root.set(&format!("mqtt.password_file={file:?}"))
    };
    let check = |root: &TestRoot| {
        let output = root.command(&["mqtt", "check", "--json"]).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        let findings = report["findings"].as_array().unwrap().clone();
        let delivered: Vec<Value> = findings.into_iter().filter(|finding| finding["step"] == "delivery").collect();
        (output.status.success(), delivered)
    };
    let of = |delivered: &[Value], filter: &str| {
        let is_of = |finding: &&Value| finding["detail"].as_str().unwrap().starts_with(&format!("{filter}: "));
        let found = delivered.iter().find(is_of).unwrap_or_else(|| panic!("{filter}: {delivered:#?}"));
        (
            found["ok"].as_bool().unwrap(),
            found["untested"].as_bool().unwrap(),
            found["detail"].as_str().unwrap().to_owned(),
        )
    };
    let root = with_user("box", "auto");
    let (ok, delivered) = check(&root);
    assert!(!ok, "{delivered:#?}");
    for filter in ["ledge/v1/box/infer/#", "tele/+/+", "tele/#", "zigbee2mqtt/#"] {
        let (ok, untested, told) = of(&delivered, filter);
        assert!(ok && !untested && told.ends_with("came back"), "{told}");
    }
    for filter in ["+/status/switch:0", "+/events/rpc", "+/status/+"] {
        let (ok, _, told) = of(&delivered, filter);
        assert!(!ok && told.contains("did not come back: the broker withholds it"), "{told}");
        assert!(told.contains(&format!("to read {filter} in the broker's access list")), "{told}");
    }
    // In 3.1.1 a broker does not say whether it accepts a message.
    let (ok, delivered) = check(&with_user("box", "3.1.1"));
    assert!(ok, "{delivered:#?}");
    let (ok, untested, told) = of(&delivered, "+/events/rpc");
    assert!(ok && untested && told.contains("did not come back"), "{told}");

    // Without the right to publish there, nothing can be found out, and the check says so.
    let (ok, delivered) = check(&with_user("reader", "auto"));
    assert!(!ok, "answers cannot be published either");
    let (ok, untested, told) = of(&delivered, "tele/+/+");
    assert!(
        ok && untested && told.contains("not tested, since this box may not publish to tele/ledge-check-"),
        "{told}"
    );
}

#[test]
fn a_check_beside_a_running_box_is_no_row_no_call_and_no_warning() {
    let broker = Broker::new();
    let of_one = "[[mqtt.bindings]]\ntopic = \"hall/temperature\"\nfeature_view = \"readings\"\nvalue = \"reading\"\n\
                  entities = { device = \"{device}\" }\n";
    let root = with_bindings(&broker, &[]);
    write(&root.folder.path().join("ledge.toml"), (BINDINGS.to_owned() + of_one).as_bytes());
    let daemon = start(root);
    // Other programs that hear the same topics get one empty message each, which is not retained.
    let peer = Peer::subscribed(&broker, "others", "#");
    let shown = run(&mut daemon.root.command(&["mqtt", "check"]));
    assert!(shown.ends_with("No problems found.\n"), "{shown}");
    run(mosquitto("mosquitto_pub", &broker).args(["-V", "5", "-q", "1", "-t", "end", "-m", "end"]));
    let mut probes = 0;
    loop {
        let message = peer.receive();
        if message.topic == "end" {
            break;
        }
        if message.topic.starts_with("ledge/v1/box/reported") || message.topic == "ledge/v1/box/online" {
            continue;
        }
        assert!(
            !message.retained && (message.payload.is_empty() || message.topic == "ledge/v1/box/result/check"),
            "{message:?}"
        );
        let is_made_up = message.topic.contains("ledge-check-");
        assert!(
            is_made_up || message.topic == "hall/temperature" || message.topic == "ledge/v1/box/result/check",
            "{message:?}"
        );
        probes += 1;
    }
    assert_eq!(probes, 9, "one for each subscription, and the answer");
    let metrics = String::from_utf8(daemon.client().get("/metrics").body).unwrap();
    for line in ["ledge_mqtt_received_total{kind=\"call\"} 0", "ledge_mqtt_received_total{kind=\"binding\"} 0"] {
        assert!(metrics.contains(line), "{metrics}");
    }
    assert_eq!(daemon.complaints(), [Value::Null; 0]);
}
