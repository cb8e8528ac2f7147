//! A connection on which everything sent is of one content: what an HTTP client is given.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, timeout_at};

use super::account::Account;
use super::address::HostPort;
use super::policy::{Content, Grant};
use super::tls::{Client, Peer};
use super::tunnel;
use super::{Egress, EgressError, Purpose, TlsSettings, dial, read_settings};

/// What an encrypted connection may go over.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// An open connection that counts what goes over it.
pub(super) struct Channel {
    stream: Box<dyn Stream>,
    content: Content,
    account: Arc<Account>,
    peer: Option<Peer>,
}

/// Stands in the audit log for a repository that the configuration does not name.
pub const UNLISTED: &str = "unlisted";

/// Where a channel leads, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Way {
    pub to: HostPort,
    pub tls: Option<TlsSettings>,
    pub proxy: Option<HostPort>,
    pub purpose: Purpose,
    pub content: Content,
}

impl Egress {
    /// Opens a channel, if the allow-list has the destination, and the proxy on the way there, and both may get what it
    /// is for: else neither DNS nor the network hear of it.
    pub(super) async fn channel(&self, way: &Way) -> Result<Channel, EgressError> {
        let hops = way.proxy.iter().chain([&way.to]);
        let mut accounts = Vec::new();
        for hop in hops {
            let grant = self.granted(hop, way)?;
            let account = self.account(hop, &grant.region);
            accounts.push((hop, grant, account));
        }
        let opened = self.open_channel(way, &accounts).await;
        if opened.is_err() {
            for (_, _, account) in &accounts {
                account.failures.fetch_add(1, Ordering::Relaxed);
                account.is_up.store(false, Ordering::Relaxed);
            }
        }
        opened
    }

    fn granted(&self, hop: &HostPort, way: &Way) -> Result<Grant, EgressError> {
        let granted = self.0.config.grant(hop).and_then(|grant| {
            let grant = grant.limited_to(way.purpose.contents());
            let content = way.content;
            if grant.permits(content) {
                return Ok(grant);
            }
            Err(format!(
                "{content} may not be sent to {hop}: to allow it, add \"{content}\" to `send` in its [[egress.allow]]"
            ))
        });
        granted.map_err(|reason| self.denied(self.recorded(hop, way.purpose), way.purpose, reason))
    }

    /// What the audit log says of a destination that is refused. Whoever asks for a look at another repository can put
    /// anything into its address, and nothing that a caller sent is in a record. All other addresses are configured.
    fn recorded(&self, hop: &HostPort, purpose: Purpose) -> String {
        let is_listed = self.0.config.allow.iter().any(|entry| entry.host == *hop);
        if is_listed || purpose != Purpose::Updates { hop.to_string() } else { UNLISTED.to_owned() }
    }

    async fn open_channel(&self, way: &Way, hops: &[(&HostPort, Grant, Arc<Account>)]) -> Result<Channel, EgressError> {
        let destination = way.to.to_string();
        let deadline = Instant::now() + self.0.limit;
        let tls_failed = |error| EgressError::Tls { destination: destination.clone(), error };
        // Before anything is connected: a file that cannot be read is no reason to disturb the other side.
        let client = match way.tls.clone() {
            Some(settings) => Some(read_settings(settings, way.to.clone()).await.map_err(tls_failed)?),
            None => None,
        };
        let mut stream = dial(way.proxy.as_ref().unwrap_or(&way.to), deadline).await?;
        for (hop, grant, account) in hops {
            if **hop == way.to
                && let Some(proxy) = &way.proxy
            {
                let late = |_| EgressError::TimedOut { destination: proxy.to_string(), step: "the proxy's connecting" };
                let asked = timeout_at(deadline, tunnel::ask(&mut stream, proxy, &way.to)).await.map_err(late)?;
                let sent = asked?;
                if let Some((_, _, proxy)) = hops.first() {
                    proxy.count_sent(way.content, sent);
                }
            }
            account.opened.fetch_add(1, Ordering::Relaxed);
            // A copy of the audit log that is recorded each time would have something to copy each time.
            if way.purpose.is_of_audit() && account.is_up.swap(true, Ordering::Relaxed) {
                continue;
            }
            self.0.audit.record_connection(hop.to_string(), grant.region.clone(), way.purpose.name());
        }
        let account = hops.last().map(|(_, _, account)| account.clone()).unwrap_or_default();
        let Some(client) = client else {
            return Ok(Channel { stream: Box::new(stream), content: way.content, account, peer: None });
        };
        let late = |_| EgressError::TimedOut { destination: destination.clone(), step: "the TLS handshake" };
        let (stream, peer) = timeout_at(deadline, shake(client, stream)).await.map_err(late)?.map_err(tls_failed)?;
        Ok(Channel { stream, content: way.content, account, peer: Some(peer) })
    }
}

async fn shake(client: Client, stream: tokio::net::TcpStream) -> Result<(Box<dyn Stream>, Peer), super::TlsError> {
    let (stream, peer) = client.connect(stream).await?;
    Ok((Box::new(stream), peer))
}

impl AsyncRead for Channel {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.account.count_received(buffer.filled().len() - before);
        polled.map_err(|error| self.explained(error))
    }
}

impl AsyncWrite for Channel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(sent)) = &polled {
            self.account.count_sent(self.content, *sent);
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

impl Channel {
    /// An error in words for people where TLS knows better than the system.
    fn explained(&self, error: io::Error) -> io::Error {
        match &self.peer {
            Some(peer) => peer.explain_later(error),
            None => error,
        }
    }
}
