//! The calls of a connection: whether it is idle, and whether it has to make room for another one.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The calls of one connection.
#[derive(Debug, Clone, Default)]
pub struct ConnectionCalls(Arc<ConnectionCounts>);

#[derive(Debug)]
struct ConnectionCounts {
    begun: AtomicU64,
    /// Calls that had their whole answer taken or dropped.
    ended: AtomicU64,
    /// Calls that had their answer written as a whole.
    answered: AtomicU64,
    /// The time at which the last call began or was answered, or the connection was accepted.
    changed: Mutex<Instant>,
    /// Set when the connection must end to make room for another one.
    is_asked_to_end: AtomicBool,
    asked_to_end: Notify,
    /// Set while a newcomer waits for the place of any connection; shared by the connections of one limit.
    is_room_wanted: Arc<AtomicBool>,
}

/// Counts one call as open, until its whole answer was taken or dropped.
#[derive(Debug)]
pub struct CallGuard(Arc<ConnectionCounts>);

impl Default for ConnectionCounts {
    fn default() -> Self {
        Self {
            begun: AtomicU64::default(),
            ended: AtomicU64::default(),
            answered: AtomicU64::default(),
            changed: Mutex::new(Instant::now()),
            is_asked_to_end: AtomicBool::default(),
            asked_to_end: Notify::default(),
            is_room_wanted: Arc::default(),
        }
    }
}

impl ConnectionCounts {
    fn changed(&self) -> MutexGuard<'_, Instant> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionCalls {
    /// The calls of a connection under a limit that sets `is_room_wanted`.
    pub fn new(is_room_wanted: Arc<AtomicBool>) -> Self {
        Self(Arc::new(ConnectionCounts { is_room_wanted, ..ConnectionCounts::default() }))
    }

    /// Begins a call.
    pub fn begin(&self) -> CallGuard {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        *self.0.changed() = Instant::now();
        CallGuard(self.0.clone())
    }

    /// The time since the last call was answered; `None` until then, and once the connection was asked to end.
    pub fn idle_for(&self) -> Option<Duration> {
        let is_idle = self.is_answered() && !self.is_asked_to_end();
        is_idle.then(|| self.0.changed().elapsed())
    }

    /// Returns `true` until the first call.
    pub fn is_silent(&self) -> bool {
        self.begun() == 0
    }

    /// Asks the connection to end unless a call is open.
    pub fn end(&self) {
        self.0.is_asked_to_end.store(true, Ordering::Relaxed);
        self.0.asked_to_end.notify_waiters();
    }

    /// Waits until the connection is asked to end.
    pub async fn asked_to_end(&self) {
        let asked = self.0.asked_to_end.notified();
        if !self.is_asked_to_end() {
            asked.await;
        }
    }

    /// Returns `true` if the connection was asked to end, and no call is open.
    pub fn may_end_now(&self) -> bool {
        self.is_asked_to_end() && self.is_answered()
    }

    /// Returns `true` if the answer that begins now should be the last one of its connection, because a newcomer waits
    /// for a place. One answer is enough for one newcomer.
    pub fn gives_way(&self) -> bool {
        // Almost never set, so the shared value is only read.
        let is_wanted = &self.0.is_room_wanted;
        is_wanted.load(Ordering::Relaxed) && is_wanted.swap(false, Ordering::Relaxed)
    }

    /// Returns `true` if no answer to a call is missing or being written.
    pub fn is_answered(&self) -> bool {
        self.0.answered.load(Ordering::Relaxed) == self.begun()
    }

    /// Counts all calls that have begun as answered.
    pub fn answered(&self) {
        let calls = self.begun();
        if self.0.answered.swap(calls, Ordering::Relaxed) != calls {
            *self.0.changed() = Instant::now();
        }
    }

    fn is_asked_to_end(&self) -> bool {
        self.0.is_asked_to_end.load(Ordering::Relaxed)
    }

    fn begun(&self) -> u64 {
        self.0.begun.load(Ordering::Relaxed)
    }

    /// Returns `true` if every call has ended: its whole answer was taken or dropped.
    pub fn are_ended(&self) -> bool {
        self.0.ended.load(Ordering::Relaxed) == self.begun()
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

impl CallGuard {
    /// Keeps the call open until all of the answer is taken.
    pub fn until_sent<B>(self, body: B) -> ResponseBody<B> {
        ResponseBody { body, _call: self }
    }
}

/// The body of the answer to a call.
#[derive(Debug)]
pub struct ResponseBody<B> {
    body: B,
    _call: CallGuard,
}

impl<B: Body + Unpin> Body for ResponseBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
