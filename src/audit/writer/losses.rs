//! What never became a record, until a record says so.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::audit_event::AuditEvent;
use crate::audit_event::sink::Lost;

/// Losses that go on are told this often.
const AGAIN: Duration = Duration::from_hours(1);

/// Why something was lost. As a record has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// It came faster than it could be written.
    Queue,
    /// The log may take no more room.
    Quota,
    /// There is no room on the disk.
    Disk,
    /// The log could not be written.
    Log,
}

impl Cause {
    /// As a record has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Quota => "quota",
            Self::Disk => "disk",
            Self::Log => "log",
        }
    }
}

/// What was lost and is yet to be told.
#[derive(Debug, Default)]
pub struct Losses {
    untold: BTreeMap<Cause, Lost>,
    told: BTreeMap<Cause, Instant>,
    calls: u64,
    events: u64,
}

impl Losses {
    /// Counts calls and other events that were lost.
    pub fn count(&mut self, cause: Cause, lost: Lost) {
        if lost.calls + lost.events == 0 {
            return;
        }
        self.calls += lost.calls;
        self.events += lost.events;
        let sum = self.untold.entry(cause).or_insert(Lost { since_ms: lost.since_ms, calls: 0, events: 0 });
        sum.since_ms = sum.since_ms.min(lost.since_ms);
        sum.calls += lost.calls;
        sum.events += lost.events;
    }

    /// Calls and other events since the start.
    pub fn total(&self) -> (u64, u64) {
        (self.calls, self.events)
    }

    /// The records to write now: of what is over, and once an hour of what goes on.
    pub fn due(&self, now: Instant, goes_on: impl Fn(Cause) -> bool) -> Vec<(Cause, AuditEvent)> {
        let is_due = |cause: &Cause| {
            !goes_on(*cause) || self.told.get(cause).is_some_and(|told| now.duration_since(*told) >= AGAIN)
        };
        let due = self.untold.iter().filter(|(cause, _)| is_due(cause));
        let event = |(cause, lost): (&Cause, &Lost)| {
            let Lost { since_ms, calls, events } = *lost;
            (*cause, AuditEvent::RecordsLost { cause: cause.as_str().into(), since_ms, calls, events })
        };
        due.map(event).collect()
    }

    /// What was lost of a cause until now is in the log.
    pub fn told(&mut self, cause: Cause, now: Instant) {
        self.untold.remove(&cause);
        self.told.insert(cause, now);
    }

    /// Notes when something began to go on, so that it is told an hour later.
    pub fn begins(&mut self, cause: Cause, now: Instant) {
        self.told.insert(cause, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_is_told_by_the_hour_and_what_is_over_at_once() {
        let (mut losses, start) = (Losses::default(), Instant::now());
        losses.begins(Cause::Quota, start);
        losses.count(Cause::Quota, Lost { since_ms: 7, calls: 3, events: 0 });
        losses.count(Cause::Quota, Lost { since_ms: 5, calls: 1, events: 1 });
        losses.count(Cause::Queue, Lost { since_ms: 9, calls: 0, events: 0 });
        assert!(losses.due(start, |_| true).is_empty());
        let expected = AuditEvent::RecordsLost { cause: "quota".into(), since_ms: 5, calls: 4, events: 1 };
        assert_eq!(losses.due(start, |_| false), [(Cause::Quota, expected.clone())]);
        let later = start + AGAIN;
        assert_eq!(losses.due(later, |_| true), [(Cause::Quota, expected)]);
        losses.told(Cause::Quota, later);
        assert!(losses.due(later, |_| false).is_empty());
        assert_eq!(losses.total(), (4, 1));
    }
}
