//! One connection, and the reasons to end it.

use std::fmt;
use std::time::Duration;

use ledge_egress::ByteStream;
use ledge_identity::authentication::Peer;
use ledge_service::shutdown::Shutdown;

use super::connection_calls::ConnectionCalls;
use super::tls::TlsCaller;
use super::write_timeout::WriteTimeout;

/// The time for which an idle connection may send one more request before a restart closes it. A caller that sends one
/// request after the other gets `connection: close` with an answer, and its next request does not fail.
pub(crate) const RESTART_LINGER: Duration = Duration::from_millis(200);

/// A connection to serve.
pub struct Connection {
    pub stream: WriteTimeout<Box<dyn ByteStream>>,
    pub peer: Peer,
    /// Its calls, which the server of the connection counts.
    pub calls: ConnectionCalls,
    /// The caller of a connection with TLS.
    pub tls: Option<TlsCaller>,
    pub shutdown: Shutdown,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// Waits until a connection has to end: the daemon stops, the client certificate is no longer valid, or a newcomer
/// needs the place.
pub async fn end_requested(tls: Option<TlsCaller>, calls: &ConnectionCalls, shutdown: &Shutdown) {
    let outdated = async {
        match tls {
            Some(caller) => caller.outdated().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = shutdown.requested() => {}
        () = outdated => return,
        () = calls.asked_to_end() => return,
    }
    if shutdown.is_restart() {
        tokio::time::sleep(RESTART_LINGER).await;
    }
}
