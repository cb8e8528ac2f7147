//! The places that connections have, and which of them gives its own up when a caller finds none.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::refusal::Calls;

/// A connection that has no call for so long may be closed for another caller.
const IDLE: Duration = Duration::from_secs(1);
/// How long a connection has to end before the next one is asked to.
const ENDING: Duration = Duration::from_millis(100);

/// The places of the connections over TCP, or over Unix sockets. Clones are the same places.
#[derive(Debug, Clone)]
pub struct Places {
    free: Arc<Semaphore>,
    taken: Arc<Mutex<HashMap<u64, Calls>>>,
    next: Arc<AtomicU64>,
}

/// The place of a connection, until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Places,
    number: u64,
    calls: Calls,
    _permit: OwnedSemaphorePermit,
}

impl Places {
    /// So many.
    pub fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), taken: Arc::default(), next: Arc::default() }
    }

    /// A place. While there is none, the connections that have had no call for longest are asked to end, one after the other;
    /// connections with calls are waited for.
    pub async fn take(&self) -> Option<Place> {
        loop {
            match tokio::time::timeout(ENDING, self.free.clone().acquire_owned()).await {
                // It is never closed.
                Ok(permit) => return Some(self.place(permit.ok()?)),
                Err(_) => self.end_longest_idle(),
            }
        }
    }

    fn place(&self, permit: OwnedSemaphorePermit) -> Place {
        let (number, calls) = (self.next.fetch_add(1, Ordering::Relaxed), Calls::default());
        self.taken().insert(number, calls.clone());
        Place { places: self.clone(), number, calls, _permit: permit }
    }

    fn end_longest_idle(&self) {
        let taken = self.taken();
        let idle = taken.values().filter_map(|calls| Some((calls.idle_for()?, calls)));
        if let Some((_, calls)) = idle.filter(|(idle, _)| *idle >= IDLE).max_by_key(|(idle, _)| *idle) {
            calls.end();
        }
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<u64, Calls>> {
        // Nothing panics under this lock.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// The calls of its connection.
    pub fn calls(&self) -> &Calls {
        &self.calls
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn at_the_limit_the_connection_that_is_idle_longest_ends_and_no_other() {
        let places = Places::new(3);
        let take = || async { tokio::time::timeout(Duration::from_secs(5), places.take()).await.ok().flatten() };
        let (busy, idle, late) = (take().await.unwrap(), take().await.unwrap(), take().await.unwrap());
        let call = busy.calls().begin();
        tokio::time::sleep(IDLE).await;
        drop(late.calls().begin());
        let asked = async {
            idle.calls().asked_to_end().await;
            let other = tokio::time::timeout(IDLE / 2, late.calls().asked_to_end()).await;
            assert!(other.is_err(), "it had a call just now");
            drop(idle);
        };
        let (fourth, ()) = tokio::join!(places.take(), asked);
        let fourth = fourth.unwrap();
        // Connections with calls are never asked.
        let (_one, _two) = (late.calls().begin(), fourth.calls().begin());
        assert!(take().await.is_none());
        drop(call);
        tokio::join!(take(), busy.calls().asked_to_end());
    }
}
