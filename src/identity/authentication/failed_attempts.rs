//! The limit of failed attempts to authenticate: ten at once, then one in six seconds, for each source.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ledge_base::token_bucket::{BucketRefill, TokenBucket};

use super::network;

/// Ten failed attempts at once, then one every six seconds.
const FAILURE_REFILL: BucketRefill = BucketRefill { interval: Duration::from_secs(6), burst: 10 };

/// The most sources with a separate bucket. Further sources share one bucket until others are full again.
const SOURCES_MAX: usize = 4096;

/// The origin of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailedAttemptSource {
    /// An IPv4 address, or an IPv6 network: a customer with one IPv6 address has 2^64.
    Network(IpAddr),
    /// A user of this machine.
    User(u32),
    Broker,
}

impl FailedAttemptSource {
    /// The source of an address.
    pub fn network(ip: IpAddr) -> Self {
        Self::Network(network(ip))
    }
}

/// The recent failed attempts.
#[derive(Debug, Default)]
pub struct FailedAttempts {
    sources: HashMap<FailedAttemptSource, TokenBucket>,
    others: Option<TokenBucket>,
}

impl FailedAttempts {
    /// Counts a failed attempt. The error is the time until the next attempt.
    pub fn take(&mut self, source: FailedAttemptSource, now: Instant) -> Result<(), Duration> {
        if self.sources.len() >= SOURCES_MAX && !self.sources.contains_key(&source) {
            // A source without failures for a minute has a full bucket again.
            self.sources.retain(|_, bucket| !bucket.is_full(now));
            if self.sources.len() >= SOURCES_MAX {
                return self.others.get_or_insert_with(|| TokenBucket::new(now)).take(FAILURE_REFILL, now);
            }
        }
        self.sources.entry(source).or_insert_with(|| TokenBucket::new(now)).take(FAILURE_REFILL, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> FailedAttemptSource {
        FailedAttemptSource::network(text.parse().unwrap())
    }

    #[test]
    fn ten_fail_at_once_and_then_one_in_six_seconds() {
        let (mut failures, now) = (FailedAttempts::default(), Instant::now());
        assert!((0..10).all(|_| failures.take(network("10.0.0.1"), now).is_ok()));
        assert_eq!(failures.take(network("10.0.0.1"), now), Err(Duration::from_secs(6)));
        assert_eq!(failures.take(network("10.0.0.2"), now), Ok(()), "another is another");
        assert_eq!(failures.take(network("10.0.0.1"), now + Duration::from_secs(6)), Ok(()));
    }

    #[test]
    fn a_household_is_one_and_an_address_written_in_two_ways_too() {
        assert_eq!(network("2001:db8:1:2::1"), network("2001:db8:1:2:ffff::"));
        assert_ne!(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
        assert_eq!(network("::ffff:10.0.0.1"), network("10.0.0.1"));
    }

    #[test]
    fn the_table_is_bounded_and_forgets_who_is_quiet() {
        let (mut failures, now) = (FailedAttempts::default(), Instant::now());
        for user in 0..100_000 {
            let _ = failures.take(FailedAttemptSource::User(user), now);
        }
        assert_eq!(failures.sources.len(), SOURCES_MAX);
        assert!(failures.take(FailedAttemptSource::Broker, now).is_err(), "those beyond share one");
        assert!(failures.take(FailedAttemptSource::Broker, now + Duration::from_mins(2)).is_ok());
        assert_eq!(failures.sources.len(), 1);
    }
}
