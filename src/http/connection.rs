//! Listeners and connections: bound early, served late, drained in order.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::http::uri::{Authority, Scheme};
use axum::http::{HeaderValue, Request, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use ledge_egress::ByteStream;
use ledge_identity::authentication::Peer;
use ledge_part::reply;
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tower_service::Service;

use super::Routers;
use super::config::{HttpConfig, ListenAddress};
use super::connection_close::{ConnectionCalls, ParseErrorStream};
use super::connection_limiter::ConnectionLimiter;
use super::handover::{Handover, SocketFile};
use super::local_plain::LocalPlain;
use super::tls::{ServerTls, TlsCaller};
use super::write_timeout::WriteTimeout;

/// The pause after a failed accept, for example when no file descriptor is left.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The time for which an idle connection may send one more request before a restart closes it. A caller that sends one
/// request after the other gets `connection: close` with an answer, and its next request does not fail.
const RESTART_LINGER: Duration = Duration::from_millis(200);

/// The most time that connections accepted across a restart wait for the models to load.
const READINESS_WAIT_MAX: Duration = Duration::from_secs(10);

/// The largest head of a request, in bytes: each connection may use this memory before its caller is known.
pub(super) const REQUEST_HEAD_BYTES_MAX: usize = 64 << 10;

/// The number of connections that the kernel queues until they are accepted.
const LISTEN_BACKLOG: i32 = 1024;

/// The reason why an address cannot be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("cannot listen on {address}: {error}")]
    Refused { address: String, error: io::Error },
    #[error("cannot listen on {}: another process already listens on it", path.display())]
    InUse { path: PathBuf },
}

/// The daemon's bound sockets.
#[derive(Debug)]
pub struct Listeners {
    tcp: Vec<TcpEndpoint>,
    unix: Vec<(UnixListener, ListenAddress, SocketFile)>,
    /// Set when the previous program of this process handed over one of them.
    handed_over: bool,
    handover: Handover,
}

/// A listening TCP socket.
#[derive(Debug)]
struct TcpEndpoint {
    listener: TcpListener,
    address: ListenAddress,
    /// The section of an address of `[[http.local_plain]]`.
    local_plain: Option<LocalPlain>,
}

impl Listeners {
    /// Binds every configured address. Sockets that the previous program left in `handover` are used as they are. At a
    /// restart this program leaves its own sockets there.
    pub async fn bind(config: &HttpConfig, handover: &Handover) -> Result<Self, BindError> {
        let handover = handover.clone();
        // First: an address that changed between plain and TLS is still bound by its old socket.
        let endpoints = config.endpoints();
        handover.retain(&endpoints);
        let mut listeners = Self { tcp: Vec::new(), unix: Vec::new(), handed_over: false, handover };
        for endpoint in endpoints {
            let left = listeners.handover.take(&endpoint);
            let (address, local_plain) = endpoint;
            let refused = |error| BindError::Refused { address: address.to_string(), error };
            listeners.handed_over |= left.is_some();
            match (&address, left) {
                (ListenAddress::Tcp(_) | ListenAddress::Tls(_), Some((socket, _))) => {
                    let listener = TcpListener::from_std(nonblocking(socket).map_err(refused)?.into());
                    listeners.tcp.push(TcpEndpoint { listener: listener.map_err(refused)?, address, local_plain });
                }
                (ListenAddress::Tcp(at) | ListenAddress::Tls(at), None) => {
                    let listener = bind_tcp(*at).map_err(refused)?;
                    listeners.tcp.push(TcpEndpoint { listener, address, local_plain });
                }
                (ListenAddress::Unix(path), left) => {
                    // A socket whose file is gone is dropped here: later it would remove the new file.
                    let (listener, file) = if let Some((socket, file)) = left.filter(|_| is_socket(path)) {
                        let listener = UnixListener::from_std(nonblocking(socket).map_err(refused)?.into());
                        (listener.map_err(refused)?, file)
                    } else {
                        remove_stale(path).await?;
                        (UnixListener::bind(path).map_err(refused)?, None)
                    };
                    let file = file.unwrap_or_else(|| SocketFile::new(path.clone()));
                    let mode = std::fs::Permissions::from_mode(config.socket_mode.bits());
                    std::fs::set_permissions(path, mode).map_err(refused)?;
                    listeners.unix.push((listener, address.clone(), file));
                }
            }
        }
        listeners.handover.clear();
        Ok(listeners)
    }

    /// Logs the TCP addresses, with the ports that the system chose, and the scheme of each.
    pub fn announce(&self) {
        for TcpEndpoint { listener, address, local_plain } in &self.tcp {
            let Ok(at) = listener.local_addr() else { continue };
            if let Some(plain) = local_plain {
                tracing::warn!(
                    address = %at,
                    networks = plain.networks(),
                    "listening without encryption: only for pictures, from these networks, with an API key"
                );
            } else {
                let scheme = if matches!(address, ListenAddress::Tls(_)) { "https" } else { "http" };
                tracing::info!(address = %at, scheme, "listening");
            }
        }
    }

    /// Starts accepting on every socket. Connections end with `shutdown`, after their current request. Without `tls`,
    /// `https://` addresses serve nothing.
    pub fn serve(
        self,
        routers: &Routers,
        config: &HttpConfig,
        tls: Option<&ServerTls>,
        readiness: &Arc<Readiness>,
        shutdown: &Shutdown,
    ) {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(config.header_timeout())
            .max_buf_size(REQUEST_HEAD_BYTES_MAX);
        let server = Server {
            routers: routers.clone(),
            builder,
            write_timeout: config.write_timeout(),
            wait_for: self.handed_over.then(|| readiness.clone()),
            shutdown: shutdown.clone(),
            calls: ConnectionCalls::default(),
        };

        // TCP and Unix sockets have separate limits: callers that use all connections over TCP cannot keep the
        // administrator from the Unix socket.
        let (tcp_limiter, unix_limiter) =
            (ConnectionLimiter::new(config.max_connections), ConnectionLimiter::new(config.max_connections));
        for TcpEndpoint { listener, address, local_plain } in self.tcp {
            let limiter = tcp_limiter.clone();
            let (server, handover) = (server.clone(), self.handover.clone());
            let tls = match address {
                ListenAddress::Tls(_) => Some(tls.cloned()),
                _ => None,
            };
            shutdown.spawn_essential("http tcp listener", async move {
                let accept = || async {
                    let (stream, peer) = listener.accept().await?;
                    // Answers are written at once, so Nagle's algorithm would only delay them.
                    stream.set_nodelay(true)?;
                    Ok((stream, peer.ip().to_canonical()))
                };
                match tls {
                    None if let Some(plain) = &local_plain => {
                        let serve = |server: Server, stream, ip| server.local_plain(stream, ip, plain.admits(ip));
                        server.accept(&limiter, accept, serve).await;
                    }
                    None => {
                        server
                            .accept(&limiter, accept, |server, stream, ip| server.plain(stream, Peer::address(ip)))
                            .await;
                    }
                    Some(Some(tls)) => {
                        let serve = |server: Server, stream, ip| server.encrypted(tls.clone(), stream, ip);
                        server.accept(&limiter, accept, serve).await;
                    }
                    Some(None) => server.shutdown.requested().await,
                }
                if server.shutdown.is_restart() {
                    handover.keep((address, local_plain), listener.into_std()?.into(), None);
                }
                io::Result::Ok(())
            });
        }
        for (listener, address, file) in self.unix {
            let limiter = unix_limiter.clone();
            let (server, handover) = (server.clone(), self.handover.clone());
            shutdown.spawn_essential("http unix listener", async move {
                let accept = || async {
                    let (stream, _) = listener.accept().await?;
                    let uid = stream.peer_cred()?.uid();
                    Ok((stream, Peer::User(uid)))
                };
                server.accept(&limiter, accept, Server::plain).await;
                if server.shutdown.is_restart() {
                    handover.keep((address, None), listener.into_std()?.into(), Some(file));
                }
                io::Result::Ok(())
            });
        }
    }
}

/// Makes a socket nonblocking again, whatever the previous program or another process that shares it did.
fn nonblocking(socket: OwnedFd) -> io::Result<OwnedFd> {
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

/// Removes the file of a socket without a listener, as a killed daemon leaves it.
async fn remove_stale(path: &Path) -> Result<(), BindError> {
    match tokio::net::UnixStream::connect(path).await {
        Ok(_) => Err(BindError::InUse { path: path.to_owned() }),
        // A plain file refuses a connection too, but is not ours to remove.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && is_socket(path) => std::fs::remove_file(path)
            .map_err(|error| BindError::Refused { address: path.display().to_string(), error }),
        Err(_) => Ok(()),
    }
}

/// Binds a listener, also to an address that no interface has yet: a slow network comes up after this daemon, and a
/// daemon that waited for it would not serve callers on this machine.
fn bind_tcp(at: SocketAddr) -> io::Result<TcpListener> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    match net::bind(&socket, &at) {
        Err(rustix::io::Errno::ADDRNOTAVAIL) => {
            tracing::warn!(address = %at, "no interface has this address yet; it is unreachable until one has");
            if at.is_ipv4() {
                sockopt::set_ip_freebind(&socket, true)?;
            } else {
                sockopt::set_ipv6_freebind(&socket, true)?;
            }
            net::bind(&socket, &at)?;
        }
        bound => bound?,
    }
    net::listen(&socket, LISTEN_BACKLOG)?;
    TcpListener::from_std(socket.into())
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

#[derive(Clone)]
struct Server {
    routers: Routers,
    builder: http1::Builder,
    write_timeout: Duration,
    /// The readiness that the first connections after a restart wait for.
    wait_for: Option<Arc<Readiness>>,
    shutdown: Shutdown,
    /// The calls of the connection that this is cloned for.
    calls: ConnectionCalls,
}

impl Server {
    /// Accepts until the shutdown, and serves each connection that gets a permit.
    async fn accept<S, P, A, F>(
        &self,
        limiter: &ConnectionLimiter,
        mut accept: impl FnMut() -> A,
        serve: impl Fn(Self, S, P) -> F,
    ) where
        A: Future<Output = io::Result<(S, P)>>,
        F: Future<Output = ()> + Send + 'static,
    {
        if let Some(readiness) = &self.wait_for {
            tokio::select! {
                _ = tokio::time::timeout(READINESS_WAIT_MAX, readiness.wait()) => {}
                () = self.shutdown.requested() => return,
            }
        }
        loop {
            let accepted = tokio::select! {
                accepted = accept() => accepted,
                () = self.shutdown.requested() => return,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection; trying again");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            };

            // Beyond the limit this caller waits here, and others wait in the kernel's backlog. A listener that waits
            // for callers holds no permit, because another listener could need it. At a shutdown the waiting caller is
            // served without a permit.
            let permit = tokio::select! {
                permit = limiter.take() => permit,
                () = self.shutdown.requested() => None,
            };
            let calls = permit.as_ref().map(|permit| permit.calls().clone()).unwrap_or_default();
            let connection = serve(Self { calls, ..self.clone() }, stream, peer);
            self.shutdown.spawn(async move {
                connection.await;
                drop(permit);
            });
        }
    }

    /// A connection without TLS.
    async fn plain(self, stream: impl ByteStream + 'static, peer: Peer) {
        self.connection(Box::new(stream), peer, None).await;
    }

    /// A connection without encryption from a local network. One from elsewhere is closed.
    async fn local_plain(self, stream: TcpStream, ip: IpAddr, is_admitted: bool) {
        if is_admitted {
            self.connection(Box::new(stream), Peer::Unencrypted { ip }, None).await;
        } else {
            tracing::debug!(%ip, "closed a connection from a network that http.local_plain does not name");
        }
    }

    /// A connection with TLS, from its handshake on.
    async fn encrypted(self, tls: ServerTls, stream: TcpStream, ip: IpAddr) {
        let Some(admitted) = tls.admit(ip) else { return };
        let calls = self.calls.clone();
        let stop = async {
            tokio::select! {
                () = self.shutdown.requested() => {}
                () = calls.asked_to_end() => return,
            }
            // A handshake that has begun may finish.
            tokio::time::sleep(RESTART_LINGER).await;
        };
        let accepted = tokio::select! {
            accepted = tls.accept(stream, &admitted) => accepted,
            () = stop => None,
        };
        if let Some((stream, caller)) = accepted {
            let peer = Peer::Address { ip, certificate: caller.certificate.clone() };
            self.connection(Box::new(stream), peer, Some(caller)).await;
        }
    }

    async fn connection(self, stream: Box<dyn ByteStream>, peer: Peer, caller: Option<TlsCaller>) {
        let (calls, asked_to_end) = (self.calls.clone(), self.calls);
        let stream = ParseErrorStream::new(WriteTimeout::new(stream, self.write_timeout), calls.clone());
        let (router, stop) = (self.routers.of(&peer), self.shutdown.clone());
        let scheme = if caller.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(|body| Body::new(calls.body(body)));
            request.extensions_mut().insert(peer.clone());
            request.extensions_mut().insert(scheme.clone());
            let (stop, calls, call) = (stop.clone(), calls.clone(), calls.begin());
            // A router is always ready.
            let answer = has_host(&request).then(|| router.clone().call(request));
            async move {
                let mut answer = match answer {
                    Some(answer) => answer.await,
                    None => {
                        Ok(reply::error(StatusCode::BAD_REQUEST, "expected the header host once, with a valid host"))
                    }
                };
                if let Ok(answer) = &mut answer
                    && (stop.is_restart() || calls.gives_way())
                {
                    // This is the last answer on this connection.
                    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                answer.map(|answer| answer.map(|body| call.until_sent(body)))
            }
        });

        let mut connection = self.builder.serve_connection(TokioIo::new(stream), service);
        let outdated = async {
            match caller {
                Some(caller) => caller.outdated().await,
                None => std::future::pending().await,
            }
        };
        let stop = async {
            tokio::select! {
                () = self.shutdown.requested() => {}
                () = outdated => return,
                () = asked_to_end.asked_to_end() => return,
            }
            if self.shutdown.is_restart() {
                tokio::time::sleep(RESTART_LINGER).await;
            }
        };

        let ended = tokio::select! {
            ended = &mut connection => ended,
            () = stop => {
                Pin::new(&mut connection).graceful_shutdown();
                // hyper would wait for the rest of a head.
                poll_fn(|context| match Pin::new(&mut connection).poll(context) {
                    Poll::Pending if asked_to_end.may_end_now() => Poll::Ready(Ok(())),
                    polled => polled,
                })
                .await
            }
        };

        let error = ended.err();
        if let Some(error) = &error {
            // Debug level only: callers hang up or send invalid requests at any time.
            let reason = std::error::Error::source(error).map(ToString::to_string);
            tracing::debug!(%error, reason, "connection ended");
        }
        let closing = connection.into_parts().io.into_inner().close(error.as_ref());
        tokio::select! {
            biased;
            // A caller that is gone needs no reply.
            _ = closing => {}
            () = self.shutdown.requested() => {}
            () = asked_to_end.asked_to_end() => {}
        }
    }
}

/// Returns `true` if a request has one valid Host header, as HTTP/1.1 requires (RFC 9112, section 3.2). The host may be
/// empty.
fn has_host<B>(request: &Request<B>) -> bool {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) => request.version() < Version::HTTP_11,
        (Some(host), None) => {
            host.is_empty() || Authority::try_from(host.as_bytes()).is_ok_and(|host| !host.as_str().contains('@'))
        }
        (Some(_), Some(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::{Semaphore, mpsc};

    use super::*;

    fn listening_on(address: ListenAddress) -> HttpConfig {
        HttpConfig { listen: vec![address], max_connections: 1, ..HttpConfig::default() }
    }

    #[tokio::test]
    async fn an_address_is_bound_again_when_its_scheme_changes() {
        let left = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (handover, at) = (Handover::default(), left.local_addr().unwrap());
        handover.keep((ListenAddress::Tcp(at), None), left.into(), None);
        let listeners = Listeners::bind(&listening_on(ListenAddress::Tls(at)), &handover).await.unwrap();
        assert_eq!(listeners.tcp[0].listener.local_addr().unwrap(), at);
        assert!(!listeners.handed_over);
    }

    #[tokio::test]
    async fn a_socket_whose_file_is_gone_is_bound_again_and_keeps_its_new_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let left = std::os::unix::net::UnixListener::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (handover, address) = (Handover::default(), ListenAddress::Unix(path.clone()));
        handover.keep((address.clone(), None), left.into(), Some(SocketFile::new(path.clone())));
        let listeners = Listeners::bind(&listening_on(address), &handover).await.unwrap();
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        drop(listeners);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_box_at_its_connection_limit_hands_over_its_socket_during_the_last_answer() {
        let (handover, shutdown, address) = (Handover::default(), Shutdown::default(), "127.0.0.1:0".parse().unwrap());
        let config = listening_on(address);
        let listeners = Listeners::bind(&config, &handover).await.unwrap();
        let at = listeners.tcp[0].listener.local_addr().unwrap();
        let (asked, mut was_asked) = mpsc::unbounded_channel();
        let never = move || {
            asked.send(()).unwrap();
            pending::<()>()
        };
        listeners.serve(&Router::new().route("/", get(never)).into(), &config, None, &Arc::default(), &shutdown);
        let mut busy = TcpStream::connect(at).await.unwrap();
        busy.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        was_asked.recv().await.unwrap();
        let _waits = TcpStream::connect(at).await.unwrap();
        shutdown.request_restart();
        let kept = async {
            while handover.take(&(config.listen[0].clone(), None)).is_none() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), kept).await.unwrap();
    }

    /// A server that answers `/` at once and `/wait` when `end` has a permit; `begun` gets a message for each call of it.
    struct Waiting {
        at: SocketAddr,
        begun: mpsc::UnboundedReceiver<()>,
        end: Arc<Semaphore>,
        _shutdown: Shutdown,
    }

    impl Waiting {
        async fn with_connections(count: usize) -> Self {
            let address = "127.0.0.1:0".parse().unwrap();
            // Longer than any test: what ends a connection here is a newcomer.
            let config = HttpConfig { max_connections: count, header_timeout_ms: 600_000, ..listening_on(address) };
            let (shutdown, end) = (Shutdown::default(), Arc::new(Semaphore::new(0)));
            let (call, begun) = mpsc::unbounded_channel();
            let ended = end.clone();
            let wait = move || async move {
                call.send(()).unwrap();
                ended.acquire().await.unwrap().forget();
                "late"
            };
            let router = Router::new().route("/", get(async || "soon")).route("/wait", get(wait));
            let listeners = Listeners::bind(&config, &Handover::default()).await.unwrap();
            let at = listeners.tcp[0].listener.local_addr().unwrap();
            listeners.serve(&router.into(), &config, None, &Arc::default(), &shutdown);
            Self { at, begun, end, _shutdown: shutdown }
        }

        async fn send(&self, bytes: &str) -> TcpStream {
            let mut stream = TcpStream::connect(self.at).await.unwrap();
            stream.write_all(bytes.as_bytes()).await.unwrap();
            stream
        }
    }

    async fn rest(stream: &mut TcpStream) -> String {
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        rest
    }

    #[tokio::test]
    async fn connections_without_a_request_give_way_to_one_with_a_request() {
        let server = Waiting::with_connections(3).await;
        let mut held = Vec::new();
        for bytes in ["", "G", "GET / HTTP/1.1\r\nhost: x\r\n", "", "POST", ""] {
            held.push(server.send(bytes).await);
        }
        let mut newcomer = server.send("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(rest(&mut newcomer).await.ends_with("soon"));
        for stream in held.iter_mut().take(3) {
            assert_eq!(rest(stream).await, "", "closed for those behind it");
        }
    }

    #[tokio::test]
    async fn a_call_is_never_cut_for_a_newcomer_and_its_answer_is_the_last_of_its_connection() {
        let mut server = Waiting::with_connections(2).await;
        let wait = "GET /wait HTTP/1.1\r\nhost: x\r\n\r\n";
        let (mut one, mut other) = (server.send(wait).await, server.send(wait).await);
        server.begun.recv().await.unwrap();
        server.begun.recv().await.unwrap();
        let mut newcomer = server.send(wait).await;
        // As soon as the newcomer waits for a place, the next answer gives up its own.
        server.end.add_permits(1);
        let last = tokio::select! {
            last = rest(&mut one) => last,
            last = rest(&mut other) => last,
        };
        assert!(last.contains("connection: close") && last.ends_with("late"), "{last}");
        server.begun.recv().await.unwrap();
        server.end.add_permits(2);
        let mut first = [0; 15];
        newcomer.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200 OK");
    }
}
