//! Passwords, certificates and permissions: mistakes are reported clearly, and corrections work without a restart.

use std::path::Path;

use crate::boxes::{call, call_until_answered, logged, receive, root, root_at, start};
use crate::broker::{Broker, Setup};
use crate::certificates::{Authority, Identity};
use crate::daemon::{TestDaemon, TestRoot, write};
use crate::message::Outgoing;
use crate::mqtt::Peer;
use crate::tools::run;

/// The daemon's reason why the broker is not connected.
#[track_caller]
fn reason(daemon: &TestDaemon) -> String {
    let line = logged(daemon, "mqtt.disconnected", 1);
    line["reason"].as_str().unwrap_or_else(|| panic!("no reason in {line}")).to_owned()
}

fn path(root: &TestRoot, name: &str) -> String {
    root.folder.path().join(name).display().to_string()
}

/// A root with a user that has its password in a file.
fn with_password(broker: &Broker, password: &str) -> TestRoot {
    let root = root(broker);
    write(Path::new(&path(&root, "password")), password.as_bytes());
    let file = path(&root, "password");
    root.set("mqtt.user=\"box\"").set(&format!("mqtt.password_file={file:?}"))
}

/// Anonymous clients may not connect to a broker with users, so the tests' own client is left out here.
#[track_caller]
fn call_as(broker: &Broker, user: &str, password: &str) -> String {
    let request = crate::message::add_sub("1", 2.0).to_string();
    let mut client = crate::tools::mosquitto("mosquitto_rr", broker);
    client.args(["-V", "5", "-q", "1", "-W", "30", "-u", user, "-P", password, "-e", "answers"]);
    run(client.args(["-t", "ledge/v1/box/infer/add_sub", "-m", &request]))
}

#[test]
fn a_wrong_password_is_named_and_a_corrected_file_is_read_without_a_restart() {
    let broker = Setup::new().users(&[("box", "right"), ("caller", "secret")]).start();
    let daemon = with_password(&broker, "wrong").start();
    let reason = reason(&daemon).to_lowercase();
    assert!(reason.contains("password") || reason.contains("authori"), "{reason}");
    assert!(!daemon.log().contains("\"wrong\""), "the password is in the log");
    // A file as an editor leaves it, with a line's end.
    write(Path::new(&path(&daemon.root, "password")), b"right\n");
    logged(&daemon, "mqtt.subscribed", 1);
    let answer = call_as(&broker, "caller", "secret");
    assert!(answer.contains("\"id\":\"1\""), "{answer}");
    assert!(!daemon.log().contains("right"), "the password is in the log");
}

/// A root with certificate files that need not exist yet.
fn with_certificate(broker: &Broker, authority: &Authority) -> TestRoot {
    let root = root_at(&broker.tls_url(), "box");
    let [ca, certificate, key] = ["ca.pem", "box.pem", "box.key"].map(|name| path(&root, name));
    write(Path::new(&ca), authority.pem().as_bytes());
    root.set(&format!("mqtt.tls.ca_file={ca:?}"))
        .set(&format!("mqtt.tls.certificate_file={certificate:?}"))
        .set(&format!("mqtt.tls.key_file={key:?}"))
}

fn put_in_place(daemon_root: &TestRoot, identity: &Identity) {
    write(Path::new(&path(daemon_root, "box.key")), identity.key.as_bytes());
    write(Path::new(&path(daemon_root, "box.pem")), identity.certificate.as_bytes());
}

/// A call by mosquitto's client with its own certificate.
#[track_caller]
fn call_with_tls(broker: &Broker, authority: &Authority) {
    let identity = authority.issue("caller");
    write(&broker.file("caller.pem"), identity.certificate.as_bytes());
    write(&broker.file("caller.key"), identity.key.as_bytes());
    let mut client = crate::tools::mosquitto("mosquitto_rr", broker);
    for (option, file) in [("--cafile", "ca.pem"), ("--cert", "caller.pem"), ("--key", "caller.key")] {
        client.arg(option).arg(broker.file(file));
    }
    client.args(["-V", "5", "-q", "1", "-W", "30", "-t", "ledge/v1/box/infer/add_sub", "-e", "answers"]);
    let answer = run(client.args(["-m", &crate::message::add_sub("tls", 2.0).to_string()]));
    assert!(answer.contains("\"id\":\"tls\"") && answer.contains("OUTPUT0"), "{answer}");
}

#[test]
fn a_box_with_a_certificate_speaks_tls_with_its_broker() {
    let authority = Authority::new();
    let broker = Setup::new().tls(&authority).start();
    let root = with_certificate(&broker, &authority);
    put_in_place(&root, &authority.issue("box"));
    let daemon = start(root);
    let line = logged(&daemon, "mqtt.connected", 1);
    assert!(line["broker"].as_str().unwrap().starts_with("mqtts://"), "{line}");
    call_with_tls(&broker, &authority);
}

#[test]
fn a_missing_certificate_is_named_and_used_once_it_is_there() {
    let authority = Authority::new();
    let broker = Setup::new().tls(&authority).start();
    let daemon = with_certificate(&broker, &authority).start();
    let reason = reason(&daemon);
    assert!(reason.contains("box.pem") || reason.contains("box.key"), "{reason}");
    put_in_place(&daemon.root, &authority.issue("box"));
    logged(&daemon, "mqtt.subscribed", 1);
    call_with_tls(&broker, &authority);
}

#[test]
fn a_certificate_of_another_authority_is_refused_until_the_right_one_is_there() {
    let authority = Authority::new();
    let broker = Setup::new().tls(&authority).start();
    let root = with_certificate(&broker, &authority);
    put_in_place(&root, &Authority::new().issue("box"));
    let daemon = root.start();
    // The reason depends on how soon the broker closes the connection, so only check that there is one.
    assert!(!reason(&daemon).is_empty());
    put_in_place(&daemon.root, &authority.issue("box"));
    logged(&daemon, "mqtt.subscribed", 1);
}

#[test]
fn a_broker_that_the_authority_did_not_sign_is_not_spoken_to() {
    let broker = Setup::new().tls(&Authority::new()).start();
    let ours = Authority::new();
    let root = with_certificate(&broker, &ours);
    put_in_place(&root, &ours.issue("box"));
    let daemon = root.start();
    let reason = reason(&daemon).to_lowercase();
    assert!(reason.contains("certificate") || reason.contains("issuer") || reason.contains("authority"), "{reason}");
    assert_eq!(daemon.events("mqtt.connected"), [] as [serde_json::Value; 0]);
}

#[test]
fn an_answer_that_the_broker_refuses_is_logged_and_its_request_settled() {
    let rules = "topic readwrite answers\ntopic readwrite ledge/#\ntopic read forbidden\n";
    let mut broker = Setup::new().persistent().acl(rules).start();
    let daemon = start(root(&broker));
    let peer = Peer::subscribed(&broker, "caller", "answers");
    peer.send(Outgoing::add_sub("lost", 2.0).answer_to("forbidden"));
    let line = logged(&daemon, "mqtt.message_refused", 1);
    assert_eq!(line["topic"], "forbidden", "{line}");
    assert!(line["reason"].as_str().is_some_and(|reason| reason.to_lowercase().contains("authori")), "{line}");
    call(&peer, "another");
    // Unsettled, it would come again with the next connection.
    broker.stop();
    broker.start_again();
    logged(&daemon, "mqtt.connected", 2);
    call(&peer, "one more");
    assert_eq!(daemon.events("mqtt.message_refused").len(), 1, "{}", daemon.log());
    // Put right, the next answer goes there.
    write(&broker.file("acl"), format!("{rules}topic readwrite forbidden\n").as_bytes());
    broker.stop();
    broker.start_again();
    peer.subscribe("forbidden");
    logged(&daemon, "mqtt.connected", 3);
    peer.send(Outgoing::add_sub("found", 2.0).answer_to("forbidden"));
    assert_eq!(receive(&peer, "found").1.topic, "forbidden");
}

#[test]
fn a_refused_subscription_is_named_and_renewed_when_it_is_allowed() {
    let broker = Setup::new().dynamic_security().start();
    let daemon = root(&broker).start();
    let line = logged(&daemon, "mqtt.subscription_refused", 1);
    assert!(line["filter"].as_str().is_some_and(|filter| filter.starts_with("ledge/v1/box/infer/")), "{line}");
    assert!(line["reason"].as_str().is_some_and(|reason| reason.to_lowercase().contains("authori")), "{line}");
    // The broker disconnects clients with changed rules, so that they connect and subscribe again.
    broker.control(&["addRoleACL", "anyone", "subscribePattern", "#", "allow", "1"]);
    let peer = Peer::subscribed(&broker, "caller", "answers");
    call_until_answered(&peer);
}
