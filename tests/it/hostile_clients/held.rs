//! Memory that clients make the box hold: answers that they do not read, and bodies that they do not end.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use super::{INFER, LIMIT, Target, WAYS, Way, head, tensor};
use crate::client::Client;

/// Large enough that no socket takes it whole.
const ELEMENTS: usize = 4_000_000;

#[test]
fn a_caller_that_does_not_read_its_answer_is_cut_off() {
    let target = Target::start(&["http.write_timeout_ms=500"]);
    let body = tensor(ELEMENTS);
    let whole = ask(&target, Way::Tcp, &body).body.len();
    for way in WAYS {
        let mut stream = target.connect(way);
        let head = head(&format!("content-length: {}\r\n", body.len()));
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).unwrap();
        let line = target.daemon.wait_for_event("connection.failed");
        assert!(line["reason"].as_str().unwrap().contains("http.write_timeout_ms"), "{line}");
        // The bytes in flight arrive, and then the end.
        let came = super::rest(&mut stream).len();
        assert!(came < whole, "{way:?}: all of it came");
        target.wait_until_nothing_is_held();
    }
    target.serves();
}

#[test]
fn a_caller_that_reads_slowly_but_steadily_gets_all_of_its_answer() {
    let limit = Duration::from_secs(1);
    let target = Target::start(&[&format!("http.write_timeout_ms={}", limit.as_millis())]);
    let body = tensor(ELEMENTS);
    for way in WAYS {
        let mut stream = target.connect(way);
        let head = head(&format!("content-length: {}\r\nconnection: close\r\n", body.len()));
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).unwrap();
        let (mut came, mut block) = (Vec::new(), vec![0; 64 << 10]);
        let began = Instant::now();
        loop {
            let read = stream.read(&mut block).unwrap();
            if read == 0 {
                break;
            }
            came.extend_from_slice(&block[..read]);
            // Some 4 MB a second. The system reports room in the box's socket when a third of it is free, which may be
            // more than a megabyte, so a caller that is seen to read within the limit cannot be much slower.
            std::thread::sleep(Duration::from_secs_f64(f64::from(u32::try_from(read).unwrap()) / 4e6));
        }
        // The sockets between take a few megabytes at once: the rest waits for the caller, again and again.
        let took = began.elapsed();
        assert!(took > 2 * limit, "{way:?}: {} bytes in {took:?} are not slow", came.len());
        let at = came.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
        let answer: serde_json::Value = serde_json::from_slice(&came[at..]).unwrap();
        assert_eq!(answer["outputs"][0]["data"].as_array().unwrap().len(), ELEMENTS, "{way:?}");
    }
}

/// The answer to a caller now.
fn ask(target: &Target, way: Way, body: &str) -> crate::client::Response {
    Client::over(target.connect(way)).post(INFER, &[], body.as_bytes())
}

fn wait_until_held(target: &Target, bytes: u32) {
    let began = Instant::now();
    while target.held() < f64::from(bytes) {
        assert!(began.elapsed() < LIMIT, "{} of {bytes} bytes are held", target.held());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn wait_until_served(target: &Target, way: Way, body: &str) {
    let began = Instant::now();
    while ask(target, way, body).status != 200 {
        assert!(began.elapsed() < LIMIT, "there is never room again");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn bodies_share_one_memory_and_who_finds_no_room_is_told_when_to_come_again() {
    let target = Target::start(&["http.max_body_bytes=1000000", "http.max_memory_bytes=2280000"]);
    // As a tensor it takes twice as much, and the same amount is reserved for the data made from it.
    let large = tensor(120_000);
    for way in WAYS {
        let mut holding: Vec<_> = (0..2).map(|_| target.connect(way)).collect();
        for stream in &mut holding {
            stream.write_all(head("content-length: 1000000\r\n").as_bytes()).unwrap();
            stream.write_all(&vec![b' '; 900_000]).unwrap();
            stream.flush().unwrap();
        }
        wait_until_held(&target, 1_800_000);
        let refused = ask(&target, way, &large);
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{refused:?}");
        assert!(refused.error().contains("http.max_memory_bytes"), "{refused:?}");
        // The length is not announced.
        let mut chunked = target.connect(way);
        chunked.write_all(head("transfer-encoding: chunked\r\nconnection: close\r\n").as_bytes()).unwrap();
        for chunk in large.as_bytes().chunks(10_000) {
            chunked.write_all(format!("{:x}\r\n", chunk.len()).as_bytes()).unwrap();
            chunked.write_all(chunk).unwrap();
            chunked.write_all(b"\r\n").unwrap();
        }
        chunked.write_all(b"0\r\n\r\n").unwrap();
        let answer = super::rest(&mut chunked);
        assert_eq!(super::statuses(&answer), [503], "{way:?}");
        let text = String::from_utf8_lossy(&answer);
        assert!(text.lines().any(|line| line == "retry-after: 1"), "{way:?}: {text}");
        let packed = super::bombs::gzip(&vec![b' '; 900_000]);
        let packed = Client::over(target.connect(way)).post(INFER, &[("content-encoding", "gzip")], &packed);
        assert_eq!((packed.status, packed.header("retry-after")), (503, Some("1")), "{packed:?}");
        // Small ones are answered as ever, and so is everything when the others have gone.
        assert_eq!(ask(&target, way, &tensor(100)).status, 200);
        drop(holding);
        wait_until_served(&target, way, &large);
        target.wait_until_nothing_is_held();
    }
}

#[test]
fn answers_that_nobody_reads_count_until_they_are_cut_off() {
    let settings = ["http.max_body_bytes=8100000", "http.max_memory_bytes=59400000", "http.write_timeout_ms=5000"];
    let target = Target::start(&settings);
    let body = tensor(ELEMENTS);
    let mut unread = target.connect(Way::Tcp);
    let head = head(&format!("content-length: {}\r\n", body.len()));
    unread.write_all(&[head.as_bytes(), body.as_bytes()].concat()).unwrap();
    // The tensors have become an answer, of which the sockets take a part.
    unread.read_exact(&mut [0]).unwrap();
    let began = Instant::now();
    while target.held() > 17_000_000.0 {
        assert!(began.elapsed() < LIMIT, "{} bytes are held", target.held());
    }
    let refused = ask(&target, Way::Tcp, &body);
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(ask(&target, Way::Tcp, &tensor(1)).status, 200, "small ones are answered as ever");
    // The whole answer counts, with its part that the sockets have, for most of the time that its caller has.
    while began.elapsed() < Duration::from_secs(3) {
        let bytes = target.held();
        assert!(bytes > 8_000_000.0, "an answer of more than 8 MB is nobody's: {bytes} bytes are held");
    }
    let line = target.daemon.wait_for_event("connection.failed");
    assert!(line["reason"].as_str().unwrap().contains("http.write_timeout_ms"), "{line}");
    target.wait_until_nothing_is_held();
    assert_eq!(ask(&target, Way::Tcp, &body).status, 200);
}

#[test]
fn a_caller_has_no_more_than_half_of_the_memory_while_another_has_some() {
    let target = Target::start(&["http.max_body_bytes=2000000", "http.max_memory_bytes=13700000"]);
    let mut other = target.connect(Way::Unix);
    other.write_all(head("content-length: 1000000\r\n").as_bytes()).unwrap();
    other.write_all(&vec![b' '; 100_000]).unwrap();
    other.flush().unwrap();
    wait_until_held(&target, 100_000);
    // The request is small, but the data made from it is not: a tensor of 3 MB, its copy for the process of the model,
    // and the answer.
    let body = tensor(750_000);
    let refused = ask(&target, Way::Tcp, &body);
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")), "{refused:?}");
    // The half is its own: what needs less is answered.
    assert_eq!(ask(&target, Way::Tcp, &tensor(250_000)).status, 200);
    drop(other);
    wait_until_served(&target, Way::Tcp, &body);
}

#[test]
fn who_waits_to_be_invited_is_not_invited_to_be_refused() {
    let target = Target::start(&["http.max_body_bytes=1000000", "http.max_memory_bytes=1048576"]);
    let mut holding = target.connect(Way::Tcp);
    holding.write_all(head("content-length: 1000000\r\n").as_bytes()).unwrap();
    holding.write_all(&vec![b' '; 900_000]).unwrap();
    holding.flush().unwrap();
    wait_until_held(&target, 900_000);
    let began = Instant::now();
    for way in WAYS {
        let waiting = head("content-length: 900000\r\nexpect: 100-continue\r\n");
        assert_eq!(target.statuses(way, waiting.as_bytes()), [503], "{way:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(30), "nobody waits for the bodies");
}
