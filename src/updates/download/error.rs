//! Why a file did not come.

use std::time::Duration;

use crate::source::SourceError;
use crate::state::Cause;
use crate::store::StoreError;

/// Why a file is not here. What is here of it stays, but for [`Self::Content`]. None of it is for ever: a server, a link or a
/// disk may be put right.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error("{0}")]
    Source(SourceError),
    #[error("nothing came for {seconds} s")]
    Stalled { seconds: u64 },
    #[error("{bytes_per_s} bytes a second came over a minute, {least} are the least")]
    Slow { bytes_per_s: u64, least: u64 },
    #[error("the transfer ended after {length} of {signed} bytes")]
    Short { length: u64, signed: u64 },
    /// The server gives other bytes than it was asked for.
    #[error("the server was asked for the bytes from {asked} on, and sends those from {got} on")]
    Range {
        /// From where it should go on.
        asked: u64,
        /// From where it would.
        got: u64,
    },
    #[error("the server has {length} bytes of it, {signed} are signed")]
    Length { length: u64, signed: u64 },
    /// A transfer from the first byte on brought another file than was signed.
    #[error("what the server has is not what was signed: its SHA-256 is not {sha256}")]
    Content { sha256: String },
    #[error(
        "the disk needs {needed} free bytes, those that must stay free (updates.min_free_mb) among them, and has {free}"
    )]
    Room {
        /// With `updates.min_free_mb`.
        needed: u64,
        free: u64,
    },
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
