//! Models that do not load, crash or load for ever: the others serve, a start waits for none of them, and they are
//! tried again after growing pauses.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot, copy, model_folder, send_signal, write};
use crate::fault_rounds::{runtime_processes, wait_until};

const LIMIT: Duration = Duration::from_mins(1);

/// The place of a process that loads a version for the first time among those that the kernel ends when memory is
/// short.
const ENDS_FIRST: &str = "1000";

/// Shipped models, which serve on any box.
const SHIPPED: [&str; 2] = ["bike_demand", "wine_mlp"];

/// Named so that they come first.
const ENDLESS: [&str; 2] = ["a_endless", "b_endless"];

/// An ONNX file of some kilobytes that takes a runtime hours to load: it folds a thousand products of matrices of
/// constants.
pub mod endless {
    fn number(mut value: u64, into: &mut Vec<u8>) {
        while value > 127 {
            into.push(value.to_le_bytes()[0] | 128);
            value >>= 7;
        }
        into.push(value.to_le_bytes()[0]);
    }

    fn bytes(field: u64, content: &[u8], into: &mut Vec<u8>) {
        number(field << 3 | 2, into);
        number(content.len() as u64, into);
        into.extend(content);
    }

    fn integer(field: u64, value: u64, into: &mut Vec<u8>) {
        number(field << 3, into);
        number(value, into);
    }

    fn message(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut content = Vec::new();
        write(&mut content);
        content
    }

    fn node(kind: &str, inputs: &[&str], output: &str) -> Vec<u8> {
        message(|node| {
            for input in inputs {
                bytes(1, input.as_bytes(), node);
            }
            bytes(2, output.as_bytes(), node);
            bytes(4, kind.as_bytes(), node);
        })
    }

    /// f32[N,4]
    fn port(name: &str) -> Vec<u8> {
        let shape = message(|shape| {
            bytes(1, &message(|dim| bytes(2, b"N", dim)), shape);
            bytes(1, &message(|dim| integer(1, 4, dim)), shape);
        });
        let tensor = message(|tensor| {
            integer(1, 1, tensor);
            bytes(2, &shape, tensor);
        });
        message(|port| {
            bytes(1, name.as_bytes(), port);
            bytes(2, &message(|kind| bytes(1, &tensor, kind)), port);
        })
    }

    pub fn model() -> Vec<u8> {
        let side = 4096_i64;
        let shape = message(|tensor| {
            integer(1, 2, tensor);
            integer(2, 7, tensor);
            bytes(8, b"shape", tensor);
            bytes(9, &[side.to_le_bytes(), side.to_le_bytes()].concat(), tensor);
        });
        let graph = message(|graph| {
            bytes(1, &node("ConstantOfShape", &["shape"], "0"), graph);
            for turn in 0..1000 {
                bytes(1, &node("MatMul", &[&turn.to_string(), "0"], &(turn + 1).to_string()), graph);
            }
            bytes(1, &node("ReduceMax", &["1000"], "most"), graph);
            bytes(1, &node("Add", &["IN", "most"], "OUT"), graph);
            bytes(2, b"endless", graph);
            bytes(5, &shape, graph);
            bytes(11, &port("IN"), graph);
            bytes(12, &port("OUT"), graph);
        });
        message(|model| {
            integer(1, 8, model);
            bytes(7, &graph, model);
            bytes(8, &message(|opset| integer(2, 13, opset)), model);
        })
    }
}

fn record(root: &TestRoot) -> PathBuf {
    root.folder.path().join("load_records.json")
}

fn with_endless(root: TestRoot) -> TestRoot {
    ENDLESS.iter().fold(root, |root, name| root.file(&format!("{name}/1/model.onnx"), endless::model()))
}

/// The processes that load a version for the first time.
fn first_loads(daemon: &TestDaemon) -> Vec<u32> {
    let ends_first = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).is_ok_and(|score| score.trim() == ENDS_FIRST)
    };
    runtime_processes(daemon).into_iter().filter(ends_first).collect()
}

/// Stops the daemon, and gives its log, which has all audit records then.
fn stop(mut daemon: TestDaemon) -> (TestRoot, String) {
    daemon.signal("TERM");
    assert!(daemon.wait().success());
    let log = daemon.log().replace("\\\"", "\"");
    (daemon.kill(), log)
}

fn is_ready(client: &mut Client) -> u16 {
    client.get("/v2/health/ready").status
}

fn shipped_answer(client: &mut Client) {
    for model in SHIPPED {
        assert_eq!(client.get(&format!("/v2/models/{model}/ready")).status, 200, "{model}");
    }
    let name = client.get("/v2/models/wine_mlp").json()["inputs"][0]["name"].clone();
    let input = json!({"name": name, "datatype": "FP32", "shape": [1, 13], "data": vec![0.0; 13]});
    let answer = client.post_json("/v2/models/wine_mlp/infer", &json!({"inputs": [input]}));
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// The number of audit records about a version that could not be loaded.
fn refused(log: &str, model: &str) -> usize {
    let is_of_model = |line: &&str| line.contains("\"model_refused\"") && line.contains(&format!("\"{model}\""));
    log.lines().filter(is_of_model).count()
}

/// Ends the first loads from outside, as the system does when memory is short, until they have failed.
fn fail_endless(daemon: &TestDaemon) {
    let client = &mut daemon.client();
    wait_until("both have failed", LIMIT, || {
        for pid in first_loads(daemon) {
            send_signal(pid, "KILL");
        }
        ENDLESS.iter().all(|model| client.state(model).0 == "UNAVAILABLE")
    });
}

/// Changes the streak of every failure on the disk.
fn set_streak(root: &TestRoot, failures: u64, last_ms: u64) {
    let mut records: Value = serde_json::from_slice(&std::fs::read(record(root)).unwrap()).unwrap();
    let versions = records["versions"].as_array_mut().unwrap().iter_mut();
    for failure in versions.map(|version| &mut version["failure"]).filter(|failure| failure.is_object()) {
        failure["streak"]["failures"] = json!(failures);
        failure["streak"]["last_ms"] = json!(last_ms);
    }
    write(&record(root), records.to_string().as_bytes());
}

#[test]
fn two_files_that_load_for_ever_delay_no_shipped_model_at_three_starts() {
    let (root, _) = stop(TestRoot::new().models(&SHIPPED).start());
    assert!(endless::model().len() < 40_000);

    // The first start that finds them is ready while they load.
    let daemon = with_endless(root).start_ready();
    let client = &mut daemon.client();
    assert_eq!(is_ready(client), 200);
    shipped_answer(client);
    wait_until("both load", LIMIT, || first_loads(&daemon).len() == 2);
    for model in ENDLESS {
        assert_eq!(client.state(model).0, "LOADING", "{model}");
        assert_eq!(client.get(&format!("/v2/models/{model}/ready")).status, 503);
    }
    assert_eq!(is_ready(client), 200);
    // Neither is in the way of another model that somebody adds.
    assert_eq!(client.post("/v2/repository/models/wine_mlp/load", &[], b"").status, 200);
    fail_endless(&daemon);
    daemon.wait_for_event_since_start("repository.read");
    shipped_answer(client);
    for model in ENDLESS {
        let (_, reason) = client.state(model);
        assert!(reason.contains(&format!("POST /v2/repository/models/{model}/load")), "{reason}");
    }

    // The next two do not try them: as after ten failures, the pause is a day.
    let (mut root, log) = stop(daemon);
    assert_eq!(ENDLESS.map(|model| refused(&log, model)), [1, 1], "{log}");
    set_streak(&root, 12, ledge::clock::unix_millis());
    for _ in 0..2 {
        let daemon = root.start();
        let client = &mut daemon.client();
        assert_eq!(is_ready(client), 200);
        shipped_answer(client);
        for model in ENDLESS {
            let (state, reason) = client.state(model);
            assert_eq!(state, "UNAVAILABLE", "{reason}");
        }
        assert_eq!(first_loads(&daemon), [0; 0]);
        let metrics = String::from_utf8(client.get("/metrics").body).unwrap();
        assert!(metrics.contains("model_load_failures{model=\"a_endless\",version=\"1\"} 12"), "{metrics}");
        let stopped = stop(daemon);
        assert_eq!(ENDLESS.map(|model| refused(&stopped.1, model)), [0, 0], "nothing has changed");
        root = stopped.0;
    }
    let finding = root.finding("model a_endless");
    assert_eq!(finding["status"], "warn", "{finding}");

    // Other files are tried at once, and so is a model that somebody asks for.
    let good = std::fs::read(model_folder("add_sub").join("1/model.onnx")).unwrap();
    write(&root.model(ENDLESS[0]).join("1/model.onnx"), &good);
    let daemon = root.start();
    let client = &mut daemon.client();
    assert_eq!(client.state(ENDLESS[0]).0, "READY");
    let call = format!(
        "POST /v2/repository/models/{}/load HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n",
        ENDLESS[1]
    );
    daemon.client().send(call.as_bytes());
    wait_until("it loads", LIMIT, || client.state(ENDLESS[1]).0 == "LOADING" && !first_loads(&daemon).is_empty());
    assert_eq!(is_ready(client), 200);
}

#[test]
fn a_first_start_is_ready_with_the_first_model_that_serves() {
    let daemon = with_endless(TestRoot::new().models(&["add_sub"])).start_ready();
    let client = &mut daemon.client();
    assert_eq!((is_ready(client), client.state("add_sub").0), (200, "READY".to_owned()));
    for model in ENDLESS {
        assert_eq!(client.state(model).0, "LOADING");
    }
    // Another SIGHUP does not wait for them either.
    let daemon_root = &daemon.root;
    crate::daemon::copy(&model_folder("dynamic_sum"), &daemon_root.model("coming"));
    daemon.signal("HUP");
    wait_until("it serves", LIMIT, || client.get("/v2/models/coming/ready").status == 200);
}

#[test]
fn a_box_where_no_model_serves_has_started_and_is_not_ready() {
    let daemon = TestRoot::new().models(&["broken_cut"]).start();
    let client = &mut daemon.client();
    let answer = client.get("/v2/health/ready");
    assert_eq!(answer.status, 503, "{answer:?}");
    crate::daemon::copy(&model_folder("add_sub"), &daemon.root.model("add_sub"));
    assert_eq!(client.post("/v2/repository/models/add_sub/load", &[], b"").status, 200);
    assert_eq!(is_ready(client), 200);
    // One that was unloaded on request is not to serve.
    std::fs::remove_dir_all(daemon.root.model("broken_cut")).unwrap();
    daemon.signal("HUP");
    daemon.wait_for_event("repository.read");
    assert_eq!(client.post("/v2/repository/models/add_sub/unload", &[], b"").status, 200);
    assert_eq!(is_ready(client), 200);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_model_that_crashes_its_runtime_is_recorded_once_and_tried_again_when_its_pause_is_over() {
    let mut root = TestRoot::new().models(&["add_sub"]);
    for entry in std::fs::read_dir(model_folder("release_crash")).unwrap() {
        let entry = entry.unwrap();
        let file = entry.file_name().into_string().unwrap();
        let to = if file == "model.onnx" { "1/model.onnx" } else { &file };
        write(&root.model("crash").join(to), &std::fs::read(entry.path()).unwrap());
    }
    let config = root.model("crash").join("model.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    write(&config, format!("runtime = \"onnxruntime\"\n{text}").as_bytes());
    for (start, last_ms) in [(1, ledge::clock::unix_millis()), (2, 0), (3, 0)] {
        if start > 1 {
            // As long ago as can be, so that the pause is over.
            set_streak(&root, start - 1, last_ms);
        }
        let daemon = root.start();
        let client = &mut daemon.client();
        let reason = client.refusal("crash");
        assert!(reason.contains("SIGFPE"), "{reason}");
        assert_eq!(reason.contains(&format!("it failed {start} times")), start > 1, "{reason}");
        assert_eq!((is_ready(client), client.state("add_sub").0), (200, "READY".to_owned()));
        let stopped = stop(daemon);
        assert_eq!(refused(&stopped.1, "crash"), usize::from(start == 1), "start {start}");
        assert!(!stopped.1.contains("model_crashed"), "no call was running");
        root = stopped.0;
    }
    // Another configuration is tried at once: OpenVINO does not divide with the instruction that traps.
    let text = text.split("[[golden]]").next().unwrap();
    write(&config, format!("runtime = \"openvino\"\n{text}").as_bytes());
    assert_eq!(root.start().client().state("crash"), ("READY".to_owned(), String::new()));
}

#[test]
fn a_state_folder_that_cannot_be_written_stops_no_load() {
    let root = TestRoot::new().models(&["add_sub"]);
    // Folders in the place of the record and of its set-aside name, because no permission stops root.
    for path in [record(&root), record(&root).with_extension("json.damaged")] {
        std::fs::create_dir_all(path.join("full")).unwrap();
    }
    let daemon = root.start();
    daemon.wait_for_event_since_start("load_records.not_written");
    assert_eq!(daemon.client().state("add_sub").0, "READY");
}

#[test]
fn the_failures_of_a_version_end_when_it_leaves_the_box() {
    let root = TestRoot::new().model_as("add_sub", "m").models(&["fixed_shape"]);
    copy(&model_folder("broken_cut").join("1"), &root.model("m").join("2"));
    let daemon = root.start();
    daemon.wait_for_event_since_start("repository.read");
    let client = &mut daemon.client();
    let failures = |client: &mut Client| {
        let metrics = String::from_utf8(client.get("/metrics").body).unwrap();
        metrics
            .lines()
            .filter(|line| line.starts_with("ledge_model_load_failures{"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(failures(client), ["ledge_model_load_failures{model=\"m\",version=\"2\"} 1"]);
    std::fs::remove_dir_all(daemon.root.model("m").join("2")).unwrap();
    assert_eq!(client.post("/v2/repository/models/m/load", &[], b"").status, 200);
    assert_eq!(failures(client), [""; 0]);
}
