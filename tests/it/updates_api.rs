//! Signed updates over HTTP and on the command line, on a box without a platform.

use serde_json::{Value, json};

use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot};

#[track_caller]
fn refused(daemon: &TestDaemon, arguments: &[&str]) -> String {
    let output = daemon.root.command(&[&["update"], arguments].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_box_without_a_platform_says_so_in_every_way() {
    let daemon = TestRoot::new().start();
    let mut client = Client::tcp(daemon.address);
    let told = |answer: crate::client::Response| {
        assert_eq!(answer.status, 409, "{answer:?}");
        assert!(answer.error().contains("updates.repository"), "{answer:?}");
    };
    told(client.get("/updates"));
    told(client.post_json("/updates/check", &json!({})));
    told(client.post_json("/updates/check", &json!({"from": "file:///media/usb"})));
    told(client.post_json("/updates/models/minilm/pin", &json!({})));
    told(client.post_json("/updates/trust/reset", &json!({})));
    assert_eq!(client.get("/updates/check").status, 405);
    assert!(!String::from_utf8_lossy(&client.get("/metrics").body).contains("ledge_update_"));

    for arguments in [&["status"][..], &["check"], &["trust"], &["pin", "minilm"], &["cancel", "runtimes/openvino"]] {
        assert!(refused(&daemon, arguments).contains("updates.repository"), "{arguments:?}");
    }
    assert!(refused(&daemon, &["reset-trust"]).contains("there is no update store"));
    assert!(refused(&daemon, &["rollback", "../x"]).contains("../x"));
}

#[test]
fn doctor_is_silent_about_updates_without_a_platform_and_names_what_is_missing_with_one() {
    let root = TestRoot::new();
    let names = |root: &TestRoot| -> Vec<String> {
        let output = root.command(&["doctor", "--json"]).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let failed = report["checks"].as_array().unwrap().iter().filter(|check| check["status"] == "fail");
        failed.map(|check| check["name"].as_str().unwrap().to_owned()).collect()
    };
    let before = names(&root);
    assert!(!before.iter().any(|name| name.starts_with("updates")), "{before:?}");
    let root = root.set("updates.repository=file:///nowhere/at/all");
    let failed = names(&root);
    assert!(["updates root", "updates"].iter().all(|name| failed.iter().any(|failed| failed == name)), "{failed:?}");
}
