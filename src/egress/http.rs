//! An HTTP client for files of one server. It requests and reads, and sends nothing about this box. Only the clients
//! of the audit log and of certificate requests ([`UploadClient`]) and of webhooks ([`WebhookClient`]) send a body, and only those of cameras
//! ([`SnapshotClient`]) and of webhooks log in.

mod answer;
mod snapshot;
mod upload;
mod webhook;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HOST, LOCATION, RANGE};
use http::header::{HeaderMap, HeaderName, RETRY_AFTER, USER_AGENT, WWW_AUTHENTICATE};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, timeout};

use super::address::HostPort;
use super::channel::EgressRoute;
use super::policy::EgressContent;
use super::{Egress, EgressError, EgressPurpose, TlsClientSettings};

pub use answer::HttpAnswer;
pub use snapshot::{SnapshotClient, SnapshotResponse};
pub use upload::UploadClient;
pub use webhook::WebhookClient;

/// The longest head of an answer, in bytes. hyper accepts no buffer below 8 KiB.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// The most headers of an answer.
const HEADERS_MAX: usize = 100;

/// Limit for the head of an answer, and for each piece of its body.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// The slowest accepted upload, in bytes a second. A slower link counts as broken.
const UPLOAD_BYTES_PER_SECOND_MIN: u64 = 2 << 10;

/// The time for which an idle connection is kept. Firewalls drop idle connections without notice.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// The most idle connections that are kept: as many as may be in use at a time.
const IDLE_CONNECTIONS_MAX: usize = 4;

/// The longest `Retry-After` that is followed.
const RETRY_AFTER_MAX: Duration = Duration::from_hours(24);

/// The server of an [`HttpClient`], and the way to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpClientSettings {
    pub at: HostPort,
    /// `None` is a connection without encryption.
    pub tls: Option<TlsClientSettings>,
    /// A proxy for HTTP CONNECT. It sees the destination, and with TLS nothing else.
    pub proxy: Option<HostPort>,
}

/// Gets files from one server. Clones share the idle connections.
#[derive(Debug, Clone)]
pub struct HttpClient(Arc<HttpClientState>);

struct HttpClientState {
    egress: Egress,
    route: EgressRoute,
    reply_timeout: Duration,
    /// Idle connections, each with the time since which it is idle.
    idle: Mutex<Vec<(HttpConnection, Instant)>>,
}

/// A connection and the future that drives it. It has no task: the request that waits for an answer polls it.
struct HttpConnection {
    sender: http1::SendRequest<Full<Bytes>>,
    connection: Option<ConnectionDriver>,
}

/// The future that reads and writes the bytes.
type ConnectionDriver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// An answer with a body that is read piece by piece.
pub struct HttpDownload {
    pub status: u16,
    /// The offset in the file at which the body begins: 0 unless the status is 206.
    pub start: u64,
    /// The length of the body in bytes, if the server sent it.
    pub length: Option<u64>,
    /// The server's `Retry-After`.
    pub retry_after: Option<Duration>,
    /// The values of `WWW-Authenticate`.
    challenges: Vec<String>,
    /// Set for a body of many parts, which may never end.
    is_stream: bool,
    body: Incoming,
    wire: Option<HttpConnection>,
    client: HttpClient,
}

/// The reason why there is no answer, or no more of it.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error(transparent)]
    Connect(#[from] EgressError),
    #[error("the connection to {at} failed during the request: {reason}")]
    Exchange {
        /// `HOST:PORT`.
        at: String,
        reason: String,
    },
    #[error("{at} sent nothing for {seconds} s: the network is too slow, or the server hangs")]
    Stalled {
        /// `HOST:PORT`.
        at: String,
        seconds: u64,
    },
    #[error(
        "{at} redirects {path} to {location} (status {status}): redirects are not followed, configure the new address"
    )]
    Redirect {
        /// `HOST:PORT`.
        at: String,
        path: String,
        status: u16,
        /// As the server sent it, without its query.
        location: String,
    },
    #[error("the answer of {at} for {path} cannot be used: {reason}")]
    Answer {
        /// `HOST:PORT`.
        at: String,
        path: String,
        reason: String,
    },
}

/// The headers of a request for a file, and their values.
pub const REQUEST_HEADERS: [(&str, &str); 5] = [
    ("path", "the configured path, and the name of the file"),
    ("host", "the configured host"),
    ("user-agent", "ledge"),
    ("accept", "*/*"),
    ("range", "the first byte to send, if a part of the file is here already"),
];

/// The headers of a request for a picture of a camera, and their values.
pub const SNAPSHOT_HEADERS: [(&str, &str); 5] = [
    ("path", "the path of camera.url"),
    ("host", "the host of camera.url"),
    ("user-agent", "ledge"),
    ("accept", "*/*"),
    ("authorization", "the login of the camera, if one is configured: for digest a hash, for basic the password"),
];

/// The headers of a message to a webhook, and their values.
pub const WEBHOOK_HEADERS: [(&str, &str); 6] = [
    ("path", "the path of the webhook's url, with its query"),
    ("host", "the host of the webhook's url"),
    ("user-agent", "ledge"),
    ("accept", "*/*"),
    ("content-type", "application/json"),
    (
        "authorization",
        "the secret of the webhook's token_file, if one is configured; in another header with its token_header",
    ),
];

impl HttpClient {
    /// A client for one server, which only reads from it. Nothing is connected yet.
    pub fn new(egress: Egress, settings: HttpClientSettings, purpose: EgressPurpose) -> Self {
        Self::with(egress, settings, purpose, EgressContent::Request, REPLY_TIMEOUT)
    }

    #[cfg(test)]
    pub(super) fn with_reply_timeout(egress: Egress, settings: HttpClientSettings, reply_timeout: Duration) -> Self {
        Self::with(egress, settings, EgressPurpose::Updates, EgressContent::Request, reply_timeout)
    }

    fn with(
        egress: Egress,
        settings: HttpClientSettings,
        purpose: EgressPurpose,
        content: EgressContent,
        reply_timeout: Duration,
    ) -> Self {
        let HttpClientSettings { at, tls, proxy } = settings;
        let route = EgressRoute { to: at, tls, proxy, purpose, content };
        Self(Arc::new(HttpClientState { egress, route, reply_timeout, idle: Mutex::default() }))
    }

    /// Requests `path`, already percent-encoded, from byte `from` on.
    pub async fn get(&self, path: &str, from: u64) -> Result<HttpDownload, HttpError> {
        let request = || {
            let mut request =
                Request::get(path).header(HOST, self.host()).header(USER_AGENT, "ledge").header(ACCEPT, "*/*");
            if from > 0 {
                request = request.header(RANGE, format!("bytes={from}-"));
            }
            request.body(Full::new(Bytes::new())).map_err(|error| self.unusable(path, error.to_string()))
        };
        self.ask(path, from, request).await
    }

    async fn ask(
        &self,
        path: &str,
        from: u64,
        request: impl Fn() -> Result<Request<Full<Bytes>>, HttpError>,
    ) -> Result<HttpDownload, HttpError> {
        let idle = self.idle().pop().filter(|(_, since)| since.elapsed() < IDLE_TIMEOUT);
        if let Some((mut wire, _)) = idle {
            // A server may close an idle connection at any time, so a failure here says nothing about this request.
            match self.exchange(&mut wire, request()?).await {
                Ok(response) => return self.download(path, from, response, wire),
                Err(HttpError::Exchange { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let mut wire = self.connect().await?;
        let response = self.exchange(&mut wire, request()?).await?;
        self.download(path, from, response, wire)
    }

    fn connect(&self) -> BoxFuture<'_, Result<HttpConnection, HttpError>> {
        // Boxed, so that it is compiled here once and not in every crate that awaits it.
        Box::pin(async move {
            let channel = self.0.egress.channel(&self.0.route).await?;
            let mut builder = http1::Builder::new();
            builder.max_buf_size(HEAD_BYTES_MAX).max_headers(HEADERS_MAX);
            let (sender, connection) =
                builder.handshake(TokioIo::new(channel)).await.map_err(|error| self.broken(&error))?;
            Ok(HttpConnection { sender, connection: Some(Box::pin(connection)) })
        })
    }

    async fn exchange(
        &self,
        wire: &mut HttpConnection,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, HttpError> {
        let HttpConnection { sender, connection } = wire;
        // A large body takes long on a slow link, and bytes that the system has taken may not have been sent yet.
        let length = request.body().size_hint().exact().unwrap_or(0);
        let reply_timeout = self.0.reply_timeout + Duration::from_secs(length / UPLOAD_BYTES_PER_SECOND_MIN);
        let answered = async {
            sender.ready().await?;
            sender.send_request(request).await
        };
        match timeout(reply_timeout, drive(connection, answered)).await {
            Ok(answered) => answered.map_err(|error| self.broken(&error)),
            Err(_) => Err(self.stalled()),
        }
    }

    fn download(
        &self,
        path: &str,
        from: u64,
        response: Response<Incoming>,
        wire: HttpConnection,
    ) -> Result<HttpDownload, HttpError> {
        let status = response.status().as_u16();
        let headers = response.headers();
        let length = text(headers, &CONTENT_LENGTH).and_then(|length| length.parse().ok());
        // For an upload the status is returned like every other refusal: the body of S3's redirect names the right
        // region.
        let is_upload = self.0.route.content == EgressContent::Audit;
        if response.status().is_redirection() && status != 304 && !is_upload {
            let location = without_query(text(headers, &LOCATION).unwrap_or("an unknown address"));
            let location = location.chars().take(500).collect();
            return Err(HttpError::Redirect { at: self.at(), path: without_query(path), status, location });
        }
        if let Some(encoding) = text(headers, &CONTENT_ENCODING).filter(|encoding| *encoding != "identity") {
            let reason =
                format!("it is compressed ({encoding}), which was not requested: turn compression off for these files");
            return Err(self.unusable(path, reason));
        }

        let start = match status {
            206 => match text(headers, &CONTENT_RANGE).and_then(range_start) {
                Some(start) if start <= from => start,
                _ => return Err(self.unusable(path, "it is not the requested part of the file".to_owned())),
            },
            _ => 0,
        };
        let retry_after = text(headers, &RETRY_AFTER)
            .and_then(|seconds| seconds.trim().parse().ok())
            .map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
        let challenges = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let challenges = challenges.map(str::to_owned).collect();
        let is_stream = text(headers, &CONTENT_TYPE).is_some_and(|kind| kind.trim_start().starts_with("multipart/"));
        let (body, wire, client) = (response.into_body(), Some(wire), self.clone());
        Ok(HttpDownload { status, start, length, retry_after, challenges, is_stream, body, wire, client })
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<(HttpConnection, Instant)>> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of `Host`: without the default port, as signed requests to S3 and virtual hosts expect.
    fn host(&self) -> String {
        let EgressRoute { to, tls, .. } = &self.0.route;
        match (tls.is_some(), to.port) {
            (true, 443) | (false, 80) => to.host.to_string(),
            _ => to.to_string(),
        }
    }

    fn at(&self) -> String {
        self.0.route.to.to_string()
    }

    fn stalled(&self) -> HttpError {
        HttpError::Stalled { at: self.at(), seconds: self.0.reply_timeout.as_secs() }
    }

    fn broken(&self, error: &hyper::Error) -> HttpError {
        // hyper's own message says little without its sources.
        let mut reason = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            reason = format!("{reason}: {cause}");
            source = cause.source();
        }
        HttpError::Exchange { at: self.at(), reason }
    }

    fn unusable(&self, path: &str, reason: String) -> HttpError {
        HttpError::Answer { at: self.at(), path: without_query(path), reason }
    }
}

impl HttpDownload {
    /// The next piece of the body; `None` is its end. A premature end is an error.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, HttpError> {
        let Some(wire) = &mut self.wire else { return Ok(None) };
        let (body, client) = (&mut self.body, &self.client);
        loop {
            match timeout(client.0.reply_timeout, drive(&mut wire.connection, body.frame())).await {
                Err(_) => return Err(client.stalled()),
                Ok(Some(Err(error))) => return Err(client.broken(&error)),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Ok(None) => break,
            }
        }

        // Keep the connection for the next request, which notices if the server has closed it.
        if let Some(wire) = self.wire.take().filter(|wire| wire.connection.is_some()) {
            let mut idle = self.client.idle();
            idle.retain(|(_, since)| since.elapsed() < IDLE_TIMEOUT);
            if idle.len() < IDLE_CONNECTIONS_MAX {
                idle.push((wire, Instant::now()));
            }
        }
        Ok(None)
    }

    /// The whole answer; of the body only the first `longest` bytes.
    pub async fn answer(mut self, longest: usize) -> Result<HttpAnswer, HttpError> {
        // One allocation, so that no more is taken than the length says.
        let length = self.length.and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
        let mut body = BytesMut::with_capacity(length.min(longest));
        while body.len() < longest
            && let Some(chunk) = self.chunk().await?
        {
            body.extend_from_slice(chunk.get(..longest - body.len()).unwrap_or(&chunk));
        }
        // Read the end of a complete body too: only then can the connection be used again.
        if body.len() == longest && self.length == Some(longest as u64) {
            self.chunk().await?;
        }
        Ok(HttpAnswer { status: self.status, body: body.freeze(), retry_after: self.retry_after })
    }
}

/// Waits for `waited` and polls the connection meanwhile.
async fn drive<F: Future>(connection: &mut Option<ConnectionDriver>, waited: F) -> F::Output {
    let mut waited = pin!(waited);
    poll_fn(|cx| {
        // Its error is also the error of the current request.
        if connection.as_mut().is_some_and(|driver| driver.as_mut().poll(cx).is_ready()) {
            *connection = None;
        }
        match waited.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(output),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// A path without its query, which may hold a signature that others could use.
fn without_query(path: &str) -> String {
    path.split('?').next().unwrap_or_default().to_owned()
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The first byte of `bytes FIRST-LAST/LENGTH`.
fn range_start(text: &str) -> Option<u64> {
    let (first, _) = text.trim().strip_prefix("bytes ")?.split_once('-')?;
    first.trim().parse().ok()
}

impl std::fmt::Debug for HttpClientState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpClientState").field("route", &self.route).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for HttpDownload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpDownload").field("status", &self.status).field("start", &self.start).finish_non_exhaustive()
    }
}
