//! A model whose load ends the process: it is found, suspended, reported and tried in a process of its own, and the
//! others go on.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ledge::engine::Runtimes;
use ledge::names::ModelName;
use ledge::repository::attempts::log::{AttemptLog, suspects};
use ledge::repository::attempts::{Attempt, AttemptKey};
use ledge::telemetry::system::boot_id;
use serde_json::{Value, json};

use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot, model_folder, setup_root, write};

const LIMIT: Duration = Duration::from_mins(1);

/// Models that can end the daemon: those in other processes cannot.
fn in_the_daemon() -> TestRoot {
    TestRoot::new().variable("LEDGE_TEST_IN_PROCESS", "1")
}

/// Lays a release out as its owner would.
fn owned(root: TestRoot, release: &str, name: &str) -> TestRoot {
    for entry in std::fs::read_dir(model_folder(release)).unwrap() {
        let entry = entry.unwrap();
        let file = entry.file_name().into_string().unwrap();
        let to = if file == "model.onnx" { "1/model.onnx" } else { &file };
        write(&root.model(name).join(to), &std::fs::read(entry.path()).unwrap());
    }
    root
}

fn folder(root: &TestRoot) -> PathBuf {
    root.model("any").parent().unwrap().parent().unwrap().to_owned()
}

fn record(root: &TestRoot) -> PathBuf {
    folder(root).join("load_attempts.jsonl")
}

/// Starts the daemon, and waits until a model ends the process.
fn dies(root: TestRoot) -> TestRoot {
    let mut daemon = root.start_unready();
    let status = daemon.wait();
    assert_eq!(status.signal(), Some(8), "{status:?}\n{}", daemon.log());
    daemon.kill()
}

fn answers(client: &mut Client, model: &str) {
    let body = json!({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": [2, 0, 0, 1]}]});
    let answer = client.post_json(&format!("/v2/models/{model}/infer"), &body);
    assert_eq!(answer.status, 200, "{model}: {answer:?}");
}

fn names(root: &TestRoot) -> Vec<String> {
    suspects(&folder(root)).iter().map(|suspect| suspect.model.to_string()).collect()
}

/// Waits until a load is in progress.
fn wait_until_loading(daemon: &TestDaemon) {
    let since = Instant::now();
    while !std::fs::read_to_string(record(&daemon.root)).is_ok_and(|text| text.contains("began")) {
        assert!(since.elapsed() < LIMIT, "no load has begun:\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_model_that_ends_the_process_is_suspended_at_the_third_start_and_the_others_answer() {
    let good = ["apple", "better", "zebra"];
    let mut root = owned(in_the_daemon().set("repository.parallel_loads=4"), "release_crash", "crash");
    for name in good {
        root = owned(root, "release_good", name);
    }
    let root = dies(dies(root));
    // The same cause is shown while no daemon runs.
    let doctor = root.command(&["doctor"]).output().unwrap();
    let found = String::from_utf8(doctor.stdout).unwrap();
    assert!(found.contains("model crash") && found.contains("model zebra"), "{found}");

    let daemon = root.start();
    let client = &mut daemon.client();
    for model in good {
        answers(client, model);
    }
    let (state_of_it, reason) = client.state("crash");
    assert_eq!(state_of_it, "UNAVAILABLE");
    for words in
        ["ended the process 2 times, last at 20", "next trial is at 20", "POST /v2/repository/models/crash/load"]
    {
        assert!(reason.contains(words), "{reason}");
    }
    let asked = client.post_json("/v2/models/crash/infer", &json!({"inputs": []}));
    assert!(asked.status == 404 && asked.error().contains("ended the process"), "{asked:?}");
    assert_eq!(names(&daemon.root), ["crash"], "nobody else is to blame");
    let metrics = String::from_utf8(client.get("/metrics").body).unwrap();
    assert!(metrics.contains("model_crashes{model=\"crash\",version=\"1\"} 2"), "{metrics}");

    // Asked for, it is tried in a process of its own.
    let load = client.post("/v2/repository/models/crash/load", &[], b"");
    assert!(load.status == 400 && load.error().contains("SIGFPE"), "{load:?}");
    // Unchanged, it stays suspended.
    daemon.signal("HUP");
    daemon.wait_for_log("model repository read");
    assert!(client.state("crash").1.contains("SIGFPE"));
    for model in good {
        answers(client, model);
    }

    // Other files are another matter.
    let mended = std::fs::read(model_folder("release_good").join("model.onnx")).unwrap();
    write(&daemon.root.model("crash").join("1/model.onnx"), &mended);
    daemon.signal("HUP");
    daemon.wait_for_log("model repository read");
    answers(client, "crash");
    assert_eq!(names(&daemon.root), [""; 0]);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn another_configuration_is_tried_anew_and_so_are_other_files_at_a_start() {
    let root = dies(dies(owned(in_the_daemon(), "release_crash", "crash")));
    // OpenVINO does not divide 64-bit integers with the instruction that traps.
    let path = root.model("crash").join("model.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    let config = config.split("[[golden]]").next().unwrap();
    write(&path, format!("runtime = \"openvino\"\n{config}").as_bytes());
    let daemon = root.start();
    assert_eq!(daemon.client().state("crash"), ("READY".to_owned(), String::new()));
}

#[test]
fn a_kill_while_idle_an_orderly_stop_and_another_boot_suspend_nothing() {
    // Idle.
    let mut root = owned(in_the_daemon(), "release_good", "good");
    for _ in 0..3 {
        root = root.start().kill();
    }
    assert_eq!(names(&root), [""; 0]);

    // Its load takes longer than anybody waits.
    let mut root = owned(in_the_daemon().set("shutdown.grace_ms=100"), "release_endless", "endless");
    for _ in 0..3 {
        let mut daemon = root.start_unready();
        wait_until_loading(&daemon);
        daemon.signal("TERM");
        daemon.wait();
        root = daemon.kill();
    }
    assert_eq!(names(&root), [""; 0]);

    // As after a power cut: what is on the disk is of another boot.
    let boot = boot_id(Path::new("/")).unwrap();
    for _ in 0..3 {
        let daemon = root.start_unready();
        wait_until_loading(&daemon);
        root = daemon.kill();
        let text = std::fs::read_to_string(record(&root)).unwrap();
        assert!(text.contains(&boot), "{text}");
        write(&record(&root), text.replace(&boot, "another").as_bytes());
    }
    let daemon = root.start_unready();
    wait_until_loading(&daemon);
    assert_eq!(names(&daemon.root), [""; 0]);
    // In one boot it would have been suspended long ago.
    let root = daemon.kill();
    let daemon = root.start_unready();
    wait_until_loading(&daemon);
    assert_eq!(names(&daemon.root), ["endless"]);
    let daemon = owned(daemon.kill(), "release_good", "good").start();
    answers(&mut daemon.client(), "good");
    assert_eq!(daemon.client().state("endless").0, "UNAVAILABLE");
}

/// Two deaths during the load of this model, the last one at the beginning of 1970.
fn suspended_for_long(root: TestRoot, model: &str) -> TestRoot {
    let shown = root.command(&["models", "show", model, "--json"]).output().unwrap();
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let config = std::fs::read_to_string(root.model(model).join("model.toml")).unwrap();
    let libraries = Runtimes::new(setup_root().join("runtimes")).libraries();
    let key = AttemptKey::new(shown["digest"].as_str().unwrap(), &config, &libraries);
    let (model, version): (ModelName, _) = (model.parse().unwrap(), "1".parse().unwrap());
    let boot = boot_id(Path::new("/")).unwrap();
    for _ in 0..2 {
        let (log, _) = AttemptLog::open(&folder(&root), &boot);
        std::mem::forget(log.begin(Attempt { key: key.clone(), model: model.clone(), version, began_ms: 0 }));
    }
    drop(AttemptLog::open(&folder(&root), &boot));
    let text = std::fs::read_to_string(record(&root)).unwrap();
    let mut attempts: Value = serde_json::from_str(&text).unwrap();
    let suspect = attempts["suspects"].as_object_mut().unwrap().values_mut().next().unwrap();
    suspect["suspension"]["since_ms"] = json!(0);
    write(&record(&root), format!("{attempts}\n").as_bytes());
    root
}

#[test]
fn a_suspended_model_that_passes_its_trial_serves_again() {
    let root = suspended_for_long(owned(in_the_daemon(), "release_good", "good"), "good");
    let daemon = root.start();
    daemon.wait_for_log_since_start("a model is tried in a separate process first");
    daemon.wait_for_log("model ready");
    let client = &mut daemon.client();
    let since = Instant::now();
    // The pointer is swapped after the line is written.
    while client.state("good").0 != "READY" {
        assert!(since.elapsed() < LIMIT);
    }
    answers(client, "good");
    assert_eq!(names(&daemon.root), [""; 0]);
}

#[test]
fn an_explicit_load_that_passes_its_trial_serves_again() {
    let root = owned(in_the_daemon(), "release_good", "good");
    let root = suspended_for_long(root, "good");
    // Not due for long.
    let text = std::fs::read_to_string(record(&root)).unwrap();
    let now = ledge::clock::unix_millis();
    write(&record(&root), text.replace("\"since_ms\":0", &format!("\"since_ms\":{now}")).as_bytes());
    let daemon = root.start();
    let client = &mut daemon.client();
    assert_eq!(client.state("good").0, "UNAVAILABLE");
    let load = client.post("/v2/repository/models/good/load", &[], b"");
    assert_eq!(load.status, 200, "{load:?}");
    answers(client, "good");
    assert_eq!(names(&daemon.root), [""; 0]);
}

#[test]
fn a_state_folder_that_cannot_be_written_stops_no_load() {
    let root = owned(in_the_daemon(), "release_good", "good");
    // Folders in the place of the record and of what it is set aside as: no permission stops root.
    for path in [record(&root), record(&root).with_extension("jsonl.damaged")] {
        std::fs::create_dir_all(path.join("full")).unwrap();
    }
    let daemon = root.start();
    daemon.wait_for_log_since_start(
        "cannot record loads: a model that ends the process will be loaded again at the next start",
    );
    answers(&mut daemon.client(), "good");
}
