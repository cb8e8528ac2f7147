//! Why something is not trusted, in words for whoever is called at night.

use std::path::PathBuf;
use std::time::Duration;

use ledge_base::clock;
use sigstore_tuf::Error;

use super::time;
use crate::source::SourceError;

/// In which way metadata is not acceptable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is older than what is trusted.
    Rollback,
    Expired,
    /// Too few of those who must sign it did.
    Signature,
    /// It is not what the metadata above it says.
    Mismatch,
    /// It is not of the form.
    Malformed,
    /// It does not end.
    TooLong,
    /// It was signed by a role that may not.
    Unauthorised,
}

impl Refusal {
    /// As the audit log has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rollback => "rollback",
            Self::Expired => "expired",
            Self::Signature => "signature",
            Self::Mismatch => "mismatch",
            Self::Malformed => "malformed",
            Self::TooLong => "too_long",
            Self::Unauthorised => "unauthorised",
        }
    }
}

/// Why there is nothing new to trust.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error(
        "the root metadata in {file} cannot be used: {reason}; put your platform's root.json there (`[updates] root_file`)",
        file = file.display()
    )]
    RootFile { file: PathBuf, reason: String },
    #[error(
        "{file} is not the root metadata, version {version}, that this box trusts: if the platform was set up anew, \
         run `ledge update reset-trust`; else put the right file back",
        file = file.display()
    )]
    OtherRoot { file: PathBuf, version: u64 },
    #[error(
        "the trusted metadata on this box was damaged ({reason}): look for a failing disk or an intruder, then run \
         `ledge update reset-trust`; models that run go on running"
    )]
    Damaged { reason: String },
    #[error("what is trusted cannot be written to {file}, so it was not accepted: {reason}", file = file.display())]
    Store { file: PathBuf, reason: String },
    #[error(transparent)]
    Source(SourceError),
    #[error("the repository is not complete: {reason}")]
    Incomplete { reason: String },
    #[error("the metadata did not come within {seconds} s: the link is too slow, or somebody slows it down")]
    Slow {
        /// How long it may take.
        seconds: u64,
    },
    #[error("metadata was refused: {reason}")]
    Refused { refusal: Refusal, reason: String },
    #[error("the repository's metadata was not fetched since the start")]
    NotRefreshed,
    #[error("the role {role:?} does not list {path}")]
    NotListed { path: String, role: &'static str },
    #[error(
        "{path} is listed by the role {role:?}, but only {must:?} may say so: it was refused; find out who used the key"
    )]
    Unauthorised { path: String, role: String, must: &'static str },
    #[error("the metadata has no SHA-256 of {path}")]
    NoSha256 { path: String },
}

impl TrustError {
    /// Whether asking again would not help: what was signed is wrong. What is not signed yet may be tomorrow.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Unauthorised { .. } | Self::NoSha256 { .. })
    }

    /// Which refusal it is, if it is one.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Refused { refusal, .. } => Some(*refusal),
            Self::Source(SourceError::TooLong { .. }) => Some(Refusal::TooLong),
            Self::Unauthorised { .. } => Some(Refusal::Unauthorised),
            Self::NoSha256 { .. } => Some(Refusal::Malformed),
            _ => None,
        }
    }

    /// After what time another try is worth it, where the server says it.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Source(error) => error.retry_after(),
            _ => None,
        }
    }

    /// What the library says, in our words where they help more. `now`: what was taken for the time.
    pub(super) fn of(error: Error, now: jiff::Timestamp) -> Self {
        let refused = |refusal, reason| Self::Refused { refusal, reason };
        match error {
            Error::Transport { message, source: Some(source) } => match source.downcast::<SourceError>() {
                Ok(source) => Self::Source(*source),
                Err(source) => Self::Incomplete { reason: format!("{message}: {source}") },
            },
            Error::Transport { message, source: None } => Self::Incomplete {
                reason: format!("{message} (is `[updates] repository` right, and may this box read there?)"),
            },
            Error::NotRefreshed => Self::NotRefreshed,
            Error::Io { context, source } => Self::Store { file: context.into(), reason: source.to_string() },
            Error::Expired { role, expires } => {
                let [expires, now] = [expires, now].map(|moment| clock::rfc3339(time::unix_ms(moment)));
                let reason = format!(
                    "{role} expired at {expires}, and it is {now} here: nobody signed it anew (look at the platform), \
                     somebody holds back what is newer, or the clock of this box is wrong"
                );
                refused(Refusal::Expired, reason)
            }
            Error::Rollback { role, trusted, new } => refused(
                Refusal::Rollback,
                format!(
                    "the repository offers version {new} of {role}, and {trusted} is trusted already: an old copy was \
                     put in place of a newer one"
                ),
            ),
            error @ Error::BadRootVersion { .. } => refused(Refusal::Rollback, chain(&error)),
            error @ (Error::ThresholdNotMet { .. }
            | Error::DuplicateSignature { .. }
            | Error::UnusableKey { .. }
            | Error::UnsupportedScheme { .. }
            | Error::Crypto(_)) => refused(Refusal::Signature, chain(&error)),
            error @ Error::IntegrityMismatch(_) => refused(Refusal::Mismatch, chain(&error)),
            error => refused(Refusal::Malformed, chain(&error)),
        }
    }
}

/// An error and its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words = format!("{words}: {cause}");
        source = cause.source();
    }
    words
}
