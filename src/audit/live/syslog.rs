//! The live copy by syslog: RFC 5424 messages over TLS (RFC 5425), or over plain TCP on this machine (RFC 6587), each
//! with its length before it.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ledge_base::clock;
use ledge_base::names::DeviceName;
use ledge_base::toml_check::{empty_if_none, none_if_empty};
use ledge_egress::{Egress, HostPort, TlsClientFiles};
use serde::{Deserialize, Serialize};

use super::copy::{LiveCopy, LiveCopyAddress, LiveCopyDelivery, LiveCopyDisclosure, RecordFramer};
use crate::status::LiveCopyRecord;

/// "Log audit" (RFC 5424, section 6.2.1).
const FACILITY: u8 = 13;
const WARNING: u8 = 4;
const INFORMATIONAL: u8 = 6;

/// The beginning of a message in UTF-8 (RFC 5424, section 6.4). Not needed for ASCII.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// A server that each record is also sent to at once, by syslog (RFC 5424 over RFC 5425). It may lose some.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SyslogConfig {
    /// The server; `None`: records are not sent by syslog.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub to: Option<HostPort>,
    pub encrypted: bool,
    /// The section `[audit.syslog.tls]`.
    pub tls: TlsClientFiles,
}

impl Default for SyslogConfig {
    fn default() -> Self {
        Self { to: None, encrypted: true, tls: TlsClientFiles::default() }
    }
}

impl LiveCopy for SyslogConfig {
    fn name(&self) -> &'static str {
        "syslog"
    }

    fn address_key(&self) -> &'static str {
        "to"
    }

    fn address(&self) -> Option<LiveCopyAddress> {
        let at = self.to.clone()?;
        Some(LiveCopyAddress { text: at.to_string(), at, is_encrypted: self.encrypted })
    }

    fn encryption_advice(&self) -> &'static str {
        "set audit.syslog.encrypted"
    }

    fn tls(&self) -> &TlsClientFiles {
        &self.tls
    }

    fn resolve(&mut self, root: &Path) {
        self.tls.resolve(root);
    }

    fn disclosure(&self) -> LiveCopyDisclosure {
        LiveCopyDisclosure { protocol: "syslog", beside_records: Some("the process id"), request_headers: &[] }
    }

    fn delivery(&self, _: &LiveCopyAddress, device: &DeviceName, _: &Egress) -> LiveCopyDelivery {
        LiveCopyDelivery::Stream(Box::new(SyslogFramer { device: device.to_string() }))
    }
}

/// Makes the messages.
struct SyslogFramer {
    device: String,
}

impl RecordFramer for SyslogFramer {
    /// RFC 5425, section 4.3.1, and RFC 6587, section 3.4.1: the length before the message says where it ends.
    fn frame(&self, record: &LiveCopyRecord) -> Vec<u8> {
        let message = self.message(record);
        [format!("{} ", message.len()).as_bytes(), &message].concat()
    }
}

impl SyslogFramer {
    /// RFC 5424, section 6: `<PRI>1 TIMESTAMP HOSTNAME APP-NAME PROCID MSGID [STRUCTURED-DATA] MSG`.
    fn message(&self, record: &LiveCopyRecord) -> Vec<u8> {
        let severity = if record.is_warning { WARNING } else { INFORMATIONAL };
        let priority = u16::from(FACILITY) * 8 + u16::from(severity);
        let at = clock::rfc3339_micros(i64::try_from(record.at_ms).unwrap_or(i64::MAX).saturating_mul(1000));
        let head = format!(
            "<{priority}>1 {at} {host} ledge {process} {id} [ledge@32473 log=\"{log}\" seq=\"{seq}\" leaf=\"{leaf}\" lossy=\"true\"] ",
            host = header_field(&self.device, 255),
            process = std::process::id(),
            id = header_field(record.action, 32),
            log = escaped(&record.origin),
            seq = record.seq,
            leaf = STANDARD.encode(record.leaf.0),
        );
        let mut message = head.into_bytes();
        if !record.line.is_ascii() {
            message.extend_from_slice(BOM);
        }
        message.extend_from_slice(record.line.trim_ascii_end());
        message
    }
}

/// A field of the header: printable ASCII without spaces, of at most `max_length` characters. `-` stands for no value
/// (section 6).
fn header_field(text: &str, max_length: usize) -> String {
    let field: String = text.chars().filter(char::is_ascii_graphic).take(max_length).collect();
    if field.is_empty() { "-".to_owned() } else { field }
}

/// The value of a parameter (section 6.3.3).
fn escaped(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for character in value.chars() {
        if matches!(character, '"' | '\\' | ']') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn copy() -> SyslogFramer {
        SyslogFramer { device: "box-7".into() }
    }

    fn record(line: &str) -> LiveCopyRecord {
        LiveCopyRecord {
            origin: "ledge.audit/box-7/1".into(),
            seq: 41,
            at_ms: 1_795_222_800_500,
            leaf: tlog_tiles::Hash([7; 32]),
            action: "access_denied",
            is_warning: true,
            line: line.into(),
        }
    }

    #[test]
    fn a_message_has_the_form_of_rfc_5424() {
        let message = String::from_utf8(copy().message(&record("{\"seq\":41}\n"))).unwrap();
        let process = std::process::id();
        assert_eq!(
            message,
            format!(
                "<108>1 2026-11-21T01:00:00.500Z box-7 ledge {process} access_denied \
                 [ledge@32473 log=\"ledge.audit/box-7/1\" seq=\"41\" leaf=\"BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=\" \
                 lossy=\"true\"] {{\"seq\":41}}"
            )
        );
        let frame = copy().frame(&record("{\"seq\":41}\n"));
        assert_eq!(frame, format!("{} {message}", message.len()).into_bytes());
        let plain = copy().message(&LiveCopyRecord { is_warning: false, ..record("\u{e9}") });
        assert!(plain.starts_with(b"<110>1 ") && plain.ends_with(b" \xef\xbb\xbf\xc3\xa9"));
    }

    proptest! {
        #[test]
        fn whatever_a_value_holds_it_ends_where_it_should(value: String) {
            let escaped = escaped(&value);
            let mut plain = String::new();
            let mut characters = escaped.chars();
            while let Some(character) = characters.next() {
                prop_assert!(character != '"' && character != ']');
                plain.push(if character == '\\' { characters.next().unwrap() } else { character });
            }
            prop_assert_eq!(plain, value);
        }

        #[test]
        fn a_field_is_never_empty_and_has_no_spaces(text: String, max_length in 1..256_usize) {
            let field = header_field(&text, max_length);
            prop_assert!((1..=max_length).contains(&field.len()) && field.bytes().all(|byte| byte.is_ascii_graphic()));
        }
    }
}
