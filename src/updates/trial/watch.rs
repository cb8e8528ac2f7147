//! The process of a trial, from outside: started, watched, ended, and what its end means.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use ledge_base::sys::NO_TELEMETRY;
use ledge_base::telemetry::process;
use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::Instant;

use super::{LOOK, Order, Said, TrialError, TrialReport};
use crate::state::{Cause, Reason};

/// The words by which the hidden verb is called.
const VERB: [&str; 2] = ["update", "trial"];

/// What is read of its standard output; a report has some hundred bytes.
const MAX_SAID: u64 = 1 << 20;

/// What is read of its standard error; the end of it goes into the reason of a crash.
const MAX_COMPLAINTS: u64 = 1 << 20;

/// So much of its last words is shown.
const LAST_WORDS: usize = 300;

/// Variables of the environment that it keeps: where libraries are searched for. Nothing else, so that no setting of the
/// daemon and no secret reaches it.
const KEPT: [&str; 2] = ["LD_LIBRARY_PATH", "PATH"];

/// What the watch saw end it.
enum End {
    Exited(ExitStatus),
    TooLarge(u64),
    TooLong,
}

/// Runs a trial to its end. The process is gone when this returns, and when it is dropped.
pub(super) async fn run(program: &Path, order: &Order) -> Result<TrialReport, TrialError> {
    // This box is short of something, and not the release at fault.
    let broken = |what: &str, error: std::io::Error| {
        TrialError::Interrupted(Reason::new(Cause::Load, format!("its process {what}: {error}")))
    };
    let mut child = spawn(program).map_err(|error| broken("cannot be started", error))?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    // Held to the end: the process ends with it.
    let stdin = stdin.ok_or_else(|| broken("has no input", std::io::ErrorKind::BrokenPipe.into()))?;
    let (end, said, complaints) =
        tokio::join!(watch(&mut child, stdin, order), read(stdout, MAX_SAID), read(stderr, MAX_COMPLAINTS),);
    let end = end.map_err(|error| broken("cannot be watched", error))?;
    meaning(&end, &lines(&said), &last_words(&complaints), order)
}

fn spawn(program: &Path) -> std::io::Result<Child> {
    let mut command = Command::new(program);
    command.args(VERB).env_clear().env(NO_TELEMETRY, "1");
    command.envs(KEPT.iter().filter_map(|name| Some((*name, std::env::var_os(name)?))));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn()
}

/// Gives the order, and looks after time and memory until the process is gone.
async fn watch(child: &mut Child, mut stdin: ChildStdin, order: &Order) -> std::io::Result<End> {
    let deadline = Instant::now() + Duration::from_secs(order.seconds);
    let mut line = serde_json::to_vec(order)?;
    line.push(b'\n');
    // One that died before it was asked says so by its end.
    let _ = stdin.write_all(&line).await;
    let pid = child.id();
    loop {
        let look = tokio::time::timeout(LOOK, child.wait());
        if let Ok(status) = look.await {
            return Ok(End::Exited(status?));
        }
        let resident = pid.and_then(process::resident_bytes_of).unwrap_or(0);
        let end = match () {
            () if resident > order.memory_bytes => End::TooLarge(resident),
            () if Instant::now() >= deadline => End::TooLong,
            () => continue,
        };
        child.kill().await?;
        return Ok(end);
    }
}

/// Reads to the end, and keeps `most` bytes.
async fn read(stream: Option<impl AsyncRead + Unpin>, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        // What was read until an error is all there is. The rest is let go by, or the process would wait for a reader.
        let _ = (&mut stream).take(most).read_to_end(&mut bytes).await;
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    }
    bytes
}

/// What the process said; what a runtime writes beside it is passed over.
fn lines(said: &[u8]) -> Vec<Said> {
    said.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

/// The last line of its complaints.
fn last_words(complaints: &[u8]) -> String {
    let text = String::from_utf8_lossy(complaints);
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    last.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LAST_WORDS).collect()
}

/// What its end, and what it said before, come to.
fn meaning(end: &End, said: &[Said], complaint: &str, order: &Order) -> Result<TrialReport, TrialError> {
    let step = said.iter().rev().find_map(|said| match said {
        Said::Step(step) => Some(step.as_str()),
        _ => None,
    });
    let step = step.unwrap_or("it started");
    let limit = order.memory_bytes >> 20;
    let status = match end {
        End::Exited(status) => status,
        End::TooLarge(bytes) => {
            let detail = format!("took {} MiB of memory while {step}; at most {limit}", bytes >> 20);
            return Err(Reason::new(Cause::Memory, detail).into());
        }
        End::TooLong => {
            let detail = format!("was not done after {} s, while {step}", order.seconds);
            return Err(Reason::new(Cause::Deadline, detail).into());
        }
    };
    match (said.last(), status.signal()) {
        (Some(Said::Done(report)), None) if status.success() => Ok(report.clone()),
        (Some(Said::Stopped(error)), None) => Err(error.clone()),
        (_, Some(number)) => Err(killed(number, step, complaint, order)),
        (_, None) => {
            let code = status.code().unwrap_or_default();
            let detail = format!("its process ended with code {code} while {step}{}", quoted(complaint));
            Err(Reason::new(Cause::Crash, detail).into())
        }
    }
}

fn killed(number: i32, step: &str, complaint: &str, order: &Order) -> TrialError {
    let reason = match Signal::from_named_raw(number) {
        // Nobody here sends it: the kernel does when the machine runs out of memory, and takes trials first. The release
        // had less than it may take, or the watch would have ended it.
        Some(Signal::KILL) => {
            let detail = format!("was killed by the system while {step}, as when memory runs out");
            return TrialError::Interrupted(Reason::new(Cause::Memory, detail));
        }
        Some(Signal::XCPU) => {
            Reason::new(Cause::Deadline, format!("used up the CPU time of {} s while {step}", order.seconds))
        }
        _ => {
            let name = signal_name(number);
            Reason::new(Cause::Crash, format!("its process died of {name} while {step}{}", quoted(complaint)))
        }
    };
    reason.into()
}

fn quoted(complaint: &str) -> String {
    if complaint.is_empty() { String::new() } else { format!(": {complaint}") }
}

fn signal_name(number: i32) -> String {
    let name = match Signal::from_named_raw(number) {
        Some(Signal::SEGV) => "SIGSEGV (segmentation fault)",
        Some(Signal::ABORT) => "SIGABRT (aborted)",
        Some(Signal::BUS) => "SIGBUS (bus error)",
        Some(Signal::FPE) => "SIGFPE (arithmetic error)",
        Some(Signal::ILL) => "SIGILL (illegal instruction)",
        Some(Signal::SYS) => "SIGSYS (forbidden system call)",
        Some(Signal::XFSZ) => "SIGXFSZ (file too large)",
        _ => return format!("signal {number}"),
    };
    name.to_owned()
}

/// Reads the lines of a trial's process; true when it said something. Each thing said is the same after it was written and
/// read again, and the last words are short. The folder `fuzz/` and `tests/it/fuzz.rs` feed it.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_trial_report(data: &[u8]) -> bool {
    let words = last_words(data);
    assert!(words.chars().count() <= LAST_WORDS && !words.contains(char::is_control), "{words:?}");
    let said = lines(data);
    for line in &said {
        let written = serde_json::to_vec(line).unwrap_or_default();
        assert_eq!(lines(&written).as_slice(), std::slice::from_ref(line));
    }
    !said.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{ConfigurationTrial, What};

    fn ended_by(signal: Signal) -> TrialError {
        let what = What::Configuration(ConfigurationTrial { arguments: Vec::new(), environment: Vec::new() });
        let order = Order { release: "/release".into(), what, memory_bytes: 512 << 20, seconds: 60 };
        let end = End::Exited(ExitStatus::from_raw(signal.as_raw()));
        meaning(&end, &[Said::Step("it was loaded".to_owned())], "", &order).unwrap_err()
    }

    #[test]
    fn a_trial_that_the_kernel_kills_for_want_of_memory_is_tried_again_and_one_that_crashes_is_not() {
        let TrialError::Interrupted(reason) = ended_by(Signal::KILL) else { panic!("it would never be tried again") };
        assert!(reason.cause == Cause::Memory && reason.detail.contains("while it was loaded"), "{reason}");
        for (signal, cause) in [(Signal::SEGV, Cause::Crash), (Signal::XCPU, Cause::Deadline)] {
            assert!(matches!(ended_by(signal), TrialError::Failed(reason) if reason.cause == cause));
        }
    }
}
