//! Signed settings and runtime libraries: taken up by a restart in place, and given up again when they are not right.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::daemon::{TestDaemon, TestRoot, model_folder, processes, setup_root, write};
use crate::fault_rounds::{send_fault, wait_until};
use crate::platform::{Callers, Fleet, SHAPES, look, shapes, status, subject, wine};
use crate::tools::run;

/// Adds settings as a version of the configuration `night`.
fn add_settings(fleet: &Fleet, version: u64, text: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.toml");
    write(&file, text.as_bytes());
    fleet.platform.add(&["configuration", "add"], "night", version, &file);
}

/// The number of starts of the daemon, in any process.
fn starts(daemon: &TestDaemon) -> usize {
    daemon.events("daemon.started").len()
}

fn shown(daemon: &TestDaemon) -> String {
    run(&mut daemon.root.command(&["config", "show"]))
}

/// True when the queue has the size of the settings that an update brought.
fn has_size_17(daemon: &TestDaemon) -> bool {
    shown(daemon).lines().any(|line| line.starts_with("max_queue_size = 17 "))
}

/// Makes the model's configuration show the number of requests that may wait for it.
const BATCHING: &str = "\n[dynamic_batching]\nmax_queue_delay_us = 0\n";

#[test]
fn settings_are_taken_up_by_a_restart_in_place_and_no_request_is_lost() {
    let fleet = Fleet::new("");
    let root = fleet.enrol(TestRoot::new().models(&["wine_mlp"]));
    write(&root.folder.path().join("ledge.toml"), b"[response_cache]\nmax_bytes = 1234567\n");
    let batching = std::fs::read_to_string(root.model("wine_mlp").join("model.toml")).unwrap() + BATCHING;
    let daemon = root.file("wine_mlp/model.toml", batching).start();
    add_settings(&fleet, 1, "serving.max_queue_size = 17\nresponse_cache.max_bytes = 99\n");
    let callers = Callers::start(&daemon, 2, "wine_mlp", &wine());
    fleet.platform.start("r-1", "configurations/night/1", &[]);
    look(&daemon);
    daemon.wait_for_event("update.restart_requested");
    daemon.wait_for_event("daemon.ready");
    daemon.wait_for_event("update.committed");
    let all = callers.stop_unharmed();
    let longest = all.iter().map(|answers| answers.longest).max().unwrap();
    println!("the longest that a caller waited over the restart: {longest:?}");
    assert!(longest < Duration::from_secs(20), "{longest:?}");
    // The process is the one that the test started.
    let command = std::fs::read_to_string(format!("/proc/{}/cmdline", daemon.pid())).unwrap();
    assert!(command.contains("serve") && starts(&daemon) == 2, "{command} {}", starts(&daemon));
    // The settings of the release are in effect, and those of the owner stay.
    let config = daemon.client().get("/v2/models/wine_mlp/config").json();
    assert!(config.to_string().contains("\"max_queue_size\":17"), "{config}");
    let shown = shown(&daemon);
    let line = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    assert!(line("max_queue_size = 17").contains("settings.toml:1"), "{shown}");
    assert!(line("max_bytes = 1234567").contains("ledge.toml:2"), "{shown}");
    let told = subject(&daemon, "configurations/night");
    assert_eq!((&told["version"], &told["last"]["result"]), (&json!(1), &json!("committed")), "{told}");
    // The audit log has both lives in one piece, and every call of them.
    let mut daemon = daemon;
    daemon.signal("TERM");
    assert!(daemon.wait().success());
    let root = daemon.kill();
    let show = run(&mut root.command(&["audit", "show", "--json"]));
    let records: Vec<Value> = show.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |action: &'static str| {
        records.iter().map(|record| &record["event"]).filter(move |event| event["action"] == action)
    };
    assert_eq!((of("started").count(), of("stopped").count(), of("records_lost").count()), (2, 2, 0), "{show}");
    let calls: u64 = of("inference_minute").map(|event| event["calls"].as_u64().unwrap()).sum();
    assert_eq!(calls, all.iter().map(|answers| answers.answered).sum::<u64>(), "{show}");
}

fn filters(daemon: &TestDaemon) -> String {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    status.lines().find(|line| line.starts_with("Seccomp_filters:")).unwrap().to_owned()
}

#[test]
fn a_restart_in_place_keeps_the_process_that_starts_those_of_the_models() {
    let fleet = Fleet::new("");
    let root = fleet.enrol(TestRoot::new().models(&["wine_mlp"]));
    let settings = root.folder.path().join("ledge.toml");
    write(&settings, b"[runtimes]\nisolation = \"process\"\n");
    let daemon = root.start();
    let spawner = processes(daemon.pid(), "spawner");
    assert_eq!(spawner.len(), 1);
    let (mut former, filters_before) = (processes(spawner[0], "runtime"), filters(&daemon));

    // The second configuration is one of an earlier version.
    for (version, isolation) in [(1, "process"), (2, "none")] {
        write(&settings, format!("[runtimes]\nisolation = \"{isolation}\"\n").as_bytes());
        add_settings(&fleet, version, &format!("serving.max_queue_size = {}\n", 16 + version));
        let callers = Callers::start(&daemon, 2, "wine_mlp", &wine());
        fleet.platform.start(&format!("r-{version}"), &format!("configurations/night/{version}"), &[]);
        look(&daemon);
        daemon.wait_for_event("update.restart_requested");
        daemon.wait_for_event("daemon.ready");
        daemon.wait_for_event("update.committed");
        callers.stop_unharmed();

        assert_eq!(processes(daemon.pid(), "spawner"), spawner);
        let children = processes(spawner[0], "runtime");
        assert!(children.len() == 1 && children != former, "{children:?} {former:?}");
        assert_eq!(filters(&daemon), filters_before, "it denies itself everything once");
        former = children;
    }
    assert_eq!(starts(&daemon), 3);
    assert!(daemon.log().contains("runtimes.isolation: \\\"none\\\" no longer exists"));
}

/// Signs settings that `ledge-platform` itself would refuse, as a thief of the key would.
fn sign_unchecked(fleet: &Fleet, version: u64, text: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.toml");
    write(&file, text.as_bytes());
    let arguments = ["night", &version.to_string(), file.to_str().unwrap()];
    fleet.platform.run_without("release.unsettable = lambda *_: []", &["configuration", "add"], &arguments);
}

#[test]
fn settings_that_no_release_may_set_are_refused_in_the_words_of_the_mistake() {
    let fleet = Fleet::new("");
    let daemon = fleet.enrol(TestRoot::new()).start();
    for (version, (text, words)) in (1..).zip([
        ("[log]\nlevel = \"trace\"\n", "can be set only by the owner of the box"),
        ("[serving]\nmax_queue_size = 0\n", "expected a whole number from 1"),
    ]) {
        sign_unchecked(&fleet, version, text);
        fleet.platform.start(&format!("r-{version}"), &format!("configurations/night/{version}"), &[]);
        look(&daemon);
        let line = daemon.wait_for_event("update.rolled_back");
        assert_eq!((&line["stage"], &line["cause"]), (&json!("verified"), &json!("load")), "{line}");
        let told = subject(&daemon, "configurations/night");
        let detail = told["last"]["detail"].as_str().unwrap_or_default().to_owned();
        assert!(detail.contains("settings.toml:2") && detail.contains(words), "{told}");
        assert_eq!(told["version"], Value::Null, "{told}");
    }
    assert_eq!(starts(&daemon), 1);
}

#[test]
fn settings_under_which_the_daemon_does_not_stay_up_are_given_up_by_themselves() {
    let fleet = Fleet::new("");
    let daemon = fleet.enrol(TestRoot::new().models(&["wine_mlp"])).start();
    add_settings(&fleet, 1, "serving.max_queue_size = 17\n");
    fleet.platform.start("r-1", "configurations/night/1", &["--soak", "min_s=3000,max_s=4000"]);
    look(&daemon);
    daemon.wait_for_event("update.restart_requested");
    daemon.wait_for_event("daemon.ready");
    let mut root = daemon.kill();
    // Each kill is within a minute of the start.
    for _ in 0..3 {
        let daemon = root.start();
        assert!(has_size_17(&daemon), "{}", shown(&daemon));
        root = daemon.kill();
    }
    let daemon = root.start_unready();
    daemon.wait_for_event("update.rolled_back");
    daemon.wait_for_event("update.restart_requested");
    daemon.wait_for_event("daemon.ready");
    assert!(!has_size_17(&daemon), "{}", shown(&daemon));
    let told = subject(&daemon, "configurations/night");
    assert_eq!((&told["version"], &told["last"]["cause"]), (&Value::Null, &json!("restarts")), "{told}");
    // And is not tried again.
    look(&daemon);
    assert_eq!(subject(&daemon, "configurations/night")["trial"], Value::Null);
}

/// Sends a signal to daemons that restart to apply settings, each two milliseconds later than the one before: a restart
/// takes some 30 ms. Then has `check` look at each.
fn signal_at_any_moment_of_a_restart(name: &str, check: impl Fn(TestDaemon)) {
    let fleet = Fleet::new("");
    add_settings(&fleet, 1, "serving.max_queue_size = 17\n");
    fleet.platform.start("r-1", "configurations/night/1", &[]);
    for delay_ms in (0..60).step_by(2) {
        let daemon = fleet.enrol(TestRoot::new().models(&["wine_mlp"])).start();
        look(&daemon);
        daemon.wait_for_event("update.restart_requested");
        std::thread::sleep(Duration::from_millis(delay_ms));
        daemon.signal(name);
        check(daemon);
    }
}

#[test]
fn a_stop_at_any_moment_of_a_restart_in_place_is_a_stop() {
    signal_at_any_moment_of_a_restart("TERM", |mut daemon| {
        daemon.wait();
        assert!(starts(&daemon) <= 2, "{}", daemon.log());
    });
}

#[test]
fn a_reload_at_any_moment_of_a_restart_in_place_ends_nothing() {
    signal_at_any_moment_of_a_restart("HUP", |daemon| {
        daemon.wait_for_event("daemon.ready");
        assert_eq!(daemon.client().post_json("/v2/models/wine_mlp/infer", &wine()).status, 200);
    });
}

/// A folder with ONNX Runtime's library, cut off after this many bytes.
fn onnxruntime(bytes: Option<usize>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let files = std::fs::read_dir(setup_root().join("runtimes")).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let library = files.into_iter().find(|path| name(path).starts_with("libonnxruntime.so")).unwrap();
    let content = std::fs::read(&library).unwrap();
    write(&folder.path().join(name(&library)), &content[..bytes.unwrap_or(content.len())]);
    folder
}

#[test]
fn a_box_gets_its_runtime_then_a_model_for_it_and_no_broken_one() {
    let fleet = Fleet::new("");
    let root = fleet.enrol(TestRoot::new().models(&["wine_mlp"]));
    std::fs::create_dir(root.folder.path().join("none")).unwrap();
    let daemon = root.set("runtimes.dir=\"none\"").start();
    assert_ne!(daemon.client().post_json("/v2/models/wine_mlp/infer", &wine()).status, 200);
    fleet.platform.add(&["runtime", "add"], "onnxruntime", 1, onnxruntime(None).path());
    fleet.platform.start("r-1", "runtimes/onnxruntime/1", &[]);
    look(&daemon);
    let moved = daemon.wait_for_event("runtime.library_changed");
    assert!(moved["library"].as_str().unwrap().contains("/releases/runtimes/onnxruntime/1-"), "{moved}");
    daemon.wait_for_event("update.committed");
    assert_eq!(starts(&daemon), 1, "there was no library in its place");
    // The owner's model runs in it, and trials run in it.
    assert_eq!(daemon.client().post_json("/v2/models/wine_mlp/infer", &wine()).status, 200);
    fleet.platform.add_model(SHAPES, 1, &model_folder("release_good"), &[]);
    fleet.platform.start("r-2", "models/shapes/1", &[]);
    look(&daemon);
    daemon.wait_for_event("update.committed");
    let callers = Callers::start(&daemon, 1, SHAPES, &shapes());
    fleet.platform.add(&["runtime", "add"], "onnxruntime", 2, onnxruntime(Some(9_000_000)).path());
    fleet.platform.start("r-3", "runtimes/onnxruntime/2", &[]);
    look(&daemon);
    let line = daemon.wait_for_event("update.rolled_back");
    assert_eq!(line["stage"], "verified", "{line}");
    println!("a library that is cut off: {} {}", line["cause"], line["detail"]);
    assert_eq!(subject(&daemon, "runtimes/onnxruntime")["version"], json!(1), "{}", status(&daemon));
    // The next good one needs no restart either.
    fleet.platform.add(&["runtime", "add"], "onnxruntime", 3, onnxruntime(None).path());
    fleet.platform.start("r-4", "runtimes/onnxruntime/3", &[]);
    look(&daemon);
    let moved = daemon.wait_for_event("runtime.library_changed");
    assert!(moved["library"].as_str().unwrap().contains("/releases/runtimes/onnxruntime/3-"), "{moved}");
    daemon.wait_for_event("update.committed");
    callers.stop_unharmed();
    assert_eq!(starts(&daemon), 1);
}

/// The libraries of ONNX Runtime that the process has mapped, by their paths.
fn mapped(pid: u32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let paths = maps.lines().filter_map(|line| Some(line[line.find('/')?..].to_owned()));
    let mut found: Vec<_> = paths.filter(|path| path.contains("libonnxruntime.so")).collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[test]
fn models_in_a_process_of_their_own_get_another_library_and_lose_it_again_without_a_restart_or_a_lost_call() {
    let fleet = Fleet::new("");
    let root = fleet.enrol(TestRoot::new().models(&["wine_mlp", "add_sub"]));
    let daemon = root.set("runtimes.isolation=\"process\"").start();
    let spawner = processes(daemon.pid(), "spawner")[0];
    let libraries = || processes(spawner, "runtime").into_iter().flat_map(mapped).collect::<Vec<_>>();
    let moved_to = |version: u64| {
        let folder = format!("/releases/runtimes/onnxruntime/{version}-");
        let is_in = || matches!(&libraries()[..], [only] if only.contains(&folder));
        wait_until("the process with the other library ends", Duration::from_secs(20), is_in);
    };
    let callers = Callers::start(&daemon, 2, "wine_mlp", &wine());

    for version in [1, 2] {
        fleet.platform.add(&["runtime", "add"], "onnxruntime", version, onnxruntime(None).path());
        fleet.platform.start(&format!("r-{version}"), &format!("runtimes/onnxruntime/{version}"), &[]);
        look(&daemon);
        daemon.wait_for_event("runtime.library_changed");
        daemon.wait_for_event("update.committed");
        moved_to(version);
    }

    // The platform takes it back.
    fleet.platform.run(&["rollout", "revoke"], &["runtimes/onnxruntime/2"]);
    look(&daemon);
    moved_to(1);
    callers.stop_unharmed();
    assert_eq!(daemon.client().post_json("/v2/models/wine_mlp/infer", &wine()).status, 200);
    assert_eq!((starts(&daemon), processes(daemon.pid(), "spawner")), (1, vec![spawner]));
}

#[test]
fn libraries_in_which_a_model_ends_its_process_again_and_again_are_rolled_back() {
    let fleet = Fleet::new("");
    let daemon = fleet.enrol(TestRoot::new().models(&["wine_mlp"])).set("runtimes.isolation=\"process\"").start();
    let usual = daemon.client().post_json("/v2/models/wine_mlp/infer", &wine());
    assert_eq!(usual.status, 200);
    fleet.platform.add(&["runtime", "add"], "onnxruntime", 1, onnxruntime(None).path());
    let soak = ["--soak", "min_s=600,min_requests=0,max_s=900"];
    fleet.platform.start("r-1", "runtimes/onnxruntime/1", &soak);
    look(&daemon);
    daemon.wait_for_event("runtime.library_changed");
    // In place of a fault of the library.
    for fault in *b"sfa" {
        assert_eq!(send_fault(&mut daemon.client(), "wine_mlp", fault).status, 502);
    }
    let line = daemon.wait_for_event("update.rolled_back");
    assert_eq!((&line["stage"], &line["cause"]), (&json!("active"), &json!("crash")), "{line}");
    wait_until("the model answers in the former library", Duration::from_secs(20), || {
        daemon.client().post_json("/v2/models/wine_mlp/infer", &wine()).status == 200
    });
    assert_eq!(starts(&daemon), 1);
}

#[test]
fn a_box_that_is_too_old_for_a_rollout_says_that_it_waits() {
    let fleet = Fleet::new("");
    let daemon = fleet.enrol(TestRoot::new()).start();
    fleet.platform.add_model(SHAPES, 1, &model_folder("release_good"), &[]);
    fleet.platform.start("r-1", "models/shapes/1", &["--requires-ledge", "99.0.0"]);
    look(&daemon);
    let status = status(&daemon);
    assert!(status.to_string().contains("99.0.0"), "{status}");
}
