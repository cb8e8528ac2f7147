//! Troubles of a box, as a real Prometheus with the shipped rules, a webhook and a real broker learn of them, and of
//! their end.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use ledge::telemetry::system::DiskSpace;
use rcgen::date_time_ymd;
use serde_json::{Value, json};

use crate::boxes::{logged, named_root, wait_until};
use crate::broker::Broker;
use crate::certificates::{Authority, Identity};
use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot, copy, model_folder, write};
use crate::hook_server::HookServer;
use crate::message::Outgoing;
use crate::mqtt::Peer;
use crate::prometheus::{Prometheus, in_seconds, rules};
use crate::tls_kit;
use crate::tools::{path_of, run};

/// The topic of the alert of these boxes.
const TOPIC: &str = "ledge/v1/box/alerts/shop";

/// A model that cannot be loaded.
const BROKEN: &str = "broken_empty";

/// The rules that a development machine may set off by itself.
const OF_THE_MACHINE: [&str; 2] = ["LedgeMemoryLow", "LedgeTooHot"];

/// A certificate that ends after this many days.
fn ending_in(authority: &Authority, days: u64) -> Identity {
    authority.issue_with("127.0.0.1", |params| {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
        params.not_after = date_time_ymd(1970, 1, 1) + now + Duration::from_hours(days * 24);
    })
}

/// A box with a broker and an alert that needs a second.
fn root(broker: &Broker, hook: &HookServer, more: &str) -> TestRoot {
    let root = named_root(broker, "box");
    let config = format!("[[alert]]\nname = \"shop\"\nurl = {:?}\nmqtt = true\nhold_s = 1\n{more}\n", hook.url());
    write(&root.folder.path().join("ledge.toml"), config.as_bytes());
    root
}

/// The messages that a person gets from a box: by its webhook and over MQTT.
struct Ears {
    hook: HookServer,
    peer: Peer,
}

impl Ears {
    fn new(broker: &Broker) -> Self {
        Self { hook: HookServer::start(), peer: Peer::subscribed(broker, "watcher", TOPIC) }
    }

    /// Waits until both have heard this, such as `state firing`. Other news are passed over.
    #[track_caller]
    fn hear(&self, news: &str) {
        self.hear_by_hook(news);
        loop {
            let message = self.peer.receive().json();
            if format!("{} {}", message["check"].as_str().unwrap(), message["status"].as_str().unwrap()) == news {
                return;
            }
        }
    }

    #[track_caller]
    fn hear_by_hook(&self, news: &str) {
        while self.hook.next().news() != news {}
    }
}

/// Sends requests to a model of which some find its queue full, until the end of the scope.
fn overload(daemon: &TestDaemon, model: &str, is_over: &AtomicBool) {
    let name = daemon.client().get(&format!("/v2/models/{model}")).json()["inputs"][0]["name"].clone();
    let body = json!({"inputs": [{"name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![1.0; 16]}]});
    let path = format!("/v2/models/{model}/infer");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = daemon.client();
                while !is_over.load(Ordering::Relaxed) {
                    let status = client.post_json(&path, &body).status;
                    assert!(status == 200 || status == 429, "{status}");
                    // A caller that tries again at once only heats the box.
                    std::thread::sleep(Duration::from_millis(if status == 429 { 50 } else { 0 }));
                }
            });
        }
    });
}

#[test]
fn each_trouble_sets_off_its_rule_and_is_told_and_so_is_its_end() {
    let mut broker = Broker::new();
    let ears = Ears::new(&broker);
    let authority = Authority::new();
    let root = root(&broker, &ears.hook, "checks = [\"audit log\", \"queue\", \"https\", \"mqtt\", \"model\"]");
    let disk = DiskSpace::of(root.folder.path()).unwrap().available_bytes;
    // The log leaves enough of the disk free for the test to take the rest of it.
    let (reserve_mb, filling) = ((disk / 8 * 7) >> 20, disk / 4);
    tls_kit::put(&root, &authority.issue("127.0.0.1"));
    let root = root
        .set("http.listen=[\"127.0.0.1:0\", \"unix:ledge.sock\", \"https://127.0.0.1:0\"]")
        .set("http.tls.certificate_file=\"box.pem\"")
        .set("http.tls.key_file=\"box.key\"")
        .models(&["slow"])
        .file("slow/model.toml", "[queue]\nmax_size = 2\n")
        .set(&format!("audit.min_free_mb={reserve_mb}"));
    let daemon = root.start();
    logged(&daemon, "mqtt.subscribed", 1);
    let prometheus = Prometheus::start(&daemon, &in_seconds(&std::fs::read_to_string(rules()).unwrap()));
    let folder = daemon.root.folder.path().to_owned();

    // The disk.
    let filler = folder.join("filler");
    fill(&filler, filling);
    prometheus.wait_until("LedgeDiskFull", true);
    ears.hear("audit log firing");
    std::fs::remove_file(&filler).unwrap();
    prometheus.wait_until("LedgeDiskFull", false);
    ears.hear("audit log resolved");

    // A certificate with two days left.
    tls_kit::put(&daemon.root, &ending_in(&authority, 2));
    prometheus.wait_until("LedgeCertificateExpiresSoon", true);
    ears.hear("https firing");
    tls_kit::put(&daemon.root, &authority.issue("127.0.0.1"));
    prometheus.wait_until("LedgeCertificateExpiresSoon", false);
    ears.hear("https resolved");

    // A model that does not load.
    let load = |status| {
        let path = format!("/v2/repository/models/{BROKEN}/load");
        assert_eq!(daemon.client().post(&path, &[], b"").status, status);
    };
    copy(&model_folder(BROKEN), &daemon.root.model(BROKEN));
    load(400);
    prometheus.wait_until("LedgeModelUnavailable", true);
    ears.hear(&format!("model {BROKEN} firing"));
    copy(&model_folder("add_sub"), &daemon.root.model(BROKEN));
    load(200);
    prometheus.wait_until("LedgeModelUnavailable", false);
    ears.hear(&format!("model {BROKEN} resolved"));

    // A full queue.
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| overload(&daemon, "slow", &is_over));
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            prometheus.wait_until("LedgeQueueFull", true);
            ears.hear("queue slow firing");
        }));
        is_over.store(true, Ordering::Relaxed);
        waited.unwrap();
    });
    prometheus.wait_until("LedgeQueueFull", false);
    ears.hear("queue slow resolved");

    // The broker. A message to it about its own fault is outdated when it is back.
    broker.stop();
    prometheus.wait_until("LedgeBrokerGone", true);
    ears.hear_by_hook("mqtt firing");
    broker.start_again();
    prometheus.wait_until("LedgeBrokerGone", false);
    ears.hear_by_hook("mqtt resolved");

    let mut expected: BTreeSet<String> = [
        "LedgeDiskFull",
        "LedgeDiskNearlyFull",
        "LedgeCertificateExpires",
        "LedgeCertificateExpiresSoon",
        "LedgeModelUnavailable",
        "LedgeQueueFull",
        "LedgeBrokerGone",
        // Records are not written on a full disk, and messages over MQTT wait for the broker.
        "LedgeAuditRecordsLost",
        "LedgeAlertsNotSent",
        // Refusals are failures, of which the counters are read one after the other.
        "LedgeModelFailing",
    ]
    .map(str::to_owned)
    .into();
    expected.extend(OF_THE_MACHINE.map(str::to_owned));
    let others: Vec<_> = prometheus.ever_fired().difference(&expected).cloned().collect();
    assert_eq!(others, [""; 0]);
}

/// Takes space on the disk.
fn fill(path: &Path, bytes: u64) {
    let file = File::create(path).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes).unwrap();
}

#[test]
fn the_rules_are_valid_and_fire_after_their_times_and_not_before() {
    let promtool = || Command::new(path_of("promtool"));
    run(promtool().args(["check", "rules"]).arg(rules()));
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/monitoring/ledge.rules.test.yml");
    let said = run(promtool().args(["test", "rules"]).arg(tests));
    assert!(said.contains("SUCCESS"), "{said}");
}

#[test]
fn the_expressions_of_the_board_are_valid() {
    let board = std::fs::read_to_string(rules().with_file_name("ledge.json")).unwrap();
    let board: Value = serde_json::from_str(&board).unwrap();
    let panels = board["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().cloned().unwrap_or_default());
    let mut text = "groups:\n  - name: board\n    rules:\n".to_owned();
    for (number, target) in targets.enumerate() {
        let expression = target["expr"].as_str().unwrap();
        let expression = expression.replace("$__rate_interval", "5m").replace("$instance", ".+");
        writeln!(text, "      - record: panel{number}\n        expr: {}", json!(expression)).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("board.yml");
    write(&file, text.as_bytes());
    run(Command::new(path_of("promtool")).args(["check", "rules"]).arg(file));
}

/// Does something until then, with a pause after each time. Returns how often.
fn repeated(until: Instant, pause: Duration, mut step: impl FnMut(u64)) -> u64 {
    let mut number = 0;
    while Instant::now() < until {
        step(number);
        number += 1;
        std::thread::sleep(pause);
    }
    number
}

/// Calls over HTTP and MQTT and pushes, as a shop makes them, for this time. Returns the rules that fired, and the
/// messages.
fn under_normal_load(time: Duration, rules: &str) -> (Vec<String>, Vec<String>) {
    let broker = Broker::new();
    let ears = Ears::new(&broker);
    let views = "entity = [{ name = 'machine', join_key = 'machine_id', value_type = 'String' }]\n\
                 [[feature_view]]\nname = 'sensors'\nentities = ['machine']\nsource = { name = 'sensors_push' }\n\
                 schema = [{ name = 'rms', dtype = 'Float32' }]\n";
    // Warnings about the machine of the test are not about the load.
    let daemon = root(&broker, &ears.hook, "least = \"fail\"").views(views).start();
    logged(&daemon, "mqtt.subscribed", 1);
    let prometheus = Prometheus::start(&daemon, rules);
    let answers = Peer::subscribed(&broker, "caller", "answers");
    let until = Instant::now() + time;
    let (over_http, over_mqtt, pushes) = std::thread::scope(|scope| {
        let over_http = scope.spawn(|| {
            let tensor = |name| json!({"name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![1.0; 16]});
            let call = json!({"inputs": [tensor("INPUT0"), tensor("INPUT1")]});
            let mut client: Client = daemon.client();
            repeated(until, Duration::from_millis(10), |_| {
                assert_eq!(client.post_json("/v2/models/add_sub/infer", &call).status, 200);
            })
        });
        let over_mqtt = scope.spawn(move || {
            repeated(until, Duration::from_millis(50), |number| {
                answers.send(Outgoing::add_sub(&number.to_string(), 2.0).answer_to("answers"));
                assert!((answers.receive().sum() - 3.0).abs() < 1e-6);
            })
        });
        let pushes = scope.spawn(|| {
            let mut client = daemon.client();
            repeated(until, Duration::from_millis(100), |number| {
                let at = ledge::clock::rfc3339(ledge::clock::unix_millis());
                let rows = json!({"machine_id": [format!("m{}", number % 50)], "event_timestamp": [at], "rms": [0.5]});
                let push = json!({"push_source_name": "sensors_push", "df": rows, "to": "online"});
                assert_eq!(client.post_json("/push", &push).status, 200);
            })
        });
        (over_http.join().unwrap(), over_mqtt.join().unwrap(), pushes.join().unwrap())
    });
    println!(
        "{} s of normal load: {over_http} calls over HTTP, {over_mqtt} over MQTT, {pushes} pushes",
        time.as_secs()
    );
    assert!(over_http > 0 && over_mqtt > 0 && pushes > 0);
    // It has looked, and could send.
    let looked = daemon.client().get("/alerts").json();
    assert!(looked["alerts"].as_array().unwrap().iter().all(|receiver| receiver["error"].is_null()), "{looked}");
    wait_until("a scrape", || !prometheus.targets_up().is_empty());
    let fired = prometheus.ever_fired().into_iter().filter(|rule| !OF_THE_MACHINE.contains(&rule.as_str())).collect();
    let heard = ears.hook.rest().iter().map(crate::hook_server::Hooked::news).collect();
    (fired, heard)
}

#[test]
fn a_minute_of_normal_load_sets_off_nothing() {
    let text = std::fs::read_to_string(rules()).unwrap();
    let (fired, heard) = under_normal_load(Duration::from_mins(1), &in_seconds(&text));
    assert_eq!((fired, heard), (vec![], vec![]));
}

#[test]
#[ignore = "takes an hour: `make soak` runs it"]
fn an_hour_of_normal_load_sets_off_nothing() {
    let minutes = std::env::var("SOAK_MINUTES").map_or(60, |text| text.parse().expect("SOAK_MINUTES is a number"));
    let text = std::fs::read_to_string(rules()).unwrap();
    let (fired, heard) = under_normal_load(Duration::from_mins(minutes), &text);
    assert_eq!((fired, heard), (vec![], vec![]));
    let (fired, heard) = under_normal_load(Duration::from_mins(1), &in_seconds(&text));
    assert_eq!((fired, heard), (vec![], vec![]));
}
