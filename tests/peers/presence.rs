//! Presence and reports: a client of the broker sees which boxes are online, and their versions.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};

use serde_json::Value;

use crate::boxes::{logged, named_root, root_at, start, start_box};
use crate::broker::{Broker, Setup};
use crate::mqtt::Peer;
use crate::tools::{mosquitto, run};

const ONLINE: &str = "ledge/v1/box/online";
const REPORTED: &str = "ledge/v1/box/reported";

/// Waits for a message of the topic with this text.
#[track_caller]
fn wait_for(peer: &Peer, topic: &str, text: &str) {
    loop {
        let message = peer.receive();
        if message.topic == topic && message.text() == text {
            return;
        }
    }
}

/// The message that the broker retains for a topic.
#[track_caller]
fn kept(broker: &Broker, topic: &str) -> String {
    run(mosquitto("mosquitto_sub", broker).args(["-V", "5", "-W", "30", "-C", "1", "-t", topic])).trim().to_owned()
}

#[test]
fn a_box_is_online_until_it_is_stopped_or_killed() {
    let broker = Broker::new();
    let peer = Peer::subscribed(&broker, "watcher", ONLINE);
    let daemon = start_box(&broker);
    wait_for(&peer, ONLINE, "online");
    assert_eq!(kept(&broker, ONLINE), "online");
    // By the last will, which the broker sends.
    let root = daemon.kill();
    wait_for(&peer, ONLINE, "offline");
    assert_eq!(kept(&broker, ONLINE), "offline");
    let mut daemon = start(root);
    wait_for(&peer, ONLINE, "online");
    daemon.signal("TERM");
    assert!(daemon.wait().success());
    wait_for(&peer, ONLINE, "offline");
    assert_eq!(kept(&broker, ONLINE), "offline");
}

#[test]
fn a_report_says_which_models_are_there() {
    let broker = Broker::new();
    let _daemon = start_box(&broker);
    let report: Value = serde_json::from_str(&kept(&broker, REPORTED)).unwrap();
    assert!(report.to_string().contains("add_sub"), "{report}");
    assert!(report.to_string().contains(env!("CARGO_PKG_VERSION")), "{report}");
    // For the inventory: this program is from no package, and the box is no member of a platform.
    assert_eq!((&report["package"], &report["certificate"]), (&Value::Null, &Value::Null));
    assert_eq!(report["hardware"]["architecture"], std::env::consts::ARCH);
    assert!(report["load"]["disk"]["total_bytes"].as_u64().unwrap() > 0, "{report}");
    assert!(report["models"].as_array().unwrap().iter().all(|model| model["origin"] == "own"), "{report}");
}

#[test]
fn a_broker_that_forgot_a_box_is_told_again() {
    let mut broker = Broker::new();
    let daemon = start_box(&broker);
    for restart in 1..=2 {
        broker.stop();
        // Without persistence, so that messages kept afterwards were published afterwards.
        broker.start_again();
        logged(&daemon, "mqtt.subscribed", restart + 1);
        assert_eq!(kept(&broker, ONLINE), "online");
        assert!(kept(&broker, REPORTED).contains("add_sub"));
    }
}

#[test]
fn a_broker_that_says_offline_after_its_own_restart_is_put_right() {
    // A broker that keeps messages may publish the last will of a box after its own end broke the connection.
    let mut broker = Setup::new().persistent_when_killed().start();
    let daemon = start_box(&broker);
    broker.kill();
    broker.start_again();
    logged(&daemon, "mqtt.connected", 2);
    let peer = Peer::subscribed(&broker, "watcher", ONLINE);
    wait_for(&peer, ONLINE, "online");
    assert_eq!(kept(&broker, ONLINE), "online");
}

#[test]
fn boxes_are_told_apart() {
    let broker = Broker::new();
    let first = start(named_root(&broker, "first"));
    let _second = start(named_root(&broker, "second"));
    let peer = Peer::subscribed(&broker, "watcher", "ledge/v1/+/online");
    wait_for(&peer, "ledge/v1/second/online", "online");
    drop(first);
    wait_for(&peer, "ledge/v1/first/online", "offline");
    assert_eq!(kept(&broker, "ledge/v1/second/online"), "online");
}

/// A broker that sends `words` after it has read this many bytes of a connection, and closes it.
fn curt(words: &'static [u8], read: usize) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("mqtt://{}", listener.local_addr().unwrap());
    // It ends with the process of this test, of which there is one each.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // The packet fits into a large buffer, and comes whole.
            let _ = stream.read(&mut vec![0; read]);
            let _ = stream.write_all(words);
        }
    });
    url
}

#[test]
fn a_box_whose_session_was_taken_gives_way_although_nothing_can_be_sent_any_more() {
    // CONNACK and DISCONNECT with the reason 0x8E, and a reset, since something was left unread.
    let url = curt(b"\x20\x03\x00\x00\x00\xe0\x02\x8e\x00", 1);
    let daemon = root_at(&url, "box").set("mqtt.reconnect_max_s=60").start();
    let line = logged(&daemon, "mqtt.disconnected", 1);
    assert!(line["reason"].as_str().unwrap().contains("another client has connected"), "{line}");
    assert!(line["retry_in_ms"].as_u64().unwrap() >= 30_000, "{line}");
}

#[test]
fn a_broker_that_closes_without_an_answer_may_want_the_old_version() {
    let daemon = root_at(&curt(b"", 1 << 16), "box").start();
    let line = logged(&daemon, "mqtt.disconnected", 1);
    assert!(line["reason"].as_str().unwrap().contains("set mqtt.protocol = \"3.1.1\""), "{line}");
    drop(daemon);
    let daemon = root_at(&curt(b"", 1 << 16), "box").set("mqtt.protocol=\"5\"").start();
    let line = logged(&daemon, "mqtt.disconnected", 1);
    assert!(!line["reason"].as_str().unwrap().contains("mqtt.protocol"), "{line}");
}
