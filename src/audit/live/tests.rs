//! Tests against servers on loopback that take a given number of records.

use crate::status::LiveCopyRecord;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use ledge_egress::EgressConfig;
use ledge_service::audit_event::AuditSink;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use super::*;
use crate::status::LiveCopyStatus;

/// Copies that run, with the feed of their records.
struct Copies {
    state: AuditState,
    shutdown: Shutdown,
    next: u64,
}

impl Copies {
    fn spawn(config: &AuditConfig) -> Self {
        let (state, shutdown) = (AuditState::default(), Shutdown::default());
        let egress = Egress::new(&EgressConfig::default(), AuditSink::to_nowhere());
        spawn(config, &"box-7".parse().unwrap(), &egress, &state, &shutdown);
        Self { state, shutdown, next: 0 }
    }

    fn syslog(port: u16) -> Self {
        let mut config = AuditConfig::default();
        config.syslog.to = Some(format!("127.0.0.1:{port}").parse().unwrap());
        config.syslog.encrypted = false;
        Self::spawn(&config)
    }

    fn otlp(port: u16) -> Self {
        let mut config = AuditConfig::default();
        config.otlp.url = Some(format!("http://127.0.0.1:{port}/v1/logs").parse().unwrap());
        Self::spawn(&config)
    }

    fn send(&mut self, records: u64) {
        self.send_line(records, "started", b"{}");
    }

    fn send_line(&mut self, records: u64, action: &'static str, line: &[u8]) {
        for seq in self.next..self.next + records {
            self.state.send_live(Arc::new(LiveCopyRecord {
                origin: "ledge.audit/box-7/1".into(),
                seq,
                at_ms: 1_795_222_800_000,
                leaf: tlog_tiles::Hash([7; 32]),
                action,
                is_warning: false,
                line: line.to_vec(),
            }));
        }
        self.next += records;
    }

    fn status(&self) -> LiveCopyStatus {
        self.state.status().copies[0].clone()
    }

    async fn until(&self, what: &str, reached: impl Fn(&LiveCopyStatus) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !reached(&self.status()) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.status());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// The sequence number of the next message.
async fn next_seq(stream: &mut BufReader<TcpStream>) -> u64 {
    let mut length = Vec::new();
    stream.read_until(b' ', &mut length).await.unwrap();
    let length: usize = std::str::from_utf8(&length).unwrap().trim().parse().unwrap();
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await.unwrap();
    let message = String::from_utf8(message).unwrap();
    let (_, rest) = message.split_once("seq=\"").unwrap();
    rest.split_once('"').unwrap().0.parse().unwrap()
}

#[tokio::test]
async fn records_go_out_in_order_and_the_last_ones_before_the_end() {
    let (listener, port) = listener().await;
    let mut copies = Copies::syslog(port);
    copies.send(100);
    let (stream, _) = listener.accept().await.unwrap();
    let mut stream = BufReader::new(stream);
    for seq in 0..100 {
        assert_eq!(next_seq(&mut stream).await, seq);
    }
    copies.until("all", |copy| copy.sent == 100).await;
    assert_eq!(
        copies.status(),
        LiveCopyStatus { name: "syslog", to: format!("127.0.0.1:{port}"), sent: 100, ..LiveCopyStatus::default() }
    );
    copies.send(3);
    assert!(copies.shutdown.drain(Duration::from_secs(5)).await);
    for seq in 100..103 {
        assert_eq!(next_seq(&mut stream).await, seq);
    }
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_server_that_goes_and_comes_again_gets_the_last_records_and_the_loss_is_counted() {
    let (listener, port) = listener().await;
    let mut copies = Copies::syslog(port);
    copies.send(1);
    let (stream, _) = listener.accept().await.unwrap();
    let mut stream = BufReader::new(stream);
    assert_eq!(next_seq(&mut stream).await, 0);
    drop((stream, listener));
    copies.until("an error", |copy| copy.error.is_some()).await;
    copies.send(1500);
    copies.until("a loss", |copy| copy.lost == 500).await;
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let mut stream = BufReader::new(stream);
    assert_eq!(next_seq(&mut stream).await, 501);
    copies.until("all", |copy| copy.sent == 1001).await;
    assert_eq!((copies.status().lost, copies.status().error), (500, None));
    copies.shutdown.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_server_that_takes_nothing_never_holds_up_the_writer() {
    let (listener, port) = listener().await;
    let mut copies = Copies::syslog(port);
    // It never reads, so the buffers of the system are full after some megabytes.
    let begun = std::time::Instant::now();
    for _ in 0..40 {
        copies.send_line(250, "started", &[b'x'; 4000]);
        tokio::task::yield_now().await;
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let (stream, _) = listener.accept().await.unwrap();
    // Once it reads again, each record was sent, or is counted as lost.
    let reading = async {
        let mut stream = BufReader::new(stream);
        let mut holes = 0;
        let mut next = 0;
        while next < 10_000 {
            let seq = next_seq(&mut stream).await;
            assert!(seq >= next);
            holes += seq - next;
            next = seq + 1;
        }
        holes
    };
    let holes = tokio::time::timeout(Duration::from_mins(1), reading).await.unwrap();
    copies.until("the sum", |copy| copy.sent + copy.lost == 10_000).await;
    assert_eq!(copies.status().lost, holes);
    copies.shutdown.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn nothing_goes_unencrypted_beyond_this_machine() {
    let mut config = AuditConfig::default();
    config.syslog.to = Some("192.0.2.1:514".parse().unwrap());
    config.syslog.encrypted = false;
    let copies = Copies::spawn(&config);
    copies.until("a refusal", |copy| copy.error.as_ref().is_some_and(|error| error.contains("encrypted"))).await;

    let mut config = AuditConfig::default();
    config.otlp.url = Some("http://192.0.2.1/v1/logs".parse().unwrap());
    let mut copies = Copies::spawn(&config);
    copies.send(1);
    copies.until("a refusal", |copy| copy.error.as_ref().is_some_and(|error| error.contains("https://"))).await;
}

/// A collector that answers one request after the other, each with a line of `answers`, and keeps how many records
/// came.
async fn collector(answers: &'static [&'static str]) -> (u16, Arc<Mutex<Vec<usize>>>) {
    let (listener, port) = listener().await;
    let seen = Arc::<Mutex<Vec<usize>>>::default();
    let noted = seen.clone();
    #[expect(clippy::disallowed_methods, reason = "it ends with the runtime of the test")]
    tokio::spawn(async move {
        for answer in answers {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufReader::new(stream);
            let mut length = 0;
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).await.unwrap();
                let line = line.trim().to_ascii_lowercase();
                if let Some(value) = line.strip_prefix("content-length: ") {
                    length = value.parse().unwrap();
                }
                if line.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await.unwrap();
            let parsed: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let records = parsed["resourceLogs"][0]["scopeLogs"][0]["logRecords"].as_array().unwrap().len();
            noted.lock().unwrap().push(records);
            // Each answer ends its connection.
            let answer = format!("HTTP/1.1 {answer}");
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    (port, seen)
}

#[tokio::test]
async fn a_collector_that_is_busy_gets_the_same_records_again_and_what_it_refuses_is_counted() {
    let (port, seen) = collector(&[
        "503 Busy\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
        "200 OK\r\nconnection: close\r\ncontent-length: 48\r\n\r\n{\"partialSuccess\":{\"rejectedLogRecords\":\"2\"}}   ",
        "400 Bad\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
        "200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
    ])
    .await;
    let mut copies = Copies::otlp(port);
    copies.send(150);
    copies.until("the first hundred", |copy| copy.sent == 98).await;
    copies.until("a refusal", |copy| copy.lost == 52).await;
    assert!(copies.status().error.unwrap().contains("400"));
    copies.send(1);
    copies.until("the last", |copy| copy.sent == 99).await;
    assert_eq!((copies.status().lost, copies.status().error), (52, None));
    assert_eq!(*seen.lock().unwrap(), [100, 100, 50, 1]);
    copies.shutdown.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn what_its_own_connections_record_makes_no_circle() {
    let state = AuditState::default();
    let mut feed = LiveCopyQueue::new(&state, "otlp", "x".to_owned());
    let mut copies = Copies { state, shutdown: Shutdown::default(), next: 0 };
    copies.send_line(1, "connection_opened", br#"{"action":"connection_opened","purpose":"otlp"}"#);
    let (begun, delay) = (Instant::now(), Duration::from_millis(1500));
    let is_own = |record: &LiveCopyRecord| requests::is_own(record, "otlp");
    feed.receive_batch(delay, is_own).await;
    assert_eq!(feed.backlog.len(), 1);
    assert!(begun.elapsed() >= delay);
    // Together with others they are sent as fast as those.
    copies.send(1);
    let far = Duration::from_hours(1);
    tokio::time::timeout(Duration::from_secs(30), feed.receive_batch(far, is_own)).await.unwrap();
    assert_eq!(feed.backlog.len(), 2);
}

#[test]
fn each_live_copy_is_a_section_and_its_address_switches_it_off() {
    let config = AuditConfig::default();
    let sections = serde_json::to_value(&config).unwrap();
    let mut names = Vec::new();
    for copy in config.live_copies() {
        let (name, key) = (copy.name(), copy.address_key());
        assert_eq!(sections[name][key].as_str(), Some(""), "audit.{name}.{key}");
        assert!(sections[name]["tls"].is_object(), "audit.{name}.tls");
        assert!(
            copy.address().is_none()
                && AuditConfig::settings_without_copies().contains(&format!("audit.{name}.{key}=\"\""))
        );
        names.push(name);
    }
    let unique: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(unique.len(), names.len(), "{names:?}");
}
