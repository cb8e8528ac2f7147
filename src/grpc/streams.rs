//! The streams of one connection: how many are open, which of their answers wait for the caller to read them, and how
//! many calls were cancelled.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use ledge_listener::{CallGuard, ConnectionCalls, slow_read_time};
use tokio::time::Instant;

/// An answer with a stream that stays open without a call in progress, such as that of a watch.
#[derive(Debug, Clone, Copy)]
pub struct LongLivedAnswer;

/// The streams of a connection. Clones share them.
#[derive(Debug, Clone)]
pub struct ConnectionStreams(Arc<ConnectionStreamsState>);

#[derive(Debug)]
struct ConnectionStreamsState {
    calls: ConnectionCalls,
    write_timeout: Duration,
    open: AtomicUsize,
    cancelled: AtomicUsize,
    next: AtomicUsize,
    /// The times by which parts of answers must have been read, by the numbers of the parts.
    unread: Mutex<HashMap<usize, Instant>>,
}

impl ConnectionStreams {
    /// The streams of the connection that makes `calls`.
    pub fn new(calls: ConnectionCalls, write_timeout: Duration) -> Self {
        let (open, cancelled, next) = (AtomicUsize::default(), AtomicUsize::default(), AtomicUsize::default());
        Self(Arc::new(ConnectionStreamsState { calls, write_timeout, open, cancelled, next, unread: Mutex::default() }))
    }

    /// Opens a stream after its request has arrived.
    pub fn open(&self) -> OpenStream {
        self.0.open.fetch_add(1, Ordering::Relaxed);
        OpenStream { streams: self.clone(), call: Some(self.call()), is_answered: false }
    }

    /// Begins a call on an open stream.
    pub fn call(&self) -> StreamCall {
        StreamCall { streams: self.clone(), guard: Some(self.0.calls.begin()) }
    }

    /// Returns `true` if no stream is open.
    pub fn is_empty(&self) -> bool {
        self.0.open.load(Ordering::Relaxed) == 0
    }

    /// The number of streams that callers reset before they were answered.
    pub fn cancelled(&self) -> usize {
        self.0.cancelled.load(Ordering::Relaxed)
    }

    /// Returns `true` if a part of an answer was not read in time.
    pub fn has_late_reader(&self) -> bool {
        let now = Instant::now();
        self.unread(|unread| unread.values().any(|until| *until <= now))
    }

    fn unread<T>(&self, change: impl FnOnce(&mut HashMap<usize, Instant>) -> T) -> T {
        // Nothing panics under this lock.
        change(&mut self.0.unread.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A call of a stream, until it is dropped.
#[derive(Debug)]
pub struct StreamCall {
    streams: ConnectionStreams,
    guard: Option<CallGuard>,
}

impl Drop for StreamCall {
    fn drop(&mut self) {
        drop(self.guard.take());
        let calls = &self.streams.0.calls;
        if calls.are_ended() {
            calls.answered();
        }
    }
}

/// A stream, until the caller has read its answer or has reset it.
#[derive(Debug)]
pub struct OpenStream {
    streams: ConnectionStreams,
    call: Option<StreamCall>,
    is_answered: bool,
}

impl OpenStream {
    /// The body of the answer, which keeps the stream open.
    pub fn answer(mut self, body: Body, lasts: bool) -> AnswerBody {
        self.is_answered = true;
        if lasts {
            self.call = None;
        }
        AnswerBody { body, stream: Arc::new(self) }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.streams.0.open.fetch_sub(1, Ordering::Relaxed);
        if !self.is_answered {
            self.streams.0.cancelled.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The body of an answer. A connection takes the parts of an answer long before the caller has read them, so each part
/// keeps the stream open, and has a time by which it must be read.
#[derive(Debug)]
pub struct AnswerBody {
    body: Body,
    stream: Arc<OpenStream>,
}

/// A part of an answer that the caller has not read.
struct UnreadPart {
    bytes: Bytes,
    number: usize,
    stream: Arc<OpenStream>,
}

impl UnreadPart {
    fn new(bytes: Bytes, stream: Arc<OpenStream>) -> Self {
        let ConnectionStreamsState { next, write_timeout, .. } = &*stream.streams.0;
        let number = next.fetch_add(1, Ordering::Relaxed);
        let until = Instant::now() + *write_timeout + slow_read_time(bytes.len() as u64);
        stream.streams.unread(|unread| unread.insert(number, until));
        Self { bytes, number, stream }
    }
}

impl Drop for UnreadPart {
    fn drop(&mut self) {
        self.stream.streams.unread(|unread| unread.remove(&self.number));
    }
}

impl AsRef<[u8]> for UnreadPart {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let unread = |bytes| Bytes::from_owner(UnreadPart::new(bytes, self.stream.clone()));
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(unread))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
