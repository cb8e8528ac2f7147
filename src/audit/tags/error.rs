//! Reasons why there are no keys for tags.

use std::io;
use std::path::PathBuf;

use ledge_identity::sealing::CipherError;

/// Reasons why there are no keys, or why they stay as they were.
#[derive(Debug, thiserror::Error)]
pub enum TagKeysError {
    #[error("the keys for tags: {path}: {error}", path = path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        error: io::Error,
    },
    #[error("the keys for tags: {path}: {error}", path = path.display())]
    Sealed { path: PathBuf, error: CipherError },
    #[error("{path} holds no key for tags: restore it from a backup, or remove it", path = path.display())]
    Damaged { path: PathBuf },
}
