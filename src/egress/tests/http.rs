//! Tests against HTTP servers on loopback with fixed answers.

use std::future::poll_fn;
use std::sync::atomic::AtomicUsize;

use super::super::http::{HttpClient, HttpClientSettings, HttpDownload, HttpError};
use super::tls::{TestAuthority, modern};
use super::*;

/// The connections and requests that a server saw.
#[derive(Default)]
pub(super) struct SeenRequests {
    connections: AtomicUsize,
    requests: Mutex<Vec<String>>,
}

impl SeenRequests {
    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(super) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// A server that answers the requests of each connection with `answers` in turn, then closes it if it `closes`.
pub(super) async fn server(answers: &'static [&'static str], closes: bool) -> (HostPort, Arc<SeenRequests>) {
    let (listener, port) = listener().await;
    let seen = Arc::new(SeenRequests::default());
    let noted = seen.clone();
    #[expect(clippy::disallowed_methods, reason = "it ends with the runtime of the test")]
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            noted.connections.fetch_add(1, Ordering::Relaxed);
            let noted = noted.clone();
            #[expect(clippy::disallowed_methods, reason = "it ends with the runtime of the test")]
            tokio::spawn(async move { converse(&mut stream, answers, closes, &noted).await });
        }
    });
    (HostPort::new("127.0.0.1", port).unwrap(), seen)
}

async fn converse(
    stream: &mut (impl AsyncRead + tokio::io::AsyncWrite + Unpin),
    answers: &[&str],
    closes: bool,
    seen: &SeenRequests,
) {
    for answer in answers {
        let Some(request) = head(stream).await else { return };
        seen.requests.lock().unwrap().push(request);
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
    }
    if !closes {
        poll_fn(|_| std::task::Poll::<()>::Pending).await;
    }
}

pub(super) async fn head(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).unwrap())
}

pub(super) fn plain(at: &HostPort) -> HttpClientSettings {
    HttpClientSettings { at: at.clone(), tls: None, proxy: None }
}

fn client(at: &HostPort) -> HttpClient {
    HttpClient::with_reply_timeout(egress("").0, plain(at), Duration::from_millis(300))
}

async fn body(download: &mut HttpDownload) -> Result<String, HttpError> {
    let mut body = Vec::new();
    while let Some(chunk) = download.chunk().await? {
        body.extend_from_slice(&chunk);
    }
    Ok(String::from_utf8(body).unwrap())
}

async fn got(client: &HttpClient, path: &str, from: u64) -> (u16, u64, String) {
    let mut download = client.get(path, from).await.unwrap();
    (download.status, download.start, body(&mut download).await.unwrap())
}

#[tokio::test]
async fn a_file_is_fetched_and_the_connection_kept_for_the_next() {
    let answers =
        &["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"];
    let (at, seen) = server(answers, false).await;
    let (egress, _events) = egress("");
    let client = HttpClient::new(egress.clone(), plain(&at), EgressPurpose::Updates);
    assert_eq!(got(&client, "/a/b%20c", 0).await, (200, 0, "hello".to_owned()));
    assert_eq!(got(&client, "/d", 0).await, (404, 0, String::new()));
    assert_eq!(seen.connections(), 1);
    // Nothing of this box is in it.
    let first = format!("GET /a/b%20c HTTP/1.1\r\nhost: {at}\r\nuser-agent: ledge\r\naccept: */*\r\n\r\n");
    let requests = seen.requests();
    assert_eq!(requests[0], first);
    let [statistics] = egress.statistics().try_into().unwrap();
    let sent: u64 = requests.iter().map(|request| request.len() as u64).sum();
    assert_eq!(statistics.sent[EgressContent::Request as usize], (EgressContent::Request, sent));
    assert_eq!(statistics.sent.iter().map(|(_, bytes)| bytes).sum::<u64>(), sent);
    assert_eq!((statistics.connections, statistics.failures), (1, 0));
    assert_eq!(statistics.received, answers.concat().len() as u64);
}

#[tokio::test]
async fn a_request_has_the_headers_that_are_told_and_no_other() {
    let (at, seen) = server(&["HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"], false).await;
    got(&client(&at), "/a", 7).await;
    let requests = seen.requests();
    let mut lines = requests[0].split("\r\n").take_while(|line| !line.is_empty());
    assert_eq!(lines.next(), Some("GET /a HTTP/1.1"));
    let sent: Vec<_> = ["path"].into_iter().chain(lines.map(|line| line.split_once(": ").unwrap().0)).collect();
    assert_eq!(sent, crate::REQUEST_HEADERS.map(|(name, _)| name));
}

#[tokio::test]
async fn a_connection_that_the_server_closed_meanwhile_is_opened_anew() {
    let (at, seen) = server(&["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"], true).await;
    let client = client(&at);
    for _ in 0..3 {
        assert_eq!(got(&client, "/", 0).await, (200, 0, "ok".to_owned()));
    }
    assert_eq!(seen.connections(), 3);
}

#[tokio::test]
async fn the_rest_of_a_file_is_asked_for_and_the_whole_of_it_taken() {
    const PART: &str = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 7-8/9\r\nContent-Length: 2\r\n\r\nxy";
    let (at, seen) = server(&[PART, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nz"], false).await;
    let fetching = client(&at);
    assert_eq!(got(&fetching, "/f", 7).await, (206, 7, "xy".to_owned()));
    assert_eq!(got(&fetching, "/f", 7).await, (200, 0, "z".to_owned()));
    assert!(seen.requests().iter().all(|request| request.lines().any(|line| line == "range: bytes=7-")));
    for strange in [
        "HTTP/1.1 206 Partial Content\r\nContent-Length: 2\r\n\r\nxy",
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 8-9/9\r\nContent-Length: 2\r\n\r\nxy",
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes */9\r\nContent-Length: 2\r\n\r\nxy",
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nz",
    ] {
        let (at, _) = server(vec![strange].leak(), false).await;
        let error = client(&at).get("/f", 7).await.unwrap_err();
        assert!(matches!(error, HttpError::Answer { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_redirect_is_told_and_not_followed() {
    let answer =
        "HTTP/1.1 301 Moved\r\nLocation: https://bucket.s3.example/f?X-Amz-Signature=0af3\r\nContent-Length: 0\r\n\r\n";
    let (at, seen) = server(vec![answer].leak(), false).await;
    let error = client(&at).get("/f", 0).await.unwrap_err().to_string();
    assert!(error.contains("https://bucket.s3.example/f"), "{error}");
    assert!(!error.contains("Signature"), "{error}");
    assert_eq!(seen.requests().len(), 1);
}

#[tokio::test]
async fn a_server_that_is_overloaded_says_for_how_long() {
    for (value, pause) in [("7", Some(7)), ("99999999", Some(86_400)), ("Fri, 20 Nov 2026 00:00:00 GMT", None)] {
        let answer = format!("HTTP/1.1 503 Busy\r\nRetry-After: {value}\r\nContent-Length: 0\r\n\r\n");
        let (at, _) = server(vec![&*answer.leak()].leak(), false).await;
        let download = client(&at).get("/f", 0).await.unwrap();
        assert_eq!((download.status, download.retry_after), (503, pause.map(Duration::from_secs)));
    }
}

#[tokio::test]
async fn a_server_that_sends_nothing_is_given_up() {
    let (at, _) = server(&[""], false).await;
    let error = client(&at).get("/f", 0).await.unwrap_err();
    assert!(matches!(error, HttpError::Stalled { .. }), "{error}");
    let (at, _) = server(&["HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhell"], false).await;
    let mut download = client(&at).get("/f", 0).await.unwrap();
    assert_eq!(download.length, Some(9));
    let error = body(&mut download).await.unwrap_err();
    assert!(matches!(error, HttpError::Stalled { .. }), "{error}");
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_an_error_and_never_the_end() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhell",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhell\r\n",
    ] {
        let (at, _) = server(vec![answer].leak(), true).await;
        let mut download = client(&at).get("/f", 0).await.unwrap();
        let error = body(&mut download).await.unwrap_err();
        assert!(matches!(error, HttpError::Exchange { .. }), "{error}");
    }
    for answer in ["", "SSH-2.0-OpenSSH\r\n", "HTTP/1.1 200 OK\r\nConte"] {
        let (at, _) = server(vec![answer].leak(), true).await;
        let error = client(&at).get("/f", 0).await.unwrap_err();
        assert!(matches!(error, HttpError::Exchange { .. }), "{answer}: {error}");
    }
}

#[tokio::test]
async fn a_head_without_end_is_cut_off() {
    for header in [format!("x: {}\r\n", "y".repeat(300 << 10)), "x: y\r\n".repeat(200)] {
        let answer = format!("HTTP/1.1 200 OK\r\n{header}Content-Length: 0\r\n\r\n");
        let (at, _) = server(vec![&*answer.leak()].leak(), false).await;
        let error = client(&at).get("/f", 0).await.unwrap_err();
        assert!(matches!(error, HttpError::Exchange { .. }), "{error}");
    }
}

#[tokio::test]
async fn without_requests_in_its_entry_a_server_is_not_even_connected_to() {
    let (at, seen) = server(&[], false).await;
    let text = format!("[[allow]]\nhost = '{at}'\nregion = 'eu'\nsend = ['answers']");
    let (egress, mut events) = egress(&text);
    let error = HttpClient::new(egress, plain(&at), EgressPurpose::Updates).get("/f", 0).await.unwrap_err().to_string();
    assert!(error.contains("add \"requests\" to `send`"), "{error}");
    let refused = AuditEvent::ConnectionRefused { destination: at.to_string(), purpose: "updates".into() };
    assert_eq!(events.try_next(), Some(refused));
    assert_eq!(seen.connections(), 0);
}

#[tokio::test]
async fn what_a_request_named_and_no_entry_does_is_in_no_record() {
    let (egress, mut events) = egress("");
    let at = "jane-doe.example:443".parse().unwrap();
    let settings = HttpClientSettings { at, tls: None, proxy: None };
    let error = HttpClient::new(egress, settings, EgressPurpose::Updates).get("/f", 0).await.unwrap_err().to_string();
    assert!(error.contains("jane-doe.example:443"), "whoever asked is told: {error}");
    let refused = AuditEvent::ConnectionRefused { destination: "unlisted".into(), purpose: "updates".into() };
    assert_eq!(events.try_next(), Some(refused));
}

#[tokio::test]
async fn both_the_proxy_and_the_server_behind_it_have_to_be_allowed() {
    for (allowed, missing) in [("files.invalid:443", "proxy.invalid:3128"), ("proxy.invalid:3128", "files.invalid:443")]
    {
        let (egress, _) = egress(&format!("[[allow]]\nhost = '{allowed}'\nregion = 'eu'"));
        let [at, proxy] = ["files.invalid:443", "proxy.invalid:3128"].map(|text| text.parse().unwrap());
        let settings = HttpClientSettings { at, tls: None, proxy: Some(proxy) };
        let error =
            HttpClient::new(egress, settings, EgressPurpose::Updates).get("/f", 0).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("{missing} is not in the allow-list")), "{error}");
    }
}

#[tokio::test]
async fn through_a_proxy_the_handshake_is_with_the_server_behind_it() {
    let authority = TestAuthority::new();
    // Only the proxy knows where this name leads.
    let acceptor = modern(&authority.issue("files.invalid"), Some(&authority));
    let (listener, port) = listener().await;
    let text = "[[allow]]\nhost = 'files.invalid:443'\nregion = 'eu'";
    let (egress, mut events) = egress(text);
    let proxy = HostPort::new("127.0.0.1", port).unwrap();
    let settings = HttpClientSettings {
        at: "files.invalid:443".parse().unwrap(),
        tls: Some(authority.with_identity(&authority)),
        proxy: Some(proxy.clone()),
    };
    let client = HttpClient::new(egress.clone(), settings, EgressPurpose::Updates);

    let seen = SeenRequests::default();
    let serving = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let connect = head(&mut stream).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
        let mut stream = acceptor.accept(stream).await.unwrap();
        assert!(stream.get_ref().1.peer_certificates().is_some());
        converse(&mut stream, &["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"], true, &seen).await;
        connect
    };

    let (answer, connect) = tokio::join!(got(&client, "/f", 0), serving);
    assert_eq!(answer, (200, 0, "ok".to_owned()));
    assert_eq!(connect, "CONNECT files.invalid:443 HTTP/1.1\r\nHost: files.invalid:443\r\n\r\n");
    let requests = seen.requests();
    assert!(requests[0].lines().any(|line| line == "host: files.invalid"), "{requests:?}");
    for (destination, region) in [(proxy.to_string(), "local"), ("files.invalid:443".to_owned(), "eu")] {
        let opened =
            AuditEvent::ConnectionOpened { destination, region: region.into(), purpose: "updates".into(), others: 0 };
        assert_eq!(events.try_next(), Some(opened));
    }
    let sent: Vec<_> = egress.statistics().iter().map(|it| it.sent[EgressContent::Request as usize].1).collect();
    assert_eq!(sent, [seen.requests()[0].len() as u64, connect.len() as u64]);
}

#[tokio::test]
async fn a_proxy_that_refuses_is_a_failure_that_says_so() {
    let (at, _) = server(&["HTTP/1.1 403 Forbidden\r\n\r\n"], false).await;
    let (egress, _) = egress("[[allow]]\nhost = 'files.invalid:443'\nregion = 'eu'");
    let settings = HttpClientSettings { at: "files.invalid:443".parse().unwrap(), tls: None, proxy: Some(at.clone()) };
    let error = HttpClient::new(egress, settings, EgressPurpose::Updates).get("/f", 0).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("the proxy {at} does not connect to files.invalid:443: its rules")), "{error}");
}
