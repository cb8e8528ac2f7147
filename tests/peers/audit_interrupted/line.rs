//! `Line`: the network between a box and its platform, which passes bytes on until a test breaks it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::faults::seed::Random;

/// The most bytes that a connection lives to pass, while connections are cut: some break within a request, some within
/// its answer, and some later.
const LONGEST: u64 = 200_000;

/// A line to a server; gone when dropped.
pub struct Line {
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    server: u16,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    is_dropped: bool,
    /// Cuts every connection after some bytes.
    cutting: Option<Random>,
    cuts: u64,
    made: u64,
    connections: BTreeMap<u64, Connection>,
}

struct Connection {
    ends: [TcpStream; 2],
    /// The box waits for an answer.
    is_waiting: bool,
}

impl Connection {
    fn end(self) {
        // The other side may have ended it already.
        for end in self.ends {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

impl State {
    fn is_waiting(&self) -> bool {
        self.connections.values().any(|connection| connection.is_waiting)
    }
}

impl Line {
    /// A line to the server at a port.
    pub fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared { server, state: Mutex::default(), changed: Condvar::new() });
        let of = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if of.state.lock().unwrap().is_dropped {
                    break;
                }
                // The server may be away.
                let _ = of.connect(stream);
            }
        });
        Self { port, shared }
    }

    /// Ends all connections, and takes no new ones until it is opened again.
    pub fn close(&self) {
        let mut state = self.shared.state.lock().unwrap();
        state.is_closed = true;
        for connection in std::mem::take(&mut state.connections).into_values() {
            connection.end();
        }
    }

    /// Takes connections again.
    pub fn open(&self) {
        self.shared.state.lock().unwrap().is_closed = false;
    }

    /// Cuts connections from now on, or no longer.
    pub fn cut(&self, random: Option<Random>) {
        self.shared.state.lock().unwrap().cutting = random;
    }

    /// The number of connections that were cut.
    pub fn cuts(&self) -> u64 {
        self.shared.state.lock().unwrap().cuts
    }

    /// Waits until a request is on its way; whether one is.
    pub fn wait_for_request(&self, limit: Duration) -> bool {
        let state = self.shared.state.lock().unwrap();
        let waited = self.shared.changed.wait_timeout_while(state, limit, |state| !state.is_waiting());
        waited.unwrap().0.is_waiting()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.close();
        self.shared.state.lock().unwrap().is_dropped = true;
        // The listener hears of it.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    fn connect(self: &Arc<Self>, client: TcpStream) -> std::io::Result<()> {
        let server = TcpStream::connect(("127.0.0.1", self.server))?;
        let ends = [client.try_clone()?, server.try_clone()?];
        let (mut request, mut answer) = (u64::MAX, u64::MAX);
        let id = {
            let mut state = self.state.lock().unwrap();
            if state.is_closed {
                return Ok(());
            }
            if let Some(random) = &mut state.cutting {
                // Answers are short.
                if random.one_in(3) {
                    answer = random.below(LONGEST / 20);
                } else {
                    request = random.below(LONGEST);
                }
            }
            state.made += 1;
            let id = state.made;
            state.connections.insert(id, Connection { ends, is_waiting: false });
            id
        };
        for (from, to, budget, is_request) in
            [(client.try_clone()?, server.try_clone()?, request, true), (server, client, answer, false)]
        {
            let shared = self.clone();
            std::thread::spawn(move || shared.pass(id, from, to, budget, is_request));
        }
        Ok(())
    }

    /// Passes one direction of a connection on, and ends both with it.
    fn pass(&self, id: u64, mut from: TcpStream, mut to: TcpStream, mut budget: u64, is_request: bool) {
        let mut buffer = [0; 16 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if let Some(connection) = self.state.lock().unwrap().connections.get_mut(&id) {
                connection.is_waiting = is_request;
            }
            self.changed.notify_all();
            let passed = length.min(usize::try_from(budget).unwrap_or(usize::MAX));
            if to.write_all(&buffer[..passed]).is_err() {
                break;
            }
            budget -= passed as u64;
            if passed < length {
                self.state.lock().unwrap().cuts += 1;
                break;
            }
        }
        if let Some(connection) = self.state.lock().unwrap().connections.remove(&id) {
            connection.end();
        }
    }
}
