//! Events that repeat while their cause lasts: denials, connections, and a full disk. Each kind is recorded once a
//! minute.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ledge_base::principal::Principal;

use super::AuditEvent;

/// The shortest time between two records of one kind.
const RECORD_INTERVAL: Duration = Duration::from_mins(1);

/// The most kinds that are counted apart. Beyond them the caller is not distinguished.
const KINDS_MAX: usize = 1024;

/// The state of repeated events.
#[derive(Debug, Default)]
pub(super) struct RepeatedEvents(Mutex<RepeatState>);

#[derive(Debug, Default)]
pub(super) struct RepeatState {
    kinds: HashMap<EventKind, KindState>,
    pub(super) without_room: BTreeSet<&'static str>,
}

/// The key by which events count as repetitions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct EventKind {
    what: RepeatedEvent,
    /// The caller, if known by name, so that denials of others do not hide those of a stolen key. All other callers are
    /// counted together.
    known: Option<Principal>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum RepeatedEvent {
    Access(&'static str),
    Authentication(&'static str),
    Connection { destination: String, region: String, purpose: &'static str },
}

impl RepeatedEvent {
    fn event(&self, others: u64) -> AuditEvent {
        match self {
            Self::Access(what) => AuditEvent::AccessDenied { what: (*what).into(), others },
            Self::Authentication(cause) => AuditEvent::AuthenticationFailed { cause: (*cause).into(), others },
            Self::Connection { destination, region, purpose } => {
                let (destination, region, purpose) = (destination.clone(), region.clone(), (*purpose).into());
                AuditEvent::ConnectionOpened { destination, region, purpose, others }
            }
        }
    }
}

#[derive(Debug)]
struct KindState {
    until: Instant,
    /// The number of events without a record, and the caller of the last one.
    unrecorded: u64,
    last: Principal,
}

impl KindState {
    /// The event that stands for those without a record.
    fn record(&mut self, what: &RepeatedEvent) -> Option<(Principal, AuditEvent)> {
        let others = std::mem::take(&mut self.unrecorded).checked_sub(1)?;
        Some((self.last.clone(), what.event(others)))
    }
}

impl RepeatState {
    /// The event to record now, with the number of earlier ones without a record; `None` within [`RECORD_INTERVAL`].
    pub(super) fn again(&mut self, principal: &Principal, what: RepeatedEvent, now: Instant) -> Option<AuditEvent> {
        let is_known = matches!(
            principal,
            Principal::Key(_) | Principal::Certificate(_) | Principal::Person(_) | Principal::User(_)
        );
        let mut kind = EventKind { what, known: is_known.then(|| principal.clone()) };
        if kind.known.is_some() && self.kinds.len() >= KINDS_MAX && !self.kinds.contains_key(&kind) {
            kind.known = None;
        }
        let what = kind.what.clone();
        let state =
            self.kinds.entry(kind).or_insert_with(|| KindState { until: now, unrecorded: 0, last: principal.clone() });
        if now < state.until {
            state.unrecorded += 1;
            state.last.clone_from(principal);
            return None;
        }
        state.until = now + RECORD_INTERVAL;
        Some(what.event(std::mem::take(&mut state.unrecorded)))
    }

    /// The events that stand for earlier ones without a record, when no further event has reported their number.
    fn due(&mut self, now: Instant, is_last: bool) -> Vec<(Principal, AuditEvent)> {
        let mut due = Vec::new();
        self.kinds.retain(|kind, state| {
            if now < state.until && !is_last {
                return true;
            }
            let record = state.record(&kind.what);
            state.until = now + RECORD_INTERVAL;
            let is_kept = record.is_some();
            due.extend(record.map(|record| (kind.what.clone(), record)));
            is_kept
        });
        due.sort_by_cached_key(|(what, (principal, _))| (what.clone(), principal.to_string()));
        due.into_iter().map(|(_, record)| record).collect()
    }
}

impl RepeatedEvents {
    pub(super) fn state(&self) -> MutexGuard<'_, RepeatState> {
        // Nothing panics under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the events that stand for earlier ones without a record; all of them when it is the last time.
    pub(super) fn due(&self, now: Instant, is_last: bool) -> Vec<(Principal, AuditEvent)> {
        self.state().due(now, is_last)
    }
}

#[cfg(test)]
mod tests {
    use super::super::AuditSink;
    use super::*;

    #[test]
    fn a_flood_of_denials_is_one_record_of_each_kind() {
        let (audit, mut queue) = AuditSink::channel();
        for _ in 0..1000 {
            audit.record_denied(&Principal::User(7), "model_load");
            audit.clone().record_denied(&Principal::User(8), "model_unload");
        }
        let denied = |what: &'static str, others| AuditEvent::AccessDenied { what: what.into(), others };
        assert_eq!(queue.try_next(), Some(denied("model_load", 0)));
        assert_eq!(queue.try_next(), Some(denied("model_unload", 0)));
        assert_eq!(queue.try_next(), None);
        assert_eq!(queue.take_untold(Instant::now(), false), []);
        let rest =
            [(7, "model_load"), (8, "model_unload")].map(|(uid, what)| (Principal::User(uid), denied(what, 998)));
        assert_eq!(queue.take_untold(Instant::now(), true), rest, "nobody asks once more");
    }

    #[test]
    fn a_caller_that_is_known_by_name_is_recorded_whatever_others_do() {
        let (mut state, start) = (RepeatState::default(), Instant::now());
        let (stranger, key) = (Principal::Others, Principal::Key("till".into()));
        let denied = |others| Some(AuditEvent::AccessDenied { what: "audit".into(), others });
        let mut deny = |who: &Principal, second| {
            state.again(who, RepeatedEvent::Access("audit"), start + Duration::from_secs(second))
        };
        assert_eq!((deny(&stranger, 0), deny(&key, 1), deny(&key, 2)), (denied(0), denied(0), None));
        assert_eq!((deny(&stranger, 60), deny(&stranger, 61), deny(&key, 62)), (denied(0), None, denied(1)));
        let due = |state: &mut RepeatState, second| state.due(start + Duration::from_secs(second), false);
        assert_eq!(due(&mut state, 119), []);
        assert_eq!(due(&mut state, 122), [(stranger, denied(0).unwrap())]);
        assert_eq!((due(&mut state, 200), state.kinds.len()), (Vec::new(), 0), "what is over is forgotten");
    }

    #[test]
    fn however_many_keys_there_are_little_is_remembered() {
        let (mut state, now) = (RepeatState::default(), Instant::now());
        for key in 0..2 * KINDS_MAX {
            state.again(&Principal::Key(key.to_string().into()), RepeatedEvent::Access("audit"), now);
        }
        assert!(state.kinds.len() <= KINDS_MAX + 1);
        let due = state.due(now, true);
        assert_eq!(due.len(), 1, "the strangers");
    }

    #[test]
    fn connections_to_a_place_are_counted_by_the_minute() {
        let (audit, mut queue) = AuditSink::channel();
        let opened = |port: u16, others| AuditEvent::ConnectionOpened {
            destination: format!("a:{port}"),
            region: "eu".to_owned(),
            purpose: "updates".into(),
            others,
        };
        for _ in 0..40 {
            audit.record_connection("a:1".to_owned(), "eu".to_owned(), "updates");
        }
        audit.record_connection("a:2".to_owned(), "eu".to_owned(), "updates");
        assert_eq!((queue.try_next(), queue.try_next()), (Some(opened(1, 0)), Some(opened(2, 0))));
        assert_eq!((queue.try_next(), queue.take_untold(Instant::now(), false)), (None, Vec::new()));
        let rest = queue.take_untold(Instant::now() + RECORD_INTERVAL, false);
        assert_eq!(rest, [(Principal::Local, opened(1, 38))]);
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
