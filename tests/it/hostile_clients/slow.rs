//! Clients that send slowly, or half, or hold connections.

use std::io::{ErrorKind, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use super::{INFER, LIMIT, Target, WAYS, Way, head, rest, statuses, tensor};
use crate::client::{Client, Stream};

/// The time between two bytes of a slow caller.
const PAUSE: Duration = Duration::from_millis(50);

/// The limit for a head, and for a body here, is a second; the daemon's clock and the test's may differ a little.
const ALLOWED: Duration = Duration::from_millis(900);

/// A connection that is open by then has had more than its limit, on a busy machine too.
const LATE: Duration = Duration::from_secs(5);

/// Sends one byte after the other, with a pause between two, until the connection ends. Returns the answer so far, and
/// the duration. Reads are the pause: an answer is lost to a caller that sends on after the end without having read it.
fn drip(stream: &mut dyn Stream, bytes: impl Iterator<Item = u8>) -> (Vec<u8>, Duration) {
    let (began, mut answer, mut block) = (Instant::now(), Vec::new(), [0; 4096]);
    for byte in bytes {
        assert!(began.elapsed() < LIMIT, "it goes on for ever");
        if stream.write_all(&[byte]).and_then(|()| stream.flush()).is_err() {
            break;
        }
        // Each byte is progress, and none of them makes the wait longer.
        match stream.read(&mut block) {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(&block[..read]),
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {}
            Err(_) => break,
        }
    }
    (answer, began.elapsed())
}

#[test]
fn a_head_that_comes_byte_by_byte_ends_with_the_time_for_it() {
    let target = Target::start(&[]);
    for way in WAYS {
        let head = b"GET / HTTP/1.1\r\nx: ".iter().copied().chain(std::iter::repeat(b'y'));
        let (answer, took) = drip(&mut *target.connect_for(way, PAUSE), head);
        assert!(took >= ALLOWED && took < LATE, "{way:?}: it ended after {took:?}");
        assert_eq!(statuses(&answer), [0; 0], "{way:?}: there was no request");
    }
    target.serves();
}

#[test]
fn a_body_that_comes_byte_by_byte_is_408() {
    let target = Target::start(&["http.body_timeout_ms=1000"]);
    for way in WAYS {
        for fields in ["content-length: 1000000\r\n", "transfer-encoding: chunked\r\n"] {
            let mut stream = target.connect_for(way, PAUSE);
            stream.write_all(head(fields).as_bytes()).unwrap();
            let (answer, took) = drip(&mut *stream, b"1\r\n \r\n".iter().copied().cycle());
            assert!(took >= ALLOWED && took < LATE, "{way:?}, {fields:?}: it ended after {took:?}");
            assert_eq!(statuses(&answer), [408], "{way:?}, {fields:?}");
        }
    }
    target.serves();
}

#[test]
fn connections_that_break_off_anywhere_leave_nothing_behind() {
    let target = Target::start(&[]);
    target.serves();
    let before = target.settled_files();
    let body = tensor(1000);
    let whole = format!("{}{body}", head(&format!("content-length: {}\r\n", body.len())));
    for way in WAYS {
        for cut in (0..whole.len()).step_by(whole.len() / 40) {
            let mut stream = target.connect(way);
            stream.write_all(&whole.as_bytes()[..cut]).unwrap();
        }
    }
    // Half closed: nothing more will come, and the answer to a whole request may still be read.
    for cut in [10, whole.len() / 2, whole.len()] {
        let mut stream = TcpStream::connect(target.daemon.address).unwrap();
        stream.write_all(&whole.as_bytes()[..cut]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let answered = statuses(&rest(&mut stream));
        let expected = if cut == whole.len() { 200 } else { 400 };
        assert!(answered.is_empty() || answered == [expected], "{answered:?} after {cut} of {}", whole.len());
    }
    target.serves();
    target.wait_until_nothing_is_held();
    let after = target.settled_files();
    assert!(after <= before, "{before} files and sockets before, {after} afterwards");
}

#[test]
fn a_flood_of_connections_passes_and_the_next_caller_is_served() {
    let most = 16;
    let connections = format!("http.max_connections={most}");
    let target = Target::start(&[&connections, "http.tls.handshake_timeout_ms=1000"]);
    target.serves();
    let first = target.settled_files();
    for way in WAYS {
        let before = target.settled_files();
        // More than there is room for: the others wait in the kernel until the first are ended.
        let idle: Vec<Box<dyn Stream>> = (0..4 * most)
            .map(|_| -> Box<dyn Stream> {
                match way {
                    // Handshakes that never come.
                    Way::Tls => Box::new(TcpStream::connect(target.tls_address).unwrap()),
                    _ => target.connect(way),
                }
            })
            .collect();
        // One more of each listener is accepted and waits for a place.
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(300) {
            let open = target.files().saturating_sub(before);
            assert!(open <= most + 2, "{way:?}: {open} connections are open, and {most} may be");
        }
        let mut client = Client::over(target.connect(way));
        assert_eq!(client.post(INFER, &[], tensor(1).as_bytes()).status, 200, "{way:?}");
        drop(idle);
    }
    target.serves();
    let after = target.settled_files();
    assert!(after <= first, "{first} files and sockets before, {after} afterwards");
}
