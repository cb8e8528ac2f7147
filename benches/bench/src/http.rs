//! A running daemon as a target. Requests are bytes made before the measurement and sent over connections that stay
//! open; answers are read by their length.

use std::io::{Read, Write};
use std::time::Duration;

use super::connection::RawConnection;
use anyhow::{Context, bail};
use serde_json::Value;

use super::drive::{Caller, Target};
use super::figures::Outcome;
use super::process::{Usage, usage_with_children};
use super::random::Random;
use super::request::Request;

/// The longest time without bytes from the daemon. After that it counts as hanging.
const READ_TIMEOUT: Duration = Duration::from_mins(2);

/// The longest head of an answer, in bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// A daemon, and the requests to send it.
#[derive(Debug)]
pub struct Http {
    pub url: String,
    /// The process id of the daemon, if known.
    pub pid: Option<u32>,
    /// Sent in turn; with `unique` only the first, stamped each time.
    pub requests: Vec<Request>,
    /// Set if no request is sent twice.
    pub unique: bool,
}

impl Target for Http {
    fn name(&self) -> &'static str {
        "http"
    }

    fn usage(&self) -> Option<Usage> {
        self.pid.and_then(usage_with_children)
    }

    fn caller(&self) -> anyhow::Result<Box<dyn Caller + '_>> {
        let connection = Connection::open(&self.url)?;
        let own = if self.unique { self.requests.first().cloned() } else { None };
        Ok(Box::new(HttpCaller { http: self, connection: Some(connection), own, random: Random::fresh() }))
    }
}

struct HttpCaller<'a> {
    http: &'a Http,
    connection: Option<Connection>,
    /// The caller's copy of the request to stamp, with `unique`.
    own: Option<Request>,
    random: Random,
}

impl Caller for HttpCaller<'_> {
    fn call(&mut self, number: usize) -> Outcome {
        let request = match &mut self.own {
            Some(own) => {
                own.stamp(&mut self.random);
                &*own
            }
            None => match self.http.requests.get(number % self.http.requests.len().max(1)) {
                Some(request) => request,
                None => return Outcome::Failed { kind: "no request".to_owned(), message: String::new() },
            },
        };
        match exchange(&mut self.connection, &self.http.url, &request.bytes) {
            Ok(HttpAnswer { status: 200, .. }) => Outcome::Ok,
            Ok(answer) => Outcome::Failed { kind: answer.status.to_string(), message: answer.message },
            Err(error) => Outcome::Failed { kind: "connection".to_owned(), message: format!("{error:#}") },
        }
    }
}

/// The status of an answer, and its message if the status is not 200.
struct HttpAnswer {
    status: u16,
    message: String,
}

/// Sends a request and receives its answer, over a new connection if necessary, such as after the daemon closed an idle
/// one.
fn exchange(connection: &mut Option<Connection>, url: &str, request: &[u8]) -> anyhow::Result<HttpAnswer> {
    let reused = connection.is_some();
    let mut open = match connection.take() {
        Some(open) => open,
        None => Connection::open(url)?,
    };
    let (answer, stays) = match open.exchange(request) {
        Ok(answered) => answered,
        Err(_) if reused && open.filled == 0 => {
            open = Connection::open(url)?;
            open.exchange(request)?
        }
        Err(error) => return Err(error),
    };
    *connection = stays.then_some(open);
    Ok(answer)
}

/// Gets a JSON document from a daemon.
pub fn get(url: &str, path: &str) -> anyhow::Result<Value> {
    let mut connection = Connection::open(url)?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", connection.stream.host());
    let (answer, _) = connection.exchange(request.as_bytes())?;
    if answer.status != 200 {
        bail!("the server at {url} answers {}: {}", answer.status, answer.message);
    }
    serde_json::from_slice(connection.body()).with_context(|| format!("{url}{path} is not JSON"))
}

/// A connection and the answer on it.
struct Connection {
    stream: RawConnection,
    buffer: Vec<u8>,
    /// The number of received bytes in the buffer.
    filled: usize,
    /// The place of the body in the buffer.
    body: std::ops::Range<usize>,
}

impl Connection {
    fn open(url: &str) -> anyhow::Result<Self> {
        let stream = RawConnection::open(url, READ_TIMEOUT)?;
        Ok(Self { stream, buffer: vec![0; 16 << 10], filled: 0, body: 0..0 })
    }

    fn body(&self) -> &[u8] {
        self.buffer.get(self.body.clone()).unwrap_or_default()
    }

    /// Sends a request. Returns the answer, and true if the connection stays open.
    fn exchange(&mut self, request: &[u8]) -> anyhow::Result<(HttpAnswer, bool)> {
        self.filled = 0;
        // A server may answer, and close, before it has read everything.
        let written = self.stream.write_all(request);
        let head = loop {
            if let Some(head) = Head::parse(self.buffer.get(..self.filled).unwrap_or_default())? {
                break head;
            }
            if self.filled > HEAD_BYTES_MAX {
                bail!("the head of the answer is larger than {HEAD_BYTES_MAX} bytes");
            }
            self.receive()?;
        };
        self.body = head.length..head.length + head.body;
        while self.filled < self.body.end {
            self.receive()?;
        }
        let message = if head.status == 200 {
            String::new()
        } else {
            let body: Value = serde_json::from_slice(self.body()).unwrap_or_default();
            body.get("error").and_then(Value::as_str).unwrap_or("no message").to_owned()
        };
        Ok((HttpAnswer { status: head.status, message }, written.is_ok() && !head.closes))
    }

    fn receive(&mut self) -> anyhow::Result<()> {
        if self.filled == self.buffer.len() {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        match self.stream.read(self.buffer.get_mut(self.filled..).unwrap_or_default())? {
            0 => bail!("the server closed the connection"),
            read => self.filled += read,
        }
        Ok(())
    }
}

/// The parts of an answer's head that are used.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    /// The length of the head in bytes.
    length: usize,
    /// The length of the body in bytes.
    body: usize,
    closes: bool,
}

impl Head {
    /// The head at the start of `bytes`; `None` until it is complete.
    fn parse(bytes: &[u8]) -> anyhow::Result<Option<Self>> {
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
        let text = std::str::from_utf8(bytes.get(..end).unwrap_or_default())?;
        let mut lines = text.split("\r\n");
        let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok());
        let mut head =
            Self { status: status.context("the answer is not HTTP/1.1")?, length: end + 4, body: 0, closes: false };
        for line in lines {
            let (name, value) = line.split_once(':').context("a header of the answer has no colon")?;
            if name.eq_ignore_ascii_case("content-length") {
                head.body = value.trim().parse().context("the content-length of the answer is not a number")?;
            } else if name.eq_ignore_ascii_case("connection") {
                head.closes = value.trim().eq_ignore_ascii_case("close");
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                bail!("the answer has a transfer-encoding instead of a content-length: {line}");
            }
        }
        Ok(Some(head))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_head_has_the_status_the_length_and_the_end_of_the_connection() {
        let answer = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 12\r\nconnection: Close\r\n\r\n{\"err";
        let head = Head::parse(answer).unwrap().unwrap();
        assert_eq!(head, Head { status: 429, length: answer.len() - 5, body: 12, closes: true });
        for cut in 0..head.length {
            assert_eq!(Head::parse(&answer[..cut]).unwrap(), None, "{cut}");
        }
        for wrong in
            ["SSH-2.0\r\n\r\n", "HTTP/1.1 200\r\nx\r\n\r\n", "HTTP/1.1 200\r\ntransfer-encoding: chunked\r\n\r\n"]
        {
            assert!(Head::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(bytes: Vec<u8>) {
            let _ = Head::parse(&bytes);
            let _ = Head::parse(&[b"HTTP/1.1 200 OK\r\n", &bytes[..], b"\r\n\r\n"].concat());
        }
    }
}
