//! TLS handshakes: under a timeout, and with a limit on those in progress.

use std::future::pending;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ledge_base::log_limiter::LogLimiter;
use ledge_base::principal::Principal;
use ledge_identity::certificate::PeerCertificate;
use ledge_part::api_error::ErrorBody;
use rustls::Error;
use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{timeout, timeout_at};
use tokio_rustls::server::TlsStream;

use super::certificate::CertificateFacts;
use super::config::TlsConfig;
use super::files::ClientTrust;
use super::network_limiter::{AdmittedConnection, NetworkLimiter};
use super::{ApplicationProtocol, ServerTls, now_ms};

/// The first byte of a TLS record with a handshake message (RFC 8446, 5.1).
const HANDSHAKE_RECORD_TYPE: u8 = 22;

/// The cause in the audit log for an invalid client certificate.
const INVALID_CERTIFICATE_CAUSE: &str = "certificate";

/// The time that a caller without TLS may take to read the error, and the most bytes of its request that are read
/// meanwhile.
const PLAIN_REPLY_TIMEOUT: Duration = Duration::from_secs(1);
const PLAIN_REQUEST_BYTES_MAX: u64 = 64 << 10;

/// The client certificate of a connection, and how long it is valid.
pub struct TlsCaller {
    pub certificate: Option<Arc<PeerCertificate>>,
    /// The expiry of the certificate, in milliseconds since the Unix epoch.
    not_after_ms: Option<u64>,
    /// The certificate and the intermediate ones, as presented.
    chain: Vec<CertificateDer<'static>>,
    /// The current authorities and revocations.
    trust: watch::Receiver<Option<ClientTrust>>,
}

impl TlsCaller {
    /// Waits until the client certificate is no longer valid: it has expired, or it is invalid by renewed authorities
    /// or revocations. These are usually renewed every few hours, and most certificates stay valid.
    pub async fn outdated(mut self) {
        if self.certificate.is_none() {
            return pending().await;
        }
        let left = Duration::from_millis(self.not_after_ms.unwrap_or(u64::MAX).saturating_sub(now_ms()));
        let expired = tokio::time::sleep(left);
        let refused = async {
            // The sender lives as long as the listener; its end makes no certificate invalid.
            while self.trust.changed().await.is_ok() {
                let trust = self.trust.borrow_and_update().clone();
                if !trust.is_some_and(|trust| is_valid(&self.chain, &trust)) {
                    return;
                }
            }
            pending::<()>().await;
        };
        tokio::select! {
            () = expired => {}
            () = refused => {}
        }
    }
}

/// Verifies a certificate chain at the current time.
fn is_valid(chain: &[CertificateDer<'_>], trust: &ClientTrust) -> bool {
    let now = UnixTime::since_unix_epoch(Duration::from_millis(now_ms()));
    chain.split_first().is_some_and(|(own, others)| trust.verifier.verify_client_cert(own, others, now).is_ok())
}

/// The number of handshakes since the start, by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HandshakeCounts {
    pub accepted: u64,
    /// The client certificate was missing or invalid.
    pub refused: u64,
    /// The caller and this box had no common parameters, or the caller broke off.
    pub failed: u64,
    pub timed_out: u64,
    pub not_tls: u64,
    /// The caller's network had too many connections, or the handshake waited too long for a permit.
    pub too_many: u64,
    /// This box had no certificate.
    pub unavailable: u64,
}

/// The limits on handshakes, and their outcomes.
pub(super) struct Handshakes {
    timeout: Duration,
    networks: Arc<NetworkLimiter>,
    log_limiter: Mutex<LogLimiter>,
    counts_by_outcome: [AtomicU64; 7],
}

#[derive(Debug, Clone, Copy)]
enum HandshakeOutcome {
    Accepted,
    Refused,
    Failed,
    TimedOut,
    NotTls,
    TooMany,
    Unavailable,
}

/// The outcome of a failed handshake, and its reason.
struct HandshakeFailure {
    end: HandshakeOutcome,
    reason: String,
    /// The cause for the audit log, if the client certificate was missing or invalid.
    denied: Option<&'static str>,
    /// The stream of a caller that sends HTTP without TLS.
    plain: Option<TcpStream>,
}

impl HandshakeFailure {
    fn new(end: HandshakeOutcome, reason: impl Into<String>) -> Self {
        Self { end, reason: reason.into(), denied: None, plain: None }
    }
}

impl From<io::Error> for HandshakeFailure {
    fn from(error: io::Error) -> Self {
        let denied = denial_cause(&error);
        let end = if denied.is_some() { HandshakeOutcome::Refused } else { HandshakeOutcome::Failed };
        Self { denied, ..Self::new(end, error.to_string()) }
    }
}

impl Handshakes {
    pub fn new(settings: &TlsConfig, max_connections: usize) -> Self {
        Self {
            timeout: settings.handshake_timeout(),
            networks: Arc::new(NetworkLimiter::new(max_connections)),
            log_limiter: Mutex::default(),
            counts_by_outcome: Default::default(),
        }
    }

    pub fn counts(&self) -> HandshakeCounts {
        let [accepted, refused, failed, timed_out, not_tls, too_many, unavailable] =
            self.counts_by_outcome.each_ref().map(|count| count.load(Ordering::Relaxed));
        HandshakeCounts { accepted, refused, failed, timed_out, not_tls, too_many, unavailable }
    }

    /// Counts an outcome. Some are logged, each kind at most once a minute, because any caller can cause thousands.
    fn ended(&self, end: HandshakeOutcome, peer: IpAddr, reason: &str) {
        if let Some(count) = self.counts_by_outcome.get(end as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let message = match end {
            HandshakeOutcome::Accepted => return,
            HandshakeOutcome::Refused => "a client certificate was refused",
            HandshakeOutcome::TooMany => {
                "a TLS connection was refused: too many connections of one network, or too many handshakes"
            }
            HandshakeOutcome::Unavailable => "a TLS connection was refused: this box has no certificate yet",
            HandshakeOutcome::Failed | HandshakeOutcome::TimedOut | HandshakeOutcome::NotTls => {
                // Debug level only: callers hang up or send invalid data at any time.
                tracing::debug!(%peer, reason, "a TLS handshake ended without a connection");
                return;
            }
        };
        let mut log_limiter = self.log_limiter.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(suppressed) = log_limiter.take((message, 0), Instant::now()) {
            tracing::warn!(%peer, reason, suppressed, "{message}");
        }
    }
}

impl ServerTls {
    /// Admits a connection; `None` when its network has too many.
    pub(crate) fn admit(&self, ip: IpAddr) -> Option<AdmittedConnection> {
        let handshakes = &self.state.handshakes;
        let connection = handshakes.networks.admit(ip);
        if connection.is_none() {
            handshakes.ended(
                HandshakeOutcome::TooMany,
                ip,
                "its network has as many connections as one network may have",
            );
        }
        connection
    }

    /// Does the handshake with a caller, who then speaks `protocol`; `None` when it fails.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        connection: &AdmittedConnection,
        protocol: ApplicationProtocol,
    ) -> Option<(TlsStream<TcpStream>, TlsCaller)> {
        let (handshakes, peer) = (&self.state.handshakes, connection.ip);
        // Many callers come at once when all have lost their connections: they wait, and are not refused.
        let until = tokio::time::Instant::now() + handshakes.timeout;
        let Ok(Some(_permit)) = timeout_at(until, connection.handshake_permit()).await else {
            handshakes.ended(HandshakeOutcome::TooMany, peer, "the handshake waited too long for its turn");
            return None;
        };
        let Ok(shaken) = timeout_at(until, self.handshake(stream, protocol)).await else {
            handshakes.ended(
                HandshakeOutcome::TimedOut,
                peer,
                "the handshake took longer than http.tls.handshake_timeout_ms",
            );
            return None;
        };
        match shaken {
            Ok(accepted) => {
                handshakes.ended(HandshakeOutcome::Accepted, peer, "");
                Some(accepted)
            }
            Err(HandshakeFailure { end, reason, denied, plain }) => {
                handshakes.ended(end, peer, &reason);
                if let Some(cause) = denied {
                    self.state.audit.record_unauthenticated(&Principal::Peer(peer), cause);
                }
                if let Some(stream) = plain {
                    let _ = timeout(PLAIN_REPLY_TIMEOUT, refuse_plain(stream)).await;
                }
                None
            }
        }
    }

    async fn handshake(
        &self,
        stream: TcpStream,
        protocol: ApplicationProtocol,
    ) -> Result<(TlsStream<TcpStream>, TlsCaller), HandshakeFailure> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 {
            return Err(HandshakeFailure::new(HandshakeOutcome::Failed, "the caller sent nothing"));
        }
        let [first] = first;
        if first != HANDSHAKE_RECORD_TYPE {
            // The methods of HTTP begin with an upper-case letter.
            let plain = first.is_ascii_uppercase().then_some(stream);
            return Err(HandshakeFailure {
                plain,
                ..HandshakeFailure::new(HandshakeOutcome::NotTls, format!("the first byte was {first:#04x}"))
            });
        }

        // Subscribed before the handshake, so that a change during it is noticed after it.
        let trust = self.state.trust.subscribe();
        let Some(acceptor) = self.state.live.load().as_ref().map(|live| live.acceptor(protocol)) else {
            return Err(HandshakeFailure::new(
                HandshakeOutcome::Unavailable,
                "the files of http.tls cannot be used; the log has the error",
            ));
        };

        let stream = acceptor.accept(stream).await?;
        let chain: Vec<_> = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
        let facts = match chain.first().map(CertificateFacts::read).transpose() {
            Ok(facts) => facts,
            // It was verified, but its names cannot be read.
            Err(error) => {
                return Err(HandshakeFailure {
                    denied: Some(INVALID_CERTIFICATE_CAUSE),
                    ..HandshakeFailure::new(HandshakeOutcome::Refused, error.to_string())
                });
            }
        };
        let not_after_ms = facts.as_ref().map(|facts| facts.not_after_ms);
        let certificate = facts.map(|facts| Arc::new(facts.into_peer()));
        Ok((stream, TlsCaller { certificate, not_after_ms, chain, trust }))
    }
}

/// The cause in the audit log of a failed handshake, if it is recorded.
fn denial_cause(error: &io::Error) -> Option<&'static str> {
    match error.get_ref()?.downcast_ref()? {
        Error::NoCertificatesPresented => Some("no_certificate"),
        Error::InvalidCertificate(_) | Error::InvalidCertRevocationList(_) => Some(INVALID_CERTIFICATE_CAUSE),
        _ => None,
    }
}

/// Answers a caller that sends HTTP without TLS with an error over plain HTTP.
async fn refuse_plain(mut stream: TcpStream) -> io::Result<()> {
    let body = ErrorBody::new("this port speaks TLS: use https://").to_json();
    let head = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body.as_ref()].concat()).await?;
    stream.shutdown().await?;
    // Closing with unread bytes would reset the connection, and the caller would lose the answer.
    tokio::io::copy(&mut stream.take(PLAIN_REQUEST_BYTES_MAX), &mut tokio::io::sink()).await.map(|_| ())
}
