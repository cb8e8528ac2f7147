//! The catalogue: models that the owner of a box may add to the model repository, signed as updates are.
//!
//! A catalogue is a TUF repository. Its role `targets` lists the files of models as they lie in a model repository, such
//! as `NAME/model.toml` and `NAME/1/model.onnx`, so nothing is unpacked. The custom data of `NAME/model.toml` describes
//! the model. `ledge-platform catalogue` makes one.
//!
//! A catalogue is read when a person asks for it, by a command or by a call of the API, and at no other time: no model is
//! added that nobody asked for. An upload is the same without a catalogue: a model's folder in the body of a call.

mod api;
pub mod config;
mod folder;
pub mod part;
#[cfg(test)]
mod tests;
mod upload;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use ledge_base::clock;
use ledge_base::names::{InvalidName, ModelName};
use ledge_egress::Egress;
use ledge_service::audit_event::AuditSink;
use serde::{Deserialize, Serialize};

use crate::artifact::FileName;
use crate::config::RepositoryAddress;
use crate::download::{DownloadLimits, FetchFailure, fetch};
use crate::source::{self, Source};
use crate::store::{BlobStore, StoreError};
use crate::trust::{Target, Trust, TrustError};
pub use api::ROUTES;
use config::CatalogueConfig;
use folder::FolderOrigin;
pub use folder::{CataloguePresence, remove};
#[cfg(any(test, feature = "fuzzing"))]
pub use upload::fuzz_upload;

/// The most files of a model.
const FILES_MAX: usize = 1_000;

/// The most levels of a path below the folder of a model, such as `golden/cat.png`.
const LEVELS_MAX: usize = 3;

/// The longest text of a description, in characters.
const DESCRIPTION_CHARS_MAX: usize = 500;

/// A catalogue, with the folder of this box for its metadata and downloads.
#[derive(Debug)]
pub struct Catalogue {
    address: RepositoryAddress,
    folder: PathBuf,
    store: BlobStore,
    trust: Trust,
    source: Source,
    limits: DownloadLimits,
}

/// A model of a catalogue.
#[derive(Debug, Clone, PartialEq)]
pub struct CatalogueModel {
    /// The name of its folder.
    pub name: ModelName,
    pub description: Description,
    /// The reason why it cannot be added.
    pub problem: Option<String>,
    /// Its files, by their paths below its folder.
    files: BTreeMap<String, Target>,
}

/// A model that was added.
#[derive(Debug)]
pub struct AddedModel {
    pub folder: PathBuf,
    /// SHA-256 of the list of its files.
    pub digest: String,
}

/// The signed description of a model, for people.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Description {
    /// Its job.
    pub description: Option<String>,
    pub license: Option<String>,
    /// The origin of its weights.
    pub source: Option<String>,
    /// Its measured accuracy, with the data that it was measured on.
    pub accuracy: Option<String>,
    pub release: Option<String>,
}

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
    #[error("no catalogue is configured: set `[catalogue] address`")]
    NoCatalogue,
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

impl Catalogue {
    /// Opens the catalogue at `address`; no other command can use it until this is dropped.
    pub fn open(
        config: &CatalogueConfig,
        address: &RepositoryAddress,
        egress: &Egress,
        limits: DownloadLimits,
    ) -> Result<Self, CatalogueError> {
        let folder = config.path.clone();
        let store = BlobStore::open(&folder).map_err(|error| match error {
            StoreError::Locked { folder } => CatalogueError::Busy { folder },
            other => CatalogueError::Store(other),
        })?;
        let trust = Trust::open(&folder, &config.root_file, AuditSink::to_nowhere())
            .map_err(|error| CatalogueError::of_trust(error, address, &folder))?;
        let client = source::client(address, egress, config.proxy.clone(), || config.tls.settings());
        Ok(Self { address: address.clone(), folder, store, trust, source: Source::new(address, client), limits })
    }

    /// Fetches the signed list of models, and forgets unfinished downloads of files that it no longer has.
    pub async fn models(&mut self) -> Result<Vec<CatalogueModel>, CatalogueError> {
        let of_trust = |error| CatalogueError::of_trust(error, &self.address, &self.folder);
        self.trust.refresh(&self.source, clock::unix_millis()).await.map_err(of_trust)?;
        let targets = self.trust.top_level_targets().map_err(of_trust)?;
        let wanted: BTreeSet<String> = targets.iter().map(|target| target.sha256.clone()).collect();
        self.store.collect(&BTreeMap::new(), &wanted).map_err(CatalogueError::Store)?;
        Ok(models_of(targets))
    }

    /// Fetches the files of a model. `progress` is called with the bytes since its last call, and can end the transfer.
    pub async fn fetch(
        &self,
        model: &CatalogueModel,
        mut progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), CatalogueError> {
        if let Some(problem) = &model.problem {
            return Err(CatalogueError::Unusable { name: model.name.clone(), problem: problem.clone() });
        }
        for (file, target) in &model.files {
            let fetched = fetch(&self.store, &self.source, target, &self.limits, &mut progress).await;
            fetched.map_err(|failure| CatalogueError::Fetch { file: file.clone(), failure })?;
        }
        Ok(())
    }

    /// Makes the folder of a fetched model in `repository`, whole or not at all, and removes the downloads. `may_appear` is
    /// asked right before the folder gets its name.
    pub fn install(
        &self,
        model: &CatalogueModel,
        repository: &Path,
        may_appear: impl FnOnce() -> Result<(), CatalogueError>,
    ) -> Result<AddedModel, CatalogueError> {
        let fill = |folder: &Path| folder::copy_files(&self.store, model, folder, self.limits.min_free_bytes);
        let made = folder::make(repository, &model.name, FolderOrigin::Catalogue, fill, may_appear)?;
        for target in model.files.values() {
            let blob = self.store.blob(&target.sha256).map_err(CatalogueError::Store)?;
            // A file of this content may be in the folder twice. What stays is removed with the next list.
            let _ = std::fs::remove_file(blob);
        }
        Ok(AddedModel { folder: made.folder, digest: made.digest })
    }
}

impl CatalogueModel {
    /// Returns the bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|target| target.length).sum()
    }

    /// Returns whether it is in `repository`, and as the catalogue has it.
    pub fn presence(&self, repository: &Path) -> CataloguePresence {
        folder::presence(self, repository)
    }
}

impl CatalogueError {
    /// Converts an error of updates, whose advice is about `[updates]`.
    fn of_trust(error: TrustError, address: &RepositoryAddress, folder: &Path) -> Self {
        let folder = folder.to_owned();
        match error {
            TrustError::RootFile { file, reason } => Self::RootFile { file, reason },
            TrustError::OtherRoot { file, version } => Self::OtherRoot { file, version, folder },
            TrustError::Damaged { reason } => Self::Damaged { reason, folder },
            error => Self::Trust { address: address.to_string(), error },
        }
    }

    fn at<'a>(doing: &'static str, path: &'a Path) -> impl Fn(std::io::Error) -> Self + 'a {
        move |error| Self::File { doing, path: path.to_owned(), error }
    }
}

/// Returns the model of this name.
pub fn find<'a>(models: &'a [CatalogueModel], name: &ModelName) -> Result<&'a CatalogueModel, CatalogueError> {
    models.iter().find(|model| model.name == *name).ok_or_else(|| {
        let known: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        CatalogueError::Unknown { name: name.clone(), known }
    })
}

/// Groups the files of a catalogue by their models. A model with a path that may lead elsewhere cannot be added; one
/// whose name is none is left out.
fn models_of(targets: Vec<Target>) -> Vec<CatalogueModel> {
    let mut models: BTreeMap<ModelName, CatalogueModel> = BTreeMap::new();
    for target in targets {
        let Some(Ok(name)) = target.path.split('/').next().map(str::parse::<ModelName>) else { continue };
        let model = models.entry(name).or_insert_with_key(|name| CatalogueModel {
            name: name.clone(),
            description: Description::default(),
            problem: None,
            files: BTreeMap::new(),
        });
        match path_in_folder(&target.path) {
            Ok(path) => {
                if path == "model.toml" {
                    model.description = Description::of(&target);
                }
                model.files.insert(path.to_owned(), target);
            }
            Err(error) => model.problem = Some(format!("the catalogue lists {:?}, which {error}", target.path)),
        }
        if model.files.len() > FILES_MAX {
            model.problem = Some(format!("it has more than {FILES_MAX} files"));
        }
    }
    models.into_values().collect()
}

/// Returns the path of a target below the folder of its model, once it leads nowhere else.
fn path_in_folder(path: &str) -> Result<&str, InvalidCataloguePath> {
    let (_, inside) = path.split_once('/').ok_or(InvalidCataloguePath::NoFolder)?;
    path_below(inside)?;
    Ok(inside)
}

/// Checks a path below the folder of a model: it leads nowhere else.
fn path_below(inside: &str) -> Result<(), InvalidCataloguePath> {
    if inside.split('/').count() > LEVELS_MAX {
        return Err(InvalidCataloguePath::Levels);
    }
    for part in inside.split('/') {
        part.parse::<FileName>()?;
    }
    Ok(())
}

impl Description {
    /// Reads the custom data of a target: JSON in a text, since the canonical JSON of TUF has no fractions.
    fn of(target: &Target) -> Self {
        let text = target.custom.as_ref().and_then(|custom| custom.get("ledge")?.as_str());
        let mut description: Self = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let Self { description: job, license, source, accuracy, release } = &mut description;
        for text in [job, license, source, accuracy, release].into_iter().flatten() {
            // It is shown on a terminal.
            *text = text.chars().filter(|character| !character.is_control()).take(DESCRIPTION_CHARS_MAX).collect();
        }
        description
    }
}

/// Reads a list of targets, each path with its custom data; true when a model of it can be added. Its files are below its
/// folder, and its description has nothing that a terminal would obey.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_catalogue(data: &[u8]) -> bool {
    let Ok(listed) = serde_json::from_slice::<BTreeMap<String, serde_json::Value>>(data) else { return false };
    let target = |(path, custom)| {
        let (sha256, location) = ("0".repeat(64), String::new());
        Target { path, length: 1, sha256, custom: Some(custom), location }
    };
    let models = models_of(listed.into_iter().map(target).collect());
    for CatalogueModel { name, description, problem, files } in &models {
        let Description { description, license, source, accuracy, release } = description;
        for text in [description, license, source, accuracy, release].into_iter().flatten() {
            assert!(text.chars().count() <= DESCRIPTION_CHARS_MAX && !text.contains(char::is_control), "{text:?}");
        }
        assert!(problem.is_some() || (1..=FILES_MAX).contains(&files.len()));
        for (path, target) in files {
            assert_eq!(target.path, format!("{name}/{path}"));
            assert!((1..=LEVELS_MAX).contains(&path.split('/').count()), "{path:?}");
            assert!(path.split('/').all(|part| !part.is_empty() && !part.starts_with('.')), "{path:?}");
        }
    }
    models.iter().any(|model| model.problem.is_none())
}
