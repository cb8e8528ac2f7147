//! Good and bad calls of the last buckets of time.

use serde::{Deserialize, Serialize};

/// The calls of a bucket or a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CallCounts {
    pub good: u32,
    pub bad: u32,
}

/// The sums of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowCounts {
    pub good: u64,
    pub bad: u64,
}

impl WindowCounts {
    pub fn total(self) -> u64 {
        self.good + self.bad
    }
}

/// A ring of buckets, each of the same width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountRing {
    width_ms: u64,
    /// The number of the newest bucket since the Unix epoch.
    newest: u64,
    /// The newest last.
    counts: std::collections::VecDeque<CallCounts>,
}

/// The buckets with calls, by their age in buckets, as they are stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRing {
    pub newest: u64,
    pub counts: Vec<(u16, CallCounts)>,
}

impl CountRing {
    pub fn new(width_ms: u64, buckets: usize) -> Self {
        Self { width_ms, newest: 0, counts: vec![CallCounts::default(); buckets].into() }
    }

    /// Counts calls at this time. Time does not go back: an earlier time counts in the newest bucket.
    pub fn add(&mut self, now_ms: u64, good: u64, bad: u64) {
        let bucket = now_ms / self.width_ms;
        let new = usize::try_from(bucket.saturating_sub(self.newest)).unwrap_or(usize::MAX).min(self.counts.len());
        for _ in 0..new {
            self.counts.pop_front();
            self.counts.push_back(CallCounts::default());
        }
        self.newest = self.newest.max(bucket);
        if let Some(newest) = self.counts.back_mut() {
            let add =
                |count: &mut u32, more: u64| *count = count.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
            add(&mut newest.good, good);
            add(&mut newest.bad, bad);
        }
    }

    /// The calls of the last `buckets`, the newest and unfinished one among them.
    pub fn sum(&self, buckets: usize) -> WindowCounts {
        self.counts.iter().rev().take(buckets).fold(WindowCounts::default(), |sum, counts| WindowCounts {
            good: sum.good + u64::from(counts.good),
            bad: sum.bad + u64::from(counts.bad),
        })
    }

    /// Moves all buckets in time, when the clock is set.
    pub fn shift(&mut self, by_ms: i64) {
        let buckets = by_ms / i64::try_from(self.width_ms).unwrap_or(i64::MAX).max(1);
        self.newest = self.newest.saturating_add_signed(buckets);
    }

    pub fn stored(&self) -> StoredRing {
        let with_age = (0_u16..).zip(self.counts.iter().rev().copied());
        StoredRing {
            newest: self.newest,
            counts: with_age.filter(|(_, counts)| *counts != CallCounts::default()).collect(),
        }
    }

    /// Takes over what was stored. Buckets that the ring does not have are left out.
    pub fn restore(&mut self, stored: &StoredRing) {
        self.newest = stored.newest;
        let last = self.counts.len();
        for (age, counts) in &stored.counts {
            if let Some(bucket) = last.checked_sub(1 + usize::from(*age)).and_then(|place| self.counts.get_mut(place)) {
                *bucket = *counts;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_bucket_is_forgotten_when_the_ring_is_full() {
        let mut ring = CountRing::new(1000, 3);
        ring.add(1_000_000, 5, 1);
        ring.add(1_001_500, 7, 0);
        assert_eq!(ring.sum(3), WindowCounts { good: 12, bad: 1 });
        assert_eq!(ring.sum(1), WindowCounts { good: 7, bad: 0 });
        ring.add(1_003_000, 0, 0);
        assert_eq!(ring.sum(3), WindowCounts { good: 7, bad: 0 });
        ring.add(1_000_000, 1, 1);
        assert_eq!(ring.sum(1), WindowCounts { good: 1, bad: 1 }, "time does not go back");
        ring.add(u64::MAX, 0, 0);
        assert_eq!(ring.sum(3), WindowCounts::default());
    }

    #[test]
    fn a_clock_that_is_set_back_keeps_the_counts_and_their_ages() {
        let mut ring = CountRing::new(1000, 3);
        ring.add(9_000_000, 5, 1);
        ring.shift(-8_000_000);
        ring.add(1_002_000, 0, 0);
        assert_eq!((ring.sum(2).bad, ring.sum(3).bad), (0, 1));
    }

    proptest! {
        #[test]
        fn a_ring_is_stored_whole(adds in prop::collection::vec((0_u64..100_000, 0_u64..9, 0_u64..9), 0..50)) {
            let mut ring = CountRing::new(1000, 20);
            for (at, good, bad) in adds {
                ring.add(at, good, bad);
            }
            let mut restored = CountRing::new(1000, 20);
            restored.restore(&ring.stored());
            prop_assert_eq!(restored, ring);
        }
    }
}
