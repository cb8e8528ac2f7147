//! The spawner and the sandbox of the daemon: the daemon writes no code, the spawner starts other processes for it, and
//! nothing outlives it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags};
use serde_json::json;

use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot, data, processes, send_signal};
use crate::fault_rounds::{runtime_processes, wait_until};

const LIMIT: Duration = Duration::from_mins(1);

/// The loader of programs that are linked with the C library of the system.
#[cfg(target_arch = "x86_64")]
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
#[cfg(target_arch = "aarch64")]
const LOADER: &str = "/lib/ld-linux-aarch64.so.1";

/// A feature view.
const VIEWS: &str = r#"
[[entity]]
name = "machine"
join_key = "machine_id"

[[feature_view]]
name = "hot"
entities = ["machine"]
schema = [{ name = "heat", dtype = "Float32" }]
"#;

fn isolated() -> TestRoot {
    TestRoot::new().set("runtimes.isolation=process")
}

/// The spawner of a daemon, and its child.
fn spawner(daemon: &TestDaemon) -> (u32, Vec<u32>) {
    // A process that tried a model ends soon after the model is ready.
    wait_until("one child", LIMIT, || runtime_processes(daemon).len() == 1);
    let spawners = processes(daemon.pid(), "spawner");
    let [spawner] = spawners[..] else { panic!("{spawners:?}") };
    (spawner, processes(spawner, "runtime"))
}

fn add_sub(client: &mut Client, model: &str) -> u16 {
    let input = |name| json!({"name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![1.0; 16]});
    let inputs = json!({"inputs": [input("INPUT0"), input("INPUT1")]});
    client.post(&format!("/v2/models/{model}/infer"), &[], inputs.to_string().as_bytes()).status
}

fn of_process(pid: u32, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap()
}

/// The value of a line such as `Seccomp:\t2`.
fn field(text: &str, name: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().trim().to_owned()
}

/// The number of filters of system calls that a process has.
fn filters(pid: u32) -> u32 {
    field(&of_process(pid, "status"), "Seccomp_filters").parse().unwrap()
}

fn pidfd(pid: u32) -> OwnedFd {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap()
}

/// Waits until these processes have ended.
#[track_caller]
fn wait_for_end(processes: &[OwnedFd]) {
    for process in processes {
        let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
        let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit)).unwrap();
        assert_eq!(ended, 1, "it goes on");
    }
}

#[test]
fn the_daemon_writes_no_code_and_serves_what_does() {
    let root = isolated().models(&["add_sub", "efficientnet_lite0", "document_reader"]).model_as("add_sub", "openvino");
    let daemon = root.file("openvino/model.toml", "runtime = \"openvino\"").start();
    let mut client = daemon.client();
    assert_eq!(add_sub(&mut client, "add_sub"), 200);
    assert_eq!(add_sub(&mut client, "openvino"), 200);
    let photo = [("content-type", "image/jpeg")];
    let answer = client.post("/v2/models/efficientnet_lite0/infer", &photo, &data("photos/chelsea.jpg"));
    assert_eq!(answer.status, 200, "{answer:?}");
    let document = [("content-type", "application/pdf")];
    let answer = client.post("/v2/models/document_reader/infer", &document, &data("documents/invoice.pdf"));
    assert_eq!(answer.status, 200, "{answer:?}");

    let (spawner, children) = spawner(&daemon);
    assert_eq!(children.len(), 1);
    let maps = of_process(daemon.pid(), "maps");
    let is_code = |line: &&str| line.split_whitespace().nth(1).is_some_and(|mode| mode.contains("wx"));
    assert_eq!(maps.lines().find(is_code), None);
    assert!(!maps.contains("libonnxruntime") && !maps.contains("libopenvino"), "{maps}");
    assert_eq!(field(&of_process(daemon.pid(), "status"), "Seccomp"), "2");
    assert_eq!(filters(daemon.pid()), filters(std::process::id()) + 1);
    assert_eq!(filters(spawner), filters(std::process::id()));
    assert_eq!(field(&of_process(spawner, "status"), "Threads"), "1");
    println!("the spawner: {} of its own", field(&of_process(spawner, "smaps_rollup"), "Pss"));
    // The child does what the daemon is denied.
    assert!(of_process(children[0], "maps").contains("libopenvino"));
}

#[test]
fn a_daemon_without_a_spawner_does_everything_but_run_models() {
    // Run by the loader, the daemon starts the loader in place of itself, which knows no program `spawner`.
    let root = isolated().models(&["add_sub"]).views(VIEWS).runner(&[LOADER]);
    let mut daemon = root.start();
    let line = daemon.wait_for_event_since_start("spawner.failed");
    assert!(line["reason"].as_str().unwrap().contains("127"), "{line}");

    let mut client = daemon.client();
    assert_eq!(client.get("/v2/health/live").status, 200);
    let push = json!({"feature_view_name": "hot", "df": {"machine_id": ["a"], "heat": [2.5]}});
    assert_eq!(client.post_json("/write-to-online-store", &push).status, 200);
    let reason = client.refusal("add_sub");
    assert!(reason.contains(line["reason"].as_str().unwrap()), "{reason}");
    daemon.root = std::mem::replace(&mut daemon.root, TestRoot::new()).runner(&[]);
    let doctor = daemon.root.command(&["doctor", "--json"]).output().unwrap();
    assert_eq!(doctor.status.code(), Some(1), "{doctor:?}");
    let found: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let found = found["checks"].as_array().unwrap().iter().find(|check| check["name"] == "seal of the daemon").unwrap();
    assert!(found["status"] == "fail", "{found}");

    daemon.signal("TERM");
    assert!(daemon.wait().success());
}

#[test]
fn spawner_and_children_end_with_a_daemon_that_is_killed() {
    let daemon = isolated().models(&["add_sub"]).start();
    let (spawner, children) = spawner(&daemon);
    assert_eq!(children.len(), 1);
    let processes: Vec<_> = children.into_iter().chain([spawner]).map(pidfd).collect();
    daemon.kill();
    wait_for_end(&processes);
}

#[test]
fn a_spawner_that_is_killed_takes_its_children_with_it_and_ends_the_daemon_in_order() {
    let mut daemon = isolated().models(&["add_sub"]).start();
    let (spawner, children) = spawner(&daemon);
    let processes: Vec<_> = children.into_iter().map(pidfd).collect();
    send_signal(spawner, "KILL");
    wait_for_end(&processes);
    let line = daemon.wait_for_event("task.ended");
    let reason = line["reason"].as_str().unwrap();
    assert!(reason.contains("SIGKILL"), "{reason}");
    // Not 78, with which the service manager would not.
    assert_eq!(daemon.wait().code(), Some(1));
    let root = daemon.kill();
    let daemon = root.start();
    assert_eq!(add_sub(&mut daemon.client(), "add_sub"), 200);
}

/// Stops a process again and again until it has ended.
fn freeze_until_it_ends(process: &OwnedFd) {
    while poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 })) == Ok(0) {
        // It may have ended.
        let _ = rustix::process::pidfd_send_signal(process, rustix::process::Signal::STOP);
    }
}

#[test]
fn a_worker_that_is_stopped_goes_on_or_is_replaced_and_no_model_is_blamed() {
    let daemon = isolated().models(&["add_sub"]).start();
    let (_, children) = spawner(&daemon);
    send_signal(children[0], "STOP");
    assert_eq!(add_sub(&mut daemon.client(), "add_sub"), 200);
    daemon.wait_for_event("process.resumed");

    let process = pidfd(children[0]);
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let mut client = daemon.client();
            (0..200).map(|_| add_sub(&mut client, "add_sub")).collect::<Vec<_>>()
        });
        freeze_until_it_ends(&process);
        assert!(calls.join().unwrap().iter().all(|status| *status == 200));
    });
    let end = daemon.wait_for_event("process.ended");
    assert!(end["reason"].as_str().unwrap().contains("stopped from outside"), "{end}");
    assert_eq!(add_sub(&mut daemon.client(), "add_sub"), 200);
    let log = daemon.log();
    assert!(daemon.events("model.crashed").is_empty() && !log.contains("model_crashed"), "{log}");
}

#[test]
fn a_spawner_that_is_stopped_goes_on_and_starts_others() {
    let mut daemon = isolated().models(&["add_sub"]).start();
    let (spawner, children) = spawner(&daemon);
    let process = pidfd(spawner);
    send_signal(spawner, "STOP");
    // Its end comes to be known when the spawner goes on, which has to start another.
    send_signal(children[0], "KILL");
    assert_eq!(add_sub(&mut daemon.client(), "add_sub"), 200);
    daemon.wait_for_event("spawner.resumed");

    send_signal(spawner, "STOP");
    daemon.signal("TERM");
    assert!(daemon.wait().success());
    wait_for_end(&[process]);
}

#[test]
fn signals_to_every_process_of_the_service_leave_the_models_to_a_daemon_that_drains() {
    let mut daemon = isolated().models(&["add_sub"]).start();
    let (spawner, children) = spawner(&daemon);
    // Not of the daemon's process group, which a Ctrl-C reaches.
    let group = |pid: u32| rustix::process::getpgid(Pid::from_raw(pid.try_into().unwrap())).unwrap();
    for process in children.iter().chain([&spawner]) {
        assert_eq!(group(*process), Pid::from_raw(spawner.try_into().unwrap()).unwrap());
        for signal in ["TERM", "INT", "HUP"] {
            send_signal(*process, signal);
        }
    }
    assert_eq!(add_sub(&mut daemon.client(), "add_sub"), 200);
    let processes: Vec<_> = children.into_iter().chain([spawner]).map(pidfd).collect();
    daemon.signal("INT");
    assert!(daemon.wait().success());
    wait_for_end(&processes);
    assert!(daemon.events("model.crashed").is_empty(), "{}", daemon.log());
}
