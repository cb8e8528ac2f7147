//! Priorities, deadlines, quotas and windows: which calls are answered, which have to be repeated, and when.

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
        assert_eq!(answer.status, 504, "{answer:?}");
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

#[test]
fn a_model_over_its_rate_answers_429_with_the_time_to_wait() {
    let limits = "[limits]\nmax_rate = 0.01\nburst = 2\n";
    let daemon = TestRoot::new().models(&["add_sub", "slow"]).file("add_sub/model.toml", limits).start();
    let client = &mut daemon.client();
    assert_eq!([ask(client, "add_sub", &[]).status, ask(client, "add_sub", &[]).status], [200, 200]);
    let refused = ask(client, "add_sub", &[]);
    assert_eq!(refused.status, 429, "{refused:?}");
    assert_eq!(
        refused.error(),
        "model 'add_sub' has used up its 0.01 calls per second (limits.max_rate of its model.toml)"
    );
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    // A token comes in 100 s; the calls before took far less than a minute.
    assert!((40..=100).contains(&wait), "{wait}");
    assert_eq!(ask(client, "slow", &[]).status, 200, "the limit is that model's alone");
    let stats = client.get("/v2/models/add_sub/stats").json();
    assert_eq!(stats["model_stats"][0]["inference_stats"]["fail"]["count"], 1);
}

#[test]
fn a_model_takes_only_so_many_calls_at_a_time() {
    let daemon = TestRoot::new().models(&["slow"]).file("slow/model.toml", "[limits]\nmax_concurrent = 2\n").start();
    let mut clients: Vec<Client> = (0..12).map(|_| daemon.client()).collect();
    let (path, body) = row("slow");
    for client in &mut clients {
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
        client.send(format!("{head}{body}").as_bytes());
    }
    let answers: Vec<_> = clients.iter_mut().map(Client::receive).collect();
    let (answered, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert!(answered.len() >= 2 && !refused.is_empty(), "{answers:?}");
    for answer in refused {
        assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
        assert!(answer.error().contains("limits.max_concurrent"), "{}", answer.error());
    }
    assert_eq!(ask(&mut daemon.client(), "slow", &[]).status, 200, "the places are free again");
}

#[test]
fn each_caller_has_a_quota_of_its_own_over_all_models() {
    let daemon = TestRoot::new()
        .models(&["add_sub", "slow"])
        .set("quota.max_rate_per_principal=0.01")
        .set("quota.burst=3")
        .set("quota.max_concurrent_per_principal=5")
        .start();
    let (tcp, unix) = (&mut daemon.client(), &mut daemon.unix_client());
    for model in ["add_sub", "slow", "add_sub"] {
        assert_eq!(ask(tcp, model, &[]).status, 200);
    }
    let refused = ask(&mut daemon.client(), "slow", &[]);
    assert_eq!(refused.status, 429, "another connection is the same caller: {refused:?}");
    assert!(refused.error().contains("'ip:127.0.0.1'") && refused.error().contains("quota.max_rate_per_principal"));
    assert_eq!(ask(unix, "add_sub", &[]).status, 200, "another caller");
    assert_eq!(tcp.get("/v2/models/add_sub").status, 200, "only inference is limited");
}

#[test]
fn background_work_is_answered_in_its_windows_only() {
    let minute = |from_now: i64| (jiff::Zoned::now() + jiff::ToSpan::minutes(from_now)).strftime("%H:%M").to_string();
    let windows = format!("serving.batch_windows=[\"{}-{}\"]", minute(120), minute(180));
    let daemon = TestRoot::new().models(&["add_sub", "efficientnet_lite0"]).set(&windows).start();
    let client = &mut daemon.client();
    let batch = ("x-ledge-priority", "batch");
    let photograph = data("photos/coffee.png");
    let refused = [
        ask(client, "add_sub", &[batch]),
        client.post("/v2/models/efficientnet_lite0/infer", &[PHOTOGRAPH, batch], &photograph),
    ];
    for answer in refused {
        assert_eq!(answer.status, 429, "{answer:?}");
        assert!(answer.error().contains("serving.batch_windows"), "{}", answer.error());
        let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((7000..=7200).contains(&wait), "{wait}");
    }
    assert_eq!(ask(client, "add_sub", &[]).status, 200, "only background work has its hours");
    let (path, body) = row("add_sub");
    let mut urgent: Value = serde_json::from_str(&body).unwrap();
    urgent["parameters"] = json!({"priority": 1});
    assert_eq!(client.post(&path, &[batch], urgent.to_string().as_bytes()).status, 200, "the body's priority wins");

    let around_now = format!("serving.batch_windows=[\"{}-{}\"]", minute(-60), minute(60));
    let daemon = TestRoot::new().models(&["add_sub"]).set(&around_now).start();
    assert_eq!(ask(&mut daemon.client(), "add_sub", &[batch]).status, 200);
}
