//! Reasons why API keys cannot be read or changed.

use std::io;
use std::path::PathBuf;

use ledge_base::names::KeyName;

/// The reason why the store cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum ApiKeysError {
    #[error("{} cannot be read", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// The content is incomplete or of another form. The file is left as it is.
    #[error(
        "{} is not a store of API keys of this version ({reason}): restore it from a backup, or remove it and create \
         every key again",
        path.display()
    )]
    Damaged { path: PathBuf, reason: String },
    /// Other users may write it, and so create keys.
    #[error(
        "users other than its owner can write {}: set its mode to 600 (chmod 600), and check its keys with \
         `ledge keys list`",
        path.display()
    )]
    Exposed { path: PathBuf },
    #[error("{} cannot be written", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
    /// It would be larger than a store may be.
    #[error(
        "{} is full (revoked keys take room too): remove it, and create every key that is still needed again",
        path.display()
    )]
    Full { path: PathBuf },
    #[error("an API key named '{name}' exists already (revoked keys keep their names): choose another name")]
    NameTaken { name: KeyName },
    /// Its name would be the secret of another: names are in logs.
    #[error("the name looks like an API key: use a non-secret label, such as the owner's name")]
    NameIsKey,
    #[error("an API key needs at least one role")]
    NoRole,
    #[error("no API key has the name or id '{what}': `ledge keys list` shows all")]
    Unknown { what: String },
    #[error("the system returned no random numbers: {0}")]
    NoRandom(getrandom::Error),
}
