//! The start of a connection over TLS: under a time limit, and not more at once than leaves room for others.

use std::future::pending;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ledge_base::log_limiter::LogLimiter;
use ledge_base::principal::Principal;
use ledge_identity::certificate::PeerCertificate;
use ledge_part::failure::ErrorBody;
use rustls::Error;
use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{timeout, timeout_at};
use tokio_rustls::server::TlsStream;

use super::callers::{Callers, Guest};
use super::certificate::CertificateFacts;
use super::files::Trust;
use super::{ServerTls, now_ms};
use crate::config::HttpConfig;

/// The first byte of a TLS record with a handshake message (RFC 8446, 5.1).
const HANDSHAKE: u8 = 22;

/// What the audit log has of a client certificate that is not good.
const NOT_GOOD: &str = "certificate";

/// How long a caller without TLS may take to read that it needs TLS, and how much of its request is read meanwhile.
const FAREWELL: Duration = Duration::from_secs(1);
const FAREWELL_BYTES: u64 = 64 << 10;

/// Who is at the other end of a connection, and for how long that holds.
pub(crate) struct TlsCaller {
    /// What it proved to be.
    pub certificate: Option<Arc<PeerCertificate>>,
    /// When its certificate ends, in milliseconds since the Unix epoch.
    not_after_ms: Option<u64>,
    /// Its certificate, and those behind it, as it presented them.
    chain: Vec<CertificateDer<'static>>,
    /// What certificates are judged by.
    trust: watch::Receiver<Option<Trust>>,
}

impl TlsCaller {
    /// Waits until what it proved does not hold any more: its certificate has expired, or is not good by what certificates are
    /// judged by since. That is renewed every few hours as a rule, and most callers stay good.
    pub async fn outdated(mut self) {
        if self.certificate.is_none() {
            return pending().await;
        }
        let left = Duration::from_millis(self.not_after_ms.unwrap_or(u64::MAX).saturating_sub(now_ms()));
        let expired = tokio::time::sleep(left);
        let refused = async {
            // The sender lives as long as the listener; nothing is outdated by its end.
            while self.trust.changed().await.is_ok() {
                let trust = self.trust.borrow_and_update().clone();
                if !trust.is_some_and(|trust| is_good(&self.chain, &trust)) {
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

/// Whether a certificate, and those behind it, are good now.
fn is_good(chain: &[CertificateDer<'_>], trust: &Trust) -> bool {
    let now = UnixTime::since_unix_epoch(Duration::from_millis(now_ms()));
    chain.split_first().is_some_and(|(own, others)| trust.verifier.verify_client_cert(own, others, now).is_ok())
}

/// How handshakes ended since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HandshakeCounts {
    pub accepted: u64,
    /// The caller's certificate was missing or not good.
    pub refused: u64,
    /// The caller wanted what is not offered, or broke off.
    pub failed: u64,
    /// The caller was too slow.
    pub timed_out: u64,
    /// The caller spoke no TLS.
    pub not_tls: u64,
    /// The caller's network had too many connections, or too many handshakes were under way for too long.
    pub too_many: u64,
    /// There was no certificate to show.
    pub unavailable: u64,
}

/// The handshakes that are under way, and how the others ended.
pub(super) struct Handshakes {
    limit: Duration,
    callers: Arc<Callers>,
    complaints: Mutex<LogLimiter>,
    ends: [AtomicU64; 7],
}

/// How one ended.
#[derive(Debug, Clone, Copy)]
enum End {
    Accepted,
    Refused,
    Failed,
    TimedOut,
    NotTls,
    TooMany,
    Unavailable,
}

/// Why one came to nothing.
struct Failed {
    end: End,
    reason: String,
    /// Of a caller whose certificate was missing or not good: which of both.
    denied: Option<&'static str>,
    /// Of a caller that speaks HTTP without TLS.
    plain: Option<TcpStream>,
}

impl Failed {
    fn new(end: End, reason: impl Into<String>) -> Self {
        Self { end, reason: reason.into(), denied: None, plain: None }
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        let denied = denied(&error);
        let end = if denied.is_some() { End::Refused } else { End::Failed };
        Self { denied, ..Self::new(end, error.to_string()) }
    }
}

impl Handshakes {
    pub fn new(http: &HttpConfig) -> Self {
        Self {
            limit: http.tls.handshake_timeout(),
            callers: Arc::new(Callers::new(http.max_connections)),
            complaints: Mutex::default(),
            ends: Default::default(),
        }
    }

    pub fn counts(&self) -> HandshakeCounts {
        let [accepted, refused, failed, timed_out, not_tls, too_many, unavailable] =
            self.ends.each_ref().map(|count| count.load(Ordering::Relaxed));
        HandshakeCounts { accepted, refused, failed, timed_out, not_tls, too_many, unavailable }
    }

    /// Counts an end. Some are told, each kind at most once a minute: anybody can make thousands of them.
    fn ended(&self, end: End, peer: IpAddr, reason: &str) {
        if let Some(count) = self.ends.get(end as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let told = match end {
            End::Accepted => return,
            End::Refused => "a client certificate was refused",
            End::TooMany => "too many connections of one network, or too many TLS handshakes: a caller was turned away",
            End::Unavailable => "a caller was turned away: there is no certificate to show yet",
            End::Failed | End::TimedOut | End::NotTls => {
                // Callers that hang up or send nonsense: worth a look when debugging, never an alarm.
                tracing::debug!(%peer, reason, "a TLS handshake ended without a connection");
                return;
            }
        };
        let mut complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(suppressed) = complaints.take((told, 0), Instant::now()) {
            tracing::warn!(%peer, reason, suppressed, "{told}");
        }
    }
}

impl ServerTls {
    /// Lets a connection in, which is a guest until its end; `None` when its network has enough of them.
    pub(crate) fn admit(&self, ip: IpAddr) -> Option<Guest> {
        let handshakes = &self.shared.handshakes;
        let guest = handshakes.callers.admit(ip);
        if guest.is_none() {
            handshakes.ended(End::TooMany, ip, "its network has its share of the connections");
        }
        guest
    }

    /// Shakes hands with a caller; `None` when that comes to nothing.
    pub(crate) async fn accept(&self, stream: TcpStream, guest: &Guest) -> Option<(TlsStream<TcpStream>, TlsCaller)> {
        let (handshakes, peer) = (&self.shared.handshakes, guest.ip);
        // Many come at once when all have lost their connections: they wait, and are not turned away.
        let until = tokio::time::Instant::now() + handshakes.limit;
        let Ok(Some(_place)) = timeout_at(until, guest.place()).await else {
            handshakes.ended(End::TooMany, peer, "it waited too long for its handshake");
            return None;
        };
        let Ok(shaken) = timeout_at(until, self.shake(stream)).await else {
            handshakes.ended(End::TimedOut, peer, "it took too long");
            return None;
        };
        match shaken {
            Ok(accepted) => {
                handshakes.ended(End::Accepted, peer, "");
                Some(accepted)
            }
            Err(Failed { end, reason, denied, plain }) => {
                handshakes.ended(end, peer, &reason);
                if let Some(cause) = denied {
                    self.shared.audit.record_unauthenticated(&Principal::Peer(peer), cause);
                }
                if let Some(stream) = plain {
                    let _ = timeout(FAREWELL, refuse_plain(stream)).await;
                }
                None
            }
        }
    }

    async fn shake(&self, stream: TcpStream) -> Result<(TlsStream<TcpStream>, TlsCaller), Failed> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 {
            return Err(Failed::new(End::Failed, "nothing was sent"));
        }
        let [first] = first;
        if first != HANDSHAKE {
            // As the verbs of HTTP begin.
            let plain = first.is_ascii_uppercase().then_some(stream);
            return Err(Failed { plain, ..Failed::new(End::NotTls, format!("the first byte was {first:#04x}")) });
        }
        // Before the handshake: what changes during it is noticed after it.
        let trust = self.shared.trust.subscribe();
        let Some(acceptor) = self.shared.live.load().as_ref().map(|live| live.acceptor.clone()) else {
            return Err(Failed::new(End::Unavailable, "see the log for what is wrong with the files of http.tls"));
        };
        let stream = acceptor.accept(stream).await?;
        let chain: Vec<_> = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
        let facts = match chain.first().map(CertificateFacts::read).transpose() {
            Ok(facts) => facts,
            // It was verified, but nobody could say whose it is.
            Err(error) => {
                return Err(Failed { denied: Some(NOT_GOOD), ..Failed::new(End::Refused, error.to_string()) });
            }
        };
        let not_after_ms = facts.as_ref().map(|facts| facts.not_after_ms);
        let certificate = facts.map(|facts| Arc::new(facts.into_peer()));
        Ok((stream, TlsCaller { certificate, not_after_ms, chain, trust }))
    }
}

/// Why the audit log has a handshake that failed.
fn denied(error: &io::Error) -> Option<&'static str> {
    match error.get_ref()?.downcast_ref()? {
        Error::NoCertificatesPresented => Some("no_certificate"),
        Error::InvalidCertificate(_) | Error::InvalidCertRevocationList(_) => Some(NOT_GOOD),
        _ => None,
    }
}

/// Answers a caller that speaks HTTP without TLS, in words it understands.
async fn refuse_plain(mut stream: TcpStream) -> io::Result<()> {
    let body = ErrorBody::new("this port speaks TLS: use https://").to_json();
    let head = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body.as_ref()].concat()).await?;
    stream.shutdown().await?;
    // What is closed with unread bytes resets the connection, and the answer with it.
    tokio::io::copy(&mut stream.take(FAREWELL_BYTES), &mut tokio::io::sink()).await.map(|_| ())
}
