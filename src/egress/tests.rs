mod http;
mod messages;
mod snapshot;
mod tls;
mod upload;

use std::net::Ipv6Addr;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::BytesMut;
use futures_util::FutureExt;
use ledge_base::principal::Principal;
use ledge_base::toml_check;
use ledge_service::audit_event::AuditQueue;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};

use super::*;

/// An `Egress` from the TOML text of the section, and its audit events.
fn egress(text: &str) -> (Egress, AuditQueue) {
    let (audit, events) = AuditSink::channel();
    (Egress::new(&toml_check::parse("f", text).unwrap(), audit), events)
}

fn to(host: &str, port: u16) -> EgressDestination {
    EgressDestination { host: host.to_owned(), port, tls: None }
}

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// An open connection without TLS, and the other side of it.
async fn connected(egress: &Egress, listener: &TcpListener) -> (EgressReader, EgressWriter, TcpStream) {
    let to = to("127.0.0.1", listener.local_addr().unwrap().port());
    let (link, accepted) = tokio::join!(egress.connect(&to, EgressPurpose::Mqtt), listener.accept());
    let (reader, writer) = link.unwrap();
    (reader, writer, accepted.unwrap().0)
}

fn put(writer: &mut EgressWriter, content: EgressContent, bytes: &[u8]) -> Result<(), EgressWriteError<String>> {
    writer.put(content, |buffer| {
        buffer.extend_from_slice(bytes);
        Ok(())
    })
}

#[test]
fn what_the_filter_of_the_unit_may_have_stopped_says_so() {
    let at = HostPort::new("192.0.2.1", 1).unwrap();
    for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::TimedOut] {
        let said = connect_error(&at, kind.into()).to_string();
        assert!(said.contains("ledge config systemd-drop-in"), "{said}");
    }
}

#[test]
fn what_is_not_in_the_allow_list_is_refused_without_dns_and_network() {
    // This runtime has no sockets and no timers: an attempt to connect panics.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (egress, mut events) = egress("[[allow]]\nhost = 'allowed.invalid:1883'\nregion = 'eu'");
    let connect = |host: &str, port| runtime.block_on(egress.connect(&to(host, port), EgressPurpose::Mqtt));
    for (host, port) in [("other.invalid", 1883), ("allowed.invalid", 8883), ("10.0.0.1", 1883), ("no host", 1)] {
        assert!(matches!(connect(host, port), Err(EgressError::Denied { .. })), "{host}:{port}");
        let refused = AuditEvent::ConnectionRefused { destination: format!("{host}:{port}"), purpose: "mqtt".into() };
        assert_eq!(events.try_next(), Some(refused));
    }
    let error = connect("other.invalid", 1883).unwrap_err().to_string();
    assert!(error.contains("`host = \"other.invalid:1883\"`") && !error.contains('\n'), "{error}");
    assert!(catch_unwind(AssertUnwindSafe(|| connect("allowed.invalid", 1883).map(drop))).is_err());
}

#[tokio::test]
async fn this_box_is_reached_without_an_entry_and_audited() {
    let (egress, mut events) = egress("");
    let (listener, port) = listener().await;
    let (mut reader, mut writer, mut server) = connected(&egress, &listener).await;
    let destination = format!("127.0.0.1:{port}");
    let opened =
        AuditEvent::ConnectionOpened { destination, region: "local".into(), purpose: "mqtt".into(), others: 0 };
    assert_eq!(events.try_next(), Some(opened));
    server.write_all(b"hello").await.unwrap();
    let mut buffer = BytesMut::from("> ".as_bytes());
    assert_eq!(reader.read(&mut buffer).await.unwrap(), 5);
    assert_eq!(buffer, "> hello");
    put(&mut writer, EgressContent::Answer, b"world").unwrap();
    writer.close().await;
    let mut received = String::new();
    server.read_to_string(&mut received).await.unwrap();
    assert_eq!(received, "world");
}

#[tokio::test]
async fn the_next_address_is_tried_when_one_refuses() {
    // The IPv4 address of `localhost` is tried first, and has no listener.
    let listener = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await;
    let listener = listener.expect("this test needs the loopback of IPv6: `sysctl net.ipv6.conf.lo.disable_ipv6=0`");
    let port = listener.local_addr().unwrap().port();
    let (_reader, _writer) = egress("").0.connect(&to("localhost", port), EgressPurpose::Mqtt).await.unwrap();
    assert!(listener.accept().await.unwrap().1.is_ipv6());
}

#[tokio::test]
async fn a_closed_port_is_told_in_words() {
    let (egress, mut events) = egress("");
    let (listener, port) = listener().await;
    drop(listener);
    let error = egress.connect(&to("127.0.0.1", port), EgressPurpose::Mqtt).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("127.0.0.1:{port} refuses the connection: nothing listens")), "{error}");
    assert!(events.try_next().is_none(), "nothing was opened");
    let figures = egress.statistics();
    assert_eq!((figures[0].connections, figures[0].failures), (0, 1));
}

#[tokio::test]
async fn a_name_that_dns_does_not_know_is_told_in_words() {
    // RFC 6761 reserves the name for this. Without any DNS server the system may need longer than the timeout.
    let (egress, mut events) = egress("[[allow]]\nhost = 'no-such-host.invalid:1883'\nregion = 'eu'");
    let error = egress.connect(&to("no-such-host.invalid", 1883), EgressPurpose::Mqtt).await.unwrap_err();
    let (not_found, late) = (
        "no-such-host.invalid:1883: DNS does not resolve the name: check its spelling",
        "no-such-host.invalid:1883: the DNS lookup timed out",
    );
    let told = error.to_string();
    assert!(told.starts_with(not_found) || told.starts_with(late), "{told}");
    assert!(events.try_next().is_none(), "nothing was opened");
}

#[tokio::test]
async fn content_that_is_not_permitted_is_not_even_written_down() {
    let (listener, port) = listener().await;
    let (egress, _) =
        egress(&format!("[[allow]]\nhost = '127.0.0.1:{port}'\nregion = 'eu'\nsend = ['presence', 'reports']"));
    let (_reader, mut writer, mut server) = connected(&egress, &listener).await;
    let refused = writer.put(EgressContent::Answer, |_| -> Result<(), String> { panic!("was asked to write") });
    let expected = "answers may not be sent to 127.0.0.1:PORT: to allow it, add \"answers\" to `send` in its \
                    [[egress.allow]]";
    assert_eq!(refused.unwrap_err().to_string(), expected.replace("PORT", &port.to_string()));
    assert_eq!(writer.queued(), 0);
    put(&mut writer, EgressContent::Protocol, b"a").unwrap();
    put(&mut writer, EgressContent::Report, b"b").unwrap();
    writer.close().await;
    let mut received = String::new();
    server.read_to_string(&mut received).await.unwrap();
    assert_eq!(received, "ab");
}

#[tokio::test]
async fn what_fails_to_be_written_leaves_nothing_and_touches_nothing() {
    let (listener, _) = listener().await;
    let (egress, _) = egress("");
    let (_reader, mut writer, mut server) = connected(&egress, &listener).await;
    let half = |writer: &mut EgressWriter| {
        writer.put(EgressContent::Answer, |buffer| {
            buffer.clear();
            buffer.extend_from_slice(b"half a pack");
            Err::<(), _>("too large")
        })
    };
    assert_eq!(half(&mut writer), Err(EgressWriteError::Write("too large")));
    assert_eq!(writer.queued(), 0);
    put(&mut writer, EgressContent::Protocol, b"one").unwrap();
    assert_eq!(half(&mut writer), Err(EgressWriteError::Write("too large")));
    put(&mut writer, EgressContent::Presence, b"two").unwrap();
    assert_eq!(writer.queued(), 6);
    writer.flush().await.unwrap();
    assert_eq!(writer.queued(), 0);
    writer.close().await;
    let mut received = String::new();
    server.read_to_string(&mut received).await.unwrap();
    assert_eq!(received, "onetwo");
}

#[tokio::test]
async fn counters_tell_contents_apart_and_survive_reconnects() {
    let (listener, port) = listener().await;
    let (egress, _) = egress(&format!(
        "[[allow]]\nhost = '127.0.0.1:{port}'\nregion = 'eu'\n[[allow]]\nhost = 'unused.example:1'\nregion = 'eu'"
    ));
    for _ in 0..2 {
        let (mut reader, mut writer, mut server) = connected(&egress, &listener).await;
        for (content, bytes) in
            [(EgressContent::Answer, 100), (EgressContent::Protocol, 3), (EgressContent::Answer, 10_000)]
        {
            put(&mut writer, content, &vec![0; bytes]).unwrap();
        }
        put(&mut writer, EgressContent::Report, b"").unwrap();
        writer.flush().await.unwrap();
        // Queued and never sent, so it is not counted.
        put(&mut writer, EgressContent::Presence, b"offline").unwrap();
        drop(writer);
        server.read_exact(&mut vec![0; 10_103]).await.unwrap();
        server.write_all(b"1234").await.unwrap();
        drop(server);
        let mut buffer = BytesMut::new();
        while reader.read(&mut buffer).await.unwrap_or(0) > 0 {}
        assert_eq!(buffer, "1234");
    }

    let [unused, used] = <[_; 2]>::try_from(egress.statistics()).unwrap();
    assert_eq!((used.destination, used.region.as_str()), (format!("127.0.0.1:{port}"), "eu"));
    assert_eq!((used.connections, used.failures, used.received), (2, 0, 8));
    let sent = [6, 20_200, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(used.sent.map(|(_, bytes)| bytes), sent);
    assert_eq!((unused.connections, unused.received, unused.sent[1].1), (0, 0, 0));
}

/// Bytes in which every part differs from every other.
fn unlike(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).flat_map(|n| blake3::hash(&n.to_le_bytes()).as_bytes()[..8].to_vec()).take(bytes).collect()
}

/// A listener for connections with a small receive buffer, so that a large write has to wait.
fn narrow_listener() -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket.listen(1).unwrap()
}

/// Cancels every flush as soon as it waits, while the other side reads in small pieces.
async fn every_flush_cancelled(egress: &Egress, mut writer: EgressWriter, mut server: impl AsyncRead + Unpin) {
    let parts = [(EgressContent::Answer, unlike(6 << 20)), (EgressContent::Report, unlike(1 << 20))];
    for (content, bytes) in &parts {
        put(&mut writer, *content, bytes).unwrap();
    }
    let (mut received, mut cancelled) = (BytesMut::new(), 0);
    loop {
        match writer.flush().now_or_never() {
            Some(flushed) => break flushed.unwrap(),
            None => cancelled += 1,
        }
        let before = writer.queued();
        assert!(before > 0, "a flush that waits has something left");
        received.reserve(100_000);
        assert!(server.read_buf(&mut received).await.unwrap() > 0);
    }
    assert!(cancelled > 10, "{cancelled}");
    assert_eq!(writer.queued(), 0);
    let ((), rest) = tokio::join!(writer.close(), server.read_buf(&mut received));
    rest.unwrap();
    while server.read_buf(&mut received).await.unwrap() > 0 {}
    let expected: Vec<u8> = parts.into_iter().flat_map(|(_, bytes)| bytes).collect();
    assert!(received == expected, "{} bytes", received.len());
    let sent = egress.statistics()[0].sent;
    assert_eq!((sent[1].1, sent[3].1), (6 << 20, 1 << 20));
}

#[tokio::test]
async fn a_cancelled_flush_loses_nothing_and_repeats_nothing() {
    let (egress, _) = egress("");
    let (_reader, writer, server) = connected(&egress, &narrow_listener()).await;
    every_flush_cancelled(&egress, writer, server).await;
}
