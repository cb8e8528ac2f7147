//! Nothing personal leaves: a daemon that sends wherever it can, canaries wherever a caller can put any, and a search
//! of every byte that went out.

mod judged;
mod outside;
mod over_http;
mod over_mqtt;
mod recorder;
mod secrets;
mod streams;
mod views;

use std::collections::BTreeSet;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::boxes::{logged, wait_until};
use crate::daemon::{TestDaemon, TestRoot, data, write};
use crate::mqtt::Peer;
use crate::platform::look;
use crate::tools::run;
use judged::Judged;
use outside::Outside;
use over_http::Callers;
use over_mqtt::MqttCallers;
use secrets::{Canaries, Detector, forms, hashes};

/// The places of the findings.
fn places(detector: &Detector, sent: &[u8]) -> BTreeSet<String> {
    detector.find(sent).into_iter().map(|found| found.place).collect()
}

/// As a leak would have it: in the midst of other bytes.
fn planted(leak: &[u8]) -> Vec<u8> {
    [b"{\"at\":\"2026-01-01T00:00:00Z\",\"text\":\"", leak, b"\",\"more\":0.25}"].concat()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_canary_is_found_in_every_form_and_envelope_and_nothing_else_is() {
    let mut canaries = Canaries::default();
    let (word, bytes) = (canaries.word("a word").into_bytes(), canaries.bytes("some bytes"));
    let numbers = canaries.numbers("some numbers");
    let content = [b"a body with ".as_slice(), &bytes].concat();
    canaries.content("a whole body", &content);
    let detector = Detector::new(&canaries);
    let assert_found = |leak: &[u8], place: &str, form: &str| {
        let upper = leak.to_ascii_uppercase();
        let mut envelopes = vec![planted(leak), planted(&upper), gzip(&planted(leak)), planted(&gzip(&gzip(leak)))];
        if leak.iter().all(u8::is_ascii_graphic) {
            envelopes.push(planted(&leak.chunks(7).flat_map(|line| [line, b"\r\n"].concat()).collect::<Vec<_>>()));
        }
        for (number, sent) in envelopes.iter().enumerate() {
            assert!(places(&detector, sent).contains(place), "{place} {form} in envelope {number}");
        }
    };
    for (place, secret) in [("a word", &word), ("some bytes", &bytes)] {
        for (form, leak) in forms(secret) {
            assert_found(&leak, place, form);
        }
        // A part of it is enough.
        for part in [&secret[..14], &secret[11..]] {
            assert_found(part, place, "in part");
        }
    }
    for (place, secret) in [("a word", &word), ("some bytes", &bytes), ("a whole body", &content)] {
        for (algorithm, hash) in hashes(secret) {
            for (form, leak) in forms(&hash).into_iter().chain(forms(&hash[..16])) {
                // Reversed, the hash ends with its beginning.
                assert_found(&leak, place, &format!("{algorithm} {form}"));
            }
        }
    }
    assert_found(serde_json::to_string(&numbers).unwrap().as_bytes(), "some numbers", "in JSON");
    assert_found(format!("{:?}", f64::from(numbers[3])).as_bytes(), "some numbers", "as digits");
    assert_found(bytemuck::cast_slice(&numbers), "some numbers", "as bits");
    for around in ["https://host/?q=%22", "\\\"", "\\\\\\\""] {
        assert_found(format!("{around}{}", String::from_utf8(word.clone()).unwrap()).as_bytes(), "a word", around);
    }

    // Data that only resembles a canary is not found, and neither is a hash with a key.
    let mut other = word.clone();
    for byte in other.iter_mut().step_by(6) {
        *byte ^= 1;
    }
    let keyed = blake3::keyed_hash(&[7; 32], &word);
    for innocent in [other.as_slice(), keyed.as_bytes(), keyed.to_hex().as_bytes(), b"0.5", &content[..12]] {
        assert_eq!(detector.find(&planted(innocent)), BTreeSet::new());
    }
}

/// `chelsea.jpg` with a comment and the description of a camera (EXIF).
fn photograph(canaries: &mut Canaries, place: &str) -> Vec<u8> {
    let plain = data("photos/chelsea.jpg");
    let description = canaries.word(&format!("{place}: EXIF"));
    // TIFF with one entry, ImageDescription, followed by its text.
    let length = u32::try_from(description.len() + 1).unwrap();
    let entry = [&[0x0e, 1, 2, 0], &length.to_le_bytes()[..], &26_u32.to_le_bytes()].concat();
    let tiff = [b"II*\0\x08\0\0\0\x01\0", &entry[..], &[0; 4], description.as_bytes(), &[0]].concat();
    let segment = |marker: u8, content: &[u8]| {
        let length = u16::try_from(content.len() + 2).unwrap().to_be_bytes();
        [&[0xff, marker], &length[..], content].concat()
    };
    let exif = segment(0xe1, &[b"Exif\0\0", &tiff[..]].concat());
    let comment = segment(0xfe, canaries.word(&format!("{place}: comment")).as_bytes());
    let binary = segment(0xfe, &canaries.bytes(&format!("{place}: binary comment")));
    let photograph = [&plain[..2], &exif, &comment, &binary, &plain[2..]].concat();
    canaries.content(&format!("{place}: all of it"), &photograph);
    photograph
}

/// Asks for everything that can be asked for, and gives how many inference calls were answered.
fn ask_everything(outside: &Outside, daemon: &TestDaemon, canaries: &mut Canaries) -> usize {
    let mut callers = Callers { daemon, canaries, answered: 0 };
    callers.ask_everything();
    let over_http = callers.answered;
    // The next report includes everything that went wrong.
    let reports = outside.reports();
    wait_until("a report", || outside.reports() > reports);
    let peer = Peer::subscribed(&outside.broker, "caller", "answers/#");
    for filter in ["ledge/v1/box-1/result/#", "cultivar/#", "echo/#"] {
        peer.subscribe(filter);
    }
    let mut callers = MqttCallers { daemon, peer, canaries, answered: 0 };
    callers.ask_everything();
    over_http + callers.answered
}

/// Stops the daemon in order.
fn stop(mut daemon: TestDaemon) -> TestRoot {
    daemon.signal("TERM");
    assert!(daemon.wait().success());
    daemon.kill()
}

#[test]
fn of_all_that_callers_sent_nothing_leaves_but_the_answers_to_them() {
    let outside = Outside::new();
    let mut canaries = Canaries::default();
    let daemon = outside.enrol(&mut canaries).start();
    logged(&daemon, "mqtt.subscribed", 1);
    logged(&daemon, "update.committed", 1);
    let answered = ask_everything(&outside, &daemon, &mut canaries);
    // The views are read again, with a canary of their owner.
    let view = format!("\n[[entity]]\nname = \"other\"\ndescription = \"{}\"\n", canaries.word("owner: a description"));
    let views = daemon.root.folder.path().join("feature_views.d/other.toml");
    write(&views, view.as_bytes());
    daemon.signal("HUP");
    logged(&daemon, "repository.read", 2);
    look(&daemon);
    let records = synced_records(&daemon);
    // A report is made after the last call, so that it contains any traces of the call.
    let reports = outside.reports();
    wait_until("two more reports", || outside.reports() >= reports + 2);
    let topic = canaries.word("changed setting: a topic");
    let root = stop(daemon).set(&format!("mqtt.response_topics=[\"answers/#\", \"{topic}/#\"]"));
    let daemon = root.start();
    logged(&daemon, "mqtt.subscribed", 1);
    assert!(synced_records(&daemon) > records);
    let root = stop(daemon);

    let judged = Judged::new(&outside, &canaries);
    judged.assert_that_canaries_came();
    judged.assert_that_none_left();
    let report: Value = serde_json::from_str(&run(&mut root.command(&["audit", "egress", "--json"]))).unwrap();
    judged.assert_that_all_is_told(&report);
    let records = judged.synced_records();
    let of = |action: &str| records.iter().filter(|record| record["event"]["action"] == action).collect::<Vec<_>>();
    let calls = of("inference");
    let ok: Vec<_> = calls.into_iter().filter(|record| record["event"]["outcome"] == "ok").collect();
    assert_eq!(ok.len(), answered, "{ok:?}");
    for record in ok {
        assert!(record["actor"]["tag"].is_string() && record["event"]["input"].is_string(), "{record}");
        assert!(record["event"]["output"].is_string(), "{record}");
    }
    // A model that does not exist has no name; calls of it are counted by the minute.
    assert!(of("inference_minute").iter().any(|record| record["event"]["model"] == Value::Null));
    // Records of reads and pushes have the entities as tags, for callers over MQTT as well.
    let features = [of("features_pushed"), of("features_read")].concat();
    for kind in ["ip", "mqtt"] {
        for action in ["features_pushed", "features_read"] {
            let is_such = |record: &&&Value| record["actor"]["kind"] == kind && record["event"]["action"] == action;
            let found = features.iter().find(is_such).unwrap_or_else(|| panic!("{kind} {action}: {features:?}"));
            assert!(found["event"]["entities"][0].is_string() && found["event"]["unlisted"].is_null(), "{found}");
        }
    }
    assert!(of("features_read").iter().any(|record| record["event"]["model"].is_string()));
    assert_eq!(of("connection_refused")[0]["event"]["destination"], "unlisted");
    for action in ["started", "stopped", "configuration_changed", "connection_opened", "metadata_accepted"] {
        assert!(!of(action).is_empty(), "{action}");
    }
    assert_eq!(of("configuration_changed").last().unwrap()["event"]["keys"], json!(["mqtt.response_topics"]));
}

/// Waits until the platform has all records, and gives how many.
fn synced_records(daemon: &TestDaemon) -> u64 {
    let mut size = 0;
    wait_until("the copy to be whole", || {
        let status = daemon.client().get("/audit/status").json();
        size = status["size"].as_u64().unwrap();
        status["sync"]["size"] == size && size > 0
    });
    size
}
