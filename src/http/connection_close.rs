//! The end of a connection: lingering close, and error bodies for requests that hyper itself refuses.
//!
//! A call may be answered before its body was read: the body is too large, or the route does not exist. Closing a
//! connection with unread bytes resets it, and a caller that is still sending loses the answer. Therefore the rest of
//! the body is read for a while (lingering close).
//!
//! hyper refuses a request before the router sees it when it is not HTTP, or when its head or URI is too large. hyper
//! replies with a status and no body. [`ParseErrorStream`], the stream below hyper, recognizes that reply, because at
//! that time no call is waiting for an answer. It withholds the reply and sends one with the body of every other error.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::HttpBody;
use axum::http::StatusCode;
use hyper::body::{Frame, SizeHint};
use ledge_listener::ConnectionCalls;
use ledge_part::api_error::ErrorBody;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

use super::head_lines::{REQUEST_HEAD_BYTES_MAX, RequestFramer, RequestProgress};

/// The time for which a caller is read after its answer.
const LINGER_TIMEOUT: Duration = Duration::from_secs(10);
/// The same while the caller sends nothing.
const LINGER_IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// The state of the requests of one connection, derived from their bytes. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct ConnectionRequestTracker(Arc<RequestBytesState>);

#[derive(Debug, Default)]
struct RequestBytesState {
    /// Where the bytes that are received are within requests.
    progress: RequestProgress,
    /// Set when the body of a call was dropped before its end.
    is_unread: AtomicBool,
}

impl ConnectionRequestTracker {
    /// Wraps the request body of a call after its head was parsed.
    pub fn body<B: HttpBody>(&self, body: B) -> TrackedRequestBody<B> {
        self.0.progress.head_parsed(body.size_hint().exact());
        TrackedRequestBody { body, state: self.0.clone(), is_read: false }
    }
}

/// The request body of a call, which records whether it was read to its end.
#[derive(Debug)]
pub struct TrackedRequestBody<B: HttpBody> {
    body: B,
    state: Arc<RequestBytesState>,
    is_read: bool,
}

impl<B: HttpBody + Unpin> HttpBody for TrackedRequestBody<B> {
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

impl<B: HttpBody> Drop for TrackedRequestBody<B> {
    fn drop(&mut self) {
        if !self.is_read && !self.body.is_end_stream() {
            self.state.is_unread.store(true, Ordering::Relaxed);
        }
    }
}

/// A stream that withholds replies that answer no call: these are hyper's own errors.
#[derive(Debug)]
pub struct ParseErrorStream<S> {
    stream: S,
    calls: ConnectionCalls,
    requests: ConnectionRequestTracker,
    lines: RequestFramer,
    /// The status of a withheld reply.
    status: Option<StatusCode>,
}

impl<S> ParseErrorStream<S> {
    /// Wraps the stream of the connection that makes `calls` by `requests`.
    pub fn new(stream: S, calls: ConnectionCalls, requests: ConnectionRequestTracker) -> Self {
        Self { stream, calls, requests, lines: RequestFramer::default(), status: None }
    }

    /// Withholds a reply that begins with `head`.
    fn withhold(&mut self, head: &[u8]) {
        // `HTTP/1.1 400 Bad Request`
        let status = head.get(9..12).and_then(|digits| StatusCode::from_bytes(digits).ok());
        self.status = self.status.or(status).or(Some(StatusCode::BAD_REQUEST));
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> ParseErrorStream<S> {
    /// Closes a connection that hyper has finished with. Sends the error if hyper could not parse a request, and
    /// discards for a while the bytes that the caller still sends.
    pub async fn close(mut self, error: Option<&hyper::Error>) -> io::Result<()> {
        let error = error.filter(|error| error.is_parse() && self.calls.is_answered());
        if let Some(error) = error {
            self.send_parse_error(error).await?;
        }
        // A connection that lingers is idle.
        self.calls.answered();
        if error.is_some() || self.requests.0.is_unread.load(Ordering::Relaxed) {
            let _ = tokio::time::timeout(LINGER_TIMEOUT, self.drain()).await;
        }
        Ok(())
    }

    /// Reads until the caller has closed the connection too, or sends nothing for a while.
    async fn drain(&mut self) {
        let mut ignored = vec![0; 64 << 10];
        while let Ok(Ok(1..)) = tokio::time::timeout(LINGER_IDLE_TIMEOUT, self.stream.read(&mut ignored)).await {}
    }

    async fn send_parse_error(&mut self, error: &hyper::Error) -> io::Result<()> {
        let (status, message) = self.parse_error(error);
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

    fn parse_error(&self, error: &hyper::Error) -> (StatusCode, String) {
        let most = REQUEST_HEAD_BYTES_MAX;
        if error.is_parse_version_h2() {
            let message = "HTTP/2 is not supported: use HTTP/1.1".to_owned();
            return (StatusCode::HTTP_VERSION_NOT_SUPPORTED, message);
        }
        let status = self.status.unwrap_or(StatusCode::BAD_REQUEST);
        let message = match status {
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                format!(
                    "the request headers are larger than {most} bytes, are more than 100, or have too large a \
                     content-length"
                )
            }
            _ if self.requests.0.progress.has_bare_line_feed() => {
                "a line of the request's head ends with a bare line feed: end each line with CR LF".to_owned()
            }
            StatusCode::URI_TOO_LONG => "the path of the request is longer than 65534 bytes".to_owned(),
            _ => format!("the request is not valid HTTP: {}", error.to_string().trim_end_matches(" parsed")),
        };
        (status, message)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ParseErrorStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, requests, lines, .. } = &mut *self;
        lines.poll_read(Pin::new(stream), &requests.0.progress, context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ParseErrorStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // A write without an open call is hyper's own reply.
        if self.calls.is_answered() {
            self.withhold(bytes);
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // A write without an open call is hyper's own reply.
        if self.calls.is_answered() {
            self.withhold(slices.first().map_or(&[][..], |slice| slice));
            return Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()));
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        // hyper flushes only when it has nothing left to write, so an answer that it has taken as a whole is written
        // now.
        if matches!(flushed, Poll::Ready(Ok(()))) && self.calls.are_ended() {
            self.calls.answered();
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

    use axum::body::Body;
    use axum::http::{Request, Response};
    use futures_util::StreamExt as _;
    use hyper::body::Incoming;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;

    use super::*;

    /// The reply of hyper to a head that is not HTTP.
    const BARE_400: &str = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";

    /// Serves one connection and answers with `pieces`, each in a separate frame. Returns the bytes that a caller
    /// receives for `requests`.
    async fn served(requests: &str, pieces: &'static [&'static str]) -> String {
        let (stream, mut caller) = tokio::io::duplex(64);
        let calls = ConnectionCalls::default();
        let stream = ParseErrorStream::new(stream, calls.clone(), ConnectionRequestTracker::default());
        let service = service_fn(move |_: Request<Incoming>| {
            let call = calls.begin();
            async move {
                let pieces = futures_util::stream::iter(pieces).then(|piece| async move {
                    tokio::task::yield_now().await;
                    Ok::<_, Infallible>(*piece)
                });
                Ok::<_, Infallible>(Response::new(call.until_sent(Body::from_stream(pieces))))
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
            let answers = served(&requests, &[BARE_400, "", BARE_400]).await;
            assert_eq!(answers.matches(BARE_400).count(), 2 * (before + 1), "{answers}");
            assert!(!answers.contains("application/json"), "{answers}");
        }
    }

    #[tokio::test]
    async fn invalid_http_gets_an_error_body_also_after_a_valid_request() {
        let good = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        for (requests, status) in [
            ("nonsense\r\n\r\n".to_owned(), "400 Bad Request"),
            ("GET / HTTP/1.1\nhost: x\r\n\r\n".to_owned(), "400 Bad Request"),
            ("GET / HTTP/1.1\r\nhost: x\n\r\n".to_owned(), "400 Bad Request"),
            ("GET / HTTP/1.1\r\nhost: x\r\n\n".to_owned(), "400 Bad Request"),
            ("\nGET / HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(), "400 Bad Request"),
            (format!("{good}GET / HTTP/1.1\nhost: x\r\n\r\n{good}"), "400 Bad Request"),
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
