//! `Load`: callers, administration and a watcher, until the daemon is killed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ledge::audit::key::SignedCheckpoint;
use serde_json::{Value, json};

use crate::client::Client;
use crate::daemon::TestDaemon;
use crate::platform::{Answers, Callers};

/// The model that is asked.
pub const ASKED: &str = "add_sub";

/// The model that comes and goes.
pub const MOVED: &str = "second";

/// The number of callers at a time.
const CALLERS: usize = 3;

/// Timeout of every wait.
const LIMIT: Duration = Duration::from_mins(1);

/// The threads that use a daemon.
pub struct Load {
    stop: Arc<AtomicBool>,
    callers: Callers,
    administrator: JoinHandle<(Vec<&'static str>, &'static str)>,
    watcher: JoinHandle<Seen>,
}

/// The state that was reported before the daemon was killed.
pub struct Told {
    /// The most calls that can have been recorded.
    pub calls: u64,
    /// The records of answered operations, in order, and of operations that may have been done.
    pub done: Vec<&'static str>,
    pub perhaps: &'static str,
    pub seen: Seen,
}

/// The state of its log as a daemon reports it.
#[derive(Debug, Clone)]
pub struct Seen {
    /// It had at least this many durable records.
    pub size: u64,
    pub checkpoint: Option<String>,
    pub verifier_key: String,
    /// The number of them that the platform had, and whether it had all.
    pub copied: u64,
    pub is_copied: bool,
    /// The problems of the log, and of the copy.
    pub wrong: Vec<String>,
}

impl Load {
    pub fn start(daemon: &TestDaemon) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let callers = Callers::start(daemon, CALLERS, ASKED, &request());
        let (address, stopped) = (daemon.address, stop.clone());
        let administrator = std::thread::spawn(move || administer(address, &stopped));
        let (first, stopped) = (Seen::of(address).unwrap(), stop.clone());
        let watcher = std::thread::spawn(move || {
            let mut last = first;
            while !stopped.load(Ordering::Relaxed)
                && let Ok(seen) = Seen::of(address)
            {
                last = seen;
                // Without a pause the other threads would get no time.
                std::thread::sleep(Duration::from_millis(10));
            }
            last
        });
        Self { stop, callers, administrator, watcher }
    }

    /// Once the daemon is dead.
    pub fn end(self) -> Told {
        self.stop.store(true, Ordering::Relaxed);
        let answered: u64 = self.callers.stop().iter().map(|Answers { answered, .. }| answered).sum();
        let (done, perhaps) = self.administrator.join().unwrap();
        // Each caller had one request in progress.
        Told { calls: answered + CALLERS as u64, done, perhaps, seen: self.watcher.join().unwrap() }
    }
}

impl Seen {
    /// An error when the daemon has gone.
    pub fn of(address: SocketAddr) -> std::io::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(LIMIT))?;
        write!(stream, "GET /audit/status HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer.split_once("\r\n\r\n").ok_or_else(|| std::io::Error::other("cut off"))?;
        let status: Value = serde_json::from_str(body)?;
        let checkpoint = status["checkpoint"].as_str().map(str::to_owned);
        // `null` until the log is open.
        let size = status["size"].as_u64().unwrap_or(0);
        let copied = status["sync"]["size"].as_u64().unwrap_or(0);
        let wrong = [&status["error"], &status["alarm"]];
        Ok(Self {
            size,
            checkpoint,
            verifier_key: status["verifier_key"].as_str().unwrap().to_owned(),
            copied,
            is_copied: copied == size && size > 0 && status["sync"]["waiting_since"].is_null(),
            wrong: wrong.into_iter().filter_map(|wrong| wrong.as_str().map(str::to_owned)).collect(),
        })
    }

    /// Its head, which its key must have signed.
    pub fn head(&self) -> Option<SignedCheckpoint> {
        self.checkpoint.as_ref().map(|note| SignedCheckpoint::open(note.as_bytes(), &self.verifier_key).unwrap())
    }

    /// Waits until a daemon says what `is` wants.
    #[track_caller]
    pub fn until(daemon: &TestDaemon, is: impl Fn(&Self) -> bool) -> Self {
        let deadline = Instant::now() + LIMIT;
        loop {
            let seen = Self::of(daemon.address).unwrap();
            assert_eq!(seen.wrong, [""; 0]);
            if is(&seen) {
                return seen;
            }
            assert!(Instant::now() < deadline, "{seen:?}: {}", daemon.client().get("/audit/status").json());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Unloads a model and loads it again. The records of answered operations, and that of the unanswered one.
fn administer(address: SocketAddr, stop: &AtomicBool) -> (Vec<&'static str>, &'static str) {
    let mut done = Vec::new();
    let mut client = Client::try_tcp(address).ok();
    loop {
        let (verb, record) =
            if done.len().is_multiple_of(2) { ("unload", "model_unloaded") } else { ("load", "model_loaded") };
        let path = format!("/v2/repository/models/{MOVED}/{verb}");
        let answer = client.as_mut().and_then(|client| client.try_post_json(&path, &json!({})).ok());
        let Some(answer) = answer.filter(|_| !stop.load(Ordering::Relaxed)) else { return (done, record) };
        assert_eq!(answer.status, 200, "{verb}: {answer:?}");
        done.push(record);
        if answer.header("connection") == Some("close") {
            client = Client::try_tcp(address).ok();
        }
    }
}

fn request() -> Value {
    let of = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![1.0; 16]});
    json!({"inputs": [of("INPUT0"), of("INPUT1")]})
}
