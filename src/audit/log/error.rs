//! Reasons why the log cannot be written.

use std::io;
use std::path::{Path, PathBuf};

use super::super::key::CheckpointError;
use super::super::record::RECORD_BYTES_MAX;

/// Reasons why the log cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum AuditLogError {
    #[error("the audit log: {path}: {error}", path = path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("the audit log in {path} is in use by another process", path = path.display())]
    Locked { path: PathBuf },
    /// A record is longer than an entry bundle can hold.
    #[error("a record of {length} bytes is longer than the maximum of {max}", max = RECORD_BYTES_MAX)]
    TooLong { length: usize },
    #[error("the audit log: {0}")]
    Checkpoint(#[from] CheckpointError),
}

impl AuditLogError {
    pub(super) fn at(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        move |error| Self::File { path: path.to_owned(), error }
    }

    /// Tells whether the disk is full.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::File { error, .. } if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }
}
