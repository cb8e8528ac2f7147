//! How much memory bodies may take together: each counts for as long as its [`Hold`] lives.
//!
//! Bodies of requests count from their first byte until they are answered, and never beyond the limit. Answers count until
//! the caller has read them; they are there already, so they count beyond it, too, and what comes then has to wait.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};

/// A body up to this size does not count, and finds room as long as answers have not passed the limit: whoever sends large
/// bodies does not keep small ones out. A large one is not read when its model's queue is full already.
pub const SMALL: usize = 16 << 10;

/// The sum, and its limit. Clones are the same sum.
#[derive(Debug, Clone)]
pub struct BodyMemory {
    used: Arc<AtomicUsize>,
    limit: usize,
}

/// There is no room now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom;

/// Bytes that a body holds.
#[derive(Debug)]
#[must_use = "the bytes count for as long as this lives"]
pub struct Hold {
    memory: BodyMemory,
    bytes: usize,
    /// None of them, or all.
    counted: usize,
}

impl BodyMemory {
    /// With nothing in it.
    pub fn new(limit: usize) -> Self {
        Self { used: Arc::default(), limit }
    }

    /// How many bytes are held.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// A hold of nothing yet.
    pub fn hold(&self) -> Hold {
        Hold { memory: self.clone(), bytes: 0, counted: 0 }
    }

    /// Whether a body of this size would find room now.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.with(self.used(), if bytes > SMALL { bytes } else { 0 }).is_some()
    }

    /// Counts an answer until it is read. Small ones, and those that are made while they are sent, do not count.
    pub fn of_answer(&self, answer: Response) -> Response {
        let size = answer.body().size_hint().exact().and_then(|size| usize::try_from(size).ok());
        match size {
            Some(bytes) if bytes > SMALL => {
                self.used.fetch_add(bytes, Ordering::Relaxed);
                let hold = Hold { memory: self.clone(), bytes, counted: bytes };
                held(answer, hold)
            }
            _ => answer,
        }
    }

    /// The sum with so many bytes more, if they fit.
    fn with(&self, used: usize, more: usize) -> Option<usize> {
        let sum = used.saturating_add(more);
        (used <= self.limit && (more == 0 || sum <= self.limit)).then_some(sum)
    }
}

impl Hold {
    /// Holds more bytes.
    pub fn grow(&mut self, more: usize) -> Result<(), NoRoom> {
        let bytes = self.bytes.saturating_add(more);
        let counted = if bytes > SMALL { bytes } else { self.counted };
        let memory = &self.memory;
        let grown = |used| memory.with(used, counted - self.counted);
        memory.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).map_err(|_| NoRoom)?;
        (self.bytes, self.counted) = (bytes, counted);
        Ok(())
    }

    /// Holds fewer.
    pub fn shrink(&mut self, by: usize) {
        let by = by.min(self.bytes);
        self.bytes -= by;
        let by = by.min(self.counted);
        self.counted -= by;
        self.memory.used.fetch_sub(by, Ordering::Relaxed);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

/// Keeps `hold` until the answer is sent, or its connection is gone.
pub fn held<H: Send + Sync + 'static>(answer: Response, hold: H) -> Response {
    answer.map(|body| Body::new(HeldBody { body, hold: Arc::new(hold) }))
}

/// The body of an answer that counts. A connection takes its pieces long before it has sent them, so each keeps the hold.
struct HeldBody<H> {
    body: Body,
    hold: Arc<H>,
}

struct HeldPiece<H> {
    bytes: Bytes,
    _hold: Arc<H>,
}

impl<H> AsRef<[u8]> for HeldPiece<H> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<H: Send + Sync + 'static> HttpBody for HeldBody<H> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let held = |bytes| Bytes::from_owner(HeldPiece { bytes, _hold: self.hold.clone() });
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(held))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use http_body_util::BodyExt;

    use super::*;

    #[test]
    fn bodies_count_while_they_are_held_and_never_beyond_the_limit() {
        let memory = BodyMemory::new(100_000);
        let (mut one, mut other) = (memory.hold(), memory.hold());
        assert_eq!((one.grow(60_000), other.grow(50_000)), (Ok(()), Err(NoRoom)));
        assert_eq!((memory.used(), memory.has_room(40_000), memory.has_room(40_001)), (60_000, true, false));
        one.shrink(20_000);
        assert_eq!(other.grow(50_000), Ok(()));
        drop((one, other));
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn what_an_answer_holds_it_holds_until_its_last_piece_is_gone() {
        let place = Arc::new(());
        let answer = held(Response::new(Body::from("answer")), place.clone());
        let mut body = answer.into_body();
        let piece = body.frame().now_or_never().unwrap().unwrap().unwrap();
        drop(body);
        assert_eq!(Arc::strong_count(&place), 2, "the connection has the piece");
        drop(piece);
        assert_eq!(Arc::strong_count(&place), 1);
        drop(held(Response::new(Body::empty()), place.clone()));
        assert_eq!(Arc::strong_count(&place), 1);
    }

    #[test]
    fn small_bodies_find_room_beside_large_ones_but_not_beside_answers_that_nobody_reads() {
        let memory = BodyMemory::new(100_000);
        let (mut large, mut small) = (memory.hold(), memory.hold());
        large.grow(100_000).unwrap();
        assert_eq!(small.grow(SMALL), Ok(()));
        assert_eq!(small.grow(1), Err(NoRoom), "it is not small any more");
        drop((large, small));
        let answer = memory.of_answer(Response::new(Body::from(vec![0; 100_001])));
        assert_eq!((memory.used(), memory.hold().grow(1)), (100_001, Err(NoRoom)));
        let piece = answer.into_body().frame().now_or_never().unwrap().unwrap().unwrap();
        assert_eq!(memory.used(), 100_001, "the connection has it, but the caller has not");
        drop(piece);
        assert_eq!((memory.used(), memory.hold().grow(1)), (0, Ok(())));
        let small = memory.of_answer(Response::new(Body::from(vec![0; SMALL])));
        assert_eq!(memory.used(), 0, "{small:?}");
    }
}
