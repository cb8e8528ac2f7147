//! Calls that end the process of a model: only their inputs and their callers are refused.

use std::time::Duration;

use serde_json::{Value, json};

use crate::access::key;
use crate::client::{Client, Response};
use crate::daemon::{TestDaemon, TestRoot, write};
use crate::fault_rounds::{send_fault_with, wait_until};

const LIMIT: Duration = Duration::from_mins(1);

/// A model without golden inputs.
fn without_goldens(root: TestRoot) -> TestRoot {
    root.model_as("wine_mlp", "faulty").file("faulty/model.toml", "").set("runtimes.isolation=process")
}

/// A healthy call, with a key if there is one.
fn well(client: &mut Client, key: Option<&str>) -> Response {
    let input = json!({"name": "features", "datatype": "FP32", "shape": [1, 13], "data": vec![1.0; 13]});
    let body = json!({"inputs": [input]}).to_string();
    let headers: Vec<_> = key.into_iter().map(|key| ("x-api-key", key)).collect();
    client.post("/v2/models/faulty/infer", &headers, body.as_bytes())
}

fn row(client: &mut Client) -> Value {
    let rows = client.post("/v2/repository/index", &[], b"").json();
    rows.as_array().unwrap().iter().find(|row| row["name"] == "faulty").unwrap().clone()
}

/// Sends faults one after the other, each of which ends the process.
fn crash(client: &mut Client, key: Option<&str>, letters: &[u8]) {
    for letter in letters {
        // A caller that cannot be distinguished may be too early.
        let mut answer = send_fault_with(client, "faulty", *letter, key);
        wait_until("the call is admitted", LIMIT, || {
            let is_early = answer.status == 429 && key.is_none();
            if is_early {
                answer = send_fault_with(client, "faulty", *letter, key);
            }
            !is_early
        });
        assert_eq!(answer.status, 502, "{answer:?}");
    }
}

fn metrics(daemon: &TestDaemon) -> String {
    String::from_utf8(daemon.client().get("/metrics").body).unwrap()
}

#[test]
fn a_key_whose_calls_crash_a_model_is_refused_for_it_and_others_are_answered() {
    let root = without_goldens(TestRoot::new()).models(&["add_sub"]);
    let [crasher, other] = ["crasher", "other"].map(|name| key(&root, &[name, "--role", "infer"]));
    let daemon = root.start();
    let client = &mut daemon.client();
    crash(client, Some(&crasher), b"sfa");

    let refused = well(client, Some(&crasher));
    assert_eq!(refused.status, 429, "{refused:?}");
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((500..=600).contains(&wait), "{refused:?}");
    let reason = refused.error();
    assert!(reason.contains("'key:crasher'"), "{reason}");
    assert_eq!(well(client, Some(&other)).status, 200);
    assert_eq!(well(client, None).status, 200);
    // Only for this model.
    let sums = json!({"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": vec![1; 16]},
                                 {"name": "INPUT1", "datatype": "INT32", "shape": [1, 16], "data": vec![1; 16]}]});
    let elsewhere = client.post("/v2/models/add_sub/infer", &[("x-api-key", &crasher)], sums.to_string().as_bytes());
    assert_ne!(elsewhere.status, 429, "{elsewhere:?}");

    assert_eq!(row(client)["state"], "READY");
    assert!(metrics(&daemon).contains(
        "ledge_inference_refusals_total{model=\"faulty\",version=\"1\",runtime=\"onnxruntime\",reason=\"blame\"} 1"
    ));
    wait_until("it is recorded", LIMIT, || {
        let show = ["audit", "show", "--action", "caller_refused", "--actor", "key:crasher", "--json"];
        String::from_utf8(daemon.root.command(&show).output().unwrap().stdout).unwrap().contains("\"model\":\"faulty\"")
    });
}

#[test]
fn an_input_that_crashed_a_model_twice_is_refused_whoever_sends_it() {
    let root = without_goldens(TestRoot::new());
    let keys = ["a", "b", "c"].map(|name| key(&root, &[name, "--role", "infer"]));
    let daemon = root.start();
    let client = &mut daemon.client();
    for key in &keys[..2] {
        crash(client, Some(key), b"s");
    }
    let refused = send_fault_with(client, "faulty", b's', Some(&keys[2]));
    assert_eq!((refused.status, refused.header("retry-after")), (422, None), "{refused:?}");
    assert_eq!(well(client, Some(&keys[2])).status, 200);
    crash(client, Some(&keys[2]), b"f");
}

#[test]
fn callers_that_cannot_be_told_apart_are_slowed_down_and_the_model_stays() {
    let root = without_goldens(TestRoot::new());
    let named = key(&root, &["named", "--role", "infer"]);
    let daemon = root.start();
    let client = &mut daemon.client();
    crash(client, None, b"sfa");
    // One call takes the place of the next second, and the others are too early.
    let mut seen = Vec::new();
    wait_until("some are refused and some answered", LIMIT, || {
        let answer = well(client, None);
        assert!(answer.status == 200 || answer.header("retry-after").is_some(), "{answer:?}");
        seen.push(answer.status);
        seen.contains(&200) && seen.contains(&429)
    });
    assert!(seen.iter().all(|status| [200, 429].contains(status)), "{seen:?}");
    for _ in 0..20 {
        assert_eq!(well(client, Some(&named)).status, 200);
    }

    let row = row(client);
    assert!(row["state"] == "READY" && row["reason"].is_string(), "{row}");
    let crashing = "ledge_model_crashing{model=\"faulty\",version=\"1\",runtime=\"onnxruntime\"}";
    assert_eq!(daemon.metric::<u64>(crashing), 1);
    wait_until("it is found", LIMIT, || {
        let found = daemon.client().get("/findings").json();
        found["checks"].as_array().unwrap().iter().any(|check| check["name"] == "crashes faulty")
    });
}

#[test]
fn a_model_whose_golden_inputs_fail_after_a_crash_is_unloaded_and_comes_back_when_they_pass() {
    let root = TestRoot::new().model_as("wine_mlp", "faulty").set("runtimes.isolation=process");
    let named = key(&root, &["named", "--role", "infer"]);
    let golden = root.model("faulty").join("golden/rows.json");
    let right = std::fs::read_to_string(&golden).unwrap();
    let daemon = root.start();
    let client = &mut daemon.client();
    // Golden inputs that pass change nothing.
    crash(client, Some(&named), b"s");
    daemon.wait_for_event("model.retried");
    assert_eq!(row(client)["state"], "READY");

    let mut wrong: Value = serde_json::from_str(&right).unwrap();
    let outputs = wrong["outputs"].as_array_mut().unwrap();
    let numbers = outputs[0]["data"].as_array_mut().unwrap();
    numbers.fill(json!(7.5));
    write(&golden, wrong.to_string().as_bytes());
    crash(client, Some(&named), b"f");
    wait_until("it is unloaded", LIMIT, || row(&mut daemon.client())["state"] == "UNAVAILABLE");
    let reason = row(client)["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("differs"), "{reason}");
    assert_eq!(well(client, Some(&named)).status, 503);
    assert_eq!(client.get("/v2/models/faulty/ready").status, 503);

    write(&golden, right.as_bytes());
    wait_until("it is back", LIMIT, || row(&mut daemon.client())["state"] == "READY");
    assert_eq!(well(client, Some(&named)).status, 200);
}
