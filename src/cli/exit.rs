//! Exit codes.

use std::process::ExitCode;

use ledge_base::toml_check::BadConfiguration;
use ledge_identity::sealing::MasterKeyError;

use super::output;
use crate::daemon::formats::NewerFormatError;

/// The outcome of the process, as its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Success,
    /// The verb failed, or something needs attention.
    Failure,
    /// A part of an audit log is missing.
    Gap,
    /// There are two histories of one audit log.
    Fork,
    /// An audit log differs from what was signed.
    Tampered,
    /// The configuration is wrong, or a later version wrote the stores. A restart does not help, so the unit has
    /// `RestartPreventExitStatus=78`.
    Configuration,
    /// A signal ended the verb before it was done, as 128 + SIGINT in a shell.
    Interrupted,
}

impl Exit {
    /// Reports on standard error why a verb failed, and returns the exit code for it.
    ///
    /// A reader that closed the pipe, such as `head`, has what it needs: that is a success, without a message.
    pub fn of(error: &anyhow::Error) -> Self {
        use std::io::Write as _;
        if output::is_output_closed(error) {
            return Self::Success;
        }
        // Standard error may be closed too; then the message is lost.
        let _ = writeln!(std::io::stderr(), "ledge: {error:#}");
        let is_configuration =
            error.is::<BadConfiguration>() || error.is::<NewerFormatError>() || error.is::<MasterKeyError>();
        if is_configuration { Self::Configuration } else { Self::Failure }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Success => Self::SUCCESS,
            Exit::Failure => Self::from(1),
            Exit::Gap => Self::from(3),
            Exit::Fork => Self::from(4),
            Exit::Tampered => Self::from(5),
            // EX_CONFIG of sysexits.h.
            Exit::Configuration => Self::from(78),
            Exit::Interrupted => Self::from(130),
        }
    }
}
