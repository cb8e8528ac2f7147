//! Alerts at a webhook: each fault is reported once, and so is its end; receivers that are away; restarts; test
//! messages.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::certificates::Authority;
use crate::daemon::{TestDaemon, TestRoot, copy, model_folder, write};
use crate::hook_server::HookServer;

/// A model that does not load, until a test puts another in its place.
const BROKEN: &str = "broken_empty";

/// A root with a model that does not load, and an alert about it.
fn root(hook: &HookServer, more: &str) -> TestRoot {
    let root = TestRoot::new().models(&["add_sub", BROKEN]).set("device.id=\"box\"");
    write(&root.folder.path().join("token"), b"of-the-receiver\n");
    configure(&root, hook, "[\"model\"]", more);
    root
}

fn configure(root: &TestRoot, hook: &HookServer, checks: &str, more: &str) {
    let config = format!(
        "[[alert]]\nname = \"shop\"\nurl = {:?}\ntoken_file = \"token\"\nchecks = {checks}\nhold_s = 1\n{more}\n",
        hook.url()
    );
    write(&root.folder.path().join("ledge.toml"), config.as_bytes());
}

/// Waits until the first message is sent and saved in the file.
#[track_caller]
fn wait_until_kept(daemon: &TestDaemon) {
    wait_until(daemon, |receiver| receiver["sent"] == 1);
    // The state is written before the next message, and nothing else is due.
    let file = daemon.root.folder.path().join("alerts.json");
    let deadline = Instant::now() + Duration::from_secs(30);
    while !std::fs::read_to_string(&file).is_ok_and(|text| text.contains(BROKEN)) {
        assert!(Instant::now() < deadline, "{}", daemon.log());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn repair(daemon: &TestDaemon) {
    copy(&model_folder("add_sub"), &daemon.root.model(BROKEN));
    let path = format!("/v2/repository/models/{BROKEN}/load");
    assert_eq!(daemon.client().post(&path, &[], b"").status, 200);
}

fn receiver(daemon: &TestDaemon) -> Value {
    daemon.client().get("/alerts").json()["alerts"][0].clone()
}

#[track_caller]
fn wait_until(daemon: &TestDaemon, is_so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let found = receiver(daemon);
        if is_so(&found) {
            return found;
        }
        assert!(Instant::now() < deadline, "{found}\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The finding of `ledge doctor` about the alert.
fn doctor(daemon: &TestDaemon) -> Value {
    let output = daemon.root.command(&["doctor", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["checks"].as_array().unwrap().iter().find(|check| check["name"] == "alert shop").unwrap().clone()
}

#[test]
fn a_trouble_is_told_once_with_its_secret_and_so_is_its_end() {
    let authority = Authority::new();
    let hook = HookServer::start_tls(&authority.issue("127.0.0.1"));
    let root = root(&hook, "ca_file = \"ca.pem\"");
    write(&root.folder.path().join("ca.pem"), authority.pem().as_bytes());
    let daemon = root.start();

    let told = hook.next();
    assert_eq!(told.news(), format!("model {BROKEN} firing"));
    assert_eq!(told.head[0], "POST /hook?key=of-the-hook HTTP/1.1");
    for line in ["authorization: Bearer of-the-receiver", "content-type: application/json", "user-agent: ledge"] {
        assert!(told.head.iter().any(|head| head == line), "{:?}", told.head);
    }
    let message = &told.message;
    assert_eq!(
        (&message["device"], &message["alert"], &message["severity"]),
        (&json!("box"), &json!("shop"), &json!("warn"))
    );
    assert_eq!((&message["reminder"], message["advice"].is_string()), (&json!(false), true));
    for time in ["since", "at"] {
        assert!(message[time].as_str().unwrap().ends_with('Z'), "{message}");
    }
    let text = message["text"].as_str().unwrap();
    assert!(text.starts_with(&format!("box: model {BROKEN}: ")), "{text}");

    let firing = wait_until(&daemon, |receiver| receiver["sent"] == 1);
    assert_eq!((&firing["firing"], &firing["due"]), (&json!([format!("model {BROKEN}")]), &json!(0)));
    assert!(!firing.to_string().contains("of-the-hook") && !daemon.log().contains("of-the-hook"), "{firing}");
    repair(&daemon);
    let resolved = hook.next();
    assert_eq!(resolved.news(), format!("model {BROKEN} resolved"));
    assert_eq!((&resolved.message["since"], &resolved.message["advice"]), (&message["since"], &Value::Null));
    wait_until(&daemon, |receiver| receiver["sent"] == 2 && receiver["firing"] == json!([]));
    assert!(hook.rest().is_empty());

    let metrics = String::from_utf8(daemon.client().get("/metrics").body).unwrap();
    let sent = "ledge_alert_messages_total{alert=\"shop\",way=\"webhook\",outcome=\"sent\"} 2";
    assert!(metrics.contains(sent), "{metrics}");
    let bytes = metrics.lines().find(|line| line.contains("content=\"alerts\"")).unwrap();
    assert!(bytes.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap() > 200, "{bytes}");
    assert_eq!(doctor(&daemon)["status"], "ok");
}

#[test]
fn a_restart_neither_repeats_a_message_nor_forgets_the_end() {
    let hook = HookServer::start();
    let daemon = root(&hook, "").start();
    assert_eq!(hook.next().news(), format!("model {BROKEN} firing"));
    wait_until_kept(&daemon);

    let daemon = daemon.kill().start();
    repair(&daemon);
    assert_eq!(hook.next().news(), format!("model {BROKEN} resolved"));
    assert!(hook.rest().is_empty());
}

#[test]
fn another_receiver_is_told_what_lasts_and_nothing_of_what_it_does_not_know() {
    let hook = HookServer::start();
    let daemon = root(&hook, "").start();
    assert_eq!(hook.next().news(), format!("model {BROKEN} firing"));
    wait_until_kept(&daemon);

    // It wants to hear of other checks: nothing is resolved.
    let root = daemon.kill();
    configure(&root, &hook, "[\"no such check\"]", "");
    let daemon = root.start();
    let own = receiver(&daemon);
    assert_eq!((&own["firing"], &own["due"]), (&json!([]), &json!(0)));

    // The same name, at another address.
    let root = daemon.kill();
    let other = HookServer::start();
    configure(&root, &other, "[\"model\"]", "");
    let daemon = root.start();
    assert_eq!(other.next().news(), format!("model {BROKEN} firing"));
    repair(&daemon);
    assert_eq!(other.next().news(), format!("model {BROKEN} resolved"));
    assert!(hook.rest().is_empty());
    let file = std::fs::read_to_string(daemon.root.folder.path().join("alerts.json")).unwrap();
    assert!(!file.contains("of-the-hook"), "{file}");
}

#[test]
fn a_file_of_a_later_version_is_set_aside_whole() {
    let hook = HookServer::start();
    let root = root(&hook, "");
    let state = root.folder.path().to_owned();
    let later = b"{\"schema\":2,\"more\":true}";
    write(&state.join("alerts.json"), later);
    let daemon = root.start();
    assert_eq!(hook.next().news(), format!("model {BROKEN} firing"));
    wait_until_kept(&daemon);
    assert_eq!(std::fs::read(state.join("alerts.json.set-aside-1")).unwrap(), later);
}

#[test]
fn a_receiver_that_refuses_is_reported_and_gets_the_newest_state_later() {
    let hook = HookServer::start();
    hook.answer(503);
    let daemon = root(&hook, "").start();
    let refused = wait_until(&daemon, |receiver| receiver["failed"].as_u64() > Some(0));
    assert_eq!((refused["sent"].as_u64(), refused["due"].as_u64()), (Some(0), Some(1)));
    let finding = doctor(&daemon);
    assert_eq!(finding["status"], "fail");
    let detail = finding["detail"].as_str().unwrap();
    assert!(detail.contains("503") && !detail.contains("of-the-hook"), "{detail}");
    let own = daemon.client().get("/findings").json();
    assert!(own["checks"].as_array().unwrap().iter().any(|check| check["name"] == "alert shop"), "{own}");

    hook.answer(200);
    assert_eq!(hook.next().news(), format!("model {BROKEN} firing"));
    wait_until(&daemon, |receiver| receiver["error"].is_null() && receiver["sent"] == 1);
    assert!(hook.rest().is_empty());
}

#[test]
fn a_failure_of_an_alert_ends_with_the_trouble() {
    let hook = HookServer::start();
    hook.answer(503);
    let daemon = root(&hook, "").start();
    wait_until(&daemon, |receiver| receiver["error"].is_string());
    repair(&daemon);
    wait_until(&daemon, |receiver| receiver["error"].is_null() && receiver["due"] == 0);
    assert_eq!(doctor(&daemon)["status"], "ok");
    assert!(hook.rest().is_empty());
}

#[test]
fn a_test_message_reaches_the_receiver_and_a_refusal_is_told() {
    let hook = HookServer::start();
    let daemon = root(&hook, "token_header = \"x-token\"").start();
    assert_eq!(hook.next().news(), format!("model {BROKEN} firing"));
    let answer = daemon.client().post("/alerts/shop/test", &[], b"");
    assert_eq!((answer.status, answer.json()["alert"].as_str()), (200, Some("shop")), "{answer:?}");
    let tried = hook.next();
    assert_eq!((tried.news().as_str(), tried.message["text"].is_string()), ("test test", true));
    assert!(tried.head.iter().any(|line| line == "x-token: of-the-receiver"), "{:?}", tried.head);
    hook.answer(403);
    let refused = daemon.client().post("/alerts/shop/test", &[], b"");
    assert_eq!(refused.status, 502);
    assert!(refused.error().contains("403") && !refused.error().contains("of-the-hook"), "{refused:?}");
    assert_eq!(daemon.client().post("/alerts/other/test", &[], b"").status, 404);
}
