//! A blocking HTTP/1.1 client that shows the bytes: headers as sent, bodies as received.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use serde_json::Value;

/// A test that waits longer than this for an answer has found a hang.
const LIMIT: Duration = Duration::from_mins(1);

pub trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// One connection, kept alive.
pub struct Client {
    stream: BufReader<Box<dyn Stream>>,
}

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

impl Response {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The message of an error answer. Also checks the form of the answer.
    #[track_caller]
    pub fn error(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:?}");
        self.json()["error"].as_str().unwrap_or_else(|| panic!("no error in {self:?}")).to_owned()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

impl Client {
    pub fn tcp(address: SocketAddr) -> Self {
        Self::try_tcp(address).unwrap()
    }

    /// An error when the server has gone.
    pub fn try_tcp(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(Box::new(stream)) })
    }

    /// A client over an open connection.
    pub fn over(stream: impl Stream + 'static) -> Self {
        Self { stream: BufReader::new(Box::new(stream)) }
    }

    pub fn unix(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Self { stream: BufReader::new(Box::new(stream)) }
    }

    pub fn get(&mut self, path: &str) -> Response {
        self.request("GET", path, &[], b"")
    }

    /// A figure of `GET /metrics` by its name, with its labels if it has some.
    #[track_caller]
    pub fn metric<T: FromStr>(&mut self, series: &str) -> T {
        let text = String::from_utf8(self.get("/metrics").body).unwrap();
        let found = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
        found.unwrap_or_else(|| panic!("no {series} in {text}"))
    }

    pub fn post(&mut self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        self.request("POST", path, headers, body)
    }

    pub fn post_json(&mut self, path: &str, body: &Value) -> Response {
        self.post(path, &[("content-type", "application/json")], body.to_string().as_bytes())
    }

    /// The state of a model in the index, and its reason if there is one.
    #[track_caller]
    pub fn state(&mut self, model: &str) -> (String, String) {
        let index = self.post("/v2/repository/index", &[], b"").json();
        let row = index.as_array().unwrap().iter().find(|row| row["name"] == model).unwrap();
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        (text("state"), text("reason"))
    }

    /// The reason why a model does not serve.
    #[track_caller]
    pub fn refusal(&mut self, model: &str) -> String {
        let (state, reason) = self.state(model);
        assert_eq!(state, "UNAVAILABLE", "{model}: {reason}");
        reason
    }

    /// Posts to a server that may be killed meanwhile: then it is an error.
    pub fn try_post_json(&mut self, path: &str, body: &Value) -> io::Result<Response> {
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.stream.get_mut().write_all(format!("{head}{body}").as_bytes())?;
        self.try_receive_one("POST")
    }

    /// Gets from a server that may be killed meanwhile: then it is an error.
    pub fn try_get(&mut self, path: &str) -> io::Result<Response> {
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        self.stream.get_mut().write_all(head.as_bytes())?;
        self.try_receive_one("GET")
    }

    pub fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            head.extend([name, ": ", value, "\r\n"]);
        }
        head += "\r\n";
        if body.len() < 1 << 14 {
            // In one piece: a server that answers without reading the body may close when it comes later.
            self.send(&[head.as_bytes(), body].concat());
        } else {
            self.send(head.as_bytes());
            // A server may answer a body that it will not read before all of it is sent.
            let _ = self.stream.get_mut().write_all(body);
        }
        self.receive_for(method)
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// Reads all bytes until the server closes the connection.
    pub fn finish(mut self) {
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest);
    }

    /// Receives the next answer.
    pub fn receive(&mut self) -> Response {
        self.receive_for("")
    }

    /// Receives the status of an interim answer, such as 100.
    pub fn receive_interim(&mut self) -> u16 {
        self.receive_one("").status
    }

    /// Returns `true` if the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        self.stream.fill_buf().map_or(true, <[u8]>::is_empty)
    }

    fn receive_for(&mut self, method: &str) -> Response {
        loop {
            let response = self.receive_one(method);
            if response.status != 100 {
                return response;
            }
        }
    }

    fn receive_one(&mut self, method: &str) -> Response {
        self.try_receive_one(method).unwrap()
    }

    /// An error when the server has gone.
    fn try_receive_one(&mut self, method: &str) -> io::Result<Response> {
        let status_line = self.line()?;
        let status = status_line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status in {status_line:?}"));
        let mut headers = HashMap::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap();
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let mut body = Vec::new();
        if method == "HEAD" || status == 100 {
            // No body, even if the length is not 0.
        } else if headers.get("transfer-encoding").is_some_and(|value| value == "chunked") {
            loop {
                let size = usize::from_str_radix(self.line()?.trim(), 16).unwrap();
                let start = body.len();
                body.resize(start + size, 0);
                self.stream.read_exact(&mut body[start..])?;
                self.line()?;
                if size == 0 {
                    break;
                }
            }
        } else {
            body.resize(headers.get("content-length").map_or(0, |length| length.parse().unwrap()), 0);
            self.stream.read_exact(&mut body)?;
        }
        Ok(Response { status, headers, body })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        if !line.ends_with('\n') {
            return Err(io::Error::other(format!("the connection was closed after {line:?}")));
        }
        Ok(line.trim_end().to_owned())
    }
}
