//! What the holder of a key or a certificate may have at a time and in a second, of all requests.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ledge_base::token_bucket::{Rate, Refill, TokenBucket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// After this a caller may try again where nobody knows how long its requests under way take.
const SOON: Duration = Duration::from_secs(1);

/// Why a request was not let in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Limited {
    /// All requests allowed at a time are under way.
    #[error("{owner} has {most} requests under way and may have no more at a time")]
    Concurrent { owner: String, most: u32 },
    #[error("{owner} may make {rate} requests per second")]
    Rate {
        owner: String,
        rate: Rate,
        /// When the next one will be let in.
        wait: Duration,
    },
}

impl Limited {
    /// After what time a request may be let in.
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::Concurrent { .. } => SOON,
            Self::Rate { wait, .. } => *wait,
        }
    }
}

/// A request's place among those under way; dropping it gives the place back.
#[derive(Debug, Default)]
pub struct Place {
    permit: Option<OwnedSemaphorePermit>,
}

impl Place {
    /// Whether it is one of a number.
    pub fn is_counted(&self) -> bool {
        self.permit.is_some()
    }
}

#[derive(Debug)]
pub(super) struct Gate {
    owner: String,
    rate: Rate,
    bucket: Mutex<TokenBucket>,
    most: u32,
    places: Arc<Semaphore>,
}

impl Gate {
    /// A gate that nobody has passed yet; `None` when nothing is limited.
    pub fn new(owner: String, rate: Rate, most: u32, now: Instant) -> Option<Arc<Self>> {
        let places = Arc::new(Semaphore::new(most as usize));
        let gate = Self { owner, rate, bucket: Mutex::new(TokenBucket::new(now)), most, places };
        (rate.is_set() || most > 0).then(|| Arc::new(gate))
    }

    pub fn enter(&self, now: Instant) -> Result<Place, Limited> {
        let full = |_| Limited::Concurrent { owner: self.owner.clone(), most: self.most };
        let permit = if self.most == 0 { None } else { Some(self.places.clone().try_acquire_owned().map_err(full)?) };
        if let Some(interval) = self.rate.interval() {
            let refill = Refill { interval, burst: self.rate.burst(0) };
            // Nothing panics under this lock.
            let taken = self.bucket.lock().unwrap_or_else(PoisonError::into_inner).take(refill, now);
            taken.map_err(|wait| Limited::Rate { owner: self.owner.clone(), rate: self.rate, wait })?;
        }
        Ok(Place { permit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_it_is_dropped_and_a_token_when_its_time_has_come() {
        let now = Instant::now();
        let gate = Gate::new("x".into(), Rate::default(), 2, now).unwrap();
        let (one, _two) = (gate.enter(now).unwrap(), gate.enter(now).unwrap());
        assert_eq!(gate.enter(now).unwrap_err(), Limited::Concurrent { owner: "x".into(), most: 2 });
        drop(one);
        assert!(gate.enter(now).is_ok());
        let gate = Gate::new("x".into(), Rate::new(2.0).unwrap(), 0, now).unwrap();
        assert!(gate.enter(now).is_ok() && gate.enter(now).is_ok());
        let limited = gate.enter(now).unwrap_err();
        assert_eq!(limited.retry_after(), Duration::from_millis(500));
        assert!(gate.enter(now + limited.retry_after()).is_ok());
        assert!(Gate::new("x".into(), Rate::default(), 0, now).is_none());
    }
}
