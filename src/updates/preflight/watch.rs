//! The process that reads settings on trial, from outside: starts it, watches it, ends it, and judges its end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitStatus;
use std::time::Duration;

use ledge_base::telemetry::process;
use ledge_isolation::starter::{ChildOutputs, ChildProcess, ChildStarter, SpawnVerb};
use ledge_service::limited_process;
use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::error::{PreflightError, out_of_memory};
use super::limits::MEMORY_POLL_INTERVAL;
use super::order::{PreflightMessage, PreflightRequest};
use crate::state::{RollbackCause, RollbackReason};

/// The step that it is in, for reasons.
const STEP: &str = "reading settings";

/// Most bytes read of its standard output; a result has a few hundred bytes.
const STDOUT_MAX_BYTES: u64 = 1 << 20;

/// Most bytes read of its standard error; its last line goes into the reason of a crash.
const STDERR_MAX_BYTES: u64 = 1 << 20;

/// The end of the process, as the watch saw it.
enum TrialProcessEnd {
    Exited(ExitStatus),
    TooLarge(u64),
    TooLong,
}

/// The process. It is ended when this is dropped.
struct TrialProcess {
    pid: u32,
    pidfd: OwnedFd,
    /// From the thread that waits for it.
    status: oneshot::Receiver<io::Result<ExitStatus>>,
}

impl TrialProcess {
    fn new(mut process: ChildProcess) -> io::Result<Self> {
        let (pid, pidfd) = (process.id(), process.as_fd().try_clone_to_owned()?);
        let (sender, status) = oneshot::channel();
        // On a separate thread, because the threads for blocking work are few.
        let wait = move || drop(sender.send(process.wait()));
        std::thread::Builder::new().name("update-trial".to_owned()).spawn(wait)?;
        Ok(Self { pid, pidfd, status })
    }

    /// Waits for its end.
    async fn wait(&mut self) -> io::Result<ExitStatus> {
        (&mut self.status).await.map_err(io::Error::other)?
    }

    fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

impl Drop for TrialProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The daemon's ends of the pipes.
struct TrialProcessPipes {
    input: Sender,
    output: Receiver,
    errors: Receiver,
}

fn start(starter: &ChildStarter) -> io::Result<(TrialProcess, TrialProcessPipes)> {
    let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
    let (input, own_input): (OwnedFd, OwnedFd) = pipe()?;
    let ((own_output, output), (own_errors, errors)) = (pipe()?, pipe()?);
    let process = starter.start(SpawnVerb::Trial, input, Some(ChildOutputs { output, errors }))?;
    let trial = TrialProcess::new(process)?;
    let pipes = TrialProcessPipes {
        input: Sender::from_owned_fd(own_input)?,
        output: Receiver::from_owned_fd(own_output)?,
        errors: Receiver::from_owned_fd(own_errors)?,
    };
    Ok((trial, pipes))
}

/// Runs a preflight to its end. The process is gone when this returns, and when it is dropped.
pub(super) async fn run(starter: &ChildStarter, order: &PreflightRequest) -> Result<(), PreflightError> {
    // This box is at fault, not the release.
    let broken = |what: &str, error: io::Error| {
        PreflightError::Interrupted(RollbackReason::new(
            RollbackCause::Load,
            format!("the preflight process {what}: {error}"),
        ))
    };
    let (mut trial, pipes) = start(starter).map_err(|error| broken("cannot be started", error))?;
    let TrialProcessPipes { input, output, errors } = pipes;
    let (end, said, complaints) =
        tokio::join!(watch(&mut trial, input, order), read(output, STDOUT_MAX_BYTES), read(errors, STDERR_MAX_BYTES),);
    let end = end.map_err(|error| broken("cannot be watched", error))?;
    verdict(&end, &lines(&said), &limited_process::complaint(&complaints), order)
}

/// Sends the order, and enforces the limits of time and memory until the process is gone.
async fn watch(trial: &mut TrialProcess, mut input: Sender, order: &PreflightRequest) -> io::Result<TrialProcessEnd> {
    let deadline = Instant::now() + Duration::from_secs(order.limits.seconds);
    let mut line = serde_json::to_vec(order)?;
    line.push(b'\n');
    // A process that died before it got the order is reported by its end.
    let _ = input.write_all(&line).await;
    loop {
        let exited = tokio::time::timeout(MEMORY_POLL_INTERVAL, trial.wait());
        if let Ok(status) = exited.await {
            return Ok(TrialProcessEnd::Exited(status?));
        }
        let resident = process::resident_bytes_of(trial.pid).unwrap_or(0);
        let end = match () {
            () if resident > order.limits.memory_bytes => TrialProcessEnd::TooLarge(resident),
            () if Instant::now() >= deadline => TrialProcessEnd::TooLong,
            () => continue,
        };
        trial.kill();
        trial.wait().await?;
        return Ok(end);
    }
}

/// Reads to the end, and returns the first `most` bytes.
async fn read(mut stream: impl AsyncRead + Unpin, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Bytes read before an error are kept. The rest is read and dropped, or the process would wait for a reader.
    let _ = (&mut stream).take(most).read_to_end(&mut bytes).await;
    let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    bytes
}

/// Parses the messages of the process; other lines are ignored.
fn lines(said: &[u8]) -> Vec<PreflightMessage> {
    said.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

/// Judges the process by its end and the message before it.
fn verdict(
    end: &TrialProcessEnd,
    said: &[PreflightMessage],
    complaint: &str,
    order: &PreflightRequest,
) -> Result<(), PreflightError> {
    let status = match end {
        TrialProcessEnd::Exited(status) => status,
        TrialProcessEnd::TooLarge(bytes) => return Err(order.limits.exceeded(*bytes, STEP).into()),
        TrialProcessEnd::TooLong => return Err(order.limits.timed_out(STEP).into()),
    };
    match (said.last(), limited_process::signal(*status)) {
        (Some(PreflightMessage::Passed), None) if status.success() => Ok(()),
        (Some(PreflightMessage::Failed(reason)), None) => Err(reason.clone().into()),
        (_, Some(number)) => Err(killed(number, complaint, order)),
        (_, None) => {
            let code = status.code().unwrap_or_default();
            let detail = format!("the preflight process ended with code {code} while {STEP}{}", quoted(complaint));
            Err(RollbackReason::new(RollbackCause::Crash, detail).into())
        }
    }
}

fn killed(number: i32, complaint: &str, order: &PreflightRequest) -> PreflightError {
    match Signal::from_named_raw(number) {
        // Not sent by the daemon: the kernel sends it when the machine runs out of memory, and to preflights first.
        Some(Signal::KILL) => out_of_memory(STEP),
        Some(Signal::XCPU) => order.limits.timed_out(STEP).into(),
        _ => {
            let name = limited_process::signal_name(number);
            let detail = format!("the preflight process died of {name} while {STEP}{}", quoted(complaint));
            RollbackReason::new(RollbackCause::Crash, detail).into()
        }
    }
}

fn quoted(complaint: &str) -> String {
    if complaint.is_empty() { String::new() } else { format!(": {complaint}") }
}

/// Reads the output of a preflight process; true when it has a message. Each message is the same after it was written
/// and read again, and the last line is cut. The folder `fuzz/` and `tests/it/fuzz.rs` feed it.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_preflight_report(data: &[u8]) -> bool {
    let words = limited_process::complaint(data);
    assert!(!words.contains(char::is_control), "{words:?}");
    let said = lines(data);
    for line in &said {
        let written = serde_json::to_vec(line).unwrap_or_default();
        assert_eq!(lines(&written).as_slice(), std::slice::from_ref(line));
    }
    !said.is_empty()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;
    use crate::preflight::{ConfigurationPreflight, TrialLimits};

    fn ended_by(signal: Signal) -> PreflightError {
        let how = ConfigurationPreflight { arguments: Vec::new(), environment: Vec::new() };
        let limits = TrialLimits { memory_bytes: 512 << 20, seconds: 60 };
        let order = PreflightRequest { release: "/release".into(), how, limits };
        verdict(&TrialProcessEnd::Exited(ExitStatus::from_raw(signal.as_raw())), &[], "", &order).unwrap_err()
    }

    #[test]
    fn a_trial_that_the_kernel_kills_for_want_of_memory_is_tried_again_and_one_that_crashes_is_not() {
        let PreflightError::Interrupted(reason) = ended_by(Signal::KILL) else {
            panic!("it would never be tried again")
        };
        assert!(reason.cause == RollbackCause::Memory && reason.detail.contains("while reading settings"), "{reason}");
        for (signal, cause) in [(Signal::SEGV, RollbackCause::Crash), (Signal::XCPU, RollbackCause::Deadline)] {
            assert!(matches!(ended_by(signal), PreflightError::Failed(reason) if reason.cause == cause));
        }
    }
}
