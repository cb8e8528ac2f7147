//! The start of a child of this program: by the spawner where there is one, and directly where there is none.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};

use ledge_service::limited_process;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::spawner::Spawner;
pub use crate::spawner::packets::Verb;

/// Starts children.
#[derive(Debug, Clone)]
pub enum Starter {
    /// From this process, by the path of the program: for commands and tests, which have no spawner.
    Direct(PathBuf),
    /// The same, as another user: for commands of root.
    DirectAs(PathBuf, User),
    /// From the spawner, which the limits of this process do not bind.
    Spawner(Spawner),
    /// Starts nothing, for this reason.
    Unavailable(Arc<str>),
}

/// A user that children run as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

/// The standard output and error of a child.
#[derive(Debug)]
pub struct Outputs {
    pub output: OwnedFd,
    pub errors: OwnedFd,
}

/// A child. It goes on when this is dropped.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    pidfd: OwnedFd,
    status: StatusSource,
}

#[derive(Debug)]
enum StatusSource {
    Own(std::process::Child),
    Spawner(mpsc::Receiver<ExitStatus>),
}

impl Starter {
    /// Starts children of a command. Those of root run as the owner of `state`, the daemon's folder: they may read what the
    /// daemon's children may read, and the limits that the kernel does not apply to root apply to them.
    pub fn of_command(state: &Path) -> Self {
        let program = PathBuf::from(limited_process::THIS_PROGRAM);
        let owner = state.ancestors().find_map(|folder| std::fs::metadata(folder).ok());
        let owner = owner.filter(|owner| rustix::process::geteuid().is_root() && owner.uid() != 0);
        match owner {
            Some(owner) => Self::DirectAs(program, User { uid: owner.uid(), gid: owner.gid() }),
            None => Self::Direct(program),
        }
    }

    /// The user that children run as, where that is not the one of this process.
    pub(crate) fn user(&self) -> Option<User> {
        match self {
            Self::DirectAs(_, user) => Some(*user),
            Self::Direct(_) | Self::Spawner(_) | Self::Unavailable(_) => None,
        }
    }

    /// Starts a child with this standard input. Without `outputs` its output goes nowhere, and its errors where those of
    /// this process go. It inherits no setting and no secret.
    pub fn start(&self, verb: Verb, input: OwnedFd, outputs: Option<Outputs>) -> io::Result<Process> {
        match self {
            Self::Direct(program) | Self::DirectAs(program, _) => {
                let mut command = Command::new(program);
                if let Some(User { uid, gid }) = self.user() {
                    command.uid(uid).gid(gid);
                }
                command.args(verb.words()).env_clear().envs(limited_process::environment()).stdin(input);
                // A signal to the group of this process, such as Ctrl-C, is for it alone: it ends the child.
                command.process_group(0);
                match outputs {
                    Some(Outputs { output, errors }) => command.stdout(output).stderr(errors),
                    None => command.stdout(Stdio::null()),
                };
                let (child, pidfd) = spawn(&mut command)?;
                Ok(Process { pid: child.id(), pidfd, status: StatusSource::Own(child) })
            }
            Self::Spawner(spawner) => {
                let outputs: Vec<_> = outputs.into_iter().flat_map(|own| [own.output, own.errors]).collect();
                let child = spawner.spawn(verb, &input, &outputs)?;
                Ok(Process { pid: child.pid, pidfd: child.pidfd, status: StatusSource::Spawner(child.status) })
            }
            Self::Unavailable(reason) => Err(io::Error::other(reason.to_string())),
        }
    }
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

impl Process {
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
            StatusSource::Own(child) => child.wait(),
            StatusSource::Spawner(status) => {
                status.recv().map_err(|_| io::Error::other("the process that started it has ended, and it with that"))
            }
        }
    }
}

impl AsFd for Process {
    /// The pidfd, which is readable when the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}
