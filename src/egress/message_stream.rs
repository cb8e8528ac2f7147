//! A connection for messages without replies, such as those of syslog.

use std::io;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::address::HostPort;
use super::channel::{EgressConnection, EgressRoute};
use super::policy::EgressContent;
use super::{Egress, EgressError, EgressPurpose, TlsClientSettings};

/// Limit for a write that the other side does not take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);

/// Limit for an orderly end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// An open connection that carries records of the audit log.
pub struct AuditRecordStream {
    channel: EgressConnection,
    write_timeout: Duration,
}

impl AuditRecordStream {
    /// Connects, if the allow-list has the destination and permits it the audit log. A connection without TLS is
    /// refused unless the destination is this machine.
    pub async fn open(
        egress: &Egress,
        to: &HostPort,
        tls: Option<TlsClientSettings>,
        purpose: EgressPurpose,
    ) -> Result<Self, EgressError> {
        if tls.is_none() && !to.host.is_loopback() {
            let reason = format!(
                "records of the audit log are sent to {to} only over an encrypted connection: set up TLS for it"
            );
            return Err(egress.denied(to.to_string(), purpose, reason));
        }
        let route = EgressRoute { to: to.clone(), tls, proxy: None, purpose, content: EgressContent::Audit };
        Ok(Self { channel: egress.channel(&route).await?, write_timeout: WRITE_TIMEOUT })
    }

    /// Hands whole messages to the system. After a failure or a cancellation a part of them may have been sent, so the
    /// connection cannot be used any more. Success does not mean that they arrive.
    pub async fn send(&mut self, messages: &[u8]) -> io::Result<()> {
        // The system accepts a first write to a connection that the other side has closed, and the bytes are lost.
        if let Some(error) = self.ended().now_or_never() {
            return Err(error);
        }
        let sending = async {
            self.channel.write_all(messages).await?;
            self.channel.flush().await
        };
        timeout(self.write_timeout, sending).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Waits until the other side ends the connection. Received bytes are discarded. Cancel-safe.
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

    /// Ends the connection in order, within a second.
    pub async fn close(mut self) {
        // If it fails, the connection ends all the same.
        let _ = timeout(CLOSE_TIMEOUT, self.channel.shutdown()).await;
    }
}

impl std::fmt::Debug for AuditRecordStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuditRecordStream").finish_non_exhaustive()
    }
}
