//! Models that updates manage: their live version is the one that the update state names, not the one in the owner's
//! folder.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_identity::sealing::{EncryptedFolder, EncryptionPurpose};
use tokio::sync::OwnedMutexGuard;

use super::loaded_model::LoadedModel;
use super::loading::{Predecessor, VersionLoadError, VersionToLoad};
use super::loads::LoadMode;
pub use super::managed_version::{ManagedState, ManagedVersion};
use super::observations::Observations;
use super::{Repository, RepositoryModel, VersionState, folder};

impl Repository {
    /// Sets the models that updates manage. Call it before the first refresh, which loads them.
    pub fn manage(&self, managed: BTreeMap<ModelName, ManagedVersion>) {
        *self.managed_versions() = managed;
    }

    /// State of a model that updates manage; `None` for any other.
    pub fn managed(&self, name: &ModelName) -> Option<ManagedState> {
        let release = self.managed_version(name)?;
        let model = self.model(name);
        let live = model.as_ref().map(|model| model.slot.live()).unwrap_or_default();
        let fault = if live.iter().any(|live| live.is_of(&release)) {
            None
        } else {
            let states = model.as_ref().map(|model| model.states());
            Some(states.and_then(|states| states.fault.clone()).unwrap_or_else(|| "not loaded".to_owned()))
        };
        Some(ManagedState { release, fault })
    }

    /// Loads a release next to the live versions, in the runtime and with the profile of the default one unless its
    /// model config names a runtime; no request sees it yet.
    pub async fn load_beside(
        &self,
        name: &ModelName,
        release: &ManagedVersion,
    ) -> Result<Arc<LoadedModel>, VersionLoadError> {
        // A model that does not exist yet has no other load to wait for.
        let model = self.model(name);
        let _alone = match &model {
            Some(model) => Some(model.busy.lock().await),
            None => None,
        };
        let statistics = model.as_ref().map(|model| model.statistics(release.version)).unwrap_or_default();
        let predecessor = model.as_ref().and_then(|model| Some(model.slot.pin(None)?.as_predecessor()));
        let loaded = self.load_release(name, release, statistics, LoadMode::Always, predecessor).await?;
        tracing::info!(model = %name, version = %loaded.version, "release loaded next to the live version");
        Ok(Arc::new(loaded))
    }

    /// Makes a loaded release the live version, and ends its candidacy. Requests that pinned the previous version
    /// finish on it; its handle is returned, to be kept for [`Self::restore`] or dropped. With `observations` the
    /// following requests are counted there as the candidate's.
    pub async fn activate(
        &self,
        name: &ModelName,
        loaded: Arc<LoadedModel>,
        release: ManagedVersion,
        observations: Option<Arc<Observations>>,
    ) -> Option<Arc<LoadedModel>> {
        // From here on no refresh forgets the model because it has no owner's folder.
        self.managed_versions().insert(name.clone(), release);
        let (model, _alone) = self.lock_model(name).await;
        let before = self.go_live(&model, &loaded, observations);
        if let Some(before) = before.as_ref().filter(|before| before.version != loaded.version) {
            loaded.statistics.follow(&before.statistics);
        }
        self.follow_library(&model).await;
        before
    }

    /// Goes back to a release, or with `None` to the owner's folder; a model that the owner does not have is removed.
    /// If `kept` is the wanted version it goes live at once; otherwise it is loaded, and the live versions stay when
    /// that fails.
    pub async fn restore(
        &self,
        name: &ModelName,
        to: Option<ManagedVersion>,
        kept: Option<Arc<LoadedModel>>,
    ) -> Result<(), String> {
        let (model, _alone) = self.lock_model(name).await;
        match to {
            Some(release) => self.restore_release(&model, release, kept).await,
            None => self.restore_owners(&model, kept).await,
        }
    }

    async fn restore_release(
        &self,
        model: &RepositoryModel,
        release: ManagedVersion,
        kept: Option<Arc<LoadedModel>>,
    ) -> Result<(), String> {
        let mut at_hand = kept.into_iter().chain(model.slot.live());
        let loaded = if let Some(loaded) = at_hand.find(|loaded| loaded.is_of(&release)) {
            loaded
        } else {
            let statistics = model.statistics(release.version);
            let loaded = self.load_release(&model.name, &release, statistics, LoadMode::Always, None).await;
            Arc::new(loaded.map_err(|error| error.to_string())?)
        };
        self.managed_versions().insert(model.name.clone(), release);
        drop(self.go_live(model, &loaded, None));
        drop(loaded);
        self.follow_library(model).await;
        Ok(())
    }

    /// Moves a version that has just gone live, and was loaded before its runtime got another library. The caller holds
    /// the model's lock.
    async fn follow_library(&self, model: &RepositoryModel) {
        if let Some(release) = self.managed_version(&model.name)
            && let Err(reason) = self.load_managed(model, &release, &Principal::Local, LoadMode::Changed).await
        {
            tracing::error!(model = %model.name, reason, "a version that went live stays in the library that it was loaded with");
        }
    }

    async fn restore_owners(&self, model: &RepositoryModel, kept: Option<Arc<LoadedModel>>) -> Result<(), String> {
        let path = self.shared.sources.folder(&model.name);
        let is_owners = |loaded: &Arc<LoadedModel>| loaded.folder.starts_with(&path);
        if let Some(kept) = kept.filter(is_owners) {
            drop(self.go_live(model, &kept, None));
        } else if !path.is_dir() {
            self.managed_versions().remove(&model.name);
            drop(model.slot.take_candidate());
            // Do not wait until its memory is free: the caller may still hold a handle.
            self.serve(model, Vec::new());
            self.forget(&model.name);
            return Ok(());
        } else {
            drop(model.slot.take_candidate());
        }

        // Loads other versions that the owner's policy selects, and those that have changed on disk since.
        let result = self.load_owners(model, &Principal::Local, LoadMode::Changed).await;
        let owners: Vec<_> = model.slot.live().into_iter().filter(is_owners).collect();
        if owners.is_empty() {
            return result;
        }

        self.managed_versions().remove(&model.name);
        self.serve(model, owners);
        if let Err(reason) = result {
            tracing::warn!(model = %model.name, reason, "went back to the owner's folder, but not every version in it loads");
        }
        Ok(())
    }

    /// Loads the live version of a managed model at the start. Live versions stay, except one that stands in for a
    /// release with a due trial.
    pub(super) async fn load_managed(
        &self,
        model: &RepositoryModel,
        release: &ManagedVersion,
        principal: &Principal,
        mode: LoadMode,
    ) -> Result<(), String> {
        let live = model.slot.live();
        let runtimes = self.runtimes();
        let moves = live.iter().any(|live| !live.runs_in(&runtimes));
        let is_live = live.iter().any(|live| live.is_of(release));
        if !moves && (is_live || !live.is_empty() && mode != LoadMode::Due) {
            return Ok(());
        }

        let owners = self.shared.sources.folder(&model.name);
        if !is_live {
            model.set(release.version, VersionState::Loading);
        }
        match self.load_release(&model.name, release, model.statistics(release.version), mode, None).await {
            Ok(loaded) => {
                if owners.is_dir() {
                    tracing::warn!(model = %model.name, version = %release.version, folder = %owners.display(),
                        "this model is managed by updates: the owner's folder of the same name is ignored");
                }
                let loaded = Arc::new(loaded);
                if is_live {
                    // The same version in another library: an update goes on watching it, and comparing a candidate
                    // with it.
                    self.audit_load(&loaded, principal);
                    self.serve(model, vec![loaded]);
                } else {
                    drop(self.go_live(model, &loaded, None));
                }
                Ok(())
            }
            Err(error) => {
                let reason = format!("version {}, managed by updates: {error}", release.version);
                if is_live {
                    return Err(reason);
                }
                if owners.is_dir() {
                    // Its faults are recorded in the states.
                    let _ = self.load_owners(model, principal, LoadMode::Changed).await;
                }
                let stand_in = model.slot.live().last().map(|live| live.version.get());
                tracing::error!(model = %model.name, reason, stand_in,
                    "failed to load a model that updates manage; the owner's version is served instead, if there is one");
                let mut states = model.states();
                let version = states.versions.entry(release.version).or_insert(VersionState::Loading);
                if *version != VersionState::Ready {
                    *version = VersionState::failed(&reason);
                }
                Err(reason)
            }
        }
    }

    async fn load_release(
        &self,
        name: &ModelName,
        release: &ManagedVersion,
        statistics: Arc<super::statistics::VersionStatistics>,
        mode: LoadMode,
        predecessor: Option<Predecessor>,
    ) -> Result<LoadedModel, VersionLoadError> {
        let (folder, sealer) = (release.folder.clone(), self.shared.defaults.sealer.clone());
        let opening =
            tokio::task::spawn_blocking(move || EncryptedFolder::find_open(&folder, EncryptionPurpose::Model, &sealer));
        let opened =
            opening.await.map_err(|panic| VersionLoadError::Sealed(format!("opening the model panicked: {panic}")))?;
        // Held until the model is loaded and its golden inputs have run: every runtime finds the files open.
        let (home, opened) = opened.map_err(|error| VersionLoadError::Sealed(error.to_string()))?;
        let folder = opened.as_ref().map_or(release.folder.as_path(), |opened| opened.path());
        let (config, config_text) = folder::model_config(folder)?;
        let source = VersionToLoad {
            name,
            version: release.version,
            folder,
            files: folder,
            config: &config,
            config_text: &config_text,
            golden_min: release.golden_min,
            statistics,
            sealed: home.as_ref(),
            on_trial: mode == LoadMode::Always,
            predecessor: predecessor.as_ref(),
        };
        self.load_version(source, &Principal::Local, mode).await
    }

    /// Makes `loaded` the only live version and returns the previous default one. The caller holds the model's lock.
    fn go_live(
        &self,
        model: &RepositoryModel,
        loaded: &Arc<LoadedModel>,
        observations: Option<Arc<Observations>>,
    ) -> Option<Arc<LoadedModel>> {
        let before = model.slot.live();
        let version = loaded.version;
        {
            let mut states = model.states();
            states.fault = None;
            states.versions = BTreeMap::from([(version, VersionState::Ready)]);
            states.statistics.insert(version, loaded.statistics.clone());
        }
        model.slot.promote(loaded.clone(), observations);
        if !before.iter().any(|old| Arc::ptr_eq(old, loaded)) {
            self.audit_load(loaded, &Principal::Local);
        }
        for old in before.iter().filter(|old| !Arc::ptr_eq(old, loaded)) {
            self.audit_unload(old, &Principal::Local);
        }
        before.into_iter().next_back().filter(|old| !Arc::ptr_eq(old, loaded))
    }

    /// Serves only these of the live versions. The caller holds the model's lock.
    fn serve(&self, model: &RepositoryModel, live: Vec<Arc<LoadedModel>>) {
        let before = model.slot.live();
        {
            let mut states = model.states();
            states.versions.retain(|_, state| *state != VersionState::Ready);
            states.versions.extend(live.iter().map(|live| (live.version, VersionState::Ready)));
        }
        for old in before.iter().filter(|old| !live.iter().any(|live| Arc::ptr_eq(old, live))) {
            self.audit_unload(old, &Principal::Local);
        }
        model.slot.swap(live);
    }

    /// Returns the model with its lock held, and creates it if needed.
    async fn lock_model(&self, name: &ModelName) -> (Arc<RepositoryModel>, OwnedMutexGuard<()>) {
        loop {
            let model = self.model_or_new(name);
            let alone = model.busy.clone().lock_owned().await;
            if self.is_current(&model) {
                return (model, alone);
            }
        }
    }

    pub(super) fn managed_versions(&self) -> MutexGuard<'_, BTreeMap<ModelName, ManagedVersion>> {
        // Nothing panics under this lock.
        self.shared.managed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn managed_version(&self, name: &ModelName) -> Option<ManagedVersion> {
        self.managed_versions().get(name).cloned()
    }
}

impl LoadedModel {
    /// The runtime and the profile in which a version that follows is compared with it.
    pub fn as_predecessor(&self) -> Predecessor {
        Predecessor { version: self.version, runtime: self.runtime(), profile: self.profile.clone() }
    }

    /// True when it was loaded from that release.
    pub(super) fn is_of(&self, release: &ManagedVersion) -> bool {
        self.version == release.version && self.folder == release.folder
    }
}
