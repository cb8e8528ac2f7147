//! The limit on connections. At the limit a newcomer gets the place of a connection that waits for its caller.
//!
//! * An idle connection is closed at once: the one that has been idle longest. A connection that has not sent a whole
//!   head is idle, and one that never sent a request counts as idle [`SILENCE_WEIGHT`] times as long: connections with
//!   requests have precedence.
//! * While none is idle, the next answer says `connection: close`, and its place is the newcomer's. No call is cut.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection_calls::ConnectionCalls;

/// The time without a call after which a connection is closed for a newcomer. A caller that sends one request after the
/// other has sent the next one by then.
const IDLE_TIME_MIN: Duration = Duration::from_secs(1);
/// The factor by which a connection that never sent a request counts as more idle.
const SILENCE_WEIGHT: u32 = 10;
/// The time until a newcomer without a place asks another connection to end.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The limiter of the connections over TCP, or over Unix sockets. Clones share the limit.
#[derive(Debug, Clone)]
pub struct ConnectionLimiter {
    free: Arc<Semaphore>,
    connections: Arc<Mutex<HashMap<u64, ConnectionCalls>>>,
    next: Arc<AtomicU64>,
    /// Set while a newcomer waits for the place of a connection that has a call.
    is_room_wanted: Arc<AtomicBool>,
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
        let (connections, next, is_room_wanted) = (Arc::default(), Arc::default(), Arc::default());
        Self { free: Arc::new(Semaphore::new(count)), connections, next, is_room_wanted }
    }

    /// Waits for a permit. While none is free, other connections are asked to end.
    pub async fn take(&self) -> Option<ConnectionPermit> {
        let mut freed = pin!(self.free.clone().acquire_owned());
        // The semaphore is never closed.
        if let Some(permit) = (&mut freed).now_or_never() {
            return Some(self.permit(permit.ok()?));
        }
        loop {
            self.make_room();
            if let Ok(permit) = tokio::time::timeout(RETRY_INTERVAL, &mut freed).await {
                self.is_room_wanted.store(false, Ordering::Relaxed);
                return Some(self.permit(permit.ok()?));
            }
        }
    }

    fn permit(&self, permit: OwnedSemaphorePermit) -> ConnectionPermit {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let calls = ConnectionCalls::new(self.is_room_wanted.clone());
        self.connections().insert(number, calls.clone());
        ConnectionPermit { limiter: self.clone(), number, calls, _permit: permit }
    }

    /// Asks one connection to end: the longest idle one now, or else the next one that answers a call.
    fn make_room(&self) {
        let connections = self.connections();
        let idle = connections.values().filter_map(|calls| Some((weighted_idle_time(calls)?, calls)));
        match idle.max_by_key(|(time, _)| *time) {
            Some((time, calls)) if time >= IDLE_TIME_MIN => calls.end(),
            _ => self.is_room_wanted.store(true, Ordering::Relaxed),
        }
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<u64, ConnectionCalls>> {
        // Nothing panics under this lock.
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn weighted_idle_time(calls: &ConnectionCalls) -> Option<Duration> {
    let time = calls.idle_for()?;
    Some(if calls.is_silent() { time.saturating_mul(SILENCE_WEIGHT) } else { time })
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

    /// A connection that sent a request and has its answer.
    async fn quiet(limiter: &ConnectionLimiter) -> ConnectionPermit {
        let permit = limiter.take().await.unwrap();
        drop(permit.calls().begin());
        permit.calls().answered();
        permit
    }

    async fn idle_for(time: Duration, permit: &ConnectionPermit) {
        while permit.calls().idle_for().unwrap() < time {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_newcomer_gets_the_place_of_the_longest_idle_connection() {
        let limiter = ConnectionLimiter::new(3);
        let busy = limiter.take().await.unwrap();
        let _call = busy.calls().begin();
        let idle = quiet(&limiter).await;
        // Longer than the clock's steps, so that the two differ.
        idle_for(RETRY_INTERVAL, &idle).await;
        let late = quiet(&limiter).await;
        idle_for(IDLE_TIME_MIN, &late).await;
        let make_way = async {
            idle.calls().asked_to_end().await;
            drop(idle);
        };
        let (newcomer, ()) = tokio::join!(limiter.take(), make_way);
        assert!(newcomer.is_some());
        assert!(late.calls().idle_for().is_some(), "one is enough");
        assert!(!busy.calls().may_end_now() && !busy.calls().gives_way());
    }

    #[tokio::test]
    async fn a_silent_connection_goes_before_one_that_sent_a_request() {
        let limiter = ConnectionLimiter::new(2);
        let (called, silent) = (quiet(&limiter).await, limiter.take().await.unwrap());
        idle_for(IDLE_TIME_MIN, &silent).await;
        let make_way = async {
            silent.calls().asked_to_end().await;
            drop(silent);
        };
        let (newcomer, ()) = tokio::join!(limiter.take(), make_way);
        assert!(newcomer.is_some() && called.calls().idle_for().is_some());
    }

    #[tokio::test]
    async fn the_next_answer_gives_way_while_every_connection_has_a_call() {
        let limiter = ConnectionLimiter::new(2);
        let (one, other) = (limiter.take().await.unwrap(), limiter.take().await.unwrap());
        let _calls = (one.calls().begin(), other.calls().begin());
        assert!(!one.calls().gives_way(), "nobody waits");
        let make_way = async {
            while !one.calls().gives_way() {
                tokio::task::yield_now().await;
            }
            assert!(!other.calls().gives_way(), "one is enough");
            assert!(!one.calls().may_end_now() && !other.calls().may_end_now());
            drop(one);
        };
        let (newcomer, ()) = tokio::join!(limiter.take(), make_way);
        assert!(newcomer.is_some() && !other.calls().gives_way());
    }
}
