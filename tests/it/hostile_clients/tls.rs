//! Bytes that are not TLS, half of a handshake, and errors after a good handshake.

use std::io::Write;
use std::net::TcpStream;

use super::{LIMIT, Target, rest};

fn raw(target: &Target) -> TcpStream {
    let stream = TcpStream::connect(target.tls_address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// The start of each kind of record, and of some invalid ones.
pub fn records() -> Vec<Vec<u8>> {
    let record = |kind: u8, length: u16, body: &[u8]| {
        let mut record = vec![kind, 3, 3];
        record.extend(length.to_be_bytes());
        record.extend(body);
        record
    };
    vec![
        // A hello that says it is 16 MB long, one of nothing, one that ends within its extensions.
        record(22, 4, &[1, 0xff, 0xff, 0xff]),
        record(22, 4, &[1, 0, 0, 0]),
        record(22, 43, &[&[1, 0, 0, 39, 3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1]].concat()),
        // A HelloRequest, as one who wants to renegotiate as a server.
        record(22, 4, &[0, 0, 0, 0]),
        // Longer than a record may be, empty, and of a kind that there is not.
        record(22, 0xffff, &[0; 1000]),
        record(22, 0, &[]),
        record(99, 5, b"hello"),
        // Data, an alert and a change of ciphers before any key.
        record(23, 5, b"hello"),
        record(21, 2, &[2, 0]),
        record(20, 1, &[1]),
        b"\x80\x2e\x01\0\x02\0\x15\0\0\0\x10".to_vec(),
        vec![22; 20_000],
    ]
}

#[test]
fn records_that_are_none_end_their_connection_and_no_other() {
    let target = Target::start(&["http.tls.handshake_timeout_ms=1000"]);
    for record in records() {
        for cut in [1, record.len() / 2, record.len()] {
            let mut stream = raw(&target);
            let _ = stream.write_all(&record[..cut]);
            rest(&mut stream);
        }
    }
    target.serves();
}

#[test]
fn records_that_are_none_behind_a_handshake_end_the_connection() {
    let target = Target::start(&[]);
    for record in records() {
        let mut stream = target.tls.connect(target.tls_address).unwrap();
        stream.write_all(b"GET /v2 HTTP/1.1\r\nhost: localhost\r\n").unwrap();
        // Beneath the encryption.
        let _ = stream.sock.write_all(&record);
        rest(&mut stream.sock);
    }
    target.serves();
}

#[test]
fn a_flood_of_handshakes_that_break_off_leaves_room_for_good_ones() {
    let target = Target::start(&[]);
    let hello = {
        let mut client = rustls::ClientConnection::new(
            std::sync::Arc::new(target.tls.config.clone()),
            target.tls_address.ip().into(),
        );
        let mut hello = Vec::new();
        client.as_mut().unwrap().write_tls(&mut hello).unwrap();
        hello
    };
    for _ in 0..10 {
        // The costly half of each is the box's.
        let flood: Vec<_> = (0..30)
            .map(|_| {
                let mut stream = raw(&target);
                stream.write_all(&hello).unwrap();
                stream
            })
            .collect();
        drop(flood);
    }
    target.serves();
}
