//! Reports of an update: to the log, the audit log, and the status.

use ledge_base::names::DeviceName;
use ledge_service::audit_event::AuditEvent;

use super::trial_runtime::TrialRuntime;
use super::{Updater, stage};
use crate::artifact::Artifact;
use crate::state::SubjectState;

impl Updater {
    /// Reports the changes of an artifact to the log, the audit log and the status.
    pub(super) fn report_change(&self, subject: &Artifact, before: &SubjectState, after: &SubjectState) {
        let moved = |version, rollout: &DeviceName, stage: &'static str, cause: Option<&'static str>| {
            self.parts.audit.record_own(AuditEvent::UpdateMoved {
                subject: subject.to_string(),
                version,
                rollout: rollout.to_string(),
                stage: stage.into(),
                cause: cause.map(Into::into),
            });
        };

        if after.outcome != before.outcome
            && let Some(outcome) = &after.outcome
        {
            match &outcome.rolled_back {
                None => {
                    tracing::info!(
                        name: "update.committed",
                        %subject, version = %outcome.version, rollout = %outcome.rollout,
                        "update committed"
                    );
                    moved(outcome.version, &outcome.rollout, "committed", None);
                }
                Some((stage, reason)) => {
                    tracing::warn!(
                        name: "update.rolled_back",
                        %subject,
                        version = %outcome.version,
                        rollout = %outcome.rollout,
                        %stage,
                        cause = reason.cause.name(),
                        detail = reason.detail,
                        "update rolled back"
                    );
                    moved(outcome.version, &outcome.rollout, "rolled_back", Some(reason.cause.name()));
                    self.parts
                        .updates
                        .update_status(|status| *status.rollbacks.entry(reason.cause.name()).or_default() += 1);
                }
            }
        }

        if let Some(trial) = &after.trial
            && stage(before) != stage(after)
        {
            tracing::info!(
                name: "update.moved",
                %subject,
                version = %trial.release.version,
                rollout = %trial.plan.rollout,
                stage = %trial.stage,
                "update moved"
            );
            moved(trial.release.version, &trial.plan.rollout, trial.stage.name(), None);
        }
    }

    pub(super) fn publish_status(&self) {
        let subjects = &self.persisted.subjects;
        let error = |(subject, trial_runtime): (&Artifact, &TrialRuntime)| {
            Some((subject.clone(), trial_runtime.error()?.to_string()))
        };
        let errors = self.trial_runtimes.iter().filter_map(error).collect();
        self.parts.updates.update_status(|status| {
            if status.subjects != *subjects {
                status.subjects.clone_from(subjects);
            }
            status.errors = errors;
        });
    }
}
