//! A web server that answers as an attacker does. nginx sends what is there.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;

/// A server that answers each request with `answer`; its connections end with the client's.
pub fn server(answer: impl Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = std::sync::Arc::new(answer);
    // It ends with the process of the test.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.unwrap(), answer.clone());
            std::thread::spawn(move || {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    if stream.read(&mut byte).unwrap_or(0) == 0 {
                        return;
                    }
                    head.push(byte[0]);
                }
                let path = String::from_utf8(head).unwrap().split(' ').nth(1).unwrap().to_owned();
                // A client that has had enough closes the connection.
                let _ = answer(&path, &mut stream);
            });
        }
    });
    address
}

/// Answers with a file of `folder`, or 404.
pub fn file(folder: &Path, path: &str, stream: &mut TcpStream) -> std::io::Result<()> {
    match std::fs::read(folder.join(path.trim_start_matches('/'))) {
        Ok(content) => {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", content.len())?;
            stream.write_all(&content)
        }
        Err(_) => stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
    }
}

/// Answers with a body that never ends.
pub fn endless(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    loop {
        stream.write_all(b"4000\r\n")?;
        stream.write_all(&[b' '; 0x4000])?;
        stream.write_all(b"\r\n")?;
    }
}
