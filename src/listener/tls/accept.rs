//! Connections of callers: admission, and the handshake.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ledge_base::principal::Principal;
use ledge_part::api_error::ErrorBody;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{timeout, timeout_at};
use tokio_rustls::server::TlsStream;

use super::certificate::CertificateFacts;
use super::handshake::{HandshakeFailure, HandshakeOutcome, INVALID_CERTIFICATE_CAUSE, TlsCaller};
use super::network_limiter::AdmittedConnection;
use super::{ApplicationProtocol, ServerTls};

/// The first byte of a TLS record with a handshake message (RFC 8446, 5.1).
const HANDSHAKE_RECORD_TYPE: u8 = 22;

/// The time that a caller without TLS may take to read the error, and the most bytes of its request that are read
/// meanwhile.
const PLAIN_REPLY_TIMEOUT: Duration = Duration::from_secs(1);

const PLAIN_REQUEST_BYTES_MAX: u64 = 64 << 10;

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
