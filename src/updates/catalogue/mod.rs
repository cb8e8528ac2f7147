//! The catalogue: models that the owner of a box may add to the model repository, signed as updates are.
//!
//! A catalogue is a TUF repository. Its role `targets` lists the files of models as they lie in a model repository,
//! such as `NAME/model.toml` and `NAME/1/model.onnx`, so nothing is unpacked. The custom data of `NAME/model.toml`
//! describes the model. `ledge-platform catalogue` makes one.
//!
//! A catalogue is read only when a person asks for it, by a command or by a call of the API, so no model is added
//! without a request. An upload is the same without a catalogue: a model's folder in the body of a call.

mod api;
pub mod config;
mod error;
mod folder;
mod model;
pub mod part;
#[cfg(test)]
mod tests;
mod state;
mod upload;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use ledge_base::clock;
use ledge_base::names::ModelName;
use ledge_egress::Egress;
use ledge_service::audit_event::AuditSink;

use crate::artifact::FileName;
use crate::config::RepositoryAddress;
use crate::download::{DownloadLimits, fetch};
use crate::source::{self, RepositorySource};
use crate::store::{StoreError, UpdateStore};
use crate::trust::{TrustedMetadata, TufTarget};
pub use api::ROUTES;
use config::{CatalogueConfig, CatalogueSource};
pub use error::{CatalogueError, InvalidCataloguePath};
use folder::FolderOrigin;
pub use folder::{CataloguePresence, is_brought, remove};
pub use model::CatalogueDescription;
pub use model::CatalogueModel;
use model::{FILES_MAX, LEVELS_MAX};
#[cfg(any(test, feature = "fuzzing"))]
pub use upload::fuzz_upload;

/// A catalogue, with the folder of this box for its metadata and downloads.
#[derive(Debug)]
pub struct Catalogue {
    address: RepositoryAddress,
    folder: PathBuf,
    store: UpdateStore,
    trust: TrustedMetadata,
    source: RepositorySource,
    limits: DownloadLimits,
}

/// A model that was added.
#[derive(Debug)]
pub struct AddedModel {
    pub folder: PathBuf,
    /// SHA-256 of the list of its files.
    pub digest: String,
}

impl Catalogue {
    /// Opens the catalogue at `from`, else the one of the configuration; no other command can use it until this is
    /// dropped.
    pub fn open(
        config: &CatalogueConfig,
        from: Option<&RepositoryAddress>,
        egress: &Egress,
        limits: DownloadLimits,
    ) -> Result<Self, CatalogueError> {
        let CatalogueSource { address, root_file } = config.source(from)?.ok_or(CatalogueError::NoCatalogue)?;
        let folder = config.path.clone();
        let store = UpdateStore::open(&folder).map_err(|error| match error {
            StoreError::Locked { folder } => CatalogueError::Busy { folder },
            other => CatalogueError::Store(other),
        })?;
        let trust = TrustedMetadata::open(&folder, &root_file, AuditSink::to_nowhere())
            .map_err(|error| CatalogueError::of_trust(error, &address, &folder))?;
        let client = source::client(&address, egress, config.proxy.clone(), || config.tls.settings());
        let source = RepositorySource::new(&address, client);
        Ok(Self { address, folder, store, trust, source, limits })
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

    /// Makes the folder of a fetched model in `repository`, whole or not at all, and removes the downloads.
    /// `may_appear` is asked right before the folder gets its name.
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
            // A file of this content may be in the folder twice. A remaining blob is removed with the next list.
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

    /// Returns true if it is in `repository`, and as the catalogue has it.
    pub fn presence(&self, repository: &Path) -> CataloguePresence {
        folder::presence(self, repository)
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
/// with an invalid name is left out.
fn models_of(targets: Vec<TufTarget>) -> Vec<CatalogueModel> {
    let mut models: BTreeMap<ModelName, CatalogueModel> = BTreeMap::new();
    for target in targets {
        let Some(Ok(name)) = target.path.split('/').next().map(str::parse::<ModelName>) else { continue };
        let model = models.entry(name).or_insert_with_key(|name| CatalogueModel {
            name: name.clone(),
            description: CatalogueDescription::default(),
            problem: None,
            files: BTreeMap::new(),
        });
        match path_in_folder(&target.path) {
            Ok(path) => {
                if path == "model.toml" {
                    model.description = CatalogueDescription::of(&target);
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

/// Reads a list of targets, each path with its custom data; true when a model of it can be added. Its files are below
/// its folder, and its description has nothing that a terminal would obey.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_catalogue(data: &[u8]) -> bool {
    let Ok(listed) = serde_json::from_slice::<BTreeMap<String, serde_json::Value>>(data) else { return false };
    let target = |(path, custom)| {
        let (sha256, location) = ("0".repeat(64), String::new());
        TufTarget { path, length: 1, sha256, custom: Some(custom), location }
    };
    let models = models_of(listed.into_iter().map(target).collect());
    for CatalogueModel { name, description, problem, files } in &models {
        let CatalogueDescription { description, license, source, accuracy, release } = description;
        for text in [description, license, source, accuracy, release].into_iter().flatten() {
            assert!(
                text.chars().count() <= model::DESCRIPTION_CHARS_MAX && !text.contains(char::is_control),
                "{text:?}"
            );
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
