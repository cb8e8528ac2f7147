//! Errors of the catalogue.

use std::path::{Path, PathBuf};

use ledge_base::names::{InvalidName, ModelName};

use super::model::LEVELS_MAX;
use crate::config::RepositoryAddress;
use crate::download::FetchFailure;
use crate::store::StoreError;
use crate::trust::TrustError;

/// Errors of the catalogue.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    #[error(
        "the root metadata of the catalogue in {file} cannot be used: {reason}; put the catalogue's root.json there (`[catalogue] root_file`)",
        file = file.display()
    )]
    RootFile { file: PathBuf, reason: String },
    #[error(
        "{file} is not the root metadata, version {version}, that this box trusts for catalogues: if the catalogue was made anew, remove \
         the folder {folder}; else put the right file back",
        file = file.display(), folder = folder.display()
    )]
    OtherRoot { file: PathBuf, version: u64, folder: PathBuf },
    #[error(
        "the trusted metadata of the catalogue was damaged ({reason}): look for a failing disk or an intruder, then remove the folder {folder}",
        folder = folder.display()
    )]
    Damaged { reason: String, folder: PathBuf },
    #[error("the catalogue at {address}: {error}")]
    Trust { address: String, error: TrustError },
    #[error("another command or call uses the catalogue's folder {folder}: wait for its end", folder = folder.display())]
    Busy { folder: PathBuf },
    #[error(transparent)]
    Store(StoreError),
    #[error(
        "{needed} bytes do not fit on the disk: {free} bytes are free, of which {kept} stay so (`[updates] min_free_mb`)"
    )]
    Room { needed: u64, free: u64, kept: u64 },
    #[error("the caller is not admitted any more: nothing was added")]
    NotAdmitted,
    #[error("the platform manages {name}, so its owner adds no model of this name")]
    Managed { name: ModelName },
    #[error("the service is stopping: nothing was added")]
    Stopping,
    #[error(
        "no catalogue is configured: set `[catalogue] address`, or name one on the command line with --from, such as --from /media/usb"
    )]
    NoCatalogue,
    #[error("the catalogue that the package names cannot be used: {0}")]
    Publisher(String),
    #[error("the catalogue has no model {name}: it has {known}")]
    Unknown { name: ModelName, known: String },
    #[error("{name} cannot be added: {problem}")]
    Unusable { name: ModelName, problem: String },
    #[error("{file}: {failure}; what was fetched is kept: try again to go on")]
    Fetch { file: String, failure: FetchFailure },
    #[error("{folder} exists already: remove that model first", folder = folder.display())]
    Exists { folder: PathBuf },
    #[error("there is no model {name} in {repository}", repository = repository.display())]
    NoModel { name: ModelName, repository: PathBuf },
    #[error("{folder} is a link: remove it by hand", folder = folder.display())]
    Link { folder: PathBuf },
    #[error("{folder} would lose what no catalogue and no upload has: {what}; `ledge models remove --force` removes it all the same", folder = folder.display())]
    Own { folder: PathBuf, what: String },
    #[error("{file} changed on this disk after it was fetched: look for a failing disk, and try again", file = file.display())]
    Changed { file: PathBuf },
    #[error("cannot {doing} {path}: {error}", path = path.display())]
    File { doing: &'static str, path: PathBuf, error: std::io::Error },
}

/// A path of the catalogue that is not `MODEL/FILE` or below.
#[derive(Debug, thiserror::Error)]
pub enum InvalidCataloguePath {
    #[error("is not in the folder of a model")]
    NoFolder,
    #[error("has more than {LEVELS_MAX} levels below the folder of the model")]
    Levels,
    #[error(transparent)]
    Name(#[from] InvalidName),
}

impl CatalogueError {
    /// Converts an error of updates, whose advice is about `[updates]`.
    pub(super) fn of_trust(error: TrustError, address: &RepositoryAddress, folder: &Path) -> Self {
        let folder = folder.to_owned();
        match error {
            TrustError::RootFile { file, reason } => Self::RootFile { file, reason },
            TrustError::OtherRoot { file, version } => Self::OtherRoot { file, version, folder },
            TrustError::Damaged { reason } => Self::Damaged { reason, folder },
            error => Self::Trust { address: address.to_string(), error },
        }
    }

    pub(super) fn at<'a>(doing: &'static str, path: &'a Path) -> impl Fn(std::io::Error) -> Self + 'a {
        move |error| Self::File { doing, path: path.to_owned(), error }
    }
}
