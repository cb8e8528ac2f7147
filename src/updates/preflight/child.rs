//! The process that reads settings on trial, from inside. It limits itself before it reads anything of the release.

use std::io::{BufRead, BufReader, Read, Write};

use ledge_service::limited_process::{self, ProcessLimits, TRIAL_NICENESS};

use super::order::{PreflightMessage, PreflightRequest};
use crate::state::RollbackReason;

/// Reasons why no preflight begins.
#[derive(Debug, thiserror::Error)]
pub enum PreflightChildError {
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
pub fn begin() -> Result<PreflightRequest, PreflightChildError> {
    let mut input = BufReader::new(std::io::stdin());
    let mut line = String::new();
    // An order has a few hundred bytes.
    input.by_ref().take(1 << 20).read_line(&mut line).map_err(|error| PreflightChildError::Order(error.to_string()))?;
    let order: PreflightRequest =
        serde_json::from_str(&line).map_err(|error| PreflightChildError::Order(error.to_string()))?;
    let data_bytes = order.limits.data_bytes();
    let cores = ledge_base::telemetry::process::usable_cores() as u64;
    let cpu_seconds = order.limits.seconds.saturating_mul(cores);
    limited_process::limit_this_process(ProcessLimits { data_bytes, cpu_seconds, niceness: TRIAL_NICENESS })?;
    limited_process::end_with(input);
    Ok(order)
}

/// Reports the result.
pub fn finish(outcome: Result<(), RollbackReason>) -> Result<(), PreflightChildError> {
    let result = outcome.map_or_else(PreflightMessage::Failed, |()| PreflightMessage::Passed);
    let mut line = serde_json::to_vec(&result).map_err(std::io::Error::from)?;
    line.push(b'\n');
    let mut output = std::io::stdout().lock();
    output.write_all(&line)?;
    Ok(output.flush()?)
}
