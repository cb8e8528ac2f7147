//! The limits of one holder of a key or certificate: requests at a time and requests a second.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ledge_base::token_bucket::{BucketRefill, CallRate, TokenBucket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The `Retry-After` of a caller with too many running requests, as their duration is unknown.
const CONCURRENT_RETRY_AFTER: Duration = Duration::from_secs(1);

/// The limit that a request exceeds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestLimitExceeded {
    /// All requests allowed at a time are running.
    #[error("{owner} has {most} requests running, the most it may have at a time: retry when one has ended")]
    Concurrent { owner: String, most: u32 },
    #[error("{owner} may make only {rate} requests per second: retry later")]
    Rate {
        owner: String,
        rate: CallRate,
        /// The time until the next request is admitted.
        wait: Duration,
    },
}

impl RequestLimitExceeded {
    /// The time after which a request may be admitted.
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::Concurrent { .. } => CONCURRENT_RETRY_AFTER,
            Self::Rate { wait, .. } => *wait,
        }
    }
}

/// The permit of a running request; dropping it frees the place for another.
#[derive(Debug, Default)]
pub struct RequestPermit {
    permit: Option<OwnedSemaphorePermit>,
}

impl RequestPermit {
    /// True if running requests are limited.
    pub fn is_counted(&self) -> bool {
        self.permit.is_some()
    }
}

#[derive(Debug)]
pub(super) struct RequestLimiter {
    owner: String,
    rate: CallRate,
    bucket: Mutex<TokenBucket>,
    most: u32,
    permits: Arc<Semaphore>,
}

impl RequestLimiter {
    /// A limiter without running requests; `None` when nothing is limited.
    pub fn new(owner: String, rate: CallRate, most: u32, now: Instant) -> Option<Arc<Self>> {
        let permits = Arc::new(Semaphore::new(most as usize));
        let limiter = Self { owner, rate, bucket: Mutex::new(TokenBucket::new(now)), most, permits };
        (rate.is_set() || most > 0).then(|| Arc::new(limiter))
    }

    pub fn enter(&self, now: Instant) -> Result<RequestPermit, RequestLimitExceeded> {
        let full = |_| RequestLimitExceeded::Concurrent { owner: self.owner.clone(), most: self.most };
        let permit = if self.most == 0 { None } else { Some(self.permits.clone().try_acquire_owned().map_err(full)?) };
        if let Some(interval) = self.rate.interval() {
            let refill = BucketRefill { interval, burst: self.rate.burst(0) };
            // Nothing panics under this lock.
            let taken = self.bucket.lock().unwrap_or_else(PoisonError::into_inner).take(refill, now);
            taken.map_err(|wait| RequestLimitExceeded::Rate { owner: self.owner.clone(), rate: self.rate, wait })?;
        }
        Ok(RequestPermit { permit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_it_is_dropped_and_a_token_when_its_time_has_come() {
        let now = Instant::now();
        let limiter = RequestLimiter::new("x".into(), CallRate::default(), 2, now).unwrap();
        let (one, _two) = (limiter.enter(now).unwrap(), limiter.enter(now).unwrap());
        assert_eq!(limiter.enter(now).unwrap_err(), RequestLimitExceeded::Concurrent { owner: "x".into(), most: 2 });
        drop(one);
        assert!(limiter.enter(now).is_ok());
        let limiter = RequestLimiter::new("x".into(), CallRate::new(2.0).unwrap(), 0, now).unwrap();
        assert!(limiter.enter(now).is_ok() && limiter.enter(now).is_ok());
        let refusal = limiter.enter(now).unwrap_err();
        assert_eq!(refusal.retry_after(), Duration::from_millis(500));
        assert!(limiter.enter(now + refusal.retry_after()).is_ok());
        assert!(RequestLimiter::new("x".into(), CallRate::default(), 0, now).is_none());
    }
}
