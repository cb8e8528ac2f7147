//! The spawner, from the daemon: a small process of the same program that starts the processes of models, and the trials of
//! updates.
//!
//! The daemon takes from itself the right to write code (`deny_writable_code` of the sandbox), and whatever it starts from
//! then on inherits that. OpenVINO must write code. So a process that was started before is the parent of the others.
//! It reads nothing but the daemon's requests, and starts nothing but the daemon's own program.
//!
//! It outlives the daemon's program when that is replaced in place, for the new program has the same filter. It ends with
//! the daemon's process, and its children end with it. Without it there are no children any more, and no way to get a
//! spawner again within this process: the daemon then ends, and its service manager starts it again.
//!
//! Files of `spawner/`, in reading order:
//! * `packets.rs` - what passes between the two
//! * `server.rs` - the spawner, from inside
//! * `tests.rs` - tests

pub(crate) mod packets;
mod server;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use ledge_base::sys;
use ledge_service::limited_process::{self, THIS_PROGRAM};
use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, retry_on_intr};
use rustix::net::Shutdown;
use rustix::process::{Pid, WaitOptions};
use serde::{Deserialize, Serialize};

use crate::process::describe;
use packets::{Report, Request, Verb};
pub use server::{SpawnerError, end_with_spawner, run};

/// The environment variable with the spawner that a program leaves to the next program of its process.
pub const SPAWNER_VARIABLE: &str = "LEDGE_SPAWNER";

/// The longest wait for a start. One takes a few milliseconds.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// The value of the environment variable.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Inherited {
    /// The process that has the socket: a child that inherits the variable does not have it.
    pid: u32,
    socket: RawFd,
    spawner: i32,
    /// See [`SpawnerProcess::is_code_denied`].
    is_code_denied: bool,
}

/// A spawner that runs, and nobody speaks to yet. It ends when this is dropped.
#[derive(Debug)]
pub struct SpawnerProcess {
    socket: OwnedFd,
    pid: Pid,
    is_code_denied: bool,
}

impl SpawnerProcess {
    /// The spawner of the previous program of this process, or a new one. To be called first of all: a new one inherits
    /// the limits and the secrets in memory of this process as they are now.
    pub fn inherited_or_new() -> io::Result<Self> {
        Self::inherited().map_or_else(Self::start, Ok)
    }

    fn inherited() -> Option<Self> {
        static IS_READ: AtomicBool = AtomicBool::new(false);
        let text = std::env::var(SPAWNER_VARIABLE).ok().filter(|_| !IS_READ.swap(true, Ordering::Relaxed))?;
        let left: Inherited = serde_json::from_str(&text).ok()?;
        if left.pid != std::process::id() {
            return None;
        }
        let socket = sys::adopt_packet_socket(left.socket)?;
        // Children of this program must not inherit it.
        rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC).ok()?;
        let pid = Pid::from_raw(left.spawner)?;
        Some(Self { socket, pid, is_code_denied: left.is_code_denied })
    }

    fn start() -> io::Result<Self> {
        let (socket, other) = packets::pair()?;
        let mut command = Command::new(THIS_PROGRAM);
        command.arg0("ledge").arg("spawner").env_clear().envs(limited_process::environment());
        // Out of the daemon's process group: a Ctrl-C is meant for the daemon, which ends the others when it has drained.
        command.stdin(other).stdout(Stdio::null()).process_group(0);
        let pid = Pid::from_child(&command.spawn()?);
        Ok(Self { socket, pid, is_code_denied: false })
    }

    /// True when the previous program of this process took from it the right to write code, which this program can
    /// neither take back nor needs to take again.
    pub fn is_code_denied(&self) -> bool {
        self.is_code_denied
    }

    /// Begins to speak to it: an error is a spawner that does not answer. The children of a previous program end.
    pub fn connect(self) -> io::Result<Spawner> {
        // An error here is that of a socket whose other end is closed.
        let mut answer = packets::send(&self.socket, &Request::Reset, &[]).ok();
        // Reports about those children come first.
        while answer.is_some() {
            match packets::receive(&self.socket) {
                Ok(Some((Report::Reset, _))) => break,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => answer = None,
            }
        }
        if answer.is_none() {
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
            return Err(gone(&end_of(self.pid)));
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let shared = Arc::new(Shared {
            socket: self.socket,
            pid: self.pid,
            program: rustix::fs::open(Path::new(THIS_PROGRAM), flags, Mode::empty())?,
            next: AtomicU64::new(1),
            state: Mutex::default(),
        });
        let reader = shared.clone();
        std::thread::Builder::new().name("spawner".to_owned()).spawn(move || reader.read())?;
        Ok(Spawner { handle: Arc::new(Handle { shared }) })
    }
}

/// A handle to the spawner. Clones share it; with the last one it ends.
#[derive(Debug, Clone)]
pub struct Spawner {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    socket: OwnedFd,
    pid: Pid,
    /// The file of this program.
    program: OwnedFd,
    next: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Those who wait for a start, by the number of the child.
    starting: HashMap<u64, mpsc::Sender<io::Result<(u32, OwnedFd)>>>,
    /// Those who wait for an end.
    running: HashMap<u64, mpsc::Sender<ExitStatus>>,
    on_end: Option<Box<dyn FnOnce(String) + Send>>,
    /// The end of the spawner, completing "the process that starts the others ...".
    end: Option<String>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("running", &self.running.len()).field("end", &self.end).finish_non_exhaustive()
    }
}

/// A child that was started.
#[derive(Debug)]
pub(crate) struct Spawned {
    pub pidfd: OwnedFd,
    pub pid: u32,
    /// Gets its status at its end.
    pub status: mpsc::Receiver<ExitStatus>,
}

impl Spawner {
    /// The process id of the spawner.
    pub fn pid(&self) -> i32 {
        self.handle.shared.pid.as_raw_nonzero().get()
    }

    /// Starts a child of this program. Its standard input is a socket or a pipe; without `output` and `errors` its output
    /// goes nowhere, and its errors where those of the daemon go.
    pub(crate) fn spawn(&self, verb: Verb, input: &OwnedFd, outputs: &[OwnedFd]) -> io::Result<Spawned> {
        let shared = &self.handle.shared;
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        let ((sender, receiver), (ended, status)) = (mpsc::channel(), mpsc::channel());
        {
            let mut state = shared.state();
            if let Some(end) = &state.end {
                return Err(gone(end));
            }
            state.starting.insert(number, sender);
            // At once: the report of the end may come right behind that of the start.
            state.running.insert(number, ended);
        }
        let files: Vec<_> = [&shared.program, input].into_iter().chain(outputs).map(AsFd::as_fd).collect();
        let sent = packets::send(&shared.socket, &Request::Start { number, verb }, &files);
        let started = sent.and_then(|()| match receiver.recv_timeout(START_TIMEOUT) {
            Ok(started) => started,
            // A child that is started later ends with its standard input, whose other end is dropped with this error.
            Err(mpsc::RecvTimeoutError::Timeout) => Err(gone("does not answer")),
            // The reader saw the end of the socket, and dropped every sender.
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(gone("has ended")),
        });
        match started {
            Ok((pid, pidfd)) => Ok(Spawned { pidfd, pid, status }),
            Err(error) => {
                let mut state = shared.state();
                state.starting.remove(&number);
                state.running.remove(&number);
                Err(error)
            }
        }
    }

    /// Calls `on_end` when the spawner ends before the last handle is dropped, at once if it has; with the end, completing
    /// "the process that starts the others ...".
    pub fn on_end(&self, on_end: impl FnOnce(String) + Send + 'static) {
        let mut state = self.handle.shared.state();
        match state.end.clone() {
            Some(end) => {
                drop(state);
                on_end(end);
            }
            None => state.on_end = Some(Box::new(on_end)),
        }
    }

    /// Leaves the spawner to the next program of this process, and returns the value of [`SPAWNER_VARIABLE`] for it. With
    /// `is_code_denied` that program will know that it may not write code either.
    pub fn leave(&self, is_code_denied: bool) -> io::Result<String> {
        let shared = &self.handle.shared;
        rustix::io::fcntl_setfd(&shared.socket, FdFlags::empty())?;
        let (pid, socket, spawner) = (std::process::id(), shared.socket.as_raw_fd(), self.pid());
        Ok(serde_json::to_string(&Inherited { pid, socket, spawner, is_code_denied })?)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.state().on_end = None;
        let _ = rustix::net::shutdown(&self.shared.socket, Shutdown::Both);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes reports on until the spawner ends.
    fn read(&self) {
        while let Ok(Some((report, files))) = packets::receive(&self.socket) {
            let mut state = self.state();
            match report {
                Report::Started { number, pid } => {
                    let pidfd = files.into_iter().next().ok_or_else(|| io::ErrorKind::InvalidData.into());
                    let starting = state.starting.remove(&number);
                    starting.map(|starting| starting.send(pidfd.map(|pidfd| (pid, pidfd))));
                }
                Report::NotStarted { number, error } => {
                    state.running.remove(&number);
                    state.starting.remove(&number).map(|starting| starting.send(Err(io::Error::other(error))));
                }
                Report::Ended { number, status } => {
                    state.running.remove(&number).map(|running| running.send(ExitStatus::from_raw(status)));
                }
                Report::Reset => {}
            }
        }
        // It has closed its socket, or the last handle was dropped, or it talks nonsense; it ends in each case.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        let end = end_of(self.pid);
        let mut state = self.state();
        state.end = Some(end.clone());
        // Everybody who waits learns of the end from the closed channel.
        state.starting.clear();
        state.running.clear();
        let on_end = state.on_end.take();
        drop(state);
        if let Some(on_end) = on_end {
            on_end(end);
        }
    }
}

/// Waits for the end of a spawner, completing "the process that starts the others ...".
fn end_of(pid: Pid) -> String {
    match retry_on_intr(|| rustix::process::waitpid(Some(pid), WaitOptions::empty())) {
        Ok(Some((_, status))) => describe(ExitStatus::from_raw(status.as_raw())),
        Ok(None) | Err(_) => "ended".to_owned(),
    }
}

fn gone(end: &str) -> io::Error {
    io::Error::other(format!("the process that starts the others {end}"))
}
