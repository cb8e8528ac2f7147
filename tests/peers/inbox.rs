//! Messages about the documents of an inbox at a real broker: each at least once, through kills of the box and of the
//! broker; none without an entry that names documents.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::boxes::root_at;
use crate::broker::Broker;
use crate::daemon::{TestDaemon, TestRoot, data, model_folder, write};
use crate::mqtt::Peer;

const MODEL: &str = "document_reader";

/// The time within which documents are read and their messages arrive.
const LIMIT: Duration = Duration::from_mins(3);

fn root(broker: &Broker, scans: &Path, send: &str) -> TestRoot {
    let config = fs::read_to_string(model_folder(MODEL).join("model.toml")).unwrap();
    let root = root_at(&broker.url(), "box")
        .models(&[MODEL])
        .file("document_reader/model.toml", config + "\n[response_cache]\nenable = true\n");
    let config = format!(
        "[[inbox]]\nname = \"scans\"\npath = \"{}\"\nmqtt = true\npoll_interval_ms = 100\nsettle_ms = 200\n\
         [[egress.allow]]\nhost = \"127.0.0.1:{}\"\nregion = \"lan\"\nsend = [{send}]\n",
        scans.display(),
        broker.port
    );
    write(&root.folder.path().join("ledge.toml"), config.as_bytes());
    root
}

fn scan(scans: &Path, numbers: std::ops::Range<usize>) {
    for number in numbers {
        write(&scans.join(format!("invoice-{number}.pdf")), &data("documents/invoice.pdf"));
    }
}

#[track_caller]
fn wait_until(what: &str, daemon: &TestDaemon, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn done(scans: &Path) -> usize {
    fs::read_dir(scans.join("done")).map_or(0, Iterator::count)
}

#[test]
fn each_document_is_published_at_least_once_through_kills_of_box_and_broker() {
    let (folder, mut broker) = (tempfile::tempdir().unwrap(), Broker::new());
    let scans = folder.path();
    let daemon = root(&broker, scans, "\"documents\"").start();
    let peer = Peer::subscribed(&broker, "watcher", "ledge/v1/box/documents/scans");
    scan(scans, 0..10);
    let first = peer.receive().json();
    assert_eq!((&first["inbox"], &first["device"]), (&"scans".into(), &"box".into()));
    assert_eq!(first["fields"]["number"]["value"], "R-2048");

    broker.kill();
    scan(scans, 10..20);
    wait_until("documents are read without a broker", &daemon, || done(scans) == 20);
    let daemon = daemon.kill().start();
    let waiting = || daemon.client().get("/inboxes").json()["inboxes"][0]["receivers"][0].clone();
    wait_until("it is reported", &daemon, || waiting()["error"].is_string() && waiting()["waiting"].as_u64() > Some(0));
    broker.start_again();
    scan(scans, 20..30);

    let mut ids: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut take = |message: serde_json::Value| {
        let text = |key: &str| message[key].as_str().unwrap().to_owned();
        ids.entry(text("file")).or_default().insert(text("id"));
        ids.len()
    };
    take(first);
    while take(peer.receive().json()) < 30 {}
    assert!(ids.values().all(|ids| ids.len() == 1), "{ids:?}");
    wait_until("nothing waits", &daemon, || waiting()["waiting"] == 0 && waiting()["error"].is_null());
}

#[test]
fn nothing_is_published_where_the_broker_may_get_other_contents_only() {
    let (folder, broker) = (tempfile::tempdir().unwrap(), Broker::new());
    let root = root(&broker, folder.path(), "\"answers\", \"presence\"");
    let mistakes = root.mistakes();
    assert!(mistakes.iter().any(|mistake| mistake.contains("inbox[0].mqtt")), "{mistakes:?}");
}
