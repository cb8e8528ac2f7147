//! The daemon's side of the spawner: a small process of the same program that starts the processes of models, and the
//! trials of updates.
//!
//! The daemon denies itself writable code (`deny_writable_code` of the sandbox), and every process that it starts
//! afterwards inherits that. But OpenVINO must write code, so a process that was started before is the parent of the
//! others. It reads only the daemon's requests, and starts only the daemon's own program.
//!
//! It stays when the daemon's program is replaced in place, because the new program has the same filter. It ends with
//! the daemon's process, and its children end with it. Without a spawner no child can be started, and this process
//! cannot start another spawner: the daemon then ends, and its service manager starts it again.
//!
//! Files of `spawner/`, in reading order:
//! * `packets.rs` - the packets between the two
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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::time::{Duration, Instant};

use ledge_base::sys;
use ledge_base::telemetry::service_usage::{CountedProcess, ProcessFiles};
use ledge_service::child_errors::ChildStderr;
use ledge_service::limited_process::{self, THIS_PROGRAM};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, retry_on_intr};
use rustix::net::Shutdown;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use serde::{Deserialize, Serialize};

use crate::exit_status::describe;
use crate::heartbeat::{self, HeartbeatProbe, HeartbeatSilence, ProcessStops, StallRemedy};
use packets::{ForkReport, ForkRequest, SpawnVerb};
pub use server::{SpawnerError, end_with_spawner, run};

/// The environment variable with the spawner that a program leaves to the next program of its process.
pub const SPAWNER_VARIABLE: &str = "LEDGE_SPAWNER";

/// The name of the spawner in the log.
const SPAWNER: &str = "spawner";

/// The longest wait for a start. One takes a few milliseconds. A spawner that does not answer is ended before.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The value of the environment variable.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct InheritedSpawner {
    /// The process that has the socket: a child that inherits the variable does not have it.
    pid: u32,
    socket: RawFd,
    spawner: i32,
    /// See [`SpawnerProcess::is_code_denied`].
    is_code_denied: bool,
    /// The reading end of its errors. A former program had none.
    #[serde(default)]
    errors: Option<RawFd>,
    /// Its files in `/proc`, which this program could not open any more. A former program had none.
    #[serde(default)]
    files: Option<[RawFd; 2]>,
}

/// A spawner that runs and has no connection yet. It ends when this is dropped.
#[derive(Debug)]
pub struct SpawnerProcess {
    socket: OwnedFd,
    pid: Pid,
    is_code_denied: bool,
    errors: Option<ChildStderr>,
    files: Option<ProcessFiles>,
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
        let left: InheritedSpawner = serde_json::from_str(&text).ok()?;
        if left.pid != std::process::id() {
            return None;
        }
        // Children of this program do not inherit the adopted files: the program has marked them close-on-exec at its
        // start.
        let socket = sys::adopt_packet_socket(left.socket)?;
        let pid = Pid::from_raw(left.spawner)?;
        let errors = left.errors.and_then(sys::adopt_pipe).map(ChildStderr::left);
        let files = left.files.and_then(|[stat, memory]| {
            let (stat, memory) = (sys::adopt_file(stat)?, sys::adopt_file(memory)?);
            Some(ProcessFiles::inherited(stat.into(), memory.into()))
        });
        Some(Self { socket, pid, is_code_denied: left.is_code_denied, errors, files })
    }

    fn start() -> io::Result<Self> {
        let (socket, other) = packets::pair()?;
        let (reader, errors) = ChildStderr::pipe()?;
        let mut command = Command::new(THIS_PROGRAM);
        command.arg0("ledge").arg("spawner").env_clear().envs(limited_process::environment());
        // Out of the daemon's process group: a Ctrl-C is meant for the daemon, which ends the others when it has
        // drained.
        command.stdin(other).stdout(Stdio::null()).stderr(errors).process_group(0);
        let child = command.spawn()?;
        // It hides itself once it is spoken to.
        let files = ProcessFiles::open(child.id()).ok();
        Ok(Self { socket, pid: Pid::from_child(&child), is_code_denied: false, errors: Some(reader), files })
    }

    /// True when the previous program of this process took from it the right to write code, which this program can
    /// neither take back nor needs to take again.
    pub fn is_code_denied(&self) -> bool {
        self.is_code_denied
    }

    /// Begins to speak to it: an error is a spawner that does not answer. The children of a previous program end.
    pub fn connect(self) -> io::Result<ForkServer> {
        self.connect_within(START_TIMEOUT)
    }

    fn connect_within(self, timeout: Duration) -> io::Result<ForkServer> {
        set_socket_timeout(&self.socket, Timeout::Recv, Some(timeout))?;
        // An error here means that the other end of the socket is closed.
        let mut answer = packets::send(&self.socket, &ForkRequest::Reset, &[]).ok();
        // Reports about those children come first.
        while answer.is_some() {
            match packets::receive(&self.socket) {
                Ok(Some((ForkReport::Reset, _))) => break,
                Ok(Some(_)) => {}
                Ok(None) => answer = None,
                Err(error) => {
                    answer = None;
                    if error.kind() == io::ErrorKind::WouldBlock {
                        // It would never end, and the start would wait for that.
                        let _ = rustix::process::kill_process(self.pid, Signal::KILL);
                    }
                }
            }
        }
        set_socket_timeout(&self.socket, Timeout::Recv, None)?;
        if answer.is_none() {
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
            return Err(gone(&end_of(self.pid)));
        }
        let errors = self.errors.as_ref().and_then(|errors| errors.file().ok());
        if let Some(reader) = self.errors {
            reader.pass_on(SPAWNER, self.pid.as_raw_nonzero().get().cast_unsigned(), drop)?;
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let program = rustix::fs::open(Path::new(THIS_PROGRAM), flags, Mode::empty())?;
        let counted = CountedProcess::with_files(self.pid.as_raw_nonzero().get().cast_unsigned(), self.files);
        let shared = Arc::new(ForkServerShared::new(self.socket, self.pid, program, errors, counted));
        let reader = shared.clone();
        std::thread::Builder::new().name("spawner".to_owned()).spawn(move || reader.read())?;
        Ok(ForkServer { handle: Arc::new(ForkServerHandle { shared }) })
    }
}

/// A handle to the spawner. Clones share it; with the last one it ends.
#[derive(Debug, Clone)]
pub struct ForkServer {
    handle: Arc<ForkServerHandle>,
}

#[derive(Debug)]
struct ForkServerHandle {
    shared: Arc<ForkServerShared>,
}

#[derive(Debug)]
struct ForkServerShared {
    socket: OwnedFd,
    pid: Pid,
    /// The file of this program.
    program: OwnedFd,
    /// The reading end of the errors of the spawner, for the next program of this process.
    errors: Option<OwnedFd>,
    counted: CountedProcess,
    next: AtomicU64,
    state: Mutex<ForkServerState>,
    /// The children to check for signs of life in each interval.
    beating: Mutex<Vec<Weak<dyn HeartbeatProbe>>>,
}

#[derive(Default)]
struct ForkServerState {
    /// The callers that wait for a start, by the number of the child.
    starting: HashMap<u64, mpsc::Sender<io::Result<(u32, OwnedFd)>>>,
    running: HashMap<u64, RunningChild>,
    on_end: Option<Box<dyn FnOnce(String) + Send>>,
    /// The end of the spawner, completing "the process that starts the others ...".
    end: Option<String>,
}

/// A child that was started, or is about to be.
struct RunningChild {
    /// The channel to the caller that waits for its end.
    ended: mpsc::Sender<ExitStatus>,
    /// Its process id and its pidfd, once it was started.
    process: Option<(u32, OwnedFd)>,
    stops: ProcessStops,
    was_frozen: Arc<AtomicBool>,
}

impl std::fmt::Debug for ForkServerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ForkServerState")
            .field("running", &self.running.len())
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

/// A child that was started.
#[derive(Debug)]
pub(crate) struct SpawnedChild {
    pub pidfd: OwnedFd,
    pub pid: u32,
    /// Gets its status at its end.
    pub status: mpsc::Receiver<ExitStatus>,
    /// Set when it was ended because somebody stops it again and again.
    pub was_frozen: Arc<AtomicBool>,
}

impl ForkServer {
    /// The process id of the spawner.
    pub fn pid(&self) -> i32 {
        self.handle.shared.pid.as_raw_nonzero().get()
    }

    /// Starts a child of this program. Its standard input is a socket or a pipe, `outputs` are its output and its
    /// errors.
    pub(crate) fn spawn(&self, verb: SpawnVerb, input: &OwnedFd, outputs: &[OwnedFd; 2]) -> io::Result<SpawnedChild> {
        let shared = &self.handle.shared;
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        let ((sender, receiver), (ended, status)) = (mpsc::channel(), mpsc::channel());
        let was_frozen = Arc::<AtomicBool>::default();
        {
            let mut state = shared.state();
            if let Some(end) = &state.end {
                return Err(gone(end));
            }
            state.starting.insert(number, sender);
            // At once: the report of the end may come right behind that of the start.
            let running =
                RunningChild { ended, process: None, stops: ProcessStops::default(), was_frozen: was_frozen.clone() };
            state.running.insert(number, running);
        }
        let files: Vec<_> = [&shared.program, input].into_iter().chain(outputs).map(AsFd::as_fd).collect();
        let sent = packets::send(&shared.socket, &ForkRequest::Start { number, verb }, &files);
        let started = sent.and_then(|()| match receiver.recv_timeout(START_TIMEOUT) {
            Ok(started) => started,
            // A child that is started later ends with its standard input: the other end is dropped with this error.
            Err(mpsc::RecvTimeoutError::Timeout) => Err(gone("does not answer")),
            // The reader saw the end of the socket, and dropped every sender.
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(gone("has ended")),
        });
        match started {
            Ok((pid, pidfd)) => Ok(SpawnedChild { pidfd, pid, status, was_frozen }),
            Err(error) => {
                let mut state = shared.state();
                state.starting.remove(&number);
                state.running.remove(&number);
                Err(error)
            }
        }
    }

    /// Checks `child` for signs of life in each interval, while it exists.
    pub(crate) fn watch(&self, child: Weak<dyn HeartbeatProbe>) {
        let mut beating = self.handle.shared.beating.lock().unwrap_or_else(PoisonError::into_inner);
        beating.retain(|known| known.strong_count() > 0);
        beating.push(child);
    }

    /// Calls `on_end` when the spawner ends before the last handle is dropped, at once if it has; with the end,
    /// completing "the process that starts the others ...".
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

    /// Leaves the spawner to the next program of this process, and returns the value of [`SPAWNER_VARIABLE`] for it.
    /// `is_code_denied` tells that program that it must not write code either.
    pub fn leave(&self, is_code_denied: bool) -> io::Result<String> {
        let shared = &self.handle.shared;
        let files = shared.counted.files().map(ProcessFiles::fds);
        let left = std::iter::once(&shared.socket).chain(&shared.errors).map(AsFd::as_fd);
        for file in left.chain(files.into_iter().flatten()) {
            rustix::io::fcntl_setfd(file, FdFlags::empty())?;
        }
        let (pid, socket, spawner) = (std::process::id(), shared.socket.as_raw_fd(), self.pid());
        let errors = shared.errors.as_ref().map(AsRawFd::as_raw_fd);
        let files = files.map(|files| files.map(|file| file.as_raw_fd()));
        Ok(serde_json::to_string(&InheritedSpawner { pid, socket, spawner, is_code_denied, errors, files })?)
    }
}

impl Drop for ForkServerHandle {
    fn drop(&mut self) {
        self.shared.state().on_end = None;
        let _ = rustix::net::shutdown(&self.shared.socket, Shutdown::Both);
    }
}

impl ForkServerShared {
    fn new(socket: OwnedFd, pid: Pid, program: OwnedFd, errors: Option<OwnedFd>, counted: CountedProcess) -> Self {
        let (next, state, beating) = (AtomicU64::new(1), Mutex::default(), Mutex::default());
        Self { socket, pid, program, errors, counted, next, state, beating }
    }

    fn state(&self) -> MutexGuard<'_, ForkServerState> {
        // Nothing panics under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes reports on until the spawner ends, and looks for signs of life in each interval.
    fn read(&self) {
        let mut silence = HeartbeatSilence::default();
        let mut next = Instant::now() + heartbeat::INTERVAL;
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.beat(&mut silence);
                next = Instant::now() + heartbeat::INTERVAL;
                continue;
            }
            let mut socket = [PollFd::new(&self.socket, PollFlags::IN)];
            match retry_on_intr(|| poll(&mut socket, Timespec::try_from(left).ok().as_ref())) {
                Ok(0) => continue,
                Ok(_) => {}
                Err(_) => break,
            }
            let Ok(Some((report, files))) = packets::receive(&self.socket) else { break };
            self.handle(report, files);
        }
        self.ended();
    }

    fn handle(&self, report: ForkReport, files: Vec<OwnedFd>) {
        let mut state = self.state();
        match report {
            ForkReport::Started { number, pid } => {
                let pidfd = files.into_iter().next().ok_or_else(|| io::ErrorKind::InvalidData.into());
                if let (Some(running), Ok(pidfd)) = (state.running.get_mut(&number), &pidfd) {
                    running.process = pidfd.try_clone().ok().map(|pidfd| (pid, pidfd));
                }
                let starting = state.starting.remove(&number);
                starting.map(|starting| starting.send(pidfd.map(|pidfd| (pid, pidfd))));
            }
            ForkReport::NotStarted { number, error } => {
                state.running.remove(&number);
                state.starting.remove(&number).map(|starting| starting.send(Err(io::Error::other(error))));
            }
            ForkReport::Ended { number, status } => {
                state.running.remove(&number).map(|running| running.ended.send(ExitStatus::from_raw(status)));
            }
            ForkReport::Stopped { number } => {
                if let Some(running) = state.running.get_mut(&number) {
                    running.stopped(Instant::now());
                }
            }
            ForkReport::Reset => {}
        }
    }

    /// Looks for signs of life: of the spawner, and of its children.
    fn beat(&self, silence: &mut HeartbeatSilence) {
        let pid = self.pid.as_raw_nonzero().get();
        // Reported once for each stop, without consuming the exit status that another thread waits for.
        let stopped = rustix::process::waitid(WaitId::Pid(self.pid), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        if matches!(stopped, Ok(Some(status)) if status.stopped()) {
            tracing::warn!(
                name: "spawner.resumed",
                pid,
                "the process that starts the others was stopped from outside; sending SIGCONT"
            );
            let _ = rustix::process::kill_process(self.pid, Signal::CONT);
        }
        let is_owed = !self.state().starting.is_empty();
        match silence.interval(is_owed, sys::process_cpu_time(pid.cast_unsigned()).unwrap_or_default()) {
            StallRemedy::None => {}
            StallRemedy::Continue => {
                tracing::warn!(pid, "the process that starts the others does not answer; sending SIGCONT");
                let _ = rustix::process::kill_process(self.pid, Signal::CONT);
            }
            StallRemedy::End => {
                tracing::error!(pid, "the process that starts the others does not answer, and is ended");
                let _ = rustix::process::kill_process(self.pid, Signal::KILL);
            }
        }

        let mut beating = self.beating.lock().unwrap_or_else(PoisonError::into_inner);
        beating.retain(|child| child.strong_count() > 0);
        let children: Vec<_> = beating.iter().filter_map(Weak::upgrade).collect();
        drop(beating);
        for child in children {
            child.beat();
        }
    }

    fn ended(&self) {
        // It has closed its socket, or the last handle was dropped, or it talks nonsense; it ends in each case.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        // One that is stopped would never see that.
        let _ = rustix::process::kill_process(self.pid, Signal::CONT);
        let end = end_of(self.pid);
        let mut state = self.state();
        state.end = Some(end.clone());
        // Waiting callers see the end by the closed channel.
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

impl RunningChild {
    /// It was stopped by a signal.
    fn stopped(&mut self, now: Instant) {
        let Some((pid, pidfd)) = &self.process else { return };
        match self.stops.stopped(now) {
            StallRemedy::End => {
                tracing::error!(pid, "a process was stopped from outside again, and is ended");
                self.was_frozen.store(true, Ordering::Release);
                let _ = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
            }
            StallRemedy::None | StallRemedy::Continue => {
                tracing::warn!(name: "process.resumed", pid, "a process was stopped from outside; sending SIGCONT");
                let _ = rustix::process::pidfd_send_signal(pidfd, Signal::CONT);
            }
        }
    }
}

fn gone(end: &str) -> io::Error {
    io::Error::other(format!("the process that starts the others {end}"))
}
