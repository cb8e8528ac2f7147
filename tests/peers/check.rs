//! `ledge mqtt check` reports the permissions that a broker grants, and does not disturb a running box.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::boxes::{call, root, root_at, start, wait_until};
use crate::broker::{Broker, Setup};
use crate::certificates::Authority;
use crate::daemon::{TestRoot, write};
use crate::mqtt::Peer;
use crate::tools::run;

/// The findings of a check of which each is as expected, or which fails for one that is not.
#[track_caller]
fn check(root: &TestRoot, ok: bool) -> Vec<Value> {
    findings(&mut root.command(&["mqtt", "check", "--json"]), ok)
}

#[track_caller]
fn findings(command: &mut Command, ok: bool) -> Vec<Value> {
    let output = command.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!((output.status.success(), report["ok"].as_bool()), (ok, Some(ok)), "{report:#}");
    report["findings"].as_array().unwrap().clone()
}

/// The findings at each step of this name: success or not, and the details.
fn found<'f>(findings: &'f [Value], step: &str) -> Vec<(bool, &'f str)> {
    let of_step = findings.iter().filter(|finding| finding["step"] == step);
    of_step.map(|finding| (finding["ok"].as_bool().unwrap(), finding["detail"].as_str().unwrap())).collect()
}

#[test]
fn a_check_beside_a_running_box_takes_nothing_from_it_and_is_seen_by_nobody() {
    let broker = Setup::new().line("max_packet_size 100000").line("max_keepalive 20").line("log_type all").start();
    let daemon = start(root(&broker).set("device.group=\"shop\""));
    let peer = Peer::subscribed(&broker, "watcher", "ledge/v1/box/online");
    peer.subscribe("ledge/v1/box/result/check");
    assert_eq!(peer.receive().text(), "online");
    let findings = check(&daemon.root, true);
    let [(true, connection)] = found(&findings, "connection")[..] else { panic!("{findings:?}") };
    assert!(connection.contains("MQTT 5 without TLS, as the client box-check-"), "{connection}");
    let [(true, announced)] = found(&findings, "broker")[..] else { panic!("{findings:?}") };
    assert!(
        announced.contains("packets of up to 100000 bytes") && announced.contains("keep-alive of 20 s"),
        "{announced}"
    );
    let granted = [
        (true, "ledge/v1/box/infer/#: granted with QoS 1"),
        (true, "$share/shop/ledge/v1/shop/infer/#: granted with QoS 1"),
    ];
    assert_eq!(found(&findings, "subscription"), granted);
    assert_eq!(found(&findings, "publishing"), [(true, "ledge/v1/box/result/check: accepted")]);
    assert_eq!(found(&findings, "round_trip").len(), 1);
    // The same for people, and in short.
    let shown = run(&mut daemon.root.command(&["mqtt", "check"]));
    assert!(shown.contains("ok    round trip ") && shown.ends_with("No problems found.\n"), "{shown}");
    let report: Value = serde_json::from_str(&run(&mut daemon.root.command(&["doctor", "--json"]))).unwrap();
    let row = report["checks"].as_array().unwrap().iter().find(|row| row["name"] == "mqtt").unwrap();
    assert!(row["detail"].as_str().unwrap().contains("subscriptions granted: 2"), "{row}");
    // The one message that each may publish, and no change of presence before it or after it.
    for _check in 0..3 {
        let message = peer.receive();
        assert_eq!((message.topic.as_str(), message.retained), ("ledge/v1/box/result/check", false));
    }
    peer.subscribe("answers");
    assert!(call(&peer, "1").is_empty());
    assert_eq!(daemon.events("mqtt.connected").len(), 1, "{}", daemon.log());
    // The group's calls keep coming to its boxes.
    let checks_subscribe =
        |filter: &str| broker.log().lines().any(|line| line.contains("box-check-") && line.contains(filter));
    wait_until("the subscription in the broker's log", || checks_subscribe("$share/check-"));
    assert!(!checks_subscribe("$share/shop/"), "{}", broker.log());
}

#[test]
fn what_a_broker_refuses_is_told_step_by_step() {
    let broker = Setup::new().users(&[("box", "right")]).acl("user box\ntopic read #\n").start();
    let with_password = |password: &str| {
        let root = root(&broker);
        let file = root.folder.path().join("password").display().to_string();
        write(Path::new(&file), password.as_bytes());
        root.set("mqtt.user=\"box\"").set(&format!("mqtt.password_file={file:?}"))
    };
    let findings = check(&with_password("wrong"), false);
    let [(false, connection)] = found(&findings, "connection")[..] else { panic!("{findings:?}") };
    assert!(connection.contains("the broker refuses the connection") && findings.len() == 1, "{connection}");
    assert!(!connection.contains("wrong\""), "{connection}");

    let findings = check(&with_password("right\n"), false);
    assert_eq!(found(&findings, "subscription"), [(true, "ledge/v1/box/infer/#: granted with QoS 1")]);
    let refused = "ledge/v1/box/result/check: refused, not authorized (0x87)";
    assert_eq!(found(&findings, "publishing"), [(false, refused)]);
    assert_eq!(found(&findings, "round_trip").len(), 1, "a refusal does not end the check");

    let broker = Setup::new().dynamic_security().start();
    let findings = check(&root(&broker), false);
    let [(false, subscription)] = found(&findings, "subscription")[..] else { panic!("{findings:?}") };
    assert!(subscription.starts_with("ledge/v1/box/infer/#: refused, "), "{subscription}");
}

#[test]
fn a_password_is_read_from_the_credentials_of_the_service() {
    let broker = Setup::new().users(&[("box", "right")]).start();
    let root = root(&broker).set("mqtt.user=\"box\"").set("mqtt.password_file=\"credential:broker\"");
    let credentials = tempfile::tempdir().unwrap();
    let check = |ok| {
        let mut command = root.command(&["mqtt", "check", "--json"]);
        findings(command.env("CREDENTIALS_DIRECTORY", credentials.path()), ok)
    };
    let findings = check(false);
    let [(false, told)] = found(&findings, "connection")[..] else { panic!("{findings:?}") };
    assert!(told.contains("password") && told.contains("broker"), "{told}");
    write(&credentials.path().join("broker"), b"right\n");
    check(true);
    write(&credentials.path().join("broker"), b"wrong\n");
    check(false);
}

#[test]
fn an_authority_that_is_not_trusted_and_a_certificate_that_is_missing_are_told() {
    let authority = Authority::new();
    let broker = Setup::new().tls(&authority).start();
    let with_authority = |authority: &Authority| {
        let root = root_at(&broker.tls_url(), "box");
        for (name, content) in [("ca.pem", authority.pem().to_owned()), ("box.pem", authority.issue("box").certificate)]
        {
            write(&root.folder.path().join(name), content.as_bytes());
        }
        let ca = root.folder.path().join("ca.pem").display().to_string();
        root.set(&format!("mqtt.tls.ca_file={ca:?}"))
    };
    let findings = check(&with_authority(&Authority::new()), false);
    let [(false, told)] = found(&findings, "connection")[..] else { panic!("{findings:?}") };
    assert!(told.contains("is not signed by a CA in") && told.contains("`ca_file`"), "{told}");
    let findings = check(&with_authority(&authority), false);
    let [(false, told)] = found(&findings, "connection")[..] else { panic!("{findings:?}") };
    assert!(told.contains("`certificate_file`"), "{told}");
}

#[test]
fn a_broker_of_the_old_version_is_checked_as_far_as_it_says_anything() {
    let broker = Broker::nats();
    let findings = check(&root(&broker), true);
    let [(true, connection)] = found(&findings, "connection")[..] else { panic!("{findings:?}") };
    assert!(connection.contains("MQTT 3.1.1"), "{connection}");
    let [(true, published)] = found(&findings, "publishing")[..] else { panic!("{findings:?}") };
    assert!(published.contains("acknowledged"), "{published}");
}
