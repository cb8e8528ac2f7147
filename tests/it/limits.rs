//! Priorities, deadlines, quotas and windows: who is answered, who is told to come back, and when.

use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::daemon::{TestRoot, data};

const PHOTOGRAPH: (&str, &str) = ("content-type", "image/png");

fn row(model: &str) -> (String, String) {
    let inputs = if model == "add_sub" { vec!["INPUT0", "INPUT1"] } else { vec!["IN"] };
    let tensor = |name: &&str| json!({"name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![1.0; 16]});
    let inputs: Vec<Value> = inputs.iter().map(tensor).collect();
    (format!("/v2/models/{model}/infer"), json!({"inputs": inputs}).to_string())
}

fn ask(client: &mut Client, model: &str, headers: &[(&str, &str)]) -> Response {
    let (path, body) = row(model);
    client.post(&path, headers, body.as_bytes())
}

#[test]
fn a_timeout_header_holds_for_every_kind_of_body_and_the_shorter_one_wins() {
    let daemon = TestRoot::new().models(&["slow", "efficientnet_lite0"]).start();
    let client = &mut daemon.client();
    let hasty = ("x-ledge-timeout-ms", "1");
    let (path, body) = row("slow");
    let raw = 1.0_f32.to_le_bytes().repeat(16);
    let mut long = serde_json::from_str::<Value>(&body).unwrap();
    long["parameters"] = json!({"timeout": 20_000_000});
    for (headers, body) in [
        (vec![hasty], body.as_bytes()),
        (vec![hasty], long.to_string().as_bytes()),
        (vec![hasty, ("inference-header-content-length", "0")], &raw[..]),
    ] {
        let answer = client.post(&path, &headers, body);
        assert!(answer.status == 504 && answer.error().contains("Request timeout expired"), "{answer:?}");
    }
    let photograph = data("photos/coffee.png");
    let answer = client.post("/v2/models/efficientnet_lite0/infer", &[PHOTOGRAPH, hasty], &photograph);
    assert_eq!(answer.status, 504, "{answer:?}");
    long["parameters"] = json!({"timeout": 1});
    let patient = ("x-ledge-timeout-ms", "20000");
    assert_eq!(client.post(&path, &[patient], long.to_string().as_bytes()).status, 504);
    assert_eq!(client.post(&path, &[patient], body.as_bytes()).status, 200);
}

#[test]
fn a_bad_header_is_named() {
    let daemon = TestRoot::new().models(&["add_sub", "efficientnet_lite0"]).start();
    let client = &mut daemon.client();
    for (name, value) in [("x-ledge-priority", "urgent"), ("x-ledge-timeout-ms", "0"), ("x-ledge-timeout-ms", "1s")] {
        let answer = ask(client, "add_sub", &[(name, value)]);
        assert!(answer.status == 400 && answer.error().contains(name) && answer.error().contains(value), "{answer:?}");
        let photograph = client.post("/v2/models/efficientnet_lite0/infer", &[PHOTOGRAPH, (name, value)], b"x");
        assert!(photograph.status == 400 && photograph.error().contains(name), "{photograph:?}");
    }
    assert_eq!(ask(client, "add_sub", &[("x-ledge-priority", "2"), ("x-ledge-timeout-ms", "20000")]).status, 200);
}
