//! The end of a process, in words.

use std::process::ExitStatus;

use ledge_service::limited_process;
use rustix::process::Signal;

/// The end of a process, completing "the process ...".
pub(crate) fn describe(status: ExitStatus) -> String {
    let Some(number) = limited_process::signal(status) else { return format!("ended with {status}") };
    match Signal::from_named_raw(number) {
        Some(Signal::KILL) => "was killed with SIGKILL, by a user or for want of memory".to_owned(),
        Some(Signal::SEGV | Signal::ABORT | Signal::BUS | Signal::FPE | Signal::ILL) => {
            format!("crashed with {}", limited_process::signal_name(number))
        }
        _ => format!("ended with signal {number}"),
    }
}
