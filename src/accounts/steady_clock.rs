//! A clock that follows the system's clock, but a step of it only after it has lasted.

use std::time::{Duration, Instant};

/// A difference up to this is a correction, not a step, in milliseconds.
const CORRECTION_MAX_MS: u64 = 60_000;

/// A step is followed once it has lasted for this time: a clock that is set wrong and right again moves nothing.
const STEP_LASTS: Duration = Duration::from_mins(10);

/// The clock.
#[derive(Debug)]
pub struct SteadyClock {
    /// The time that it showed at `at`, in milliseconds since the Unix epoch.
    shown_ms: u64,
    at: Instant,
    /// A step that has not lasted yet, in milliseconds, and the time of its first reading.
    step: Option<(i64, Instant)>,
}

/// A reading of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SteadyTime {
    /// In milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// A step that the clock follows from now on, in milliseconds; 0 is none.
    pub stepped_ms: i64,
}

impl SteadyClock {
    pub fn new(system_ms: u64, now: Instant) -> Self {
        Self { shown_ms: system_ms, at: now, step: None }
    }

    /// The time without following the system's clock.
    pub fn now_ms(&self, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.at).as_millis();
        self.shown_ms.saturating_add(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }

    /// Reads it. `system_ms` is what the system's clock shows at `now`.
    pub fn read(&mut self, system_ms: u64, now: Instant) -> SteadyTime {
        let steady_ms = self.now_ms(now);
        let difference = i64::try_from(system_ms).unwrap_or(i64::MAX) - i64::try_from(steady_ms).unwrap_or(i64::MAX);
        let mut stepped_ms = 0;
        if difference.unsigned_abs() <= CORRECTION_MAX_MS {
            self.step = None;
        } else {
            let before = self.step.filter(|(step, _)| step.abs_diff(difference) <= CORRECTION_MAX_MS);
            let (_, since) = *self.step.insert(before.unwrap_or((difference, now)));
            if now.saturating_duration_since(since) < STEP_LASTS {
                return SteadyTime { now_ms: steady_ms, stepped_ms: 0 };
            }
            self.step = None;
            stepped_ms = difference;
        }
        (self.shown_ms, self.at) = (system_ms, now);
        SteadyTime { now_ms: system_ms, stepped_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR_MS: u64 = 365 * 86_400_000;

    /// Reads a clock at these seconds, with the system's clock off by these milliseconds.
    fn readings(seconds: &[(u64, i64)]) -> Vec<(i64, i64)> {
        let (start, begin_ms) = (Instant::now(), 1_800_000_000_000_u64);
        let mut clock = SteadyClock::new(begin_ms, start);
        let read = |(second, off): &(u64, i64)| {
            let true_ms = begin_ms + second * 1000;
            let time = clock.read(true_ms.checked_add_signed(*off).unwrap(), start + Duration::from_secs(*second));
            (i64::try_from(time.now_ms).unwrap() - i64::try_from(true_ms).unwrap(), time.stepped_ms)
        };
        seconds.iter().map(read).collect()
    }

    #[test]
    fn a_correction_is_followed_at_once_and_a_step_after_ten_minutes() {
        assert_eq!(readings(&[(5, 900), (10, -40_000)]), [(900, 0), (-40_000, 0)]);
        for step in [YEAR_MS.cast_signed(), -YEAR_MS.cast_signed(), 61_000] {
            assert_eq!(
                readings(&[(5, step), (600, step), (604, step), (605, step), (610, step)]),
                [(0, 0), (0, 0), (0, 0), (step, step), (step, 0)]
            );
        }
    }

    #[test]
    fn a_clock_that_is_set_wrong_and_right_again_moves_nothing() {
        let wrong = YEAR_MS.cast_signed();
        assert_eq!(readings(&[(5, wrong), (500, wrong), (505, 0), (700, 0)]), [(0, 0); 4]);
        // Another step begins to last anew.
        assert_eq!(readings(&[(5, wrong), (500, 2 * wrong), (700, 2 * wrong)]), [(0, 0); 3]);
    }
}
