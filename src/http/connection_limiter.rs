//! The limit on connections. At the limit, the connection that has been idle longest is closed for a new caller.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection_close::ConnectionCalls;

/// The time without a call after which a connection may be closed for another caller.
const IDLE_TIME_MIN: Duration = Duration::from_secs(1);
/// The time that a connection has to end before the next one is asked to.
const CLOSE_INTERVAL: Duration = Duration::from_millis(100);

/// The limiter of the connections over TCP, or over Unix sockets. Clones share the limit.
#[derive(Debug, Clone)]
pub struct ConnectionLimiter {
    free: Arc<Semaphore>,
    connections: Arc<Mutex<HashMap<u64, ConnectionCalls>>>,
    next: Arc<AtomicU64>,
}

/// The permit of a connection, until it is dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    limiter: ConnectionLimiter,
    number: u64,
    calls: ConnectionCalls,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionLimiter {
    pub fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), connections: Arc::default(), next: Arc::default() }
    }

    /// Waits for a permit. While none is free, the connections that have been idle longest are asked to end, one after
    /// the other; connections with calls are not.
    pub async fn take(&self) -> Option<ConnectionPermit> {
        loop {
            match tokio::time::timeout(CLOSE_INTERVAL, self.free.clone().acquire_owned()).await {
                // The semaphore is never closed.
                Ok(permit) => return Some(self.permit(permit.ok()?)),
                Err(_) => self.end_longest_idle(),
            }
        }
    }

    fn permit(&self, permit: OwnedSemaphorePermit) -> ConnectionPermit {
        let (number, calls) = (self.next.fetch_add(1, Ordering::Relaxed), ConnectionCalls::default());
        self.connections().insert(number, calls.clone());
        ConnectionPermit { limiter: self.clone(), number, calls, _permit: permit }
    }

    fn end_longest_idle(&self) {
        let connections = self.connections();
        let idle = connections.values().filter_map(|calls| Some((calls.idle_for()?, calls)));
        if let Some((_, calls)) = idle.filter(|(idle, _)| *idle >= IDLE_TIME_MIN).max_by_key(|(idle, _)| *idle) {
            calls.end();
        }
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<u64, ConnectionCalls>> {
        // Nothing panics under this lock.
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionPermit {
    /// The calls of the connection.
    pub fn calls(&self) -> &ConnectionCalls {
        &self.calls
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limiter.connections().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn at_the_limit_only_the_longest_idle_connection_is_closed() {
        let limiter = ConnectionLimiter::new(3);
        let take = || async { tokio::time::timeout(Duration::from_secs(5), limiter.take()).await.ok().flatten() };
        let (busy, idle, late) = (take().await.unwrap(), take().await.unwrap(), take().await.unwrap());
        let call = busy.calls().begin();
        tokio::time::sleep(IDLE_TIME_MIN).await;
        drop(late.calls().begin());
        let asked = async {
            idle.calls().asked_to_end().await;
            let other = tokio::time::timeout(IDLE_TIME_MIN / 2, late.calls().asked_to_end()).await;
            assert!(other.is_err(), "it had a call just now");
            drop(idle);
        };
        let (fourth, ()) = tokio::join!(limiter.take(), asked);
        let fourth = fourth.unwrap();
        // Connections with calls are never asked.
        let (_one, _two) = (late.calls().begin(), fourth.calls().begin());
        assert!(take().await.is_none());
        drop(call);
        tokio::join!(take(), busy.calls().asked_to_end());
    }
}
