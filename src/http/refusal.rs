//! Connections that end while their caller still sends.
//!
//! A call may be answered before its body was read: too large, or for what is not there. Closed with something unread, a
//! connection is reset, and a caller that is still sending loses the answer; so the rest is read for a while.
//!
//! Requests that hyper refuses before the router sees them are no HTTP, or have a head or a URI that is too large.
//! hyper replies to them with a status and no body. The stream below it recognizes such a reply, since nothing was asked
//! that it could answer, and holds it back, so that one with a body like every other error's can be sent instead.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use hyper::body::{Frame, SizeHint};
use ledge_part::failure::ErrorBody;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a caller is read whose call is answered: in all, and while it sends nothing.
const LINGER: Duration = Duration::from_secs(10);
const LINGER_SILENT: Duration = Duration::from_secs(1);

/// The calls of one connection.
#[derive(Debug, Clone, Default)]
pub struct Calls(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    begun: AtomicU64,
    ended: AtomicU64,
    /// When the last call began or ended, or the connection came.
    changed: Mutex<Instant>,
    /// Whether the connection is to end for another one, and who is told.
    is_asked_to_end: AtomicBool,
    asked_to_end: Notify,
    /// Whether the body of a call was given up before its end.
    is_unread: AtomicBool,
}

/// One call, until its answer was taken as a whole or given up.
#[derive(Debug)]
pub struct Call(Arc<Counts>);

impl Default for Counts {
    fn default() -> Self {
        Self {
            begun: AtomicU64::default(),
            ended: AtomicU64::default(),
            changed: Mutex::new(Instant::now()),
            is_asked_to_end: AtomicBool::default(),
            asked_to_end: Notify::default(),
            is_unread: AtomicBool::default(),
        }
    }
}

impl Counts {
    fn changed(&self) -> MutexGuard<'_, Instant> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Calls {
    /// Counts a call.
    pub fn begin(&self) -> Call {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        *self.0.changed() = Instant::now();
        Call(self.0.clone())
    }

    /// For how long there has been no call; `None` while there is one, and once the connection was asked to end.
    pub fn idle_for(&self) -> Option<Duration> {
        let is_idle = self.begun() == self.ended() && !self.0.is_asked_to_end.load(Ordering::Relaxed);
        is_idle.then(|| self.0.changed().elapsed())
    }

    /// Asks the connection to end once it has no call.
    pub fn end(&self) {
        self.0.is_asked_to_end.store(true, Ordering::Relaxed);
        self.0.asked_to_end.notify_one();
    }

    /// Waits until the connection is to end.
    pub async fn asked_to_end(&self) {
        self.0.asked_to_end.notified().await;
    }

    /// The body of a call.
    pub fn body<B: HttpBody>(&self, body: B) -> CallBody<B> {
        CallBody { body, counts: self.0.clone(), is_read: false }
    }

    fn begun(&self) -> u64 {
        self.0.begun.load(Ordering::Relaxed)
    }

    fn ended(&self) -> u64 {
        self.0.ended.load(Ordering::Relaxed)
    }
}

/// The body of a call, which is known to be read to its end or not.
#[derive(Debug)]
pub struct CallBody<B: HttpBody> {
    body: B,
    counts: Arc<Counts>,
    is_read: bool,
}

impl<B: HttpBody + Unpin> HttpBody for CallBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        self.is_read |= frame.is_none();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: HttpBody> Drop for CallBody<B> {
    fn drop(&mut self) {
        if !self.is_read && !self.body.is_end_stream() {
            self.counts.is_unread.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        *self.0.changed() = Instant::now();
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

impl Call {
    /// Keeps the call until hyper has taken all of the answer.
    pub fn until_taken(self, body: Body) -> Answer {
        Answer { body, _call: self }
    }
}

/// The body of an answer to a call.
#[derive(Debug)]
pub struct Answer {
    body: Body,
    _call: Call,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that holds back what answers no call.
#[derive(Debug)]
pub struct Refusing<S> {
    stream: S,
    calls: Calls,
    /// How many calls had been made when all of them were answered and all of that had been written.
    settled: u64,
    /// The status of a reply that was held back.
    status: Option<StatusCode>,
}

impl<S> Refusing<S> {
    /// Over the stream of a connection that makes these calls.
    pub fn new(stream: S, calls: Calls) -> Self {
        Self { stream, calls, settled: 0, status: None }
    }

    /// Whether no answer to a call is under way: what is written now is a reply of hyper's own.
    fn is_settled(&self) -> bool {
        self.settled == self.calls.begun()
    }

    /// Holds back a reply that begins with `head`.
    fn hold_back(&mut self, head: &[u8]) {
        // `HTTP/1.1 400 Bad Request`
        let status = head.get(9..12).and_then(|digits| StatusCode::from_bytes(digits).ok());
        self.status = self.status.or(status).or(Some(StatusCode::BAD_REQUEST));
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Refusing<S> {
    /// Ends a connection that hyper has done with. Tells a caller why hyper gave it up, unless that has nothing to do with what
    /// it sent, and reads for a while what a caller still sends.
    pub async fn close(mut self, error: Option<&hyper::Error>) -> io::Result<()> {
        let error = error.filter(|error| error.is_parse() && self.is_settled());
        if let Some(error) = error {
            self.refuse(error).await?;
        }
        if error.is_some() || self.calls.0.is_unread.load(Ordering::Relaxed) {
            let _ = tokio::time::timeout(LINGER, self.read_on()).await;
        }
        Ok(())
    }

    /// Reads until the caller has closed the connection too, or sends nothing for a while.
    async fn read_on(&mut self) {
        let mut ignored = vec![0; 64 << 10];
        while let Ok(Ok(1..)) = tokio::time::timeout(LINGER_SILENT, self.stream.read(&mut ignored)).await {}
    }

    async fn refuse(&mut self, error: &hyper::Error) -> io::Result<()> {
        let (status, message) = self.told(error);
        let body = ErrorBody::new(&message).to_json();
        let reason = status.canonical_reason().unwrap_or_default();
        let head = format!(
            "HTTP/1.1 {} {reason}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            status.as_u16(),
            body.len()
        );
        self.stream.write_all(&[head.as_bytes(), &body].concat()).await?;
        self.stream.shutdown().await
    }

    fn told(&self, error: &hyper::Error) -> (StatusCode, String) {
        let most = super::connection::LARGEST_HEAD;
        if error.is_parse_version_h2() {
            let message = "HTTP/2 is not spoken here: send HTTP 1.1".to_owned();
            return (StatusCode::HTTP_VERSION_NOT_SUPPORTED, message);
        }
        let status = self.status.unwrap_or(StatusCode::BAD_REQUEST);
        let message = match status {
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                format!(
                    "the headers of the request are too large, or more than 100, or announce too long a body: at most {most} bytes are taken"
                )
            }
            StatusCode::URI_TOO_LONG => "the path of the request is too long: at most 65534 bytes are taken".to_owned(),
            _ => format!("the request is not valid HTTP 1.1: {}", error.to_string().trim_end_matches(" parsed")),
        };
        (status, message)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Refusing<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Refusing<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_settled() {
            self.hold_back(bytes);
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_settled() {
            self.hold_back(slices.first().map_or(&[][..], |slice| slice));
            return Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()));
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        // hyper asks for this only when it has nothing left to write. An answer that it has taken as a whole is written.
        let begun = self.calls.begun();
        if matches!(flushed, Poll::Ready(Ok(()))) && self.calls.ended() == begun {
            self.settled = begun;
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.status.is_some() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::http::{Request, Response};
    use futures_util::StreamExt as _;
    use hyper::body::Incoming;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;

    use super::*;

    /// What hyper sends for a head that is no HTTP.
    const REFUSAL: &str = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";

    /// Serves one connection whose answers are `pieces`, each a frame of its own that waits for its turn, and gives what
    /// comes to a caller that sends `requests`.
    async fn served(requests: &str, pieces: &'static [&'static str]) -> String {
        let (stream, mut caller) = tokio::io::duplex(64);
        let calls = Calls::default();
        let stream = Refusing::new(stream, calls.clone());
        let service = service_fn(move |_: Request<Incoming>| {
            let call = calls.begin();
            async move {
                let pieces = futures_util::stream::iter(pieces).then(|piece| async move {
                    tokio::task::yield_now().await;
                    Ok::<_, Infallible>(*piece)
                });
                Ok::<_, Infallible>(Response::new(call.until_taken(Body::from_stream(pieces))))
            }
        });
        let mut connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        let serving = async {
            if let Err(error) = (&mut connection).await {
                connection.into_parts().io.into_inner().close(Some(&error)).await.unwrap();
            }
        };
        // The caller hangs up once the server has.
        let calling = async move {
            let (mut reader, mut writer) = tokio::io::split(&mut caller);
            let mut answers = String::new();
            let (read, sent) = tokio::join!(reader.read_to_string(&mut answers), writer.write_all(requests.as_bytes()));
            assert!(read.is_ok() && sent.is_ok(), "{read:?} {sent:?}");
            answers
        };
        tokio::join!(serving, calling).1
    }

    #[tokio::test]
    async fn an_answer_that_looks_like_a_refusal_is_sent_as_it_is() {
        for before in 0..3 {
            let requests =
                "GET / HTTP/1.1\r\nhost: x\r\n\r\n".repeat(before) + "GET / HTTP/1.1\r\nconnection: close\r\n\r\n";
            let answers = served(&requests, &[REFUSAL, "", REFUSAL]).await;
            assert_eq!(answers.matches(REFUSAL).count(), 2 * (before + 1), "{answers}");
            assert!(!answers.contains("application/json"), "{answers}");
        }
    }

    #[tokio::test]
    async fn what_is_no_http_is_told_so_also_behind_what_is() {
        let good = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        for (requests, status) in [
            ("nonsense\r\n\r\n".to_owned(), "400 Bad Request"),
            (format!("{good}nonsense\r\n\r\n{good}"), "400 Bad Request"),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), "505 HTTP Version Not Supported"),
        ] {
            let answers = served(&requests, &["fine"]).await;
            let (_, refusal) = answers.rsplit_once("HTTP/1.1 ").unwrap();
            assert!(refusal.starts_with(status) && refusal.contains("\r\n\r\n{\"error\":\""), "{answers}");
            assert_eq!(answers.matches("fine").count(), usize::from(requests.starts_with(good)), "{answers}");
        }
    }
}
