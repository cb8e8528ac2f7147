//! The model repository, on disk and loaded.
//!
//! Files, in reading order:
//! * `config.rs` - `[repository]`
//! * `sources.rs` - the folders that models come from: the owner's, and the package's
//! * `folder.rs` - a model's folder on disk, checked without a runtime
//! * `reader.rs` - the process that reads the model files of a version
//! * `model_config.rs`, `model_config/` - `model.toml`; the folder has its tests
//! * `limits_config.rs`, `port_config.rs`, `golden_config.rs` - tables of `model.toml`: cache and limits, inputs and
//!   outputs, golden inputs
//! * `feature_config.rs` - inputs of a model that are made of features, in `model.toml`
//! * `feature_elements.rs` - feature values as elements of a tensor
//! * `statistics.rs`, `statistics/` - the counts of one version since the start; `histogram.rs` has distributions,
//!   `full_queue.rs` refusals that go on
//! * `full_queues.rs`, `failing_calls.rs` - the findings about queues that have no room, and about calls that models
//!   fail
//! * `wrong_values.rs` - the findings about answers that are not finite
//! * `runtime_refusal.rs` - the reason why a runtime cannot load a model
//! * `loaded_model.rs` - one version, loaded, warmed up and checked
//! * `running.rs` - its runs, alone and through its pipeline
//! * `slot.rs` - the live versions of one model, and the candidate, behind one atomic pointer
//! * `version_state.rs` - the states of versions
//! * `index.rs` - the index of the repository in Triton's words
//! * `placement.rs` - instances of a model fitted to the cores
//! * `profile.rs` - measurements kept for one CPU, model content and pair of runtime versions
//! * `golden.rs`, `golden_error.rs` - warm-up, and comparison with golden answers
//! * `chain.rs` - the steps of a call of a chain, each a job of the queue of its model
//! * `pipeline_check.rs` - a sample through the pipeline of a model before it serves
//! * `loading.rs` - loads a version: reads files, chooses a runtime, warms up, checks
//! * `tuning.rs` - measures loaded models
//! * `recent_inputs.rs` - the last inputs of callers
//! * `pace.rs` - measures two versions in pairs of runs
//! * `search.rs`, `search/` - the search of `ledge tune`
//! * `version_files.rs` - whether the files of a version are those that were read before
//! * `load_records.rs`, `load_records/` - the versions that this box has served, and loads that failed; `file.rs` is
//!   their file
//! * `load_limit.rs` - the time that a load may take
//! * `load_places.rs` - places for loads of served, new and failed versions
//! * `known.rs` - loads a version by the facts known about it, and remembers the outcome
//! * `loads.rs` - loads and unloads models of the owner's folder
//! * `compiled.rs` - removes the compiled models of versions that are not used any more
//! * `libraries.rs` - moves every model to another library of its runtime
//! * `managed.rs`, `managed_version.rs` - models whose live version updates decide
//! * `check.rs` - tries every version in every runtime without serving any
//! * `candidate.rs`, `candidates.rs` - a version that an update tries: the requests that it sees
//! * `observations.rs` - counts and times of a candidate and of the version before it
//! * `trial_mark.rs` - a mark on the disk while a version on trial is loaded or runs first
//! * `crashed.rs` - models that ended their processes: golden inputs are tried again, and findings name them
//! * `agreement.rs` - comparison of two answers to one request
//! * `comparison.rs` - comparison of the answers of two models on many inputs
//!
//! Invariants:
//! * A live version is never taken away before its replacement is ready. A version that does not load disturbs no
//!   other.
//! * Loads of one model never overlap. Different models are loaded in parallel.
//! * A request pins the version that it finds in the slot, and keeps it until it is answered.
//! * A call to a model without a candidate pays only for reading an empty field.
//! * Statistics belong to the version, not to its loaded copy: they survive a reload. A restart of the daemon resets
//!   them.
//! * Cached answers and the state of limits belong to the loaded version (`LoadedModel::attached`) and are dropped with
//!   it. No answer outlives the weights that it came from.
//! * The load of a version that this box has not served, or that failed to load last time, delays no other load. It
//!   runs in a process and on separate threads until it has passed its golden inputs.
//! * `load_records.rs`, `load_limit.rs` and `agreement.rs` are pure: no clock, no disk.
//! * Both folders of `sources.rs` are only read.
//!
//! # One load
//!
//! `Repository::load_model` holds the model's lock, so that loads of one model never overlap, and
//! 1. reads `model.toml` and the version folders; the policy selects versions. `known.rs` asks `load_records.rs`
//!    whether this box has served these files, with this `model.toml` and these runtimes, or failed to load them. A
//!    served version gets one of the places for loads at once. Any other gets another place, and does steps 2 to 7 in a
//!    separate process first, with a limit; a failed one only when its pause is over;
//! 2. `folder.rs` checks each version's files without a runtime: empty, cut off, of another kind, external data outside
//!    the folder. Where the version is to run in another process, that one reads the model file (`reader.rs`), and this
//!    one checks the facts that it reports. All are opened, like labels and golden inputs, through `contained.rs`,
//!    which opens no file outside of the folder, not even through a link;
//! 3. `loading.rs` orders the runtimes: the one in the version's profile first, if there is a profile. The profile's
//!    name is a hash of the files' digest, the CPU, the number of cores and the runtimes' library names, so anything
//!    else is another profile;
//! 4. a separate thread loads the instance, pinned to the cores that models use, because a runtime's threads inherit
//!    them. With a memory budget loads of instances take turns, so that the memory that each adds to the process can be
//!    measured;
//! 5. `warm_up.rs` runs zeros in every batch size of the batch policy; only then are requests joined into batches.
//!    Without batching a golden input serves the same purpose. Later instances run the same zeros before they serve;
//! 6. a drawing goes through the pipeline of a model that takes photographs (`pipeline_check.rs`): one that cannot
//!    answer is refused. Golden inputs run through the model itself, and their answers are compared. A wrong answer
//!    counts as a refusal, so `auto` goes on to the next runtime. `golden.rs` distinguishes a wrong answer from a
//!    missing one by type: only after a wrong one steps 4 to 6 are repeated, in ONNX Runtime with exact instructions
//!    for int8 if those of the CPU are not exact, and then with the version's float original, `model.float.*`, if it
//!    has one. Its file counts in the digest, so it shares the model's profile, but no profile is used for it or made
//!    from it. The refused runtimes and files are listed in `LoadedModel::passed_over`. If the version passed all this
//!    before and no file of the model has changed since, only the first golden input is run, and the rest only if its
//!    answer is wrong;
//! 7. without a profile and with two runtimes to choose from, steps 4 to 6 are done in both, and the median of up to 30
//!    runs in turns, one request each, decides. The runtime is saved as a profile; only `ledge tune` measures threads,
//!    instances and batches. The other copy is torn down before the load goes on;
//! 8. only then the slot's pointer is swapped. Requests that pinned the old version finish on it; its instances are
//!    unloaded after the last one.
//!
//! The outcome is in `load_records.json`. `Repository::retry_failed` loads a failed version again after a minute,
//! doubling to a day.
//!
//! A failure at any step leaves every live version as it was, and becomes the new version's reason in the index. A load
//! or unload over HTTP runs to its end even when the caller hangs up.

pub mod agreement;
pub mod candidate;
mod candidates;
pub mod comparison;
mod chain;
mod check;
mod compiled;
pub mod config;
mod crashed;
pub mod feature_config;
pub mod feature_elements;
mod folder;
mod failing_calls;
mod full_queues;
mod golden;
mod golden_config;
mod golden_error;
mod index;
mod known;
pub mod libraries;
mod limits_config;
mod load_limit;
mod load_places;
pub mod load_records;
pub mod loaded_model;
mod loading;
mod loads;
pub mod managed;
mod managed_version;
pub mod model_config;
pub mod observations;
pub mod pace;
mod pipeline_check;
mod placement;
mod port_config;
pub mod profile;
mod reader;
mod recent_inputs;
mod runtime_refusal;
pub mod search;
mod running;
pub mod slot;
pub mod sources;
pub mod statistics;
pub mod trial_mark;
pub mod tuning;
mod version_files;
mod version_state;
mod wrong_values;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ledge_base::names::{ModelName, ModelVersion};
use ledge_engine::Runtimes;
use ledge_service::audit_event::AuditSink;
use ledge_service::readiness::ReadinessLatch;
use tokio::sync::watch;

use crate::scheduling::engine::InferScheduler;
pub use candidate::{Candidate, CandidateShare, Pinned};
pub use check::{RuntimeTrial, TrialLoad};
pub use folder::ModelFolderError;
pub use golden::{GoldenScore, score as golden_score};
pub use golden_error::GoldenError;
pub use index::ModelIndexEntry;
use load_places::LoadSemaphores;
use load_records::file::LoadRecordFile;
pub use loaded_model::{LoadedModel, ModelDefaults};
pub use loading::{Predecessor, VersionLoadError};
pub use loads::{LoadMode, Refresh};
pub use managed_version::{ManagedState, ManagedVersion};
pub use observations::{ObservationConfig, ObservationSnapshot, Observations};
pub use runtime_refusal::RuntimeRefusal;
use slot::ModelSlot;
pub use sources::ModelFolders;
use statistics::VersionStatistics;
pub use version_state::{ModelState, UnavailableReason, VersionState};

/// Reason why a requested model or version is not available.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    #[error("Request for unknown model: '{model}' is not found")]
    UnknownModel { model: ModelName },
    /// The model does not serve this version.
    #[error("Request for unknown model: '{model}' version {version} is not found")]
    UnknownVersion { model: ModelName, version: ModelVersion },
    /// The model is there, but no version of it is loaded.
    #[error("Request for unknown model: '{model}' has no available versions: {reason}")]
    NoVersion { model: ModelName, reason: String },
    /// Its first load goes on.
    #[error("model '{model}' is being loaded")]
    Loading { model: ModelName },
}

impl PinError {
    /// True when the model, and the version if one was requested, is at least known.
    pub fn is_known(&self) -> bool {
        matches!(self, Self::NoVersion { .. } | Self::Loading { .. })
    }
}

/// Reason why a load failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadModelError {
    #[error("failed to load '{model}', no such folder in the model repository")]
    Unknown { model: ModelName },
    /// At least one version did not load. Versions that were live before still are.
    #[error("failed to load '{model}': {reason}")]
    Failed { model: ModelName, reason: String },
    #[error(transparent)]
    Managed(#[from] ManagedModel),
}

/// Reason why a model is not unloaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnloadModelError {
    #[error(transparent)]
    Unknown(#[from] PinError),
    #[error(transparent)]
    Managed(#[from] ManagedModel),
}

/// The error for a model with a live version that only signed updates decide.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("model '{model}' is managed by signed updates: only updates load and unload it; see `ledge update --help`")]
pub struct ManagedModel {
    pub model: ModelName,
}

/// A handle to the model repository. Clones share it.
#[derive(Debug, Clone)]
pub struct Repository {
    shared: Arc<RepositoryInner>,
}

#[derive(Debug)]
struct RepositoryInner {
    sources: ModelFolders,
    engine: InferScheduler,
    defaults: ModelDefaults,
    audit: AuditSink,
    places: LoadSemaphores,
    /// Set in the process that serves.
    records: OnceLock<LoadRecordFile>,
    /// Notified when the load of a model has ended, and when a model is gone.
    changes: watch::Sender<()>,
    /// The models that updates manage, loaded or not.
    managed: Mutex<BTreeMap<ModelName, ManagedVersion>>,
    models: arc_swap::ArcSwap<BTreeMap<ModelName, Arc<RepositoryModel>>>,
    /// Serializes changes of the map above.
    changing: Mutex<()>,
    /// Held while models move to another library.
    moving: tokio::sync::Mutex<()>,
}

/// A model of the repository, whether it loads or not.
#[derive(Debug)]
struct RepositoryModel {
    name: ModelName,
    slot: ModelSlot,
    states: Mutex<ModelStates>,
    /// Held during a load or unload.
    busy: Arc<tokio::sync::Mutex<()>>,
    /// Held by each reading of the repository until those of its versions that this box has served serve again or
    /// failed.
    latches: Mutex<Vec<ReadinessLatch>>,
    /// True when the last load failed as the one before it.
    has_known_fault: AtomicBool,
}

#[derive(Debug, Default)]
struct ModelStates {
    versions: BTreeMap<ModelVersion, VersionState>,
    /// Fault of the model as a whole.
    fault: Option<String>,
    statistics: BTreeMap<ModelVersion, Arc<VersionStatistics>>,
}

impl RepositoryModel {
    fn states(&self) -> MutexGuard<'_, ModelStates> {
        // Nothing panics under this lock.
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, version: ModelVersion, state: VersionState) {
        self.states().versions.insert(version, state);
    }

    /// Returns the reason why there is nothing to pin.
    fn not_live(&self, version: Option<ModelVersion>) -> PinError {
        let (model, states) = (self.name.clone(), self.states());
        if let Some(version) = version.filter(|version| !states.versions.contains_key(version)) {
            return PinError::UnknownVersion { model, version };
        }
        let state =
            version.map_or_else(|| states.versions.last_key_value().map(|(_, s)| s), |v| states.versions.get(&v));
        let reason = match state {
            Some(VersionState::Unavailable(reason)) => reason.to_string(),
            Some(VersionState::Loading) => return PinError::Loading { model },
            _ => states.fault.clone().unwrap_or_else(|| "not loaded".to_owned()),
        };
        PinError::NoVersion { model, reason }
    }

    fn latches(&self) -> MutexGuard<'_, Vec<ReadinessLatch>> {
        // Nothing panics under this lock.
        self.latches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Declares that no request has to wait for the model any more.
    fn settle(&self) {
        self.latches().clear();
    }

    fn has_known_fault(&self) -> bool {
        self.has_known_fault.load(Ordering::Relaxed)
    }

    fn set_known_fault(&self, is_known: bool) {
        self.has_known_fault.store(is_known, Ordering::Relaxed);
    }

    /// True when there is nothing to pin yet, because the first load goes on.
    fn is_loading(&self, version: Option<ModelVersion>) -> bool {
        if self.slot.pin(version).is_some() {
            return false;
        }
        let states = self.states();
        if states.versions.is_empty() {
            return states.fault.is_none();
        }
        let is_asked = |known: &ModelVersion| version.is_none_or(|version| version == *known);
        states.versions.iter().any(|(known, state)| is_asked(known) && *state == VersionState::Loading)
    }

    /// True when a version answers.
    fn is_serving(&self) -> bool {
        self.slot.live().iter().any(|live| live.fault().is_none())
    }

    /// True when a version should answer, or the model has none yet.
    fn should_serve(&self) -> bool {
        let unloaded = VersionState::Unavailable(UnavailableReason::Unloaded);
        let states = self.states();
        states.fault.is_some() || states.versions.is_empty() || states.versions.values().any(|state| *state != unloaded)
    }

    fn statistics(&self, version: ModelVersion) -> Arc<VersionStatistics> {
        self.states().statistics.entry(version).or_default().clone()
    }
}

impl Repository {
    /// A repository over these folders, with nothing loaded yet.
    ///
    /// `parallel_loads` bounds how many models that this box has served are loaded side by side, and how many new ones.
    pub fn new(
        sources: ModelFolders,
        engine: InferScheduler,
        defaults: ModelDefaults,
        parallel_loads: usize,
        audit: AuditSink,
    ) -> Self {
        let shared = RepositoryInner {
            sources,
            engine,
            defaults,
            audit,
            places: LoadSemaphores::new(parallel_loads),
            records: OnceLock::new(),
            changes: watch::Sender::default(),
            managed: Mutex::default(),
            models: arc_swap::ArcSwap::default(),
            changing: Mutex::default(),
            moving: tokio::sync::Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The runtimes that models are loaded into.
    pub fn runtimes(&self) -> Runtimes {
        self.shared.engine.runtimes()
    }

    /// The engine that runs the models.
    pub fn engine(&self) -> &InferScheduler {
        &self.shared.engine
    }

    /// The owner's folder on disk.
    pub fn path(&self) -> &Path {
        self.shared.sources.owners()
    }

    /// True when the owner or the package has a model of this name.
    pub fn has_folder(&self, name: &ModelName) -> bool {
        self.shared.sources.folder(name).is_dir()
    }

    /// True when these files belong to a model of the owner or of the package, and not to a release.
    pub fn is_of_folder(&self, files: &Path) -> bool {
        self.shared.sources.has(files)
    }

    /// Pins a version without answering a request: no candidate is drawn and nothing is counted.
    pub fn pin(&self, name: &ModelName, version: Option<ModelVersion>) -> Result<Arc<LoadedModel>, PinError> {
        self.pinned(name, version, |slot| slot.pin(version))
    }

    /// Pins the version that answers one request. A candidate may get its share of the requests without a version.
    pub fn pin_call(&self, name: &ModelName, version: Option<ModelVersion>) -> Result<Pinned, PinError> {
        self.pinned(name, version, |slot| slot.pin_call(version))
    }

    fn pinned<T>(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
        pin: impl FnOnce(&ModelSlot) -> Option<T>,
    ) -> Result<T, PinError> {
        let models = self.shared.models.load();
        let model = models.get(name).ok_or_else(|| PinError::UnknownModel { model: name.clone() })?;
        pin(&model.slot).ok_or_else(|| model.not_live(version))
    }

    /// True while a call would find no version only because the load goes on. A model that is not known does not load.
    pub fn is_loading(&self, name: &ModelName, version: Option<ModelVersion>) -> bool {
        self.model(name).is_some_and(|model| model.is_loading(version))
    }

    /// Waits until [`Self::is_loading`] is false: the model serves, or says why not. For a version that this box has
    /// not served, which may never load, it waits `patience` at most.
    pub async fn wait_while_loading(&self, name: &ModelName, version: Option<ModelVersion>, patience: Duration) {
        let give_up = tokio::time::Instant::now() + patience;
        let mut changes = self.shared.changes.subscribe();
        while self.is_loading(name, version) {
            let was_served = self.model(name).is_some_and(|model| !model.latches().is_empty());
            tokio::select! {
                next = changes.changed() => if next.is_err() { return },
                () = tokio::time::sleep_until(give_up), if !was_served => return,
            }
        }
    }

    /// The live versions of a model, ascending.
    pub fn live(&self, name: &ModelName) -> Result<Vec<Arc<LoadedModel>>, PinError> {
        let model = self.model(name).ok_or_else(|| PinError::UnknownModel { model: name.clone() })?;
        Ok(model.slot.live())
    }

    /// Every live version of every model, and the candidates.
    pub fn all_live(&self) -> Vec<Arc<LoadedModel>> {
        let of_model = |model: &Arc<RepositoryModel>| {
            let (mut live, candidate) = (model.slot.live(), model.slot.candidate());
            live.extend(candidate.map(|(candidate, _)| candidate));
            live
        };
        self.models().iter().flat_map(of_model).collect()
    }

    /// True when a model answers, or when no model has to: the repository is empty, or all were unloaded on request. A
    /// model that unloads its instances while idle counts as answering.
    pub fn is_serving(&self) -> bool {
        let models = self.models();
        models.iter().any(|model| model.is_serving()) || !models.iter().any(|model| model.should_serve())
    }

    fn models(&self) -> Vec<Arc<RepositoryModel>> {
        self.shared.models.load().values().cloned().collect()
    }

    fn model(&self, name: &ModelName) -> Option<Arc<RepositoryModel>> {
        self.shared.models.load().get(name).cloned()
    }

    fn model_or_new(&self, name: &ModelName) -> Arc<RepositoryModel> {
        let _changing = self.shared.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = self.model(name) {
            return model;
        }
        let model = Arc::new(RepositoryModel {
            name: name.clone(),
            slot: ModelSlot::default(),
            states: Mutex::default(),
            busy: Arc::default(),
            latches: Mutex::default(),
            has_known_fault: AtomicBool::default(),
        });
        let mut models = BTreeMap::clone(&self.shared.models.load());
        models.insert(name.clone(), model.clone());
        self.shared.models.store(Arc::new(models));
        model
    }

    /// True when the model was not forgotten meanwhile.
    fn is_current(&self, model: &RepositoryModel) -> bool {
        self.model(&model.name).is_some_and(|current| std::ptr::eq(&raw const *current, model))
    }

    fn forget(&self, name: &ModelName) {
        let _changing = self.shared.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut models = BTreeMap::clone(&self.shared.models.load());
        models.remove(name);
        self.shared.models.store(Arc::new(models));
        self.shared.changes.send_replace(());
    }
}
