//! Clients that send slowly, or half, or hold connections.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use super::{INFER, Target, WAYS, Way, head, rest, statuses, tensor};
use crate::client::Client;

#[test]
fn a_head_that_comes_byte_by_byte_ends_with_the_time_for_it() {
    let target = Target::start(&[]);
    for way in WAYS {
        let mut stream = target.connect(way);
        let began = Instant::now();
        // Each byte is progress, and none of them makes the wait longer.
        while stream.write_all(b"GET / HTTP/1.1\r\nx: y\r\n").and_then(|()| stream.flush()).is_ok() {
            assert!(began.elapsed() < Duration::from_secs(20), "{way:?}: it goes on for ever");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(began.elapsed() >= Duration::from_millis(900), "{way:?}");
    }
    target.serves();
}

#[test]
fn a_body_that_comes_byte_by_byte_is_408() {
    let target = Target::start(&["http.body_timeout_ms=1000"]);
    for way in WAYS {
        for fields in ["content-length: 1000000\r\n", "transfer-encoding: chunked\r\n"] {
            let mut stream = target.connect(way);
            stream.write_all(head(fields).as_bytes()).unwrap();
            let began = Instant::now();
            while stream.write_all(b"1\r\n \r\n").and_then(|()| stream.flush()).is_ok() {
                if began.elapsed() > Duration::from_millis(1500) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            // Whoever sends on may lose the answer with the connection; it ends all the same.
            let answered = statuses(&rest(&mut stream));
            assert!(answered.is_empty() || answered == [408], "{way:?}: {answered:?}");
        }
    }
    target.serves();
}

#[test]
fn connections_that_break_off_anywhere_leave_nothing_behind() {
    let target = Target::start(&[]);
    let body = tensor(1000);
    let whole = format!("{}{body}", head(&format!("content-length: {}\r\n", body.len())));
    for way in WAYS {
        for cut in (0..whole.len()).step_by(whole.len() / 40) {
            let mut stream = target.connect(way);
            stream.write_all(&whole.as_bytes()[..cut]).unwrap();
        }
    }
    // Half closed: nothing more will come, and an answer may still be read.
    for cut in [10, whole.len() / 2, whole.len()] {
        let mut stream = TcpStream::connect(target.daemon.address).unwrap();
        stream.write_all(&whole.as_bytes()[..cut]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        rest(&mut stream);
    }
    target.serves();
}

#[test]
fn a_flood_of_connections_passes_and_the_next_caller_is_served() {
    let target = Target::start(&["http.max_connections=16"]);
    for way in [Way::Tcp, Way::Unix] {
        // More than there is room for: the others wait in the kernel until the first are ended.
        let idle: Vec<_> = (0..64).map(|_| target.connect(way)).collect();
        let mut client = Client::over(target.connect(way));
        assert_eq!(client.post(INFER, &[], tensor(1).as_bytes()).status, 200, "{way:?}");
        drop(idle);
    }
    // Handshakes that never come.
    let silent: Vec<_> = (0..64).map(|_| TcpStream::connect(target.tls_address).unwrap()).collect();
    drop(silent);
    target.serves();
}
