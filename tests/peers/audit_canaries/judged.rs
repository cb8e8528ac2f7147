//! Judges the data that left the box, piece by piece.
//!
//! Permitted is this, and nothing else:
//!
//! * A message to the topic of a call over MQTT, or of a binding that answers, may repeat what that one call had: it is
//!   the answer, and goes through the broker back to the caller. It may not have anything of another call, nor
//!   properties, fields that are not selected or what was pushed.
//! * The user name and password of the broker are in MQTT CONNECT, and the token of the collector in its
//!   `Authorization`.
//! * Each server is shown the certificate that is configured for it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ledge::audit::config::AuditConfig;
use ledge::audit::layout::entries;
use ledge::audit::record::AuditRecord;
use serde_json::Value;

use super::outside::Outside;
use super::over_mqtt::CALL;
use super::recorder::Connection;
use super::secrets::{Canaries, Detector};
use super::streams::{leaves, leaves_of_record, messages, packets, requests};

/// The MQTT packet that begins a connection.
const CONNECT: u8 = 1;

/// The topics that are no answers.
const REPORTED: &str = "ledge/v1/box-1/reported";
const ONLINE: &str = "ledge/v1/box-1/online";

/// A part of what left.
struct Piece {
    /// The receiver and the kind of data.
    what: String,
    bytes: Vec<u8>,
    /// The places of canaries that may be in it: those that begin like this.
    permitted: Permitted,
    /// The fields that it has, and the message of `ledge audit egress` that names them.
    fields: Option<(&'static str, Vec<String>)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Permitted {
    Nothing,
    /// Places that begin like this.
    Places(&'static str),
    /// The places of one call over MQTT.
    OneCall,
}

/// Everything that left.
pub struct Judged<'a> {
    outside: &'a Outside,
    detector: Detector,
    places: BTreeSet<String>,
    pieces: Vec<Piece>,
    records: Vec<Value>,
}

impl<'a> Judged<'a> {
    /// Splits the recordings and copies.
    pub fn new(outside: &'a Outside, canaries: &Canaries) -> Self {
        for copy in AuditConfig::default().live_copies() {
            let is_recorded = outside.recorders().iter().any(|(name, _)| *name == copy.name());
            assert!(is_recorded, "nothing is known of what the live copy {} sends: give it a recorder", copy.name());
        }
        let places = canaries.places().into_iter().map(str::to_owned).collect();
        let detector = Detector::new(canaries);
        let mut judged = Self { outside, detector, places, pieces: Vec::new(), records: Vec::new() };
        for (name, recorder) in outside.recorders() {
            for connection in recorder.connections() {
                judged.connection(name, &connection);
            }
        }
        judged.files(&outside.synced());
        judged
    }

    /// The records of the copy on the platform, in their order.
    pub fn synced_records(&self) -> &[Value] {
        &self.records
    }

    fn add(&mut self, what: impl Into<String>, bytes: &[u8], permitted: Permitted) {
        self.pieces.push(Piece { what: what.into(), bytes: bytes.to_owned(), permitted, fields: None });
    }

    fn add_with(&mut self, what: impl Into<String>, bytes: &[u8], message: &'static str, fields: Vec<String>) {
        let fields = Some((message, fields));
        self.pieces.push(Piece { what: what.into(), bytes: bytes.to_owned(), permitted: Permitted::Nothing, fields });
    }

    fn connection(&mut self, name: &'static str, connection: &Connection) {
        let own = match name {
            "mqtt" => "certificate: mqtt",
            "updates" => "certificate: updates",
            "sync" => "certificate: sync",
            "syslog" => "certificate: syslog",
            _ => "certificate: otlp",
        };
        self.add(format!("{name}: certificate"), &connection.certificate, Permitted::Places(own));
        match name {
            "mqtt" => self.mqtt(&connection.sent),
            "syslog" => {
                for message in messages(&connection.sent) {
                    let text = String::from_utf8(message.clone()).unwrap();
                    // Structured data ends before the record.
                    let record: Value = serde_json::from_str(&text[text.find("] {").unwrap() + 2..]).unwrap();
                    self.add_with("syslog: message", &message, RECORD, leaves_of_record(&record));
                }
            }
            _ => self.http(name, &connection.sent),
        }
        // As a whole, too: nothing hides between two pieces.
        let permitted = match name {
            "mqtt" => return,
            "otlp" => Permitted::Places("otlp token"),
            _ => Permitted::Nothing,
        };
        self.add(format!("{name}: whole connection"), &connection.sent, permitted);
    }

    fn mqtt(&mut self, sent: &[u8]) {
        for packet in packets(sent) {
            let Some(publish) = packet.publish else {
                let permitted =
                    if packet.kind == CONNECT { Permitted::Places("mqtt connect: ") } else { Permitted::Nothing };
                self.add(format!("mqtt: packet of type {}", packet.kind), &packet.raw, permitted);
                continue;
            };
            match std::str::from_utf8(&publish.topic).unwrap() {
                REPORTED => {
                    let report: Value = serde_json::from_slice(&publish.payload).unwrap();
                    let message = "the reported document (JSON)";
                    self.add_with("mqtt: reported", &packet.raw, message, leaves(&report));
                }
                ONLINE => {
                    assert!([&b"online"[..], b"offline"].contains(&&publish.payload[..]), "{publish:?}");
                    self.add("mqtt: presence", &packet.raw, Permitted::Nothing);
                }
                topic => {
                    assert!(!topic.is_empty(), "{publish:?}");
                    self.add(format!("mqtt: answer to {topic}"), &packet.raw, Permitted::OneCall);
                }
            }
        }
    }

    fn http(&mut self, name: &'static str, sent: &[u8]) {
        let message = if name == "updates" { REQUEST } else { AUDIT_REQUEST };
        for request in requests(sent) {
            let what = format!("{name}: {} {}", request.method, request.path);
            let mut head = request.head.clone();
            if let Some(token) = request.header("authorization") {
                assert_eq!(name, "otlp");
                self.add(format!("{name}: authorization"), token.as_bytes(), Permitted::Places("otlp token"));
                head = String::from_utf8(head).unwrap().replace(token, "").into_bytes();
            }
            let headers = request.headers.iter().map(|(name, _)| name.clone());
            self.add_with(what.clone(), &head, message, headers.chain(["path".to_owned()]).collect());
            self.add(what, &request.body, Permitted::Nothing);
            if name == "otlp" {
                self.otlp(&request.body);
            }
        }
    }

    fn otlp(&mut self, body: &[u8]) {
        let body: Value = serde_json::from_slice(body).unwrap();
        let of = |value: &Value, key: &str| value[key].as_array().unwrap().clone();
        let mut found = Vec::new();
        for resource in of(&body, "resourceLogs") {
            for scope in of(&resource, "scopeLogs") {
                found.extend(of(&scope, "logRecords"));
            }
        }
        assert!(!found.is_empty());
        for log in found {
            let line = log["body"]["stringValue"].as_str().unwrap();
            let record = serde_json::from_str(line).unwrap();
            self.add_with("otlp: record", line.as_bytes(), RECORD, leaves_of_record(&record));
        }
    }

    /// Every file of the copy.
    fn files(&mut self, folder: &Path) {
        for (name, content) in crate::audit_sync::files_below(folder) {
            // The last one of each bundle has all that the ones before it have.
            if name.contains("tile/entries/") {
                for entry in entries(&content).unwrap() {
                    let record = serde_json::to_value(AuditRecord::parse(entry).unwrap()).unwrap();
                    let seq = usize::try_from(record["seq"].as_u64().unwrap()).unwrap();
                    if seq >= self.records.len() {
                        assert_eq!(seq, self.records.len());
                        self.add_with("sync: record", entry, RECORD, leaves_of_record(&record));
                        self.records.push(record);
                    }
                }
            }
            self.add(format!("sync: the file {name}"), &content, Permitted::Nothing);
        }
        assert!(!self.records.is_empty());
    }

    /// The detector works on the recordings: canaries of calls are in the messages from the broker to the box.
    pub fn assert_that_canaries_came(&self) {
        let came: BTreeSet<_> =
            self.outside.mqtt.connections().iter().flat_map(|of| self.detector.find(&of.received)).collect();
        let came: BTreeSet<_> = came.into_iter().map(|found| found.place).collect();
        let of_calls = self.places.iter().filter(|place| place.starts_with(CALL) && !place.ends_with(" whole payload"));
        for place in of_calls {
            assert!(came.contains(place), "{place} never came to the box");
        }
    }

    /// No canary is where it must not be; and the permitted ones were found, which shows that the search works.
    pub fn assert_that_none_left(&self) {
        let (mut leaks, mut seen) = (Vec::new(), BTreeMap::<String, usize>::new());
        for piece in &self.pieces {
            let found = self.detector.find(&piece.bytes);
            let calls: BTreeSet<_> = found.iter().map(|found| call_of(&found.place).to_owned()).collect();
            for found in found {
                let is_permitted = match piece.permitted {
                    Permitted::Nothing => false,
                    Permitted::Places(prefix) => found.place.starts_with(prefix),
                    Permitted::OneCall => found.place.starts_with(CALL) && calls.len() == 1,
                } && ["as it is", "as digits"].contains(&found.form.as_str());
                if is_permitted {
                    *seen.entry(found.place).or_default() += 1;
                } else {
                    leaks.push(format!("{}: {found:?}", piece.what));
                }
            }
        }
        leaks.dedup();
        assert!(leaks.is_empty(), "{} leaks:\n{}", leaks.len(), leaks.join("\n"));
        for place in ["mqtt connect: user", "mqtt connect: password", "otlp token", "certificate: sync"]
            .map(str::to_owned)
            .into_iter()
            .chain(["text: element", "numbers: id", "echo: element"].map(|place| format!("{CALL}{place}")))
        {
            assert!(seen.contains_key(&place), "{place} is nowhere: {seen:?}");
        }
    }

    /// `ledge audit egress` names each destination, how much it got, and every field.
    pub fn assert_that_all_is_told(&self, report: &Value) {
        let mut told = BTreeMap::new();
        for destination in report["destinations"].as_array().unwrap() {
            let sent: u64 =
                destination["sent"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum();
            told.insert(destination["destination"].as_str().unwrap().to_owned(), sent);
        }
        let recorded = self.outside.recorders().map(|(_, recorder)| {
            let bytes: usize = recorder.connections().iter().map(|connection| connection.sent.len()).sum();
            (recorder.address(), bytes as u64)
        });
        assert_eq!(told, BTreeMap::from(recorded), "{report}");
        for Piece { what, fields, .. } in &self.pieces {
            let Some((message, fields)) = fields else { continue };
            let named = named(report, message);
            for field in fields {
                assert!(named.iter().any(|name| is_named(name, field)), "{what}: {field} is not told: {named:?}");
            }
        }
    }
}

const RECORD: &str = "a record (JSON), in entry bundles, by syslog and by OTLP";
const REQUEST: &str = "a request for a file (HTTP GET; to a proxy, CONNECT with the host)";
const AUDIT_REQUEST: &str = "the request that carries them (HTTP GET, PUT and POST)";

/// The part of a place that says which call it is of.
fn call_of(place: &str) -> &str {
    place.split(": ").next().unwrap()
}

/// The fields of a message. One line may name several headers.
fn named(report: &Value, message: &str) -> Vec<String> {
    let kinds = report["contents"].as_array().unwrap();
    let mut messages = kinds.iter().flat_map(|kind| kind["messages"].as_array().unwrap());
    let found = messages.find(|found| found["name"] == message).unwrap_or_else(|| panic!("{message}: {report}"));
    let fields = found["fields"].as_array().unwrap().iter().map(|field| field["name"].as_str().unwrap());
    fields.flat_map(|names| names.split(", ")).map(str::to_owned).collect()
}

/// Returns `true` if `name` names this field, where `*` stands for any one. Of an empty or unknown field only the
/// beginning is there.
fn is_named(name: &str, field: &str) -> bool {
    let (mut names, mut fields) = (name.split('.'), field.split('.'));
    let mut is_same = |field: &str| {
        let name = names.next()?;
        Some(name == "*" || name == field || name.strip_suffix("[]") == Some(field))
    };
    fields.all(|field| is_same(field).unwrap_or(false))
}
