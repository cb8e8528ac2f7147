//! When the platform is asked next. Pure: time and chance come in.

use std::time::{Duration, Instant};

use ledge_base::backoff::Backoff;

/// The first pause after a failure is at most this.
const FIRST: Duration = Duration::from_secs(5);

/// Hints lead to one look in so much time.
const HINTS: Duration = Duration::from_secs(5);

/// A server that asks for patience gets at most this much.
const PATIENCE: Duration = Duration::from_hours(6);

/// When to look.
#[derive(Debug)]
pub struct Pace {
    interval: Duration,
    backoff: Backoff,
    next: Instant,
    /// The beginning of the last look.
    last: Option<Instant>,
}

impl Pace {
    /// Looks at once, and then each `interval`.
    pub fn new(interval: Duration, now: Instant) -> Self {
        Self { interval, backoff: Backoff::new(FIRST, interval), next: now, last: None }
    }

    /// When the next look is due.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// A look begins.
    pub fn begin(&mut self, now: Instant) {
        self.last = Some(now);
    }

    /// Somebody says that there is something new. For between looks.
    pub fn hint(&mut self, now: Instant) {
        let earliest = self.last.map_or(now, |last| last + HINTS);
        self.next = self.next.min(earliest.max(now));
    }

    /// A look went well. `random` is anything from 0 to 1.
    pub fn succeeded(&mut self, now: Instant, random: f64) {
        self.backoff.reset();
        self.next = now + self.interval.mul_f64(0.75 + random.clamp(0.0, 1.0) / 2.0);
    }

    /// A look failed; the server may have said when another is worth it. Pauses grow up to the interval.
    pub fn failed(&mut self, now: Instant, retry_after: Option<Duration>, random: f64) {
        let pause = self.backoff.pause(random);
        // What the server says is for everybody at once: some come later.
        let asked = retry_after.map(|pause| pause.min(PATIENCE).mul_f64(1.0 + random.clamp(0.0, 1.0) / 2.0));
        self.next = now + asked.unwrap_or_default().max(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_mins(5);

    #[test]
    fn looks_are_a_quarter_of_the_interval_early_or_late() {
        let now = Instant::now();
        let mut pace = Pace::new(INTERVAL, now);
        assert_eq!(pace.next(), now);
        for (random, seconds) in [(0.0, 225), (0.5, 300), (1.0, 375)] {
            pace.succeeded(now, random);
            assert_eq!(pace.next() - now, Duration::from_secs(seconds));
        }
    }

    #[test]
    fn failures_make_pauses_grow_up_to_the_interval() {
        let now = Instant::now();
        let mut pace = Pace::new(INTERVAL, now);
        let mut pause = |retry_after| {
            pace.failed(now, retry_after, 1.0);
            (pace.next() - now).as_secs()
        };
        assert_eq!([0; 8].map(|_: i32| pause(None)), [5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(pause(Some(Duration::from_secs(1000))), 1500);
        assert_eq!(pause(Some(Duration::from_secs(1 << 40))), 9 * 3600);
        pace.succeeded(now, 0.5);
        pace.failed(now, None, 0.0);
        assert_eq!(pace.next() - now, FIRST / 2);
    }

    #[test]
    fn a_hint_is_a_look_now_and_many_are_one_in_five_seconds() {
        let now = Instant::now();
        let mut pace = Pace::new(INTERVAL, now);
        pace.begin(now);
        pace.succeeded(now, 0.5);
        pace.hint(now + Duration::from_secs(1));
        assert_eq!(pace.next() - now, HINTS);
        pace.begin(now + HINTS);
        pace.succeeded(now + HINTS, 0.5);
        let late = now + Duration::from_mins(1);
        pace.hint(late);
        assert_eq!(pace.next(), late);
        pace.hint(late + Duration::from_secs(1));
        assert_eq!(pace.next(), late, "a hint never puts a look off");
    }
}
