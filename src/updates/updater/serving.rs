//! The versions that requests see: the live one, and the share that is mirrored to or answered by the next.

use std::sync::Arc;
use std::time::Instant;

use ledge_models::repository::{LoadedModel, ManagedVersion};

use super::Updater;
use crate::artifact::{Artifact, ArtifactKind};
use crate::preflight;
use crate::state::{InstalledRelease, RollbackCause, RollbackReason, SubjectState, UpdateAction, UpdateEvent};

impl Updater {
    /// Waits until the models that are not live have freed their memory: a process that ends while a runtime still
    /// tears one down crashes.
    pub(super) async fn release_models(&mut self) {
        for (subject, trial_runtime) in std::mem::take(&mut self.trial_runtimes) {
            let models = trial_runtime.into_models();
            self.parts.repository.release_candidate(&subject.name).await;
            for model in models {
                // A model that is live by now is not ended here.
                if Arc::strong_count(&model) == 1 {
                    self.parts.repository.end(model).await;
                }
            }
        }
    }

    /// Replaces a live version that did not load at this start by the previous one; for good if it is on trial.
    pub(super) async fn fall_back_if_not_loaded(&mut self, subject: &Artifact) {
        let state = self.state(subject);
        let (ArtifactKind::Model, Some(live)) = (subject.kind, state.live().cloned()) else { return };
        let fault = self.parts.repository.managed(&subject.name).and_then(|managed| managed.fault);
        let Some(fault) = fault else { return };
        tracing::error!(
            %subject, version = %live.version, reason = fault,
            "the live version did not load at this start"
        );
        if state.next_action() == UpdateAction::Soak {
            self.advance(subject, UpdateEvent::Failed(RollbackReason::new(RollbackCause::Load, fault))).await;
            return;
        }

        // It did load once, and may again: a runtime that is missing for a while must not cost a box its releases. The
        // state stays, and the next start tries it again.
        let Some(previous) = &state.previous else { return };
        let managed = self.managed(subject, previous, &state);
        match self.parts.repository.restore(&subject.name, Some(managed), None).await {
            Ok(()) => {
                tracing::warn!(
                    %subject, version = %previous.version,
                    "the previous version is served until the next start"
                );
            }
            Err(reason) => {
                tracing::error!(
                    %subject, version = %previous.version, reason,
                    "the previous version did not load either"
                );
            }
        }
    }

    /// Returns true if a version has no live one to be compared with: it is the first of its model.
    pub(super) fn has_no_incumbent(&self, subject: &Artifact) -> bool {
        let state = self.persisted.subjects.get(subject);
        let sees_requests =
            state.is_some_and(|state| matches!(state.next_action(), UpdateAction::Mirror | UpdateAction::Share));
        sees_requests && self.parts.repository.pin(&subject.name, None).is_err()
    }

    /// Ends the mirroring, sharing and watching of a trial.
    pub(super) async fn end_trial(&mut self, subject: &Artifact, state: &SubjectState) {
        let repository = self.parts.repository.clone();
        // Its last requests end on it, without waiting for them here.
        repository.set_candidate(&subject.name, None);
        if let Some(release) = state.live() {
            let managed = self.managed(subject, release, state);
            // It is live already: this only ends the counting.
            if let Err(reason) = repository.restore(&subject.name, Some(managed), None).await {
                tracing::error!(%subject, reason, "the live version cannot be restored after the trial");
            }
        }
    }

    /// Watches the new version again after a start during its soak, in which it is live.
    pub(super) async fn watch_live(&mut self, subject: &Artifact, state: &SubjectState) {
        let Some(trial) = state.trial.as_ref().filter(|_| state.next_action() == UpdateAction::Soak) else { return };
        let Some(observations) = self.trial_runtime(subject).watch_again(trial) else { return };
        let managed = self.managed(subject, &trial.release, state);
        let repository = self.parts.repository.clone();
        // Not the owner's version of the same number, which is served where a release does not load.
        let live = repository.pin(&subject.name, Some(trial.release.version));
        if let Some(live) = live.ok().filter(|live| live.folder == managed.folder) {
            drop(repository.activate(&subject.name, live, managed, Some(observations)).await);
        }
    }

    /// Shows requests the new version as far as its stage allows.
    pub(super) fn show_requests(&mut self, subject: &Artifact, state: &SubjectState) {
        let name = subject.name.clone();
        let candidate = self.trial_runtime(subject).candidate(state);
        if let Some(changed) = candidate {
            self.parts.repository.set_candidate(&name, changed);
        }
    }

    /// Makes the state's live version live.
    pub(super) async fn switch(&mut self, subject: &Artifact, state: &SubjectState) {
        let live = state.live().cloned();
        if self.trial_runtime(subject).serving == live || !self.trial_runtime(subject).is_due() {
            return;
        }
        let is_applied = match subject.kind {
            ArtifactKind::Model => None,
            // Settings are read when the daemon starts.
            ArtifactKind::Configuration => Some(false),
            ArtifactKind::Package => Some(true),
            ArtifactKind::Runtime => match self.move_to_library_of(subject, live.as_ref()).await {
                Ok(()) => Some(true),
                Err(reason) => {
                    tracing::error!(%subject, reason, "not every model runs in the previous library; trying again later");
                    self.trial_runtime(subject).pause(&RollbackReason::new(RollbackCause::Load, reason));
                    return;
                }
            },
        };
        if let Some(is_applied) = is_applied {
            self.trial_runtime(subject).serving = live;
            if !is_applied {
                tracing::info!(name: "update.restart_requested", %subject, "restarting the daemon to apply an update");
                self.parts.shutdown.request_restart();
            }
            return;
        }

        let managed = live.as_ref().map(|release| self.managed(subject, release, state));
        let repository = self.parts.repository.clone();

        let (beside, observations) = {
            let trial_runtime = self.trial_runtime(subject);
            let is_trial = state.trial.as_ref().is_some_and(|trial| Some(&trial.release) == live.as_ref());
            if is_trial { (trial_runtime.loaded.take(), trial_runtime.observations(state)) } else { (None, None) }
        };

        let name = subject.name.clone();
        let started = Instant::now();
        match (beside, managed) {
            (Some(model), Some(managed)) => {
                let before = repository.activate(&name, model, managed, observations).await;
                let trial_runtime = self.trial_runtime(subject);
                trial_runtime.previous = before;
                trial_runtime.is_watched = true;
                tracing::info!(%subject, switch_us = started.elapsed().as_micros(), "the new version is live");
            }
            (_, managed) => {
                let kept = self.trial_runtime(subject).previous.take();
                if let Err(reason) = repository.restore(&name, managed, kept).await {
                    // The live version goes on meanwhile.
                    tracing::error!(%subject, reason, "the previous version did not load; trying again later");
                    self.trial_runtime(subject).pause(&RollbackReason::new(RollbackCause::Load, reason));
                    return;
                }
                tracing::info!(
                    name: "update.version_restored",
                    %subject,
                    switch_us = started.elapsed().as_micros(),
                    "the previous version is live"
                );
            }
        }

        self.trial_runtime(subject).serving = live;
    }

    /// Moves the models of a runtime to the library of this release, or to the owner's.
    pub(super) async fn move_to_library_of(
        &self,
        subject: &Artifact,
        release: Option<&InstalledRelease>,
    ) -> Result<(), String> {
        let Some(runtime) = preflight::runtime_named(&subject.name) else { return Ok(()) };
        let folder = release.map(|release| self.store.release_folder(subject, release));
        self.parts.repository.move_to_library(runtime, folder).await
    }

    /// The fault that libraries on trial are to blame for: a model that runs in them, and ended its process again and
    /// again.
    pub(super) fn fault_of_libraries(&self, subject: &Artifact, state: &SubjectState) -> Option<RollbackReason> {
        let is_soaking = subject.kind == ArtifactKind::Runtime && state.next_action() == UpdateAction::Soak;
        let runtime = preflight::runtime_named(&subject.name).filter(|_| is_soaking)?;
        let mut live = self.parts.repository.all_live().into_iter().filter(|model| model.runtime() == runtime);
        let fault = |model: Arc<LoadedModel>| {
            Some(format!("{} {}: {}", model.name, model.version, model.fault().or_else(|| model.crashing())?))
        };
        live.find_map(fault).map(|detail| RollbackReason::new(RollbackCause::Crash, detail))
    }

    pub(super) fn managed(
        &self,
        subject: &Artifact,
        release: &InstalledRelease,
        state: &SubjectState,
    ) -> ManagedVersion {
        let golden_min = state.golden_min(release);
        ManagedVersion { version: release.version, folder: self.store.release_folder(subject, release), golden_min }
    }
}
