//! Starting, loading, reloading, stopping: no request is lost, nothing is half-done.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot, copy, model_folder, write};

fn state(client: &mut Client, model: &str) -> Vec<(String, String)> {
    let index = client.post("/v2/repository/index", &[], b"").json();
    let rows = index.as_array().unwrap().iter().filter(|row| row["name"] == model);
    rows.map(|row| (row["version"].as_str().unwrap_or("").to_owned(), row["state"].as_str().unwrap().to_owned()))
        .collect()
}

fn ready(versions: &[&str]) -> Vec<(String, String)> {
    versions.iter().map(|version| ((*version).to_owned(), "READY".to_owned())).collect()
}

/// A request of one row, and the answer that only a whole model gives.
fn add_sub_request(value: u32) -> Value {
    let input = |name, value| json!({"name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![value; 16]});
    json!({"id": value.to_string(), "inputs": [input("INPUT0", value), input("INPUT1", 1)]})
}

#[test]
fn a_thousand_requests_in_flight_survive_ten_reloads() {
    let daemon = TestRoot::new().models(&["add_sub"]).set("http.max_connections=2000").start();
    let answered = &AtomicUsize::new(0);
    let reloading = &AtomicBool::new(true);
    // A thousand connections, each with a request on its way all the time.
    std::thread::scope(|scope| {
        for worker in 0..20_u32 {
            let daemon = &daemon;
            scope.spawn(move || {
                let mut clients: Vec<Client> = (0..50).map(|_| daemon.client()).collect();
                let mut round = 0;
                while round < 2 || reloading.load(Ordering::Relaxed) {
                    for (index, client) in (0_u32..).zip(&mut clients) {
                        let body = add_sub_request(worker * 50 + index).to_string();
                        let head = format!(
                            "POST /v2/models/add_sub/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
                            body.len()
                        );
                        client.send(format!("{head}{body}").as_bytes());
                    }
                    for (index, client) in (0_u32..).zip(&mut clients) {
                        let value = worker * 50 + index;
                        let answer = client.receive();
                        assert_eq!(answer.status, 200, "{answer:?}");
                        let answer = answer.json();
                        assert_eq!(answer["id"], value.to_string());
                        assert_eq!(answer["outputs"][0]["data"][15], json!(f64::from(value) + 1.0));
                        assert_eq!(answer["outputs"][1]["data"][0], json!(f64::from(value) - 1.0));
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    round += 1;
                }
            });
        }
        let mut client = daemon.client();
        for _ in 0..10 {
            let before = answered.load(Ordering::Relaxed);
            assert_eq!(client.post("/v2/repository/models/add_sub/load", &[], b"").status, 200);
            // Each reload happens in the middle of answers.
            while answered.load(Ordering::Relaxed) < before + 1000 {
                std::thread::yield_now();
            }
        }
        reloading.store(false, Ordering::Relaxed);
    });
    let stats = daemon.client().get("/v2/models/add_sub/stats").json();
    let counted = stats["model_stats"][0]["inference_stats"]["success"]["count"].as_u64().unwrap();
    assert_eq!(usize::try_from(counted).unwrap(), answered.load(Ordering::Relaxed), "statistics are kept over reloads");
    assert_eq!(stats["model_stats"][0]["inference_stats"]["fail"]["count"], 0);
}

#[test]
fn a_failed_reload_keeps_what_was_live() {
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    let client = &mut daemon.client();
    write(&daemon.root.model("add_sub").join("1/model.onnx"), b"no longer a model");
    let answer = client.post("/v2/repository/models/add_sub/load", &[], b"");
    assert_eq!(answer.status, 400);
    assert!(answer.error().contains("model.onnx"), "{}", answer.error());
    assert_eq!(client.post_json("/v2/models/add_sub/infer", &add_sub_request(3)).status, 200);
    assert_eq!(state(client, "add_sub"), ready(&["1"]));
}

#[test]
fn a_new_version_that_does_not_load_leaves_the_live_one() {
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    let client = &mut daemon.client();
    write(&daemon.root.model("add_sub").join("2/model.onnx"), b"cut off");
    let answer = client.post("/v2/repository/models/add_sub/load", &[], b"");
    assert!(answer.status == 400 && answer.error().contains("/2/model.onnx"), "{answer:?}");
    let answer = client.post_json("/v2/models/add_sub/infer", &add_sub_request(3));
    assert_eq!(answer.json()["model_version"], "1");
    let states = state(client, "add_sub");
    assert_eq!(states, [("1".to_owned(), "READY".to_owned()), ("2".to_owned(), "UNAVAILABLE".to_owned())]);
    copy(&model_folder("add_sub").join("1"), &daemon.root.model("add_sub").join("2"));
    daemon.signal("HUP");
    daemon.wait_for_event("repository.read");
    assert_eq!(state(client, "add_sub"), ready(&["2"]));
}

#[test]
fn a_caller_who_hangs_up_does_not_leave_a_load_or_unload_half_done() {
    let daemon = TestRoot::new().models(&["efficientnet_lite0"]).start();
    let client = &mut daemon.client();
    for verb in ["unload", "load"] {
        let call = format!(
            "POST /v2/repository/models/efficientnet_lite0/{verb} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
        );
        // A call does not count if its client is gone before it is read, so send several.
        for _ in 0..5 {
            daemon.client().send(call.as_bytes());
        }
        daemon.wait_for_event(if verb == "load" { "model.loaded" } else { "model.unloaded" });
    }
    // After the load without a waiting caller, because loads of one model happen one after the other.
    assert_eq!(client.post("/v2/repository/models/efficientnet_lite0/load", &[], b"").status, 200);
    assert_eq!(state(client, "efficientnet_lite0"), ready(&["1"]));
}

#[test]
fn a_hangup_loads_what_is_new_drops_what_is_gone_and_leaves_the_rest() {
    let daemon = TestRoot::new().models(&["add_sub"]).model_as("add_sub", "going").start();
    let client = &mut daemon.client();
    copy(&model_folder("dynamic_sum"), &daemon.root.model("coming"));
    std::fs::remove_dir_all(daemon.root.model("going")).unwrap();
    daemon.signal("HUP");
    daemon.wait_for_event("repository.read");
    assert_eq!(state(client, "coming"), ready(&["1"]));
    assert_eq!(client.get("/v2/models/going").status, 404);
    let loads = daemon.events("model.loaded").len();
    assert_eq!(loads, 3, "add_sub was not loaded again");
    // A change of the model config counts as a change.
    write(&daemon.root.model("add_sub").join("model.toml"), b"max_batch_size = 2\n");
    daemon.signal("HUP");
    daemon.wait_for_event("repository.read");
    assert_eq!(client.get("/v2/models/add_sub/config").json()["max_batch_size"], 2);
}

#[test]
fn the_version_policy_decides_what_is_served() {
    let add_version = |daemon: &TestDaemon, version: &str| {
        copy(&model_folder("add_sub").join("1"), &daemon.root.model("add_sub").join(version));
    };
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    let client = &mut daemon.client();
    for version in ["2", "10", "007", "notes"] {
        add_version(&daemon, version);
    }
    let load = |client: &mut Client| client.post("/v2/repository/models/add_sub/load", &[], b"");
    let policy = |text: &str| write(&daemon.root.model("add_sub").join("model.toml"), text.as_bytes());
    assert_eq!(load(client).status, 200);
    assert_eq!(state(client, "add_sub"), ready(&["10"]), "the latest one by default, by number and not by letter");
    policy("version_policy = { latest = 2 }");
    assert_eq!(load(client).status, 200);
    assert_eq!(state(client, "add_sub"), ready(&["2", "10"]));
    policy("version_policy = \"all\"");
    assert_eq!(load(client).status, 200);
    assert_eq!(client.get("/v2/models/add_sub").json()["versions"], json!(["1", "2", "10"]));
    let answer = client.post_json("/v2/models/add_sub/infer", &add_sub_request(1));
    assert_eq!(answer.json()["model_version"], "10", "the highest is the default");
    policy("version_policy = { specific = [1, 5] }");
    let answer = load(client);
    assert!(answer.status == 400 && answer.error().contains("version 5"), "{answer:?}");
    assert_eq!(client.post_json("/v2/models/add_sub/versions/1/infer", &add_sub_request(1)).status, 200);
    assert_eq!(client.get("/v2/models/add_sub/versions/5/ready").status, 503);
    policy("version_policy = \"newest\"\nunknown = 1\n");
    let answer = load(client);
    assert!(answer.error().contains("version_policy") && answer.error().contains("unknown"), "{}", answer.error());
}

#[test]
fn unload_answers_what_is_in_flight_first() {
    let daemon = TestRoot::new().models(&["slow"]).start();
    let metadata = daemon.client().get("/v2/models/slow").json();
    let input =
        json!({"name": metadata["inputs"][0]["name"], "datatype": "FP32", "shape": [1, 16], "data": vec![1.0; 16]});
    let body = json!({"inputs": [input]}).to_string();
    let head =
        format!("POST /v2/models/slow/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
    let mut waiting: Vec<Client> = (0..4).map(|_| daemon.client()).collect();
    let executions = |client: &mut Client| {
        client.get("/v2/models/slow/stats").json()["model_stats"][0]["execution_count"].as_u64().unwrap()
    };
    let mut client = daemon.client();
    let before = executions(&mut client);
    for waiting in &mut waiting {
        waiting.send(format!("{head}{body}").as_bytes());
    }
    // The first is answered: the others have arrived, as they were sent with it.
    while executions(&mut client) == before {
        std::thread::yield_now();
    }
    assert_eq!(client.post("/v2/repository/models/slow/unload", &[], b"").status, 200);
    for mut waiting in waiting {
        let answer = waiting.receive();
        // One that came behind the unload hears that the model is not loaded; none is dropped.
        assert!(answer.status == 200 || answer.status == 404, "{answer:?}");
    }
    assert_eq!(client.get("/v2/models/slow/ready").status, 503);
    assert_eq!(client.post("/v2/repository/models/slow/load", &[], b"").status, 200);
    assert_eq!(client.get("/v2/models/slow/ready").status, 200);
}

#[test]
fn a_stop_answers_what_is_in_flight_and_ends_with_success() {
    let daemon = TestRoot::new().models(&["slow"]).start();
    let metadata = daemon.client().get("/v2/models/slow").json();
    let input =
        json!({"name": metadata["inputs"][0]["name"], "datatype": "FP32", "shape": [1, 16], "data": vec![1.0; 16]});
    let body = json!({"inputs": [input]}).to_string();
    let mut waiting = daemon.client();
    // The head arrives; the daemon waits for the body when it is asked to stop.
    waiting.send(
        format!(
            "POST /v2/models/slow/infer HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .as_bytes(),
    );
    let continued = waiting.receive_interim();
    assert_eq!(continued, 100);
    daemon.signal("TERM");
    daemon.wait_for_event("daemon.stop_requested");
    waiting.send(body.as_bytes());
    let answer = waiting.receive();
    assert_eq!(answer.status, 200, "{answer:?}");
    let socket = daemon.root.folder.path().join("ledge.sock");
    let mut daemon = daemon;
    assert!(daemon.wait().success(), "{}", daemon.log());
    assert!(!socket.exists(), "the socket is removed");
    let log = daemon.log();
    let recorded = [r#"\"action\":\"stopped\""#, r#"\"outcome\":\"ok\""#];
    assert!(recorded.iter().all(|record| log.contains(record)), "the last audit records are written: {log}");
}

#[test]
fn a_killed_daemon_leaves_nothing_that_stops_the_next() {
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    let id = |daemon: &TestDaemon| std::fs::read_to_string(daemon.root.folder.path().join("device-id")).unwrap();
    let first = id(&daemon);
    let root = daemon.kill();
    assert!(root.folder.path().join("ledge.sock").exists());
    let daemon = root.start();
    assert_eq!(daemon.unix_client().get("/v2/models/add_sub/ready").status, 200);
    assert_eq!(id(&daemon), first, "the box keeps its identity");
}

#[test]
fn two_daemons_do_not_share_a_socket() {
    let daemon = TestRoot::new().start();
    let output = daemon.root.command(&["serve"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("ledge.sock"), "{text}");
    assert_eq!(daemon.unix_client().get("/v2").status, 200, "the first one goes on");
}

#[test]
fn an_address_that_no_interface_has_yet_keeps_nobody_from_being_served() {
    let root = TestRoot::new().models(&["add_sub"]);
    assert!(root.command(&["keys", "create", "till", "--role", "infer"]).output().unwrap().status.success());
    let listen = "http.listen=[\"127.0.0.1:0\", \"https://192.0.2.10:0\"]";
    let daemon = root.set(listen).set("http.tls.self_signed=true").start();
    assert_eq!(daemon.client().get("/v2/models/add_sub/ready").status, 200);
    let line = daemon.wait_for_event_since_start("listener.address_missing");
    assert_eq!(line["address"].as_str(), Some("192.0.2.10:0"), "{line}");
}

#[test]
fn a_file_that_is_no_socket_is_never_removed() {
    let root = TestRoot::new().set("http.listen=[\"unix:notes.txt\"]");
    let file = root.folder.path().join("notes.txt");
    write(&file, b"mine");
    let output = root.command(&["serve"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("notes.txt"), "{output:?}");
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
}

#[test]
fn a_repository_that_is_not_there_stops_the_start_with_its_reason() {
    let root = TestRoot::new().set("repository.path=\"nowhere\"");
    let output = root.command(&["serve"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("nowhere"), "{text}");
}

#[test]
fn a_load_takes_its_own_time_and_not_that_of_the_models_before_it() {
    let names = ["b", "c", "d", "e", "f", "g"];
    let root = names.iter().fold(TestRoot::new().models(&["add_sub"]), |root, name| root.model_as("add_sub", name));
    let started = Instant::now();
    // One after the other, so that all of them together cannot have taken more than the start.
    let daemon = root.set("repository.parallel_loads=1").start();
    let whole = started.elapsed().as_millis();
    let loads: Vec<u128> = daemon
        .events("model.loaded")
        .iter()
        .map(|line| line["load_ms"].to_string().trim_matches('"').parse().unwrap())
        .collect();
    assert_eq!(loads.len(), names.len() + 1, "{loads:?}");
    assert!(loads.iter().sum::<u128>() <= whole, "{loads:?} in {whole} ms");
}

#[test]
fn a_terminal_is_told_each_event_once() {
    let root = TestRoot::new().models(&["add_sub"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/serve_terminal.py");
    let serve = |level: &str| {
        let daemon = root.command(&["serve", "--set", level, "--set", "log.format=text"]);
        let mut command = Command::new("python3");
        command.arg(&script).arg(daemon.get_program()).args(daemon.get_args());
        command.envs(daemon.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = command.env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
        let (told, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{told}{error}");
        told.into_owned()
    };
    let told = serve("log.level=info");
    let of_load = |told: &str| told.lines().filter(|line| line.contains("add_sub") && line.contains("ready")).count();
    assert_eq!(of_load(&told), 1, "{told}");
    assert!(!told.contains("model_loaded"), "{told}");
    let told = serve("log.level=\"info,audit=info\"");
    assert!(of_load(&told) == 1 && told.contains("model_loaded"), "{told}");
}
