//! Tests against servers on loopback that take messages.

use super::super::AuditRecordStream;
use super::tls::{TestAuthority, modern};
use super::*;

const SYSLOG: EgressPurpose = EgressPurpose::LiveCopy("syslog");

fn at(port: u16) -> HostPort {
    HostPort::new("127.0.0.1", port).unwrap()
}

#[tokio::test]
async fn messages_are_counted_as_the_audit_log_and_their_connection_is_audited() {
    let (egress, mut events) = egress("");
    let (listener, port) = listener().await;
    let to = at(port);
    let (stream, accepted) = tokio::join!(AuditRecordStream::open(&egress, &to, None, SYSLOG), listener.accept());
    let (mut stream, mut served) = (stream.unwrap(), accepted.unwrap().0);
    let opened = AuditEvent::ConnectionOpened {
        destination: to.to_string(),
        region: "local".into(),
        purpose: "syslog".into(),
        others: 0,
    };
    assert_eq!(events.try_next(), Some(opened));

    stream.send(b"5 hello").await.unwrap();
    let mut read = [0; 7];
    served.read_exact(&mut read).await.unwrap();
    assert_eq!(&read, b"5 hello");
    let statistics = egress.statistics();
    let sent: u64 = statistics[0].sent.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!((sent, statistics[0].sent[EgressContent::Audit as usize]), (7, (EgressContent::Audit, 7)));
    // Its bytes are discarded; its end is reported, and nothing more is sent.
    served.write_all(&[b'x'; 2000]).await.unwrap();
    drop(served);
    assert_eq!(stream.ended().await.kind(), io::ErrorKind::UnexpectedEof);
    assert!(stream.send(b"5 hello").await.is_err());
    assert_eq!(egress.statistics()[0].sent, statistics[0].sent);
}

#[tokio::test]
async fn who_may_not_get_the_audit_log_is_not_connected_to() {
    let (listener, port) = listener().await;
    let (egress, mut events) =
        egress(&format!("[[allow]]\nhost = '127.0.0.1:{port}'\nregion = 'eu'\nsend = ['reports']"));
    let error = AuditRecordStream::open(&egress, &at(port), None, SYSLOG).await.unwrap_err().to_string();
    assert!(error.contains("add \"audit\" to `send`"), "{error}");
    let error = AuditRecordStream::open(&egress, &"192.0.2.1:514".parse().unwrap(), None, SYSLOG)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("only over an encrypted connection"), "{error}");
    for destination in [format!("127.0.0.1:{port}"), "192.0.2.1:514".to_owned()] {
        let refused = AuditEvent::ConnectionRefused { destination, purpose: "syslog".into() };
        assert_eq!(events.try_next(), Some(refused));
    }
    assert!(listener.accept().now_or_never().is_none());
}

#[tokio::test]
async fn messages_go_encrypted_and_a_refused_certificate_is_told_in_words() {
    let (authority, foreign) = (TestAuthority::new(), TestAuthority::new());
    let acceptor = modern(&authority.issue("127.0.0.1"), Some(&authority));
    for (clients, is_known) in [(&authority, true), (&foreign, false)] {
        let settings = authority.with_identity(clients);
        let (egress, _events) = egress("");
        let (listener, port) = listener().await;
        let to = at(port);
        let (stream, served) = tokio::join!(AuditRecordStream::open(&egress, &to, Some(settings), SYSLOG), async {
            let (stream, _) = listener.accept().await.unwrap();
            acceptor.accept(stream).await
        });

        let mut stream = stream.unwrap();
        if is_known {
            let mut served = served.unwrap();
            stream.send(b"5 hello").await.unwrap();
            stream.close().await;
            let mut read = Vec::new();
            served.read_to_end(&mut read).await.unwrap();
            assert_eq!(read, b"5 hello");
        } else {
            drop(served);
            let error = stream.ended().await.to_string();
            assert!(error.contains("certificate"), "{error}");
        }
    }
}

#[tokio::test]
async fn connections_of_the_audit_log_itself_are_told_when_they_are_news() {
    let (egress, mut events) = egress("");
    let (listener, port) = listener().await;
    let opened = |port| AuditEvent::ConnectionOpened {
        destination: at(port).to_string(),
        region: "local".into(),
        purpose: "syslog".into(),
        others: 0,
    };
    for news in [Some(opened(port)), None, None] {
        AuditRecordStream::open(&egress, &at(port), None, SYSLOG).await.unwrap();
        assert_eq!(events.try_next(), news);
    }
    drop(listener);
    assert!(AuditRecordStream::open(&egress, &at(port), None, SYSLOG).await.is_err());
    let again = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    AuditRecordStream::open(&egress, &at(port), None, SYSLOG).await.unwrap();
    let a_minute_later = std::time::Instant::now() + std::time::Duration::from_mins(1);
    assert_eq!(events.take_untold(a_minute_later, false), [(Principal::Local, opened(port))]);
    drop(again);
}
