//! The pauses between attempts.

use std::time::Duration;

/// Pauses that double from `first` to `longest`, each drawn from its upper half: boxes that lost a server at the same
/// time do not reconnect at the same time.
#[derive(Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Pauses of at most `first`, then twice that, and never more than `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        let first = first.min(longest);
        Self { first, longest, next: first }
    }

    /// The next pause. `random` is anything from 0 to 1.
    pub fn pause(&mut self, random: f64) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.longest);
        pause.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
    }

    /// Starts again with the first pause, after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// Makes the next pause one of the longest, when an early attempt would do harm.
    pub fn give_way(&mut self) {
        self.next = self.longest;
    }
}

/// A random number from 0 to 1; 0.5 when the system has none.
pub fn random() -> f64 {
    let mut byte = [128_u8];
    let _ = getrandom::fill(&mut byte);
    f64::from(byte[0]) / 255.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew() {
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(3));
        let pauses: Vec<_> = (0..5).map(|_| backoff.pause(1.0).as_millis()).collect();
        assert_eq!(pauses, [500, 1000, 2000, 3000, 3000]);
        assert_eq!(backoff.pause(0.0).as_millis(), 1500);
        backoff.reset();
        assert_eq!(backoff.pause(1.0).as_millis(), 500);
        backoff.give_way();
        assert_eq!(backoff.pause(1.0).as_millis(), 3000);
    }

    #[test]
    fn a_first_pause_beyond_the_longest_is_the_longest() {
        let mut backoff = Backoff::new(Duration::from_mins(1), Duration::from_secs(3));
        assert_eq!([backoff.pause(1.0), backoff.pause(1.0)], [Duration::from_secs(3); 2]);
    }
}
