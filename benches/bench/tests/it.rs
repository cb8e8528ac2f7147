//! `ledge-bench`: its counts agree with those of the server.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that panics says where")]

#[path = "../../../tests/it/client.rs"]
#[expect(dead_code, reason = "shared with tests/it, which uses the rest")]
mod client;
#[path = "../../../tests/it/daemon.rs"]
#[expect(dead_code, reason = "shared with tests/it, which uses the rest")]
mod daemon;

use std::process::Output;

use serde_json::{Value, json};

use daemon::TestRoot;

/// The program that the tests start, and the folder of all sources.
const PROGRAM: &str = env!("CARGO_BIN_EXE_ledge-bench");
const CHECKOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A fraction of a second under each load.
const SHORT: [&str; 7] = ["--duration", "200ms", "--warmup", "0", "--rounds", "2", "--json"];

fn bench(root: &TestRoot, arguments: &[&str]) -> Output {
    root.command(&[]).args(arguments).output().unwrap()
}

#[track_caller]
fn report(root: &TestRoot, arguments: &[&str]) -> Value {
    let output = bench(root, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn failure(root: &TestRoot, arguments: &[&str]) -> String {
    let output = bench(root, arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Requests answered, by target.
fn answered(report: &Value, target: &str) -> u64 {
    let results = report["results"].as_array().unwrap().iter().filter(|result| result["target"] == target);
    results.map(|result| result["figures"]["answered"].as_u64().unwrap()).sum()
}

#[test]
fn what_it_counts_is_what_the_server_counted() {
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    let tcp = format!("http://{}", daemon.address);
    let unix = format!("unix:{}", daemon.root.folder.path().join("ledge.sock").display());
    let mut counted = 0;
    for more in [
        &["--url", &tcp, "--http", "--concurrency", "1,3"][..],
        &["--url", &unix, "--http", "--rate", "200", "--unique"],
        &["--url", &tcp, "--rate", "100", "--constant", "--json-tensors"],
        &["--url", &tcp, "--concurrency", "2", "--batch", "4", "--json-tensors", "--unique"],
    ] {
        let report = report(&daemon.root, &[&["add_sub"], more, &SHORT].concat());
        for result in report["results"].as_array().unwrap() {
            assert_eq!(result["figures"]["errors"], json!({}), "{more:?}: {result}");
            assert!(result["figures"]["latency_ms"]["p99.9"].as_f64().unwrap() > 0.0, "{result}");
        }
        assert_eq!(more.contains(&"--http"), answered(&report, "in-process") == 0, "{more:?}");
        // One more request is sent first, to detect errors early.
        counted += answered(&report, "http") + 1;
    }
    assert_eq!(daemon.counted("add_sub"), (Some(counted), Some(0)));
}

#[test]
fn an_open_loop_sends_what_is_due_to_both_targets_alike() {
    let root = TestRoot::new().models(&["add_sub"]);
    let report = report(&root, &[&["add_sub", "--rate", "50", "--constant"], &SHORT[..]].concat());
    assert_eq!((answered(&report, "in-process"), answered(&report, "http")), (20, 20), "50 a second for 2 x 0.2 s");
    let ratio = &report["ratios"][0]["http_by_in_process"];
    assert!(ratio["p50"]["median"].as_f64().unwrap() > 0.0, "{ratio}");
}

#[test]
fn its_own_server_is_gone_afterwards_and_leaves_nothing_behind() {
    let root = TestRoot::new().models(&["add_sub", "broken_png"]);
    let temporary = tempfile::tempdir().unwrap();
    let mut command = root.command(&["add_sub", "--concurrency", "2"]);
    let output = command.args(SHORT).env("TMPDIR", temporary.path()).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let http = &report["results"][1]["figures"];
    assert!(http["memory_bytes"].as_u64().unwrap() > 1 << 20, "{http}");
    assert!(http["cpu_ms_per_request"].is_number(), "{http}");
    let names = std::fs::read_dir(temporary.path()).unwrap().map(|entry| entry.unwrap().file_name());
    // ONNX Runtime also writes a file .ses there.
    assert_eq!(names.filter(|name| name != ".ses").count(), 0);
    let mut left: Vec<_> =
        std::fs::read_dir(root.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["models", "runtimes"]);
}

#[test]
fn a_photograph_is_asked_about_as_it_is() {
    let root = TestRoot::new().models(&["efficientnet_lite0"]);
    let photo = &format!("{CHECKOUT}/tests/data/photos/chelsea.jpg");
    let report = report(
        &root,
        &[&["efficientnet_lite0", "--photo", photo, "--concurrency", "1", "--unique"], &SHORT[..]].concat(),
    );
    assert!(answered(&report, "in-process") > 0 && answered(&report, "http") > 0, "{report}");
    assert!(report["input"].as_str().unwrap().starts_with("a photograph (image/jpeg"), "{report}");
}

#[test]
fn what_cannot_be_measured_is_said_with_the_way_out() {
    let root = TestRoot::new().models(&["add_sub", "dynamic_sum"]);
    let error = failure(&root, &["nope"]);
    assert!(error.contains("no model 'nope'") && error.contains("ledge models list"), "{error}");
    let error = failure(&root, &["add_sub:7"]);
    assert!(error.contains("no version 7"), "{error}");
    let error = failure(&root, &["add_sub", "--url", "http://127.0.0.1:1", "--http"]);
    assert!(error.contains("no daemon answers at http://127.0.0.1:1"), "{error}");
    let error = failure(&root, &["add_sub", "--in-process", "--shape", "IN:1,2"]);
    assert!(error.contains("it has INPUT0, INPUT1"), "{error}");

    let daemon = root.start();
    let url = format!("http://{}", daemon.address);
    let error = failure(&daemon.root, &["nope", "--http", "--url", &url]);
    assert!(error.contains("unknown model: 'nope'") && error.contains("404"), "{error}");
}
