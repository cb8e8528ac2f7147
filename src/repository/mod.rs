//! The model repository, on disk and loaded.
//!
//! Invariants: a live version is never taken away before its replacement is ready; a version that does not load
//! disturbs no other; every load of one model happens alone, loads of different models side by side.

mod check;
pub mod config;
pub mod feature_config;
pub mod feature_elements;
mod folder;
mod golden;
mod limits_config;
mod loading;
pub mod loaded_model;
pub mod model_config;
pub mod observations;
mod onnx;
mod placement;
pub mod profile;
pub mod search;
pub mod slot;
pub mod statistics;
pub mod tuning;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use tokio::sync::Semaphore;

use crate::audit_event::{AuditEvent, AuditSink};
use crate::inference::Runtimes;
use crate::inference::engine::Engine;
use crate::names::{ModelName, ModelVersion};
use crate::principal::Principal;
pub use check::Trial;
pub use folder::FolderError;
pub use loaded_model::{LoadedModel, ModelDefaults};
use loading::VersionSource;
use slot::Slot;
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
}

/// What state a version is in, in Triton's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It answers requests.
    Ready,
    /// It is being loaded for the first time.
    Loading,
    /// It waits for its last requests.
    Unloading,
    /// It does not answer; why.
    Unavailable(String),
}

/// One row of the repository's index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexRow {
    /// The model.
    pub model: ModelName,
    /// The version; `None` for a model of which none is known.
    pub version: Option<ModelVersion>,
    /// Its state.
    pub state: State,
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
    path: PathBuf,
    engine: Engine,
    defaults: ModelDefaults,
    audit: AuditSink,
    loads: Semaphore,
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
    busy: tokio::sync::Mutex<()>,
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
}

impl Repository {
    /// A repository over the folder `path`; nothing is loaded yet.
    ///
    /// `parallel_loads` bounds how many models are loaded side by side.
    pub fn new(
        path: PathBuf,
        engine: Engine,
        defaults: ModelDefaults,
        parallel_loads: usize,
        audit: AuditSink,
    ) -> Self {
        let shared = Shared {
            path,
            engine,
            defaults,
            audit,
            loads: Semaphore::new(parallel_loads.max(1)),
            models: arc_swap::ArcSwap::default(),
            changing: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The runtimes that models are loaded into.
    pub fn runtimes(&self) -> &Runtimes {
        self.shared.engine.runtimes()
    }

    /// The folder on disk.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Brings what is loaded in line with what is on disk: loads what is new or changed, unloads what is gone, leaves
    /// the rest alone. A model that fails is listed with its reason. Fails only when the folder itself cannot be read.
    pub async fn refresh(&self, principal: &Principal) -> Result<(), FolderError> {
        let (names, strange) = folder::models(&self.shared.path)?;
        for folder in strange {
            tracing::debug!(folder, "not a model name; passed over");
        }
        for model in self.models() {
            if !names.contains(&model.name) {
                let _alone = model.busy.lock().await;
                self.unload_versions(&model, principal).await;
                self.forget(&model.name);
            }
        }
        // Known before any is loaded, so that a request meanwhile hears "loading", not "unknown".
        let models: Vec<_> = names.iter().map(|name| self.model_or_new(name)).collect();
        join_all(models.iter().map(|model| async {
            if let Err(error) = self.load_model(model, principal, Effort::Changed).await {
                tracing::error!(model = %model.name, %error, "a model does not load; the others serve");
            }
        }))
        .await;
        tracing::info!(models = models.len(), "model repository read");
        Ok(())
    }

    /// Loads a model anew from disk and swaps it in; on failure what was live before stays live.
    pub async fn load(&self, name: &ModelName, principal: &Principal) -> Result<(), LoadModelError> {
        if !self.shared.path.join(name.as_str()).is_dir() {
            return Err(LoadModelError::Unknown { model: name.clone() });
        }
        self.load_model(&self.model_or_new(name), principal, Effort::Always).await
    }

    /// Takes a model out of service and waits until its requests are answered and its memory is given back.
    pub async fn unload(&self, name: &ModelName, principal: &Principal) -> Result<(), PinError> {
        let model = self.model(name).ok_or_else(|| PinError::UnknownModel { model: name.clone() })?;
        self.unload_model(&model, principal).await;
        Ok(())
    }

    /// Takes every model out of service, as the daemon does before it ends: a runtime that is still running while its
    /// library is torn down crashes.
    pub async fn unload_all(&self, principal: &Principal) {
        join_all(self.models().iter().map(|model| self.unload_model(model, principal))).await;
    }

    /// Pins a version for one request.
    pub fn pin(&self, name: &ModelName, version: Option<ModelVersion>) -> Result<Arc<LoadedModel>, PinError> {
        let models = self.shared.models.load();
        let model = models.get(name).ok_or_else(|| PinError::UnknownModel { model: name.clone() })?;
        model.slot.pin(version).ok_or_else(|| {
            let states = model.states();
            let known = version.filter(|version| !states.versions.contains_key(version));
            if let Some(version) = known {
                return PinError::UnknownVersion { model: name.clone(), version };
            }
            let state =
                version.map_or_else(|| states.versions.last_key_value().map(|(_, s)| s), |v| states.versions.get(&v));
            let reason = match state {
                Some(State::Unavailable(reason)) => reason.clone(),
                Some(State::Loading) => "loading".to_owned(),
                _ => states.fault.clone().unwrap_or_else(|| "not loaded".to_owned()),
            };
            PinError::NoVersion { model: name.clone(), reason }
        })
    }

    /// The live versions of a model, ascending.
    pub fn live(&self, name: &ModelName) -> Result<Vec<Arc<LoadedModel>>, PinError> {
        let model = self.model(name).ok_or_else(|| PinError::UnknownModel { model: name.clone() })?;
        Ok(model.slot.live())
    }

    /// Every live version of every model.
    pub fn all_live(&self) -> Vec<Arc<LoadedModel>> {
        self.models().iter().flat_map(|model| model.slot.live()).collect()
    }

    /// Every model and version that is known, with its state.
    pub fn index(&self) -> Vec<IndexRow> {
        let mut rows = Vec::new();
        for model in self.models() {
            let states = model.states();
            let row = |version, state| IndexRow { model: model.name.clone(), version, state };
            rows.extend(states.versions.iter().map(|(&version, state)| row(Some(version), state.clone())));
            if states.versions.is_empty() {
                let reason = states.fault.clone().unwrap_or_default();
                rows.push(row(None, State::Unavailable(reason)));
            }
        }
        rows
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
            busy: tokio::sync::Mutex::default(),
        });
        let mut models = BTreeMap::clone(&self.shared.models.load());
        models.insert(name.clone(), model.clone());
        self.shared.models.store(Arc::new(models));
        model
    }

    fn forget(&self, name: &ModelName) {
        let _changing = self.shared.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut models = BTreeMap::clone(&self.shared.models.load());
        models.remove(name);
        self.shared.models.store(Arc::new(models));
    }

    async fn load_model(&self, model: &Model, principal: &Principal, effort: Effort) -> Result<(), LoadModelError> {
        let _alone = model.busy.lock().await;
        if !self.model(&model.name).is_some_and(|current| std::ptr::eq(&raw const *current, model)) {
            let reason = "it was removed from the repository meanwhile".to_owned();
            return Err(LoadModelError::Failed { model: model.name.clone(), reason });
        }
        let result = self.load_versions(model, principal, effort).await;
        {
            let mut states = model.states();
            states.fault = result.as_ref().err().cloned();
            if let Err(reason) = &result {
                // A mistake in model.toml is now the reason, not that it was unloaded once.
                let unloaded = State::Unavailable(UNLOADED.to_owned());
                for state in states.versions.values_mut().filter(|state| **state == unloaded) {
                    *state = State::Unavailable(reason.clone());
                }
            }
        }
        result.map_err(|reason| LoadModelError::Failed { model: model.name.clone(), reason })
    }

    async fn load_versions(&self, model: &Model, principal: &Principal, effort: Effort) -> Result<(), String> {
        let path = self.shared.path.join(model.name.as_str());
        let (config, config_text) = folder::model_config(&path).map_err(|error| error.to_string())?;
        let (on_disk, strange) = folder::versions(&path).map_err(|error| error.to_string())?;
        for folder in strange {
            tracing::debug!(model = %model.name, folder, "not a version; passed over");
        }
        let selected = config.version_policy.select(&on_disk);
        if selected.is_empty() {
            return Err("no version folder: expected one named by a positive integer, such as 1".to_owned());
        }
        let before = model.slot.live();
        let (mut live, mut failures) = (Vec::new(), Vec::new());
        for &version in selected.iter().filter(|&&version| !before.iter().any(|old| old.version == version)) {
            model.set(version, State::Loading);
        }
        for &version in &selected {
            let old = before.iter().find(|old| old.version == version);
            let statistics = model.states().statistics.entry(version).or_default().clone();
            let source = VersionSource {
                name: &model.name,
                version,
                folder: &path,
                config: &config,
                config_text: &config_text,
                statistics,
            };
            if let Some(old) = old
                && effort == Effort::Changed
                && self.is_unchanged(old, &path, &config_text).await
            {
                live.push(old.clone());
                continue;
            }
            match self.load_version(source, principal).await {
                Ok(loaded) => live.push(Arc::new(loaded)),
                Err(reason) => {
                    match old {
                        Some(old) => live.push(old.clone()),
                        None => model.set(version, State::Unavailable(reason.clone())),
                    }
                    failures.push(format!("version {version}: {reason}"));
                }
            }
        }
        if !failures.is_empty() {
            // What was live goes only when its replacement is: version 1 goes on while version 2 does not load.
            let kept: Vec<_> = before.iter().filter(|old| !live.iter().any(|new| new.version == old.version)).collect();
            live.extend(kept.into_iter().cloned());
        }
        let versions: Vec<_> = live.iter().map(|loaded| loaded.version).collect();
        model.slot.swap(live);
        {
            let mut states = model.states();
            states.versions.retain(|version, _| selected.contains(version) || versions.contains(version));
            states.versions.extend(versions.iter().map(|&version| (version, State::Ready)));
        }
        for old in before.iter().filter(|old| !versions.contains(&old.version)) {
            self.audit_unload(old, principal);
        }
        if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
    }

    async fn load_version(&self, source: VersionSource<'_>, principal: &Principal) -> Result<LoadedModel, String> {
        let (name, version) = (source.name.clone(), source.version);
        let started = std::time::Instant::now();
        // The semaphore is never closed.
        let _turn = self.shared.loads.acquire().await;
        let loaded = loading::load(source, &self.shared.engine, &self.shared.defaults).await;
        match loaded {
            Ok(model) => {
                tracing::info!(model = %name, %version, runtime = %model.runtime(), load_ms = started.elapsed().as_millis(),
                    "model ready");
                self.shared.audit.record(AuditEvent::ModelLoaded {
                    model: name,
                    version,
                    digest: model.digest.clone(),
                    principal: principal.clone(),
                });
                Ok(model)
            }
            Err(error) => {
                self.shared.audit.record(AuditEvent::ModelRefused {
                    model: name,
                    version,
                    principal: principal.clone(),
                });
                Err(error.to_string())
            }
        }
    }

    async fn is_unchanged(&self, old: &LoadedModel, folder: &Path, config_text: &str) -> bool {
        // A turn, as for a load: it reads the model as a whole.
        let _turn = self.shared.loads.acquire().await;
        let path = folder.join(old.version.to_string());
        let digest = tokio::task::spawn_blocking(move || Some(folder::version(&path).ok()?.digest)).await;
        let same_labels = loading::labels(&old.config, folder).is_ok_and(|labels| labels == old.labels);
        old.config_text == config_text && same_labels && matches!(digest, Ok(Some(digest)) if digest == old.digest)
    }

    async fn unload_model(&self, model: &Model, principal: &Principal) {
        let _alone = model.busy.lock().await;
        self.unload_versions(model, principal).await;
    }

    /// With the model's lock held.
    async fn unload_versions(&self, model: &Model, principal: &Principal) {
        let before = model.slot.live();
        for old in &before {
            model.set(old.version, State::Unloading);
            self.audit_unload(old, principal);
        }
        model.slot.swap([]);
        let ended: Vec<_> = before.iter().map(|old| old.ended()).collect();
        let versions: Vec<_> = before.iter().map(|old| old.version).collect();
        drop(before);
        join_all(ended).await;
        for version in versions {
            model.set(version, State::Unavailable(UNLOADED.to_owned()));
        }
    }

    fn audit_unload(&self, old: &LoadedModel, principal: &Principal) {
        tracing::info!(model = %old.name, version = %old.version, "model unloaded");
        let (model, version, principal) = (old.name.clone(), old.version, principal.clone());
        self.shared.audit.record(AuditEvent::ModelUnloaded { model, version, principal });
    }
}

/// Whether a load starts over, or leaves alone what has not changed on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effort {
    Always,
    Changed,
}
