//! What requests see of an update: which version is live, and what of the next one is mirrored or shared.

use std::sync::Arc;
use std::time::Instant;

use ledge_models::repository::ManagedVersion;

use super::Updater;
use crate::state::{Cause, Duty, Event, Installed, Reason, SubjectState};
use crate::subject::{Kind, Subject};

impl Updater {
    /// Waits until the models that are not live have given their memory back: a process that ends while a runtime still
    /// tears one down crashes.
    pub(super) async fn let_models_go(&mut self) {
        for (subject, hand) in std::mem::take(&mut self.hands) {
            let models = hand.into_models();
            self.parts.repository.release_candidate(&subject.name).await;
            for model in models {
                // What is live by now is another's to end.
                if Arc::strong_count(&model) == 1 {
                    self.parts.repository.end(model).await;
                }
            }
        }
    }

    /// A live version that did not load at this start gives way to the one before it: on trial for good.
    pub(super) async fn give_up_what_does_not_load(&mut self, subject: &Subject) {
        let state = self.state(subject);
        let (Kind::Model, Some(live)) = (subject.kind, state.live().cloned()) else { return };
        let fault = self.parts.repository.managed(&subject.name).and_then(|managed| managed.fault);
        let Some(fault) = fault else { return };
        tracing::error!(%subject, version = %live.version, reason = fault, "the live version does not load at this start");
        if state.duty() == Duty::Soak {
            self.advance(subject, Event::Failed(Reason::new(Cause::Load, fault))).await;
            return;
        }
        // It did load once, and may again: a runtime that is gone for a while must not cost a box its releases. So the
        // state stays, and the next start tries it anew.
        let Some(previous) = &state.previous else { return };
        let managed = self.managed(subject, previous, &state);
        match self.parts.repository.restore(&subject.name, Some(managed), None).await {
            Ok(()) => {
                tracing::warn!(%subject, version = %previous.version, "the version before serves until the next start");
            }
            Err(reason) => {
                tracing::error!(%subject, version = %previous.version, reason, "nor does the version before");
            }
        }
    }

    /// Whether a version is to be compared with requests to one that is not there: the first of its model.
    pub(super) fn has_nothing_to_be_beside(&self, subject: &Subject) -> bool {
        let state = self.persisted.subjects.get(subject);
        let sees_requests = state.is_some_and(|state| matches!(state.duty(), Duty::Mirror | Duty::Share));
        sees_requests && self.parts.repository.pin(&subject.name, None).is_err()
    }

    /// Nothing is mirrored, shared or watched any more.
    pub(super) async fn end_trial(&mut self, subject: &Subject, state: &SubjectState) {
        let repository = self.parts.repository.clone();
        // Its last requests end on it; nobody waits for them here.
        repository.set_candidate(&subject.name, None);
        if let Some(release) = state.live() {
            let managed = self.managed(subject, release, state);
            // It is live: this only ends the counting.
            if let Err(reason) = repository.restore(&subject.name, Some(managed), None).await {
                tracing::error!(%subject, reason, "the live version is not what it should be");
            }
        }
    }

    /// After a start during its soak the new version is live, and is watched again.
    pub(super) async fn watch_live(&mut self, subject: &Subject, state: &SubjectState) {
        let Some(trial) = state.trial.as_ref().filter(|_| state.duty() == Duty::Soak) else { return };
        let Some(observations) = self.hand(subject).watch_again(trial) else { return };
        let managed = self.managed(subject, &trial.release, state);
        let repository = self.parts.repository.clone();
        // Not the owner's version of the same number, which stands in where a release does not load.
        let live = repository.pin(&subject.name, Some(trial.release.version));
        if let Some(live) = live.ok().filter(|live| live.folder == managed.folder) {
            drop(repository.activate(&subject.name, live, managed, Some(observations)).await);
        }
    }

    /// Lets requests see the new version as far as its stage allows.
    pub(super) fn show_requests(&mut self, subject: &Subject, state: &SubjectState) {
        let name = subject.name.clone();
        let candidate = self.hand(subject).candidate(state);
        if let Some(changed) = candidate {
            self.parts.repository.set_candidate(&name, changed);
        }
    }

    /// Makes live what the state says is live.
    pub(super) async fn switch(&mut self, subject: &Subject, state: &SubjectState) {
        let live = state.live().cloned();
        if self.hand(subject).serving == live || !self.hand(subject).is_due() {
            return;
        }
        if subject.kind != Kind::Model {
            // Settings and libraries are read when the daemon starts.
            tracing::info!(%subject, "the daemon starts anew to take up an update");
            self.hand(subject).serving = live;
            self.parts.shutdown.request_restart();
            return;
        }
        let managed = live.as_ref().map(|release| self.managed(subject, release, state));
        let repository = self.parts.repository.clone();
        let (beside, observations) = {
            let hand = self.hand(subject);
            let is_trial = state.trial.as_ref().is_some_and(|trial| Some(&trial.release) == live.as_ref());
            if is_trial { (hand.beside.take(), hand.observations(state)) } else { (None, None) }
        };
        let name = subject.name.clone();
        let started = Instant::now();
        match (beside, managed) {
            (Some(model), Some(managed)) => {
                let before = repository.activate(&name, model, managed, observations).await;
                let hand = self.hand(subject);
                hand.kept = before;
                hand.is_watched = true;
                tracing::info!(%subject, switch_us = started.elapsed().as_micros(), "the new version is live");
            }
            (_, managed) => {
                let kept = self.hand(subject).kept.take();
                if let Err(reason) = repository.restore(&name, managed, kept).await {
                    // What is live goes on meanwhile.
                    tracing::error!(%subject, reason, "the version before does not load again; it is tried once more later");
                    self.hand(subject).pause(&Reason::new(Cause::Load, reason));
                    return;
                }
                tracing::info!(%subject, switch_us = started.elapsed().as_micros(), "the version before is live");
            }
        }
        self.hand(subject).serving = live;
    }

    pub(super) fn managed(&self, subject: &Subject, release: &Installed, state: &SubjectState) -> ManagedVersion {
        let golden_min = state.golden_min(release);
        ManagedVersion { version: release.version, folder: self.store.release_folder(subject, release), golden_min }
    }
}
