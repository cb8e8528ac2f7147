//! Answers count until the caller has read them.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use ledge_base::memory_budget::{Account, UNCOUNTED_BYTES_MAX};
use ledge_base::sys;

/// On an answer whose bytes count already.
#[derive(Debug, Clone, Copy)]
struct Counted;

/// Says of an answer whose bytes were counted as they were made that they are.
pub fn mark(answer: &mut Response, bytes: usize) {
    if bytes > UNCOUNTED_BYTES_MAX {
        answer.extensions_mut().insert(Counted);
    }
}

/// Counts an answer until it is read, unless it does already. Small ones, and those that are made while they are sent, do
/// not count.
pub fn counted(answer: Response, account: &Account) -> Response {
    let size = answer.body().size_hint().exact().and_then(|size| usize::try_from(size).ok());
    match size {
        Some(bytes) if bytes > UNCOUNTED_BYTES_MAX && answer.extensions().get::<Counted>().is_none() => {
            let mut answer = held(answer, account.take_anyway(bytes));
            mark(&mut answer, bytes);
            answer
        }
        _ => answer,
    }
}

/// Keeps `hold` until the answer is sent, or its connection is gone.
pub fn held<H: Send + Sync + 'static>(answer: Response, hold: H) -> Response {
    answer.map(|body| Body::new(HeldBody { body, hold: Arc::new(hold) }))
}

/// Gives memory back to the system when the large answer that has it is gone. The allocator keeps what it has, and such an
/// answer is scattered over all of it.
pub struct ReturnsMemory;

/// When memory is given back next, or was the last time. It walks the whole heap, so it is done once for all answers of a second.
static RETURNED: Mutex<Option<Instant>> = Mutex::new(None);
const RETURN_INTERVAL: Duration = Duration::from_secs(1);

impl Drop for ReturnsMemory {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut last = RETURNED.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if last.is_none_or(|at| now >= at) {
            let at = now + RETURN_INTERVAL;
            *last = Some(at);
            runtime.spawn(async move {
                tokio::time::sleep_until(at.into()).await;
                let _ = tokio::task::spawn_blocking(sys::return_free_memory).await;
            });
        }
    }
}

/// The body of an answer that holds something. A connection takes its pieces long before it has sent them, so each keeps the hold.
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
    use ledge_base::memory_budget::MemoryBudget;
    use ledge_base::principal::Principal;

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
    fn an_answer_counts_once_and_until_its_last_piece_is_sent_and_a_small_one_does_not() {
        let memory = MemoryBudget::new(1000);
        let account = memory.account(Principal::Others);
        let answer = |bytes: usize| counted(Response::new(Body::from(vec![0; bytes])), &account);
        let large = counted(answer(100_001), &account);
        assert_eq!(memory.used(), 100_001);
        let piece = large.into_body().frame().now_or_never().unwrap().unwrap().unwrap();
        assert_eq!(memory.used(), 100_001, "the connection has it, but the caller has not");
        drop(piece);
        assert_eq!(memory.used(), 0);
        let small = answer(UNCOUNTED_BYTES_MAX);
        assert_eq!(memory.used(), 0, "{small:?}");
    }
}
