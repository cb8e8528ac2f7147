//! Reasons why keys of entities cannot be read, written or made.

use std::io;
use std::path::PathBuf;

use ledge_identity::sealing::CipherError;

/// Reasons why keys cannot be read, written or made.
#[derive(Debug, thiserror::Error)]
pub enum EntityKeysError {
    #[error("the key file {} cannot be read or written: {source}", file.display())]
    Io { file: PathBuf, source: io::Error },
    #[error("neither the key file {} nor its copy in keys/b can be used ({reason}): {affected}. Put either copy back; without it the values encrypted with those keys are lost", file.display())]
    Lost {
        /// The first copy.
        file: PathBuf,
        reason: String,
        /// A description of the entities that have their keys in it.
        affected: String,
    },
    /// There are no keys, but a file of the store is encrypted.
    #[error("the keys of the feature store are missing, and its values are encrypted with them: put the folder {} back. To start with an empty store instead, move the store's whole folder away", folder.display())]
    Missing {
        /// The folder that they were in.
        folder: PathBuf,
    },
    #[error(transparent)]
    Sealed(CipherError),
    #[error("the values of the feature store are encrypted, but encryption.master_key_file is not set")]
    Off,
    /// The system has no random numbers, or all key numbers are used.
    #[error("no key for another entity can be made: no random numbers, or all key numbers are used")]
    Exhausted,
}
