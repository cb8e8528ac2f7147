//! Recorded streams, split into their units: requests, packets, messages and records.

use bytes::BytesMut;
use rumqttc::v5::mqttbytes::v5::{Packet, Publish};
use serde_json::Value;

/// A request of HTTP/1.1.
#[derive(Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    /// In lower case, as they came.
    pub headers: Vec<(String, String)>,
    /// The request line and the headers, as they came.
    pub head: Vec<u8>,
    /// Without the lengths of chunks.
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// All requests of a connection, of which nothing may be left over.
#[track_caller]
pub fn requests(mut sent: &[u8]) -> Vec<Request> {
    let mut requests = Vec::new();
    while !sent.is_empty() {
        let end = sent.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a whole head") + 4;
        let (head, rest) = sent.split_at(end);
        let text = std::str::from_utf8(head).unwrap();
        let mut lines = text.trim_end().split("\r\n");
        let mut words = lines.next().unwrap().split(' ').map(str::to_owned);
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let header = |line: &str| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_ascii_lowercase(), value.trim().to_owned())
        };
        let mut request =
            Request { method, path, headers: lines.map(header).collect(), head: head.to_owned(), body: Vec::new() };
        let rest = if request.header("transfer-encoding").is_some() {
            chunks(rest, &mut request.body)
        } else {
            let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
            request.body.extend_from_slice(&rest[..length]);
            &rest[length..]
        };
        requests.push(request);
        sent = rest;
    }
    requests
}

/// Puts chunks together, and gives what follows them.
#[track_caller]
fn chunks<'a>(mut sent: &'a [u8], body: &mut Vec<u8>) -> &'a [u8] {
    loop {
        let end = sent.windows(2).position(|bytes| bytes == b"\r\n").unwrap();
        let length = usize::from_str_radix(std::str::from_utf8(&sent[..end]).unwrap(), 16).unwrap();
        let chunk = &sent[end + 2..];
        body.extend_from_slice(&chunk[..length]);
        sent = chunk[length..].strip_prefix(b"\r\n").unwrap();
        if length == 0 {
            return sent;
        }
    }
}

/// A packet of MQTT 5.
#[derive(Debug)]
pub struct MqttPacket {
    /// Its type (section 2.1.2): 1 is CONNECT.
    pub kind: u8,
    /// Set for a PUBLISH.
    pub publish: Option<Publish>,
    pub raw: Vec<u8>,
}

/// PUBLISH.
const MESSAGE: u8 = 3;

/// All packets of a connection, of which nothing may be left over.
#[track_caller]
pub fn packets(mut sent: &[u8]) -> Vec<MqttPacket> {
    let mut packets = Vec::new();
    while let Some(first) = sent.first() {
        // Seven bits a byte, the lowest first, while the eighth is set (section 1.5.5).
        let digits = sent[1..].iter().position(|digit| digit & 128 == 0).unwrap() + 1;
        let length = sent[1..=digits].iter().rev().fold(0, |length, digit| length << 7 | usize::from(digit & 127));
        let (raw, rest) = sent.split_at(1 + digits + length);
        let kind = first >> 4;
        let publish = (kind == MESSAGE).then(|| match Packet::read(&mut BytesMut::from(raw), None) {
            Ok(Packet::Publish(publish)) => publish,
            other => panic!("{other:?}"),
        });
        packets.push(MqttPacket { kind, publish, raw: raw.to_owned() });
        sent = rest;
    }
    packets
}

/// All messages of a syslog connection (RFC 5425), of which nothing may be left over.
#[track_caller]
pub fn messages(mut sent: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while !sent.is_empty() {
        let space = sent.iter().position(|byte| *byte == b' ').unwrap();
        let length: usize = std::str::from_utf8(&sent[..space]).unwrap().parse().unwrap();
        let message = &sent[space + 1..];
        messages.push(message[..length].to_owned());
        sent = &message[length..];
    }
    messages
}

/// The way to each value that is no object and no list, as `ledge audit egress` names fields.
pub fn leaves(value: &Value) -> Vec<String> {
    fn visit(value: &Value, path: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                let dot = if path.is_empty() { "" } else { "." };
                fields.iter().for_each(|(name, value)| visit(value, &format!("{path}{dot}{name}"), found));
            }
            Value::Array(items) if !items.is_empty() => {
                for item in items {
                    visit(item, &format!("{path}[]"), found);
                }
            }
            _ => found.push(path.to_owned()),
        }
    }
    let mut found = Vec::new();
    visit(value, "", &mut found);
    found
}

/// The same of a record. Its action names its form.
pub fn leaves_of_record(record: &Value) -> Vec<String> {
    let action = record["event"]["action"].as_str().unwrap();
    let own = |leaf: String| match leaf.strip_prefix("event.") {
        Some("action") => format!("event({action})"),
        Some(field) => format!("event({action}).{field}"),
        None => leaf,
    };
    leaves(record).into_iter().map(own).collect()
}
