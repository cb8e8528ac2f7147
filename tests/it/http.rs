//! The transport: keep-alive, pipelining, chunks, packing, limits, deadlines, photographs.

use std::io::{Read, Write};
use std::net::SocketAddr;

use flate2::Compression;
use flate2::read::{GzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use serde_json::{Value, json};

use crate::client::Client;
use crate::daemon::{TestRoot, data};

const PATH: &str = "/v2/models/add_sub/infer";

fn request(rows: usize) -> String {
    let input = |name| json!({"name": name, "datatype": "FP32", "shape": [rows, 16], "data": vec![1.0; rows * 16]});
    json!({"inputs": [input("INPUT0"), input("INPUT1")]}).to_string()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn both_listeners_answer_alike() {
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    for mut client in [daemon.client(), daemon.unix_client()] {
        assert_eq!(client.get("/v2").json()["name"], "ledge");
        assert_eq!(client.post(PATH, &[], request(1).as_bytes()).status, 200);
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    let client = &mut daemon.client();
    let body = request(1);
    let infer = format!("POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    client.send(
        format!(
            "{infer}GET /v2 HTTP/1.1\r\nhost: localhost\r\n\r\nGET /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n{infer}"
        )
        .as_bytes(),
    );
    let statuses: Vec<u16> = (0..4).map(|_| client.receive().status).collect();
    assert_eq!(statuses, [200, 200, 404, 200]);
}

#[test]
fn chunked_bodies_are_taken() {
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    let client = &mut daemon.client();
    client.send(format!("POST {PATH} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n").as_bytes());
    for chunk in request(1).as_bytes().chunks(50) {
        client.send(format!("{:x}\r\n", chunk.len()).as_bytes());
        client.send(chunk);
        client.send(b"\r\n");
    }
    client.send(b"0\r\n\r\n");
    assert_eq!(client.receive().status, 200);
}

#[test]
fn bodies_may_be_packed_both_ways() {
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    let client = &mut daemon.client();
    let plain = client.post(PATH, &[], request(20).as_bytes());
    assert!(plain.header("content-encoding").is_none());
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
    zlib.write_all(request(20).as_bytes()).unwrap();
    for (encoding, packed) in [("gzip", gzip(request(20).as_bytes())), ("deflate", zlib.finish().unwrap())] {
        let headers = [("content-encoding", encoding), ("accept-encoding", encoding)];
        let answer = client.post(PATH, &headers, &packed);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.header("content-encoding"), Some(encoding));
        let mut unpacked = Vec::new();
        if encoding == "gzip" {
            GzDecoder::new(&answer.body[..]).read_to_end(&mut unpacked).unwrap();
        } else {
            ZlibDecoder::new(&answer.body[..]).read_to_end(&mut unpacked).unwrap();
        }
        assert_eq!(unpacked, plain.body);
    }
    let small = client.post(PATH, &[("accept-encoding", "gzip")], request(1).as_bytes());
    assert!(small.header("content-encoding").is_none(), "a small answer is not worth packing");
    let answer = client.post(PATH, &[("content-encoding", "gzip")], b"not gzip at all");
    assert!(answer.status == 400 && answer.error().contains("decompressed"), "{answer:?}");
    let answer = client.post(PATH, &[("content-encoding", "br")], b"x");
    assert!(answer.status == 415 && answer.error().contains("gzip"), "{answer:?}");
}

#[test]
fn a_body_over_the_limit_is_413_announced_or_not_packed_or_not() {
    let daemon = TestRoot::new().models(&["add_sub"]).set("http.max_body_bytes=100000").start();
    let announced = daemon.client().post(PATH, &[], &vec![b' '; 100_001]);
    assert_eq!(announced.status, 413, "{announced:?}");
    assert!(announced.error().contains("http.max_body_bytes"));
    let mut client = daemon.client();
    client.send(format!("POST {PATH} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n").as_bytes());
    for _ in 0..11 {
        client.send(b"2710\r\n");
        client.send(&[b' '; 10_000]);
        client.send(b"\r\n");
    }
    assert_eq!(client.receive().status, 413);
    let bomb = daemon.client().post(PATH, &[("content-encoding", "gzip")], &gzip(&vec![b' '; 50_000_000]));
    assert_eq!(bomb.status, 413, "{bomb:?}");
    assert_eq!(daemon.client().post(PATH, &[], request(1).as_bytes()).status, 200);
}

#[test]
fn an_answer_that_comes_before_the_body_is_read_reaches_who_still_sends() {
    let daemon = TestRoot::new().models(&["add_sub"]).set("http.max_body_bytes=30000000").start();
    // More than sockets keep: the client writes all of it before it reads.
    let (large, too_large) = (vec![b' '; 20_000_000], vec![b' '; 40_000_000]);
    let unknown = "/v2/models/add_sub/versions/abc/infer";
    for (path, headers, body, status) in [
        (unknown, &[][..], &large, 404),
        ("/nowhere", &[], &large, 404),
        (PATH, &[("content-encoding", "br")], &large, 415),
        (PATH, &[("x-ledge-priority", "soon")], &large, 400),
        (PATH, &[], &too_large, 413),
    ] {
        let answer = daemon.client().post(path, headers, body);
        assert!(answer.status == status && !answer.error().is_empty(), "{path} {headers:?}: {answer:?}");
    }
}

#[test]
fn a_request_says_once_which_host_it_is_for() {
    let daemon = TestRoot::new().start();
    for (version, hosts, status) in [
        ("1.1", &[][..], 400),
        ("1.1", &["localhost"], 200),
        ("1.1", &["127.0.0.1:8000"], 200),
        ("1.1", &["[::1]:8000"], 200),
        ("1.1", &[""], 200),
        ("1.1", &["localhost", "localhost"], 400),
        ("1.1", &["a b"], 400),
        ("1.1", &["user@localhost"], 400),
        ("1.0", &[], 200),
        ("1.0", &["localhost", "localhost"], 400),
    ] {
        for path in ["/v2/health/live", "/nowhere"] {
            let hosts = hosts.iter().fold(String::new(), |hosts, host| hosts + "host: " + host + "\r\n");
            let mut client = daemon.client();
            client.send(format!("GET {path} HTTP/{version}\r\n{hosts}\r\n").as_bytes());
            let answer = client.receive();
            let expected = if status == 200 && path == "/nowhere" { 404 } else { status };
            assert_eq!(answer.status, expected, "{version} {hosts:?} {path}: {answer:?}");
        }
    }
}

#[test]
fn a_head_or_body_that_does_not_come_ends_the_wait() {
    let daemon =
        TestRoot::new().models(&["add_sub"]).set("http.header_timeout_ms=300").set("http.body_timeout_ms=300").start();
    let mut no_body = daemon.client();
    no_body.send(format!("POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{{\"inp").as_bytes());
    let answer = no_body.receive();
    assert_eq!(answer.status, 408, "{answer:?}");
    assert!(answer.error().contains("http.body_timeout_ms"));
    let mut no_head = daemon.client();
    no_head.send(b"GET /v2 HTTP/1.1\r\nhos");
    assert!(no_head.is_closed());
}

#[test]
fn what_is_not_http_disturbs_nobody() {
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    for garbage in [
        &b"\x16\x03\x01\x02\0\x01\0"[..],
        b"GET\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
    ] {
        let mut client = daemon.client();
        client.send(garbage);
        client.finish();
    }
    // A body that ends early: the caller hung up.
    let mut cut = daemon.client();
    cut.send(format!("POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{{").as_bytes());
    drop(cut);
    assert_eq!(daemon.client().post(PATH, &[], request(1).as_bytes()).status, 200);
}

fn slow(client: &mut Client) -> Value {
    let name = client.get("/v2/models/slow").json()["inputs"][0]["name"].clone();
    json!({"inputs": [{"name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![1.0; 16]}]})
}

#[test]
fn a_full_queue_answers_429_at_once_and_the_rest_is_answered() {
    let daemon = TestRoot::new().models(&["slow"]).file("slow/model.toml", "[queue]\nmax_size = 2\n").start();
    let body = slow(&mut daemon.client()).to_string();
    let mut clients: Vec<Client> = (0..20).map(|_| daemon.client()).collect();
    let head =
        format!("POST /v2/models/slow/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
    for client in &mut clients {
        client.send(format!("{head}{body}").as_bytes());
    }
    let answers: Vec<_> = clients.iter_mut().map(Client::receive).collect();
    let refused: Vec<_> = answers.iter().filter(|answer| answer.status == 429).collect();
    let answered = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!(refused.len() + answered, 20, "{answers:?}");
    assert!(answered >= 2 && !refused.is_empty(), "{answered} answered");
    assert_eq!(refused[0].header("retry-after"), Some("1"));
}

#[test]
fn a_deadline_that_passes_answers_504() {
    let daemon = TestRoot::new().models(&["slow"]).start();
    let client = &mut daemon.client();
    let mut request = slow(client);
    request["parameters"] = json!({"timeout": 1});
    let answer = client.post_json("/v2/models/slow/infer", &request);
    assert_eq!(answer.status, 504, "{answer:?}");
    request["parameters"] = json!({"timeout": 60_000_000});
    assert_eq!(client.post_json("/v2/models/slow/infer", &request).status, 200);
}

#[test]
fn a_photograph_is_answered_in_words_and_tensors_in_tensors() {
    let daemon = TestRoot::new().models(&["efficientnet_lite0", "add_sub"]).start();
    let client = &mut daemon.client();
    let path = "/v2/models/efficientnet_lite0/infer";
    let coffee = data("photos/coffee.png");
    for kind in ["image/png", "image/jpeg", "IMAGE/WebP; q=1", "image/*"] {
        let answer = client.post(path, &[("content-type", kind)], &coffee);
        assert_eq!(answer.status, 200, "{kind}: {answer:?}");
        let answer = answer.json();
        assert_eq!((&answer["model_name"], &answer["model_version"]), (&json!("efficientnet_lite0"), &json!("1")));
        assert_eq!(answer["labels"][0]["label"], "espresso", "the content decides, not the type: {kind}");
        assert!(answer["time_ms"]["compute"].as_f64().unwrap() > 0.0);
    }
    let of_version =
        client.post("/v2/models/efficientnet_lite0/versions/1/infer", &[("content-type", "image/png")], &coffee);
    assert_eq!(of_version.status, 200);

    let cases: [(&[u8], &str); 4] = [
        (b"", "image"),
        (b"GIF89a\x01\0\x01\0", "JPEG"),
        (&coffee[..coffee.len() / 2], "cut"),
        (&[&coffee[..16], &[0xff; 4], &coffee[20..]].concat(), ""),
    ];
    for (content, words) in cases {
        let answer = client.post(path, &[("content-type", "image/png")], content);
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(answer.error().to_lowercase().contains(&words.to_lowercase()), "{words}: {}", answer.error());
    }
    let answer = client.post(path, &[], &coffee);
    assert!(answer.status == 400 && answer.error().contains("image/png"), "{answer:?}");
    let answer = client.post(PATH, &[("content-type", "image/png")], &coffee);
    assert!(answer.status == 400 && answer.error().contains("pipeline.image_classification"), "{answer:?}");

    // The bodies of `curl -F photo=@coffee.png`, `curl -d @coffee.png`, and curl without an option.
    let form = [
        b"--xyz\r\nContent-Disposition: form-data; name=\"photo\"; filename=\"coffee.png\"\r\n\r\n",
        &coffee[..],
        b"\r\n--xyz--\r\n",
    ]
    .concat();
    for kind in ["multipart/form-data; boundary=xyz", "application/octet-stream"] {
        let answer = client.post(path, &[("content-type", kind)], &form);
        assert!(answer.status == 415 && answer.error().contains("--data-binary"), "{answer:?}");
    }
    let stripped: Vec<u8> = coffee.iter().copied().filter(|byte| !matches!(byte, 0 | b'\n' | b'\r')).collect();
    for kind in ["application/x-www-form-urlencoded", "image/png"] {
        let answer = client.post(path, &[("content-type", kind)], &stripped);
        assert!(answer.status == 400 && answer.error().contains("--data-binary"), "{answer:?}");
    }
    let json = request(1);
    let answer = client.post(PATH, &[("content-type", "application/x-www-form-urlencoded")], json.as_bytes());
    assert_eq!(answer.status, 200, "curl -d sends JSON as that: {answer:?}");

    let raw = client.post(
        path,
        &[("inference-header-content-length", "0"), ("content-type", "image/png")],
        &vec![0; 602_112],
    );
    assert_eq!(raw.status, 200, "the header length means tensors whatever the type: {raw:?}");
    assert_eq!(raw.header("content-type"), Some("application/octet-stream"));
}

#[test]
fn a_listener_that_waits_for_callers_keeps_no_connection_from_another() {
    let root = TestRoot::new().set("http.listen=[\"127.0.0.1:0\", \"127.0.0.1:0\"]").set("http.max_connections=1");
    let daemon = root.start();
    let bound = |line: Value| line["address"].as_str().unwrap().parse().unwrap();
    let one: SocketAddr = bound(daemon.wait_for_event_since_start("listener.listening"));
    let other = bound(daemon.wait_for_event("listener.listening"));
    assert_ne!(one, other);
    for address in [one, other, other, one, one] {
        assert_eq!(Client::tcp(address).get("/v2").status, 200);
    }
}
