//! The audit log as users see it: its status and files over HTTP, records of administration, and of data that left.

use std::io::Read;
use std::net::TcpListener;

use serde_json::{Value, json};

use crate::core::add_sub_request;
use crate::daemon::{TestDaemon, TestRoot, write};

/// The entries of a bundle: each behind its length in two bytes.
fn entries(mut bundle: &[u8]) -> Vec<Value> {
    let mut entries = Vec::new();
    while let Some((length, rest)) = bundle.split_first_chunk() {
        let (entry, rest) = rest.split_at(usize::from(u16::from_be_bytes(*length)));
        entries.push(serde_json::from_slice(entry).unwrap());
        bundle = rest;
    }
    entries
}

#[test]
fn an_answer_to_an_administrative_request_finds_its_record_under_the_signed_head() {
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    let mut client = daemon.client();
    assert_eq!(client.post_json("/v2/repository/models/add_sub/unload", &json!({})).status, 200);
    let note = client.get("/audit/logs/1/checkpoint");
    assert_eq!((note.status, note.header("content-type")), (200, Some("text/plain; charset=utf-8")));
    let text = String::from_utf8(note.body).unwrap();
    let mut lines = text.lines();
    let (origin, size) = (lines.next().unwrap(), lines.next().unwrap());

    let bundle = client.get(&format!("/audit/logs/1/tile/entries/000.p/{size}"));
    assert_eq!((bundle.status, bundle.header("content-type")), (200, Some("application/octet-stream")));
    assert!(bundle.header("cache-control").unwrap().contains("immutable"));
    let records = entries(&bundle.body);
    assert_eq!(records.len().to_string(), size);
    let unloaded = records.iter().find(|record| record["event"]["action"] == "model_unloaded").unwrap();
    assert_eq!((&unloaded["event"]["model"], &unloaded["actor"]["kind"]), (&json!("add_sub"), &json!("ip")));
    let hashes = client.get(&format!("/audit/logs/1/tile/0/000.p/{size}"));
    assert_eq!(hashes.body.len(), 32 * records.len());

    let status = client.get("/audit/status").json();
    assert_eq!((&status["origin"], &status["error"], &status["sync"]), (&json!(origin), &json!(null), &json!(null)));
    assert!(status["size"].as_u64().unwrap() >= records.len() as u64, "{status}");
    assert!(status["checkpoint"].as_str().unwrap().starts_with(origin), "{status}");
    let lost: u64 = daemon.metric("ledge_audit_events_total{outcome=\"lost\"}");
    assert_eq!((daemon.metric("ledge_audit_failed"), lost), (0, 0));

    let beyond =
        ["tile/entries/000", "tile/entries/000.p/255", "tile/1/000.p/1", "tile/entries/001.p/1", "tile/0/../../key"];
    for path in beyond
        .map(|path| format!("/audit/logs/1/{path}"))
        .into_iter()
        .chain(["/audit/logs/0/checkpoint", "/audit/logs/01/checkpoint", "/audit/logs/7/checkpoint"].map(str::to_owned))
    {
        assert_eq!(client.get(&path).status, 404, "{path}");
    }
}

#[test]
fn what_the_audit_log_could_not_tell_of_is_not_done_and_inference_goes_on() {
    let root = TestRoot::new().models(&["add_sub"]);
    // A file in the place of the folder.
    write(&root.folder.path().join("audit"), b"");
    let daemon = root.start();
    let mut client = daemon.client();
    let told = loop {
        let status = client.get("/audit/status").json();
        if let Some(error) = status["error"].as_str() {
            break error.to_owned();
        }
    };
    for path in [
        "/v2/repository/models/add_sub/unload",
        "/features/snapshot",
        "/updates/trust/reset",
        "/keys",
        "/keys/x/revoke",
    ] {
        let refused = client.post_json(path, &json!({}));
        assert_eq!(refused.status, 503, "{path}");
        assert!(refused.error().contains(&told), "{refused:?}");
    }
    assert_eq!(client.get("/features/backup").status, 503);
    assert_eq!(client.post_json("/v2/models/add_sub/infer", &add_sub_request(1, 1)).status, 200);
}

/// Lets a daemon say its first words to a broker, which answers nothing.
fn say_hello(broker: &TcpListener) {
    let (mut connection, _) = broker.accept().unwrap();
    let mut first = [0];
    connection.read_exact(&mut first).unwrap();
}

fn counts(daemon: &TestRoot) -> Value {
    let output = daemon.command(&["audit", "egress", "--json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn what_went_out_is_counted_over_stops_and_kills() {
    let broker = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = broker.local_addr().unwrap().to_string();
    let root = TestRoot::new().set(&format!("mqtt.broker=mqtt://{at}"));
    let sent = |report: &Value| {
        let of = report["destinations"].as_array().unwrap().iter().find(|of| of["destination"] == at.as_str()).unwrap();
        (of["connections"].as_u64().unwrap(), of["sent"]["protocol"].as_u64().unwrap())
    };
    assert_eq!(counts(&root)["counted_since"], json!(null));

    let stop = |mut daemon: TestDaemon| {
        say_hello(&broker);
        daemon.signal("TERM");
        assert!(daemon.wait().success());
        daemon.kill()
    };
    let root = stop(root.start());
    let report = counts(&root);
    let first = sent(&report);
    assert!(first.0 >= 1 && first.1 > 10, "{report}");

    // Killed: what was written before stays whole, and at most the last ten seconds are missing.
    let daemon = root.start();
    say_hello(&broker);
    let root = daemon.kill();
    let killed = sent(&counts(&root));
    assert!(killed >= first, "{killed:?}");

    let root = stop(root.start());
    let report = counts(&root);
    let last = sent(&report);
    assert!(last.0 > killed.0 && last.1 > killed.1, "{report}");
    assert_eq!(report["counts_were_damaged"], false);
}

#[test]
fn the_closed_form_of_a_record_is_printed() {
    let output = TestRoot::new().command(&["audit", "schema"]).output().unwrap();
    let schema: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(schema["additionalProperties"], false, "{schema}");
    let text = schema.to_string();
    assert!(text.contains("\"model_loaded\"") && text.contains("\"records_lost\""));
}
