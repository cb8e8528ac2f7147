//! Orders of the administrator of this box.

use ledge_service::audit_event::AuditEvent;

use super::Updater;
use crate::artifact::{Artifact, ArtifactKind};
use crate::handle::{AdministratorCommand, AdministratorCommandError, QueuedAdministratorCommand};
use crate::state::{SubjectState, UpdateEvent};

impl Updater {
    /// Carries out an order, and answers when its effect is on disk.
    pub(super) async fn carry_out(&mut self, ordered: QueuedAdministratorCommand) {
        let QueuedAdministratorCommand { subject, order, principal, answer } = ordered;
        let known = self.persisted.subjects.get(&subject);
        let impossible = match (order, known) {
            (_, None) => Some(AdministratorCommandError::Unknown { subject: subject.clone() }),
            (AdministratorCommand::Cancel, Some(state)) if state.trial.is_none() => {
                Some(AdministratorCommandError::NoTrial { subject: subject.clone() })
            }
            (AdministratorCommand::RollBack, Some(state))
                if state.trial.is_none() && !self.has_previous(&subject, state) =>
            {
                Some(AdministratorCommandError::NothingToRollBack { subject: subject.clone() })
            }
            _ => None,
        };

        if let Some(error) = impossible {
            let _ = answer.send(Err(error));
            return;
        }

        let named = subject.to_string();
        let ordered = AuditEvent::UpdateOrdered { subject: named, order: order.name().into() };
        self.parts.audit.record(&principal, ordered);

        let event = match order {
            AdministratorCommand::Pin => UpdateEvent::Pin,
            AdministratorCommand::Unpin => UpdateEvent::Unpin,
            AdministratorCommand::RollBack if self.is_first(&subject) => UpdateEvent::LeaveToOwner,
            AdministratorCommand::RollBack => UpdateEvent::RollBack,
            AdministratorCommand::Cancel => UpdateEvent::Cancel,
        };

        let taken = self.advance(&subject, event).await;
        let failed = |reason: &str| Err(AdministratorCommandError::Failed { subject, reason: reason.to_owned() });
        let answered = match (taken, self.unwritten) {
            (false, _) => failed(
                "the order was not carried out, because the state of updates cannot be written (is the disk full?)",
            ),
            (true, true) => failed(
                "the order was carried out, but the state of updates cannot be written (is the disk full?); a restart may \
                 undo it",
            ),
            (true, false) => Ok(()),
        };
        // The caller may be gone.
        let _ = answer.send(answered);
    }

    /// Returns true if a subject without a trial has something to go back to: a release, or the owner's model.
    fn has_previous(&self, subject: &Artifact, state: &SubjectState) -> bool {
        state.committed.is_some() && (state.previous.is_some() || self.owner_has(subject))
    }

    /// Returns true if the owner's model or settings serve without any release.
    pub(super) fn owner_has(&self, subject: &Artifact) -> bool {
        subject.kind != ArtifactKind::Model || self.parts.repository.has_folder(&subject.name)
    }

    /// Returns true if the running release is the first.
    fn is_first(&self, subject: &Artifact) -> bool {
        let state = self.persisted.subjects.get(subject);
        state.is_some_and(|state| state.trial.is_none() && state.previous.is_none())
    }
}
