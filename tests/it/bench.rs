//! `ledge bench`: what it counts is what the server counted, and right answers are counted as right.

use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::daemon::{TestRoot, copy, data, write};

/// A fraction of a second under each load.
const SHORT: [&str; 7] = ["--duration", "200ms", "--warmup", "0", "--rounds", "2", "--json"];

fn bench(root: &TestRoot, arguments: &[&str]) -> Output {
    root.command(&["bench"]).args(arguments).output().unwrap()
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
        // One more is asked first, to hear early what is wrong.
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
    let svg = root.folder.path().join("latency.svg");
    let mut command = root.command(&["bench", "add_sub", "--concurrency", "2", "--svg", &svg.display().to_string()]);
    let output = command.args(SHORT).env("TMPDIR", temporary.path()).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let http = &report["results"][1]["figures"];
    assert!(http["memory_bytes"].as_u64().unwrap() > 1 << 20, "{http}");
    assert!(http["cpu_ms_per_request"].is_number(), "{http}");
    assert!(std::fs::read_to_string(&svg).unwrap().contains("http p99"));
    let names = std::fs::read_dir(temporary.path()).unwrap().map(|entry| entry.unwrap().file_name());
    // ONNX Runtime writes a file .ses of its own there.
    assert_eq!(names.filter(|name| name != ".ses").count(), 0);
    let mut left: Vec<_> =
        std::fs::read_dir(root.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["latency.svg", "models", "runtimes"]);
}

#[test]
fn a_photograph_is_asked_about_as_it_is() {
    let root = TestRoot::new().models(&["efficientnet_lite0"]);
    let photo = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/photos/chelsea.jpg");
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
    let missing = root.folder.path().display().to_string();
    let error = failure(&root, &["add_sub", "--images", &missing]);
    assert!(error.contains("contains no photograph"), "{error}");

    let daemon = root.start();
    let url = format!("http://{}", daemon.address);
    let error = failure(&daemon.root, &["nope", "--http", "--url", &url]);
    assert!(error.contains("unknown model: 'nope'") && error.contains("404"), "{error}");
}

/// A folder of photographs, one folder a class.
fn classes(folder: &Path, files: &[(&str, &str)]) {
    for (class, file) in files {
        write(&folder.join(class).join(file), &data(&format!("photos/{file}")));
    }
}

#[test]
fn right_answers_are_counted_by_a_list_and_by_folders() {
    let root = TestRoot::new().models(&["efficientnet_lite0"]);
    let images = root.folder.path().join("images");
    classes(&images, &[("espresso", "coffee.png"), ("tripod", "camera.webp"), ("tripod", "camera_orientation6.jpg")]);
    // A tabby is among the best five, a tiger cat is the best.
    classes(&images, &[("tabby", "chelsea.jpg")]);
    let folder = images.display().to_string();
    let expected = json!({"files": 4, "top1": 0.75, "top5": 1.0});
    let by_folder = report(&root, &["efficientnet_lite0", "--images", &folder, "--json"]);
    assert_eq!(by_folder["models"][0]["accuracy"], expected, "{by_folder}");

    let list = root.folder.path().join("labels.csv");
    let rows =
        "file,label\ncoffee.png,espresso\ncamera.webp,tripod\ntripod/camera_orientation6.jpg,872\nchelsea.jpg,tabby\n";
    write(&list, rows.as_bytes());
    let list = list.display().to_string();
    let by_list = report(&root, &["efficientnet_lite0", "--images", &folder, "--labels", &list, "--json"]);
    assert_eq!(by_list["models"][0]["accuracy"], expected, "{by_list}");

    classes(&images, &[("no such class", "coffee.png")]);
    let output = bench(&root, &["efficientnet_lite0", "--images", &folder]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("the model has no class \"no such class\""), "{output:?}");
}

#[test]
fn two_versions_and_two_runtimes_are_compared_on_the_same_files() {
    let root = TestRoot::new().models(&["fixed_shape", "external_data"]);
    copy(&root.model("fixed_shape").join("1"), &root.model("fixed_shape").join("2"));
    let row =
        json!({"name": "IN", "datatype": "FP32", "shape": [3, 4], "data": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]});
    let requests = root.folder.path().join("requests");
    write(&requests.join("one.json"), json!({"inputs": [row]}).to_string().as_bytes());
    let requests = requests.display().to_string();
    let compare = |one: &str, other: &str| {
        report(&root, &[one, "--images", &requests, "--against", other, "--json"])["agreement"].clone()
    };
    for (one, other) in [("fixed_shape:1", "fixed_shape:2"), ("fixed_shape:2@onnxruntime", "fixed_shape@openvino")] {
        let agreement = compare(one, other);
        assert_eq!((&agreement["compared"], &agreement["same_top1"]), (&json!(1), &json!(1.0)), "{agreement}");
        assert_eq!(agreement["largest_difference"], 0.0, "{agreement}");
    }
    // External data is found through the links, and the weights rise along each row, so the best stay the best.
    let agreement = compare("external_data:1@openvino", "fixed_shape");
    assert!(agreement["largest_difference"].as_f64().unwrap() > 1.0, "{agreement}");
}
