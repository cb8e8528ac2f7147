//! Numbers that a runtime computes wrong get the right answer from the other one, or an error.

use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::daemon::{TestDaemon, TestRoot, data};

/// Models of one operator with the operands `a` and `b`, in one runtime or in the one that is chosen.
fn serving(runtime: &str, models: &[&str]) -> TestDaemon {
    let config = format!("runtime = \"{runtime}\"\nmax_batch_size = 0\n");
    let mut root = TestRoot::new();
    for model in models {
        let files = match model.rsplit_once('_') {
            Some((_, "ir")) => &["model.xml", "model.bin"][..],
            Some((_, "tflite")) => &["model.tflite"],
            _ => &["model.onnx"],
        };
        root = root.file(&format!("{model}/model.toml"), &config);
        for file in files {
            root = root.file(&format!("{model}/1/{file}"), data(&format!("values/{model}/1/{file}")));
        }
    }
    root.start()
}

fn ask(client: &mut Client, model: &str, datatype: &str, [a, b]: [Value; 2]) -> Response {
    let input = |name: &str, data: Value| json!({"name": name, "datatype": datatype, "shape": [data.as_array().unwrap().len()], "data": data});
    client.post_json(&format!("/v2/models/{model}/infer"), &json!({"inputs": [input("a", a), input("b", b)]}))
}

#[track_caller]
fn answers(response: &Response, expected: &Value) {
    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(response.json()["outputs"][0]["data"], *expected, "{response:?}");
}

#[track_caller]
fn refused(response: &Response, words: &str) {
    assert!(response.status == 400 && response.error().contains(words), "{response:?}");
}

#[test]
fn models_that_openvino_computes_wrong_are_for_onnx_runtime() {
    let models = ["equal", "product", "sum_fp64"];
    let daemon = serving("auto", &models);
    let client = &mut daemon.client();
    let million = |factor: i64| json!([2_000_000_000_i64 * factor, 7]);
    answers(&ask(client, "equal", "INT64", [million(1), json!([2_000_000_001, 7])]), &json!([false, true]));
    answers(&ask(client, "equal", "INT64", [million(1_000_000), million(1_000_000)]), &json!([true, true]));
    answers(
        &ask(client, "product", "INT64", [json!([65_536, -3]), json!([65_536, 5])]),
        &json!([4_294_967_296_i64, -15]),
    );
    answers(&ask(client, "sum_fp64", "FP64", [json!([0.1, 1e10]), json!([0.2, 0.1])]), &json!([0.1 + 0.2, 1e10 + 0.1]));

    let daemon = serving("openvino", &models);
    let reasons = [
        ["Equal", "INT64 right only up to 24 bits"],
        ["Mul", "INT64 right only up to 31"],
        ["Add", "precision of FP32"],
    ];
    for (model, words) in models.into_iter().zip(reasons) {
        let reason = daemon.client().refusal(model);
        let words = [&words[..], &["set runtime = \"onnxruntime\" in model.toml"]].concat();
        assert!(words.iter().all(|word| reason.contains(word)), "{model}: {reason}");
    }
}

#[test]
fn a_call_beyond_the_numbers_that_its_only_runtime_computes_right_is_refused() {
    let daemon = serving("auto", &["equal_ir", "quotient_ir", "remainder_tflite", "sum_fp64_ir", "maximum"]);
    let client = &mut daemon.client();
    let near = || [json!([16_777_215]), json!([16_777_214])];
    let far = || [json!([2_000_000_000]), json!([2_000_000_001])];
    answers(&ask(client, "equal_ir", "INT32", near()), &json!([false]));
    refused(&ask(client, "equal_ir", "INT32", far()), "right only up to 16777215");
    answers(&ask(client, "quotient_ir", "INT64", [json!([-16_777_215]), json!([5])]), &json!([-3_355_443]));
    refused(&ask(client, "quotient_ir", "INT64", far()), "right only up to 16777215");
    answers(&ask(client, "remainder_tflite", "INT32", [json!([-7]), json!([5])]), &json!([3]));
    refused(&ask(client, "remainder_tflite", "INT32", far()), "right only up to");
    let reason = client.refusal("sum_fp64_ir");
    assert!(reason.contains("FP64") && reason.contains("export the model to ONNX"), "{reason}");

    // Of two integers of 64 bits ONNX Runtime compares the lower halves.
    let pair = |number: i64| json!([number, number]);
    answers(&ask(client, "maximum", "INT64", [pair(32_767), pair(i32::MAX.into())]), &pair(i32::MAX.into()));
    refused(
        &ask(client, "maximum", "INT64", [pair(32_767), pair(u32::MAX.into())]),
        "ONNX Runtime computes this model right only up to 2147483647",
    );
}
