//! Reasons why something is not trusted.

use std::path::PathBuf;
use std::time::Duration;

use ledge_base::clock;
use sigstore_tuf::Error;

use super::time;
use crate::source::SourceError;

/// Kinds of refusals of metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// It is older than the trusted metadata.
    Rollback,
    Expired,
    /// It has too few valid signatures.
    Signature,
    /// It does not match the metadata above it.
    Mismatch,
    /// It cannot be parsed.
    Malformed,
    /// It is longer than allowed.
    TooLong,
    /// It was signed by a role without the permission to sign it.
    Unauthorised,
}

impl RefusalKind {
    /// Returns its name in the audit log.
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

/// Reasons why a refresh or a resolution failed.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error(
        "the root metadata in {file} cannot be used: {reason}; put your platform's root.json there (`[updates] root_file`)",
        file = file.display()
    )]
    RootFile { file: PathBuf, reason: String },
    #[error(
        "{file} is not the root metadata, version {version}, that this box trusts: if the platform was set up again, \
         run `ledge update reset-trust`; else put the right file back",
        file = file.display()
    )]
    OtherRoot { file: PathBuf, version: u64 },
    #[error(
        "the trusted metadata on this box was damaged ({reason}): look for a failing disk or an intruder, then run \
         `ledge update reset-trust`; models that run go on running"
    )]
    Damaged { reason: String },
    #[error("new metadata was not accepted, because {file} cannot be written: {reason}", file = file.display())]
    Store { file: PathBuf, reason: String },
    #[error(transparent)]
    Source(SourceError),
    #[error("the repository is not complete: {reason}")]
    Incomplete { reason: String },
    #[error("the metadata did not arrive within {seconds} s: the link is too slow, or somebody slows it down")]
    Slow {
        /// The timeout.
        seconds: u64,
    },
    #[error("metadata was refused: {reason}")]
    Refused { refusal: RefusalKind, reason: String },
    #[error("the metadata of the repository has not been fetched since the start")]
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
    /// Returns true if another attempt would fail too, because the signed metadata is wrong. A target that is not
    /// signed yet may be signed later.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Unauthorised { .. } | Self::NoSha256 { .. })
    }

    /// Returns the kind of refusal, if it is one.
    pub fn refusal(&self) -> Option<RefusalKind> {
        match self {
            Self::Refused { refusal, .. } => Some(*refusal),
            Self::Source(SourceError::TooLong { .. }) => Some(RefusalKind::TooLong),
            Self::Unauthorised { .. } => Some(RefusalKind::Unauthorised),
            Self::NoSha256 { .. } => Some(RefusalKind::Malformed),
            _ => None,
        }
    }

    /// Returns the time after which the server wants to be asked again, if it names one.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Source(error) => error.retry_after(),
            _ => None,
        }
    }

    /// Converts an error of the library, with more helpful messages. `now` is the time by which it was judged.
    pub(super) fn of(error: Error, now: jiff::Timestamp) -> Self {
        let refused = |refusal, reason| Self::Refused { refusal, reason };
        match error {
            Error::Transport { message, source: Some(source) } => match source.downcast::<SourceError>() {
                Ok(source) => Self::Source(*source),
                Err(source) => Self::Incomplete { reason: format!("{message}: {source}") },
            },
            Error::Transport { message, source: None } => Self::Incomplete {
                reason: format!("{message} (is the address of the repository right, and may this box read there?)"),
            },
            Error::NotRefreshed => Self::NotRefreshed,
            Error::Io { context, source } => Self::Store { file: context.into(), reason: source.to_string() },
            Error::Expired { role, expires } => {
                let [expires, now] = [expires, now].map(|moment| clock::rfc3339(time::unix_ms(moment)));
                let reason = format!(
                    "{role} expired at {expires}, and it is {now} here: it was not signed again (check the \
                     platform), newer metadata is held back, or the clock of this box is wrong"
                );
                refused(RefusalKind::Expired, reason)
            }
            Error::Rollback { role, trusted, new } => refused(
                RefusalKind::Rollback,
                format!(
                    "the repository offers version {new} of {role}, and {trusted} is trusted already: an old copy was \
                     put in place of a newer one"
                ),
            ),
            error @ Error::BadRootVersion { .. } => refused(RefusalKind::Rollback, chain(&error)),
            error @ (Error::ThresholdNotMet { .. }
            | Error::DuplicateSignature { .. }
            | Error::UnusableKey { .. }
            | Error::UnsupportedScheme { .. }
            | Error::Crypto(_)) => refused(RefusalKind::Signature, chain(&error)),
            error @ Error::IntegrityMismatch(_) => refused(RefusalKind::Mismatch, chain(&error)),
            error => refused(RefusalKind::Malformed, chain(&error)),
        }
    }
}

/// Formats an error and its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words = format!("{words}: {cause}");
        source = cause.source();
    }
    words
}
