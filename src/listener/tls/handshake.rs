//! TLS handshakes: under a timeout, and with a limit on those in progress.

use std::future::pending;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ledge_base::clock;
use ledge_base::log_limiter::LogLimiter;
use ledge_identity::certificate::PeerCertificate;
use rustls::Error;
use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::config::TlsConfig;
use super::files::ClientTrust;
use super::network_limiter::NetworkLimiter;

/// The cause in the audit log for an invalid client certificate.
pub(super) const INVALID_CERTIFICATE_CAUSE: &str = "certificate";

/// The client certificate of a connection, and how long it is valid.
pub struct TlsCaller {
    pub certificate: Option<Arc<PeerCertificate>>,
    /// The expiry of the certificate, in milliseconds since the Unix epoch.
    pub(super) not_after_ms: Option<u64>,
    /// The certificate and the intermediate ones, as presented.
    pub(super) chain: Vec<CertificateDer<'static>>,
    /// The current authorities and revocations.
    pub(super) trust: watch::Receiver<Option<ClientTrust>>,
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
            // The sender lives while the listener does, and its end makes no certificate invalid.
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
    pub(super) timeout: Duration,
    pub(super) networks: Arc<NetworkLimiter>,
    log_limiter: Mutex<LogLimiter>,
    counts_by_outcome: [AtomicU64; 7],
}

#[derive(Debug, Clone, Copy)]
pub(super) enum HandshakeOutcome {
    Accepted,
    Refused,
    Failed,
    TimedOut,
    NotTls,
    TooMany,
    Unavailable,
}

/// The outcome of a failed handshake, and its reason.
pub(super) struct HandshakeFailure {
    pub(super) end: HandshakeOutcome,
    pub(super) reason: String,
    /// The cause for the audit log, if the client certificate was missing or invalid.
    pub(super) denied: Option<&'static str>,
    /// The stream of a caller that sends HTTP without TLS.
    pub(super) plain: Option<TcpStream>,
}

impl HandshakeFailure {
    pub(super) fn new(end: HandshakeOutcome, reason: impl Into<String>) -> Self {
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
    pub(super) fn ended(&self, end: HandshakeOutcome, peer: IpAddr, reason: &str) {
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

/// The cause in the audit log of a failed handshake, if it is recorded.
fn denial_cause(error: &io::Error) -> Option<&'static str> {
    match error.get_ref()?.downcast_ref()? {
        Error::NoCertificatesPresented => Some("no_certificate"),
        Error::InvalidCertificate(_) | Error::InvalidCertRevocationList(_) => Some(INVALID_CERTIFICATE_CAUSE),
        _ => None,
    }
}

/// The time at which certificates are verified.
pub(super) fn now_ms() -> u64 {
    clock::FLOOR.now_millis()
}
