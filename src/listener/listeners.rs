//! Listening sockets: bound early, served late, drained in order.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use ledge_egress::ByteStream;
use ledge_identity::authentication::Peer;
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::net::{TcpListener, TcpStream, UnixListener};

use super::address::{ListenAddress, SocketMode};
use super::connection::{Connection, RESTART_LINGER};
use super::connection_calls::ConnectionCalls;
use super::connection_limiter::ConnectionLimiter;
use super::endpoint::ListenerEndpoint;
use super::handover::{Handover, SocketFile};
use super::tls::{ApplicationProtocol, ServerTls};
use super::write_timeout::WriteTimeout;

/// The pause after a failed accept, for example when no file descriptor is left.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The most time that connections accepted across a restart wait for the models to load.
const READINESS_WAIT_MAX: Duration = Duration::from_secs(10);

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

/// A protocol of connections.
#[derive(Clone)]
pub struct ConnectionService {
    /// The name, as in `http`.
    pub name: &'static str,
    /// The protocol that a TLS handshake agrees on.
    pub protocol: ApplicationProtocol,
    /// Serves a connection until it ends.
    pub serve: Arc<dyn Fn(Connection) -> BoxFuture<'static, ()> + Send + Sync>,
}

impl fmt::Debug for ConnectionService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionService").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The limits on connections.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// The most open connections over TCP, and over Unix sockets.
    pub max_connections: usize,
    /// The time that a caller may take to read the next part of an answer.
    pub write_timeout: Duration,
}

/// The daemon's bound sockets.
#[derive(Debug)]
pub struct Listeners {
    tcp: Vec<(TcpListener, ListenerEndpoint)>,
    unix: Vec<(UnixListener, ListenerEndpoint, SocketFile)>,
    /// Set when the previous program of this process handed over one of them.
    handed_over: bool,
    handover: Handover,
}

impl Listeners {
    /// Binds every endpoint. Sockets that the previous program left in `handover` are used as they are. At a restart
    /// this program leaves its own sockets there. `mode` is for the files of Unix sockets.
    pub async fn bind(
        endpoints: Vec<ListenerEndpoint>,
        mode: SocketMode,
        handover: &Handover,
    ) -> Result<Self, BindError> {
        let handover = handover.clone();
        // First: an address that changed between plain and TLS is still bound by its old socket.
        handover.retain(&endpoints);
        let mut listeners = Self { tcp: Vec::new(), unix: Vec::new(), handed_over: false, handover };
        for endpoint in endpoints {
            let left = listeners.handover.take(&endpoint);
            let refused = |error| BindError::Refused { address: endpoint.address.to_string(), error };
            listeners.handed_over |= left.is_some();
            match (&endpoint.address, left) {
                (ListenAddress::Tcp(_) | ListenAddress::Tls(_), Some((socket, _))) => {
                    let listener = TcpListener::from_std(nonblocking(socket).map_err(refused)?.into());
                    listeners.tcp.push((listener.map_err(refused)?, endpoint));
                }
                (ListenAddress::Tcp(at) | ListenAddress::Tls(at), None) => {
                    let listener = bind_tcp(*at).map_err(refused)?;
                    listeners.tcp.push((listener, endpoint));
                }
                (ListenAddress::Unix(path), left) => {
                    // A socket without its file is dropped here, because later that would remove the new file.
                    let (listener, file) = if let Some((socket, file)) = left.filter(|_| is_socket(path)) {
                        let listener = UnixListener::from_std(nonblocking(socket).map_err(refused)?.into());
                        (listener.map_err(refused)?, file)
                    } else {
                        remove_stale(path).await?;
                        (UnixListener::bind(path).map_err(refused)?, None)
                    };
                    let file = file.unwrap_or_else(|| SocketFile::new(path.clone()));
                    let mode = std::fs::Permissions::from_mode(mode.bits());
                    std::fs::set_permissions(path, mode).map_err(refused)?;
                    listeners.unix.push((listener, endpoint, file));
                }
            }
        }
        listeners.handover.clear();
        Ok(listeners)
    }

    /// The TCP addresses, with the ports that the system chose.
    pub fn tcp_addresses(&self) -> Vec<SocketAddr> {
        self.tcp.iter().filter_map(|(listener, _)| listener.local_addr().ok()).collect()
    }

    /// Logs the TCP addresses, with the ports that the system chose, and the scheme of each.
    pub fn announce(&self) {
        for (listener, endpoint) in &self.tcp {
            let Ok(at) = listener.local_addr() else { continue };
            if endpoint.peers.is_empty() {
                let scheme = format!("{}{}", endpoint.service, if endpoint.address.is_tls() { "s" } else { "" });
                tracing::info!(name: "listener.listening", address = %at, scheme, "listening");
            } else {
                let networks = endpoint.peers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                tracing::warn!(
                    name: "listener.listening_unencrypted",
                    address = %at,
                    networks,
                    "listening without encryption: only for pictures, from these networks, with an API key"
                );
            }
        }
    }

    /// Starts accepting on every socket. Connections end with `shutdown`, after their current request. Without `tls`,
    /// `https://` addresses serve nothing.
    pub fn serve(
        self,
        services: &[ConnectionService],
        limits: ConnectionLimits,
        tls: Option<&ServerTls>,
        readiness: &Arc<Readiness>,
        shutdown: &Shutdown,
    ) {
        // TCP and Unix sockets have separate limits: callers that use all connections over TCP cannot keep the
        // administrator from the Unix socket.
        let (tcp_limiter, unix_limiter) =
            (ConnectionLimiter::new(limits.max_connections), ConnectionLimiter::new(limits.max_connections));
        let wait_for = self.handed_over.then(|| readiness.clone());
        let acceptor = |endpoint: &ListenerEndpoint, limiter: &ConnectionLimiter| {
            let service = services.iter().find(|service| service.name == endpoint.service)?.clone();
            let (limiter, write_timeout, shutdown) = (limiter.clone(), limits.write_timeout, shutdown.clone());
            Some(ConnectionAcceptor { service, limiter, write_timeout, wait_for: wait_for.clone(), shutdown })
        };

        for (listener, endpoint) in self.tcp {
            let Some(acceptor) = acceptor(&endpoint, &tcp_limiter) else { continue };
            let (tls, handover) = (tls.cloned(), self.handover.clone());
            shutdown.spawn_essential("tcp listener", async move {
                let accept = || async {
                    let (stream, peer) = listener.accept().await?;
                    // Answers are written at once, so Nagle's algorithm would only delay them.
                    stream.set_nodelay(true)?;
                    Ok((stream, peer.ip().to_canonical()))
                };
                match (endpoint.address.is_tls(), tls) {
                    (false, _) => {
                        acceptor.run(accept, |new, (stream, ip)| new.unencrypted(&endpoint, stream, ip)).await;
                    }
                    (true, Some(tls)) => {
                        acceptor.run(accept, |new, (stream, ip)| new.encrypted(tls.clone(), stream, ip)).await;
                    }
                    (true, None) => acceptor.shutdown.requested().await,
                }
                if acceptor.shutdown.is_restart() {
                    handover.keep(endpoint, listener.into_std()?.into(), None);
                }
                io::Result::Ok(())
            });
        }
        for (listener, endpoint, file) in self.unix {
            let Some(acceptor) = acceptor(&endpoint, &unix_limiter) else { continue };
            let handover = self.handover.clone();
            shutdown.spawn_essential("unix listener", async move {
                let accept = || async {
                    let (stream, _) = listener.accept().await?;
                    let uid = stream.peer_cred()?.uid();
                    Ok((stream, Peer::User(uid)))
                };
                acceptor.run(accept, |new, (stream, peer)| new.serve(stream, peer)).await;
                if acceptor.shutdown.is_restart() {
                    handover.keep(endpoint, listener.into_std()?.into(), Some(file));
                }
                io::Result::Ok(())
            });
        }
    }
}

/// Makes a socket nonblocking again, in case the previous program or another process that shares it changed that.
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
            tracing::warn!(
                name: "listener.address_missing",
                address = %at,
                "no interface has this address yet; it is unreachable until one has"
            );
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

/// Accepts the connections of one listener.
struct ConnectionAcceptor {
    service: ConnectionService,
    limiter: ConnectionLimiter,
    write_timeout: Duration,
    /// The readiness that the first connections after a restart wait for.
    wait_for: Option<Arc<Readiness>>,
    shutdown: Shutdown,
}

/// A connection that was accepted and has a permit.
struct NewConnection {
    service: ConnectionService,
    write_timeout: Duration,
    calls: ConnectionCalls,
    shutdown: Shutdown,
}

impl ConnectionAcceptor {
    /// Accepts until the shutdown, and serves each connection that gets a permit.
    async fn run<C, A, F>(&self, mut accept: impl FnMut() -> A, serve: impl Fn(NewConnection, C) -> F)
    where
        A: Future<Output = io::Result<C>>,
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
            let accepted = match accepted {
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
                permit = self.limiter.take() => permit,
                () = self.shutdown.requested() => None,
            };
            let calls = permit.as_ref().map(|permit| permit.calls().clone()).unwrap_or_default();
            let (service, shutdown) = (self.service.clone(), self.shutdown.clone());
            let connection = NewConnection { service, write_timeout: self.write_timeout, calls, shutdown };
            let connection = serve(connection, accepted);
            self.shutdown.spawn(async move {
                connection.await;
                drop(permit);
            });
        }
    }
}

impl NewConnection {
    /// Serves a connection without TLS.
    fn serve(self, stream: impl ByteStream + 'static, peer: Peer) -> BoxFuture<'static, ()> {
        let Self { service, write_timeout, calls, shutdown } = self;
        let stream: Box<dyn ByteStream> = Box::new(stream);
        let stream = WriteTimeout::new(stream, write_timeout);
        (service.serve)(Connection { stream, peer, calls, tls: None, shutdown })
    }

    /// Serves a connection without encryption. One from a network that the listener does not serve is closed.
    fn unencrypted(self, endpoint: &ListenerEndpoint, stream: TcpStream, ip: IpAddr) -> BoxFuture<'static, ()> {
        if endpoint.peers.is_empty() {
            self.serve(stream, Peer::address(ip))
        } else if endpoint.admits(ip) {
            self.serve(stream, Peer::Unencrypted { ip })
        } else {
            tracing::debug!(%ip, "closed a connection from a network that http.local_plain does not name");
            Box::pin(std::future::ready(()))
        }
    }

    /// Serves a connection with TLS, from its handshake on.
    async fn encrypted(self, tls: ServerTls, stream: TcpStream, ip: IpAddr) {
        let Some(admitted) = tls.admit(ip) else { return };
        let Self { service, write_timeout, calls, shutdown } = self;
        let stop = async {
            tokio::select! {
                () = shutdown.requested() => {}
                () = calls.asked_to_end() => return,
            }
            // A handshake that has begun may finish.
            tokio::time::sleep(RESTART_LINGER).await;
        };
        let accepted = tokio::select! {
            accepted = tls.accept(stream, &admitted, service.protocol) => accepted,
            () = stop => None,
        };
        if let Some((stream, caller)) = accepted {
            let peer = Peer::Address { ip, certificate: caller.certificate.clone() };
            let stream: Box<dyn ByteStream> = Box::new(stream);
            let stream = WriteTimeout::new(stream, write_timeout);
            (service.serve)(Connection { stream, peer, calls, tls: Some(caller), shutdown }).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(address: ListenAddress) -> Vec<ListenerEndpoint> {
        vec![ListenerEndpoint::new("http", address)]
    }

    #[tokio::test]
    async fn an_address_is_bound_again_when_its_scheme_changes() {
        let left = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (handover, at) = (Handover::default(), left.local_addr().unwrap());
        handover.keep(ListenerEndpoint::new("http", ListenAddress::Tcp(at)), left.into(), None);
        let listeners = Listeners::bind(on(ListenAddress::Tls(at)), SocketMode::GROUP, &handover).await.unwrap();
        assert_eq!(listeners.tcp_addresses()[0], at);
        assert!(!listeners.handed_over);
    }

    #[tokio::test]
    async fn a_socket_whose_file_is_gone_is_bound_again_and_keeps_its_new_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let left = std::os::unix::net::UnixListener::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (handover, address) = (Handover::default(), ListenAddress::Unix(path.clone()));
        let file = SocketFile::new(path.clone());
        handover.keep(ListenerEndpoint::new("http", address.clone()), left.into(), Some(file));
        let listeners = Listeners::bind(on(address), SocketMode::GROUP, &handover).await.unwrap();
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        drop(listeners);
        assert!(!path.exists());
    }

    /// Serves connections that never end by themselves.
    #[tokio::test]
    async fn a_listener_at_its_connection_limit_hands_over_its_socket_during_the_last_call() {
        let (handover, shutdown) = (Handover::default(), Shutdown::default());
        let endpoints = on("127.0.0.1:0".parse().unwrap());
        let listeners = Listeners::bind(endpoints.clone(), SocketMode::GROUP, &handover).await.unwrap();
        let at = listeners.tcp_addresses()[0];
        let (accepted, mut was_accepted) = tokio::sync::mpsc::unbounded_channel();
        let serve = move |connection: Connection| -> BoxFuture<'static, ()> {
            accepted.send(()).unwrap();
            Box::pin(async move {
                let _call = connection.calls.begin();
                std::future::pending::<()>().await;
            })
        };
        let service = ConnectionService { name: "http", protocol: ApplicationProtocol::Http1, serve: Arc::new(serve) };
        let limits = ConnectionLimits { max_connections: 1, write_timeout: Duration::from_secs(30) };
        listeners.serve(&[service], limits, None, &Arc::default(), &shutdown);
        let _busy = TcpStream::connect(at).await.unwrap();
        was_accepted.recv().await.unwrap();
        let _waits = TcpStream::connect(at).await.unwrap();
        shutdown.request_restart();
        let kept = async {
            while handover.take(&endpoints[0]).is_none() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), kept).await.unwrap();
    }
}
