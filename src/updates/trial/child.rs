//! The process of a trial, from inside. It limits itself before anything of the release is read.

use std::io::{BufRead, BufReader, Read, Write};

use rustix::process::{Resource, Rlimit, Signal};

use super::{Order, Said, TrialError, TrialReport};

/// What a trial may write to one file: runtimes have no reason to write at all.
const FILE_BYTES: u64 = 1 << 20;

/// A tenth of the CPU time of a thread that answers requests, where both want the same core.
const NICE: i32 = 10;

/// Beyond the watched limit. Reserved memory is more than is resident, and the watch names the cause better.
const RESERVE: u64 = 1 << 30;

/// Why no trial begins.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    #[error("the trial cannot limit itself: {0}")]
    Limits(#[from] rustix::io::Errno),
    #[error("a trial is started by the daemon, which sends an order; this is none: {0}")]
    Order(String),
    #[error("the trial cannot say what came of it: {0}")]
    Said(#[from] std::io::Error),
}

/// Takes the order from standard input, and limits this process to it. To be called while there is one thread.
pub fn begin() -> Result<Order, ChildError> {
    let mut input = BufReader::new(std::io::stdin());
    let mut line = String::new();
    // An order has some hundred bytes.
    input.by_ref().take(1 << 20).read_line(&mut line).map_err(|error| ChildError::Order(error.to_string()))?;
    let order: Order = serde_json::from_str(&line).map_err(|error| ChildError::Order(error.to_string()))?;
    limit(&order)?;
    std::thread::spawn(move || {
        // The daemon holds the other end for as long as it wants to know.
        let _ = std::io::copy(&mut input, &mut std::io::sink());
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
    });
    Ok(order)
}

fn limit(order: &Order) -> Result<(), ChildError> {
    let set = |resource, most: u64| {
        let hard = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let most = most.min(hard);
        // One more for the hard limit of CPU time, or SIGKILL comes before SIGXCPU.
        let above = most.saturating_add(1).min(hard);
        rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(above) })
    };
    // No core file: it would hold the weights, and perhaps fill the disk.
    set(Resource::Core, 0)?;
    set(Resource::Fsize, FILE_BYTES)?;
    set(Resource::Data, order.memory_bytes.saturating_mul(2).saturating_add(RESERVE))?;
    let cores = ledge_base::telemetry::process::usable_cores() as u64;
    set(Resource::Cpu, order.seconds.saturating_mul(cores))?;
    // A signal to the daemon's group, such as Ctrl-C, is the daemon's: it ends this process by closing its input.
    // A group, and no session: the kernel may share the CPU out by sessions first, and niceness counts within one alone.
    rustix::process::setpgid(None, None)?;
    rustix::process::nice(NICE)?;
    // When the machine runs out of memory this process goes first. Where the file is not there, nothing is lost.
    let _ =
        std::fs::OpenOptions::new().write(true).open("/proc/self/oom_score_adj").map(|mut file| file.write(b"1000"));
    Ok(())
}

/// Says what comes next, or what came of it.
fn say(said: &Said) -> Result<(), ChildError> {
    let mut line = b"\n".to_vec();
    serde_json::to_writer(&mut line, said).map_err(std::io::Error::from)?;
    line.push(b'\n');
    let mut output = std::io::stdout().lock();
    // At once, and from the start of a line: a runtime may have written something in between.
    output.write_all(&line)?;
    Ok(output.flush()?)
}

/// Says what comes next, such as "it was loaded": a death is told with it.
pub(super) fn step(step: &str) -> Result<(), ChildError> {
    say(&Said::Step(step.to_owned()))
}

/// Says what came of a trial.
pub fn finish(outcome: Result<TrialReport, TrialError>) -> Result<(), ChildError> {
    say(&match outcome {
        Ok(report) => Said::Done(report),
        Err(error) => Said::Stopped(error),
    })
}
