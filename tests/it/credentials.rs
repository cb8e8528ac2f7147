//! Keys and certificates that are wrong, each in its own way: the answer to each, and its audit record.

use std::io::{BufRead, BufReader, Read, Write};

use ledge::audit::record::ActorKind;
use ledge::audit_event::AuditEvent;
use rcgen::{SerialNumber, date_time_ymd};
use serde_json::Value;

use crate::access_matrix::key;
use crate::audit::{records, stop};
use crate::certificates::{Authority, Identity};
use crate::client::{Client, Response};
use crate::core::add_sub_request;
use crate::daemon::{TestDaemon, TestRoot, write};
use crate::tls_kit::{TlsClient, with_certificate};

const MODEL: &str = "/v2/models/add_sub";

/// A box that allows nothing without a credential.
fn root() -> TestRoot {
    TestRoot::closed().models(&["add_sub"]).set("access.loopback=[]")
}

/// Changes the record of a key in the store, as time would.
fn age(root: &TestRoot, name: &str, expires_ms: u64) {
    let path = root.folder.path().join("keys.json");
    let mut store: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let record = store["keys"].as_array_mut().unwrap().iter_mut().find(|key| key["name"] == name).unwrap();
    record["expires_ms"] = expires_ms.into();
    // In the same file, so that its mode stays.
    write(&path, store.to_string().as_bytes());
}

fn bearer(key: &str) -> String {
    format!("Bearer {key}")
}

fn get(daemon: &TestDaemon, path: &str, headers: &[(&str, &str)]) -> Response {
    daemon.client().request("GET", path, headers, b"")
}

#[test]
fn each_key_that_is_not_good_gets_its_own_answer_and_a_record() {
    let root = root();
    let good = key(&root, &["good", "--role", "viewer"]);
    let expired = key(&root, &["expired", "--role", "admin", "--expires", "1d"]);
    let revoked = key(&root, &["revoked", "--role", "admin"]);
    let foreign = key(&TestRoot::closed(), &["good", "--role", "admin"]);
    assert!(root.command(&["keys", "revoke", "revoked"]).output().unwrap().status.success());
    age(&root, "expired", 1_700_000_000_000);
    let daemon = root.start();
    let (id, secret) = (&good[..14], &good[15..]);
    let malformed: Vec<String> = vec![
        String::new(),
        "ledge".into(),
        id.into(),
        format!("{id}_"),
        format!("{good}="),
        good.to_uppercase(),
        good.replacen("ledge_", "LEDGE_", 1),
        good[..good.len() - 1].into(),
        format!("{good}A"),
        format!("{good}, {good}"),
        format!("\"{good}\""),
        "x".repeat(8000),
        "ledge_\u{fc}".into(),
    ];
    let unknown = [
        // The right id and another secret, another id and the right secret, and a key that is good elsewhere.
        format!("{id}_{}", "A".repeat(43)),
        format!("ledge_{:08x}_{secret}", u32::from_str_radix(&id[6..], 16).unwrap() ^ 1),
        foreign,
    ];
    let told = |key: &str, words: &str, address: &mut u8| {
        // Each from a different address, because the failures of one are limited.
        *address += 1;
        let from = std::net::SocketAddr::from(([127, 0, 0, *address], 0));
        let mut client = client_from(from, &daemon);
        let refused = client.request("GET", MODEL, &[("authorization", &bearer(key))], b"");
        assert_eq!(refused.status, 401, "{key}: {refused:?}");
        assert!(refused.error().contains(words) && !refused.error().contains(secret), "{key}: {}", refused.error());
        assert_eq!(
            refused.header("www-authenticate"),
            Some("Bearer realm=\"ledge\", error=\"invalid_token\""),
            "{key}"
        );
    };
    let mut address = 1;
    for key in &malformed {
        told(key, "malformed", &mut address);
    }
    for key in &unknown {
        told(key, "unknown API key", &mut address);
    }
    told(&expired, "expired", &mut address);
    told(&revoked, "revoked", &mut address);
    // A box where loopback may everything: a key that is not good does not fall back to that.
    assert_eq!(daemon.unix_client().request("GET", MODEL, &[("authorization", "Bearer ledge_x")], b"").status, 401);
    assert_eq!(get(&daemon, MODEL, &[("authorization", &bearer(&good))]).status, 200);
    let root = stop(daemon);
    let mut causes: Vec<(String, u64)> = Vec::new();
    for record in records(&root, 1) {
        if let AuditEvent::AuthenticationFailed { cause, others } = record.event {
            causes.push((cause.to_string(), others));
        }
    }
    // One record of a kind within a minute, and another one in the end for those that follow. A user of this machine is
    // known.
    let rest = [("malformed", malformed.len() as u64 - 2), ("unknown", unknown.len() as u64 - 2)];
    let expected = ["malformed", "unknown", "expired", "revoked", "malformed"].map(|cause| (cause, 0));
    let expected = expected.into_iter().chain(rest).map(|(cause, others)| (cause.to_owned(), others));
    assert_eq!(causes, expected.collect::<Vec<_>>());
}

/// A connection from another address of this machine.
fn client_from(from: std::net::SocketAddr, daemon: &TestDaemon) -> Client {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &from).unwrap();
    connect(&socket, &daemon.address).unwrap();
    Client::over(std::net::TcpStream::from(socket))
}

#[test]
fn a_key_is_taken_from_two_headers_and_from_nowhere_else() {
    let root = root();
    let (good, other) = (key(&root, &["good", "--role", "viewer"]), key(&root, &["other", "--role", "admin"]));
    let daemon = root.start();
    let status = |path: &str, headers: &[(&str, &str)]| get(&daemon, path, headers).status;
    let (good_bearer, other_bearer) = (bearer(&good), bearer(&other));
    for scheme in ["Bearer", "bearer", "BEARER", "bEaReR"] {
        assert_eq!(status(MODEL, &[("authorization", &format!("{scheme} {good}"))]), 200, "{scheme}");
        assert_eq!(status(MODEL, &[("AUTHORIZATION", &format!("{scheme}   {good}  "))]), 200, "{scheme}");
    }
    assert_eq!(status(MODEL, &[("x-api-key", &good)]), 200);
    assert_eq!(status(MODEL, &[("X-API-KEY", &format!("  {good} "))]), 200);
    assert_eq!(status(MODEL, &[("x-api-key", &good), ("authorization", &good_bearer)]), 200, "one key, twice");
    // Which of two counts is not for this box to guess.
    for headers in [
        [("x-api-key", good.as_str()), ("authorization", other_bearer.as_str())],
        [("authorization", &good_bearer), ("authorization", &other_bearer)],
        [("authorization", &good_bearer), ("authorization", "Basic eDp5")],
        [("x-api-key", &good), ("x-api-key", &other)],
    ] {
        assert_eq!(status(MODEL, &headers), 400);
    }
    let open = TestRoot::new().models(&["add_sub"]).start();
    assert_eq!(get(&open, MODEL, &[]).status, 200, "loopback may");
    // Another scheme is a key that is not taken, and does not fall back to what loopback may.
    for other in ["Basic eDp5", "Digest x", "Bearer,x"] {
        assert_eq!(status(MODEL, &[("authorization", other)]), 401, "{other}");
        assert_eq!(status(MODEL, &[("authorization", other), ("x-api-key", &good)]), 200, "{other} beside a key");
        assert_eq!(get(&open, MODEL, &[("authorization", other)]).status, 401, "{other}");
    }
    assert_eq!(status(MODEL, &[("authorization", &format!("Token {good}"))]), 401, "a key in another scheme");
    assert_eq!(status(MODEL, &[("authorization", &good)]), 401, "without a scheme");
    for name in ["api_key", "apikey", "key", "token", "access_token", "X-API-Key", "authorization"] {
        assert_eq!(status(&format!("{MODEL}?{name}={good}"), &[]), 401, "?{name}=");
        assert_eq!(status(MODEL, &[("cookie", &format!("{name}={good}"))]), 401, "cookie {name}");
    }
    for name in ["api-key", "x-auth-token", "proxy-authorization", "x-ledge-key", "x-forwarded-authorization"] {
        assert_eq!(status(MODEL, &[(name, &good), ("x", &good_bearer)]), 401, "{name}");
    }
    let mut client = daemon.client();
    let host = daemon.address;
    client.send(format!("GET http://key:{good}@{host}{MODEL} HTTP/1.1\r\nhost: {host}\r\n\r\n").as_bytes());
    assert!([400, 401].contains(&client.receive().status), "in the address");
    assert!(!daemon.log().contains(&good[15..]), "what somebody wrote into a path is in no log");
}

#[test]
fn many_failures_are_limited_and_counted_and_a_right_key_is_let_in() {
    let root = root();
    let good = bearer(&key(&root, &["good", "--role", "viewer"]));
    let daemon = root.start();
    let mut client = daemon.client();
    let mut ask = |key: &str| client.request("GET", MODEL, &[("authorization", key)], b"");
    let statuses: Vec<_> = (0..40).map(|_| ask("Bearer ledge_x").status).collect();
    let allowed = statuses.iter().take_while(|status| **status == 401).count();
    // Ten at once, and one more in six seconds.
    assert!((10..=20).contains(&allowed), "{statuses:?}");
    let limited = ask("Bearer ledge_x");
    assert_eq!(limited.status, 429);
    assert!((1..=7).contains(&limited.header("retry-after").unwrap().parse::<u32>().unwrap()));
    assert_eq!(ask(&good).status, 200);
    let mut others = client_from(([127, 0, 0, 9], 0).into(), &daemon);
    assert_eq!(others.request("GET", MODEL, &[("authorization", "Bearer ledge_x")], b"").status, 401);
    let root = stop(daemon);
    let failed = records(&root, 1).into_iter().filter_map(|record| match record.event {
        AuditEvent::AuthenticationFailed { cause, others } => {
            Some(((record.actor.kind, cause.to_string()), 1 + others))
        }
        _ => None,
    });
    let (failed, counts): (Vec<_>, Vec<_>) = failed.unzip();
    let expected = ["malformed", "too_many", "malformed", "too_many"].map(|cause| (ActorKind::Ip, cause.to_owned()));
    assert_eq!((failed, counts.into_iter().sum::<u64>()), (expected.to_vec(), 40 + 2), "none is passed over");
}

#[test]
fn a_key_has_no_more_requests_under_way_than_it_is_for() {
    let root = root();
    let one = bearer(&key(&root, &["one", "--role", "infer", "--max-concurrent", "1"]));
    let other = bearer(&key(&root, &["other", "--role", "infer"]));
    let daemon = root.start();
    let body = add_sub_request(1, 1).to_string();
    let head = format!(
        "POST {MODEL}/infer HTTP/1.1\r\nhost: localhost\r\nauthorization: {one}\r\ncontent-length: {}\r\nexpect: 100-continue\r\n\r\n",
        body.len()
    );
    let mut first = daemon.client();
    first.send(head.as_bytes());
    // Invited to go on: so it has its place.
    assert_eq!(first.receive_interim(), 100);
    let ask = |key: &str| get(&daemon, MODEL, &[("authorization", key)]);
    let limited = ask(&one);
    assert_eq!((limited.status, limited.header("retry-after")), (429, Some("1")), "{limited:?}");
    assert_eq!(
        limited.error(),
        "the API key 'one' has 1 requests running, the most it may have at a time: retry when one has ended"
    );
    assert_eq!(ask(&other).status, 200);
    first.send(body.as_bytes());
    assert_eq!(first.receive().status, 200);
    assert_eq!(ask(&one).status, 200);
    // A caller that goes gives its place back.
    let mut gone = daemon.client();
    gone.send(head.as_bytes());
    assert_eq!(gone.receive_interim(), 100);
    drop(gone);
    let begun = std::time::Instant::now();
    while ask(&one).status != 200 {
        assert!(begun.elapsed().as_secs() < 20, "its place is not given back");
    }
}

#[test]
fn a_request_is_under_way_until_its_answer_is_read() {
    let root = TestRoot::closed().models(&["identity_fp32"]).set("access.loopback=[]");
    let one = bearer(&key(&root, &["one", "--role", "infer", "--max-concurrent", "1"]));
    let daemon = root.start();
    // Larger than what any socket takes.
    let data = vec!["1"; 8_000_000].join(",");
    let body = format!(r#"{{"inputs":[{{"name":"IN","datatype":"FP32","shape":[1,8000000],"data":[{data}]}}]}}"#);
    let path = "/v2/models/identity_fp32";
    let mut first = std::net::TcpStream::connect(daemon.address).unwrap();
    let head = format!(
        "POST {path}/infer HTTP/1.1\r\nhost: localhost\r\nauthorization: {one}\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    first.write_all(&[head.as_bytes(), body.as_bytes()].concat()).unwrap();
    // The answer has begun.
    first.read_exact(&mut [0; 64]).unwrap();
    assert_eq!(get(&daemon, path, &[("authorization", &one)]).status, 429);
    std::io::copy(&mut first, &mut std::io::sink()).unwrap();
    let begun = std::time::Instant::now();
    while get(&daemon, path, &[("authorization", &one)]).status != 200 {
        assert!(begun.elapsed().as_secs() < 20, "its place is not given back");
    }
}

#[test]
fn keys_made_and_revoked_while_nobody_looked_are_in_the_audit_log_once() {
    let root = root();
    key(&root, &["early", "--role", "infer", "--model", "add_sub"]);
    key(&root, &["gone", "--role", "admin"]);
    assert!(root.command(&["keys", "revoke", "gone"]).output().unwrap().status.success());
    // Twice: the second start has nothing to report.
    let root = stop(stop(root.start()).start());
    let told: Vec<_> = records(&root, 1)
        .into_iter()
        .filter_map(|record| match record.event {
            AuditEvent::KeyCreated { name, roles, .. } => Some(format!("created {name} {roles:?}")),
            AuditEvent::KeyRevoked { name } => Some(format!("revoked {name}")),
            _ => None,
        })
        .collect();
    assert_eq!(told, ["created early [\"infer\"]", "created gone [\"admin\"]", "revoked gone"]);
    let shown = root.command(&["audit", "show", "--action", "key_created"]).output().unwrap();
    assert!(String::from_utf8_lossy(&shown.stdout).contains("early"));
}

#[test]
fn a_certificate_has_the_roles_of_its_name_a_key_beside_it_those_of_the_key() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let root = with_certificate(root(), &ours)
        .set("http.tls.client_certificates=optional")
        .set("http.tls.client_ca_file=\"clients.pem\"")
        .set("http.tls.client_crl_file=\"clients.crl\"")
        .set("access.certificates=[{name=\"till\", roles=[\"infer\"], models=[\"add_sub\"]}, {name=\"eye\", roles=[\"viewer\"]}]");
    write(&root.folder.path().join("clients.pem"), ours.pem().as_bytes());
    write(&root.folder.path().join("clients.crl"), ours.revoke(&[4711]).as_bytes());
    let (viewer, operator) = (key(&root, &["viewer", "--role", "viewer"]), key(&root, &["ops", "--role", "operator"]));
    let daemon = root.start();
    let unload = "/v2/repository/models/add_sub/unload";
    let ask = |identity: Option<&Identity>, key: Option<&str>| {
        let client = || TlsClient::new(ours.pem(), identity).client(daemon.address).unwrap();
        let bearer = key.map(bearer);
        let headers: Vec<_> = bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect();
        let infer = add_sub_request(1, 1).to_string();
        let asked = [
            ("GET", MODEL, ""),
            ("GET", "/metrics", ""),
            ("POST", &format!("{MODEL}/infer"), infer.as_str()),
            ("POST", "/v2/repository/models/other/load", "{}"),
            ("GET", "/audit/status", ""),
        ];
        asked.map(|(method, path, body)| client().request(method, path, &headers, body.as_bytes()).status)
    };
    let (till, eye, stranger) = (ours.issue("till"), ours.issue("eye"), ours.issue("stranger"));
    assert_eq!(ask(None, None), [401; 5]);
    assert_eq!(ask(Some(&till), None), [200, 403, 200, 403, 403]);
    assert_eq!(ask(Some(&eye), None), [200, 200, 403, 403, 200]);
    assert_eq!(ask(Some(&stranger), None), [403; 5], "of our authority, and not listed");
    // The key of the request counts, not the certificate of the connection.
    assert_eq!(ask(Some(&till), Some(&viewer)), [200, 200, 403, 403, 200]);
    assert_eq!(ask(Some(&stranger), Some(&viewer)), [200, 200, 403, 403, 200]);
    assert_eq!(ask(Some(&till), Some(&operator)), [200, 200, 403, 404, 200]);
    assert_eq!(ask(Some(&till), Some("ledge_x")), [401; 5], "a key that is not good does not fall back to it");
    let told = TlsClient::new(ours.pem(), Some(&stranger)).client(daemon.address).unwrap().post(unload, &[], b"{}");
    let told = told.error();
    assert!(told.contains("access.certificates") && told.contains("stranger"), "{told}");
    let expired = ours.issue_with("till", |params| {
        params.not_before = date_time_ymd(2024, 1, 1);
        params.not_after = date_time_ymd(2025, 1, 1);
    });
    let revoked = ours.issue_with("till", |params| params.serial_number = Some(SerialNumber::from(4711)));
    let self_signed = {
        let alone = Authority::new();
        alone.issue("till")
    };
    for (name, bad) in
        [("foreign", theirs.issue("till")), ("expired", expired), ("revoked", revoked), ("own", self_signed)]
    {
        // With a right key, too: nothing is asked over a connection that was refused.
        let client = TlsClient::new(ours.pem(), Some(&bad)).connect(daemon.address);
        let answered = client.map(|stream| {
            let mut stream = BufReader::new(stream);
            let request =
                format!("GET {MODEL} HTTP/1.1\r\nhost: localhost\r\nauthorization: {}\r\n\r\n", bearer(&viewer));
            let _ = stream.get_mut().write_all(request.as_bytes());
            let mut line = String::new();
            stream.read_line(&mut line).map(|_| line)
        });
        assert!(!matches!(answered, Ok(Ok(_))), "{name}: {answered:?}");
    }
    let mut plain = std::net::TcpStream::connect(daemon.address).unwrap();
    plain
        .write_all(format!("GET {MODEL} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {viewer}\r\n\r\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    let _ = plain.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 400"), "a key in the clear, at a port for TLS: {answer}");
}
