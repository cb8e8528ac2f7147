//! One limit of memory for every way in: calls over HTTP and MQTT, reads and pushes of features. States are read, not
//! the clock: the memory of the daemon and of all its processes, again and again while 32 callers send their worst.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot};
use crate::mqtt_broker::TestBroker;

const MIB: usize = 1 << 20;
/// `http.max_memory_bytes`.
const LIMIT: usize = 128 * MIB;
/// `http.max_body_bytes` and `mqtt.max_payload_bytes`.
const BODY_MAX: usize = 8 * MIB;
/// The calls of each caller, and the attempts at each.
const ATTEMPTS: usize = 4;
const ROUNDS: usize = 3;

const VIEWS: &str = r#"
[[entity]]
name = "device"
value_type = "Int64"

[[feature_view]]
name = "numbers"
entities = ["device"]
source = { name = "numbers" }
schema = [{ name = "number", dtype = "Int64" }, { name = "other", dtype = "Float64" }]

[[feature_view]]
name = "messages"
entities = ["device"]
source = { name = "messages" }
schema = [{ name = "number", dtype = "Int64" }]

[[feature_view]]
name = "texts"
entities = ["device"]
source = { name = "texts" }
schema = [{ name = "text", dtype = "String" }]
"#;

/// A binding with rows as its messages.
const BINDINGS: &str = r#"mqtt.bindings=[{topic="rows/+", push_source="messages"}]"#;
/// The rows of a message.
const ROWS: usize = 10_000;

/// One kind of call.
struct Call {
    kind: &'static str,
    path: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    body: Vec<u8>,
}

impl Call {
    fn json(kind: &'static str, path: &'static str, body: &Value) -> Self {
        Self { kind, path, headers: vec![("content-type", "application/json")], body: body.to_string().into_bytes() }
    }

    fn send(&self, client: &mut Client) -> u16 {
        client.post(self.path, &self.headers, &self.body).status
    }
}

fn tensor(numbers: usize) -> Value {
    let data: Vec<f64> = (0..numbers).map(|number| f64::from(u32::try_from(number % 977).unwrap()) + 0.5).collect();
    json!({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, numbers], "data": data}]})
}

fn zipped(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

/// A picture of this many pixels a side, of one colour: few bytes for many pixels.
fn picture(side: u32) -> Vec<u8> {
    let mut png = std::io::Cursor::new(Vec::new());
    image::RgbImage::new(side, side).write_to(&mut png, image::ImageFormat::Png).unwrap();
    png.into_inner()
}

fn calls() -> Vec<Call> {
    const INFER: &str = "/v2/models/identity_fp32/infer";
    let numbers = BODY_MAX / 8;
    let json = Call::json("JSON", INFER, &tensor(numbers));
    let mut packed = Call::json("gzip", INFER, &Value::Null);
    packed.headers.push(("content-encoding", "gzip"));
    packed.body = zipped(&json.body);
    let shape = json!({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, BODY_MAX / 4 - 1024],
        "parameters": {"binary_data_size": BODY_MAX - 4096}}], "parameters": {"binary_data_output": true}});
    let head = shape.to_string();
    let length: &'static str = head.len().to_string().leak();
    let binary = Call {
        kind: "binary",
        path: INFER,
        headers: vec![("inference-header-content-length", length)],
        body: [head.into_bytes(), vec![0; BODY_MAX - 4096]].concat(),
    };
    let photograph = Call {
        kind: "picture",
        path: "/v2/models/efficientnet_lite0/infer",
        headers: vec![("content-type", "image/png")],
        body: picture(1600),
    };
    // Unknown entities cost as much as others.
    let devices: Vec<usize> = (0..200_000).collect();
    let read = Call::json(
        "long read",
        "/get-online-features",
        &json!({"features": ["numbers:number", "numbers:other"], "entities": {"device": devices}}),
    );
    let texts = Call::json(
        "read of texts",
        "/get-online-features",
        &json!({"features": ["texts:text"], "entities": {"device": vec![1; 150]}}),
    );
    let rows = Call::json("push", "/push", &rows(20_000));
    vec![json, packed, binary, photograph, read, texts, rows]
}

fn rows(count: usize) -> Value {
    let devices: Vec<usize> = (0..count).collect();
    let df = json!({"device": devices, "number": devices, "other": vec![0.125; count]});
    json!({"push_source_name": "numbers", "df": df})
}

/// The memory of a process and of all that it started, in bytes; a page shared by n of them counts as an n-th for each.
fn pss(pid: u32) -> usize {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok()).unwrap_or(0);
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|line| line.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    (kib << 10) + children.into_iter().map(pss).sum::<usize>()
}

/// The most memory until it is stopped.
fn watch(pid: u32, stop: &AtomicBool, most: &AtomicU64) {
    while !stop.load(Relaxed) {
        most.fetch_max(pss(pid) as u64, Relaxed);
        std::thread::yield_now();
    }
}

/// One call of a model, and one message of rows.
fn send_over_mqtt(broker: &TestBroker, caller: usize) {
    let body = tensor(BODY_MAX / 16).to_string();
    broker.call("ledge/v1/box/infer/identity_fp32", &format!("answers/{caller}"), body.as_bytes());
    let rows = (0..ROWS).map(|row| json!({"device": row, "number": caller}));
    let rows = Value::Array(rows.collect()).to_string();
    broker.publish(&format!("rows/{caller}"), rows.as_bytes());
}

fn start(broker: &TestBroker) -> TestDaemon {
    let root = TestRoot::new().models(&["identity_fp32", "efficientnet_lite0"]).views(VIEWS);
    let root = root
        .set(&format!("http.max_memory_bytes={LIMIT}"))
        .set(&format!("http.max_body_bytes={BODY_MAX}"))
        .set(&format!("mqtt.max_payload_bytes={BODY_MAX}"))
        .set(&format!("mqtt.broker=\"mqtt://127.0.0.1:{}\"", broker.port()))
        .set("mqtt.protocol=\"5\"")
        .set("device.id=\"box\"")
        .set("log.level=\"info\"")
        .set(BINDINGS);
    root.start()
}

#[test]
fn many_callers_with_the_worst_bodies_stay_within_one_limit() {
    let broker = TestBroker::start();
    let daemon = start(&broker);
    // Calls and rows have a session each.
    broker.wait_for_subscriptions(2);
    let calls = calls();
    let of_text = json!({"push_source_name": "texts", "df": {"device": [1], "text": ["a long text ".repeat(5_000)]}});
    assert_eq!(daemon.client().post_json("/push", &of_text).status, 200);
    // Once each: memory that a first call allocates for ever must not count as theirs.
    for call in &calls {
        let status = call.send(&mut daemon.client());
        assert_eq!(status, 200, "{} alone", call.kind);
    }
    send_over_mqtt(&broker, 0);
    broker.wait_for_acknowledgements();

    let idle = pss(daemon.pid());
    let (stop, most) = (AtomicBool::new(false), AtomicU64::new(0));
    let statuses: Mutex<BTreeMap<(&str, u16), usize>> = Mutex::default();
    std::thread::scope(|scope| {
        scope.spawn(|| watch(daemon.pid(), &stop, &most));
        let callers: Vec<_> = (0..28)
            .map(|caller| {
                let (calls, daemon, statuses) = (&calls, &daemon, &statuses);
                scope.spawn(move || {
                    let client = &mut daemon.client();
                    for round in 0..ROUNDS {
                        let call = &calls[(caller + round) % calls.len()];
                        for _ in 0..ATTEMPTS {
                            let status = call.send(client);
                            *statuses.lock().unwrap().entry((call.kind, status)).or_default() += 1;
                            if status == 200 {
                                break;
                            }
                        }
                    }
                })
            })
            .collect();
        let over_mqtt: Vec<_> = (0..4)
            .map(|caller| {
                let broker = &broker;
                scope.spawn(move || (0..ROUNDS).for_each(|_| send_over_mqtt(broker, caller)))
            })
            .collect();
        callers.into_iter().chain(over_mqtt).for_each(|caller| caller.join().unwrap());
        broker.wait_for_acknowledgements();
        stop.store(true, Relaxed);
    });

    let over = usize::try_from(most.load(Relaxed)).unwrap().saturating_sub(idle);
    let statuses = statuses.into_inner().unwrap();
    let answers = broker.answers();
    println!("idle {} MiB, most {} MiB over it, limit {} MiB", idle / MIB, over / MIB, LIMIT / MIB);
    println!("over HTTP {statuses:?}; over MQTT {answers:?}");
    assert!(statuses.keys().all(|(_, status)| [200, 503].contains(status)), "{statuses:?}");
    // None is lost: each request of QoS 1 has an answer.
    let sent = 1 + 4 * ROUNDS;
    assert_eq!(answers.values().sum::<usize>(), sent, "{answers:?}");
    assert!(answers.keys().all(|status| ["200", "503", "429"].contains(&status.as_str())), "{answers:?}");
    let status = daemon.client().get("/features/status").json();
    let views = status["feature_views"].as_array().unwrap();
    let pushed = views.iter().find(|view| view["name"] == "messages").unwrap()["pushed"].as_object().unwrap().clone();
    let pushed: u64 = pushed.values().filter_map(Value::as_u64).sum();
    assert_eq!(pushed, (sent * ROWS) as u64, "rows of messages of QoS 1 are lost");
    assert!(over <= LIMIT + LIMIT / 10, "{} MiB over {} MiB, limit {} MiB", over / MIB, idle / MIB, LIMIT / MIB);
    let used = |client: &mut Client| {
        let metrics = String::from_utf8(client.get("/metrics").body).unwrap();
        let line =
            metrics.lines().find_map(|line| line.strip_prefix("ledge_http_body_memory_bytes ").map(str::to_owned));
        line.unwrap().parse::<f64>().unwrap()
    };
    // A connection drops the last answer a moment after its caller has it.
    let client = &mut daemon.client();
    let began = std::time::Instant::now();
    while used(client) > 0.0 {
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "{} bytes are counted for nobody", used(client));
        std::thread::yield_now();
    }
}
