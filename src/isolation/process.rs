//! One child, from the daemon: its start, its orders, and its end.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::time::Duration;

use ledge_base::sys;
use ledge_base::telemetry::process::{ProcessMemoryReader, ResidentMemory};
use ledge_engine::backend::{ModelFormat, ModelLoadError, Runtime};
use ledge_engine::files::ModelFileFacts;
use ledge_engine::pipeline::chain::LeaseId;
use ledge_engine::pipeline::setup::PipelineSetup;
use ledge_sandbox::SandboxReport;
use ledge_service::limited_process;
use rustix::process::Signal;

use crate::channel;
use crate::child::crash::{self, CrashReport, ThreadWork};
use crate::exit_status::describe;
use crate::heartbeat::{self, HeartbeatProbe, HeartbeatSilence, StallRemedy};
use crate::job_channel::JobChannel;
use crate::shared_memory::SharedMemory;
use crate::starter::{ChildProcess, ChildStarter, SpawnVerb};
use crate::wire::{
    ChildLoadRequest, ChildMessage, ChildRequest, ChildSetup, LoadedModelFacts, ModelId, PipelineId, ReadId,
};

/// The most bytes of a message from a child: a signature with names, or the facts of a model file.
pub(crate) const RESULT_BYTES_MAX: usize = 16 << 20;

/// The longest wait of an order for a child that does not read.
const ORDER_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest time of loading a library, of binding a pipeline, or of a repair.
pub(crate) const SETUP_TIME_MAX: Duration = Duration::from_mins(10);

/// The longest time of reading a model file: this, plus the time of its bytes at this rate. A tenth of it is usual for
/// the slowest disks.
const READ_TIME_MIN: Duration = Duration::from_secs(20);
const READ_BYTES_PER_SECOND: u64 = 4 << 20;

/// The last words of a process that ended because C++ code did not handle a failed allocation.
const BAD_ALLOC: &str = "std::bad_alloc";

/// The most characters of a child's own words in a message to people.
const WORDS_MAX: usize = 1000;

/// The number of a child, for this process.
pub type ChildId = u64;

/// The end of a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildEnd {
    /// The end and its cause, for people.
    pub reason: String,
    /// The work that is to blame, if it is known.
    pub blamed: Option<ThreadWork>,
    /// The signal that ended it, unless this process sent that.
    pub signal: Option<i32>,
}

impl ChildEnd {
    /// An end by this process.
    pub(crate) fn by_us(reason: String, blamed: Option<ThreadWork>) -> Self {
        Self { reason, blamed, signal: None }
    }
}

/// A model file was not read. `Display` completes a sentence about the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelReadError {
    /// The file cannot be used.
    #[error("{0}")]
    Refused(String),
    /// Reading it ended the process that it was read in.
    #[error("ended the process that read it: {0}")]
    Crashed(String),
    /// That process ended for another reason, so the file may be read again.
    #[error("was not read: {reason}")]
    Interrupted {
        reason: String,
        /// True when it is known what else was the cause.
        is_explained: bool,
    },
    #[error("was not read, because its process cannot be started: {0}")]
    NoProcess(String),
}

/// Called with the end of each child that was not stopped.
pub type OnEnd = Arc<dyn Fn(ChildId, &ChildEnd) + Send + Sync>;

/// A child. It ends with the last handle.
#[derive(Debug)]
pub struct Child {
    inner: Arc<ChildInner>,
}

#[derive(Debug)]
struct ChildInner {
    id: ChildId,
    pid: u32,
    process: OwnedFd,
    memory: Option<ProcessMemoryReader>,
    channels: Vec<JobChannelSlot>,
    /// The number of cores of all channels.
    cores: usize,
    report: SharedMemory,
    /// Its first message.
    sandbox: OnceLock<SandboxReport>,
    /// For orders; one thread writes at a time.
    socket: Mutex<UnixStream>,
    /// Set before channels are closed, after which no answer comes.
    is_closed: AtomicBool,
    silence: Mutex<HeartbeatSilence>,
    state: Mutex<ChildState>,
    ended: Condvar,
}

/// A job channel, and the lock of the thread that has a job in it.
#[derive(Debug)]
struct JobChannelSlot {
    shared: JobChannel,
    taken: Mutex<JobChannel>,
}

#[derive(Debug, Default)]
struct ChildState {
    /// The callers that wait for the result of an order, by the number of its model, pipeline or file.
    waiting: HashMap<u64, mpsc::Sender<ChildMessage>>,
    /// Set when the daemon ends the child.
    cause: Option<ChildEnd>,
    /// Set when the last handle was dropped.
    was_stopped: bool,
    end: Option<ChildEnd>,
}

impl Child {
    /// Starts a child, and sends it its setup.
    pub fn start(starter: &ChildStarter, setup: &ChildSetup, on_end: OnEnd) -> io::Result<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let (socket, other) = UnixStream::pair()?;
        let mut process = starter.start(SpawnVerb::Runtime, other.into(), None)?;

        let begun = Self::set_up(id, &process, &socket, setup);
        let inner = match begun {
            Ok(inner) => Arc::new(inner),
            Err(error) => {
                process.kill();
                let _ = process.wait();
                return Err(error);
            }
        };
        let watched = inner.clone();
        let watch = move || watched.watch(&socket, process, &on_end);
        std::thread::Builder::new().name("runtime-watch".to_owned()).spawn(watch)?;
        let beating: Weak<ChildInner> = Arc::downgrade(&inner);
        starter.watch(beating);
        Ok(Self { inner })
    }

    fn set_up(id: ChildId, process: &ChildProcess, socket: &UnixStream, setup: &ChildSetup) -> io::Result<ChildInner> {
        let (number, process) = (process.id(), process.as_fd().try_clone_to_owned()?);
        socket.set_write_timeout(Some(ORDER_TIMEOUT))?;
        // It enters its sandbox after its first message, and is hidden from then on.
        let memory = ProcessMemoryReader::open(number).ok();
        channel::send(socket, setup)?;
        let (report, file) = SharedMemory::create("ledge-crash-report", crash::LENGTH)?;
        channel::send_file(socket, &file)?;
        let mut channels = Vec::with_capacity(setup.channels.len());
        for _ in &setup.channels {
            let (memory, file) = SharedMemory::create("ledge-lane", JobChannel::LENGTH)?;
            channel::send_file(socket, &file)?;
            let channel = JobChannel::new(memory);
            channels.push(JobChannelSlot { shared: channel.clone(), taken: Mutex::new(channel) });
        }
        let cores = setup.channels.iter().map(|place| place.core).collect::<HashSet<_>>().len();
        Ok(ChildInner {
            id,
            pid: number,
            process,
            memory,
            channels,
            cores,
            report,
            sandbox: OnceLock::new(),
            socket: Mutex::new(socket.try_clone()?),
            is_closed: AtomicBool::new(false),
            silence: Mutex::default(),
            state: Mutex::default(),
            ended: Condvar::new(),
        })
    }

    /// The number of this child.
    pub fn id(&self) -> ChildId {
        self.inner.id
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.inner.pid
    }

    /// Its memory; `None` when it has ended.
    pub fn memory(&self) -> Option<ResidentMemory> {
        self.inner.memory.as_ref()?.read()
    }

    /// The report about its sandbox; `None` until it has arrived.
    pub fn sandbox(&self) -> Option<&SandboxReport> {
        self.inner.sandbox.get()
    }

    /// True when no answer comes from it any more.
    pub fn is_closed(&self) -> bool {
        self.inner.is_closed.load(Ordering::Acquire)
    }

    /// A channel, for one job.
    pub fn channel(&self, index: usize) -> Option<MutexGuard<'_, JobChannel>> {
        Some(self.inner.channels.get(index)?.taken.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The number of cores that its channels use.
    pub fn cores(&self) -> usize {
        self.inner.cores
    }

    /// Loads a model within `limit`. Blocks until that is done.
    pub fn load(&self, order: ChildLoadRequest, limit: Duration) -> Result<LoadedModelFacts, ModelLoadError> {
        let (model, runtime) = (order.model, order.runtime);
        match self.done(model, &ChildRequest::Load(Box::new(order)), None, limit) {
            Ok(ChildMessage::Loaded(_, result)) => result,
            Ok(_) => Err(ModelLoadError::Interrupted { runtime, reason: self.confused().reason, is_explained: false }),
            Err(ChildEnd { reason, blamed, .. }) if blamed == Some(ThreadWork::Load(model)) => {
                Err(ModelLoadError::Crashed { runtime, reason })
            }
            Err(ChildEnd { reason, blamed, .. }) => {
                Err(ModelLoadError::Interrupted { runtime, reason, is_explained: blamed.is_some() })
            }
        }
    }

    /// Loads the library of a runtime, and returns its version. Blocks until that is done.
    pub fn open(&self, number: u64, runtime: Runtime) -> Result<String, String> {
        match self.done(number, &ChildRequest::Open(number, runtime), None, SETUP_TIME_MAX) {
            Ok(ChildMessage::Opened(_, result)) => result,
            Ok(_) => Err(self.confused().reason),
            Err(ChildEnd { reason, .. }) => Err(reason),
        }
    }

    /// Binds a pipeline. Blocks until that is done.
    pub fn bind(&self, pipeline: PipelineId, setup: &PipelineSetup) -> Result<(), String> {
        match self.done(pipeline, &ChildRequest::Bind(pipeline, Box::new(setup.clone())), None, SETUP_TIME_MAX) {
            Ok(ChildMessage::Bound(_, result)) => result,
            Ok(_) => Err(self.confused().reason),
            Err(ChildEnd { reason, .. }) => Err(reason),
        }
    }

    /// Has a model file read, and checks the facts about it. Blocks until that is done.
    pub fn read(&self, number: ReadId, format: ModelFormat, file: &File) -> Result<ModelFileFacts, ModelReadError> {
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        let limit = READ_TIME_MIN + Duration::from_secs(bytes / READ_BYTES_PER_SECOND);
        match self.done(number, &ChildRequest::Read(number, format), Some(file), limit) {
            Ok(ChildMessage::Read(_, Ok(facts))) => match facts.check(format) {
                Ok(()) => Ok(*facts),
                Err(lie) => {
                    let reason = format!("the process of the runtimes says of a file that it {}", words(&lie));
                    self.end(ChildEnd::by_us(reason.clone(), Some(ThreadWork::Load(number))));
                    self.wait_for_end();
                    Err(ModelReadError::Crashed(reason))
                }
            },
            Ok(ChildMessage::Read(_, Err(reason))) => Err(ModelReadError::Refused(words(&reason))),
            Ok(_) => Err(ModelReadError::Interrupted { reason: self.confused().reason, is_explained: false }),
            Err(ChildEnd { reason, blamed, .. }) if blamed == Some(ThreadWork::Load(number)) => {
                Err(ModelReadError::Crashed(reason))
            }
            Err(ChildEnd { reason, blamed, .. }) => {
                Err(ModelReadError::Interrupted { reason, is_explained: blamed.is_some() })
            }
        }
    }

    /// Gives an order, and waits for its result.
    fn done(
        &self,
        number: u64,
        order: &ChildRequest,
        file: Option<&File>,
        limit: Duration,
    ) -> Result<ChildMessage, ChildEnd> {
        let (sender, receiver) = mpsc::channel();
        {
            let mut state = self.inner.state();
            if let Some(end) = &state.end {
                // Its end had another cause.
                return Err(ChildEnd { blamed: Some(ThreadWork::None), ..end.clone() });
            }
            state.waiting.insert(number, sender);
        }
        self.order(order, file);
        match receiver.recv_timeout(limit) {
            Ok(done) => Ok(done),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let reason = match order {
                    ChildRequest::Read(..) => format!("it was not read within {} seconds", limit.as_secs()),
                    _ => format!("the load took longer than {} s", limit.as_secs()),
                };
                self.end(ChildEnd::by_us(reason, Some(ThreadWork::Load(number))));
                Err(self.wait_for_end())
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(self.wait_for_end()),
        }
    }

    /// Ends a child that gave the result of another order.
    fn confused(&self) -> ChildEnd {
        self.end(ChildEnd::by_us("the process of the runtimes confuses orders".to_owned(), None));
        self.wait_for_end()
    }

    /// Unloads a model, when its run has ended.
    pub fn unload(&self, model: ModelId) {
        self.order(&ChildRequest::Unload(model), None);
    }

    /// Drops a pipeline.
    pub fn unbind(&self, pipeline: PipelineId) {
        self.order(&ChildRequest::Unbind(pipeline), None);
    }

    /// Frees a page that the steps of a call kept.
    pub fn release(&self, pipeline: PipelineId, lease: LeaseId) {
        self.order(&ChildRequest::ReleaseLease(pipeline, lease), None);
    }

    /// Cancels the run of a job, unless it has ended.
    pub fn cancel(&self, channel: usize, job: u32) {
        self.order(&ChildRequest::Cancel { channel, job }, None);
    }

    /// Gives an order, with the file that belongs to it: no other order may get between them.
    fn order(&self, order: &ChildRequest, file: Option<&File>) {
        let socket = self.inner.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = channel::send(&socket, order).and_then(|()| match file {
            Some(file) => channel::send_file(&socket, file),
            None => Ok(()),
        });
        if let Err(error) = sent
            && !self.is_closed()
        {
            self.end(ChildEnd::by_us(format!("the process of the runtimes takes no orders: {error}"), None));
        }
    }

    /// Ends the process now, for a reason that counts instead of the signal.
    pub fn end(&self, cause: ChildEnd) {
        self.inner.state().cause.get_or_insert(cause);
        self.inner.kill();
    }

    /// Waits for the end of a child that is closed, or was ended, and returns its cause.
    pub fn wait_for_end(&self) -> ChildEnd {
        let mut state = self.inner.state();
        loop {
            if let Some(end) = &state.end {
                return end.clone();
            }
            state = self.inner.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.inner.state().was_stopped = true;
        // It ends itself when its socket is closed, even if its threads are busy. If it does not, the watcher ends it.
        let socket = self.inner.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = socket.shutdown(std::net::Shutdown::Both);
    }
}

impl ChildInner {
    fn state(&self) -> MutexGuard<'_, ChildState> {
        // Nothing panics under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.process, Signal::KILL);
    }

    /// The jobs and orders that have no answer yet.
    fn works(&self) -> Vec<ThreadWork> {
        let job = |(index, channel): (usize, &JobChannelSlot)| {
            Some(ThreadWork::Lane { index, job: channel.shared.pending()? })
        };
        let mut works: Vec<_> = self.channels.iter().enumerate().filter_map(job).collect();
        works.extend(self.state().waiting.keys().map(|number| ThreadWork::Load(*number)));
        works
    }

    /// The job or order that has no answer yet, if there is only one.
    fn only_work(&self) -> Option<ThreadWork> {
        match self.works()[..] {
            [work] => Some(work),
            _ => None,
        }
    }

    /// Logs the mechanisms that the sandbox of the child lacks.
    fn sandboxed(&self, sandbox: &SandboxReport) {
        for finding in sandbox.lacking() {
            let (mechanism, without) = (finding.mechanism.name(), finding.leaves_open());
            let state = &finding.state;
            if finding.mechanism.is_essential() {
                tracing::warn!(process = self.id, mechanism, %state, without, "the sandbox of the process of the runtimes is incomplete");
            } else {
                tracing::debug!(process = self.id, mechanism, %state, without, "a sandbox mechanism is not in force");
            }
        }
    }

    /// Passes results on until the child ends, and then notifies all waiting callers.
    fn watch(&self, socket: &UnixStream, mut process: ChildProcess, on_end: &OnEnd) {
        let nonsense = loop {
            match channel::receive::<ChildMessage>(socket, RESULT_BYTES_MAX) {
                Ok(Some(ChildMessage::Sandboxed(sandbox))) => {
                    self.sandboxed(&sandbox);
                    let _ = self.sandbox.set(sandbox);
                }
                Ok(Some(done)) => {
                    let (ChildMessage::Loaded(number, _)
                    | ChildMessage::Bound(number, _)
                    | ChildMessage::Read(number, _)
                    | ChildMessage::Opened(number, _)) = &done
                    else {
                        break true;
                    };
                    let waiting = self.state().waiting.remove(number);
                    let Some(waiting) = waiting else { break true };
                    let _ = waiting.send(done);
                }
                Ok(None) => break false,
                Err(error) => break error.kind() == io::ErrorKind::InvalidData,
            }
        };

        // A child that closed its socket and lives on is ended too.
        self.kill();
        let status = process.wait();
        // Read before its channels are closed, which changes them.
        let only_work = self.only_work();
        self.is_closed.store(true, Ordering::Release);
        let signal = status.as_ref().ok().copied().and_then(limited_process::signal);
        let by_itself = || match &status {
            Ok(status) => describe(*status),
            Err(error) => format!("ended, and its status is not known: {error}"),
        };
        let gave_up = signal == Some(Signal::ABORT.as_raw()) && process.last_words().contains(BAD_ALLOC);
        let out_of_memory = |limit_bytes: u64| {
            format!("the process of the runtimes ran out of memory (limit {} MiB)", limit_bytes >> 20)
        };
        let found = match crash::crashed(&self.report) {
            _ if process.was_frozen() => {
                let reason = "the process of the runtimes was stopped from outside again and again".to_owned();
                ChildEnd::by_us(reason, Some(ThreadWork::None))
            }
            // The thread that fails first is not necessarily the one that used the memory.
            Some(CrashReport { out_of_memory: Some(memory), limit_bytes, .. }) => {
                ChildEnd { reason: out_of_memory(limit_bytes), blamed: memory.user.or(only_work), signal }
            }
            // C++ code gave up although there is memory left: its single allocation was too large.
            Some(CrashReport { work, limit_bytes, .. }) if gave_up => {
                ChildEnd { reason: out_of_memory(limit_bytes), blamed: work, signal }
            }
            crash => {
                let reason = if nonsense {
                    "the process of the runtimes sent an invalid message".to_owned()
                } else {
                    format!("the process of the runtimes {}", by_itself())
                };
                ChildEnd { reason, blamed: crash.and_then(|crash| crash.work), signal }
            }
        };
        let mut state = self.state();
        let end = state.cause.clone().unwrap_or(found);
        state.end = Some(end.clone());
        // Callers that wait for a result see the end by the closed channel.
        state.waiting.clear();
        let was_stopped = state.was_stopped;
        drop(state);
        self.ended.notify_all();
        for channel in &self.channels {
            channel.shared.close();
        }
        if !was_stopped {
            on_end(self.id, &end);
        }
    }
}

impl HeartbeatProbe for ChildInner {
    fn beat(&self) {
        let is_busy = !self.is_closed.load(Ordering::Acquire) && !self.works().is_empty();
        // One without work is not asked, so that it sleeps on.
        let is_owed = is_busy && heartbeat::ask(&self.report);
        let cpu = if is_owed { sys::process_cpu_time(self.pid).unwrap_or_default() } else { Duration::ZERO };
        let mut silence = self.silence.lock().unwrap_or_else(PoisonError::into_inner);
        match silence.interval(is_owed, cpu) {
            StallRemedy::None => {}
            StallRemedy::Continue => {
                tracing::warn!(
                    process = self.id,
                    pid = self.pid,
                    "a process of the runtimes shows no sign of life; sending SIGCONT"
                );
                let _ = rustix::process::pidfd_send_signal(&self.process, Signal::CONT);
            }
            StallRemedy::End => {
                let reason =
                    "the process of the runtimes was frozen from outside: it showed no sign of life".to_owned();
                self.state().cause.get_or_insert(ChildEnd::by_us(reason, Some(ThreadWork::None)));
                self.kill();
            }
        }
    }
}

/// The words of a child as people may see them: on one line, without control characters, and not too many.
fn words(said: &str) -> String {
    let seen = |letter: char| if letter.is_control() { ' ' } else { letter };
    said.chars().take(WORDS_MAX).map(seen).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_child_are_one_short_line() {
        assert_eq!(words("is not\r\nan \u{1b}[31mONNX model"), "is not  an  [31mONNX model");
        assert_eq!(words(&"é".repeat(5000)).chars().count(), WORDS_MAX);
    }
}
