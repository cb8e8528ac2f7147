//! Why a file did not come.

use std::time::Duration;

use crate::source::SourceError;
use crate::state::Cause;
use crate::store::StoreError;

/// Why a file is not here. What is here of it stays, but for [`Self::Content`]. None of it is for ever: a server, a link or a
/// disk may be put right.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The repository does not give it.
    #[error("{0}")]
    Source(SourceError),
    /// Nothing came any more.
    #[error("nothing came for {seconds} s")]
    Stalled {
        /// How long.
        seconds: u64,
    },
    /// Too little came.
    #[error("{bytes_per_s} bytes a second came over a minute, {least} are the least")]
    Slow {
        /// What came.
        bytes_per_s: u64,
        /// What had to come.
        least: u64,
    },
    /// The transfer ended early.
    #[error("the transfer ended after {length} of {signed} bytes")]
    Short {
        /// So many are here.
        length: u64,
        /// So many are signed.
        signed: u64,
    },
    /// The server gives other bytes than it was asked for.
    #[error("the server was asked for the bytes from {asked} on, and sends those from {got} on")]
    Range {
        /// From where it should go on.
        asked: u64,
        /// From where it would.
        got: u64,
    },
    /// The server has a file of another length.
    #[error("the server has {length} bytes of it, {signed} are signed")]
    Length {
        /// As the server says.
        length: u64,
        /// As it is signed.
        signed: u64,
    },
    /// A transfer from the first byte on brought another file than was signed.
    #[error("what the server has is not what was signed: its SHA-256 is not {sha256}")]
    Content {
        /// Of what was signed.
        sha256: String,
    },
    /// There is no room.
    #[error(
        "the disk needs {needed} free bytes, those that must stay free (updates.min_free_mb) among them, and has {free}"
    )]
    Room {
        /// With `updates.min_free_mb`.
        needed: u64,
        /// What there is.
        free: u64,
    },
    /// The store fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Whoever asked for it does not want it any more.
    #[error("the download was cancelled")]
    Cancelled,
}

impl DownloadError {
    /// Whether the disk is full.
    pub fn is_of_room(&self) -> bool {
        match self {
            Self::Room { .. } => true,
            Self::Store(error) => error.is_of_room(),
            _ => false,
        }
    }

    /// What stops a release, if this does.
    pub fn cause(&self) -> Cause {
        match self {
            Self::Room { .. } => Cause::Disk,
            Self::Store(error) => error.cause(),
            Self::Cancelled => Cause::Operator,
            Self::Source(_)
            | Self::Stalled { .. }
            | Self::Slow { .. }
            | Self::Short { .. }
            | Self::Range { .. }
            | Self::Length { .. }
            | Self::Content { .. } => Cause::Download,
        }
    }

    /// When the server said that it may be asked again.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Source(error) => error.retry_after(),
            _ => None,
        }
    }
}
