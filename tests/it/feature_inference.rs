//! A model that is called with only entity keys: its features come from the feature store of the box.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot, setup_root};

/// Two views of one entity: values of the laboratory, and values of the cellar, which expire.
pub const VIEWS: &str = r#"
[[entity]]
name = "wine"
join_key = "wine_id"
value_type = "String"

[[feature_view]]
name = "lab"
entities = ["wine"]
schema = [
  { name = "alcohol", dtype = "Float64" }, { name = "malic_acid", dtype = "Float64" },
  { name = "ash", dtype = "Float32" }, { name = "alcalinity", dtype = "Float64" },
  { name = "magnesium", dtype = "Int64" }, { name = "phenols", dtype = "Float64" },
  { name = "flavanoids", dtype = "Float64" }, { name = "nonflavanoids", dtype = "Float64" },
  { name = "proanthocyanins", dtype = "Float64" },
]
source = { name = "lab_push", timestamp_field = "event_timestamp" }

[[feature_view]]
name = "cellar"
entities = ["wine"]
ttl = "1h"
schema = [{ name = "colour", dtype = "Array(Float32)" }, { name = "proline", dtype = "Int64", optional = true }]
source = { name = "cellar_push", timestamp_field = "event_timestamp" }
"#;

const LAB: [&str; 9] = [
    "alcohol",
    "malic_acid",
    "ash",
    "alcalinity",
    "magnesium",
    "phenols",
    "flavanoids",
    "nonflavanoids",
    "proanthocyanins",
];

/// The rows of the model's golden input that are known to be of the first and of the third cultivar.
pub const FIRST: [f64; 13] = [14.37, 1.95, 2.5, 16.8, 113.0, 3.85, 3.49, 0.24, 2.18, 7.8, 0.86, 3.45, 1480.0];
const THIRD: [f64; 13] = [12.87, 4.61, 2.48, 21.5, 86.0, 1.7, 0.65, 0.47, 0.86, 7.65, 0.54, 1.86, 625.0];

pub const MODEL: &str = "/v2/models/wine_mlp/infer";

/// The model config. Its last feature has these policies, after those of the model.
pub fn config(of_model: &str, of_proline: &str) -> String {
    let lab: Vec<String> = LAB.iter().map(|name| format!("\"lab:{name}\"")).collect();
    format!(
        "max_batch_size = 64\n{of_model}\n[[input]]\nname = \"features\"\nfeatures = [{}, \"cellar:colour\", \
         {{ feature = \"cellar:proline\"{of_proline} }}]\n",
        lab.join(", ")
    )
}

fn start(config: &str) -> TestDaemon {
    TestRoot::new().models(&["wine_mlp"]).file("wine_mlp/model.toml", config).views(VIEWS).start()
}

fn push(client: &mut Client, source: &str, df: &Value) {
    let answer = client.post_json("/push", &json!({"push_source_name": source, "df": df, "to": "online"}));
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// The value for a column of integers.
fn whole(value: f64) -> i64 {
    format!("{value:.0}").parse().unwrap()
}

/// Pushes a wine in both views, as of now.
fn push_wine(client: &mut Client, id: &str, wine: &[f64; 13]) {
    push_lab(client, id, wine);
    push(client, "cellar_push", &json!({"wine_id": [id], "colour": [wine[9..12]], "proline": [whole(wine[12])]}));
}

fn push_lab(client: &mut Client, id: &str, wine: &[f64; 13]) {
    let mut df = json!({"wine_id": [id]});
    for (name, value) in LAB.iter().zip(wine) {
        df[name] = if *name == "magnesium" { json!([whole(*value)]) } else { json!([value]) };
    }
    push(client, "lab_push", &df);
}

pub fn request(ids: &[&str]) -> Value {
    json!({"entities": {"wine_id": ids}, "parameters": {"feature_values": true}})
}

/// The model's answer to rows that are sent whole.
fn probabilities(client: &mut Client, rows: &[[f64; 13]]) -> Value {
    let data = rows.concat();
    let input = json!({"name": "features", "datatype": "FP32", "shape": [rows.len(), 13], "data": data});
    client.post_json(MODEL, &json!({"inputs": [input]})).json()["outputs"].clone()
}

#[test]
fn a_model_is_called_with_entity_keys_alone() {
    let daemon = start(&config("", ""));
    let client = &mut daemon.client();
    push_wine(client, "barolo", &FIRST);
    push_wine(client, "dolcetto", &THIRD);
    let answer = client.post_json(MODEL, &json!({"entities": {"wine_id": ["barolo"]}})).json();
    assert_eq!(answer["outputs"], probabilities(client, &[FIRST]), "{answer}");
    assert_eq!(answer["features"], Value::Null, "nobody asked for them");
    // Two rows, in the order asked for, and with an empty list of inputs.
    let mut two = request(&["dolcetto", "barolo"]);
    two["inputs"] = json!([]);
    let answer = client.post_json(MODEL, &two).json();
    assert_eq!(answer["outputs"], probabilities(client, &[THIRD, FIRST]), "{answer}");
    let used = &answer["features"];
    assert_eq!(used.as_object().unwrap().len(), 11, "{used}");
    assert_eq!(used["lab:magnesium"]["values"], json!([86, 113]));
    assert_eq!(used["cellar:colour"]["values"][1], json!([7.8, 0.86, 3.45]));
    assert_eq!(used["lab:ash"]["statuses"], json!(["PRESENT", "PRESENT"]));
    assert_eq!(used["lab:ash"]["sources"], json!(["store", "store"]));
    assert!(used["lab:ash"]["event_timestamps"][0].as_str().unwrap().starts_with("20"), "{used}");
    // An input that is sent whole is not looked up, for any entity.
    let input = json!({"name": "features", "datatype": "FP32", "shape": [1, 13], "data": THIRD});
    let answer = client.post_json(MODEL, &json!({"inputs": [input], "entities": {"wine_id": ["nobody"]}})).json();
    assert_eq!(answer["outputs"], probabilities(client, &[THIRD]), "{answer}");
}

#[test]
fn values_that_the_caller_gives_count_in_the_place_of_the_stored_ones() {
    let daemon = start(&config("", ""));
    let client = &mut daemon.client();
    push_lab(client, "barolo", &FIRST);
    let mut given = request(&["barolo"]);
    given["features"] = json!({"cellar:colour": [THIRD[9..12]], "cellar:proline": [625]});
    let answer = client.post_json(MODEL, &given).json();
    let mut mixed = FIRST;
    mixed[9..].copy_from_slice(&THIRD[9..]);
    assert_eq!(answer["outputs"], probabilities(client, &[mixed]), "{answer}");
    assert_eq!(
        answer["features"]["cellar:proline"],
        json!({"values": [625], "statuses": ["PRESENT"],
        "event_timestamps": ["1970-01-01T00:00:00Z"], "sources": ["given"]})
    );
    // With all of them given, no entity is needed.
    let mut all = json!({"cellar:colour": [THIRD[9..12]], "cellar:proline": [625]});
    for (name, value) in LAB.iter().zip(THIRD) {
        all[format!("lab:{name}")] = json!([value]);
    }
    let answer = client.post_json(MODEL, &json!({"features": all})).json();
    assert_eq!(answer["outputs"], probabilities(client, &[THIRD]), "{answer}");
}

#[test]
fn each_policy_does_for_each_status_what_it_says() {
    let policies = |policy: &str| {
        ["not_found", "null_value", "outside_max_age"].map(|status| format!(", {status} = {policy}")).concat()
    };
    let statuses = [("lost", "NOT_FOUND"), ("blank", "NULL_VALUE"), ("old", "OUTSIDE_MAX_AGE")];
    let prepare = |client: &mut Client| {
        for (id, _) in statuses {
            push_lab(client, id, &FIRST);
        }
        let colour = &FIRST[9..12];
        push(client, "cellar_push", &json!({"wine_id": ["blank"], "colour": [colour], "proline": [null]}));
        let old = json!({"wine_id": ["old"], "colour": [colour], "proline": [1], "event_timestamp": ["2020-01-01T00:00:00Z"]});
        push(client, "cellar_push", &old);
    };
    let with_colour = |id: &str| {
        let mut request = request(&[id]);
        request["features"] = json!({"cellar:colour": [FIRST[9..12]]});
        request
    };

    let daemon = start(&config("", ""));
    let client = &mut daemon.client();
    prepare(client);
    for (id, status) in statuses {
        let answer = client.post_json(MODEL, &with_colour(id));
        assert_eq!(answer.status, 422, "{answer:?}");
        let error = answer.error();
        assert!(error.contains("cellar:proline") && error.contains(status), "{error}");
    }

    let daemon = start(&config("", &policies("{ default = 1480 }")));
    let client = &mut daemon.client();
    prepare(client);
    let expected = probabilities(client, &[FIRST]);
    for (id, status) in statuses {
        let answer = client.post_json(MODEL, &with_colour(id)).json();
        assert_eq!(answer["outputs"], expected, "{answer}");
        let proline = &answer["features"]["cellar:proline"];
        assert_eq!(proline["values"], json!([1480]));
        assert_eq!((&proline["statuses"], &proline["sources"]), (&json!([status]), &json!(["default"])), "{proline}");
    }

    // The setting of the model applies where the feature has none.
    let of_model = "[features]\nnot_found = \"nan\"\nnull_value = \"nan\"\noutside_max_age = \"nan\"\n";
    let daemon = start(&config(of_model, ", null_value = \"refuse\""));
    let client = &mut daemon.client();
    prepare(client);
    for (id, status) in statuses {
        let mut request = with_colour(id);
        request["parameters"]["binary_data_output"] = json!(true);
        let answer = client.post_json(MODEL, &request);
        if status == "NULL_VALUE" {
            assert_eq!(answer.status, 422, "{answer:?}");
            continue;
        }
        assert_eq!(answer.status, 200, "{answer:?}");
        let length: usize = answer.header("inference-header-content-length").unwrap().parse().unwrap();
        let json: Value = serde_json::from_slice(&answer.body[..length]).unwrap();
        let proline = &json["features"]["cellar:proline"];
        assert_eq!((&proline["values"], &proline["sources"]), (&json!([null]), &json!(["nan"])), "{json}");
    }
}

#[test]
fn a_call_that_cannot_be_looked_up_is_told_why() {
    let daemon = start(&config("", ""));
    let client = &mut daemon.client();
    push_wine(client, "barolo", &FIRST);
    for (request, status, words) in [
        (json!({"inputs": []}), 400, &["'wine_id'", "\"entities\": {\"wine_id\": [...]}"][..]),
        (json!({"entities": {"wine": ["barolo"]}}), 400, &["'wine_id'"]),
        (json!({"entities": {"wine_id": []}}), 400, &["'wine_id'", "empty"]),
        (json!({"entities": {"wine_id": [7.5]}}), 400, &["wine_id", "row 0"]),
        (json!({"entities": {"wine_id": "barolo"}}), 400, &["'entities'"]),
        (json!({"entities": {"wine_id": ["a"]}, "features": {"lab:ask": [1]}}), 400, &["'lab:ask'"]),
        (json!({"entities": {"wine_id": ["a"]}, "features": {"lab:ash": [1, 2]}}), 400, &["'lab:ash'", "2 elements"]),
        (json!({"entities": {"wine_id": ["a"]}, "features": {"lab:ash": ["much"]}}), 400, &["'lab:ash'", "row 0"]),
        (json!({"entities": {"wine_id": ["barolo", "a"]}}), 422, &["'lab:alcohol'", "NOT_FOUND", "row 1"]),
        (json!({"entities": {"wine_id": vec!["barolo"; 65]}}), 400, &["batch-size"]),
    ] {
        let answer = client.post_json(MODEL, &request);
        let error = answer.error();
        assert_eq!(answer.status, status, "{request}: {error}");
        assert!(words.iter().all(|word| error.contains(word)), "{request}: {error}");
    }
    let stats = client.get("/v2/models/wine_mlp/stats").json();
    assert_eq!(stats["model_stats"][0]["inference_stats"]["fail"]["count"], 9, "each but the one that was no request");
}

#[test]
fn a_model_without_features_takes_none_and_one_whose_views_come_later_loads() {
    let plain = TestRoot::new().models(&["wine_mlp"]).start();
    let answer = plain.client().post_json(MODEL, &request(&["barolo"]));
    assert!(answer.status == 400 && answer.error().contains("'wine_mlp'"), "{answer:?}");

    let early = TestRoot::new().models(&["wine_mlp"]).file("wine_mlp/model.toml", config("", "")).start_unready();
    let warning = early.wait_for_event("model.features_undeclared");
    early.wait_for_event_since_start("daemon.ready");
    assert_eq!((warning["level"].as_str(), warning["model"].as_str()), (Some("WARN"), Some("wine_mlp")), "{warning}");
    let client = &mut early.client();
    let answer = client.post_json(MODEL, &request(&["barolo"]));
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.error().contains("lab"), "{answer:?}");
    assert_eq!(probabilities(client, &[FIRST])[0]["shape"], json!([1, 3]), "sent whole it runs");
}

#[test]
fn a_push_changes_the_kept_answer_at_once() {
    let cached = format!("{}\n[response_cache]\nenable = true\n", config("", ""));
    let daemon = start(&cached);
    let client = &mut daemon.client();
    push_wine(client, "barolo", &FIRST);
    let ask = |client: &mut Client| {
        let answer = client.post_json(MODEL, &request(&["barolo"]));
        (answer.header("x-ledge-cache").unwrap().to_owned(), answer.json()["outputs"].clone())
    };
    let (outcome, first) = ask(client);
    assert_eq!(outcome, "miss");
    assert_eq!(ask(client), ("hit".to_owned(), first.clone()));
    push_wine(client, "barolo", &THIRD);
    let (outcome, third) = ask(client);
    assert_eq!(outcome, "miss");
    assert_ne!(third, first);
}

#[test]
fn the_official_tritonclient_sends_join_keys_as_tensors() {
    let daemon = start(&config("", ""));
    let client = &mut daemon.client();
    push_wine(client, "barolo", &FIRST);
    push_wine(client, "dolcetto", &THIRD);
    let metadata = client.get("/v2/models/wine_mlp").json();
    assert_eq!(metadata["inputs"].as_array().unwrap().len(), 1, "{metadata}");
    assert_eq!(metadata["properties"]["join_keys"], "wine_id", "{metadata}");
    let features = metadata["properties"]["features.features"].as_str().unwrap();
    assert!(features.starts_with("lab:alcohol,") && features.ends_with(",cellar:proline"), "{features}");
    let expected = probabilities(client, &[FIRST, THIRD])[0]["data"].to_string();
    let output = Command::new("python3")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/triton_entities.py"))
        .args([&daemon.address.to_string(), &expected])
        .env("PYTHONPATH", setup_root().join("tools/python-test"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.trim() == "ok", "{out}{err}");
}
