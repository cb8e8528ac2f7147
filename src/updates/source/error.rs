//! Errors of a source.

use std::path::PathBuf;
use std::time::Duration;

use ledge_egress::HttpError;

/// Reasons why a file of the repository cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("the server answers status {status} for {file}{hint}")]
    Status {
        /// The file, below the repository.
        file: String,
        status: u16,
        hint: &'static str,
        /// The time after which the server wants to be asked again, if it names one.
        retry_after: Option<Duration>,
    },
    #[error("{file} is longer than the {max} bytes that it may have")]
    TooLong {
        /// The file, below the repository.
        file: String,
        /// The longest allowed length, in bytes.
        max: u64,
    },
    #[error("{path} cannot be read: {error}", path = path.display())]
    Folder { path: PathBuf, error: std::io::Error },
    /// A name that would lead out of the repository.
    #[error("{name:?} is not the name of a file in a repository")]
    Name {
        /// As the metadata has it.
        name: String,
    },
    #[error("{address} is on the network, and no client is configured for it")]
    NoClient { address: String },
}

impl SourceError {
    /// The time after which the server wants to be asked again, if it names one.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

impl SourceError {
    pub(super) fn is_absent(&self) -> bool {
        match self {
            Self::Status { status, .. } => matches!(status, 403 | 404 | 410),
            Self::Folder { error, .. } => error.kind() == std::io::ErrorKind::NotFound,
            _ => false,
        }
    }
}
