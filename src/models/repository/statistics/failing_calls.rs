//! Calls that a model failed, and those that it answered meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time without a failure after which the model counts as well again.
const CALM: Duration = Duration::from_mins(5);

/// The time after which older calls count half.
const HALF_LIFE: Duration = Duration::from_mins(10);

/// The calls since a model began to fail.
#[derive(Debug, Default)]
pub struct FailingCalls {
    /// False while there is no span, so that calls of a model that never failed take no lock.
    is_counting: AtomicBool,
    span: Mutex<Option<FailureSpell>>,
}

/// Failures without a calm between two of them.
#[derive(Debug)]
struct FailureSpell {
    last: Instant,
    halved: Instant,
    counts: FailureCounts,
    /// Of the last failure.
    reason: String,
}

/// The calls that a model failed and answered in the last minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FailureCounts {
    pub failed: u64,
    pub answered: u64,
}

impl FailingCalls {
    /// Notes a call that the model failed for `reason`. Refused calls, and calls with mistakes of their callers, do not
    /// count.
    pub fn failed(&self, now: Instant, reason: &str) {
        let mut span = self.lock();
        let going_on = span.take().filter(|span| !span.is_over(now));
        let (halved, counts) = going_on.map_or((now, FailureCounts::default()), |span| (span.halved, span.counts));
        let mut new = FailureSpell { last: now, halved, counts, reason: reason.to_owned() };
        new.count(now, |counts| counts.failed += 1);
        *span = Some(new);
        self.is_counting.store(true, Ordering::Relaxed);
    }

    /// Takes note of a call that was answered.
    pub fn answered(&self, now: Instant) {
        if !self.is_counting.load(Ordering::Relaxed) {
            return;
        }
        let mut span = self.lock();
        if let Some(span) = span.as_mut().filter(|span| !span.is_over(now)) {
            span.count(now, |counts| counts.answered += 1);
        } else {
            *span = None;
            self.is_counting.store(false, Ordering::Relaxed);
        }
    }

    /// The calls of the last minutes, and the reason of the last failure; `None` without a failure.
    pub fn failing(&self, now: Instant) -> Option<(FailureCounts, String)> {
        let span = self.lock();
        let span = span.as_ref().filter(|span| !span.is_over(now))?;
        Some((span.counts, span.reason.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, Option<FailureSpell>> {
        // Nothing panics under this lock.
        self.span.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FailureSpell {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) >= CALM
    }

    fn count(&mut self, now: Instant, add: impl FnOnce(&mut FailureCounts)) {
        while now.saturating_duration_since(self.halved) >= HALF_LIFE {
            self.halved += HALF_LIFE;
            self.counts = FailureCounts { failed: self.counts.failed / 2, answered: self.counts.answered / 2 };
        }
        add(&mut self.counts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(calls: &FailingCalls, now: Instant) -> Option<(u64, u64, String)> {
        calls.failing(now).map(|(FailureCounts { failed, answered }, reason)| (failed, answered, reason))
    }

    #[test]
    fn answers_count_from_the_first_failure_to_the_calm_after_the_last() {
        let (calls, start) = (FailingCalls::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        calls.answered(at(0));
        assert_eq!(counts(&calls, at(0)), None);
        calls.failed(at(1), "a");
        calls.answered(at(2));
        calls.failed(at(200), "b");
        assert_eq!(counts(&calls, at(499)), Some((2, 1, "b".to_owned())));
        assert_eq!(counts(&calls, at(500)), None);
        calls.answered(at(501));
        assert!(!calls.is_counting.load(Ordering::Relaxed), "a model that is well again takes no lock");
        calls.failed(at(502), "c");
        assert_eq!(counts(&calls, at(503)), Some((1, 0, "c".to_owned())));
    }

    #[test]
    fn older_calls_count_half() {
        let (calls, start) = (FailingCalls::default(), Instant::now());
        for minute in 0..10 {
            calls.failed(start + Duration::from_mins(minute), "a");
        }
        calls.failed(start + HALF_LIFE, "a");
        assert_eq!(counts(&calls, start + HALF_LIFE), Some((6, 0, "a".to_owned())));
    }
}
