//! A token bucket: a rate of calls over time, and a burst of calls at once after a quiet time.

use std::fmt;
use std::time::{Duration, Instant};

use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize};

/// Calls a second: 0 for no limit, else from 0.001 to 1,000,000.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct CallRate(f64);

// The number is never NaN.
impl Eq for CallRate {}

impl CallRate {
    /// A rate, or `None` for a number out of range.
    pub fn new(per_second: f64) -> Option<Self> {
        (per_second == 0.0 || (0.001..=1e6).contains(&per_second)).then_some(Self(per_second))
    }

    /// True if it is a limit.
    pub fn is_set(self) -> bool {
        self.0 > 0.0
    }

    /// The time from one call to the next, from 1 us; `None` for no limit.
    pub fn interval(self) -> Option<Duration> {
        self.is_set().then(|| Duration::from_secs_f64(1.0 / self.0))
    }

    /// The number of calls at once: `burst`, or if that is 0 the calls of one second, at least one.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most a million")]
    pub fn burst(self, burst: u32) -> u32 {
        if burst > 0 { burst } else { (self.0.ceil() as u32).max(1) }
    }
}

impl fmt::Display for CallRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for CallRate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CallRateVisitor;

        impl Visitor<'_> for CallRateVisitor {
            type Value = CallRate;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("calls per second, from 0.001 to 1000000, or 0 for no limit")
            }

            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<CallRate, E> {
                CallRate::new(number).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Float(number), &self))
            }

            #[expect(clippy::cast_precision_loss, reason = "what is valid is far below 2^53")]
            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<CallRate, E> {
                self.visit_f64(number as f64)
            }

            #[expect(clippy::cast_precision_loss, reason = "what is valid is far below 2^53")]
            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<CallRate, E> {
                self.visit_f64(number as f64)
            }
        }

        deserializer.deserialize_any(CallRateVisitor)
    }
}

/// The refill rate and the size of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketRefill {
    /// The time in which one token is added.
    pub interval: Duration,
    /// The number of tokens in a full bucket; at least one.
    pub burst: u32,
}

/// A bucket of tokens, full at first.
///
/// It stores only the time at which it will be full again: the missing tokens are added until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    full_at: Instant,
}

impl TokenBucket {
    /// A bucket that is full at `now`.
    pub fn new(now: Instant) -> Self {
        Self { full_at: now }
    }

    /// Takes a token. The error is the time until there is one.
    pub fn take(&mut self, refill: BucketRefill, now: Instant) -> Result<(), Duration> {
        let missing = self.full_at.saturating_duration_since(now) + refill.interval;
        let capacity = refill.interval.saturating_mul(refill.burst.max(1));
        if missing > capacity {
            return Err(missing.saturating_sub(capacity));
        }
        self.full_at = now + missing;
        Ok(())
    }

    /// True if no token is missing.
    pub fn is_full(&self, now: Instant) -> bool {
        self.full_at <= now
    }

    /// Returns the last token, for a call that was refused after all.
    pub fn give_back(&mut self, refill: BucketRefill) {
        self.full_at = self.full_at.checked_sub(refill.interval).unwrap_or(self.full_at);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A simple model of the bucket: a level that rises with time up to the brim.
    struct LevelModel {
        level_ns: u128,
        at: Instant,
    }

    impl LevelModel {
        fn take(&mut self, refill: BucketRefill, now: Instant) -> Result<(), Duration> {
            let (token, brim) = (refill.interval.as_nanos(), refill.interval.as_nanos() * u128::from(refill.burst));
            self.level_ns = brim.min(self.level_ns + (now - self.at).as_nanos());
            self.at = now;
            match self.level_ns.checked_sub(token) {
                Some(left) => {
                    self.level_ns = left;
                    Ok(())
                }
                None => Err(Duration::from_nanos((token - self.level_ns).try_into().unwrap())),
            }
        }
    }

    fn refills() -> impl Strategy<Value = BucketRefill> {
        (1_000_u64..2_000_000_000, 1_u32..20)
            .prop_map(|(interval, burst)| BucketRefill { interval: Duration::from_nanos(interval), burst })
    }

    #[test]
    fn a_token_given_back_can_be_taken_again() {
        let refill = BucketRefill { interval: Duration::from_secs(1), burst: 1 };
        let now = Instant::now();
        let mut bucket = TokenBucket::new(now);
        assert_eq!(bucket.take(refill, now), Ok(()));
        assert_eq!(bucket.take(refill, now), Err(refill.interval));
        bucket.give_back(refill);
        assert_eq!(bucket.take(refill, now), Ok(()));
    }

    #[test]
    fn a_rate_gives_an_interval_and_a_burst_of_a_second() {
        let rate = |number| CallRate::new(number).unwrap();
        assert_eq!(rate(4.0).interval(), Some(Duration::from_millis(250)));
        assert_eq!(rate(0.0).interval(), None);
        assert_eq!([rate(2.5).burst(0), rate(0.1).burst(0), rate(2.5).burst(7)], [3, 1, 7]);
    }

    proptest! {
        #[test]
        fn it_does_what_a_rising_level_does(
            refill in refills(),
            // In tenths of an interval.
            waits in prop::collection::vec(0_u32..60, 0..200),
        ) {
            let mut now = Instant::now();
            let (mut bucket, mut told) = (TokenBucket::new(now), LevelModel { level_ns: u128::MAX >> 1, at: now });
            for wait in waits {
                now += refill.interval * wait / 10;
                prop_assert_eq!(bucket.take(refill, now), told.take(refill, now));
            }
        }

        #[test]
        fn no_time_sees_more_than_the_burst_and_what_came_meanwhile(
            refill in refills(),
            waits in prop::collection::vec(0_u32..30, 1..100),
            from in any::<prop::sample::Index>(),
        ) {
            let mut now = Instant::now();
            let mut bucket = TokenBucket::new(now);
            let mut taken = Vec::new();
            for wait in waits {
                now += refill.interval * wait / 10;
                if bucket.take(refill, now).is_ok() {
                    taken.push(now);
                }
            }
            // The first is always taken.
            let window = &taken[from.index(taken.len())..];
            let came = (window[window.len() - 1] - window[0]).as_nanos() / refill.interval.as_nanos();
            prop_assert!(window.len() as u128 <= came + u128::from(refill.burst));
        }

        #[test]
        fn who_waits_as_long_as_told_is_let_in_and_not_a_moment_sooner(refill in refills(), calls in 1_usize..60) {
            let now = Instant::now();
            let mut bucket = TokenBucket::new(now);
            for _ in 0..calls {
                if let Err(wait) = bucket.take(refill, now) {
                    let before = bucket;
                    prop_assert!(bucket.take(refill, now + wait.saturating_sub(Duration::from_nanos(1))).is_err());
                    prop_assert_eq!(bucket, before, "a refusal takes nothing");
                    let mut later = bucket;
                    prop_assert!(later.take(refill, now + wait).is_ok());
                }
            }
        }
    }
}
