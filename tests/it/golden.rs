//! Golden inputs: a model that answers them wrong does not serve, and its replacement is reported.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot, model_folder, write};

/// Of a model that returns its input. `log_nan`, with the same inputs and outputs, answers it wrong.
const GOLDEN: &str = r#"{"inputs": [{"name": "IN", "shape": [1, 4], "data": [1, 2, 3, 4]}],
    "outputs": [{"name": "OUT", "shape": [1, 4], "data": [1, 2, 3, 4]}]}"#;

/// The model `m`, which answers wrong, with its float original if there is one.
fn root(config: &str, float: Option<&[u8]>) -> TestRoot {
    let root = TestRoot::new()
        .model_as("log_nan", "m")
        .file("m/model.toml", format!("{config}\n[[golden]]\nfile = \"golden.json\"\n"))
        .file("m/golden.json", GOLDEN);
    match float {
        Some(float) => root.file("m/1/model.float.onnx", float),
        None => root,
    }
}

fn model_file(model: &str) -> Vec<u8> {
    std::fs::read(model_folder(model).join("1/model.onnx")).unwrap()
}

fn answer(client: &mut Client) -> Value {
    let input = json!({"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": [5, 6, 7, 8]});
    client.post_json("/v2/models/m/infer", &json!({"inputs": [input]})).json()["outputs"][0]["data"].clone()
}

/// The only event of that action in the audit log of a daemon, which ends before, so that all of it is there.
fn audited(mut daemon: TestDaemon, action: &str) -> Value {
    daemon.signal("TERM");
    assert!(daemon.wait().success());
    let shown = daemon.root.command(&["audit", "show", "--json", "--action", action]).output().unwrap();
    let records = String::from_utf8(shown.stdout).unwrap();
    let events: Vec<Value> = records.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.len(), 1, "{events:?}");
    events[0]["event"].clone()
}

#[test]
fn a_float_original_stands_in_for_a_model_that_answers_wrong_and_everything_says_so() {
    let daemon = root("", Some(&model_file("identity_fp32"))).start();
    let client = &mut daemon.client();
    let (state, note) = client.state("m");
    assert_eq!(state, "READY");
    assert!(
        note.starts_with("model.float.onnx in onnxruntime stands in: onnxruntime: golden input golden.json"),
        "{note}"
    );
    assert!(note.contains("; openvino: golden input golden.json: output \"OUT\" differs by 2.613706"), "{note}");
    assert_eq!(answer(client), json!([5.0, 6.0, 7.0, 8.0]));
    assert_eq!(daemon.wait_for_event_since_start("model.stand_in_loaded")["message"], note);
    let metrics = String::from_utf8(client.get("/metrics").body).unwrap();
    assert!(metrics.lines().any(|line| line.starts_with("ledge_model_fallback{") && line.ends_with(" 1")), "{metrics}");

    for verb in [&["models", "check", "m"][..], &["models", "show", "m"], &["doctor"]] {
        let output = daemon.root.command(verb).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("model.float.onnx"), "{verb:?}: {text}");
    }
    // `ledge tune` measures the model itself, not its replacement.
    let tuned = daemon.root.command(&["tune", "m", "--dry-run"]).output().unwrap();
    assert!(!tuned.status.success(), "{tuned:?}");
    let fell_back = audited(daemon, "model_fell_back");
    assert_eq!(fell_back, json!({"action": "model_fell_back", "model": "m", "version": 1, "to": "float"}));
}

#[test]
fn a_start_runs_the_first_golden_input_alone_while_nothing_has_changed() {
    let root = TestRoot::new()
        .model_as("identity_fp32", "m")
        .file("m/model.toml", "[[golden]]\nfile = \"first.json\"\n[[golden]]\nfile = \"second.json\"\n")
        .file("m/first.json", GOLDEN)
        .file("m/second.json", GOLDEN);
    let root = root.start_ready().kill();

    // Of the same size and time, so that only a run shows that it is wrong now.
    let path = root.model("m").join("second.json");
    let second = OpenOptions::new().write(true).open(&path).unwrap();
    let modified = second.metadata().unwrap().modified().unwrap();
    second.write_all_at(GOLDEN.replace("3, 4]}]}", "3, 5]}]}").as_bytes(), 0).unwrap();
    second.set_modified(modified).unwrap();
    let daemon = root.start_ready();
    assert_eq!(answer(&mut daemon.client()), json!([5.0, 6.0, 7.0, 8.0]));
    // A load on request runs all checks.
    let refused = daemon.client().post("/v2/repository/models/m/load", &[], b"");
    let reason = String::from_utf8(refused.body).unwrap();
    assert!(refused.status == 400 && reason.contains("second.json"), "{} {reason}", refused.status);

    let root = daemon.kill();
    second.set_modified(modified + Duration::from_secs(1)).unwrap();
    let daemon = root.start();
    let (state, reason) = daemon.client().state("m");
    assert_eq!(state, "UNAVAILABLE");
    assert!(reason.contains("second.json"), "{reason}");
}

#[test]
fn without_an_original_that_answers_right_a_model_that_answers_wrong_is_unavailable() {
    let another = model_file("log_nan");
    for (float, reasons) in [(None, 2), (Some(&another[..]), 4)] {
        let daemon = root("", float).start();
        let (state, reason) = daemon.client().state("m");
        assert_eq!(state, "UNAVAILABLE");
        assert_eq!(reason.matches("differs by 2.613706, more than 0.001").count(), reasons, "{reason}");
        // Some CPUs get advice, which names that file too.
        let tried = reason.split("; this CPU").next().unwrap();
        assert_eq!(tried.contains("model.float.onnx"), float.is_some(), "{reason}");
        let refused = audited(daemon, "model_refused");
        assert_eq!(refused, json!({"action": "model_refused", "model": "m", "version": 1, "cause": "golden"}));
    }
}

#[test]
fn only_a_wrong_answer_makes_way_for_the_original() {
    let float = model_file("identity_fp32");
    // The golden input cannot be read: nothing is known of the answer.
    let unread = root("", Some(&float));
    std::fs::remove_file(unread.model("m").join("golden.json")).unwrap();
    // No runtime takes the model at all.
    let refused =
        root("runtime = \"onnxruntime\"", Some(&float)).file("m/1/model.onnx", &model_file("ml_scaler")[..90]);
    for (root, words) in [(unread, "golden.json cannot be read"), (refused, "model.onnx")] {
        let daemon = root.start();
        let (state, reason) = daemon.client().state("m");
        assert!(state == "UNAVAILABLE" && reason.contains(words), "{state}: {reason}");
        assert_eq!(audited(daemon, "model_refused")["cause"], "load");
    }
}

#[test]
fn another_float_original_is_another_model() {
    let daemon = root("", Some(&model_file("identity_fp32"))).start();
    let client = &mut daemon.client();
    let put = |float: &str| write(&daemon.root.model("m").join("1/model.float.onnx"), &model_file(float));
    put("log_nan");
    let load = client.post_json("/v2/repository/models/m/load", &json!({}));
    assert_eq!(load.status, 400, "{load:?}");
    // The live version goes on.
    assert_eq!(answer(client), json!([5.0, 6.0, 7.0, 8.0]));
    // This one also returns its input.
    put("bad_at_runtime");
    daemon.signal("HUP");
    daemon.wait_for_event("repository.read");
    assert_eq!(answer(client), json!([5.0, 6.0, 7.0, 8.0]));
    let loads = daemon.events("model.loaded").len();
    assert_eq!(loads, 2, "the changed file was not loaded");
}

#[test]
fn a_photograph_is_compared_with_the_answer_of_the_float_model() {
    let text = std::fs::read(model_folder("efficientnet_lite0").join("golden/coffee.json")).unwrap();
    let mut expected: Value = serde_json::from_slice(&text).unwrap();
    for runtime in ["onnxruntime", "openvino"] {
        let config = std::fs::read_to_string(model_folder("efficientnet_lite0").join("model.toml")).unwrap();
        let pinned = config.replace("runtime = \"auto\"", &format!("runtime = \"{runtime}\""));
        let start = |config: &str, expected: &Value| {
            let root = TestRoot::new().models(&["efficientnet_lite0"]).file("efficientnet_lite0/model.toml", config);
            let daemon = root.file("efficientnet_lite0/golden/coffee.json", expected.to_string()).start();
            daemon.client().state("efficientnet_lite0")
        };
        assert_eq!(start(&pinned, &expected).0, "READY");
        // A tenth of its length is what int8 costs, so half of that is too little.
        let strict = pinned.replace("max_relative_error = 0.2", "max_relative_error = 0.05");
        let (state, reason) = start(&strict, &expected);
        assert_eq!(state, "UNAVAILABLE");
        assert!(
            reason.contains("golden input golden/coffee.png: output \"logits\" has a relative error of 0.1"),
            "{reason}"
        );
        expected["outputs"][0]["name"] = json!("scores");
        let (_, reason) = start(&pinned, &expected);
        assert!(reason.contains("output \"scores\" is not in the model"), "{reason}");
        expected["outputs"][0]["name"] = json!("logits");
    }
}
