//! Errors of the update store.

use std::io;
use std::path::{Path, PathBuf};

use ledge_identity::sealing::CipherError;

use super::super::state::RollbackCause;

/// Errors of the update store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "another daemon has the update store {folder} open: stop that one, or give each its own updates.path",
        folder = folder.display()
    )]
    Locked { folder: PathBuf },
    #[error("{text:?} is not a SHA-256 of 64 hexadecimal digits")]
    Digest { text: String },
    #[error("the file {sha256} is not in the update store")]
    Missing { sha256: String },
    /// A file is encrypted, and there is no key for it.
    #[error("{path}: {error}", path = path.display())]
    Sealed {
        path: PathBuf,
        /// The reason why it cannot be decrypted.
        error: CipherError,
    },
    #[error("no room on the disk for {path}: {error}", path = path.display())]
    Full {
        /// The file for which there was no room.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    #[error("cannot {doing} {path}: {error}", path = path.display())]
    File { doing: &'static str, path: PathBuf, error: io::Error },
}

impl StoreError {
    /// Returns the cause of a rollback, if this ends a release.
    pub fn cause(&self) -> RollbackCause {
        match self {
            Self::Digest { .. } | Self::Missing { .. } => RollbackCause::Download,
            Self::Locked { .. } | Self::Sealed { .. } | Self::Full { .. } | Self::File { .. } => RollbackCause::Disk,
        }
    }

    /// Returns whether the disk is full.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }

    pub(super) fn at<'a>(doing: &'static str, path: &'a Path) -> impl Fn(io::Error) -> Self + 'a {
        move |error| {
            let path = path.to_owned();
            match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { path, error },
                _ => Self::File { doing, path, error },
            }
        }
    }
}
