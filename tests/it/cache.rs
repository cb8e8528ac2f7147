//! The response cache never gives a stale or foreign answer, and computes equal requests once.

use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::daemon::{TestRoot, copy, data, model_folder};

const ON: &str = "[response_cache]\nenable = true\n";

fn cached(names: &[&str]) -> TestRoot {
    names.iter().fold(TestRoot::new().models(names), |root, name| root.file(&format!("{name}/model.toml"), ON))
}

fn tensor(name: &str, datatype: &str, shape: &[usize], data: &[f64]) -> Value {
    json!({"name": name, "datatype": datatype, "shape": shape, "data": data})
}

fn path(model: &str) -> String {
    format!("/v2/models/{model}/infer")
}

#[track_caller]
fn outcome(answer: &Response) -> &str {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.header("x-ledge-cache").expect("the header of a model with a cache")
}

fn counts(client: &mut Client, model: &str) -> (u64, u64) {
    let stats = client.get(&format!("/v2/models/{model}/stats")).json()["model_stats"][0].clone();
    (stats["execution_count"].as_u64().unwrap(), stats["inference_stats"]["success"]["count"].as_u64().unwrap())
}

#[test]
fn an_equal_request_is_answered_from_the_cache_and_the_same() {
    let daemon = cached(&["add_sub"]).models(&["dynamic_sum"]).start();
    let client = &mut daemon.client();
    let row = [1.5; 16];
    let inputs = [tensor("INPUT0", "FP32", &[1, 16], &row), tensor("INPUT1", "FP32", &[1, 16], &row)];
    let reversed = json!([inputs[1], inputs[0]]);
    let first = client.post_json(&path("add_sub"), &json!({"id": "a", "inputs": inputs}));
    assert_eq!(outcome(&first), "miss");
    // Neither the id, nor the order of the inputs, nor other details that do not change the tensors make it a different
    // request.
    let again = json!({"id": "a", "inputs": reversed, "parameters": {"timeout": 20_000_000, "priority": 2}});
    let second = client.post_json(&path("add_sub"), &again);
    assert_eq!((outcome(&second), &second.body), ("hit", &first.body));
    let outputs = json!([{"name": "OUTPUT0", "parameters": {"binary_data": true}}, {"name": "OUTPUT1"}]);
    let binary = client.post_json(&path("add_sub"), &json!({"inputs": inputs, "outputs": outputs}));
    assert_eq!(outcome(&binary), "hit");
    assert!(binary.body.ends_with(&3.0_f32.to_le_bytes().repeat(16)));
    assert_eq!(counts(client, "add_sub"), (1, 3), "hits succeed and do not run the model");
    let off = client.post_json(&path("dynamic_sum"), &json!({"inputs": [tensor("IN", "FP32", &[1, 2], &[1.0, 2.0])]}));
    assert!(off.status == 200 && off.header("x-ledge-cache").is_none(), "{off:?}");
}

#[test]
fn no_caller_learns_from_the_cache_what_another_has_asked() {
    let shared = format!("{ON}share = true\n");
    let root = cached(&["add_sub"]).model_as("add_sub", "shared").file("shared/model.toml", shared);
    let key = |name: &str| {
        let made = root.command(&["keys", "create", name, "--role", "infer"]).output().unwrap();
        format!("Bearer {}", String::from_utf8(made.stdout).unwrap().trim())
    };
    let (till, door) = (key("till"), key("door"));
    let daemon = root.start();
    let row = [1.5; 16];
    let inputs =
        json!({"inputs": [tensor("INPUT0", "FP32", &[1, 16], &row), tensor("INPUT1", "FP32", &[1, 16], &row)]});
    let ask = |model: &str, key: &str| {
        let body = inputs.to_string();
        let answer = daemon.client().post(&path(model), &[("authorization", key)], body.as_bytes());
        outcome(&answer).to_owned()
    };
    for (model, expected) in
        [("add_sub", ["miss", "hit", "miss", "hit", "hit"]), ("shared", ["miss", "hit", "hit", "hit", "hit"])]
    {
        assert_eq!([&till, &till, &door, &door, &till].map(|key| ask(model, key)), expected, "{model}");
    }
    let answer = daemon.client().post_json(&path("add_sub"), &inputs);
    assert_eq!(outcome(&answer), "miss", "loopback is a caller of its own");
}

#[test]
fn the_same_bytes_as_something_else_are_another_request() {
    let daemon = cached(&["dynamic_sum", "identity_fp32", "identity_int32", "identity_uint32", "add_sub"]).start();
    let client = &mut daemon.client();
    let mut ask = |model: &str, body: Value| {
        let answer = client.post_json(&path(model), &body);
        (outcome(&answer).to_owned(), answer.json()["outputs"].clone())
    };
    // Another shape.
    let data = [1.0, 2.0, 3.0, 4.0];
    for (shape, sums) in [([1, 4], json!([10.0])), ([2, 2], json!([3.0, 7.0])), ([4, 1], json!([1.0, 2.0, 3.0, 4.0]))] {
        let (outcome, outputs) = ask("dynamic_sum", json!({"inputs": [tensor("IN", "FP32", &shape, &data)]}));
        assert_eq!((outcome.as_str(), &outputs[0]["data"]), ("miss", &sums));
    }
    // Another model, another datatype.
    for (model, datatype) in [("identity_fp32", "FP32"), ("identity_int32", "INT32"), ("identity_uint32", "UINT32")] {
        let (outcome, outputs) = ask(
            model,
            json!({"inputs": [{"name": "IN", "datatype": datatype, "shape": [1, 4], "data": [0, 0, 0, 0]}]}),
        );
        assert_eq!((outcome.as_str(), &outputs[0]["datatype"]), ("miss", &json!(datatype)));
    }
    // Other inputs with the bytes changed about, other outputs, another order.
    let (ones, twos) = ([1.0; 16], [2.0; 16]);
    let inputs =
        |a: &[f64], b: &[f64]| json!([tensor("INPUT0", "FP32", &[1, 16], a), tensor("INPUT1", "FP32", &[1, 16], b)]);
    let named = |names: &[&str]| json!(names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>());
    let cases = [
        (json!({"inputs": inputs(&ones, &twos)}), "miss", json!(["OUTPUT0", "OUTPUT1"]), 3.0),
        (json!({"inputs": inputs(&twos, &ones)}), "miss", json!(["OUTPUT0", "OUTPUT1"]), 3.0),
        (json!({"inputs": inputs(&twos, &ones), "outputs": named(&["OUTPUT1"])}), "miss", json!(["OUTPUT1"]), 1.0),
        (json!({"inputs": inputs(&twos, &ones), "outputs": named(&["OUTPUT0"])}), "miss", json!(["OUTPUT0"]), 3.0),
        (
            json!({"inputs": inputs(&twos, &ones), "outputs": named(&["OUTPUT1", "OUTPUT0"])}),
            "miss",
            json!(["OUTPUT1", "OUTPUT0"]),
            1.0,
        ),
        (
            json!({"inputs": inputs(&twos, &ones), "outputs": named(&["OUTPUT0", "OUTPUT1"])}),
            "hit",
            json!(["OUTPUT0", "OUTPUT1"]),
            3.0,
        ),
        (json!({"inputs": inputs(&ones, &twos), "outputs": named(&["OUTPUT1"])}), "miss", json!(["OUTPUT1"]), -1.0),
    ];
    for (body, expected, names, first) in cases {
        let (outcome, outputs) = ask("add_sub", body);
        let got: Vec<_> = outputs.as_array().unwrap().iter().map(|output| output["name"].clone()).collect();
        assert_eq!((outcome.as_str(), json!(got), &outputs[0]["data"][0]), (expected, names, &json!(first)));
    }
    // Classes are made of the kept tensor, which stays a tensor.
    let classes = |n: u32| json!([{"name": "OUTPUT1", "parameters": {"classification": n}}]);
    for (outputs, shape) in
        [(classes(2), json!([1, 2])), (classes(3), json!([1, 3])), (named(&["OUTPUT1"]), json!([1, 16]))]
    {
        let (outcome, outputs) = ask("add_sub", json!({"inputs": inputs(&ones, &twos), "outputs": outputs}));
        assert_eq!((outcome.as_str(), &outputs[0]["shape"]), ("hit", &shape));
    }
}

#[test]
fn versions_and_reloads_never_share_answers() {
    let both = format!("version_policy = \"all\"\n{ON}");
    let root = TestRoot::new().model_as("identity_fp32", "m").file("m/model.toml", both);
    copy(&model_folder("log_nan").join("1"), &root.model("m").join("2"));
    let daemon = root.start();
    let client = &mut daemon.client();
    let body = json!({"inputs": [tensor("IN", "FP32", &[1, 4], &[1.0; 4])]});
    let mut ask = |version: u32| {
        let answer = client.post_json(&format!("/v2/models/m/versions/{version}/infer"), &body);
        (outcome(&answer).to_owned(), answer.json()["outputs"][0]["data"][0].as_f64().unwrap())
    };
    assert_eq!([ask(1), ask(2), ask(1), ask(2)], [("miss", 1.0), ("miss", 0.0), ("hit", 1.0), ("hit", 0.0)].map(own));
    // New weights under the same name and version.
    copy(&model_folder("log_nan").join("1"), &daemon.root.model("m").join("1"));
    assert_eq!(daemon.client().post("/v2/repository/models/m/load", &[], b"").status, 200);
    assert_eq!([ask(1), ask(1)], [("miss", 0.0), ("hit", 0.0)].map(own));
}

fn own((outcome, value): (&str, f64)) -> (String, f64) {
    (outcome.to_owned(), value)
}

fn send(client: &mut Client, body: &Value) {
    let body = body.to_string();
    let head = format!("POST {} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", path("slow"), body.len());
    client.send(format!("{head}{body}").as_bytes());
}

fn slow(value: f64) -> Value {
    json!({"inputs": [tensor("IN", "FP32", &[1, 16], &[value; 16])]})
}

#[test]
fn sixteen_equal_requests_at_once_run_the_model_once() {
    let daemon = cached(&["slow"]).start();
    let mut clients: Vec<Client> = (0..16).map(|_| daemon.client()).collect();
    for client in &mut clients {
        send(client, &slow(3.0));
    }
    let mut outcomes: Vec<String> = Vec::new();
    for client in &mut clients {
        let answer = client.receive();
        outcomes.push(outcome(&answer).to_owned());
        assert_eq!(answer.json()["outputs"][0]["data"], json!(vec![3.0; 16]));
    }
    assert_eq!(outcomes.iter().filter(|outcome| *outcome == "miss").count(), 1, "{outcomes:?}");
    assert_eq!(counts(&mut daemon.client(), "slow"), (1, 16));
}

#[test]
fn one_who_hangs_up_does_not_fail_the_others_who_ask_the_same() {
    let daemon = cached(&["slow"]).start();
    for round in 0..8 {
        let (mut leaves, mut stays, mut other) = (daemon.client(), daemon.client(), daemon.client());
        for client in [&mut leaves, &mut stays, &mut other] {
            send(client, &slow(f64::from(round)));
        }
        drop(leaves);
        for client in [&mut stays, &mut other] {
            assert_eq!(client.receive().json()["outputs"][0]["data"][15], json!(f64::from(round)));
        }
    }
}

#[test]
fn one_who_joins_keeps_a_deadline_of_its_own() {
    let daemon = cached(&["slow"]).start();
    let (mut first, mut hasty) = (daemon.client(), daemon.client());
    send(&mut first, &slow(1.0));
    let mut request = slow(1.0);
    request["parameters"] = json!({"timeout": 1});
    send(&mut hasty, &request);
    assert_eq!(hasty.receive().status, 504);
    assert_eq!(first.receive().status, 200);
}

#[test]
fn errors_are_not_kept() {
    let daemon = cached(&["bad_at_runtime"]).start();
    let client = &mut daemon.client();
    for _ in 0..2 {
        let answer =
            client.post_json(&path("bad_at_runtime"), &json!({"inputs": [tensor("IN", "FP32", &[1, 4], &[-1.0; 4])]}));
        assert_eq!(answer.status, 500, "{answer:?}");
        assert!(answer.header("x-ledge-cache").is_none());
    }
}

#[test]
fn a_photograph_is_kept_by_its_bytes() {
    let text =
        String::from_utf8(std::fs::read(model_folder("efficientnet_lite0").join("model.toml")).unwrap()).unwrap();
    let daemon =
        TestRoot::new().models(&["efficientnet_lite0"]).file("efficientnet_lite0/model.toml", text + "\n" + ON).start();
    let client = &mut daemon.client();
    let (model, coffee) = (path("efficientnet_lite0"), data("photos/coffee.png"));
    let mut ask = |photograph: &[u8]| client.post(&model, &[("content-type", "image/png")], photograph);
    let (first, second) = (ask(&coffee), ask(&coffee));
    assert_eq!((outcome(&first), outcome(&second)), ("miss", "hit"));
    assert_eq!(first.json()["labels"], second.json()["labels"]);
    assert_eq!(second.json()["time_ms"]["decode"], 0.0, "a hit decodes nothing");
    // Bytes behind the image's end make another photograph.
    assert_eq!(outcome(&ask(&[&coffee[..], b"\0"].concat())), "miss");
}

#[test]
fn a_daemon_without_bytes_for_it_keeps_nothing() {
    let daemon = cached(&["dynamic_sum"]).set("response_cache.max_bytes=0").start();
    let client = &mut daemon.client();
    for _ in 0..2 {
        let body = json!({"inputs": [tensor("IN", "FP32", &[1, 2], &[1.0, 2.0])]});
        let answer = client.post_json(&path("dynamic_sum"), &body);
        assert!(answer.status == 200 && answer.header("x-ledge-cache").is_none(), "{answer:?}");
    }
    assert_eq!(counts(client, "dynamic_sum"), (2, 2));
}
