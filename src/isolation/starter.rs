//! The start of a child of this program: by the spawner if there is one, else directly.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

use ledge_base::telemetry::service_usage::CountedProcess;
use ledge_service::child_errors::ChildStderr;
use ledge_service::limited_process;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::heartbeat::HeartbeatProbe;
use crate::spawner::ForkServer;
pub use crate::spawner::packets::SpawnVerb;

/// The name of a process that runs models, in the log.
const WORKER: &str = "worker";

/// The longest wait for the last words of a process that has ended.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts children.
#[derive(Debug, Clone)]
pub enum ChildStarter {
    /// From this process, by the path of the program: for commands and tests, which have no spawner.
    Direct(PathBuf),
    /// The same, as another user: for commands of root.
    DirectAs(PathBuf, ChildUser),
    /// From the spawner, which the limits of this process do not bind.
    Spawner(ForkServer),
    /// Starts nothing, for this reason.
    Unavailable(Arc<str>),
}

/// A user that children run as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildUser {
    pub uid: u32,
    pub gid: u32,
}

/// The standard output and error of a child.
#[derive(Debug)]
pub struct ChildOutputs {
    pub output: OwnedFd,
    pub errors: OwnedFd,
}

/// A child. It goes on when this is dropped.
#[derive(Debug)]
pub struct ChildProcess {
    pid: u32,
    pidfd: OwnedFd,
    status: ExitStatusSource,
    /// Gets the last lines of its errors at its end, where these are logged.
    last_words: Option<mpsc::Receiver<String>>,
    /// Set when it was ended because somebody stops it again and again.
    was_frozen: Arc<AtomicBool>,
    /// It enters its sandbox after its first message, and is hidden from then on.
    _counted: CountedProcess,
}

#[derive(Debug)]
enum ExitStatusSource {
    Own(std::process::Child),
    Spawner(mpsc::Receiver<ExitStatus>),
}

impl ChildStarter {
    /// Starts children of a command. Those of root run as the owner of `state`, the daemon's folder: they may read what
    /// the daemon's children may read, and the limits that the kernel does not apply to root apply to them.
    pub fn of_command(state: &Path) -> Self {
        let program = PathBuf::from(limited_process::THIS_PROGRAM);
        let owner = state.ancestors().find_map(|folder| std::fs::metadata(folder).ok());
        let owner = owner.filter(|owner| rustix::process::geteuid().is_root() && owner.uid() != 0);
        match owner {
            Some(owner) => Self::DirectAs(program, ChildUser { uid: owner.uid(), gid: owner.gid() }),
            None => Self::Direct(program),
        }
    }

    /// The user that children run as, where that is not the one of this process.
    pub(crate) fn user(&self) -> Option<ChildUser> {
        match self {
            Self::DirectAs(_, user) => Some(*user),
            Self::Direct(_) | Self::Spawner(_) | Self::Unavailable(_) => None,
        }
    }

    /// Starts a child with this standard input. Without `outputs` its output goes nowhere, and its errors are logged.
    /// It inherits no setting, no secret and no other open file.
    pub fn start(&self, verb: SpawnVerb, input: OwnedFd, outputs: Option<ChildOutputs>) -> io::Result<ChildProcess> {
        let (outputs, errors) = if let Some(outputs) = outputs {
            (outputs, None)
        } else {
            let (reader, errors) = ChildStderr::pipe()?;
            (ChildOutputs { output: nowhere()?, errors }, Some(reader))
        };
        let mut process = self.start_with(verb, input, outputs)?;
        if let Some(reader) = errors {
            let (sender, last_words) = mpsc::channel();
            reader.pass_on(WORKER, process.pid, move |lines| drop(sender.send(lines)))?;
            process.last_words = Some(last_words);
        }
        Ok(process)
    }

    fn start_with(
        &self,
        verb: SpawnVerb,
        input: OwnedFd,
        ChildOutputs { output, errors }: ChildOutputs,
    ) -> io::Result<ChildProcess> {
        match self {
            Self::Direct(program) | Self::DirectAs(program, _) => {
                let mut command = Command::new(program);
                if let Some(ChildUser { uid, gid }) = self.user() {
                    command.uid(uid).gid(gid);
                }
                command.args(verb.words()).env_clear().envs(limited_process::environment());
                command.stdin(input).stdout(output).stderr(errors);
                // A signal to the group of this process, such as Ctrl-C, must not reach the child, which this process
                // ends itself.
                command.process_group(0);
                let (child, pidfd) = spawn(&mut command)?;
                Ok(ChildProcess::new(child.id(), pidfd, ExitStatusSource::Own(child), Arc::default()))
            }
            Self::Spawner(spawner) => {
                let child = spawner.spawn(verb, &input, &[output, errors])?;
                Ok(ChildProcess::new(child.pid, child.pidfd, ExitStatusSource::Spawner(child.status), child.was_frozen))
            }
            Self::Unavailable(reason) => Err(io::Error::other(reason.to_string())),
        }
    }

    /// Checks `child` for signs of life from time to time, while it exists. Without a spawner this does nothing: a user
    /// watches the command.
    pub(crate) fn watch(&self, child: Weak<dyn HeartbeatProbe>) {
        if let Self::Spawner(spawner) = self {
            spawner.watch(child);
        }
    }
}

/// An output that goes nowhere.
fn nowhere() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(Path::new("/dev/null"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Starts a program, with a handle of its process that stays its own after its end.
pub(crate) fn spawn(command: &mut Command) -> io::Result<(std::process::Child, OwnedFd)> {
    let mut child = command.spawn()?;
    // The process was not waited for, so the number is still its own.
    match rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(pidfd) => Ok((child, pidfd)),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(error.into())
        }
    }
}

impl ChildProcess {
    fn new(pid: u32, pidfd: OwnedFd, status: ExitStatusSource, was_frozen: Arc<AtomicBool>) -> Self {
        Self { pid, pidfd, status, last_words: None, was_frozen, _counted: CountedProcess::new(pid) }
    }

    /// True when it was ended because somebody stopped it again and again.
    pub(crate) fn was_frozen(&self) -> bool {
        self.was_frozen.load(Ordering::Acquire)
    }

    /// The last lines of its errors, after its end.
    pub(crate) fn last_words(&mut self) -> String {
        let words = self.last_words.take().and_then(|words| words.recv_timeout(LAST_WORDS_TIMEOUT).ok());
        words.unwrap_or_default()
    }

    /// Its process id. Another process may have it after the end of this one.
    pub fn id(&self) -> u32 {
        self.pid
    }

    /// Ends it with SIGKILL. Does nothing when it has ended.
    pub fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        match &mut self.status {
            ExitStatusSource::Own(child) => child.wait(),
            ExitStatusSource::Spawner(status) => {
                status.recv().map_err(|_| io::Error::other("the process that started it has ended, and it with that"))
            }
        }
    }
}

impl AsFd for ChildProcess {
    /// The pidfd, which is readable when the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}
