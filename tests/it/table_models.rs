//! Models of tables as scikit-learn, `XGBoost` and `LightGBM` export them load without hand work, and predict what the
//! library that trained them predicted: `tests/models/table_models.py` wrote them with golden rows.

use std::path::Path;

use serde_json::{Value, json};

use crate::client::Client;
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

#[test]
fn the_export_that_ships_answers_with_its_own_section_and_with_the_proposed_one() {
    const GOLDEN: &str = "[[golden]]\nfile = \"golden/rows.json\"\n";
    let root = TestRoot::new().models(&["bike_demand"]).file("bike_demand/model.toml", GOLDEN);
    let output = root.command(&["models", "check", "--json"]).output().unwrap();
    let checked: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let proposed = checked.iter().find_map(|row| row["table"].as_str()).unwrap_or_else(|| panic!("{checked:#?}"));
    for column in [
        r#"{ name = "month", type = "text" }"#,
        r#"{ name = "hour", type = "integer" }"#,
        r#"{ name = "day_off", type = "boolean" }"#,
        r#"{ name = "wind", type = "number" }"#,
    ] {
        assert!(proposed.contains(column), "{proposed}");
    }
    let openvino = checked.iter().find(|row| row["runtime"] == "openvino").unwrap();
    assert!(openvino["ok"] == false && openvino["reason"].to_string().contains("ai.onnx.ml"), "{openvino}");

    let row = json!({"month": "Jul", "weekday": "Fri", "weather": "clear", "hour": "17", "day_off": "false",
                     "temperature": 29, "humidity": 48, "wind": 13});
    let ask = |client: &mut Client, row: &Value| {
        let answer = client.post_json("/v2/models/bike_demand/infer", row);
        (answer.status, answer.json())
    };
    let near = |answer: &Value, expected: f64| {
        let value = answer["rows"][0]["values"][0].as_f64().unwrap_or_else(|| panic!("{answer}"));
        assert!((value - expected).abs() < 0.01, "{value} is not {expected}");
    };
    let daemon = root.file("bike_demand/model.toml", format!("{proposed}{GOLDEN}")).start();
    let (status, answer) = ask(&mut daemon.client(), &row);
    assert_eq!(status, 200, "{answer}");
    near(&answer, 548.401);
    drop(daemon);

    // Its own section names the categories, and has a rule for missing values.
    let daemon = TestRoot::new().models(&["bike_demand"]).start();
    let client = &mut daemon.client();
    near(&ask(client, &row).1, 548.401);
    let with = |name: &str, value: Value| {
        let mut row = row.clone();
        row[name] = value;
        row
    };
    let rain =
        json!({"month": "Jul", "weekday": "Fri", "weather": "rain", "hour": 17, "day_off": false, "temperature": 24});
    near(&ask(client, &rain).1, 497.851);
    for (name, value, reason) in [
        ("weather", json!("sleet"), "row 0: column \"weather\" is \"sleet\""),
        ("hour", json!(17.5), "row 0: column \"hour\""),
        ("day_off", json!(null), "row 0: column \"day_off\""),
    ] {
        let (status, answer) = ask(client, &with(name, value));
        assert!(status == 400 && answer["error"].as_str().unwrap().starts_with(reason), "{answer}");
    }
}
