//! Failures that are remembered across starts, and the growing pauses before the next try. Pure: the time is passed in.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The pauses between two tries: the first, doubled after each further failure, at most the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPauses {
    pub first: Duration,
    pub longest: Duration,
}

impl RetryPauses {
    /// The pause after this many failures in a row.
    pub fn after(self, failures: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(failures.saturating_sub(1));
        self.first.saturating_mul(doubled).min(self.longest)
    }
}

/// Failures in a row, as a store keeps them. A success removes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailureStreak {
    failures: u32,
    /// Times of the first and the last failure, in milliseconds since the Unix epoch.
    first_ms: u64,
    last_ms: u64,
}

impl FailureStreak {
    /// The first failure.
    pub fn begin(now_ms: u64) -> Self {
        Self { failures: 1, first_ms: now_ms, last_ms: now_ms }
    }

    /// The streak with one more failure.
    #[must_use]
    pub fn and_again(self, now_ms: u64) -> Self {
        Self { failures: self.failures.saturating_add(1), last_ms: now_ms, ..self }
    }

    /// The number of failures in a row.
    pub fn failures(self) -> u32 {
        self.failures
    }

    /// The time of the first failure, in milliseconds since the Unix epoch.
    pub fn since_ms(self) -> u64 {
        self.first_ms
    }

    /// The time of the next try, in milliseconds since the Unix epoch.
    pub fn next_ms(self, pauses: RetryPauses) -> u64 {
        let pause = pauses.after(self.failures).as_millis();
        self.last_ms.saturating_add(u64::try_from(pause).unwrap_or(u64::MAX))
    }

    /// The time until the next try; zero when it is due. After the clock was set back the elapsed time is unknown, and
    /// a try does no harm.
    pub fn wait(self, pauses: RetryPauses, now_ms: u64) -> Duration {
        if now_ms < self.last_ms {
            return Duration::ZERO;
        }
        Duration::from_millis(self.next_ms(pauses).saturating_sub(now_ms))
    }

    /// True when the next try is due.
    pub fn is_due(self, pauses: RetryPauses, now_ms: u64) -> bool {
        self.wait(pauses, now_ms).is_zero()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAUSES: RetryPauses = RetryPauses { first: Duration::from_mins(1), longest: Duration::from_hours(24) };

    #[test]
    fn pauses_double_from_the_first_to_the_longest() {
        let minutes = |failures| PAUSES.after(failures).as_secs() / 60;
        assert_eq!([1, 2, 3, 11, 12, 100, u32::MAX].map(minutes), [1, 2, 4, 1024, 1440, 1440, 1440]);
    }

    #[test]
    fn a_streak_is_due_when_its_pause_is_over_and_keeps_its_beginning() {
        let streak = FailureStreak::begin(1_000).and_again(61_000);
        assert_eq!((streak.failures(), streak.since_ms(), streak.next_ms(PAUSES)), (2, 1_000, 181_000));
        assert!(!streak.is_due(PAUSES, 180_999) && streak.is_due(PAUSES, 181_000));
        assert_eq!(streak.wait(PAUSES, 121_000), Duration::from_mins(1));
    }

    proptest! {
        #[test]
        fn a_wait_is_never_longer_than_a_pause_whatever_the_clock_does(
            times in prop::collection::vec(any::<u64>(), 1..40), now_ms: u64,
        ) {
            let (first, rest) = times.split_first().unwrap();
            let streak = rest.iter().fold(FailureStreak::begin(*first), |streak, at| streak.and_again(*at));
            prop_assert_eq!(streak.failures() as usize, times.len());
            let wait = streak.wait(PAUSES, now_ms);
            prop_assert!(wait <= PAUSES.after(streak.failures()) && wait <= PAUSES.longest);
            prop_assert_eq!(streak.is_due(PAUSES, now_ms), wait.is_zero());
            prop_assert!(streak.is_due(PAUSES, streak.next_ms(PAUSES)));
            prop_assert!(streak.is_due(PAUSES, streak.last_ms.saturating_sub(1)) || streak.last_ms == 0);
        }

        #[test]
        fn a_further_failure_never_shortens_the_pause(failures in 1..200_u32) {
            prop_assert!(PAUSES.after(failures) <= PAUSES.after(failures + 1));
            prop_assert!(PAUSES.after(failures) >= PAUSES.first && PAUSES.after(failures) <= PAUSES.longest);
        }

        #[test]
        fn a_streak_is_the_same_after_it_was_stored(failures: u32, first_ms: u64, last_ms: u64) {
            let streak = FailureStreak { failures, first_ms, last_ms };
            let stored = serde_json::to_string(&streak).unwrap();
            prop_assert_eq!(serde_json::from_str::<FailureStreak>(&stored).unwrap(), streak);
        }
    }
}
