//! Listeners and connections: bound early, served late, drained in order.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tower_service::Service;

use super::config::{HttpConfig, ListenAddress};
use crate::principal::Principal;
use crate::shutdown::Shutdown;

/// After a failed accept (no file descriptors left, say) the listener rests for this long.
const REST: Duration = Duration::from_millis(100);

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The system refused.
    #[error("cannot listen on {address}: {error}")]
    Refused {
        /// The address.
        address: String,
        /// The system's words.
        error: io::Error,
    },
    /// Another process answers on the Unix socket.
    #[error("cannot listen on {}: another process is listening on it", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
}

/// The daemon's bound sockets.
#[derive(Debug)]
pub struct Listeners {
    tcp: Vec<TcpListener>,
    unix: Vec<(UnixListener, SocketFile)>,
}

/// Removes the socket's file when the listener is gone.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listeners {
    /// Binds every configured address.
    pub async fn bind(config: &HttpConfig) -> Result<Self, BindError> {
        let mut listeners = Self { tcp: Vec::new(), unix: Vec::new() };
        for address in &config.listen {
            let refused = |error| BindError::Refused { address: address.to_string(), error };
            match address {
                ListenAddress::Tcp(address) => {
                    listeners.tcp.push(TcpListener::bind(address).await.map_err(refused)?);
                }
                ListenAddress::Unix(path) => {
                    remove_stale(path).await?;
                    let listener = UnixListener::bind(path).map_err(refused)?;
                    let file = SocketFile(path.clone());
                    let mode = std::fs::Permissions::from_mode(config.socket_mode.bits());
                    std::fs::set_permissions(path, mode).map_err(refused)?;
                    listeners.unix.push((listener, file));
                }
            }
        }
        Ok(listeners)
    }

    /// The TCP addresses, with the ports that the system chose.
    pub fn tcp_addresses(&self) -> Vec<SocketAddr> {
        self.tcp.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Starts accepting on every socket. Connections end with `shutdown`, after the request they are answering.
    pub fn serve(self, router: &Router, config: &HttpConfig, shutdown: &Shutdown) {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(config.header_timeout()).pipeline_flush(true);
        let server = Server {
            router: router.clone(),
            builder,
            connections: Arc::new(Semaphore::new(config.max_connections)),
            shutdown: shutdown.clone(),
        };
        for listener in self.tcp {
            let server = server.clone();
            shutdown.spawn_essential("http tcp listener", async move {
                server
                    .accept(|| async {
                        let (stream, peer) = listener.accept().await?;
                        // Answers are written at once and whole: waiting for more to send only delays them.
                        stream.set_nodelay(true)?;
                        Ok((stream, Principal::Peer(peer.ip().to_canonical())))
                    })
                    .await
            });
        }
        for (listener, file) in self.unix {
            let server = server.clone();
            shutdown.spawn_essential("http unix listener", async move {
                let _file = file;
                server
                    .accept(|| async {
                        let (stream, _) = listener.accept().await?;
                        let uid = stream.peer_cred()?.uid();
                        Ok((stream, Principal::User(uid)))
                    })
                    .await
            });
        }
    }
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

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

#[derive(Clone)]
struct Server {
    router: Router,
    builder: http1::Builder,
    connections: Arc<Semaphore>,
    shutdown: Shutdown,
}

impl Server {
    /// Accepts until the stop is asked for.
    async fn accept<S, A, F>(&self, mut accept: A) -> Result<(), Infallible>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        A: FnMut() -> F,
        F: Future<Output = io::Result<(S, Principal)>>,
    {
        loop {
            // Beyond the limit, callers wait in the kernel's backlog. The semaphore is never closed.
            let Ok(permit) = self.connections.clone().acquire_owned().await else { return Ok(()) };
            let accepted = tokio::select! {
                accepted = accept() => accepted,
                () = self.shutdown.requested() => return Ok(()),
            };
            match accepted {
                Ok((stream, principal)) => {
                    let connection = self.clone().connection(stream, principal);
                    self.shutdown.spawn(async move {
                        connection.await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(REST).await;
                }
            }
        }
    }

    async fn connection<S>(self, stream: S, principal: Principal)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let router = self.router;
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(principal.clone());
            // A router is always ready.
            router.clone().call(request)
        });
        let mut connection = pin!(self.builder.serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.shutdown.requested() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            // Callers that hang up or send nonsense: worth a look when debugging, never an alarm.
            tracing::debug!(%error, "connection ended");
        }
    }
}
