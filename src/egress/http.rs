//! An HTTP client for files of one server: it asks and reads, and has nothing of this box to tell. Only one that is made for
//! the audit log sends anything ([`AuditClient`]).

mod upload;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, HOST, LOCATION, RANGE, RETRY_AFTER};
use http::header::{HeaderMap, HeaderName, USER_AGENT};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, timeout};

use super::address::HostPort;
use super::channel::Way;
use super::policy::Content;
use super::{Egress, EgressError, Purpose, TlsSettings};

pub use upload::{AuditClient, HttpAnswer};

/// The longest head of an answer, in bytes. hyper takes no smaller buffer than 8 KiB.
const LONGEST_HEAD: usize = 64 << 10;

/// The most headers of an answer.
const MOST_HEADERS: usize = 100;

/// How long the head of an answer, or a piece of its body, may let wait.
const PATIENCE: Duration = Duration::from_secs(30);

/// A link that takes fewer bytes of a file a second than this is taken for broken.
const SLOWEST: u64 = 2 << 10;

/// How long a connection is kept for the next request. Firewalls forget idle ones without a word.
const KEPT: Duration = Duration::from_secs(15);

/// How many connections are kept: as many as may be in use at a time.
const MOST_KEPT: usize = 4;

/// The longest `Retry-After` that is believed.
const LONGEST_PAUSE: Duration = Duration::from_hours(24);

/// Whom an [`HttpClient`] asks, and how it gets there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettings {
    pub at: HostPort,
    /// TLS, or a connection that anybody on the way can read and change.
    pub tls: Option<TlsSettings>,
    /// A proxy that is asked to connect (HTTP CONNECT). It sees where to, and with TLS nothing else.
    pub proxy: Option<HostPort>,
}

/// Gets files from one server. Clones share the connections that are kept for the next requests.
#[derive(Debug, Clone)]
pub struct HttpClient(Arc<Shared>);

struct Shared {
    egress: Egress,
    way: Way,
    patience: Duration,
    /// The connections of requests that are over, when they may serve others.
    kept: Mutex<Vec<(Wire, Instant)>>,
}

/// A connection, and what keeps it going. No task of its own: whoever waits for an answer drives it.
struct Wire {
    sender: http1::SendRequest<Full<Bytes>>,
    connection: Option<Driver>,
}

/// The future that reads and writes the bytes.
type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// An answer, whose body comes piece by piece.
pub struct HttpDownload {
    pub status: u16,
    /// Where in the file the body begins: 0 unless the status is 206.
    pub start: u64,
    /// How many bytes the body has, where the server says it.
    pub length: Option<u64>,
    /// After what time another try is worth it, where the server says it.
    pub retry_after: Option<Duration>,
    body: Incoming,
    wire: Option<Wire>,
    client: HttpClient,
}

/// Why there is no answer, or no more of it.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error(transparent)]
    Connect(#[from] EgressError),
    #[error("the exchange with {at} broke off: {reason}")]
    Exchange {
        /// `HOST:PORT`.
        at: String,
        reason: String,
    },
    #[error("{at} has sent nothing for {seconds} s: the link is too bad, or the server hangs")]
    Stalled {
        /// `HOST:PORT`.
        at: String,
        seconds: u64,
    },
    #[error(
        "{at} answers that {path} is elsewhere (status {status}), at {location}: redirects are not followed, configure the address itself"
    )]
    Redirect {
        /// `HOST:PORT`.
        at: String,
        path: String,
        status: u16,
        /// As the server has it.
        location: String,
    },
    #[error("the answer of {at} for {path} cannot be used: {reason}")]
    Answer {
        /// `HOST:PORT`.
        at: String,
        path: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// What a request for a file tells the server.
pub const REQUEST_HEADERS: [(&str, &str); 5] = [
    ("path", "what is configured, and the name of the file"),
    ("host", "the host that is configured"),
    ("user-agent", "ledge"),
    ("accept", "*/*"),
    ("range", "from which byte on, where a part of the file is here"),
];

impl HttpClient {
    /// A client for one server. Nothing is connected yet.
    pub fn new(egress: Egress, settings: HttpSettings) -> Self {
        Self::with(egress, settings, Purpose::Updates, Content::Request, PATIENCE)
    }

    #[cfg(test)]
    pub(super) fn with_patience(egress: Egress, settings: HttpSettings, patience: Duration) -> Self {
        Self::with(egress, settings, Purpose::Updates, Content::Request, patience)
    }

    fn with(egress: Egress, settings: HttpSettings, purpose: Purpose, content: Content, patience: Duration) -> Self {
        let HttpSettings { at, tls, proxy } = settings;
        let way = Way { to: at, tls, proxy, purpose, content };
        Self(Arc::new(Shared { egress, way, patience, kept: Mutex::default() }))
    }

    /// Asks for `path`, percent-encoded as it has to be, from its byte `from` on.
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
        let kept = self.kept().pop().filter(|(_, since)| since.elapsed() < KEPT);
        if let Some((mut wire, _)) = kept {
            // A server may close a connection that it kept open at any time: that says nothing of this request.
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

    async fn connect(&self) -> Result<Wire, HttpError> {
        let channel = self.0.egress.channel(&self.0.way).await?;
        let mut builder = http1::Builder::new();
        builder.max_buf_size(LONGEST_HEAD).max_headers(MOST_HEADERS);
        let (sender, connection) =
            builder.handshake(TokioIo::new(channel)).await.map_err(|error| self.broken(&error))?;
        Ok(Wire { sender, connection: Some(Box::pin(connection)) })
    }

    async fn exchange(&self, wire: &mut Wire, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, HttpError> {
        let Wire { sender, connection } = wire;
        // A large file takes its time on a slow link, and what the system has taken need not have gone.
        let length = request.body().size_hint().exact().unwrap_or(0);
        let patience = self.0.patience + Duration::from_secs(length / SLOWEST);
        let answered = async {
            sender.ready().await?;
            sender.send_request(request).await
        };
        match timeout(patience, driven(connection, answered)).await {
            Ok(answered) => answered.map_err(|error| self.broken(&error)),
            Err(_) => Err(self.stalled()),
        }
    }

    fn download(
        &self,
        path: &str,
        from: u64,
        response: Response<Incoming>,
        wire: Wire,
    ) -> Result<HttpDownload, HttpError> {
        let status = response.status().as_u16();
        let headers = response.headers();
        let length = text(headers, &CONTENT_LENGTH).and_then(|length| length.parse().ok());
        // What is put somewhere is told by its status like every other refusal: S3 names the right region behind it.
        let is_upload = self.0.way.content == Content::Audit;
        if response.status().is_redirection() && status != 304 && !is_upload {
            let location: String = text(headers, &LOCATION).unwrap_or("no address").chars().take(500).collect();
            return Err(HttpError::Redirect { at: self.at(), path: shown(path), status, location });
        }
        if let Some(encoding) = text(headers, &CONTENT_ENCODING).filter(|encoding| *encoding != "identity") {
            let reason =
                format!("it is compressed ({encoding}), which was not asked for: turn that off for these files");
            return Err(self.unusable(path, reason));
        }
        let start = match status {
            206 => match text(headers, &CONTENT_RANGE).and_then(range_start) {
                Some(start) if start <= from => start,
                _ => return Err(self.unusable(path, "it is not the part of the file that was asked for".to_owned())),
            },
            _ => 0,
        };
        let retry_after = text(headers, &RETRY_AFTER)
            .and_then(|seconds| seconds.trim().parse().ok())
            .map(|seconds| Duration::from_secs(seconds).min(LONGEST_PAUSE));
        let (body, wire, client) = (response.into_body(), Some(wire), self.clone());
        Ok(HttpDownload { status, start, length, retry_after, body, wire, client })
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Vec<(Wire, Instant)>> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As `Host` has it: without the port where it is the usual one, which signed requests to S3 and virtual hosts expect.
    fn host(&self) -> String {
        let Way { to, tls, .. } = &self.0.way;
        match (tls.is_some(), to.port) {
            (true, 443) | (false, 80) => to.host.to_string(),
            _ => to.to_string(),
        }
    }

    fn at(&self) -> String {
        self.0.way.to.to_string()
    }

    fn stalled(&self) -> HttpError {
        HttpError::Stalled { at: self.at(), seconds: self.0.patience.as_secs() }
    }

    fn broken(&self, error: &hyper::Error) -> HttpError {
        // hyper's own words are of little use without those of what lies below.
        let mut reason = error.to_string();
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            reason = format!("{reason}: {cause}");
            source = cause.source();
        }
        HttpError::Exchange { at: self.at(), reason }
    }

    fn unusable(&self, path: &str, reason: String) -> HttpError {
        HttpError::Answer { at: self.at(), path: shown(path), reason }
    }
}

impl HttpDownload {
    /// The next piece of the body; `None` is its end. An end that comes too early is an error.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, HttpError> {
        let Some(wire) = &mut self.wire else { return Ok(None) };
        let (body, client) = (&mut self.body, &self.client);
        loop {
            match timeout(client.0.patience, driven(&mut wire.connection, body.frame())).await {
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
        // The next request may use the connection; one that is over is found out then.
        if let Some(wire) = self.wire.take().filter(|wire| wire.connection.is_some()) {
            let mut kept = self.client.kept();
            kept.retain(|(_, since)| since.elapsed() < KEPT);
            if kept.len() < MOST_KEPT {
                kept.push((wire, Instant::now()));
            }
        }
        Ok(None)
    }

    /// All of it, or its beginning where the body has more than `longest` bytes.
    async fn answer(mut self, longest: usize) -> Result<HttpAnswer, HttpError> {
        let mut body = BytesMut::new();
        while body.len() < longest
            && let Some(chunk) = self.chunk().await?
        {
            body.extend_from_slice(chunk.get(..longest - body.len()).unwrap_or(&chunk));
        }
        // The end of a body that is read is seen only now, and only then the connection may serve again.
        if body.len() == longest && self.length == Some(longest as u64) {
            self.chunk().await?;
        }
        Ok(HttpAnswer { status: self.status, body: body.freeze(), retry_after: self.retry_after })
    }
}

/// Waits for `waited`, and moves the connection on meanwhile.
async fn driven<F: Future>(connection: &mut Option<Driver>, waited: F) -> F::Output {
    let mut waited = pin!(waited);
    poll_fn(|cx| {
        // Its error is also the error of the request that is under way.
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

/// A path as it may be told: what is behind it may be a signature that somebody else could use.
fn shown(path: &str) -> String {
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

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("way", &self.way).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for HttpDownload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpDownload").field("status", &self.status).field("start", &self.start).finish_non_exhaustive()
    }
}
