//! Events that never became records, until a record reports them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ledge_service::audit_event::AuditEvent;
use ledge_service::audit_event::sink::LostEntries;

/// Interval between two reports of losses that continue.
const LOSS_REPORT_INTERVAL: Duration = Duration::from_hours(1);

/// The cause of a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossCause {
    /// Events arrived faster than they could be written.
    Queue,
    /// The quota of the log is used up.
    Quota,
    /// The disk is full.
    Disk,
    /// The log could not be written.
    Log,
}

impl LossCause {
    /// The name in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Quota => "quota",
            Self::Disk => "disk",
            Self::Log => "log",
        }
    }
}

/// Losses that are yet to be reported.
#[derive(Debug, Default)]
pub struct UnreportedLosses {
    untold: BTreeMap<LossCause, LostEntries>,
    told: BTreeMap<LossCause, Instant>,
    calls: u64,
    events: u64,
}

impl UnreportedLosses {
    /// Counts calls and other events that were lost.
    pub fn count(&mut self, cause: LossCause, lost: LostEntries) {
        if lost.calls + lost.events == 0 {
            return;
        }
        self.calls += lost.calls;
        self.events += lost.events;
        self.add(cause, lost);
    }

    fn add(&mut self, cause: LossCause, lost: LostEntries) {
        let sum = self.untold.entry(cause).or_insert(LostEntries { since_ms: lost.since_ms, calls: 0, events: 0 });
        sum.since_ms = sum.since_ms.min(lost.since_ms);
        sum.calls += lost.calls;
        sum.events += lost.events;
    }

    /// The calls and other events lost since the start.
    pub fn total(&self) -> (u64, u64) {
        (self.calls, self.events)
    }

    /// Takes the losses to report now: those that are over, and once an hour those that continue.
    pub fn take_due(&mut self, now: Instant, goes_on: impl Fn(LossCause) -> bool) -> Vec<(LossCause, LostEntries)> {
        let told = &self.told;
        let is_due = |cause: &LossCause, _: &mut LostEntries| {
            !goes_on(*cause) || told.get(cause).is_some_and(|told| now.duration_since(*told) >= LOSS_REPORT_INTERVAL)
        };
        self.untold.extract_if(.., is_due).collect()
    }

    /// Puts back losses that could not be reported.
    pub fn put_back(&mut self, due: Vec<(LossCause, LostEntries)>) {
        for (cause, lost) in due {
            self.add(cause, lost);
        }
    }

    /// Notes that losses are reported in the log.
    pub fn told(&mut self, due: &[(LossCause, LostEntries)], now: Instant) {
        self.told.extend(due.iter().map(|(cause, _)| (*cause, now)));
    }

    /// Notes that losses begin, so that they are reported an hour later.
    pub fn begins(&mut self, cause: LossCause, now: Instant) {
        self.told.insert(cause, now);
    }
}

/// The event that reports a loss.
pub fn event(cause: LossCause, lost: LostEntries) -> AuditEvent {
    let LostEntries { since_ms, calls, events } = lost;
    AuditEvent::RecordsLost { cause: cause.as_str().into(), since_ms, calls, events }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_is_told_by_the_hour_and_what_is_over_at_once() {
        let (mut losses, start) = (UnreportedLosses::default(), Instant::now());
        losses.begins(LossCause::Quota, start);
        losses.count(LossCause::Quota, LostEntries { since_ms: 7, calls: 3, events: 0 });
        losses.count(LossCause::Quota, LostEntries { since_ms: 5, calls: 1, events: 1 });
        losses.count(LossCause::Queue, LostEntries { since_ms: 9, calls: 0, events: 0 });
        assert!(losses.take_due(start, |_| true).is_empty());
        let expected = [(LossCause::Quota, LostEntries { since_ms: 5, calls: 4, events: 1 })];
        let over = losses.take_due(start, |_| false);
        assert_eq!(over, expected);
        // Losses that are counted before a report succeeds are kept, and none is counted twice.
        losses.count(LossCause::Quota, LostEntries { since_ms: 8, calls: 2, events: 0 });
        losses.put_back(over);
        let later = start + LOSS_REPORT_INTERVAL;
        let due = losses.take_due(later, |_| true);
        assert_eq!(due, [(LossCause::Quota, LostEntries { since_ms: 5, calls: 6, events: 1 })]);
        losses.count(LossCause::Quota, LostEntries { since_ms: 9, calls: 1, events: 0 });
        losses.told(&due, later);
        assert!(losses.take_due(later, |_| true).is_empty());
        assert_eq!(
            losses.take_due(later, |_| false),
            [(LossCause::Quota, LostEntries { since_ms: 9, calls: 1, events: 0 })]
        );
        assert_eq!(losses.total(), (7, 1));
    }
}
