//! Models of tables as scikit-learn, `XGBoost` and `LightGBM` export them load without hand work, and predict what the
//! library that trained them predicted: `tests/models/table_models.py` wrote them with golden rows.

use std::path::Path;

use serde_json::{Value, json};

use crate::daemon::{TestRoot, data};
use crate::table_golden::{MODELS, with_model};

#[test]
fn default_exports_of_table_models_predict_what_their_library_predicts() {
    let folders = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tables")).unwrap();
    assert_eq!(folders.count(), MODELS.len());
    let root = MODELS.iter().fold(TestRoot::new(), |root, name| with_model(root, name));
    let output = root.command(&["models", "check", "--json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let checked: Vec<_> = rows
        .iter()
        .filter(|row| row["runtime"] == "onnxruntime" && row["ok"] == true)
        .map(|row| row["model"].as_str().unwrap())
        .collect();
    assert_eq!(checked, MODELS, "{rows:#?}");
}

#[test]
fn maps_from_classes_to_scores_come_as_a_tensor_whose_columns_have_names() {
    let daemon = with_model(with_model(TestRoot::new(), "iris_forest"), "machine_condition").start();
    let client = &mut daemon.client();

    let golden: Value = serde_json::from_slice(&data("tables/machine_condition/golden/rows.json")).unwrap();
    let request = json!({"inputs": golden["inputs"]});
    let answer = client.post("/v2/models/machine_condition/infer", &[], request.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{answer:?}");
    let outputs = answer.json()["outputs"].clone();
    let labels = outputs.as_array().unwrap().iter().find(|output| output["name"] == "output_label").unwrap();
    assert_eq!((&labels["datatype"], &labels["data"]), (&json!("BYTES"), &golden["outputs"][0]["data"]));

    let best = json!({
        "inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [5.1, 3.5, 1.4, 0.2]}],
        "outputs": [{"name": "output_probability", "parameters": {"classification": 1}}],
    });
    let answer = client.post("/v2/models/iris_forest/infer", &[], best.to_string().as_bytes());
    assert_eq!(answer.json()["outputs"][0]["data"], json!(["1.000000:0:setosa"]), "{answer:?}");
}

#[test]
fn a_runtime_that_cannot_run_an_exported_model_says_so() {
    let root = with_model(TestRoot::new(), "iris_forest").file("iris_forest/model.toml", "runtime = 'openvino'");
    let output = root.command(&["models", "check"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!output.status.success() && text.contains("openvino"), "{text}");
    assert!(text.contains("ai.onnx.ml.ZipMap"), "{text}");
}

#[test]
fn a_pipeline_of_rows_is_proposed_and_answers_its_golden_rows() {
    let root = with_model(TestRoot::new(), "machine_condition");
    let checked = |root: &TestRoot| {
        let output = root.command(&["models", "check", "--json"]).output().unwrap();
        let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        rows.into_iter().find(|row| row["runtime"] == "onnxruntime").unwrap()
    };
    let table = checked(&root)["table"].as_str().unwrap().to_owned();
    assert!(table.contains(r#"{ name = "machine", type = "text" }"#), "{table}");

    let row = json!([{"temperature": 95, "vibration": "7.5", "hours": 8000, "machine": "saw", "shift": "night"}]);
    let golden = |label: &str| format!("{table}\n[[golden]]\nfile = 'row.json'\nlabel = '{label}'\nmin_score = 0.9\n");
    let root = root.file("machine_condition/row.json", row.to_string());
    let root = root.file("machine_condition/model.toml", golden("service"));
    let answered = checked(&root);
    assert_eq!((&answered["ok"], &answered["table"]), (&json!(true), &Value::Null), "{answered}");
    let root = root.file("machine_condition/model.toml", golden("ok"));
    let reason = checked(&root)["reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason.contains(r#"expected "ok", got "service""#), "{reason}");
}
