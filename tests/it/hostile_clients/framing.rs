//! Requests with an ambiguous end. A request that two readers could delimit differently is refused, or delimited as in
//! RFC 9112.

use super::{INFER, Target, WAYS, statuses, tensor};

/// A head, what follows it, and the statuses of all answers until the box closes the connection.
///
/// If the first request ended elsewhere, the rest would be a second one, to a route that does not exist (404).
pub const CASES: &[(&str, &str, &[u16])] = &[
    // Transfer-Encoding overrides Content-Length (6.3), whichever comes first, and the connection ends with the answer.
    (
        "content-length: 46\r\ntransfer-encoding: chunked",
        "0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n",
        &[400],
    ),
    (
        "transfer-encoding: chunked\r\ncontent-length: 46",
        "0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n",
        &[400],
    ),
    ("content-length: 0\r\ncontent-length: 5", "12345", &[400]),
    ("content-length: 5, 5", "12345", &[400]),
    ("content-length: +5", "12345", &[400]),
    ("content-length: -5", "12345", &[400]),
    ("content-length: 0x5", "12345", &[400]),
    ("content-length: 5 5", "12345", &[400]),
    ("content-length: five", "12345", &[400]),
    ("content-length:", "12345", &[400]),
    ("content-length: 99999999999999999999999999", "12345", &[400]),
    ("content-length: 18446744073709551615", "12345", &[431]),
    ("content-length: 10000000000000", "12345", &[413]),
    ("content-length : 5", "12345", &[400]),
    (" content-length: 5", "12345", &[400]),
    ("content-length: 5\r\n folded: x", "12345", &[400]),
    ("content\0-length: 5", "12345", &[400]),
    ("x: a\0b", "", &[400]),
    ("x: a\rb", "", &[400]),
    ("no colon", "", &[400]),
    (": no name", "", &[400]),
    // A coding that is not known, or behind chunked, or hidden.
    ("transfer-encoding: xchunked", "0\r\n\r\n", &[400]),
    ("transfer-encoding: chunked, identity", "0\r\n\r\n", &[400]),
    ("transfer-encoding: chunked\r\ntransfer-encoding: identity", "0\r\n\r\n", &[400]),
    ("transfer-encoding: \x0bchunked", "0\r\n\r\n", &[400]),
    ("transfer-encoding : chunked", "0\r\n\r\n", &[400]),
    ("transfer-encoding:\r\n chunked", "0\r\n\r\n", &[400]),
    ("transfer-encoding: \"chunked\"", "0\r\n\r\n", &[400]),
    // Invalid chunks: neither the body nor anything after it can be read.
    ("transfer-encoding: chunked", "zz\r\nhello\r\n0\r\n\r\n", &[400]),
    ("transfer-encoding: chunked", "-1\r\nhello\r\n0\r\n\r\n", &[400]),
    ("transfer-encoding: chunked", "0x5\r\nhello\r\n0\r\n\r\n", &[400]),
    ("transfer-encoding: chunked", "FFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n", &[400]),
    ("transfer-encoding: chunked", "5\r\nhelloGET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n", &[400]),
    ("transfer-encoding: chunked", "5\nhello\n0\n\nGET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n", &[400]),
    ("transfer-encoding: chunked", "5\rhello\r\n0\r\n\r\n", &[400]),
    ("transfer-encoding: chunked", "5;a\nb\r\nhello\r\n0\r\n\r\n", &[400]),
    ("transfer-encoding: chunked", "0\r\ntrailer\r\n\r\n", &[400]),
    // Well-formed requests that make no sense here.
    ("content-length: 5\r\nconnection: upgrade\r\nupgrade: websocket", "12345", &[400]),
    (
        "content-length: 5\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk",
        "12345",
        &[400],
    ),
];

/// Whole requests.
pub const REQUESTS: &[(&str, &[u16])] = &[
    ("GET http://far.example/v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n", &[200]),
    // A bare LF ends no line of a head (RFC 9112, section 2.2), also behind a body of a request before.
    ("GET /v2/health/live HTTP/1.1\nhost: localhost\n\n", &[400]),
    ("\nGET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n", &[400]),
    ("GET /v2/health/live HTTP/1.1\r\nhost: localhost\nx: y\r\n\r\n", &[400]),
    ("GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\n", &[400]),
    (
        "POST /v2/models/identity_fp32/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\n\r\n{\n}GET \
         /v2/health/live HTTP/1.1\nhost: localhost\r\n\r\n",
        &[400, 400],
    ),
    (
        "POST /v2/models/identity_fp32/infer HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: \
         chunked\r\n\r\n3\r\n{\n}\r\n0\r\n\r\nGET /v2/health/live HTTP/1.1\nhost: localhost\r\n\r\n",
        &[400, 400],
    ),
    (
        "POST /v2/models/identity_fp32/infer HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: \
         chunked\r\n\r\n3\r\n{\n}\r\n0\r\n\r\nGET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n",
        &[400, 200],
    ),
    ("CONNECT far.example:443 HTTP/1.1\r\nhost: localhost\r\n\r\n", &[404]),
    ("CONNECT /v2 HTTP/1.1\r\nhost: localhost\r\n\r\n", &[405]),
    ("OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n", &[404]),
    ("TRACE /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n", &[405]),
    ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[505]),
    ("GET /v2/health/live HTTP/1.1 \r\nhost: localhost\r\n\r\n", &[400]),
    ("GET /v2/health/live HTTP/2.0\r\nhost: localhost\r\n\r\n", &[400]),
    ("GET /v2/health/live HTTP/9.9\r\nhost: localhost\r\n\r\n", &[400]),
    ("GET /v2/health/live\r\n", &[400]),
    ("GET  /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n", &[400]),
    ("GET /v2/health/live\0 HTTP/1.1\r\nhost: localhost\r\n\r\n", &[400]),
    ("GET /v2/../../etc/passwd HTTP/1.1\r\nhost: localhost\r\n\r\n", &[404]),
    ("GET /v2/models/..%2f..%2fetc/config HTTP/1.1\r\nhost: localhost\r\n\r\n", &[400]),
    ("GET /audit/logs/1/tile/../../../../etc/passwd HTTP/1.1\r\nhost: localhost\r\n\r\n", &[404]),
    ("GET /v2/models/%00%ff HTTP/1.1\r\nhost: localhost\r\n\r\n", &[400]),
    ("G\u{1}T / HTTP/1.1\r\nhost: localhost\r\n\r\n", &[400]),
    ("POST /v2/models/identity_fp32/infer HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", &[400]),
];

/// Asserts that each answer with an error in a stream says why in JSON. A HEAD is not among the requests.
#[track_caller]
fn check_errors(stream: &[u8]) {
    let text = String::from_utf8_lossy(stream);
    let mut rest = text.as_ref();
    while let Some((head, after)) = rest.split_once("\r\n\r\n") {
        let status: u16 = head[9..12].parse().unwrap();
        let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        let length = field("content-length: ").map_or(0, |length| length.parse().unwrap());
        let (body, next) = after.split_at(length);
        if status >= 400 {
            assert_eq!(field("content-type: "), Some("application/json"), "{head}");
            let said: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(said["error"].as_str().is_some_and(|reason| reason.len() > 10), "{text}");
        }
        rest = next;
    }
    assert_eq!(rest, "", "{text}");
}

/// The bytes of a case.
pub fn request(fields: &str, body: &str) -> Vec<u8> {
    format!("POST {INFER} HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n\r\n{body}").into_bytes()
}

#[test]
fn a_request_whose_end_is_in_doubt_is_refused_or_cut_as_the_standard_has_it() {
    let target = Target::start(&[]);
    let mut wrong = Vec::new();
    for way in WAYS {
        for (fields, body, expected) in CASES {
            let answers = target.answers(way, &request(fields, body));
            check_errors(&answers);
            let got = statuses(&answers);
            if got != *expected {
                wrong.push(format!("{way:?} {fields:?} {body:?}: {got:?}, not {expected:?}"));
            }
        }
        for (request, expected) in REQUESTS {
            let answers = target.answers(way, request.as_bytes());
            check_errors(&answers);
            let got = statuses(&answers);
            if got != *expected {
                wrong.push(format!("{way:?} {request:?}: {got:?}, not {expected:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    target.serves();
}

#[test]
fn a_pipeline_is_answered_in_order_and_ends_at_the_first_that_is_no_request() {
    let target = Target::start(&[]);
    let body = tensor(1);
    let one = format!("POST {INFER} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    for way in WAYS {
        // Every socket has room for this many answers before the first is read.
        let stream = format!("{}nonsense\r\n\r\n{one}", one.repeat(50));
        let mut expected = vec![200; 50];
        expected.push(400);
        let answers = target.answers(way, stream.as_bytes());
        check_errors(&answers);
        assert_eq!(statuses(&answers), expected, "{way:?}");
    }
    target.serves();
}

#[test]
fn a_head_that_is_too_large_is_refused_with_its_limit() {
    let target = Target::start(&[]);
    for way in WAYS {
        let large = format!("GET /v2 HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "a".repeat(300_000));
        let many = format!("GET /v2 HTTP/1.1\r\nhost: localhost\r\n{}\r\n", "x: a\r\n".repeat(200));
        let long = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(65_535));
        // A path that long reaches either limit first, by how much of it comes at once.
        for (request, allowed) in [(large, &[431][..]), (many, &[431]), (long, &[414, 431])] {
            let answers = target.answers(way, request.as_bytes());
            check_errors(&answers);
            let got = statuses(&answers);
            assert!(got.len() == 1 && allowed.contains(&got[0]), "{way:?}: {got:?}, not one of {allowed:?}");
        }
    }
    target.serves();
}
