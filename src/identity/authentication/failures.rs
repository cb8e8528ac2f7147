//! How many attempts to come in may fail: ten at once, then one in six seconds, for each place that they come from.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ledge_base::token_bucket::{Refill, TokenBucket};

use super::network;

const REFILL: Refill = Refill { interval: Duration::from_secs(6), burst: 10 };

/// How many places are remembered. Beyond, those that come new share one bucket until others are full again.
const PLACES: usize = 4096;

/// Where an attempt comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// An address, or the network of a household: whoever has one IPv6 address has 2^64.
    Network(IpAddr),
    /// A user of this machine.
    User(u32),
    Broker,
}

impl Source {
    /// That of an address.
    pub fn network(ip: IpAddr) -> Self {
        Self::Network(network(ip))
    }
}

/// The attempts that failed of late.
#[derive(Debug, Default)]
pub struct Failures {
    places: HashMap<Source, TokenBucket>,
    others: Option<TokenBucket>,
}

impl Failures {
    /// Counts an attempt that failed, or says after what time another may be made.
    pub fn take(&mut self, source: Source, now: Instant) -> Result<(), Duration> {
        if self.places.len() >= PLACES && !self.places.contains_key(&source) {
            // Who did nothing for a minute is as good as new.
            self.places.retain(|_, bucket| !bucket.is_full(now));
            if self.places.len() >= PLACES {
                return self.others.get_or_insert_with(|| TokenBucket::new(now)).take(REFILL, now);
            }
        }
        self.places.entry(source).or_insert_with(|| TokenBucket::new(now)).take(REFILL, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Source {
        Source::network(text.parse().unwrap())
    }

    #[test]
    fn ten_fail_at_once_and_then_one_in_six_seconds() {
        let (mut failures, now) = (Failures::default(), Instant::now());
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
        let (mut failures, now) = (Failures::default(), Instant::now());
        for user in 0..100_000 {
            let _ = failures.take(Source::User(user), now);
        }
        assert_eq!(failures.places.len(), PLACES);
        assert!(failures.take(Source::Broker, now).is_err(), "those beyond share one");
        assert!(failures.take(Source::Broker, now + Duration::from_mins(2)).is_ok());
        assert_eq!(failures.places.len(), 1);
    }
}
