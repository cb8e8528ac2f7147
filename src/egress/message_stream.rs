//! A connection for messages that nobody answers, such as those of syslog.

use std::io;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::address::HostPort;
use super::channel::{Channel, Way};
use super::policy::Content;
use super::{Egress, EgressError, Purpose, TlsSettings};

/// How long the other side may let a write wait.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long an orderly end may take.
const CLOSE: Duration = Duration::from_secs(1);

/// An open connection that carries records of the audit log.
pub struct MessageStream {
    channel: Channel,
    patience: Duration,
}

impl MessageStream {
    /// Connects, if the allow-list has the destination and it may get the audit log. Without TLS it is refused unless the
    /// destination is this machine.
    pub async fn open(
        egress: &Egress,
        to: &HostPort,
        tls: Option<TlsSettings>,
        purpose: Purpose,
    ) -> Result<Self, EgressError> {
        if tls.is_none() && !to.host.is_loopback() {
            let reason = format!("records of the audit log go to {to} only over an encrypted connection");
            return Err(egress.denied(to.to_string(), purpose, reason));
        }
        let way = Way { to: to.clone(), tls, proxy: None, purpose, content: Content::Audit };
        Ok(Self { channel: egress.channel(&way).await?, patience: PATIENCE })
    }

    /// Hands whole messages to the system. When that fails, or is given up, a part of them may have gone: the connection is
    /// of no use any more. When it succeeds, nobody knows whether they arrive.
    pub async fn send(&mut self, messages: &[u8]) -> io::Result<()> {
        // The system takes a first write to a connection that the other side has closed, and it goes nowhere.
        if let Some(error) = self.ended().now_or_never() {
            return Err(error);
        }
        let sending = async {
            self.channel.write_all(messages).await?;
            self.channel.flush().await
        };
        timeout(self.patience, sending).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Waits until the other side ends the connection. What it sends is not looked at. Cancel-safe.
    pub async fn ended(&mut self) -> io::Error {
        let mut buffer = [0; 512];
        loop {
            match self.channel.read(&mut buffer).await {
                Ok(0) => return io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"),
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    }

    /// Ends the connection in order, if that takes a second at most.
    pub async fn close(mut self) {
        // An end that fails is an end.
        let _ = timeout(CLOSE, self.channel.shutdown()).await;
    }
}

impl std::fmt::Debug for MessageStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageStream").finish_non_exhaustive()
    }
}
