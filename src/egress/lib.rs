//! Outbound connections: the only code that opens them. The daemon opens them through `Egress`, to destinations of the
//! allow-list, and sends only bytes of the closed list `EgressContent`. The command line connects to its daemon through
//! `DaemonConnection`.
//!
//! Files, in reading order:
//! * `address.rs`, `web_address.rs` - `HOST:PORT`, and addresses of web servers, as the configuration has them
//! * `destination.rs` - the destinations that sections of the configuration name, and the checks of them
//! * `policy.rs` - `[egress]`: destinations, their regions, and the contents that each may get
//! * `link.rs` - the two halves of an open connection; bytes are written under the name of an `EgressContent`
//! * `channel.rs` - a connection on which everything sent has one content, for an HTTP client
//! * `tls.rs`, `tls/`, `tls_files.rs` - TLS as a client, pinned certificates, and its files as a section of the
//!   configuration; `files.rs` reads certificates and keys
//! * `tunnel.rs` - HTTP CONNECT through a proxy
//! * `http.rs`, `http/` - an HTTP client for one server; `answer.rs` is a whole answer, `upload.rs` sends the audit
//!   log or certificate requests, `webhook.rs` a JSON document, `snapshot.rs` gets a picture of a camera
//! * `client_certificate.rs` - why a server refused the certificate of this box, by what it answered
//! * `webhook.rs`, `webhook/` - a webhook as the configuration has it, and messages to it
//! * `message_stream.rs` - a connection for messages without answers, as some live copies of the audit log need it
//! * `counters.rs` - bytes sent to and received from each destination since the start
//! * `stored_counts.rs` - the same since the installation, in one file
//! * `ip_filter.rs` - the allow-list as addresses, for systemd's filter
//! * `daemon_connection.rs` - connections from the command line to a daemon, by Unix socket, HTTPS or HTTP
//! * `tests.rs`, `tests/` - tests against servers on loopback
//!
//! Invariants:
//! * No other crate opens an outbound connection or looks up a name. `tests/it/tidy.rs` checks it.
//! * A destination outside this box must be in the allow-list. It is refused before its name is looked up.
//! * Bytes leave only through `EgressWriter::put`, under an `EgressContent`. The allow-list permits contents for each
//!   destination, and all are counted.
//! * The HTTP client talks to one server, follows no redirect, keeps no cookie and sends nothing about this box. Only
//!   the clients of cameras and of webhooks log in.
//! * Certificates are read at each connection, so a renewed one needs no restart. No TLS session is resumed.
//! * No connection waits for the file of `stored_counts.rs`.
//!
//! # Where it is decided
//!
//! * The permission of an outbound connection: `policy.rs` (`grant`), asked by `channel.rs` for HTTP and by
//!   `Egress::connect` for messages
#![forbid(unsafe_code)]

mod counters;
mod address;
mod channel;
mod client_certificate;
mod daemon_connection;
mod destination;
mod http;
pub mod ip_filter;
mod stored_counts;
mod link;
mod message_stream;
mod policy;
mod tls;
mod tls_files;
mod tunnel;
mod web_address;
mod webhook;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ledge_service::audit_event::{AuditEvent, AuditSink};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

pub use address::{Host, HostPort, InvalidHostPort};
pub use channel::{ByteStream, UNLISTED_DESTINATION};
pub use client_certificate::{REFUSAL_BYTES_MAX, client_certificate_refusal};
use counters::DestinationCounters;
pub use counters::DestinationStatistics;
pub use daemon_connection::{DaemonAddress, DaemonAnswer, DaemonConnection, DaemonConnectionError, DaemonDownload};
pub use destination::{ConfiguredDestination, ConfiguredProxy, behind_proxies};
pub use http::{HttpAnswer, HttpClient, HttpClientSettings, HttpDownload, HttpError, REQUEST_HEADERS, UploadClient};
pub use http::{SNAPSHOT_HEADERS, SnapshotClient, SnapshotResponse, WEBHOOK_HEADERS, WebhookClient};
pub use link::{EgressReader, EgressWriteError, EgressWriter};
pub use message_stream::AuditRecordStream;
pub use policy::{AllowedDestination, EgressConfig, EgressContent, EgressGrant, everything_unnamed};
#[cfg(any(test, feature = "fuzzing"))]
pub use stored_counts::fuzz_egress_counts;
pub use stored_counts::{DestinationCounts, EgressCounts, EgressCountsError, EgressCountsKeeper};
use tls::TlsClient;
pub use tls::{CERTIFICATE_FILE_BYTES_MAX, CertificateTime, certificates, identity_error, private_key};
pub use tls::{CertificateFingerprint, CertificatePin, InvalidCertificateFingerprint, TlsClientSettings, TlsError};
pub use tls_files::TlsClientFiles;
#[cfg(any(test, feature = "fuzzing"))]
pub use tunnel::fuzz_proxy_answer;
pub use web_address::{InvalidWebAddress, WebAddress};
pub use webhook::{
    InvalidTokenHeader, InvalidWebhookUrl, TokenHeader, Webhook, WebhookConfig, WebhookError, WebhookUrl,
};

/// Limit for the DNS lookup, the TCP connection and the TLS handshake together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The most addresses of a name that are tried. Each gets its share of [`CONNECT_TIMEOUT`].
const ADDRESSES_MAX: usize = 8;

/// The part of Ledge that opens a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EgressPurpose {
    Mqtt,
    Updates,
    /// Pictures of a camera.
    Camera,
    /// The copy of the audit log on the platform.
    Audit,
    /// Webhooks of `[[alert]]`.
    Alert,
    /// Webhooks of `[[inbox]]`.
    Document,
    /// Requests for the certificate of this box, and answers to questions, to the platform whose member it is.
    Membership,
    /// A live copy of the audit log, by its name.
    LiveCopy(&'static str),
}

impl EgressPurpose {
    /// Every purpose, where there are live copies of these names.
    pub fn all(live_copies: impl IntoIterator<Item = &'static str>) -> Vec<Self> {
        let live_copies = live_copies.into_iter().map(Self::LiveCopy);
        [Self::Mqtt, Self::Updates, Self::Camera, Self::Alert, Self::Document, Self::Membership, Self::Audit]
            .into_iter()
            .chain(live_copies)
            .collect()
    }

    /// The contents that a connection of this purpose may carry, regardless of what the allow-list permits its
    /// destination.
    pub fn contents(self) -> &'static [EgressContent] {
        match self {
            Self::Mqtt => &[
                EgressContent::Protocol,
                EgressContent::Answer,
                EgressContent::Presence,
                EgressContent::Report,
                EgressContent::Call,
                EgressContent::Picture,
                EgressContent::Alert,
                EgressContent::Document,
            ],
            Self::Updates | Self::Camera => &[EgressContent::Protocol, EgressContent::Request],
            Self::Alert => &[EgressContent::Protocol, EgressContent::Alert],
            Self::Document => &[EgressContent::Protocol, EgressContent::Document],
            Self::Membership => &[EgressContent::Protocol, EgressContent::CertificateRequest, EgressContent::Diagnosis],
            Self::Audit | Self::LiveCopy(_) => &[EgressContent::Protocol, EgressContent::Audit],
        }
    }

    /// True for connections that carry the audit log itself. They are recorded only when first, or after a failure.
    fn is_of_audit(self) -> bool {
        matches!(self, Self::Audit | Self::LiveCopy(_))
    }

    /// The name in the audit log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mqtt => "mqtt",
            Self::Updates => "updates",
            Self::Camera => "camera",
            Self::Alert => "alerts",
            Self::Document => "documents",
            Self::Membership => "membership",
            Self::Audit => "audit",
            Self::LiveCopy(name) => name,
        }
    }
}

impl fmt::Display for EgressPurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressDestination {
    /// A name or an IP address.
    pub host: String,
    pub port: u16,
    /// `None` is a connection without encryption.
    pub tls: Option<TlsClientSettings>,
}

/// The filter under systemd, which blocks connections without a distinct error.
const UNIT_FILTER: &str = "IPAddressAllow= of the unit, which `ledge config systemd-drop-in` makes";

/// The reason why a connection could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    #[error("{reason}")]
    Denied { reason: String },
    #[error(
        "{destination}: DNS does not resolve the name: check its spelling and the DNS server of this machine ({error})"
    )]
    NotFound {
        /// `HOST:PORT`.
        destination: String,
        error: io::Error,
    },
    #[error("{destination} refuses the connection: nothing listens on this port, or a firewall forbids it")]
    Refused {
        /// `HOST:PORT`.
        destination: String,
    },
    #[error(
        "{destination}: {step} timed out: check the address, that the machine is on, and that neither a firewall nor \
         the service's own filter ({UNIT_FILTER}) drops the connection"
    )]
    TimedOut {
        /// `HOST:PORT`.
        destination: String,
        step: &'static str,
    },
    #[error(
        "{destination}: this box may not connect to it: a firewall or the service's own filter forbids it \
         ({UNIT_FILTER})"
    )]
    Forbidden {
        /// `HOST:PORT`.
        destination: String,
    },
    #[error("{destination} cannot be reached: {error}")]
    Unreachable {
        /// `HOST:PORT`.
        destination: String,
        error: io::Error,
    },
    #[error("the proxy {proxy} does not connect to {destination}: {reason}")]
    Proxy {
        /// `HOST:PORT`.
        proxy: String,
        /// `HOST:PORT`.
        destination: String,
        reason: String,
    },
    #[error("{destination}: {error}")]
    Tls {
        /// `HOST:PORT`.
        destination: String,
        error: TlsError,
    },
}

/// Opens outbound connections. Clones share one allow-list and one set of counters.
#[derive(Debug, Clone)]
pub struct Egress(Arc<EgressState>);

#[derive(Debug)]
struct EgressState {
    config: EgressConfig,
    audit: AuditSink,
    connect_timeout: Duration,
    /// By destination: its region and its counters.
    counters: Mutex<BTreeMap<HostPort, (String, Arc<DestinationCounters>)>>,
}

impl Egress {
    /// Connections to the destinations that `config` allows.
    pub fn new(config: &EgressConfig, audit: AuditSink) -> Self {
        Self::with_timeout(config, audit, CONNECT_TIMEOUT)
    }

    fn with_timeout(config: &EgressConfig, audit: AuditSink, connect_timeout: Duration) -> Self {
        // Destinations that were never connected to are listed with zeros.
        let zeros = |entry: &AllowedDestination| (entry.host.clone(), (entry.region.to_string(), Arc::default()));
        let counters = Mutex::new(config.allow.iter().map(zeros).collect());
        Self(Arc::new(EgressState { config: config.clone(), audit, connect_timeout, counters }))
    }

    /// Connects, if the allow-list has the destination. Otherwise nothing is sent, not even a DNS query.
    pub async fn connect(
        &self,
        to: &EgressDestination,
        purpose: EgressPurpose,
    ) -> Result<(EgressReader, EgressWriter), EgressError> {
        let address = HostPort::new(&to.host, to.port).map_err(|error| error.to_string());
        let granted = address.and_then(|address| self.0.config.grant(&address).map(|grant| (address, grant)));
        let (address, grant) =
            granted.map_err(|reason| self.denied(format!("{}:{}", to.host, to.port), purpose, reason))?;

        let grant = grant.limited_to(purpose.contents());
        let counters = self.counters(&address, &grant.region);
        let connected = self.open(&address, to.tls.clone(), &grant, &counters, purpose).await;
        if connected.is_err() {
            counters.failures.fetch_add(1, Ordering::Relaxed);
        }
        connected
    }

    /// Records a refusal in the audit log and returns it as an error.
    fn denied(&self, destination: String, purpose: EgressPurpose, reason: String) -> EgressError {
        self.0.audit.record_own(AuditEvent::ConnectionRefused { destination, purpose: purpose.name().into() });
        EgressError::Denied { reason }
    }

    async fn open(
        &self,
        to: &HostPort,
        tls: Option<TlsClientSettings>,
        grant: &EgressGrant,
        counters: &Arc<DestinationCounters>,
        purpose: EgressPurpose,
    ) -> Result<(EgressReader, EgressWriter), EgressError> {
        let destination = to.to_string();
        let deadline = Instant::now() + self.0.connect_timeout;
        let tls_failed = |error| EgressError::Tls { destination: destination.clone(), error };
        // Read the files before connecting: an unreadable file must not cause a connection that is dropped at once.
        let client = match tls {
            Some(settings) => Some(read_settings(settings, to.clone()).await.map_err(tls_failed)?),
            None => None,
        };

        let stream = connect(to, deadline).await?;
        let socket = stream.as_fd().try_clone_to_owned().map_err(|error| connect_error(to, error))?;
        counters.opened.fetch_add(1, Ordering::Relaxed);
        self.0.audit.record_connection(destination.clone(), grant.region.clone(), purpose.name());

        let (grant, counters) = (grant.clone(), counters.clone());
        let Some(client) = client else {
            let (reading, writing) = stream.into_split();
            return Ok(link::link((Box::new(reading), Box::new(writing)), socket, None, destination, grant, counters));
        };

        let late = |_| EgressError::TimedOut { destination: destination.clone(), step: "the TLS handshake" };
        let shaken = timeout_at(deadline, client.connect(stream)).await.map_err(late)?;
        let (stream, peer) = shaken.map_err(tls_failed)?;
        let (reading, writing) = tokio::io::split(stream);
        Ok(link::link((Box::new(reading), Box::new(writing)), socket, Some(peer), destination, grant, counters))
    }

    fn counters(&self, address: &HostPort, region: &str) -> Arc<DestinationCounters> {
        let mut all = self.0.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, counters) = all.entry(address.clone()).or_insert_with(|| (region.to_owned(), Arc::default()));
        counters.clone()
    }

    /// True if the allow-list permits this content for a destination.
    pub fn permits(&self, to: &EgressDestination, content: EgressContent) -> bool {
        let address = HostPort::new(&to.host, to.port).ok();
        let grant = address.and_then(|address| self.0.config.grant(&address).ok());
        grant.is_some_and(|grant| grant.permits(content))
    }

    /// Traffic and connections since the start, by destination.
    pub fn statistics(&self) -> Vec<DestinationStatistics> {
        let all = self.0.counters.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(to, (region, counters))| counters.read(to.to_string(), region.clone())).collect()
    }
}

/// Reads the files of `settings` on a blocking thread.
async fn read_settings(settings: TlsClientSettings, to: HostPort) -> Result<TlsClient, TlsError> {
    let read = tokio::task::spawn_blocking(move || TlsClient::read(&settings, &to));
    read.await.unwrap_or_else(|error| Err(TlsError::Failed { reason: error.to_string() }))
}

/// Connects to the first address that accepts the connection.
async fn connect(to: &HostPort, deadline: Instant) -> Result<TcpStream, EgressError> {
    let addresses = match to.addresses() {
        Some(addresses) => addresses.into_iter().map(|address| SocketAddr::new(address, to.port)).collect(),
        None => resolve(to, deadline).await?,
    };
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (tried, address) in addresses.iter().enumerate() {
        // One share more than addresses are left: the TLS handshake needs time as well.
        let shares = u32::try_from(addresses.len() - tried + 1).unwrap_or(u32::MAX);
        let share = deadline.saturating_duration_since(Instant::now()) / shares;
        last = match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Each message is written whole, so Nagle's algorithm would only delay it.
                return match stream.set_nodelay(true) {
                    Ok(()) => Ok(stream),
                    Err(error) => Err(connect_error(to, error)),
                };
            }
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
    }
    Err(connect_error(to, last))
}

async fn resolve(to: &HostPort, deadline: Instant) -> Result<Vec<SocketAddr>, EgressError> {
    let destination = to.to_string();
    match timeout_at(deadline, tokio::net::lookup_host((to.host.to_string(), to.port))).await {
        Ok(Ok(found)) => Ok(found.take(ADDRESSES_MAX).collect()),
        Ok(Err(error)) => Err(EgressError::NotFound { destination, error }),
        Err(_) => Err(EgressError::TimedOut { destination, step: "the DNS lookup" }),
    }
}

fn connect_error(to: &HostPort, error: io::Error) -> EgressError {
    let destination = to.to_string();
    match error.kind() {
        io::ErrorKind::ConnectionRefused => EgressError::Refused { destination },
        io::ErrorKind::PermissionDenied => EgressError::Forbidden { destination },
        io::ErrorKind::TimedOut => EgressError::TimedOut { destination, step: "connecting" },
        io::ErrorKind::NotFound => EgressError::NotFound { destination, error },
        _ => EgressError::Unreachable { destination, error },
    }
}

#[cfg(test)]
mod tests;
