//! The live versions of one model, and the candidate, behind one atomic pointer.
//!
//! A request pins the version that it finds here and keeps it until it is answered, whatever a load or an update does
//! meanwhile. One load of the pointer is enough: a model without a candidate only pays for reading an empty field.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use ledge_base::names::ModelVersion;

use super::candidate::{Candidate, CandidateShare, Pinned, RunningCandidate};
use super::loaded_model::LoadedModel;
use super::observations::Observations;

/// The live versions of one model.
#[derive(Debug, Default)]
pub struct ModelSlot {
    now: ArcSwap<LiveVersions>,
}

#[derive(Debug, Clone, Default)]
struct LiveVersions {
    live: BTreeMap<ModelVersion, Arc<LoadedModel>>,
    watch: UpdateWatch,
}

/// Observation of the requests by an update.
#[derive(Debug, Clone, Default)]
enum UpdateWatch {
    #[default]
    Nothing,
    /// Compares a candidate with the live versions.
    Candidate(Arc<RunningCandidate>),
    /// Watches the version that has just gone live.
    Soak(Arc<Observations>),
}

impl ModelSlot {
    /// The version asked for, or the default: the highest that is live. A candidate is found by its version number once
    /// it may answer.
    pub fn pin(&self, version: Option<ModelVersion>) -> Option<Arc<LoadedModel>> {
        let now = self.now.load();
        match version {
            Some(version) => now.numbered(version),
            None => now.default_version().cloned(),
        }
    }

    /// As [`Self::pin`], for a request that is to be answered: it may fall to the candidate, or be watched.
    pub(super) fn pin_call(&self, version: Option<ModelVersion>) -> Option<Pinned> {
        let now = self.now.load();
        if let Some(version) = version {
            return now.numbered(version).map(Pinned::unwatched);
        }
        let live = now.default_version()?;
        Some(match &now.watch {
            UpdateWatch::Nothing => Pinned::unwatched(live.clone()),
            UpdateWatch::Candidate(running) => running.pin(live),
            UpdateWatch::Soak(observations) => Pinned::soaking(live.clone(), observations.clone()),
        })
    }

    /// All live versions, ascending.
    pub fn live(&self) -> Vec<Arc<LoadedModel>> {
        self.now.load().live.values().cloned().collect()
    }

    /// The candidate, and whether it answers requests.
    pub(super) fn candidate(&self) -> Option<(Arc<LoadedModel>, CandidateShare)> {
        let now = self.now.load();
        now.running().map(|running| (running.candidate.model.clone(), running.candidate.share))
    }

    /// Replaces the live versions; requests that pinned the old ones finish on them.
    pub fn swap(&self, models: impl IntoIterator<Item = Arc<LoadedModel>>) {
        let live: BTreeMap<_, _> = models.into_iter().map(|model| (model.version, model)).collect();
        self.now.rcu(|now| LiveVersions { live: live.clone(), watch: now.watch.clone() });
    }

    /// Makes `model` the only live version, in place of the candidate too.
    pub(super) fn promote(&self, model: Arc<LoadedModel>, observations: Option<Arc<Observations>>) {
        let live = BTreeMap::from([(model.version, model)]);
        let watch = observations.map_or(UpdateWatch::Nothing, UpdateWatch::Soak);
        self.now.swap(Arc::new(LiveVersions { live, watch })).withdraw();
    }

    /// Puts a candidate next to the live versions, in place of the previous one.
    pub(super) fn put_candidate(&self, candidate: Candidate) {
        let running = Arc::new(RunningCandidate::new(candidate));
        let put = |now: &Arc<LiveVersions>| LiveVersions {
            live: now.live.clone(),
            watch: UpdateWatch::Candidate(running.clone()),
        };
        self.now.rcu(put).withdraw();
    }

    /// Removes the candidate and cancels its mirrored requests. The watch of a version that went live ends too.
    pub(super) fn take_candidate(&self) -> Option<Arc<LoadedModel>> {
        let old = self.now.rcu(|now| LiveVersions { live: now.live.clone(), watch: UpdateWatch::Nothing });
        old.withdraw();
        old.running().map(|running| running.candidate.model.clone())
    }
}

impl LiveVersions {
    fn running(&self) -> Option<&RunningCandidate> {
        match &self.watch {
            UpdateWatch::Candidate(running) => Some(running),
            UpdateWatch::Nothing | UpdateWatch::Soak(_) => None,
        }
    }

    fn withdraw(&self) {
        if let Some(running) = self.running() {
            running.stop.cancel();
        }
    }

    fn default_version(&self) -> Option<&Arc<LoadedModel>> {
        self.live.last_key_value().map(|(_, model)| model)
    }

    fn numbered(&self, version: ModelVersion) -> Option<Arc<LoadedModel>> {
        self.live.get(&version).cloned().or_else(|| self.running()?.numbered(version))
    }
}
