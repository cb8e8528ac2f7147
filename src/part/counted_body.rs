//! Bodies of answers, counted as memory until the caller has read them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use ledge_base::memory_budget::{MemoryAccount, UNCOUNTED_BYTES_MAX};

use crate::api_error::JSON_CONTENT_TYPE;

/// Marks an answer with bytes that are counted already.
#[derive(Debug, Clone, Copy)]
struct MemoryAlreadyCounted;

/// Marks an answer of `bytes` bytes that were counted when they were made.
pub fn mark_counted(answer: &mut Response, bytes: usize) {
    if bytes > UNCOUNTED_BYTES_MAX {
        answer.extensions_mut().insert(MemoryAlreadyCounted);
    }
}

/// An answer with these bytes, which were counted when they were made.
pub fn counted(body: Bytes, content_type: HeaderValue) -> Response {
    let bytes = body.len();
    let mut answer = Response::new(Body::from(body));
    answer.headers_mut().insert(header::CONTENT_TYPE, content_type);
    mark_counted(&mut answer, bytes);
    answer
}

/// The same with JSON.
pub fn counted_json(body: Bytes) -> Response {
    counted(body, JSON_CONTENT_TYPE)
}

/// Counts an answer until the caller has read it, unless it is counted already. Small answers, and answers that are
/// made while they are sent, are not counted.
pub fn count(answer: Response, account: &MemoryAccount) -> Response {
    let size = answer.body().size_hint().exact().and_then(|size| usize::try_from(size).ok());
    match size {
        Some(bytes) if bytes > UNCOUNTED_BYTES_MAX && answer.extensions().get::<MemoryAlreadyCounted>().is_none() => {
            let mut answer = keep_until_sent(answer, account.force_reserve(bytes));
            mark_counted(&mut answer, bytes);
            answer
        }
        _ => answer,
    }
}

/// Keeps `hold`, such as a reservation, until the answer is sent or its connection is closed.
pub fn keep_until_sent<H: Send + Sync + 'static>(answer: Response, hold: H) -> Response {
    answer.map(|body| Body::new(MemoryCountedBody { body, hold: Arc::new(hold) }))
}

/// The body of an answer, with a reservation. A connection takes its frames long before it has sent them, so each frame
/// keeps the reservation too.
struct MemoryCountedBody<H> {
    body: Body,
    hold: Arc<H>,
}

struct MemoryCountedBytes<H> {
    bytes: Bytes,
    _hold: Arc<H>,
}

impl<H> AsRef<[u8]> for MemoryCountedBytes<H> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<H: Send + Sync + 'static> HttpBody for MemoryCountedBody<H> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let guarded = |bytes| Bytes::from_owner(MemoryCountedBytes { bytes, _hold: self.hold.clone() });
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(guarded))))
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
    use ledge_base::memory_budget::MemoryBudget;
    use ledge_base::principal::Principal;

    #[test]
    fn an_answer_keeps_its_hold_until_its_last_frame_is_dropped() {
        let hold = Arc::new(());
        let answer = keep_until_sent(Response::new(Body::from("answer")), hold.clone());
        let mut body = answer.into_body();
        let piece = body.frame().now_or_never().unwrap().unwrap().unwrap();
        drop(body);
        assert_eq!(Arc::strong_count(&hold), 2, "the connection has the frame");
        drop(piece);
        assert_eq!(Arc::strong_count(&hold), 1);
        drop(keep_until_sent(Response::new(Body::empty()), hold.clone()));
        assert_eq!(Arc::strong_count(&hold), 1);
    }

    #[test]
    fn an_answer_is_counted_once_until_its_last_frame_is_sent_and_a_small_one_is_not() {
        let memory = MemoryBudget::new(1000);
        let account = memory.account(Principal::Others);
        let answer = |bytes: usize| count(Response::new(Body::from(vec![0; bytes])), &account);
        let large = count(answer(100_001), &account);
        assert_eq!(memory.used(), 100_001);
        let piece = large.into_body().frame().now_or_never().unwrap().unwrap().unwrap();
        assert_eq!(memory.used(), 100_001, "the connection has it, but the caller has not");
        drop(piece);
        assert_eq!(memory.used(), 0);
        let small = answer(UNCOUNTED_BYTES_MAX);
        assert_eq!(memory.used(), 0, "{small:?}");
    }
}
