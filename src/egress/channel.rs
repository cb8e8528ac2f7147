//! A connection on which everything sent has one content, as an HTTP client needs it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, timeout_at};

use super::address::HostPort;
use super::counters::DestinationCounters;
use super::policy::{EgressContent, EgressGrant};
use super::tls::{TlsClient, TlsPeer};
use super::tunnel;
use super::{Egress, EgressError, EgressPurpose, TlsClientSettings, connect, read_settings};

/// A bidirectional stream of bytes: TCP, TLS or a Unix socket. hyper, which is compiled once for each type of stream,
/// gets it behind a pointer.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// An open connection that counts its traffic.
pub(super) struct EgressConnection {
    stream: Box<dyn ByteStream>,
    content: EgressContent,
    counters: Arc<DestinationCounters>,
    peer: Option<TlsPeer>,
}

/// The destination in the audit log for a repository that the configuration does not name.
pub const UNLISTED_DESTINATION: &str = "unlisted";

/// The destination of a channel, and the way to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EgressRoute {
    pub to: HostPort,
    pub tls: Option<TlsClientSettings>,
    pub proxy: Option<HostPort>,
    pub purpose: EgressPurpose,
    pub content: EgressContent,
}

impl Egress {
    /// Opens a channel, if the allow-list has the destination and the proxy in between, and permits the content for
    /// both. Otherwise nothing is sent, not even a DNS query.
    pub(super) async fn channel(&self, route: &EgressRoute) -> Result<EgressConnection, EgressError> {
        let hops = route.proxy.iter().chain([&route.to]);
        let mut granted = Vec::new();
        for hop in hops {
            let grant = self.granted(hop, route)?;
            let counters = self.counters(hop, &grant.region);
            granted.push((hop, grant, counters));
        }

        let opened = self.open_channel(route, &granted).await;
        if opened.is_err() {
            for (_, _, counters) in &granted {
                counters.failures.fetch_add(1, Ordering::Relaxed);
                counters.is_up.store(false, Ordering::Relaxed);
            }
        }
        opened
    }

    fn granted(&self, hop: &HostPort, route: &EgressRoute) -> Result<EgressGrant, EgressError> {
        let granted = self.0.config.grant(hop).and_then(|grant| {
            let grant = grant.limited_to(route.purpose.contents());
            let content = route.content;
            if grant.permits(content) {
                return Ok(grant);
            }
            Err(format!(
                "{content} may not be sent to {hop}: to allow it, add \"{content}\" to `send` in its [[egress.allow]]"
            ))
        });
        granted.map_err(|reason| self.denied(self.recorded(hop, route.purpose), route.purpose, reason))
    }

    /// The name of a refused destination in the audit log. A caller who asks to check another repository chooses its
    /// address, and no record holds what a caller sent. All other addresses come from the configuration.
    fn recorded(&self, hop: &HostPort, purpose: EgressPurpose) -> String {
        let is_listed = self.0.config.allow.iter().any(|entry| entry.host == *hop);
        if is_listed || purpose != EgressPurpose::Updates { hop.to_string() } else { UNLISTED_DESTINATION.to_owned() }
    }

    async fn open_channel(
        &self,
        route: &EgressRoute,
        hops: &[(&HostPort, EgressGrant, Arc<DestinationCounters>)],
    ) -> Result<EgressConnection, EgressError> {
        let destination = route.to.to_string();
        let deadline = Instant::now() + self.0.connect_timeout;
        let tls_failed = |error| EgressError::Tls { destination: destination.clone(), error };
        // Read the files before connecting: an unreadable file must not cause a connection that is dropped at once.
        let client = match route.tls.clone() {
            Some(settings) => Some(read_settings(settings, route.to.clone()).await.map_err(tls_failed)?),
            None => None,
        };

        let mut stream = connect(route.proxy.as_ref().unwrap_or(&route.to), deadline).await?;
        for (hop, grant, counters) in hops {
            if **hop == route.to
                && let Some(proxy) = &route.proxy
            {
                let late =
                    |_| EgressError::TimedOut { destination: proxy.to_string(), step: "connecting through the proxy" };
                let asked =
                    timeout_at(deadline, tunnel::open_tunnel(&mut stream, proxy, &route.to)).await.map_err(late)?;
                let sent = asked?;
                if let Some((_, _, proxy)) = hops.first() {
                    proxy.count_sent(route.content, sent);
                }
            }
            counters.opened.fetch_add(1, Ordering::Relaxed);
            // Recording each connection that copies the audit log would add a record to copy each time.
            if route.purpose.is_of_audit() && counters.is_up.swap(true, Ordering::Relaxed) {
                continue;
            }
            self.0.audit.record_connection(hop.to_string(), grant.region.clone(), route.purpose.name());
        }

        let counters = hops.last().map(|(_, _, counters)| counters.clone()).unwrap_or_default();
        let Some(client) = client else {
            return Ok(EgressConnection { stream: Box::new(stream), content: route.content, counters, peer: None });
        };
        let late = |_| EgressError::TimedOut { destination: destination.clone(), step: "the TLS handshake" };
        let (stream, peer) =
            timeout_at(deadline, tls_handshake(client, stream)).await.map_err(late)?.map_err(tls_failed)?;
        Ok(EgressConnection { stream, content: route.content, counters, peer: Some(peer) })
    }
}

async fn tls_handshake(
    client: TlsClient,
    stream: tokio::net::TcpStream,
) -> Result<(Box<dyn ByteStream>, TlsPeer), super::TlsError> {
    let (stream, peer) = client.connect(stream).await?;
    Ok((Box::new(stream), peer))
}

impl AsyncRead for EgressConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.counters.count_received(buffer.filled().len() - before);
        polled.map_err(|error| self.explained(error))
    }
}

impl AsyncWrite for EgressConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(sent)) = &polled {
            self.counters.count_sent(self.content, *sent);
        }
        polled.map_err(|error| self.explained(error))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx).map_err(|error| self.explained(error))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl EgressConnection {
    /// Replaces an error of the system by the TLS alert that caused it, if there was one.
    fn explained(&self, error: io::Error) -> io::Error {
        match &self.peer {
            Some(peer) => peer.explain_later(error),
            None => error,
        }
    }
}
