//! Clients that mean harm, over TCP, the Unix socket and TLS: requests that can be read in two ways, bombs, callers
//! that send or read slowly or not at all, floods. Each is answered or cut off, within bounds, and the next caller is
//! served.
//!
//! `make hostile` runs them concurrently for minutes, and checks the daemon's memory and files afterwards.

mod bombs;
mod framing;
mod held;
mod minutes;
mod slow;
mod tls;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::certificates::Authority;
use crate::client::{Client, Stream};
use crate::daemon::{TestDaemon, TestRoot};
use crate::tls_kit::{TlsClient, put};

/// A test that waits longer than this has found a hang.
const LIMIT: Duration = Duration::from_mins(1);

const INFER: &str = "/v2/models/identity_fp32/infer";

/// The ways to reach the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Tcp,
    Unix,
    Tls,
}

const WAYS: [Way; 3] = [Way::Tcp, Way::Unix, Way::Tls];

/// A box that listens in every way, and ends idle connections after a second.
struct Target {
    daemon: TestDaemon,
    tls: TlsClient,
    tls_address: std::net::SocketAddr,
}

impl Target {
    fn start(settings: &[&str]) -> Self {
        Self::with(TestRoot::new().models(&["identity_fp32"]), settings)
    }

    fn with(root: TestRoot, settings: &[&str]) -> Self {
        let authority = Authority::new();
        put(&root, &authority.issue("127.0.0.1"));
        let root = root
            .set("http.listen=[\"127.0.0.1:0\", \"https://127.0.0.1:0\", \"unix:ledge.sock\"]")
            .set("http.tls.certificate_file=\"box.pem\"")
            .set("http.tls.key_file=\"box.key\"")
            .set("http.header_timeout_ms=1000");
        let daemon = settings.iter().fold(root, |root, setting| root.set(setting)).start();
        // The plain address is the first that is logged, and the encrypted one the second.
        daemon.wait_for_event_since_start("listener.listening");
        let tls_address = daemon.wait_for_event("listener.listening")["address"].as_str().unwrap().parse().unwrap();
        Self { daemon, tls: TlsClient::new(authority.pem(), None), tls_address }
    }

    fn connect(&self, way: Way) -> Box<dyn Stream> {
        self.connect_for(way, LIMIT)
    }

    /// A connection with reads that time out after `patience`.
    fn connect_for(&self, way: Way, patience: Duration) -> Box<dyn Stream> {
        match way {
            Way::Tcp => {
                let stream = TcpStream::connect(self.daemon.address).unwrap();
                stream.set_read_timeout(Some(patience)).unwrap();
                Box::new(stream)
            }
            Way::Unix => {
                let stream = UnixStream::connect(self.daemon.root.folder.path().join("ledge.sock")).unwrap();
                stream.set_read_timeout(Some(patience)).unwrap();
                Box::new(stream)
            }
            Way::Tls => {
                let stream = self.tls.connect(self.tls_address).unwrap();
                stream.sock.set_read_timeout(Some(patience)).unwrap();
                Box::new(stream)
            }
        }
    }

    /// Sends bytes, and gives all that comes until the box closes the connection.
    fn answers(&self, way: Way, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect(way);
        // It may have closed before all is sent.
        let _ = stream.write_all(bytes);
        rest(&mut stream)
    }

    /// The statuses of those answers.
    fn statuses(&self, way: Way, bytes: &[u8]) -> Vec<u16> {
        statuses(&self.answers(way, bytes))
    }

    /// Another caller is served as ever.
    #[track_caller]
    fn serves(&self) {
        for way in WAYS {
            let answer = Client::over(self.connect(way)).post(INFER, &[], tensor(1).as_bytes());
            assert_eq!(answer.status, 200, "{way:?}: {answer:?}");
        }
    }

    /// The number of files and sockets that the daemon has open.
    fn files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.daemon.pid())).unwrap().count()
    }

    /// The same, once it has been one number for a while: connections that have ended are closed by then.
    fn settled_files(&self) -> usize {
        let (mut files, mut since) = (self.files(), Instant::now());
        let began = since;
        while since.elapsed() < Duration::from_millis(500) {
            assert!(began.elapsed() < LIMIT, "connections come and go: {files} files are open");
            std::thread::sleep(Duration::from_millis(10));
            let now = self.files();
            if now != files {
                (files, since) = (now, Instant::now());
            }
        }
        files
    }

    /// The bytes of bodies, answers and the data made from them, as the daemon counts them now.
    fn held(&self) -> f64 {
        self.metric("ledge_http_body_memory_bytes")
    }

    fn metric(&self, name: &str) -> f64 {
        self.daemon.unix_client().metric(name)
    }

    /// Waits until nothing is held for any call.
    #[track_caller]
    fn wait_until_nothing_is_held(&self) {
        let began = Instant::now();
        while self.held() > 0.0 {
            assert!(began.elapsed() < LIMIT, "{} bytes are still held", self.held());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The memory of the daemon now, in kB. Resets its measured peak.
    fn rss_kb(&self) -> u64 {
        let clear = format!("/proc/{}/clear_refs", self.daemon.pid());
        std::fs::File::options().write(true).open(clear).unwrap().write_all(b"5").unwrap();
        self.status_kb("VmRSS:")
    }

    /// The most it had since.
    fn peak_kb(&self) -> u64 {
        self.status_kb("VmHWM:")
    }

    /// The largest address space that it ever had.
    fn reserved_kb(&self) -> u64 {
        self.status_kb("VmPeak:")
    }

    fn status_kb(&self, key: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.daemon.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

/// All that comes until the end of a connection, however it ends; a timeout is no end.
fn rest(stream: &mut impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    let mut block = vec![0; 1 << 16];
    loop {
        match stream.read(&mut block) {
            Ok(0) => return all,
            Ok(read) => all.extend_from_slice(&block[..read]),
            Err(error) => {
                let hung = [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::TimedOut].contains(&error.kind());
                assert!(!hung, "the connection neither ends nor goes on after {:?}", String::from_utf8_lossy(&all));
                return all;
            }
        }
    }
}

/// The statuses of the answers in a stream. No body here has a status line in it; one that names the version has no
/// status after it.
fn statuses(stream: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(stream);
    let lines = text.match_indices("HTTP/1.").filter(|(at, _)| text.as_bytes().get(at + 8) == Some(&b' '));
    lines.map(|(at, _)| text[at + 9..at + 12].parse().unwrap()).collect()
}

/// A request to `identity_fp32`.
fn tensor(elements: usize) -> String {
    let data = vec!["1"; elements].join(",");
    format!(r#"{{"inputs":[{{"name":"IN","datatype":"FP32","shape":[1,{elements}],"data":[{data}]}}]}}"#)
}

/// The head of a POST to it.
fn head(fields: &str) -> String {
    format!("POST {INFER} HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n")
}
