//! How fast a download may be, and how fast it must be. Pure: times since it began are passed in.

use std::time::Duration;

/// What was not used of the bandwidth is saved up for so long, so that a link that comes in bursts reaches the limit.
const SAVED: Duration = Duration::from_millis(250);

/// What a transfer must bring is asked for over this time.
const WINDOW: Duration = Duration::from_mins(1);

/// A limit on bytes a second, as a token bucket: told by when its tokens are paid for.
#[derive(Debug)]
pub(super) struct Bucket {
    per_s: u64,
    paid_until: Duration,
}

impl Bucket {
    /// So many bytes a second; 0 is no limit.
    pub(super) fn new(per_s: u64) -> Self {
        Self { per_s, paid_until: Duration::ZERO }
    }

    /// Takes bytes that are here already; how long to wait before the next.
    pub(super) fn take(&mut self, bytes: u64, now: Duration) -> Duration {
        if self.per_s == 0 {
            return Duration::ZERO;
        }
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.per_s);
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.paid_until = self.paid_until.max(now.saturating_sub(SAVED)).saturating_add(cost);
        self.paid_until.saturating_sub(now)
    }
}

/// Whether a transfer gets on: a server that sends a byte now and then would hold it for ever.
#[derive(Debug)]
pub(super) struct Pace {
    since: Duration,
    bytes: u64,
}

impl Pace {
    /// Of a transfer that begins now.
    pub(super) fn new(now: Duration) -> Self {
        Self { since: now, bytes: 0 }
    }

    /// Counts bytes that came. At the end of each minute: the bytes a second of that minute, if they are below `least`.
    pub(super) fn slower_than(&mut self, least: u64, bytes: u64, now: Duration) -> Option<u64> {
        self.bytes = self.bytes.saturating_add(bytes);
        let passed = now.saturating_sub(self.since);
        if passed < WINDOW {
            return None;
        }
        let rate = self.bytes / passed.as_secs().max(1);
        *self = Self::new(now);
        (rate < least).then_some(rate)
    }

    /// The transfer was held back for so long, which is not the server's fault.
    pub(super) fn excuse(&mut self, pause: Duration) {
        self.since = self.since.saturating_add(pause);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    proptest! {
        #[test]
        fn whoever_waits_as_told_never_exceeds_the_limit(
            per_s in 1..1_000_000_u64,
            steps in prop::collection::vec((0..100_000_u64, 0..5_000_u64), 1..50),
        ) {
            let (mut bucket, mut now, mut taken) = (Bucket::new(per_s), Duration::ZERO, 0_u64);
            for (bytes, idle_ms) in steps {
                now += Duration::from_millis(idle_ms);
                now += bucket.take(bytes, now);
                taken += bytes;
                let allowed = u128::from(per_s) * (now + SAVED + Duration::from_micros(1)).as_nanos() / 1_000_000_000;
                prop_assert!(u128::from(taken) <= allowed + 1, "{taken} bytes by {now:?}");
            }
        }
    }

    #[test]
    fn a_steady_transfer_gets_all_of_its_bandwidth() {
        let (mut bucket, mut now) = (Bucket::new(1_000), Duration::ZERO);
        for _ in 0..100 {
            now += bucket.take(500, now);
        }
        assert_eq!(now, 50 * SECOND);
    }

    #[test]
    fn without_a_limit_nobody_waits() {
        assert_eq!(Bucket::new(0).take(u64::MAX, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn a_byte_now_and_then_is_too_slow() {
        let mut pace = Pace::new(Duration::ZERO);
        let slow: Vec<_> = (1..=7).filter_map(|n| pace.slower_than(100, 1, 10 * n * SECOND)).collect();
        assert_eq!(slow, [0]);
    }

    #[test]
    fn each_minute_counts_for_itself() {
        let mut pace = Pace::new(Duration::ZERO);
        assert_eq!(pace.slower_than(100, 1_000_000, 60 * SECOND), None);
        assert_eq!(pace.slower_than(100, 5_999, 120 * SECOND), Some(99));
        assert_eq!(pace.slower_than(100, 6_000, 180 * SECOND), None);
    }

    #[test]
    fn what_the_box_holds_back_is_not_slow() {
        let mut pace = Pace::new(Duration::ZERO);
        pace.excuse(55 * SECOND);
        assert_eq!(pace.slower_than(100, 500, 60 * SECOND), None);
    }
}
