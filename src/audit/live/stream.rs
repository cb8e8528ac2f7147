//! Live copies on a connection that stays open: connects, sends messages, connects again.

use std::io;
use std::time::Duration;

use ledge_base::backoff::{Backoff, random};
use ledge_egress::{AuditRecordStream, Egress, EgressError, EgressPurpose, HostPort, TlsClientSettings};
use ledge_service::shutdown::Shutdown;
use tokio::time::{Instant, timeout};

use super::copy::RecordFramer;
use super::feed::{FINAL_SEND_TIMEOUT, LiveCopyQueue, RETRY_PAUSE_MAX, RETRY_PAUSE_MIN};

/// A connection that lasted this long resets the pauses. After a shorter one they go on to grow, because each
/// connection is a record itself.
const STABLE_CONNECTION: Duration = Duration::from_secs(30);

/// Time for a server to object to a connection before records are sent on it.
const OBJECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// A live copy on a connection.
pub(super) struct StreamedLiveCopy {
    pub egress: Egress,
    pub to: HostPort,
    pub tls: Option<TlsClientSettings>,
    pub purpose: EgressPurpose,
    pub framer: Box<dyn RecordFramer>,
}

impl StreamedLiveCopy {
    /// Sends until the daemon stops.
    pub async fn run(self, mut feed: LiveCopyQueue, shutdown: Shutdown) {
        let mut backoff = Backoff::new(RETRY_PAUSE_MIN, RETRY_PAUSE_MAX);
        loop {
            let opened = tokio::select! {
                opened = AuditRecordStream::open(&self.egress, &self.to, self.tls.clone(), self.purpose) => opened,
                () = shutdown.requested() => return,
            };

            match opened {
                Ok(mut stream) => {
                    let since = Instant::now();
                    tokio::select! {
                        error = self.send_on(&mut stream, &mut feed) => feed.report_failure(&error.to_string()),
                        () = shutdown.requested() => {
                            feed.receive_available();
                            // Records that are not sent by then are lost, as are later ones.
                            let _ = timeout(FINAL_SEND_TIMEOUT, self.send_all(&mut stream, &mut feed)).await;
                            return stream.close().await;
                        }
                    }
                    if since.elapsed() >= STABLE_CONNECTION {
                        backoff.reset();
                    }
                }
                Err(error) => {
                    // The allow-list does not change while this daemon runs.
                    if matches!(error, EgressError::Denied { .. }) {
                        backoff.give_way();
                    }
                    feed.report_failure(&error.to_string());
                }
            }

            let pause = Instant::now() + backoff.pause(random());
            tokio::select! {
                () = feed.receive_until(pause) => {}
                () = shutdown.requested() => return,
            }
        }
    }

    /// Sends records as they arrive until the connection ends.
    async fn send_on(&self, stream: &mut AuditRecordStream, feed: &mut LiveCopyQueue) -> io::Error {
        // A server that refuses our certificate says so only after the handshake (TLS 1.3): records sent by then are
        // lost.
        tokio::select! {
            error = stream.ended() => return error,
            () = feed.receive_until(Instant::now() + OBJECTION_TIMEOUT) => feed.report_success(),
        }
        loop {
            if let Err(error) = self.send_all(stream, feed).await {
                return error;
            }
            tokio::select! {
                error = stream.ended() => return error,
                () = feed.receive() => {}
            }
        }
    }

    async fn send_all(&self, stream: &mut AuditRecordStream, feed: &mut LiveCopyQueue) -> io::Result<()> {
        loop {
            let records = feed.oldest();
            if records.is_empty() {
                return Ok(());
            }
            let frames: Vec<u8> = records.iter().flat_map(|record| self.framer.frame(record)).collect();
            stream.send(&frames).await?;
            feed.remove_sent(records.len(), 0);
            feed.receive_available();
        }
    }
}
