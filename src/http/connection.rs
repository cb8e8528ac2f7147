//! Listeners and connections: bound early, served late, drained in order.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::uri::Authority;
use axum::http::{HeaderValue, Request, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use ledge_identity::authentication::Peer;
use ledge_part::reply;
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tower_service::Service;

use super::config::{HttpConfig, ListenAddress};
use super::handover::{Handover, SocketFile};
use super::places::Places;
use super::refusal::{Calls, Refusing};
use super::stall::Impatient;
use super::tls::{ServerTls, TlsCaller};

/// After a failed accept (no file descriptors left, say) the listener rests for this long.
const REST: Duration = Duration::from_millis(100);

/// When the daemon starts anew, an idle connection may bring one more request for so long before it is closed: a caller who
/// asks again and again is told with an answer, and not by a connection that breaks under the next request.
const LINGER: Duration = Duration::from_millis(200);

/// After such a start, those who connected meanwhile wait until the models are loaded, and at most so long.
const HELD: Duration = Duration::from_secs(10);

/// The largest head of a request, in bytes: so much may every connection hold before anybody knows whose it is.
pub(super) const LARGEST_HEAD: usize = 64 << 10;

/// How many connections the system keeps until they are accepted.
const BACKLOG: i32 = 1024;

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("cannot listen on {address}: {error}")]
    Refused { address: String, error: io::Error },
    #[error("cannot listen on {}: another process is listening on it", path.display())]
    InUse { path: PathBuf },
}

/// The daemon's bound sockets.
#[derive(Debug)]
pub struct Listeners {
    tcp: Vec<(TcpListener, ListenAddress)>,
    unix: Vec<(UnixListener, ListenAddress, SocketFile)>,
    /// Whether the program before handed over one of them.
    handed_over: bool,
    handover: Handover,
}

impl Listeners {
    /// Binds every configured address, but for those whose sockets the program before left in `handover`: they are used as
    /// they are. At a restart this program leaves its own there.
    pub async fn bind(config: &HttpConfig, handover: &Handover) -> Result<Self, BindError> {
        let handover = handover.clone();
        // First: an address that is listened on in another way than before is still taken by its old socket.
        handover.retain(&config.listen);
        let mut listeners = Self { tcp: Vec::new(), unix: Vec::new(), handed_over: false, handover };
        for address in &config.listen {
            let refused = |error| BindError::Refused { address: address.to_string(), error };
            let left = listeners.handover.take(address);
            listeners.handed_over |= left.is_some();
            match (address, left) {
                (ListenAddress::Tcp(_) | ListenAddress::Tls(_), Some((socket, _))) => {
                    let listener = TcpListener::from_std(nonblocking(socket).map_err(refused)?.into());
                    listeners.tcp.push((listener.map_err(refused)?, address.clone()));
                }
                (ListenAddress::Tcp(at) | ListenAddress::Tls(at), None) => {
                    listeners.tcp.push((bind_tcp(*at).map_err(refused)?, address.clone()));
                }
                (ListenAddress::Unix(path), left) => {
                    // One whose file is gone ends here: later it would take the new file with it.
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

    /// Tells the log the TCP addresses, with the ports that the system chose, and the scheme that is spoken at each.
    pub fn announce(&self) {
        for (listener, address) in &self.tcp {
            if let Ok(at) = listener.local_addr() {
                let scheme = if matches!(address, ListenAddress::Tls(_)) { "https" } else { "http" };
                tracing::info!(address = %at, scheme, "listening");
            }
        }
    }

    /// Starts accepting on every socket. Connections end with `shutdown`, after the request they are answering. Without `tls`
    /// nobody is served where it is to be spoken.
    pub fn serve(
        self,
        router: &Router,
        config: &HttpConfig,
        tls: Option<&ServerTls>,
        readiness: &Arc<Readiness>,
        shutdown: &Shutdown,
    ) {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(config.header_timeout()).max_buf_size(LARGEST_HEAD);
        let server = Server {
            router: router.clone(),
            builder,
            write_timeout: config.write_timeout(),
            held_until: self.handed_over.then(|| readiness.clone()),
            shutdown: shutdown.clone(),
            calls: Calls::default(),
        };
        // Each way has its own: whoever takes all of TCP cannot keep those who look after this box from its socket.
        let (tcp_places, unix_places) = (Places::new(config.max_connections), Places::new(config.max_connections));
        for (listener, address) in self.tcp {
            let places = tcp_places.clone();
            let (server, handover) = (server.clone(), self.handover.clone());
            let tls = match address {
                ListenAddress::Tls(_) => Some(tls.cloned()),
                _ => None,
            };
            shutdown.spawn_essential("http tcp listener", async move {
                let accept = || async {
                    let (stream, peer) = listener.accept().await?;
                    // Answers are written at once and whole: waiting for more to send only delays them.
                    stream.set_nodelay(true)?;
                    Ok((stream, peer.ip().to_canonical()))
                };
                match tls {
                    None => {
                        server
                            .accept(&places, accept, |server, stream, ip| server.plain(stream, Peer::address(ip)))
                            .await;
                    }
                    Some(Some(tls)) => {
                        let serve = |server: Server, stream, ip| server.encrypted(tls.clone(), stream, ip);
                        server.accept(&places, accept, serve).await;
                    }
                    Some(None) => server.shutdown.requested().await,
                }
                if server.shutdown.is_restart() {
                    handover.keep(address, listener.into_std()?.into(), None);
                }
                io::Result::Ok(())
            });
        }
        for (listener, address, file) in self.unix {
            let places = unix_places.clone();
            let (server, handover) = (server.clone(), self.handover.clone());
            shutdown.spawn_essential("http unix listener", async move {
                let accept = || async {
                    let (stream, _) = listener.accept().await?;
                    let uid = stream.peer_cred()?.uid();
                    Ok((stream, Peer::User(uid)))
                };
                server.accept(&places, accept, Server::plain).await;
                if server.shutdown.is_restart() {
                    handover.keep(address, listener.into_std()?.into(), Some(file));
                }
                io::Result::Ok(())
            });
        }
    }
}

/// As the program before left it, or another process that shares it.
fn nonblocking(socket: OwnedFd) -> io::Result<OwnedFd> {
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

/// Removes the file of a socket on which nobody listens any more, as a daemon that was killed leaves it.
async fn remove_stale(path: &Path) -> Result<(), BindError> {
    match tokio::net::UnixStream::connect(path).await {
        Ok(_) => Err(BindError::InUse { path: path.to_owned() }),
        // A plain file refuses a connection too, and is somebody's.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && is_socket(path) => std::fs::remove_file(path)
            .map_err(|error| BindError::Refused { address: path.display().to_string(), error }),
        Err(_) => Ok(()),
    }
}

/// A listener at an address, also at one that no interface has yet: where the network is slow, it comes after this daemon,
/// and a daemon that waited for it would serve nobody on this machine.
fn bind_tcp(at: SocketAddr) -> io::Result<TcpListener> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    match net::bind(&socket, &at) {
        Err(rustix::io::Errno::ADDRNOTAVAIL) => {
            tracing::warn!(address = %at, "no interface has this address yet; nobody reaches it until one has");
            if at.is_ipv4() {
                sockopt::set_ip_freebind(&socket, true)?;
            } else {
                sockopt::set_ipv6_freebind(&socket, true)?;
            }
            net::bind(&socket, &at)?;
        }
        bound => bound?,
    }
    net::listen(&socket, BACKLOG)?;
    TcpListener::from_std(socket.into())
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

#[derive(Clone)]
struct Server {
    router: Router,
    builder: http1::Builder,
    /// How long a caller may take nothing of its answer.
    write_timeout: Duration,
    /// What the first connections wait for.
    held_until: Option<Arc<Readiness>>,
    shutdown: Shutdown,
    /// Those of the connection that it is cloned for.
    calls: Calls,
}

impl Server {
    /// Accepts until the stop is asked for, and has each connection served that finds a place.
    async fn accept<S, P, A, F>(&self, places: &Places, mut accept: impl FnMut() -> A, serve: impl Fn(Self, S, P) -> F)
    where
        A: Future<Output = io::Result<(S, P)>>,
        F: Future<Output = ()> + Send + 'static,
    {
        if let Some(readiness) = &self.held_until {
            tokio::select! {
                _ = tokio::time::timeout(HELD, readiness.wait()) => {}
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
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(REST).await;
                    continue;
                }
            };
            // Beyond the limit this caller waits here, and others in the kernel's backlog. A listener that waits for callers
            // holds no place, which another could need. Who still waits when the daemon stops is treated as those with one.
            let place = tokio::select! {
                place = places.take() => place,
                () = self.shutdown.requested() => None,
            };
            let calls = place.as_ref().map(|place| place.calls().clone()).unwrap_or_default();
            let connection = serve(Self { calls, ..self.clone() }, stream, peer);
            self.shutdown.spawn(async move {
                connection.await;
                drop(place);
            });
        }
    }

    /// A connection without TLS.
    async fn plain<S>(self, stream: S, peer: Peer)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.connection(stream, peer, None).await;
    }

    /// A connection with TLS, from its handshake on.
    async fn encrypted(self, tls: ServerTls, stream: TcpStream, ip: IpAddr) {
        let Some(guest) = tls.admit(ip) else { return };
        let stop = async {
            self.shutdown.requested().await;
            // One that has begun may come to its end.
            tokio::time::sleep(LINGER).await;
        };
        let accepted = tokio::select! {
            accepted = tls.accept(stream, &guest) => accepted,
            () = stop => None,
        };
        if let Some((stream, caller)) = accepted {
            let peer = Peer::Address { ip, certificate: caller.certificate.clone() };
            self.connection(stream, peer, Some(caller)).await;
        }
    }

    async fn connection<S>(self, stream: S, peer: Peer, caller: Option<TlsCaller>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (calls, asked_to_end) = (self.calls.clone(), self.calls);
        let stream = Refusing::new(Impatient::new(stream, self.write_timeout), calls.clone());
        let (router, stop) = (self.router, self.shutdown.clone());
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(|body| Body::new(calls.body(body)));
            request.extensions_mut().insert(peer.clone());
            let (stop, call) = (stop.clone(), calls.begin());
            // A router is always ready.
            let answer = has_host(&request).then(|| router.clone().call(request));
            async move {
                let mut answer = match answer {
                    Some(answer) => answer.await,
                    None => {
                        Ok(reply::error(StatusCode::BAD_REQUEST, "a request needs the header host once, with a host"))
                    }
                };
                if let Ok(answer) = &mut answer
                    && stop.is_restart()
                {
                    // The last answer on this connection says so.
                    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                answer.map(|answer| answer.map(|body| call.until_taken(body)))
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
                tokio::time::sleep(LINGER).await;
            }
        };
        let ended = tokio::select! {
            ended = &mut connection => ended,
            () = stop => {
                Pin::new(&mut connection).graceful_shutdown();
                (&mut connection).await
            }
        };
        let error = ended.err();
        if let Some(error) = &error {
            // Callers that hang up or send nonsense: worth a look when debugging, never an alarm.
            let reason = std::error::Error::source(error).map(ToString::to_string);
            tracing::debug!(%error, reason, "connection ended");
        }
        let closing = connection.into_parts().io.into_inner().close(error.as_ref());
        tokio::select! {
            biased;
            // A caller that is gone by now needs no reply.
            _ = closing => {}
            () = self.shutdown.requested() => {}
        }
    }
}

/// Whether a request says which host it is for, as one of HTTP 1.1 has to (RFC 9112, section 3.2). The host may be empty.
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

    use axum::routing::get;
    use tokio::io::AsyncWriteExt as _;
    use tokio::sync::mpsc;

    use super::*;

    fn listening_on(address: ListenAddress) -> HttpConfig {
        HttpConfig { listen: vec![address], max_connections: 1, ..HttpConfig::default() }
    }

    #[tokio::test]
    async fn an_address_is_bound_anew_when_another_scheme_is_spoken_there() {
        let left = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (handover, at) = (Handover::default(), left.local_addr().unwrap());
        handover.keep(ListenAddress::Tcp(at), left.into(), None);
        let listeners = Listeners::bind(&listening_on(ListenAddress::Tls(at)), &handover).await.unwrap();
        assert_eq!(listeners.tcp[0].0.local_addr().unwrap(), at);
        assert!(!listeners.handed_over);
    }

    #[tokio::test]
    async fn a_socket_whose_file_is_gone_is_bound_anew_and_keeps_its_new_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let left = std::os::unix::net::UnixListener::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (handover, address) = (Handover::default(), ListenAddress::Unix(path.clone()));
        handover.keep(address.clone(), left.into(), Some(SocketFile::new(path.clone())));
        let listeners = Listeners::bind(&listening_on(address), &handover).await.unwrap();
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        drop(listeners);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_full_box_hands_its_socket_over_while_the_last_answer_is_under_way() {
        let (handover, shutdown, address) = (Handover::default(), Shutdown::default(), "127.0.0.1:0".parse().unwrap());
        let config = listening_on(address);
        let listeners = Listeners::bind(&config, &handover).await.unwrap();
        let at = listeners.tcp[0].0.local_addr().unwrap();
        let (asked, mut was_asked) = mpsc::unbounded_channel();
        let never = move || {
            asked.send(()).unwrap();
            pending::<()>()
        };
        listeners.serve(&Router::new().route("/", get(never)), &config, None, &Arc::default(), &shutdown);
        let mut busy = TcpStream::connect(at).await.unwrap();
        busy.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        was_asked.recv().await.unwrap();
        let _waits = TcpStream::connect(at).await.unwrap();
        shutdown.request_restart();
        let kept = async {
            while handover.take(&config.listen[0]).is_none() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), kept).await.unwrap();
    }
}
