//! What the administrator of this box says about an update.

use ledge_service::audit_event::AuditEvent;

use super::Updater;
use crate::handle::{Order, OrderError, Ordered};
use crate::state::{Event, SubjectState};
use crate::subject::{Kind, Subject};

impl Updater {
    /// Carries an order out, and answers when it is on disk.
    pub(super) async fn ordered(&mut self, ordered: Ordered) {
        let Ordered { subject, order, principal, answer } = ordered;
        let known = self.persisted.subjects.get(&subject);
        let impossible = match (order, known) {
            (_, None) => Some(OrderError::Unknown { subject: subject.clone() }),
            (Order::Cancel, Some(state)) if state.trial.is_none() => {
                Some(OrderError::NoTrial { subject: subject.clone() })
            }
            (Order::RollBack, Some(state)) if state.trial.is_none() && !self.has_before(&subject, state) => {
                Some(OrderError::NothingToRollBack { subject: subject.clone() })
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
            Order::Pin => Event::Pin,
            Order::Unpin => Event::Unpin,
            Order::RollBack if self.is_first(&subject) => Event::LeaveToOwner,
            Order::RollBack => Event::RollBack,
            Order::Cancel => Event::Cancel,
        };
        let taken = self.advance(&subject, event).await;
        let failed = |reason: &str| Err(OrderError::Failed { subject, reason: reason.to_owned() });
        let answered = match (taken, self.unwritten) {
            (false, _) => failed("it cannot be written down, and is not done; is the disk full?"),
            (true, true) => failed("it is done, and cannot be written down; is the disk full?"),
            (true, false) => Ok(()),
        };
        // Whoever asked may be gone.
        let _ = answer.send(answered);
    }

    /// Whether a subject without a trial has something to go back to: a release, or what the owner of this box has.
    fn has_before(&self, subject: &Subject, state: &SubjectState) -> bool {
        state.committed.is_some() && (state.previous.is_some() || self.owner_has(subject))
    }

    /// Whether something serves without any release: what the owner of this box has.
    pub(super) fn owner_has(&self, subject: &Subject) -> bool {
        subject.kind != Kind::Model || self.parts.repository.has_folder(&subject.name)
    }

    /// Whether no release was there before the one that runs.
    fn is_first(&self, subject: &Subject) -> bool {
        let state = self.persisted.subjects.get(subject);
        state.is_some_and(|state| state.trial.is_none() && state.previous.is_none())
    }
}
