//! From the command line to a daemon, over a Unix socket or plain HTTP. It is no part of the daemon, and what it sends is
//! what the user of the command line hands it, so the allow-list does not apply.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt};
use http::request::Builder;
use http::{Request, Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};

/// A daemon that does not take the connection within this time is not there.
pub(super) const CONNECT: Duration = Duration::from_secs(10);

/// Why a daemon did not answer.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The address is not one.
    #[error("{url:?} is not an address of a daemon: expected http://HOST:PORT or unix:PATH")]
    Address {
        /// As given.
        url: String,
    },
    /// No connection.
    #[error("no daemon answers at {url}: {error}")]
    Connect {
        /// As given.
        url: String,
        /// The system's words.
        error: std::io::Error,
    },
    /// This user may not connect.
    #[error(
        "this user may not open {url}: run this as root, or as the user that Ledge runs as: sudo -u ledge ledge ..."
    )]
    Forbidden {
        /// As given.
        url: String,
    },
    /// The exchange broke off.
    #[error("the exchange with the daemon broke off: {0}")]
    Exchange(#[from] hyper::Error),
}

/// Where a daemon listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Tcp { authority: String },
    Unix { path: PathBuf },
}

/// A connection to a daemon, for one request after the other.
#[derive(Debug)]
pub struct DaemonConnection {
    sender: http1::SendRequest<Body>,
    host: String,
    url: String,
}

/// What is sent: a whole body, or one that is read while it is sent.
type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// A large answer, as it comes.
#[derive(Debug)]
pub struct Download {
    /// The HTTP status.
    pub status: u16,
    body: Incoming,
}

impl Download {
    /// The next piece; `None` is the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, DaemonError> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(data) = frame?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}

/// A daemon's answer.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: Bytes,
    /// After what time another try is worth it, where the daemon says so.
    pub retry_after: Option<Duration>,
}

impl DaemonError {
    /// Why no connection to `url` came about.
    pub(super) fn connecting(url: &str, error: std::io::Error) -> Self {
        let url = url.to_owned();
        if error.kind() == std::io::ErrorKind::PermissionDenied {
            Self::Forbidden { url }
        } else {
            Self::Connect { url, error }
        }
    }
}

pub(super) fn target(url: &str) -> Result<Target, DaemonError> {
    let wrong = || DaemonError::Address { url: url.to_owned() };
    if let Some(path) = url.strip_prefix("unix:") {
        return Ok(Target::Unix { path: path.trim_start_matches("//").into() });
    }
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let (Some("http"), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return Err(wrong()) };
    let port = authority.port_u16().unwrap_or(80);
    Ok(Target::Tcp { authority: format!("{}:{port}", authority.host()) })
}

impl DaemonConnection {
    /// Connects to `http://HOST:PORT` or `unix:PATH`.
    pub async fn open(url: &str) -> Result<Self, DaemonError> {
        let failed = |error| DaemonError::connecting(url, error);
        let late = |_| failed(std::io::ErrorKind::TimedOut.into());
        match target(url)? {
            Target::Tcp { authority } => {
                let connecting = tokio::time::timeout(CONNECT, TcpStream::connect(&authority));
                let stream = connecting.await.map_err(late)?.map_err(failed)?;
                Self::over(TokioIo::new(stream), authority, url).await
            }
            Target::Unix { path } => {
                let connecting = tokio::time::timeout(CONNECT, UnixStream::connect(&path));
                let stream = connecting.await.map_err(late)?.map_err(failed)?;
                Self::over(TokioIo::new(stream), "localhost".to_owned(), url).await
            }
        }
    }

    async fn over<S>(stream: S, host: String, url: &str) -> Result<Self, DaemonError>
    where
        S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::handshake(stream).await?;
        #[expect(clippy::disallowed_methods, reason = "a command line has no daemon whose shutdown it could join")]
        tokio::spawn(async move {
            // Its error is also the error of the request that is under way.
            let _ = connection.await;
        });
        Ok(Self { sender, host, url: url.to_owned() })
    }

    /// Posts `body` and waits for the whole answer.
    pub async fn post(&mut self, path: &str, headers: &[(&str, &str)], body: Bytes) -> Result<Answer, DaemonError> {
        let request = headers.iter().fold(Request::post(path), |request, (name, value)| request.header(*name, *value));
        self.exchange(request, path, whole(body)).await
    }

    /// Asks for `path` and waits for the whole answer.
    pub async fn get(&mut self, path: &str) -> Result<Answer, DaemonError> {
        self.exchange(Request::get(path), path, whole(Bytes::new())).await
    }

    /// Asks for `path`, whose answer is too large to wait for.
    pub async fn download(&mut self, path: &str) -> Result<Download, DaemonError> {
        let response = self.send(Request::get(path), path, whole(Bytes::new())).await?;
        Ok(Download { status: response.status().as_u16(), body: response.into_body() })
    }

    /// Posts a body of `length` bytes that is too large to have in memory, and waits for the whole answer.
    pub async fn upload<S>(&mut self, path: &str, length: u64, body: S) -> Result<Answer, DaemonError>
    where
        S: Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    {
        let request = Request::post(path).header(http::header::CONTENT_LENGTH, length);
        let body = StreamBody::new(body.map_ok(Frame::data));
        self.exchange(request, path, body.boxed_unsync()).await
    }

    async fn exchange(&mut self, request: Builder, path: &str, body: Body) -> Result<Answer, DaemonError> {
        let response = self.send(request, path, body).await?;
        let status = response.status().as_u16();
        let retry_after = response.headers().get(http::header::RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok()).map(Duration::from_secs);
        let body = response.into_body().collect().await?.to_bytes();
        Ok(Answer { status, body, retry_after })
    }

    async fn send(&mut self, request: Builder, path: &str, body: Body) -> Result<Response<Incoming>, DaemonError> {
        let request = request
            .header(http::header::HOST, self.host.as_str())
            .body(body)
            .map_err(|_| DaemonError::Address { url: path.to_owned() })?;
        // The daemon closes a connection whose body it refused to read.
        if self.sender.ready().await.is_err() {
            *self = Self::open(&self.url).await?;
            self.sender.ready().await?;
        }
        Ok(self.sender.send_request(request).await?)
    }
}

fn whole(body: Bytes) -> Body {
    Full::new(body).map_err(|never| match never {}).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_plain_http_or_a_unix_socket() {
        let tcp = |authority: &str| Target::Tcp { authority: authority.into() };
        assert_eq!(target("http://127.0.0.1:8000").unwrap(), tcp("127.0.0.1:8000"));
        assert_eq!(target("http://[::1]/").unwrap(), tcp("[::1]:80"));
        assert_eq!(
            target("unix:/run/ledge/ledge.sock").unwrap(),
            Target::Unix { path: "/run/ledge/ledge.sock".into() }
        );
        for wrong in ["https://box", "127.0.0.1:8000", "", "ftp://x"] {
            assert!(matches!(target(wrong), Err(DaemonError::Address { .. })), "{wrong}");
        }
    }
}
