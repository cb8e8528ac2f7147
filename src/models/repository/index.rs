//! The index of the repository, in Triton's words.

use ledge_base::names::{ModelName, ModelVersion};

pub use super::version_state::{UnavailableReason, VersionState};
use super::{CandidateShare, Repository};

/// One row of the repository's index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelIndexEntry {
    pub model: ModelName,
    /// The version; `None` for a model of which none is known.
    pub version: Option<ModelVersion>,
    pub state: VersionState,
    /// A note for people on a version that is ready: what manages it, what it stands in for, or that calls crash it.
    pub note: Option<String>,
}

impl ModelIndexEntry {
    /// The reason why it does not answer, or the note on one that does.
    pub fn reason(&self) -> Option<String> {
        match &self.state {
            VersionState::Ready | VersionState::Loading => self.note.clone(),
            VersionState::Unloading => None,
            VersionState::Unavailable(reason) => Some(reason.to_string()),
        }
    }
}

impl Repository {
    /// Every model and version that is known, with its state.
    pub fn index(&self) -> Vec<ModelIndexEntry> {
        let mut rows = Vec::new();
        for model in self.models() {
            let (managed, live, candidate) = (self.managed(&model.name), model.slot.live(), model.slot.candidate());
            let states = model.states();
            let row = |version, state, note| ModelIndexEntry { model: model.name.clone(), version, state, note };
            let note = |version: ModelVersion| {
                let live = live.iter().find(|live| live.version == version)?;
                let managed = managed.as_ref().map(|managed| match &managed.fault {
                    None => "managed by updates".to_owned(),
                    Some(fault) => format!("the owner's version stands in: {fault}"),
                });
                let notes: Vec<_> = managed.into_iter().chain(live.stand_in()).chain(live.crashing()).collect();
                (!notes.is_empty()).then(|| notes.join("; "))
            };

            let fault = |version| live.iter().find(|live| live.version == version)?.fault().map(VersionState::failed);
            let known = states.versions.iter();
            let known = known.map(|(&version, state)| (version, fault(version).unwrap_or_else(|| state.clone())));
            rows.extend(known.map(|(version, state)| row(Some(version), state, note(version))));

            if let Some((candidate, share)) = &candidate
                && !live.iter().any(|live| live.version == candidate.version)
            {
                // In shadow it answers no caller.
                let (state, note) = match share {
                    CandidateShare::Shadow(_) => (VersionState::Loading, "a candidate, in shadow"),
                    CandidateShare::Canary(_) => (VersionState::Ready, "a candidate, in canary"),
                };
                rows.push(row(Some(candidate.version), state, Some(note.to_owned())));
            }

            if states.versions.is_empty() {
                let failed = states.fault.clone().map(|reason| UnavailableReason::Failed { reason });
                let reason = failed.unwrap_or(UnavailableReason::NotLoadedYet);
                rows.push(row(None, VersionState::Unavailable(reason), None));
            }
        }
        rows
    }
}
