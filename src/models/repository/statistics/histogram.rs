//! Distributions in fixed buckets: counted in an array, without an allocation, and added up over boxes by Prometheus.

use std::time::Duration;

/// Number of bounded buckets of a distribution of times.
const TIME_BUCKETS: usize = 19;

/// Upper bounds of times, in nanoseconds: 25 µs to 30 s in steps of 2 to 3.
///
/// The lowest is below the time of the smallest model over a socket, the highest is the longest reasonable deadline.
/// Round numbers, so that a rule such as "99 % within 10 ms" is exact; between two bounds a quantile is an estimate,
/// off by 2.5 times at worst. Finer buckets would double the number of series on every box for little use: means are
/// exact in any case.
const TIME_BOUNDS: [u64; TIME_BUCKETS] = {
    const US: u64 = 1_000;
    const MS: u64 = 1_000 * US;
    const S: u64 = 1_000 * MS;
    [
        25 * US,
        50 * US,
        100 * US,
        250 * US,
        500 * US,
        MS,
        2_500 * US,
        5 * MS,
        10 * MS,
        25 * MS,
        50 * MS,
        100 * MS,
        250 * MS,
        500 * MS,
        S,
        2_500 * MS,
        5 * S,
        10 * S,
        30 * S,
    ]
};

/// Number of bounded buckets of a distribution of batch sizes.
const SIZE_BUCKETS: usize = 9;

/// Upper bounds of batch sizes: the powers of two that batches are usually limited to.
const SIZE_BOUNDS: [u64; SIZE_BUCKETS] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// A distribution over `N` bounded buckets and one above them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Histogram<const N: usize> {
    bounds: &'static [u64; N],
    /// Number of values in each bucket, without those of the buckets below.
    counts: [u64; N],
    /// Number of values above the last bound.
    above: u64,
    sum: u64,
}

/// A distribution of times; its unit is the nanosecond.
pub type TimeHistogram = Histogram<TIME_BUCKETS>;

/// A distribution of batch sizes; its unit is the element.
pub type SizeHistogram = Histogram<SIZE_BUCKETS>;

impl<const N: usize> Histogram<N> {
    /// Nothing counted yet. `bounds` ascend.
    const fn new(bounds: &'static [u64; N]) -> Self {
        Self { bounds, counts: [0; N], above: 0, sum: 0 }
    }

    /// Counts a value in the bucket of the lowest bound that it does not exceed.
    pub fn record(&mut self, value: u64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        *self.counts.get_mut(bucket).unwrap_or(&mut self.above) += 1;
        // 584 years of nanoseconds.
        self.sum = self.sum.saturating_add(value);
    }

    /// Values counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum::<u64>() + self.above
    }

    /// All values together, in the unit of the bounds.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Adds the values of another distribution over the same bounds.
    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        self.above += other.above;
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// The buckets, ascending: the upper bound, `None` above the last, and how many values fell between it and the one
    /// below.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        self.bounds.iter().copied().map(Some).zip(self.counts).chain([(None, self.above)])
    }
}

impl Default for TimeHistogram {
    fn default() -> Self {
        Self::new(&TIME_BOUNDS)
    }
}

impl TimeHistogram {
    /// Counts a time.
    pub fn add(&mut self, time: Duration) {
        self.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }
}

impl Default for SizeHistogram {
    fn default() -> Self {
        Self::new(&SIZE_BOUNDS)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_value_on_a_bound_belongs_below_it() {
        let mut sizes = SizeHistogram::default();
        for size in [1, 2, 3, 4, 256, 257] {
            sizes.record(size);
        }
        let filled: Vec<_> = sizes.buckets().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(Some(1), 1), (Some(2), 1), (Some(4), 2), (Some(256), 1), (None, 1)]);
        assert_eq!((sizes.count(), sizes.sum()), (6, 523));
    }

    #[test]
    fn the_bounds_ascend() {
        assert!(TIME_BOUNDS.is_sorted_by(|a, b| a < b) && SIZE_BOUNDS.is_sorted_by(|a, b| a < b));
    }

    proptest! {
        #[test]
        fn every_value_is_in_the_one_bucket_that_holds_it(bits in any::<u64>(), size in 0..64) {
            let nanos = bits >> size;
            let mut times = TimeHistogram::default();
            times.add(Duration::from_nanos(nanos));
            let mut below = 0;
            for (bound, count) in times.buckets() {
                let holds = nanos <= bound.unwrap_or(u64::MAX) && (nanos > below || below == 0);
                prop_assert_eq!(count, u64::from(holds));
                below = bound.unwrap_or(u64::MAX);
            }
            prop_assert_eq!((times.count(), times.sum()), (1, nanos));
        }
    }
}
