//! Events that would come again and again while what they tell of lasts: denials, and a disk without room.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{AuditEvent, AuditSink};
use crate::complaints::Complaints;
use crate::principal::Principal;

/// What was told of them.
#[derive(Debug, Default)]
pub(super) struct Seldom(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    denials: Complaints,
    without_room: BTreeSet<&'static str>,
}

impl Seldom {
    fn told(&self) -> MutexGuard<'_, Told> {
        // Nothing panics under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AuditSink {
    /// Records that somebody asked for what is not theirs to ask for. Whoever asks again and again must not fill the log:
    /// of each kind there is a record a minute at most, with the number of those that have none.
    pub fn record_denied(&self, principal: &Principal, what: &'static str) {
        let taken = self.seldom().told().denials.take((what, 0), Instant::now());
        if let Some(others) = taken {
            self.record(principal, AuditEvent::AccessDenied { what: what.into(), others });
        }
    }

    /// Records that somebody presented a credential that lets nobody in: a record a minute at most of each cause.
    pub fn record_unauthenticated(&self, principal: &Principal, cause: &'static str) {
        let taken = self.seldom().told().denials.take((cause, 1), Instant::now());
        if let Some(others) = taken {
            self.record(principal, AuditEvent::AuthenticationFailed { cause: cause.into(), others });
        }
    }

    /// Records that the disk has no room for something, or has it again: once each, however often it is said.
    pub fn record_space(&self, what: &'static str, enough: bool) {
        let mut told = self.seldom().told();
        let is_new = if enough { told.without_room.remove(what) } else { told.without_room.insert(what) };
        drop(told);
        if is_new {
            self.record_own(AuditEvent::SpaceChanged { what: what.into(), enough });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_denials_is_one_record_of_each_kind() {
        let (audit, mut queue) = AuditSink::channel();
        for _ in 0..1000 {
            audit.record_denied(&Principal::User(7), "model_load");
            audit.clone().record_denied(&Principal::User(8), "model_unload");
        }
        let denied = |what: &'static str| AuditEvent::AccessDenied { what: what.into(), others: 0 };
        assert_eq!(queue.try_next(), Some(denied("model_load")));
        assert_eq!(queue.try_next(), Some(denied("model_unload")));
        assert_eq!(queue.try_next(), None);
    }

    #[test]
    fn room_is_told_when_it_goes_and_when_it_is_back() {
        let (audit, mut queue) = AuditSink::channel();
        for enough in [true, false, false, true, true, false] {
            audit.record_space("updates", enough);
        }
        audit.record_space("feature_store", true);
        for enough in [false, true, false] {
            assert_eq!(queue.try_next(), Some(AuditEvent::SpaceChanged { what: "updates".into(), enough }));
        }
        assert_eq!(queue.try_next(), None);
    }
}
