//! The job of each action.

use super::{Updater, download_job, load_jobs};
use crate::artifact::Artifact;
use crate::state::{SubjectState, UpdateAction};

impl Updater {
    pub(super) fn start(&mut self, subject: &Artifact, state: &SubjectState, next_action: UpdateAction) {
        let job = match next_action {
            UpdateAction::Download => download_job::start(self, subject, state),
            UpdateAction::Preflight => load_jobs::run_preflight(self, subject, state),
            UpdateAction::LoadCandidate => load_jobs::load_candidate(self, subject, state),
            UpdateAction::Soak | UpdateAction::Mirror | UpdateAction::Share | UpdateAction::Rest => return,
        };

        if let Some(job) = job {
            self.start_job(subject, next_action, job);
        }
    }
}
