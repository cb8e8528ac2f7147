//! Events that would come again and again while what they tell of lasts: denials, connections, and a disk without room.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ledge_base::principal::Principal;

use super::{AuditEvent, AuditSink};

/// How long events of a kind have no record of their own after one that has.
const QUIET: Duration = Duration::from_mins(1);

/// How many kinds are told apart; the callers of further ones count as strangers.
const MOST_KINDS: usize = 1024;

/// What was told of them.
#[derive(Debug, Default)]
pub(super) struct Seldom(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    kinds: HashMap<Kind, Quiet>,
    without_room: BTreeSet<&'static str>,
}

/// What counts as the same again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Kind {
    what: Repeated,
    /// A caller who is known by name: nobody else's denials hide those of a stolen key. Strangers are counted together.
    known: Option<Principal>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Repeated {
    Access(&'static str),
    Authentication(&'static str),
    Connection { destination: String, region: String, purpose: &'static str },
}

impl Repeated {
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
struct Quiet {
    until: Instant,
    /// How many have no record yet, and whose was the last.
    untold: u64,
    last: Principal,
}

impl Quiet {
    /// The record that stands for those that have none.
    fn record(&mut self, what: &Repeated) -> Option<(Principal, AuditEvent)> {
        let others = std::mem::take(&mut self.untold).checked_sub(1)?;
        Some((self.last.clone(), what.event(others)))
    }
}

impl Told {
    /// What is to be recorded now: the event itself and those before it that have no record.
    fn again(&mut self, principal: &Principal, what: Repeated, now: Instant) -> Option<AuditEvent> {
        let is_known = matches!(principal, Principal::Key(_) | Principal::Certificate(_) | Principal::User(_));
        let mut kind = Kind { what, known: is_known.then(|| principal.clone()) };
        if kind.known.is_some() && self.kinds.len() >= MOST_KINDS && !self.kinds.contains_key(&kind) {
            kind.known = None;
        }
        let what = kind.what.clone();
        let quiet = self.kinds.entry(kind).or_insert_with(|| Quiet { until: now, untold: 0, last: principal.clone() });
        if now < quiet.until {
            quiet.untold += 1;
            quiet.last.clone_from(principal);
            return None;
        }
        quiet.until = now + QUIET;
        Some(what.event(std::mem::take(&mut quiet.untold)))
    }

    /// What is to be recorded of events that have no record, where none may come again to have it said.
    fn due(&mut self, now: Instant, is_last: bool) -> Vec<(Principal, AuditEvent)> {
        let mut due = Vec::new();
        self.kinds.retain(|kind, quiet| {
            if now < quiet.until && !is_last {
                return true;
            }
            let record = quiet.record(&kind.what);
            quiet.until = now + QUIET;
            let is_kept = record.is_some();
            due.extend(record.map(|record| (kind.what.clone(), record)));
            is_kept
        });
        due.sort_by_cached_key(|(what, (principal, _))| (what.clone(), principal.to_string()));
        due.into_iter().map(|(_, record)| record).collect()
    }
}

impl Seldom {
    fn told(&self) -> MutexGuard<'_, Told> {
        // Nothing panics under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what is to be recorded of events that have no record yet; all of it when it is the last time.
    pub(super) fn due(&self, now: Instant, is_last: bool) -> Vec<(Principal, AuditEvent)> {
        self.told().due(now, is_last)
    }
}

impl AuditSink {
    /// Records that somebody asked for what is not theirs to ask for. Whoever asks again and again must not fill the log:
    /// of each kind there is a record a minute at most for each caller that is known by name, and for all strangers, with the
    /// number of those that have none.
    pub fn record_denied(&self, principal: &Principal, what: &'static str) {
        self.record_again(principal, Repeated::Access(what));
    }

    /// Records that somebody presented a credential that lets nobody in: as seldom, of each cause.
    pub fn record_unauthenticated(&self, principal: &Principal, cause: &'static str) {
        self.record_again(principal, Repeated::Authentication(cause));
    }

    /// Records that a connection out of this box was opened: of those to one place for one purpose there is a record a minute
    /// at most, with the number of those that have none.
    pub fn record_connection(&self, destination: String, region: String, purpose: &'static str) {
        self.record_again(&Principal::Local, Repeated::Connection { destination, region, purpose });
    }

    fn record_again(&self, principal: &Principal, what: Repeated) {
        let event = self.seldom().told().again(principal, what, Instant::now());
        if let Some(event) = event {
            self.record(principal, event);
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
        let (mut told, start) = (Told::default(), Instant::now());
        let (stranger, key) = (Principal::Others, Principal::Key("till".into()));
        let denied = |others| Some(AuditEvent::AccessDenied { what: "audit".into(), others });
        let mut deny =
            |who: &Principal, second| told.again(who, Repeated::Access("audit"), start + Duration::from_secs(second));
        assert_eq!((deny(&stranger, 0), deny(&key, 1), deny(&key, 2)), (denied(0), denied(0), None));
        assert_eq!((deny(&stranger, 60), deny(&stranger, 61), deny(&key, 62)), (denied(0), None, denied(1)));
        let due = |told: &mut Told, second| told.due(start + Duration::from_secs(second), false);
        assert_eq!(due(&mut told, 119), []);
        assert_eq!(due(&mut told, 122), [(stranger, denied(0).unwrap())]);
        assert_eq!((due(&mut told, 200), told.kinds.len()), (Vec::new(), 0), "what is over is forgotten");
    }

    #[test]
    fn however_many_keys_there_are_little_is_remembered() {
        let (mut told, now) = (Told::default(), Instant::now());
        for key in 0..2 * MOST_KINDS {
            told.again(&Principal::Key(key.to_string().into()), Repeated::Access("audit"), now);
        }
        assert!(told.kinds.len() <= MOST_KINDS + 1);
        let due = told.due(now, true);
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
        let rest = queue.take_untold(Instant::now() + QUIET, false);
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
