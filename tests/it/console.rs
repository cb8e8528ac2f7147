//! The console: its page, and the API that the page needs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::access_matrix::key;
use crate::client::{Client, Response};
use crate::daemon::{TestDaemon, TestRoot, write};

/// A request with headers as a browser sends them, and nothing else.
fn sent(mut client: Client, method: &str, path: &str, head: &str) -> Response {
    client.send(format!("{method} {path} HTTP/1.1\r\n{head}\r\ncontent-length: 0\r\n\r\n").as_bytes());
    client.receive()
}

/// A test that listens longer than this has found an answer that does not end.
const LISTENING_TIME_MAX: Duration = Duration::from_secs(40);

/// Opens an answer of `GET /figures/live`.
fn listen(daemon: &TestDaemon, key: Option<&str>) -> TcpStream {
    let mut stream = TcpStream::connect(daemon.address).unwrap();
    stream.set_read_timeout(Some(LISTENING_TIME_MAX)).unwrap();
    let key = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
    stream.write_all(format!("GET /figures/live HTTP/1.1\r\nhost: localhost\r\n{key}\r\n").as_bytes()).unwrap();
    stream
}

/// The bytes that a listener gets until `enough` says so, or until the end of the answer.
fn hear(stream: &mut TcpStream, enough: impl Fn(&str) -> bool) -> String {
    let (mut all, mut buffer, began) = (Vec::new(), [0; 4096], Instant::now());
    loop {
        let text = String::from_utf8_lossy(&all).into_owned();
        let is_ended = all == b"0\r\n\r\n" || all.ends_with(b"\r\n0\r\n\r\n");
        if enough(&text) || is_ended {
            return text;
        }
        assert!(began.elapsed() < LISTENING_TIME_MAX, "the answer does not end: {text}");
        match stream.read(&mut buffer).unwrap() {
            0 => return text,
            read => all.extend_from_slice(&buffer[..read]),
        }
    }
}

/// True once an answer of `GET /figures/live` has begun.
fn is_open(text: &str) -> bool {
    text.lines().any(|line| line.starts_with(": "))
}

fn infer(daemon: &TestDaemon) -> u16 {
    let input = |name| json!({"name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![1.0; 16]});
    let body = json!({"inputs": [input("INPUT0"), input("INPUT1")]});
    daemon.client().post_json("/v2/models/add_sub/infer", &body).status
}

#[test]
fn the_page_is_served_and_confined() {
    let daemon = TestRoot::closed().set("access.loopback=[]").start();
    let mut client = daemon.client();
    let page = client.get("/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let text = String::from_utf8(page.body.clone()).unwrap();
    let names: Vec<&str> = text.split('"').filter_map(|part| part.strip_prefix("/console/")).collect();
    assert!(names.contains(&"app.js") && names.contains(&"console.css"), "{names:?}");
    for name in names {
        let file = client.get(&format!("/console/{name}"));
        assert_eq!(file.status, 200, "{name}");
        let policy = file.header("content-security-policy").unwrap();
        for rule in
            ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"]
        {
            assert!(policy.contains(rule), "{name}: {policy}");
        }
        for (header, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cache-control", "no-cache"),
        ] {
            assert_eq!(file.header(header), Some(value), "{name}: {header}");
        }
        assert!(file.header("permissions-policy").unwrap().contains("camera=(self)"), "{name}");
        assert!(file.header("access-control-allow-origin").is_none() && file.header("set-cookie").is_none(), "{name}");
        let tag = file.header("etag").unwrap().to_owned();
        let again = client.request("GET", &format!("/console/{name}"), &[("if-none-match", &tag)], b"");
        assert_eq!((again.status, again.body.len()), (304, 0), "{name}");
    }
    assert_eq!(client.get("/console/nothing.js").status, 404);
    assert!(!text.contains(daemon.root.folder.path().to_str().unwrap()));
}

#[test]
fn a_console_that_is_turned_off_is_not_there() {
    let daemon = TestRoot::new().set("console.enabled=false").start();
    let console = ["/access", "/models", "/findings", "/egress", "/roles", "/keys"];
    for path in ["/", "/console/app.js"].into_iter().chain(console) {
        assert_eq!(daemon.client().get(path).status, 404, "{path}");
    }
    assert_eq!(daemon.client().get("/v2").status, 200);
}

#[test]
fn the_figures_have_the_calls_of_the_last_seconds_and_each_sample_is_an_event() {
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    // Each event completes a sample: these calls are in one that is completed after them.
    for _ in 0..10 {
        assert_eq!(infer(&daemon), 200);
    }
    let event = |text: &str| {
        let events = text.split("event: hour\n").skip(1);
        let data = events.filter_map(|event| event.strip_prefix("data: ")?.lines().next());
        data.filter_map(|data| serde_json::from_str::<Value>(data).ok()).last()
    };
    let calls = |event: &Value| event["figures"]["calls_per_s"].as_f64();
    let text = hear(&mut listen(&daemon, None), |text| event(text).is_some());
    let mut lines = text.lines().take_while(|line| !line.is_empty());
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(lines.any(|line| line == "content-type: text/event-stream"), "{text}");
    let heard = event(&text).unwrap();
    assert_eq!(heard["interval_s"], 5);

    let figures = daemon.client().get("/figures").json();
    let column = |ring: &str, name: &str| figures[ring]["columns"][name].as_array().unwrap().clone();
    let rates = column("hour", "calls_per_s");
    let all: f64 = rates.iter().filter_map(Value::as_f64).sum::<f64>() * 5.0;
    // A busy machine makes an interval a little longer.
    assert!((7.0..=10.2).contains(&all), "10 calls are {all} in {figures}");
    assert_eq!(rates.last().and_then(Value::as_f64), calls(&heard), "{figures}");
    assert!(column("hour", "p99_s").iter().any(|time| time.as_f64() > Some(0.0)), "{figures}");
    assert!(column("hour", "ledge_memory_bytes").last().unwrap().as_f64() > Some(1e6), "{figures}");
    assert_eq!((&figures["day"]["interval_s"], column("day", "queue").len()), (&json!(60), 0));
    for ring in ["hour", "day"] {
        let lengths: Vec<usize> =
            figures[ring]["columns"].as_object().unwrap().values().map(|list| list.as_array().unwrap().len()).collect();
        assert!(lengths.iter().all(|length| *length == lengths[0]), "{lengths:?}");
    }
}

#[test]
fn figures_after_a_time_are_those_that_came_since() {
    let daemon = TestRoot::new().start();
    let client = &mut daemon.client();
    // The first sample completes, and then the second.
    hear(&mut listen(&daemon, None), |text| text.lines().any(|line| line == "event: hour"));
    let first = client.get("/figures").json();
    let end = first["hour"]["end"].as_str().unwrap().to_owned();
    let after = |client: &mut Client, time: &str| client.get(&format!("/figures?after={time}")).json();
    hear(&mut listen(&daemon, None), |text| text.lines().any(|line| line == "event: hour"));
    let since = after(client, &end);
    let length = |figures: &Value| figures["hour"]["columns"]["queue"].as_array().unwrap().len();
    let all = length(&client.get("/figures").json());
    // Another one may complete between the two questions.
    assert!(length(&since) >= 1 && all - length(&first) - length(&since) <= 1, "{all}: {first} {since}");
    let newest = since["hour"]["end"].as_str().unwrap().to_owned();
    assert!(newest > end, "{end} {newest}");
    assert_eq!(length(&after(client, "2026-01-01T00:00:00Z")), length(&client.get("/figures").json()));
    let wrong = client.get("/figures?after=yesterday");
    assert!(wrong.status == 400 && wrong.error().contains("after=TIME"), "{wrong:?}");
}

#[test]
fn models_are_one_answer_with_their_figures_and_only_those_of_the_caller() {
    let root = TestRoot::new().models(&["add_sub", "broken_cut", "bike_demand"]);
    let limited = key(&root, &["desk", "--role", "viewer", "--model", "bike_demand"]);
    let daemon = root.start();
    for _ in 0..3 {
        assert_eq!(infer(&daemon), 200);
    }
    let wrong = json!({"inputs": []});
    assert_eq!(daemon.client().post_json("/v2/models/add_sub/infer", &wrong).status, 400);
    let told = daemon.client().get("/models").json();
    let of = |name: &str| {
        let models = told["models"].as_array().unwrap();
        models.iter().find(|model| model["name"] == name).unwrap_or_else(|| panic!("no {name} in {told}")).clone()
    };
    let add_sub = of("add_sub");
    let figures = ["version", "state", "runtime", "calls", "failed", "pipeline"].map(|name| add_sub[name].clone());
    assert_eq!(json!(figures), json!(["1", "READY", "onnxruntime", 4, 1, null]));
    assert!(add_sub["mean_s"].as_f64() > Some(0.0), "{add_sub}");
    assert_eq!((&of("bike_demand")["pipeline"], &of("bike_demand")["mean_s"]), (&json!("table"), &Value::Null));
    let broken = of("broken_cut");
    assert!(broken["state"] == "UNAVAILABLE" && broken["reason"].as_str().unwrap().contains("model.onnx"), "{broken}");
    assert_eq!(broken["calls"], Value::Null);

    let of_key = daemon.client().request("GET", "/models", &[("x-api-key", &limited)], b"").json();
    let names: Vec<_> = of_key["models"].as_array().unwrap().iter().map(|model| model["name"].clone()).collect();
    assert_eq!(names, [json!("bike_demand")]);
    // The page shows the columns of a model of rows.
    let metadata = daemon.client().get("/v2/models/bike_demand").json();
    let columns = "month,weekday,weather,hour,day_off,temperature,humidity,wind";
    assert_eq!(metadata["properties"]["columns"], columns);
}

#[test]
fn a_model_whose_calls_fail_is_no_box_on_which_nothing_is_wrong() {
    let daemon = TestRoot::new().models(&["bad_at_runtime", "add_sub"]).start();
    let client = &mut daemon.client();
    let input = json!({"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": [-1.0, -1.0, -1.0, -1.0]});
    for _ in 0..3 {
        let answer = client.post_json("/v2/models/bad_at_runtime/infer", &json!({"inputs": [input]}));
        assert_eq!(answer.status, 500, "{answer:?}");
        // A mistake of a caller does not count as one of the model.
        assert_eq!(client.post_json("/v2/models/add_sub/infer", &json!({"inputs": []})).status, 400);
    }
    let found = client.get("/findings").json();
    let is_failing = |check: &&Value| check["name"].as_str().unwrap().starts_with("failing ");
    let failing: Vec<_> = found["checks"].as_array().unwrap().iter().filter(is_failing).collect();
    assert_eq!(failing.len(), 1, "{found}");
    assert_eq!((&failing[0]["name"], &failing[0]["status"]), (&json!("failing bad_at_runtime"), &json!("fail")));
    let detail = failing[0]["detail"].as_str().unwrap();
    assert!(detail.starts_with("version 1: 3 of 3 ") && detail.contains("onnxruntime"), "{failing:?}");
}

#[test]
fn a_listener_ends_with_the_daemon_and_with_its_key() {
    let root = TestRoot::closed().set("access.loopback=[]");
    let (viewer, other) = (key(&root, &["viewer", "--role", "viewer"]), key(&root, &["other", "--role", "viewer"]));
    let mut daemon = root.start();
    let mut listening = listen(&daemon, Some(&viewer));
    hear(&mut listening, is_open);
    assert!(daemon.root.command(&["keys", "revoke", "viewer"]).output().unwrap().status.success());
    hear(&mut listening, |_| false);
    assert_eq!(daemon.client().request("GET", "/figures", &[("x-api-key", &viewer)], b"").status, 401);

    let mut listening = listen(&daemon, Some(&other));
    hear(&mut listening, is_open);
    let began = Instant::now();
    daemon.signal("TERM");
    hear(&mut listening, |_| false);
    assert!(daemon.wait().success());
    // The grace period is 10 s.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}

#[test]
fn no_more_than_so_many_listen_and_a_place_is_free_again_when_one_hangs_up() {
    let daemon = TestRoot::new().start();
    let mut listening: Vec<_> = (0..32).map(|_| listen(&daemon, None)).collect();
    for stream in &mut listening {
        hear(stream, is_open);
    }
    let refused = daemon.client().get("/figures/live");
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("10")), "{refused:?}");
    assert!(refused.error().contains("32"), "{}", refused.error());
    assert_eq!(daemon.client().get("/figures").status, 200);

    drop(listening);
    // The daemon learns of it when it reads or writes next.
    let began = Instant::now();
    while daemon.client().get("/figures/live?events=0").status != 200 {
        assert!(began.elapsed() < LISTENING_TIME_MAX);
    }
}

#[test]
fn findings_are_those_of_the_doctor() {
    let root = TestRoot::new().models(&["add_sub", "broken_cut"]);
    let daemon = root.start();
    let found = daemon.client().get("/findings").json();
    let doctor = daemon.root.command(&["doctor", "--json"]).output().unwrap();
    let doctor: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let named = |report: &Value, name: &str| {
        let checks = report["checks"].as_array().unwrap();
        checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name} in {report}")).clone()
    };
    let broken = (named(&found, "model broken_cut"), named(&doctor, "model broken_cut"));
    assert_eq!(broken.0["status"], "warn");
    assert_eq!((&broken.0["status"], &broken.0["advice"]), (&broken.1["status"], &broken.1["advice"]));
    assert_eq!(broken.0["detail"], broken.1["detail"], "the doctor tells what the daemon found");

    // All others that do not depend on the moment, or on what only one of them may do, are the same.
    let moment = ["memory", "state", "audit log", "configuration"];
    for check in doctor["checks"].as_array().unwrap() {
        let name = check["name"].as_str().unwrap();
        if !name.starts_with("model ") && !moment.contains(&name) {
            assert_eq!(named(&found, name), *check);
        }
    }
    for name in &moment[..3] {
        assert_eq!(named(&found, name)["status"], named(&doctor, name)["status"], "{name}");
    }
    assert_eq!(found["status"], doctor["status"]);
    assert_eq!(named(&found, "model add_sub")["status"], "ok");
    // Kept for a minute.
    assert_eq!(daemon.client().get("/findings").json()["at"], found["at"]);
}

#[test]
fn what_left_the_box_is_told_as_by_the_command_line() {
    let allow = "egress.allow=[{host=\"a.example:443\",region=\"eu\",send=[\"requests\"]}]";
    let daemon = TestRoot::new().set(allow).start();
    // The counts are written soon after the start.
    let end = Instant::now() + LISTENING_TIME_MAX;
    let report = loop {
        let report = daemon.client().get("/egress").json();
        if report["counted_since"].is_string() || Instant::now() > end {
            break report;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let told = daemon.root.command(&["audit", "egress", "--json"]).output().unwrap();
    assert_eq!(report, serde_json::from_slice::<Value>(&told.stdout).unwrap());
    assert_eq!(report["destinations"][0]["allowed"], json!(["protocol", "requests"]));
    assert!(report["counted_since"].is_string() && report["error"].is_null(), "{report}");

    write(&daemon.root.folder.path().join("egress.json"), b"{");
    let report = daemon.client().get("/egress").json();
    assert!(report["error"].as_str().unwrap().contains("damaged"), "{report}");
    assert_eq!(report["destinations"][0]["connections"], 0, "what may be sent is still told");
}

#[test]
fn a_caller_learns_who_it_is() {
    let root = TestRoot::closed();
    let till = key(&root, &["till", "--role", "infer", "--role", "feature-writer", "--model", "add_sub"]);
    let daemon = root.start();
    let here = daemon.client().get("/access").json();
    assert_eq!((&here["name"], &here["credential"]), (&json!("ip:127.0.0.1"), &json!("none")));
    assert_eq!(here["roles"], json!(["viewer", "infer", "feature-writer"]));
    assert_eq!(here["permissions"], json!(["view", "infer", "read_features", "write_features"]));
    assert_eq!((&here["models"], &here["feature_views"]), (&Value::Null, &Value::Null));
    let by_key = daemon.client().request("GET", "/access", &[("x-api-key", &till)], b"").json();
    assert_eq!(
        (&by_key["name"], &by_key["credential"], &by_key["models"]),
        (&json!("key:till"), &json!("key"), &json!(["add_sub"]))
    );
    assert_eq!(by_key["feature_views"], json!([]));
    assert!(!by_key.to_string().contains(&till));
    assert_eq!(daemon.unix_client().get("/access").json()["credential"], "user");
    let wrong = daemon.client().request("GET", "/access", &[("x-api-key", "ledge_no")], b"");
    assert!(wrong.status == 401 && wrong.error().contains("malformed"), "{wrong:?}");
}

#[test]
fn the_page_may_what_this_machine_may_and_a_foreign_page_may_nothing() {
    let daemon = TestRoot::closed().models(&["add_sub"]).start();
    let port = daemon.address.port();
    let calls = [
        ("GET", "/access"),
        ("GET", "/figures"),
        ("GET", "/figures/live?events=0"),
        ("GET", "/findings"),
        ("GET", "/egress"),
        ("GET", "/v2/models/add_sub"),
        ("POST", "/v2/repository/index"),
    ];
    for (method, path) in calls {
        for host in [format!("127.0.0.1:{port}"), format!("localhost:{port}")] {
            let own = [
                // A GET of a page has no origin.
                format!("host: {host}\r\nsec-fetch-site: same-origin\r\nsec-fetch-mode: cors\r\nsec-fetch-dest: empty"),
                format!("host: {host}\r\norigin: http://{host}\r\nsec-fetch-site: same-origin\r\nsec-fetch-mode: cors"),
            ];
            for head in own {
                assert_eq!(sent(daemon.client(), method, path, &head).status, 200, "{method} {path} {head}");
            }
            let foreign = [
                format!("host: {host}\r\norigin: https://far.example\r\nsec-fetch-site: cross-site"),
                format!(
                    "host: {host}\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors\r\nsec-fetch-dest: image"
                ),
                format!("host: {host}\r\norigin: http://localhost:1\r\nsec-fetch-site: same-site"),
                format!("host: {host}\r\norigin: null\r\nsec-fetch-site: cross-site"),
                format!("host: far.example:{port}\r\norigin: http://far.example:{port}\r\nsec-fetch-site: same-origin"),
            ];
            for head in foreign {
                let answer = sent(daemon.client(), method, path, &head);
                assert_eq!(answer.status, 401, "{method} {path} {head}");
                assert!(answer.header("access-control-allow-origin").is_none(), "{method} {path} {head}");
            }
        }
    }
}
