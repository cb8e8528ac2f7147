//! What clients make the box hold: answers that they do not read, and bodies that they do not end.

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
    for way in WAYS {
        let mut stream = target.connect(way);
        let head = head(&format!("content-length: {}\r\n", body.len()));
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).unwrap();
        let line = target.daemon.wait_for_log("connection ended");
        assert!(line["reason"].as_str().unwrap().contains("http.write_timeout_ms"), "{line}");
        // What was on its way comes, and then the end.
        let mut came = 0;
        let mut block = vec![0; 1 << 16];
        while let Ok(read) = stream.read(&mut block) {
            came += read;
            if read == 0 {
                break;
            }
        }
        assert!(came < body.len(), "{way:?}: all of it came");
    }
    target.serves();
}

#[test]
fn a_caller_that_reads_slowly_but_steadily_gets_all_of_its_answer() {
    let target = Target::start(&["http.write_timeout_ms=500"]);
    let body = tensor(ELEMENTS);
    let mut stream = target.connect(Way::Tcp);
    let head = head(&format!("content-length: {}\r\nconnection: close\r\n", body.len()));
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).unwrap();
    let (mut came, mut block) = (Vec::new(), vec![0; 2 << 20]);
    loop {
        let read = stream.read(&mut block).unwrap();
        if read == 0 {
            break;
        }
        came.extend_from_slice(&block[..read]);
        std::thread::sleep(Duration::from_millis(5));
    }
    let at = came.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    assert!(serde_json::from_slice::<serde_json::Value>(&came[at..]).is_ok());
}

/// What a caller is told now.
fn ask(target: &Target, way: Way, body: &str) -> crate::client::Response {
    Client::over(target.connect(way)).post(INFER, &[], body.as_bytes())
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
    let target = Target::start(&["http.max_body_bytes=1000000", "http.max_memory_bytes=2000000"]);
    let large = tensor(300_000);
    for way in WAYS {
        let mut holding: Vec<_> = (0..2).map(|_| target.connect(way)).collect();
        for stream in &mut holding {
            stream.write_all(head("content-length: 1000000\r\n").as_bytes()).unwrap();
            stream.write_all(&vec![b' '; 900_000]).unwrap();
            stream.flush().unwrap();
        }
        // Until both have come.
        let began = Instant::now();
        let refused = loop {
            let answer = ask(&target, way, &large);
            if answer.status != 200 {
                break answer;
            }
            assert!(began.elapsed() < LIMIT, "{way:?}: there is always room");
        };
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
        assert_eq!(super::statuses(&super::rest(&mut chunked)), [503], "{way:?}");
        let packed = super::bombs::gzip(&vec![b' '; 900_000]);
        let packed = Client::over(target.connect(way)).post(INFER, &[("content-encoding", "gzip")], &packed);
        assert_eq!(packed.status, 503, "{packed:?}");
        // Small ones are answered as ever, and so is everything when the others have gone.
        assert_eq!(ask(&target, way, &tensor(100)).status, 200);
        drop(holding);
        wait_until_served(&target, way, &large);
    }
}

#[test]
fn answers_that_nobody_reads_count_until_they_are_cut_off() {
    let settings = ["http.max_body_bytes=16000000", "http.max_memory_bytes=16000000", "http.write_timeout_ms=3000"];
    let target = Target::start(&settings);
    let body = tensor(ELEMENTS);
    let mut unread: Vec<_> = (0..2).map(|_| target.connect(Way::Tcp)).collect();
    for stream in &mut unread {
        let head = head(&format!("content-length: {}\r\n", body.len()));
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).unwrap();
        // The first byte: the answer is there.
        stream.read_exact(&mut [0]).unwrap();
    }
    let began = Instant::now();
    let refused = ask(&target, Way::Tcp, &tensor(1));
    assert!(refused.status == 503 || began.elapsed() > Duration::from_secs(2), "{refused:?}");
    wait_until_served(&target, Way::Tcp, &body);
    assert!(began.elapsed() >= Duration::from_secs(1), "they were cut off before their time");
}
