//! Connections from the command line to a daemon, over a Unix socket, HTTPS or plain HTTP. The daemon does not use
//! them, and they send only input of the user of the command line, so the allow-list does not apply.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{Stream, TryStreamExt};
use http::request::Builder;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use ledge_base::secret::SecretFile;
use rustix::net::sockopt;
use tokio::net::{TcpStream, UnixStream};

use super::address::HostPort;
use super::channel::ByteStream;
use super::tls::{TlsClient, TlsClientSettings, TlsError};

/// Limit for connecting to a daemon, the TLS handshake included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A machine that sends no sign of life for this long has gone, however long an answer may take. Before a server at its
/// limit of connections reads a request, it may take this long, too.
const SILENCE_MAX: Duration = Duration::from_mins(2);

/// The time without a word after which a machine is asked for a sign of life, and the time between two of these
/// questions.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// The reason why a daemon did not answer.
#[derive(Debug, thiserror::Error)]
pub enum DaemonConnectionError {
    #[error("{url:?} is not an address of a daemon: expected https://HOST:PORT, http://HOST:PORT or unix:PATH")]
    Address { url: String },
    #[error("no daemon answers at {url}: {error}")]
    Connect { url: String, error: std::io::Error },
    #[error(
        "this user may not open {url}: run this as root, or as the user that Ledge runs as: sudo -u ledge ledge ...; \
         or use another of its addresses, with --url and --key-file"
    )]
    Forbidden { url: String },
    #[error("the TLS connection to {url} failed: {error}")]
    Tls { url: String, error: TlsError },
    #[error("the API key is not sent to {url}, because this connection is not encrypted: use https://")]
    Exposed { url: String },
    #[error("the connection to the daemon failed during the request: {0}")]
    Exchange(#[from] hyper::Error),
}

/// The socket of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DaemonSocket {
    Tcp { authority: String },
    Tls { at: HostPort, authority: String },
    Unix { path: PathBuf },
}

/// The address of a daemon, and the credential for it.
#[derive(Debug, Clone)]
pub struct DaemonAddress {
    /// `https://HOST:PORT`, `http://HOST:PORT` or `unix:PATH`.
    pub url: String,
    /// The CAs that may have signed its certificate; `None` is those that the system trusts.
    pub ca: Option<SecretFile>,
    /// The value of the header `Authorization`.
    authorization: Option<HeaderValue>,
}

impl From<&str> for DaemonAddress {
    fn from(url: &str) -> Self {
        Self { url: url.to_owned(), ca: None, authorization: None }
    }
}

impl DaemonAddress {
    /// The same with an API key.
    #[must_use]
    pub fn with_key(mut self, key: &str) -> Self {
        self.authorization = HeaderValue::from_str(&format!("Bearer {key}")).ok().map(|mut header| {
            header.set_sensitive(true);
            header
        });
        self
    }
}

/// A connection to a daemon, for one request after another.
#[derive(Debug)]
pub struct DaemonConnection {
    sender: http1::SendRequest<DaemonRequestBody>,
    host: String,
    address: DaemonAddress,
}

/// The body of a request: whole, or read while it is sent.
type DaemonRequestBody = UnsyncBoxBody<Bytes, std::io::Error>;

/// A large answer, read piece by piece.
#[derive(Debug)]
pub struct DaemonDownload {
    pub status: u16,
    body: Incoming,
}

impl DaemonDownload {
    /// The next piece; `None` is the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, DaemonConnectionError> {
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
pub struct DaemonAnswer {
    pub status: u16,
    pub body: Bytes,
    /// The daemon's `Retry-After`.
    pub retry_after: Option<Duration>,
}

impl DaemonConnectionError {
    /// The error for a failed connection to `url`.
    fn connecting(url: &str, error: std::io::Error) -> Self {
        let url = url.to_owned();
        if error.kind() == std::io::ErrorKind::PermissionDenied {
            Self::Forbidden { url }
        } else {
            Self::Connect { url, error }
        }
    }
}

fn target(url: &str) -> Result<DaemonSocket, DaemonConnectionError> {
    let wrong = || DaemonConnectionError::Address { url: url.to_owned() };
    if let Some(path) = url.strip_prefix("unix:") {
        return Ok(DaemonSocket::Unix { path: path.trim_start_matches("//").into() });
    }
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return Err(wrong()) };
    let with_port = |usual: u16| format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(usual));
    match scheme {
        "http" => Ok(DaemonSocket::Tcp { authority: with_port(80) }),
        "https" => {
            let authority = with_port(443);
            Ok(DaemonSocket::Tls { at: authority.parse().map_err(|_| wrong())?, authority })
        }
        _ => Err(wrong()),
    }
}

impl DaemonConnection {
    /// Connects to a daemon.
    pub fn open(address: &DaemonAddress) -> BoxFuture<'_, Result<Self, DaemonConnectionError>> {
        // Boxed, so that it is compiled here once and not in every crate that awaits it.
        Box::pin(async move {
            let url = &address.url;
            let failed = |error| DaemonConnectionError::connecting(url, error);
            let late = |_| failed(std::io::ErrorKind::TimedOut.into());
            match target(url)? {
                DaemonSocket::Tcp { authority } => {
                    let connecting = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(&authority));
                    let stream = connecting.await.map_err(late)?.map_err(failed)?;
                    notice_loss(&stream).map_err(failed)?;
                    let peer = stream.peer_addr().map_err(failed)?.ip();
                    if address.authorization.is_some() && !peer.to_canonical().is_loopback() {
                        return Err(DaemonConnectionError::Exposed { url: url.clone() });
                    }
                    Self::over(Box::new(stream), authority, address).await
                }
                DaemonSocket::Tls { at, authority } => {
                    let refused = |error| DaemonConnectionError::Tls { url: url.clone(), error };
                    let settings = TlsClientSettings { ca: address.ca.clone(), ..TlsClientSettings::default() };
                    let client = TlsClient::read(&settings, &at).map_err(refused)?;
                    let connecting = async {
                        let stream = TcpStream::connect(&authority).await.map_err(failed)?;
                        notice_loss(&stream).map_err(failed)?;
                        Ok::<_, DaemonConnectionError>(client.connect(stream).await.map_err(refused)?.0)
                    };
                    let stream = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.map_err(late)??;
                    Self::over(Box::new(stream), authority, address).await
                }
                DaemonSocket::Unix { path } => {
                    let connecting = tokio::time::timeout(CONNECT_TIMEOUT, UnixStream::connect(&path));
                    let stream = connecting.await.map_err(late)?.map_err(failed)?;
                    Self::over(Box::new(stream), "localhost".to_owned(), address).await
                }
            }
        })
    }

    async fn over(
        stream: Box<dyn ByteStream>,
        host: String,
        address: &DaemonAddress,
    ) -> Result<Self, DaemonConnectionError> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        #[expect(clippy::disallowed_methods, reason = "a command line has no daemon whose shutdown it could join")]
        tokio::spawn(async move {
            // Its error is also the error of the current request.
            let _ = connection.await;
        });
        Ok(Self { sender, host, address: address.clone() })
    }

    /// Posts `body` and waits for the whole answer.
    pub async fn post(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<DaemonAnswer, DaemonConnectionError> {
        let request = headers.iter().fold(Request::post(path), |request, (name, value)| request.header(*name, *value));
        self.exchange(request, path, whole(body)).await
    }

    /// Requests `path` and waits for the whole answer.
    pub async fn get(&mut self, path: &str) -> Result<DaemonAnswer, DaemonConnectionError> {
        self.exchange(Request::get(path), path, whole(Bytes::new())).await
    }

    /// Requests `path`, for an answer that is too large for memory.
    pub async fn download(&mut self, path: &str) -> Result<DaemonDownload, DaemonConnectionError> {
        let response = self.send(Request::get(path), path, whole(Bytes::new())).await?;
        Ok(DaemonDownload { status: response.status().as_u16(), body: response.into_body() })
    }

    /// Posts a body of `length` bytes that is too large for memory, and waits for the whole answer.
    pub async fn upload<S>(&mut self, path: &str, length: u64, body: S) -> Result<DaemonAnswer, DaemonConnectionError>
    where
        S: Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    {
        let request = Request::post(path).header(http::header::CONTENT_LENGTH, length);
        let body = StreamBody::new(body.map_ok(Frame::data));
        self.exchange(request, path, body.boxed_unsync()).await
    }

    async fn exchange(
        &mut self,
        request: Builder,
        path: &str,
        body: DaemonRequestBody,
    ) -> Result<DaemonAnswer, DaemonConnectionError> {
        let response = self.send(request, path, body).await?;
        let status = response.status().as_u16();
        let retry_after = response.headers().get(http::header::RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok()).map(Duration::from_secs);
        let body = response.into_body().collect().await?.to_bytes();
        Ok(DaemonAnswer { status, body, retry_after })
    }

    fn send<'a>(
        &'a mut self,
        request: Builder,
        path: &'a str,
        body: DaemonRequestBody,
    ) -> BoxFuture<'a, Result<Response<Incoming>, DaemonConnectionError>> {
        // Boxed, so that it is compiled here once and not in every crate that awaits it.
        Box::pin(async move {
            let mut request = request.header(http::header::HOST, self.host.as_str());
            if let Some(authorization) = &self.address.authorization {
                request = request.header(http::header::AUTHORIZATION, authorization);
            }
            let request = request.body(body).map_err(|_| DaemonConnectionError::Address { url: path.to_owned() })?;
            // The daemon closes a connection after it refused to read a body.
            if self.sender.ready().await.is_err() {
                *self = Self::open(&self.address.clone()).await?;
                self.sender.ready().await?;
            }
            Ok(self.sender.send_request(request).await?)
        })
    }
}

/// Lets a connection end after [`SILENCE_MAX`], while a request is sent and while its answer is awaited.
fn notice_loss(stream: &TcpStream) -> std::io::Result<()> {
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_socket_keepalive(stream, true)?;
    // Of Linux: it also replaces the number of keepalive probes.
    let silence_ms = u32::try_from(SILENCE_MAX.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(stream, silence_ms)?)
}

fn whole(body: Bytes) -> DaemonRequestBody {
    Full::new(body).map_err(|never| match never {}).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_machine_that_vanishes_is_noticed_within_two_minutes() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        notice_loss(&stream).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), KEEPALIVE_IDLE);
        assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), KEEPALIVE_INTERVAL);
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 120_000);
    }

    #[test]
    fn an_address_is_https_plain_http_or_a_unix_socket() {
        let tcp = |authority: &str| DaemonSocket::Tcp { authority: authority.into() };
        assert_eq!(target("http://127.0.0.1:8000").unwrap(), tcp("127.0.0.1:8000"));
        assert_eq!(target("http://[::1]/").unwrap(), tcp("[::1]:80"));
        assert_eq!(
            target("unix:/run/ledge/ledge.sock").unwrap(),
            DaemonSocket::Unix { path: "/run/ledge/ledge.sock".into() }
        );
        let tls = |authority: &str| DaemonSocket::Tls { at: authority.parse().unwrap(), authority: authority.into() };
        assert_eq!(target("https://box.lan").unwrap(), tls("box.lan:443"));
        assert_eq!(target("https://[::1]:8443").unwrap(), tls("[::1]:8443"));
        for wrong in ["https://", "127.0.0.1:8000", "", "ftp://x"] {
            assert!(matches!(target(wrong), Err(DaemonConnectionError::Address { .. })), "{wrong}");
        }
    }
}
