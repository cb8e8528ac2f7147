//! The preflight process, from inside. It limits itself before it reads anything of the release.

use std::io::{BufRead, BufReader, Read, Write};

use rustix::process::{Resource, Rlimit, Signal};

use super::{PreflightError, PreflightMessage, PreflightOrder, PreflightReport};

/// Largest file that the process may write, in bytes: runtimes have no reason to write at all.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// Niceness of the process: it gets a tenth of the CPU time of a thread that answers requests, where both want the same
/// core.
const NICENESS: i32 = 10;

/// Reserved memory allowed beyond twice the watched limit, in bytes. Reserved memory is more than resident memory, and
/// the watch names the cause better.
const DATA_RESERVE_BYTES: u64 = 1 << 30;

/// Reasons why no preflight begins.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    #[error("cannot set the resource limits of this process: {0}")]
    Limits(#[from] rustix::io::Errno),
    #[error(
        "`ledge update trial` is started by the daemon, which sends an order on standard input; this is not one: {0}"
    )]
    Order(String),
    #[error("cannot write the result to standard output: {0}")]
    Report(#[from] std::io::Error),
}

/// Reads the order from standard input, and limits this process to it. To be called while there is one thread.
pub fn begin() -> Result<PreflightOrder, ChildError> {
    let mut input = BufReader::new(std::io::stdin());
    let mut line = String::new();
    // An order has a few hundred bytes.
    input.by_ref().take(1 << 20).read_line(&mut line).map_err(|error| ChildError::Order(error.to_string()))?;
    let order: PreflightOrder = serde_json::from_str(&line).map_err(|error| ChildError::Order(error.to_string()))?;
    limit(&order)?;
    std::thread::spawn(move || {
        // The daemon holds the other end for as long as it wants the result.
        let _ = std::io::copy(&mut input, &mut std::io::sink());
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
    });
    Ok(order)
}

fn limit(order: &PreflightOrder) -> Result<(), ChildError> {
    let set = |resource, most: u64| {
        let hard = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let most = most.min(hard);
        // The hard limit of CPU time is one more, or SIGKILL would come before SIGXCPU.
        let above = most.saturating_add(1).min(hard);
        rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(above) })
    };
    // No core file: it would hold the weights, and perhaps fill the disk.
    set(Resource::Core, 0)?;
    set(Resource::Fsize, FILE_MAX_BYTES)?;
    set(Resource::Data, order.memory_bytes.saturating_mul(2).saturating_add(DATA_RESERVE_BYTES))?;
    let cores = ledge_base::telemetry::process::usable_cores() as u64;
    set(Resource::Cpu, order.seconds.saturating_mul(cores))?;
    // A signal to the daemon's group, such as Ctrl-C, is the daemon's: it ends this process by closing its input. Not
    // `setsid`: the kernel may divide the CPU by sessions first, and niceness counts only within one.
    rustix::process::setpgid(None, None)?;
    rustix::process::nice(NICENESS)?;
    // When the machine runs out of memory this process goes first. Where the file is not there, nothing is lost.
    let _ =
        std::fs::OpenOptions::new().write(true).open("/proc/self/oom_score_adj").map(|mut file| file.write(b"1000"));
    Ok(())
}

/// Writes one message for the daemon.
fn say(said: &PreflightMessage) -> Result<(), ChildError> {
    let mut line = b"\n".to_vec();
    serde_json::to_writer(&mut line, said).map_err(std::io::Error::from)?;
    line.push(b'\n');
    let mut output = std::io::stdout().lock();
    // In one write, and from the start of a line: a runtime may have written something in between.
    output.write_all(&line)?;
    Ok(output.flush()?)
}

/// Reports the step that begins, such as "loading it": a crash is reported with it.
pub(super) fn step(step: &str) -> Result<(), ChildError> {
    say(&PreflightMessage::Step(step.to_owned()))
}

/// Reports the result of a preflight.
pub fn finish(outcome: Result<PreflightReport, PreflightError>) -> Result<(), ChildError> {
    say(&match outcome {
        Ok(report) => PreflightMessage::Done(report),
        Err(error) => PreflightMessage::Stopped(error),
    })
}
