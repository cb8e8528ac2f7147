//! Loading and unloading of the models in the owner's folder.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::future::join_all;
use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::principal::Principal;
use ledge_service::audit_event::AuditEvent;
use ledge_service::readiness::Readiness;

use super::folder::VersionFile;
use super::loaded_model::LoadedModel;
use super::loading::{self, VersionToLoad};
use super::{
    LoadModelError, ManagedModel, ModelFolderError, PinError, Repository, RepositoryModel, UnavailableReason,
    UnloadModelError, VersionState, folder,
};

/// Time that [`Repository::unload_all`] waits for models that were replaced before.
const TEARDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Mode of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadMode {
    /// Load in any case, as after an explicit request.
    Always,
    /// Skip versions that have not changed on disk, and failed ones until their next try is due.
    Changed,
    /// Load only versions with a next try that is due.
    Due,
}

impl LoadMode {
    /// True for a load that somebody requested.
    pub(super) fn is_explicit(self) -> bool {
        self == Self::Always
    }
}

/// One reading of the repository, in progress.
pub struct Refresh {
    /// Ends when each model was loaded, failed or is gone. The other future makes progress only with this one.
    pub loads: BoxFuture<'static, ()>,
    /// Ends when the start of the box is over as far as models matter: each version that this box has served serves
    /// again or has failed, and a model serves, unless all loads have ended.
    pub settled: BoxFuture<'static, ()>,
}

impl Repository {
    /// Brings the loaded models in line with those on disk: loads new and changed ones, unloads those that are gone,
    /// keeps the rest. A model that fails is listed with its reason. Fails only when the folder itself cannot be read.
    pub async fn refresh(&self, principal: &Principal) -> Result<(), ModelFolderError> {
        self.begin_refresh(principal)?.loads.await;
        Ok(())
    }

    /// As [`Self::refresh`], without waiting for the loads.
    pub fn begin_refresh(&self, principal: &Principal) -> Result<Refresh, ModelFolderError> {
        let (mut names, misnamed) = self.shared.sources.models()?;
        for folder in misnamed {
            tracing::warn!(
                name: "repository.folder_skipped",
                folder = %folder.path.display(),
                reason = %folder,
                "a folder of the model repository is not served"
            );
        }
        names.extend(self.managed_versions().keys().cloned());
        let names: BTreeSet<_> = names.into_iter().collect();

        let gone = self.models().into_iter().filter(|model| !names.contains(&model.name)).collect::<Vec<_>>();
        // Registered before any is loaded, so that a request meanwhile gets "loading", not "unknown".
        let models: Vec<_> = names.iter().map(|name| self.model_or_new(name)).collect();
        let (served, all) = (Arc::<Readiness>::default(), Arc::<Readiness>::default());
        let all_latch = all.latch();
        for model in &models {
            model.latches().push(served.latch());
        }

        let (repository, principal) = (self.clone(), principal.clone());
        let loads = async move {
            let removals = gone.iter().map(|model| repository.remove_gone(model, &principal));
            let loads = models.iter().map(|model| repository.load_listed(model, &principal));
            tokio::join!(join_all(removals), join_all(loads));
            repository.forget_gone().await;
            tracing::info!(name: "repository.read", models = models.len(), "model repository read");
            drop(all_latch);
        };

        let repository = self.clone();
        let settled = async move {
            served.wait().await;
            let mut changes = repository.shared.changes.subscribe();
            while !repository.is_serving() {
                tokio::select! {
                    () = all.wait() => return,
                    _ = changes.changed() => {}
                }
            }
        };
        Ok(Refresh { loads: loads.boxed(), settled: settled.boxed() })
    }

    /// Loads one of the models of a reading of the repository.
    async fn load_listed(&self, model: &RepositoryModel, principal: &Principal) {
        if let Err(error) = self.load_model(model, principal, LoadMode::Changed).await {
            if model.has_known_fault() {
                tracing::info!(model = %model.name, %error, "a model is not loaded, as before; the other models are served");
            } else {
                tracing::error!(model = %model.name, %error, "failed to load a model; the other models are served");
            }
        }
        model.settle();
    }

    /// Unloads a model after its folder was removed.
    async fn remove_gone(&self, model: &RepositoryModel, principal: &Principal) {
        let _alone = model.busy.lock().await;
        // An update may have brought it since the names were read.
        if self.managed_version(&model.name).is_some() {
            return;
        }
        self.unload_versions(model, principal).await;
        // A candidate stays; updates decide about it.
        if model.slot.candidate().is_none() {
            self.forget(&model.name);
        }
    }

    /// Brings one model in line with its folder, which may be gone, and leaves all others as they are.
    pub async fn refresh_model(&self, name: &ModelName, principal: &Principal) -> Result<(), LoadModelError> {
        if self.managed_version(name).is_some() {
            return Ok(());
        }
        if self.has_folder(name) {
            // The package has a model of this name.
            return self.load_model(&self.model_or_new(name), principal, LoadMode::Changed).await;
        }
        if let Some(model) = self.model(name) {
            let _alone = model.busy.lock().await;
            self.unload_versions(&model, principal).await;
            if model.slot.candidate().is_none() {
                self.forget(name);
            }
        }
        self.forget_failures(name).await;
        Ok(())
    }

    /// True where a platform manages the model, so that the owner's folder does not count.
    pub fn is_managed(&self, name: &ModelName) -> bool {
        self.managed_version(name).is_some()
    }

    /// Loads a model again from disk and swaps it in; on failure the live versions stay live.
    pub async fn load(&self, name: &ModelName, principal: &Principal) -> Result<(), LoadModelError> {
        self.refuse_managed(name, principal, "model_load")?;
        if !self.has_folder(name) {
            return Err(LoadModelError::Unknown { model: name.clone() });
        }
        self.load_model(&self.model_or_new(name), principal, LoadMode::Always).await
    }

    /// Takes a model out of service and waits until its requests are answered and its memory is freed.
    pub async fn unload(&self, name: &ModelName, principal: &Principal) -> Result<(), UnloadModelError> {
        let model = self.model(name).ok_or_else(|| PinError::UnknownModel { model: name.clone() })?;
        let _alone = model.busy.lock().await;
        self.refuse_managed(name, principal, "model_unload")?;
        self.unload_versions(&model, principal).await;
        // A version that did not load is not tried again either.
        self.forget_failures(name).await;
        Ok(())
    }

    fn refuse_managed(&self, name: &ModelName, by: &Principal, what: &'static str) -> Result<(), ManagedModel> {
        let managed = self.managed_versions().contains_key(name);
        if managed { Err(self.denied(name, by, what)) } else { Ok(()) }
    }

    /// A refusal, audited.
    fn denied(&self, name: &ModelName, by: &Principal, what: &'static str) -> ManagedModel {
        self.shared.audit.record_denied(by, what);
        ManagedModel { model: name.clone() }
    }

    /// Takes every model out of service before the daemon ends: a runtime that is still running while its library is
    /// torn down crashes, and so does one that is still tearing down a replaced model.
    pub async fn unload_all(&self, principal: &Principal) {
        join_all(self.models().iter().map(|model| self.unload_model(model, principal))).await;
        if tokio::time::timeout(TEARDOWN_TIMEOUT, self.shared.engine.wait_until_empty()).await.is_err() {
            tracing::warn!("a model is still in use or being torn down after all models were unloaded");
        }
    }

    pub(super) async fn load_model(
        &self,
        model: &RepositoryModel,
        principal: &Principal,
        mode: LoadMode,
    ) -> Result<(), LoadModelError> {
        let _alone = model.busy.lock().await;
        if !self.is_current(model) {
            let reason = "it was removed from the repository meanwhile".to_owned();
            return Err(LoadModelError::Failed { model: model.name.clone(), reason });
        }
        let result = match self.managed_version(&model.name) {
            None => self.load_owners(model, principal, mode).await,
            Some(_) if mode.is_explicit() => {
                return Err(self.denied(&model.name, principal, "model_load").into());
            }
            Some(release) => {
                let result = self.load_managed(model, &release, principal, mode).await;
                if let Err(reason) = &result {
                    model.states().fault = Some(reason.clone());
                }
                result
            }
        };
        self.shared.changes.send_replace(());
        result.map_err(|reason| LoadModelError::Failed { model: model.name.clone(), reason })
    }

    /// Loads the model from the owner's folder, and records its fault. The caller holds the model's lock.
    pub(super) async fn load_owners(
        &self,
        model: &RepositoryModel,
        principal: &Principal,
        mode: LoadMode,
    ) -> Result<(), String> {
        let result = self.load_versions(model, principal, mode).await;
        let mut states = model.states();
        states.fault = result.as_ref().err().cloned();
        if let Err(reason) = &result {
            // The reason is now the mistake in model.toml, not the earlier unload.
            let unloaded = VersionState::Unavailable(UnavailableReason::Unloaded);
            for state in states.versions.values_mut().filter(|state| **state == unloaded) {
                *state = VersionState::failed(reason);
            }
        }
        result
    }

    fn load_versions<'a>(
        &'a self,
        model: &'a RepositoryModel,
        principal: &'a Principal,
        mode: LoadMode,
    ) -> BoxFuture<'a, Result<(), String>> {
        // Boxed, so that it is compiled here once and not in every crate that awaits it.
        Box::pin(async move {
            let path = self.shared.sources.folder(&model.name);
            let (config, config_text) = folder::model_config(&path).map_err(|error| error.to_string())?;
            let selected = folder::selected_versions(&path, &config).map_err(|error| error.to_string())?;

            let before = model.slot.live();
            let (mut live, mut failures) = (Vec::new(), Vec::new());
            // A failed version keeps its state during the next try, until it has loaded.
            let is_new =
                |version: ModelVersion| mode != LoadMode::Due && !before.iter().any(|old| old.version == version);
            for &version in selected.iter().filter(|&&version| is_new(version)) {
                model.set(version, VersionState::Loading);
            }

            let folders: Vec<_> = selected.iter().map(|version| path.join(version.to_string())).collect();
            let mut wanted = Vec::new();
            for (&version, files) in selected.iter().zip(&folders) {
                let old = before.iter().find(|old| old.version == version);
                let source = VersionToLoad {
                    statistics: model.statistics(version),
                    ..VersionToLoad::new(&model.name, version, (&path, files), (&config, &config_text))
                };
                let is_kept = match mode {
                    LoadMode::Always => false,
                    LoadMode::Changed => match old {
                        Some(old) => self.is_unchanged(old, &source).await,
                        None => false,
                    },
                    LoadMode::Due => !self.is_due(&model.name, version),
                };
                if is_kept {
                    live.extend(old.cloned());
                } else {
                    let known = self.known(&source, mode).await;
                    wanted.push((source, known));
                }
            }

            // Those that this box has served first; they answer before any other is tried.
            wanted.sort_by_key(|(_, known)| !known.is_served());
            let mut is_settled = false;
            for (source, known) in wanted {
                if !known.is_served() && !std::mem::replace(&mut is_settled, true) {
                    self.serve_so_far(model, &live, &before);
                }
                let version = source.version;
                match self.load_known(source, &known, principal).await {
                    Ok(loaded) => {
                        self.audit_load(&loaded, principal);
                        live.push(Arc::new(loaded));
                    }
                    Err(error) => {
                        let reason = error.to_string();
                        match before.iter().find(|old| old.version == version) {
                            Some(old) => live.push(old.clone()),
                            None => model
                                .set(version, VersionState::failed(self.failure_text(&model.name, version, &error))),
                        }
                        failures.push(format!("version {version}: {reason}"));
                    }
                }
            }

            if !failures.is_empty() {
                // A live version is removed only when its replacement is live: version 1 goes on while version 2 does
                // not load.
                let kept: Vec<_> =
                    before.iter().filter(|old| !live.iter().any(|new| new.version == old.version)).collect();
                live.extend(kept.into_iter().cloned());
            }

            let versions: Vec<_> = live.iter().map(|loaded| loaded.version).collect();
            model.slot.swap(live);
            {
                let mut states = model.states();
                states.versions.retain(|version, _| selected.contains(version) || versions.contains(version));
                states.versions.extend(versions.iter().map(|&version| (version, VersionState::Ready)));
            }

            for old in before.iter().filter(|old| !versions.contains(&old.version)) {
                self.audit_unload(old, principal);
            }
            if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
        })
    }

    /// Serves the versions that are loaded, while others of the model are not. The caller holds the model's lock.
    fn serve_so_far(&self, model: &RepositoryModel, live: &[Arc<LoadedModel>], before: &[Arc<LoadedModel>]) {
        if !live.is_empty() {
            let is_replaced = |old: &&Arc<LoadedModel>| live.iter().any(|new| new.version == old.version);
            let kept = before.iter().filter(|old| !is_replaced(old));
            model.slot.swap(live.iter().chain(kept).cloned());
            let ready = live.iter().map(|loaded| (loaded.version, VersionState::Ready));
            model.states().versions.extend(ready);
        }
        model.settle();
        self.shared.changes.send_replace(());
    }

    async fn is_unchanged(&self, old: &LoadedModel, source: &VersionToLoad<'_>) -> bool {
        let VersionToLoad { folder, files, config_text, .. } = *source;
        // The same files of a release are no substitute: they are deleted with the release.
        if old.folder != files || !old.runs_in(&self.runtimes()) {
            return false;
        }
        // Its files are hashed regardless of their times and sizes, and not parsed by any process.
        let (path, parts, digest) = (files.to_owned(), old.config.chain_models(), old.digest.clone());
        let before: Vec<_> = old.files.iter().map(VersionFile::unmarked).collect();
        let hashed = tokio::task::spawn_blocking(move || folder::is_unchanged(&path, parts, &before, &digest)).await;
        let is_same = old.config_text == config_text && matches!(hashed, Ok(Ok(true)));
        // The labels of the files themselves are unchanged with them.
        let named = old.config.output.iter().filter_map(|output| Some((&output.name, output.labels.as_ref()?)));
        let mut labels = named.map(|(name, file)| (old.labels.get(name), folder::labels(folder, file)));
        let same_labels =
            labels.all(|(known, read)| read.is_ok_and(|read| known.is_some_and(|known| **known == *read)));
        let files = loading::pipeline_files(&old.config, folder);
        let same_files = files.is_ok_and(|files| files == old.pipeline_files);
        // One that its faults unloaded gets another chance when somebody asks for it.
        is_same && same_labels && same_files && old.fault().is_none()
    }

    async fn unload_model(&self, model: &RepositoryModel, principal: &Principal) {
        let _alone = model.busy.lock().await;
        let candidate = model.slot.take_candidate();
        self.unload_versions(model, principal).await;
        if let Some(candidate) = candidate {
            let ended = candidate.ended();
            drop(candidate);
            ended.await;
        }
    }

    /// Unloads all live versions. The caller holds the model's lock.
    pub(super) async fn unload_versions(&self, model: &RepositoryModel, principal: &Principal) {
        let before = model.slot.live();
        for old in &before {
            model.set(old.version, VersionState::Unloading);
            self.audit_unload(old, principal);
        }
        model.slot.swap([]);
        let ended: Vec<_> = before.iter().map(|old| old.ended()).collect();
        let versions: Vec<_> = before.iter().map(|old| old.version).collect();
        drop(before);
        join_all(ended).await;
        for version in versions {
            model.set(version, VersionState::Unavailable(UnavailableReason::Unloaded));
        }
    }

    pub(super) fn audit_load(&self, loaded: &LoadedModel, principal: &Principal) {
        let (model, version, digest) = (loaded.name.clone(), loaded.version, loaded.digest.clone());
        self.shared.audit.record(principal, AuditEvent::ModelLoaded { model, version, digest });
        if let Some(to) = loaded.fell_back_to() {
            let (model, version) = (loaded.name.clone(), loaded.version);
            self.shared.audit.record(principal, AuditEvent::ModelFellBack { model, version, to });
        }
    }

    pub(super) fn audit_unload(&self, old: &LoadedModel, principal: &Principal) {
        tracing::info!(name: "model.unloaded", model = %old.name, version = %old.version, "model unloaded");
        let (model, version) = (old.name.clone(), old.version);
        self.shared.audit.record(principal, AuditEvent::ModelUnloaded { model, version });
    }
}
