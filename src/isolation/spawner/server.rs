//! The spawner, from inside: `ledge spawner`. One thread, asleep in poll(2) until the daemon asks for a child, or one
//! ends or is stopped.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use ledge_base::sys;
use ledge_service::limited_process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{DumpableBehavior, Pid, Signal, WaitId, WaitIdOptions};

use super::packets::{self, ForkReport, ForkRequest, SpawnVerb};
use crate::starter;

/// The variable by which a child of the spawner learns the process id of its parent.
const PARENT_VARIABLE: &str = "LEDGE_SPAWNER_PID";

/// The longest wait for the end of killed children. A child that the kernel cannot end, such as one in a read of a
/// hanging disk, must not delay the end of the service.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// Reasons why there is no spawner.
#[derive(Debug, thiserror::Error)]
pub enum SpawnerError {
    #[error("`ledge spawner` is started by the daemon, with a socket as standard input: {0}")]
    Socket(io::Error),
    #[error("cannot wait for the daemon: {0}")]
    Wait(io::Error),
}

/// Serves the daemon at the other end of standard input until it hangs up, and ends every child then. To be called
/// while there is one thread.
pub fn run() -> Result<(), SpawnerError> {
    sys::close_other_files();
    sys::ignore_stop_signals();
    let _ = rustix::thread::set_name(c"ledge-spawner");
    // Under another number, so that nothing reads it by accident.
    let socket = rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), 3).map_err(|e| SpawnerError::Socket(e.into()))?;
    rustix::net::sockopt::socket_type(&socket).map_err(|e| SpawnerError::Socket(e.into()))?;
    // The daemon opens the files of this process in /proc before it sends anything.
    retry_on_intr(|| poll(&mut [PollFd::new(&socket, PollFlags::IN)], None))
        .map_err(|e| SpawnerError::Wait(e.into()))?;
    // A child that an attacker controls must not change the spawner's behaviour, also where no sandbox prevents that.
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    serve(&socket, &sys::child_signals().map_err(SpawnerError::Wait)?)
}

/// Ends this process with the spawner, if that has started it. To be called before anything else.
pub fn end_with_spawner() -> io::Result<()> {
    let parent = std::env::var(PARENT_VARIABLE).ok().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    let Some(parent) = parent else { return Ok(()) };
    // The signal comes at the end of the thread that started the process. The spawner has only one.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have ended before.
    if rustix::process::getppid() != Some(parent) {
        return Err(io::Error::other("the process that started this one has ended"));
    }
    // Started through a file descriptor, the process has the number of that as its name.
    rustix::thread::set_name(c"ledge")?;
    Ok(())
}

/// A child that has not been waited for, so that its process id is its own.
struct UnreapedChild {
    number: u64,
    process: Child,
    pidfd: OwnedFd,
}

/// Serves the daemon until it hangs up. `signals` is readable when a child may have been stopped.
pub(super) fn serve(socket: &OwnedFd, signals: &OwnedFd) -> Result<(), SpawnerError> {
    let mut children = Vec::new();
    let ended = obey(socket, signals, &mut children);
    end(&mut children);
    ended
}

fn obey(socket: &OwnedFd, signals: &OwnedFd, children: &mut Vec<UnreapedChild>) -> Result<(), SpawnerError> {
    loop {
        let is_asked = wait(socket, signals, children).map_err(SpawnerError::Wait)?;
        // Every send fails only when the daemon has ended, and then the next receive reports it.
        for (number, status) in reap(children) {
            let _ = packets::send(socket, &ForkReport::Ended { number, status }, &[]);
        }
        for number in children.iter().filter(|child| child.was_stopped()).map(|child| child.number) {
            let _ = packets::send(socket, &ForkReport::Stopped { number }, &[]);
        }
        if !is_asked {
            continue;
        }
        match packets::receive(socket) {
            Ok(Some((ForkRequest::Start { number, verb }, files))) => match start(number, verb, files) {
                Ok(started) => {
                    let report = ForkReport::Started { number, pid: started.process.id() };
                    let _ = packets::send(socket, &report, &[started.pidfd.as_fd()]);
                    children.push(started);
                }
                Err(error) => {
                    let report = ForkReport::NotStarted { number, error: error.to_string() };
                    let _ = packets::send(socket, &report, &[]);
                }
            },
            Ok(Some((ForkRequest::Reset, _))) => {
                end(children);
                let _ = packets::send(socket, &ForkReport::Reset, &[]);
            }
            Ok(None) => return Ok(()),
            // It ended with reports unread.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(SpawnerError::Socket(error)),
        }
    }
}

impl UnreapedChild {
    /// True once for each time that it was stopped by a signal.
    fn was_stopped(&self) -> bool {
        let stopped =
            rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        matches!(stopped, Ok(Some(status)) if status.stopped())
    }
}

/// Sleeps until the daemon asks for something, which it returns, or a child has ended or was stopped.
fn wait(socket: &OwnedFd, signals: &OwnedFd, children: &[UnreapedChild]) -> io::Result<bool> {
    let mut files: Vec<_> = children.iter().map(|child| PollFd::new(&child.pidfd, PollFlags::IN)).collect();
    files.extend([PollFd::new(signals, PollFlags::IN), PollFd::new(socket, PollFlags::IN)]);
    retry_on_intr(|| poll(&mut files, None))?;
    let is_asked = files.last().is_some_and(|socket| !socket.revents().is_empty());
    // Before the children are looked at: a signal that comes later is another byte.
    let _ = rustix::io::read(signals, &mut [0; 64]);
    Ok(is_asked)
}

/// Takes the children that have ended, with their numbers and statuses.
fn reap(children: &mut Vec<UnreapedChild>) -> Vec<(u64, i32)> {
    let mut ended = Vec::new();
    children.retain_mut(|child| match child.process.try_wait() {
        Ok(None) => true,
        Ok(Some(status)) => {
            ended.push((child.number, status.into_raw()));
            false
        }
        // Nothing else waits for it, so this does not happen.
        Err(_) => false,
    });
    ended
}

fn start(number: u64, verb: SpawnVerb, files: Vec<OwnedFd>) -> io::Result<UnreapedChild> {
    let mut files = files.into_iter();
    let (Some(program), Some(input), Some(output), Some(errors)) =
        (files.next(), files.next(), files.next(), files.next())
    else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a request without a program and its three files"));
    };
    check_owner(&program)?;
    // By its descriptor, not by a path and not this process's own: it is the file that the daemon runs, which the
    // orders to the child fit, also after an upgrade of the package has replaced that file, and after the daemon has
    // restarted in place from the new one.
    let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    command.arg0("ledge").args(verb.words()).env_clear().envs(limited_process::environment());
    command.env(PARENT_VARIABLE, OsString::from(std::process::id().to_string()));
    command.stdin(input).stdout(output).stderr(errors);
    let (process, pidfd) = starter::spawn(&mut command)?;
    Ok(UnreapedChild { number, process, pidfd })
}

/// Refuses a file that is neither root's nor of the owner of this program. In a package that is root, so a daemon that
/// an attacker controls has nothing started here that it wrote itself.
fn check_owner(program: &OwnedFd) -> io::Result<()> {
    let owner = rustix::fs::fstat(program)?.st_uid;
    let own = rustix::fs::stat("/proc/self/exe")?.st_uid;
    match owner {
        0 => Ok(()),
        owner if owner == own => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::PermissionDenied, "the program is not of the owner of this one")),
    }
}

/// Ends every child.
fn end(children: &mut Vec<UnreapedChild>) {
    for child in &mut *children {
        let _ = child.process.kill();
    }
    let deadline = Instant::now() + KILL_TIMEOUT;
    while !children.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut files: Vec<_> = children.iter().map(|child| PollFd::new(&child.pidfd, PollFlags::IN)).collect();
        let timeout = Timespec::try_from(left).ok();
        if !matches!(retry_on_intr(|| poll(&mut files, timeout.as_ref())), Ok(1..)) {
            break;
        }
        reap(children);
    }
    children.clear();
}
