//! The highest and the least rate of a download. Pure: times since its beginning are passed in.

use std::time::Duration;

/// Time for which unused bandwidth is saved up, so that a link that delivers in bursts reaches the limit.
const BURST_DURATION: Duration = Duration::from_millis(250);

/// Window over which the least rate is judged.
const RATE_WINDOW: Duration = Duration::from_mins(1);

/// A limit on bytes a second, as a token bucket, kept as the time until which its tokens are used.
#[derive(Debug)]
pub(super) struct DownloadBucket {
    per_s: u64,
    paid_until: Duration,
}

impl DownloadBucket {
    /// Makes a limit of this many bytes a second; 0 is no limit.
    pub(super) fn new(per_s: u64) -> Self {
        Self { per_s, paid_until: Duration::ZERO }
    }

    /// Takes tokens for bytes that have arrived; returns the time to wait before the next.
    pub(super) fn take(&mut self, bytes: u64, now: Duration) -> Duration {
        if self.per_s == 0 {
            return Duration::ZERO;
        }
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.per_s);
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.paid_until = self.paid_until.max(now.saturating_sub(BURST_DURATION)).saturating_add(cost);
        self.paid_until.saturating_sub(now)
    }
}

/// A least rate. Without it, a server that sends a byte now and then would keep a transfer open for ever.
#[derive(Debug)]
pub(super) struct MinimumRate {
    since: Duration,
    bytes: u64,
}

impl MinimumRate {
    /// Begins to measure a transfer now.
    pub(super) fn new(now: Duration) -> Self {
        Self { since: now, bytes: 0 }
    }

    /// Counts bytes. At the end of each minute, returns the bytes a second of that minute, if they are below `least`.
    pub(super) fn slower_than(&mut self, least: u64, bytes: u64, now: Duration) -> Option<u64> {
        self.bytes = self.bytes.saturating_add(bytes);
        let passed = now.saturating_sub(self.since);
        if passed < RATE_WINDOW {
            return None;
        }
        let rate = self.bytes / passed.as_secs().max(1);
        *self = Self::new(now);
        (rate < least).then_some(rate)
    }

    /// Excludes time for which this box held the transfer back.
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
        fn a_transfer_that_waits_as_told_never_exceeds_the_limit(
            per_s in 1..1_000_000_u64,
            steps in prop::collection::vec((0..100_000_u64, 0..5_000_u64), 1..50),
        ) {
            let (mut bucket, mut now, mut taken) = (DownloadBucket::new(per_s), Duration::ZERO, 0_u64);
            for (bytes, idle_ms) in steps {
                now += Duration::from_millis(idle_ms);
                now += bucket.take(bytes, now);
                taken += bytes;
                let allowed = u128::from(per_s) * (now + BURST_DURATION + Duration::from_micros(1)).as_nanos() / 1_000_000_000;
                prop_assert!(u128::from(taken) <= allowed + 1, "{taken} bytes by {now:?}");
            }
        }
    }

    #[test]
    fn a_steady_transfer_gets_all_of_its_bandwidth() {
        let (mut bucket, mut now) = (DownloadBucket::new(1_000), Duration::ZERO);
        for _ in 0..100 {
            now += bucket.take(500, now);
        }
        assert_eq!(now, 50 * SECOND);
    }

    #[test]
    fn without_a_limit_nobody_waits() {
        assert_eq!(DownloadBucket::new(0).take(u64::MAX, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn a_byte_now_and_then_is_too_slow() {
        let mut rate = MinimumRate::new(Duration::ZERO);
        let slow: Vec<_> = (1..=7).filter_map(|n| rate.slower_than(100, 1, 10 * n * SECOND)).collect();
        assert_eq!(slow, [0]);
    }

    #[test]
    fn each_minute_counts_for_itself() {
        let mut rate = MinimumRate::new(Duration::ZERO);
        assert_eq!(rate.slower_than(100, 1_000_000, 60 * SECOND), None);
        assert_eq!(rate.slower_than(100, 5_999, 120 * SECOND), Some(99));
        assert_eq!(rate.slower_than(100, 6_000, 180 * SECOND), None);
    }

    #[test]
    fn what_the_box_holds_back_is_not_slow() {
        let mut rate = MinimumRate::new(Duration::ZERO);
        rate.excuse(55 * SECOND);
        assert_eq!(rate.slower_than(100, 500, 60 * SECOND), None);
    }
}
