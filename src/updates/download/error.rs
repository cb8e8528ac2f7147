//! Reasons why a file was not fetched.

use std::time::Duration;

use crate::source::SourceError;
use crate::state::RollbackCause;
use crate::store::StoreError;

/// Reasons why a file was not fetched. Its stored bytes stay, except after [`Self::Content`]. No reason is final: a
/// server, a link or a disk may be repaired.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error("{0}")]
    Source(SourceError),
    #[error("the server sent nothing for {seconds} s")]
    Stalled { seconds: u64 },
    #[error("the server is too slow: {bytes_per_s} bytes a second over a minute, at least {least} are required")]
    Slow { bytes_per_s: u64, least: u64 },
    #[error("the transfer ended after {length} of {signed} bytes")]
    Short { length: u64, signed: u64 },
    /// The server sends another range than the requested one.
    #[error("the server was asked for the bytes from {asked} on, and sends those from {got} on")]
    Range {
        /// The requested first byte.
        asked: u64,
        /// The first byte that was sent.
        got: u64,
    },
    #[error("the file on the server has {length} bytes, but {signed} are signed")]
    Length { length: u64, signed: u64 },
    /// A transfer from the first byte on fetched another file than the signed one.
    #[error("the file on the server is not the signed one: its SHA-256 is not {sha256}")]
    Content { sha256: String },
    #[error("not enough disk space: {needed} bytes must be free, including updates.min_free_mb, and {free} are")]
    Room {
        /// Includes `updates.min_free_mb`.
        needed: u64,
        free: u64,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The caller cancelled the transfer.
    #[error("the download was cancelled")]
    Cancelled,
}

impl DownloadError {
    /// Returns true if the disk is full.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::Room { .. } => true,
            Self::Store(error) => error.is_disk_full(),
            _ => false,
        }
    }

    /// Returns the cause of a rollback, if this ends a release.
    pub fn cause(&self) -> RollbackCause {
        match self {
            Self::Room { .. } => RollbackCause::Disk,
            Self::Store(error) => error.cause(),
            Self::Cancelled => RollbackCause::Operator,
            Self::Source(_)
            | Self::Stalled { .. }
            | Self::Slow { .. }
            | Self::Short { .. }
            | Self::Range { .. }
            | Self::Length { .. }
            | Self::Content { .. } => RollbackCause::Download,
        }
    }

    /// Returns the time after which the server wants to be asked again, if it names one.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Source(error) => error.retry_after(),
            _ => None,
        }
    }
}
