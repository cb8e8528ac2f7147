//! TLS: certificates of the box and of its callers, their renewal, and callers that do not speak it.

mod callers;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rcgen::{DnType, date_time_ymd};
use rustls::HandshakeKind;
use serde_json::Value;

use crate::certificates::{Authority, Identity};
use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot, write};
use crate::tls_kit::{LISTEN, TlsClient, der, put, with_certificate};

fn start(authority: &Authority) -> TestDaemon {
    with_certificate(TestRoot::new(), authority).start()
}

fn ended(daemon: &TestDaemon, result: &str) -> u64 {
    daemon.unix_client().metric(&format!("ledge_http_tls_handshakes_total{{result=\"{result}\"}}"))
}

fn socket(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    stream
}

/// All bytes until the other side closes or the connection breaks.
fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    rest
}

#[test]
fn a_caller_over_tls_sees_the_certificate_of_the_box_and_is_served() {
    let authority = Authority::new();
    let daemon = with_certificate(TestRoot::new().models(&["add_sub"]), &authority).start();
    let mut trusting = TlsClient::new(authority.pem(), None);
    trusting.config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let stream = trusting.connect(daemon.address).unwrap();
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert_eq!(stream.conn.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    let mut client = Client::over(stream);
    for _ in 0..3 {
        assert_eq!(client.get("/v2/models/add_sub").json()["name"], "add_sub");
    }
    let again = trusting.connect(daemon.address).unwrap();
    assert_eq!(again.conn.handshake_kind(), Some(HandshakeKind::Resumed));
    assert!(!TlsClient::new(Authority::new().pem(), None).is_served(daemon.address), "a stranger's authority");
    trusting.config.alpn_protocols = vec![b"h2".to_vec()];
    assert!(trusting.connect(daemon.address).is_err(), "HTTP/2 is not spoken");
    let left: f64 = daemon.unix_client().metric("ledge_http_certificate_expiry_timestamp_seconds");
    assert!(left > 2e9, "{left}");
}

#[test]
fn a_self_signed_box_whose_other_files_are_broken_keeps_its_certificate() {
    let authority = Authority::new();
    let root = TestRoot::new()
        .set(LISTEN)
        .set("http.tls.self_signed=true")
        .set("http.tls.client_certificates=optional")
        .set("http.tls.client_ca_file=\"clients.pem\"");
    let clients = root.folder.path().join("clients.pem");
    write(&clients, authority.pem().as_bytes());
    let daemon = root.start();
    let own = daemon.root.folder.path().join("tls/self-signed.pem");
    let before = std::fs::read_to_string(&own).unwrap();
    write(&clients, b"nonsense");
    for _ in 0..2 {
        daemon.signal("HUP");
        daemon.wait_for_event("tls.files_rejected");
        assert_eq!(std::fs::read_to_string(&own).unwrap(), before);
        write(&clients, authority.pem().as_bytes());
        daemon.signal("HUP");
        daemon.wait_for_event("tls.files_accepted");
        write(&clients, b"");
    }
    assert_eq!(TlsClient::new(&before, None).shown(daemon.address), der(&before));
}

#[test]
fn versions_before_1_2_are_refused() {
    let daemon = start(&Authority::new());
    // The answer to a ClientHello of this version (RFC 5246, 7.4.1.2) with ECDHE-ECDSA-AES128-GCM-SHA256 on P-256, and
    // ECDSA with SHA-256.
    let answer = |minor: u8| {
        let mut hello = vec![3, minor];
        hello.extend([7; 32]);
        hello.extend([0, 0, 2, 0xc0, 0x2b, 1, 0, 0, 16, 0, 10, 0, 4, 0, 2, 0, 23, 0, 13, 0, 4, 0, 2, 4, 3]);
        let length = u8::try_from(hello.len()).unwrap();
        let record = [&[22, 3, 1, 0, length + 4, 1, 0, 0, length], &hello[..]].concat();
        let mut stream = socket(daemon.address);
        stream.write_all(&record).unwrap();
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).unwrap();
        (answer[0], answer[5], answer[6])
    };
    // A handshake message (22), the ServerHello (2).
    assert_eq!((answer(3).0, answer(3).1), (22, 2));
    for minor in [0, 1, 2] {
        // A fatal alert (21, 2): protocol_version (70).
        assert_eq!(answer(minor), (21, 2, 70), "3.{minor}");
    }
}

/// Ends threads when the test does.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_renewed_certificate_is_taken_up_under_load_and_no_request_is_lost() {
    let authority = Authority::new();
    let daemon = start(&authority);
    let trusting = TlsClient::new(authority.pem(), None);
    let (stop, address) = (AtomicBool::new(false), daemon.address);
    let mut kept = trusting.client(address).unwrap();
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut answered = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let mut client = trusting.client(address).unwrap();
                        for _ in 0..3 {
                            assert_eq!(client.get("/v2").status, 200);
                            answered += 1;
                        }
                    }
                    answered
                })
            })
            .collect();
        // A renewal that fails ends the callers, too.
        let _end = Ending(&stop);
        for signal in [true, false, true] {
            let renewed = authority.issue("127.0.0.1");
            put(&daemon.root, &renewed);
            // Without the signal it is seen all the same.
            if signal {
                daemon.signal("HUP");
            }
            daemon.wait_for_event("tls.certificate_loaded");
            assert_eq!(trusting.shown(address), der(&renewed.certificate));
        }
        assert_eq!(kept.get("/v2").status, 200, "a connection of before goes on");
        stop.store(true, Ordering::Relaxed);
        for caller in callers {
            assert!(caller.join().unwrap() > 0);
        }
    });
}

#[test]
fn a_broken_renewal_keeps_the_certificate_of_before_and_says_so() {
    let authority = Authority::new();
    let daemon = start(&authority);
    let trusting = TlsClient::new(authority.pem(), None);
    let before = trusting.shown(daemon.address);
    let refused = || daemon.unix_client().metric::<u64>("ledge_http_tls_files_refused");
    let good = authority.issue("127.0.0.1");
    let expired = authority.issue_with("127.0.0.1", |params| {
        params.not_before = date_time_ymd(2024, 1, 1);
        params.not_after = date_time_ymd(2025, 1, 1);
    });
    let early = authority.issue_with("127.0.0.1", |params| params.not_before = date_time_ymd(2990, 1, 1));
    let other_key = Identity { certificate: good.certificate.clone(), key: authority.issue("x").key };
    let no_certificate = Identity { certificate: "nonsense".into(), key: good.key.clone() };
    for (broken, told) in [
        (other_key, "is not that of the certificate in"),
        (no_certificate, "holds no certificate in PEM format"),
        (expired, "has expired"),
        (early, "is not valid before 2990-01-01"),
    ] {
        put(&daemon.root, &broken);
        daemon.signal("HUP");
        let line = daemon.wait_for_event("tls.files_rejected");
        assert!(line["error"].as_str().unwrap().contains(told), "{line}");
        assert_eq!(refused(), 1);
        assert_eq!(trusting.shown(daemon.address), before);
        let doctor = daemon.root.command(&["doctor", "--json"]).stdin(Stdio::null()).output().unwrap();
        let report: Value = serde_json::from_slice(&doctor.stdout).unwrap();
        let check = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == "https").unwrap();
        assert_eq!(check["status"], "fail", "{check}");
    }
    put(&daemon.root, &good);
    daemon.wait_for_event("tls.files_accepted");
    daemon.wait_for_event("tls.certificate_loaded");
    assert_eq!(trusting.shown(daemon.address), der(&good.certificate));
    assert_eq!(refused(), 0);
}

#[test]
fn a_box_that_starts_without_a_good_certificate_serves_the_rest_and_takes_one_up_when_it_comes() {
    let authority = Authority::new();
    let root = with_certificate(TestRoot::new(), &authority);
    std::fs::remove_file(root.folder.path().join("box.key")).unwrap();
    let daemon = root.start();
    daemon.wait_for_event_since_start("tls.not_served");
    assert_eq!(daemon.unix_client().get("/v2").status, 200);
    let trusting = TlsClient::new(authority.pem(), None);
    assert!(!trusting.is_served(daemon.address));
    put(&daemon.root, &authority.issue("127.0.0.1"));
    daemon.wait_for_event("tls.certificate_loaded");
    assert!(trusting.is_served(daemon.address));
}

#[test]
fn a_caller_that_speaks_no_tls_is_told_so() {
    let daemon = start(&Authority::new());
    let mut client = Client::tcp(daemon.address);
    let answer = client.get("/v2");
    assert_eq!((answer.status, answer.error().as_str()), (400, "this port speaks TLS: use https://"));
    assert!(client.is_closed());
    let mut stream = socket(daemon.address);
    stream.write_all(b"\x00\x01nonsense").unwrap();
    assert_eq!(rest(stream), b"", "who speaks neither learns nothing");
    assert_eq!(ended(&daemon, "not_tls"), 2);
}

#[test]
fn slow_handshakes_are_ended_and_many_of_them_leave_room_for_others() {
    let authority = Authority::new();
    let root = with_certificate(TestRoot::new(), &authority);
    let daemon = root.set("http.tls.handshake_timeout_ms=1500").set("http.max_connections=8").start();
    // Half of the connections may be at their handshake; the others wait for a place, and some get one.
    let mut silent: Vec<_> = (0..6).map(|_| socket(daemon.address)).collect();
    // One that begins and goes on byte by byte is no better.
    silent[0].write_all(&[22, 3, 1]).unwrap();
    for stream in silent {
        assert_eq!(rest(stream), b"");
    }
    let (timed_out, too_many) = (ended(&daemon, "timed_out"), ended(&daemon, "too_many"));
    assert!(timed_out >= 4 && timed_out + too_many == 6, "{timed_out}, {too_many}");
    assert!(TlsClient::new(authority.pem(), None).is_served(daemon.address));
}

#[test]
fn who_takes_every_connection_over_tcp_leaves_the_socket_to_others() {
    let authority = Authority::new();
    let daemon = with_certificate(TestRoot::new(), &authority).set("http.max_connections=64").start();
    let trusting = TlsClient::new(authority.pem(), None);
    let mut clients: Vec<_> = (0..64).map(|_| trusting.client(daemon.address).unwrap()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/v2/health/live").status, 200);
    }
    let _more: Vec<_> = (0..16).map(|_| socket(daemon.address)).collect();
    for _ in 0..10 {
        assert_eq!(daemon.unix_client().get("/v2/health/live").status, 200);
    }
}

#[test]
fn connections_end_with_a_close_notify_when_the_daemon_stops() {
    let authority = Authority::new();
    let mut daemon = start(&authority);
    let mut stream = TlsClient::new(authority.pem(), None).connect(daemon.address).unwrap();
    stream.write_all(b"GET /v2 HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    daemon.signal("TERM");
    // Without it rustls has an error (UnexpectedEof): the end could be an attacker's.
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(daemon.wait().success());
}

#[test]
fn a_self_signed_certificate_is_made_once_and_told_to_be_one() {
    let root = TestRoot::new().set(LISTEN).set("http.tls.self_signed=true");
    let daemon = root.start();
    let line = daemon.wait_for_event_since_start("tls.certificate_self_signed");
    let folder = daemon.root.folder.path().join("tls");
    let mode = |file: &str| std::fs::metadata(folder.join(file)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("self-signed.key"), 0o600);
    let trusted = std::fs::read_to_string(folder.join("self-signed.pem")).unwrap();
    let trusting = TlsClient::new(&trusted, None);
    assert!(trusting.is_served(daemon.address));
    let show = || {
        let shown = daemon.root.command(&["tls", "show"]).stdin(Stdio::null()).output().unwrap();
        String::from_utf8(shown.stdout).unwrap()
    };
    let (text, fingerprint) = (show(), line["fingerprint"].as_str().unwrap());
    assert!(text.contains(fingerprint) && text.contains("localhost") && text.contains("127.0.0.1"), "{text}");
    let finding = daemon.root.finding("https");
    assert!(finding["status"] == "warn" && finding["advice"].as_str().unwrap().contains(fingerprint), "{finding}");
    // The next start keeps it, so that a fingerprint that was compared stays right.
    let daemon = daemon.kill().start();
    assert_eq!(trusting.shown(daemon.address), der(&trusted));
}

#[test]
fn a_box_that_listens_to_the_network_first_gets_its_key_second() {
    let root = TestRoot::closed().set("http.listen=\"https://0.0.0.0:0\"").set("http.tls.self_signed=true");
    let run = |verb: &[&str]| {
        let run = root.command(verb).stdin(Stdio::null()).output().unwrap();
        (run.status.code(), String::from_utf8_lossy(&[run.stdout, run.stderr].concat()).into_owned())
    };
    for verb in [&["serve"][..], &["config", "check"]] {
        let (code, told) = run(verb);
        assert!(code == Some(78) && told.contains("http.listen"), "{verb:?}: {told}");
    }
    assert_eq!(root.finding("access")["status"], "fail");
    let (code, told) = run(&["keys", "create", "till", "--role", "infer"]);
    assert_eq!(code, Some(0), "what it was told to run: {told}");
    assert_eq!(run(&["config", "check"]), (Some(0), "ok\n".to_owned()));
}

#[test]
fn an_address_beyond_loopback_is_for_tls_and_tls_needs_a_certificate() {
    let plain = TestRoot::new().set("http.listen=\"0.0.0.0:8000\"");
    assert_eq!(plain.mistakes(), ["--set http.listen http.listen[0]"]);
    let without_certificate = TestRoot::new().set("http.listen=\"https://127.0.0.1:8443\"");
    assert_eq!(without_certificate.mistakes(), ["default http.tls.certificate_file"]);
}

#[test]
fn a_certificate_that_is_about_to_end_is_warned_of() {
    let authority = Authority::new();
    let root = with_certificate(TestRoot::new(), &authority);
    let soon = authority.issue_with("127.0.0.1", |params| {
        params.distinguished_name.push(DnType::CommonName, "a box");
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        params.not_after = date_time_ymd(1970, 1, 1) + now + Duration::from_hours(13 * 24);
    });
    put(&root, &soon);
    let daemon = root.start();
    daemon.wait_for_event_since_start("tls.certificate_expiring");
}

#[test]
fn a_break_in_the_middle_of_a_handshake_is_counted_and_harms_nobody() {
    let authority = Authority::new();
    let daemon = start(&authority);
    let mut stream = socket(daemon.address);
    // A record of 200 bytes, of which the half comes.
    stream.write_all(&[&[22, 3, 1, 0, 200][..], &[1; 100]].concat()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    assert!(TlsClient::new(authority.pem(), None).is_served(daemon.address));
    assert_eq!((ended(&daemon, "failed"), ended(&daemon, "accepted")), (1, 1));
}
