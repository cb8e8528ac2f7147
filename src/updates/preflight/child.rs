//! The preflight process, from inside. It limits itself before it reads anything of the release.

use std::io::{BufRead, BufReader, Read, Write};

use ledge_service::limited_process::{self, Limits};

use super::{PreflightError, PreflightMessage, PreflightOrder, PreflightReport};

/// It waits for the threads that answer requests.
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
    let data_bytes = order.memory_bytes.saturating_mul(2).saturating_add(DATA_RESERVE_BYTES);
    let cores = ledge_base::telemetry::process::usable_cores() as u64;
    let cpu_seconds = order.seconds.saturating_mul(cores);
    limited_process::limit_this_process(Limits { data_bytes, cpu_seconds, niceness: NICENESS })?;
    limited_process::end_with(input);
    Ok(order)
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
