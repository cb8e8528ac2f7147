//! The live copy by syslog: RFC 5424 messages over TLS (RFC 5425), or over plain TCP on this machine (RFC 6587), each with
//! its length before it.

use std::io;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ledge_base::backoff::{Backoff, random};
use ledge_base::clock;
use ledge_base::names::DeviceName;
use ledge_egress::{Egress, EgressError, HostPort, MessageStream, TlsSettings};
use ledge_service::shutdown::Shutdown;
use tokio::time::{Instant, timeout};

use super::super::status::LiveRecord;
use super::{AT_ONCE, FIRST_PAUSE, Feed, LAST, LONGEST_PAUSE};

/// "Log audit" (RFC 5424, section 6.2.1).
const FACILITY: u8 = 13;
const WARNING: u8 = 4;
const INFORMATIONAL: u8 = 6;

/// A connection that lasted for so long was a good one. After a shorter one the pauses go on to grow: each connection is
/// a record itself.
const LASTING: Duration = Duration::from_secs(30);

/// How long a server gets to object to a connection.
const OBJECTION: Duration = Duration::from_secs(1);

/// A message is in UTF-8 when it begins with this (RFC 5424, section 6.4). Not needed for ASCII.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// Where the copy goes.
pub(super) struct Syslog {
    to: HostPort,
    tls: Option<TlsSettings>,
    device: String,
    egress: Egress,
}

impl Syslog {
    pub fn new(to: HostPort, tls: Option<TlsSettings>, device: &DeviceName, egress: Egress) -> Self {
        Self { to, tls, device: device.to_string(), egress }
    }

    /// Sends until the daemon stops.
    pub async fn run(self, mut feed: Feed, shutdown: Shutdown) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let opened = tokio::select! {
                opened = MessageStream::open(&self.egress, &self.to, self.tls.clone()) => opened,
                () = shutdown.requested() => return,
            };
            match opened {
                Ok(mut stream) => {
                    let since = Instant::now();
                    tokio::select! {
                        error = self.send_on(&mut stream, &mut feed) => feed.failed(&error.to_string()),
                        () = shutdown.requested() => {
                            feed.take_up();
                            // What does not go is lost, as is what comes after.
                            let _ = timeout(LAST, self.send_all(&mut stream, &mut feed)).await;
                            return stream.close().await;
                        }
                    }
                    if since.elapsed() >= LASTING {
                        backoff.reset();
                    }
                }
                Err(error) => {
                    // What is not allowed stays so for as long as this daemon runs.
                    if matches!(error, EgressError::Denied { .. }) {
                        backoff.give_way();
                    }
                    feed.failed(&error.to_string());
                }
            }
            let pause = Instant::now() + backoff.pause(random());
            tokio::select! {
                () = feed.gather(pause) => {}
                () = shutdown.requested() => return,
            }
        }
    }

    /// Sends what comes until the connection is over.
    async fn send_on(&self, stream: &mut MessageStream, feed: &mut Feed) -> io::Error {
        // A server that does not take our certificate says so after the handshake (TLS 1.3): what was sent by then is lost.
        tokio::select! {
            error = stream.ended() => return error,
            () = feed.gather(Instant::now() + OBJECTION) => feed.is_well(),
        }
        loop {
            if let Err(error) = self.send_all(stream, feed).await {
                return error;
            }
            tokio::select! {
                error = stream.ended() => return error,
                () = feed.more() => {}
            }
        }
    }

    async fn send_all(&self, stream: &mut MessageStream, feed: &mut Feed) -> io::Result<()> {
        loop {
            let records = feed.waiting(AT_ONCE);
            if records.is_empty() {
                return Ok(());
            }
            let frames: Vec<u8> = records.iter().flat_map(|record| frame(&self.message(record))).collect();
            stream.send(&frames).await?;
            feed.sent(records.len(), 0);
            feed.take_up();
        }
    }

    /// RFC 5424, section 6: `<PRI>1 TIMESTAMP HOSTNAME APP-NAME PROCID MSGID [STRUCTURED-DATA] MSG`.
    fn message(&self, record: &LiveRecord) -> Vec<u8> {
        let severity = if record.is_warning { WARNING } else { INFORMATIONAL };
        let priority = u16::from(FACILITY) * 8 + u16::from(severity);
        let at = clock::rfc3339_micros(i64::try_from(record.at_ms).unwrap_or(i64::MAX).saturating_mul(1000));
        let head = format!(
            "<{priority}>1 {at} {host} ledge {process} {id} [ledge@32473 log=\"{log}\" seq=\"{seq}\" leaf=\"{leaf}\" lossy=\"true\"] ",
            host = name(&self.device, 255),
            process = std::process::id(),
            id = name(record.action, 32),
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

/// RFC 5425, section 4.3.1, and RFC 6587, section 3.4.1: the length before the message says where it ends.
fn frame(message: &[u8]) -> Vec<u8> {
    [format!("{} ", message.len()).as_bytes(), message].concat()
}

/// A field of the header: printable ASCII without spaces, of at most `most` characters; `-` is none (section 6).
fn name(text: &str, most: usize) -> String {
    let name: String = text.chars().filter(char::is_ascii_graphic).take(most).collect();
    if name.is_empty() { "-".to_owned() } else { name }
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

    fn copy() -> Syslog {
        let device = "box-7".parse().unwrap();
        let egress =
            Egress::new(&ledge_egress::EgressConfig::default(), ledge_service::audit_event::AuditSink::to_nowhere());
        Syslog::new("127.0.0.1:6514".parse().unwrap(), None, &device, egress)
    }

    fn record(line: &str) -> LiveRecord {
        LiveRecord {
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
        assert_eq!(frame(b"abc"), b"3 abc");
        let plain = copy().message(&LiveRecord { is_warning: false, ..record("\u{e9}") });
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
        fn a_field_is_never_empty_and_has_no_spaces(text: String, most in 1..256_usize) {
            let name = name(&text, most);
            prop_assert!((1..=most).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic()));
        }
    }
}
