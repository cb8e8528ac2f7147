//! `ledge top` over a real daemon.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::daemon::{TestDaemon, TestRoot};

/// Runs `work` while the daemon answers requests of three elements.
fn under_traffic<T>(daemon: &TestDaemon, work: impl FnOnce() -> T) -> T {
    let tensor = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [3, 16], "data": vec![1.0; 48]});
    let request = json!({"inputs": [tensor("INPUT0"), tensor("INPUT1")]});
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = daemon.client();
            while !done.load(Ordering::Relaxed) {
                assert_eq!(client.post_json("/v2/models/add_sub/infer", &request).status, 200);
            }
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    })
}

fn top(daemon: &TestDaemon, arguments: &[&str]) -> String {
    let output = daemon.root.command(&[&["top"], arguments].concat()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn top_tells_scripts_and_people_what_each_model_does() {
    let daemon = TestRoot::new().models(&["add_sub", "broken_empty"]).start();
    let url = format!("http://{}", daemon.address);
    // Over TCP as asked for, and over the socket that the configuration names.
    let (view, text) = under_traffic(&daemon, || {
        let view = top(&daemon, &["--url", &url, "--once", "--json", "--interval", "0.5"]);
        (serde_json::from_str::<Value>(&view).unwrap(), top(&daemon, &["--interval", "0.5"]))
    });
    assert_eq!(view["version"], env!("CARGO_PKG_VERSION"));
    assert!(view["interval_seconds"].as_f64().unwrap() >= 0.5, "{view}");
    assert!(view["process"]["memory_bytes"].as_u64().unwrap() > 1 << 20, "{view}");
    assert!(view["cores"].as_array().unwrap().iter().all(|core| core["load_ratio"].is_f64()), "{view}");
    let [model, broken] = &view["models"].as_array().unwrap()[..] else { panic!("{view}") };
    assert_eq!(
        (&model["model"], &model["ready"], &model["runtime"]),
        (&json!("add_sub"), &json!(true), &json!("onnxruntime"))
    );
    let figure = |name: &str| model[name].as_f64().unwrap_or_else(|| panic!("no {name} in {model}"));
    assert!(figure("requests_per_second") > 0.0, "{model}");
    assert!((figure("elements_per_second") / figure("requests_per_second") - 3.0).abs() < 0.5, "{model}");
    assert!(figure("p50_seconds") > 0.0 && figure("p50_seconds") <= figure("p99_seconds"), "{model}");
    // A run may fall into this time and its request into the next.
    assert!(figure("mean_batch") > 2.0 && figure("queue_p99_seconds") > 0.0, "{model}");
    assert_eq!((&broken["model"], &broken["ready"]), (&json!("broken_empty"), &json!(false)));

    assert!(text.starts_with(concat!("ledge ", env!("CARGO_PKG_VERSION"), "  up 0")), "{text}");
    assert!(!text.contains('\x1b'), "a pipe gets no colours: {text}");
    let row = text.lines().find(|line| line.starts_with("add_sub 1 ")).unwrap_or_else(|| panic!("{text}"));
    assert!(row.split_whitespace().any(|word| word == "us" || word == "ms"), "{row}");
    assert!(text.contains("broken_empty"), "{text}");
}

#[test]
fn top_without_a_daemon_says_so() {
    let root = TestRoot::new();
    let output = root.command(&["top", "--once"]).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("ledge.sock"), "{message}");
}

#[test]
fn health_is_live_and_ready_of_a_daemon_that_serves_and_fails_otherwise() {
    let health = |root: &TestRoot, arguments: &[&str]| {
        let output = root.command(&[&["health"], arguments].concat()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    assert_eq!(health(&daemon.root, &[]), (Some(0), "live\n".to_owned()));
    assert_eq!(
        health(&daemon.root, &["--ready", "--url", &format!("http://{}", daemon.address)]),
        (Some(0), "ready\n".to_owned())
    );
    let broken = TestRoot::new().models(&["broken_empty"]).start_unready();
    broken.wait_for_event("repository.read");
    assert_eq!(health(&broken.root, &[]), (Some(0), "live\n".to_owned()));
    assert_eq!(health(&broken.root, &["--ready"]), (Some(1), String::new()));
    let root = broken.kill();
    assert_eq!(health(&root, &[]), (Some(1), String::new()));
}

#[test]
fn top_leaves_the_terminal_as_it_is_and_outlives_its_daemon() {
    let mut daemon = TestRoot::new().models(&["add_sub"]).start();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/top_terminal.py");
    for ending in ["INT", "TERM"] {
        let top = daemon.root.command(&["top", "--interval", "0.1"]);
        let mut terminal = Command::new("python3");
        terminal.arg(&script).arg(ending).arg(top.get_program()).args(top.get_args());
        for (name, value) in top.get_envs() {
            match value {
                Some(value) => terminal.env(name, value),
                None => terminal.env_remove(name),
            };
        }
        terminal.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut terminal = terminal.spawn().unwrap();
        let (mut orders, said) = (terminal.stdin.take().unwrap(), terminal.stdout.take().unwrap());
        let mut said = BufReader::new(said).lines().map_while(Result::ok);
        assert_eq!(said.next().as_deref(), Some("shown"), "{ending}");
        let root = daemon.kill();
        assert_eq!(said.next().as_deref(), Some("gone"), "{ending}");
        daemon = root.start();
        writeln!(orders, "started").unwrap();
        assert_eq!(said.next().as_deref(), Some("ok"), "{ending}");
        assert!(terminal.wait().unwrap().success());
    }
}
