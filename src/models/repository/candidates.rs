//! Candidates next to the live versions of models.

use std::time::Duration;

use ledge_base::names::ModelName;

use super::Repository;
use super::candidate::Candidate;

/// Time for the last requests of a candidate that is removed.
const RELEASE_TIMEOUT: Duration = Duration::from_mins(1);

impl Repository {
    /// Puts a candidate next to the live versions of a model, in place of the previous one, or removes it without
    /// waiting for its memory. Does nothing for an unknown model.
    pub fn set_candidate(&self, model: &ModelName, candidate: Option<Candidate>) {
        let Some(model) = self.model(model) else { return };
        match candidate {
            Some(candidate) => {
                let (version, statistics) = (candidate.model.version, candidate.model.statistics.clone());
                model.states().statistics.insert(version, statistics);
                model.slot.put_candidate(candidate);
            }
            None => drop(model.slot.take_candidate()),
        }
    }

    /// Removes the candidate of a model and waits until its memory is freed. The caller must have dropped its own
    /// handles to it; otherwise this gives up after a minute.
    pub async fn release_candidate(&self, model: &ModelName) {
        let Some(model) = self.model(model) else { return };
        let _alone = model.busy.lock().await;
        let Some(candidate) = model.slot.take_candidate() else { return };
        let (version, ended) = (candidate.version, candidate.ended());
        drop(candidate);
        if tokio::time::timeout(RELEASE_TIMEOUT, ended).await.is_err() {
            tracing::warn!(model = %model.name, %version, "a candidate was removed, but its memory is still in use after a minute");
        }
        // Nothing of this model is left after its candidate.
        let is_managed = self.managed_version(&model.name).is_some();
        let has_folder = self.has_folder(&model.name);
        if model.slot.live().is_empty() && !is_managed && !has_folder {
            self.forget(&model.name);
        }
    }
}
