//! The model repository, on disk and loaded.
//!
//! Invariants: a live version is never taken away before its replacement is ready; a version that does not load
//! disturbs no other; every load of one model happens alone, loads of different models side by side.

pub mod agreement;
pub mod attempts;
pub mod candidate;
mod check;
pub mod config;
mod contained;
pub mod feature_config;
pub mod feature_elements;
mod folder;
mod golden;
mod golden_config;
mod guarded;
mod index;
mod limits_config;
pub mod loaded_model;
mod loading;
mod loads;
pub mod managed;
pub mod model_config;
pub mod observations;
mod placement;
mod port_config;
pub mod profile;
mod rehearsal;
pub mod search;
pub mod slot;
pub mod sources;
pub mod statistics;
pub mod tuning;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ledge_base::names::{ModelName, ModelVersion};
use ledge_engine::Runtimes;
use ledge_service::audit_event::AuditSink;
use tokio::sync::Semaphore;

use crate::scheduling::engine::Engine;
pub use candidate::{Candidate, CandidateShare, Pinned};
pub use check::{Trial, Tried};
pub use folder::FolderError;
pub use golden::{GoldenError, GoldenScore, score as golden_score};
use guarded::LoadGuard;
pub use guarded::{SeparateTrial, VersionOnDisk};
pub use index::{IndexRow, ModelState, State};
pub use loaded_model::{LoadedModel, ModelDefaults};
pub use loading::{Refusal, VersionError};
pub use loads::Effort;
pub use managed::{ManagedState, ManagedVersion};
pub use observations::{ObservationConfig, Observations, Observed};
use slot::Slot;
pub use sources::Sources;
use statistics::Statistics;

/// Why a model or version asked for is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// The repository has no such model.
    #[error("Request for unknown model: '{model}' is not found")]
    UnknownModel {
        /// The model.
        model: ModelName,
    },
    /// The model has no such version among those it serves.
    #[error("Request for unknown model: '{model}' version {version} is not found")]
    UnknownVersion {
        /// The model.
        model: ModelName,
        /// The version.
        version: ModelVersion,
    },
    /// The model is there, but no version of it is loaded.
    #[error("Request for unknown model: '{model}' has no available versions: {reason}")]
    NoVersion {
        /// The model.
        model: ModelName,
        /// Why.
        reason: String,
    },
}

impl PinError {
    /// Whether the model, and the version if one was asked for, is at least known.
    pub fn is_known(&self) -> bool {
        matches!(self, Self::NoVersion { .. })
    }
}

/// Why a load failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadModelError {
    /// There is no such folder in the repository.
    #[error("failed to load '{model}', no such folder in the model repository")]
    Unknown {
        /// The model.
        model: ModelName,
    },
    /// At least one version did not load. What was live before still is.
    #[error("failed to load '{model}': {reason}")]
    Failed {
        /// The model.
        model: ModelName,
        /// One reason a version.
        reason: String,
    },
    /// Signed updates alone decide.
    #[error(transparent)]
    Managed(#[from] ManagedModel),
}

/// Why a model is not unloaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnloadModelError {
    /// It is not there.
    #[error(transparent)]
    Unknown(#[from] PinError),
    /// Signed updates alone decide.
    #[error(transparent)]
    Managed(#[from] ManagedModel),
}

/// Signed updates decide which version of this model is live, and nobody else.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("model '{model}' is managed by signed updates, which alone load and unload it: see `ledge update --help`")]
pub struct ManagedModel {
    /// The model.
    pub model: ModelName,
}

/// Why a version that was unloaded on request does not answer, in Triton's word.
pub const UNLOADED: &str = "unloaded";

/// A handle to the model repository. Clones share it.
#[derive(Debug, Clone)]
pub struct Repository {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    sources: Sources,
    engine: Engine,
    defaults: ModelDefaults,
    audit: AuditSink,
    loads: Semaphore,
    parallel_loads: u32,
    /// In the process that serves.
    guard: OnceLock<LoadGuard>,
    /// The models that updates manage, loaded or not.
    managed: Mutex<BTreeMap<ModelName, ManagedVersion>>,
    models: arc_swap::ArcSwap<BTreeMap<ModelName, Arc<Model>>>,
    /// Serializes changes of the map above.
    changing: Mutex<()>,
}

/// A model of the repository, whether it loads or not.
#[derive(Debug)]
struct Model {
    name: ModelName,
    slot: Slot,
    states: Mutex<States>,
    /// Held during a load or unload.
    busy: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct States {
    versions: BTreeMap<ModelVersion, State>,
    /// What is wrong with the model as a whole.
    fault: Option<String>,
    /// Kept over reloads.
    statistics: BTreeMap<ModelVersion, Arc<Statistics>>,
}

impl Model {
    fn states(&self) -> MutexGuard<'_, States> {
        // Nothing panics under this lock.
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, version: ModelVersion, state: State) {
        self.states().versions.insert(version, state);
    }

    /// Why there is nothing to pin.
    fn not_live(&self, version: Option<ModelVersion>) -> PinError {
        let (model, states) = (self.name.clone(), self.states());
        if let Some(version) = version.filter(|version| !states.versions.contains_key(version)) {
            return PinError::UnknownVersion { model, version };
        }
        let state =
            version.map_or_else(|| states.versions.last_key_value().map(|(_, s)| s), |v| states.versions.get(&v));
        let reason = match state {
            Some(State::Unavailable(reason)) => reason.clone(),
            Some(State::Loading) => "loading".to_owned(),
            _ => states.fault.clone().unwrap_or_else(|| "not loaded".to_owned()),
        };
        PinError::NoVersion { model, reason }
    }

    fn statistics(&self, version: ModelVersion) -> Arc<Statistics> {
        self.states().statistics.entry(version).or_default().clone()
    }
}

impl Repository {
    /// A repository over these folders; nothing is loaded yet.
    ///
    /// `parallel_loads` bounds how many models are loaded side by side.
    pub fn new(
        sources: Sources,
        engine: Engine,
        defaults: ModelDefaults,
        parallel_loads: usize,
        audit: AuditSink,
    ) -> Self {
        let parallel_loads = u32::try_from(parallel_loads.max(1)).unwrap_or(u32::MAX);
        let shared = Shared {
            sources,
            engine,
            defaults,
            audit,
            loads: Semaphore::new(parallel_loads as usize),
            parallel_loads,
            guard: OnceLock::new(),
            managed: Mutex::default(),
            models: arc_swap::ArcSwap::default(),
            changing: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The runtimes that models are loaded into.
    pub fn runtimes(&self) -> &Runtimes {
        self.shared.engine.runtimes()
    }

    /// What the models run on.
    pub fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// The owner's folder on disk.
    pub fn path(&self) -> &Path {
        self.shared.sources.owners()
    }

    /// Whether the owner, or the package, has a model of this name.
    pub fn has_folder(&self, name: &ModelName) -> bool {
        self.shared.sources.folder(name).is_dir()
    }

    /// Whether these files belong to a model of the owner or of the package, and not to a release.
    pub fn is_of_folder(&self, files: &Path) -> bool {
        self.shared.sources.has(files)
    }

    /// Pins a version, as for a look at it: nothing is drawn and nothing counted.
    pub fn pin(&self, name: &ModelName, version: Option<ModelVersion>) -> Result<Arc<LoadedModel>, PinError> {
        self.pinned(name, version, |slot| slot.pin(version))
    }

    /// Pins what answers one request. Of those that ask for no version a candidate may have its share.
    pub fn pin_call(&self, name: &ModelName, version: Option<ModelVersion>) -> Result<Pinned, PinError> {
        self.pinned(name, version, |slot| slot.pin_call(version))
    }

    fn pinned<T>(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
        pin: impl FnOnce(&Slot) -> Option<T>,
    ) -> Result<T, PinError> {
        let models = self.shared.models.load();
        let model = models.get(name).ok_or_else(|| PinError::UnknownModel { model: name.clone() })?;
        pin(&model.slot).ok_or_else(|| model.not_live(version))
    }

    /// The live versions of a model, ascending.
    pub fn live(&self, name: &ModelName) -> Result<Vec<Arc<LoadedModel>>, PinError> {
        let model = self.model(name).ok_or_else(|| PinError::UnknownModel { model: name.clone() })?;
        Ok(model.slot.live())
    }

    /// Every live version of every model, and the candidates beside them.
    pub fn all_live(&self) -> Vec<Arc<LoadedModel>> {
        let of_model = |model: &Arc<Model>| {
            let (mut live, candidate) = (model.slot.live(), model.slot.candidate());
            live.extend(candidate.map(|(candidate, _)| candidate));
            live
        };
        self.models().iter().flat_map(of_model).collect()
    }

    fn models(&self) -> Vec<Arc<Model>> {
        self.shared.models.load().values().cloned().collect()
    }

    fn model(&self, name: &ModelName) -> Option<Arc<Model>> {
        self.shared.models.load().get(name).cloned()
    }

    fn model_or_new(&self, name: &ModelName) -> Arc<Model> {
        let _changing = self.shared.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = self.model(name) {
            return model;
        }
        let model = Arc::new(Model {
            name: name.clone(),
            slot: Slot::default(),
            states: Mutex::default(),
            busy: Arc::default(),
        });
        let mut models = BTreeMap::clone(&self.shared.models.load());
        models.insert(name.clone(), model.clone());
        self.shared.models.store(Arc::new(models));
        model
    }

    /// Whether the model was not forgotten meanwhile.
    fn is_current(&self, model: &Model) -> bool {
        self.model(&model.name).is_some_and(|current| std::ptr::eq(&raw const *current, model))
    }

    fn forget(&self, name: &ModelName) {
        let _changing = self.shared.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut models = BTreeMap::clone(&self.shared.models.load());
        models.remove(name);
        self.shared.models.store(Arc::new(models));
    }
}
