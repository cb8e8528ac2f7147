//! The time of the next check of the platform. Pure: time and chance are passed in.

use std::time::{Duration, Instant};

use ledge_base::backoff::Backoff;

/// Longest first pause after a failure.
const FIRST_PAUSE_MAX: Duration = Duration::from_secs(5);

/// Least time between two checks that hints cause.
const HINT_INTERVAL_MIN: Duration = Duration::from_secs(5);

/// Longest pause that a server may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_hours(6);

/// The schedule of checks.
#[derive(Debug)]
pub struct CheckSchedule {
    interval: Duration,
    backoff: Backoff,
    next: Instant,
    /// The beginning of the last check.
    last: Option<Instant>,
}

impl CheckSchedule {
    /// Makes a schedule of a check at once, and then one each `interval`.
    pub fn new(interval: Duration, now: Instant) -> Self {
        Self { interval, backoff: Backoff::new(FIRST_PAUSE_MAX, interval), next: now, last: None }
    }

    /// Returns the time of the next check.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Notes the beginning of a check.
    pub fn begin(&mut self, now: Instant) {
        self.last = Some(now);
    }

    /// Moves the next check forward, because there may be something new. To be called between checks.
    pub fn hint(&mut self, now: Instant) {
        let earliest = self.last.map_or(now, |last| last + HINT_INTERVAL_MIN);
        self.next = self.next.min(earliest.max(now));
    }

    /// Plans the check after one that succeeded. `random` is anything from 0 to 1.
    pub fn succeeded(&mut self, now: Instant, random: f64) {
        self.backoff.reset();
        self.next = now + self.interval.mul_f64(0.75 + random.clamp(0.0, 1.0) / 2.0);
    }

    /// Plans the check after one that failed, with the pause that the server may have asked for. Pauses grow up to the
    /// interval.
    pub fn failed(&mut self, now: Instant, retry_after: Option<Duration>, random: f64) {
        let pause = self.backoff.pause(random);
        // The server sends all boxes the same pause, so spread them.
        let asked = retry_after.map(|pause| pause.min(RETRY_AFTER_MAX).mul_f64(1.0 + random.clamp(0.0, 1.0) / 2.0));
        self.next = now + asked.unwrap_or_default().max(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_mins(5);

    #[test]
    fn checks_are_a_quarter_of_the_interval_early_or_late() {
        let now = Instant::now();
        let mut schedule = CheckSchedule::new(INTERVAL, now);
        assert_eq!(schedule.next(), now);
        for (random, seconds) in [(0.0, 225), (0.5, 300), (1.0, 375)] {
            schedule.succeeded(now, random);
            assert_eq!(schedule.next() - now, Duration::from_secs(seconds));
        }
    }

    #[test]
    fn failures_make_pauses_grow_up_to_the_interval() {
        let now = Instant::now();
        let mut schedule = CheckSchedule::new(INTERVAL, now);
        let mut pause = |retry_after| {
            schedule.failed(now, retry_after, 1.0);
            (schedule.next() - now).as_secs()
        };
        assert_eq!([0; 8].map(|_: i32| pause(None)), [5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(pause(Some(Duration::from_secs(1000))), 1500);
        assert_eq!(pause(Some(Duration::from_secs(1 << 40))), 9 * 3600);
        schedule.succeeded(now, 0.5);
        schedule.failed(now, None, 0.0);
        assert_eq!(schedule.next() - now, FIRST_PAUSE_MAX / 2);
    }

    #[test]
    fn a_hint_is_a_check_now_and_many_are_one_in_five_seconds() {
        let now = Instant::now();
        let mut schedule = CheckSchedule::new(INTERVAL, now);
        schedule.begin(now);
        schedule.succeeded(now, 0.5);
        schedule.hint(now + Duration::from_secs(1));
        assert_eq!(schedule.next() - now, HINT_INTERVAL_MIN);
        schedule.begin(now + HINT_INTERVAL_MIN);
        schedule.succeeded(now + HINT_INTERVAL_MIN, 0.5);
        let late = now + Duration::from_mins(1);
        schedule.hint(late);
        assert_eq!(schedule.next(), late);
        schedule.hint(late + Duration::from_secs(1));
        assert_eq!(schedule.next(), late, "a hint never postpones a check");
    }
}
