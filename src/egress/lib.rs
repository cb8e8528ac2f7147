//! Outbound connections: the only code that opens them. The daemon opens them through `Egress`, to destinations of
//! the allow-list, and sends only bytes of the closed list `Content`. The command line connects to its daemon through
//! `DaemonConnection`.
//!
//! Files, in reading order:
//! * `address.rs`, `web_address.rs` - `HOST:PORT`, and addresses of web servers, as the configuration has them
//! * `destination.rs` - the destinations that sections of the configuration name, and the checks of them
//! * `policy.rs` - `[egress]`: destinations, their regions, and the contents that each may get
//! * `link.rs` - the two halves of an open connection; bytes are written under the name of a `Content`
//! * `channel.rs` - a connection on which everything sent has one content, for an HTTP client
//! * `tls.rs`, `tls_files.rs` - TLS as a client, and its files as a section of the configuration
//! * `tunnel.rs` - HTTP CONNECT through a proxy
//! * `http.rs`, `http/` - an HTTP client for one server; `upload.rs` sends the audit log and nothing else
//! * `message_stream.rs` - a connection for messages without answers, as some live copies of the audit log need it
//! * `account.rs` - bytes sent to and received from each destination since the start
//! * `kept.rs` - the same since the installation, in one file
//! * `ip_filter.rs` - the allow-list as addresses, for systemd's filter
//! * `daemon_connection.rs` - connections from the command line to a daemon, by Unix socket, HTTPS or HTTP
//! * `raw.rs` - a blocking connection from the command line to a daemon, for measurements
//! * `tests.rs`, `tests/` - tests against servers on loopback
//!
//! Invariants:
//! * No other crate opens an outbound connection or looks up a name. `tests/it/tidy.rs` checks it.
//! * A destination outside this box must be in the allow-list. It is refused before its name is looked up.
//! * Bytes leave only through `LinkWriter::put`, under a `Content`. The allow-list permits contents for each
//!   destination, and all are counted.
//! * The HTTP client talks to one server, follows no redirect, keeps no cookie and sends nothing about this box.
//! * Certificates are read at each connection, so a renewed one needs no restart. No TLS session is resumed.
//! * No connection waits for the file of `kept.rs`.
#![forbid(unsafe_code)]

mod account;
mod address;
mod channel;
mod daemon_connection;
mod destination;
mod http;
pub mod ip_filter;
mod kept;
mod link;
mod message_stream;
mod policy;
mod raw;
mod tls;
mod tls_files;
mod tunnel;
mod web_address;

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

use account::Account;
pub use account::DestinationStatistics;
pub use address::{Host, HostPort, InvalidHostPort};
pub use channel::UNLISTED;
pub use daemon_connection::{Answer, DaemonAddress, DaemonConnection, DaemonError, Download};
pub use destination::{ConfiguredDestination, ConfiguredProxy, behind_proxies};
pub use http::{AuditClient, HttpAnswer, HttpClient, HttpDownload, HttpError, HttpSettings, REQUEST_HEADERS};
pub use kept::{CountsError, CountsKeeper, DestinationCounts, EgressCounts, fuzz_egress_counts};
pub use link::{LinkReader, LinkWriter, PutError};
pub use message_stream::MessageStream;
pub use policy::{Allowed, Content, EgressConfig, Grant};
pub use raw::RawConnection;
use tls::Client;
pub use tls::{CertificateTime, LARGEST_LIST, certificates, identity_error, private_key};
pub use tls::{TlsError, TlsSettings};
pub use tls_files::TlsFiles;
pub use tunnel::fuzz_proxy_answer;
pub use web_address::{InvalidWebAddress, WebAddress};

/// How long it may take until a connection stands: the name looked up, connected, and the TLS handshake done.
const LIMIT: Duration = Duration::from_secs(10);

/// How many addresses of a name are tried. Each gets its share of the time.
const MOST_ADDRESSES: usize = 8;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Mqtt,
    Updates,
    /// The copy of the audit log on the platform.
    Audit,
    /// A live copy of the audit log, by its name.
    LiveCopy(&'static str),
}

impl Purpose {
    /// Every purpose, where there are live copies of these names.
    pub fn all(live_copies: impl IntoIterator<Item = &'static str>) -> Vec<Self> {
        let live_copies = live_copies.into_iter().map(Self::LiveCopy);
        [Self::Mqtt, Self::Updates, Self::Audit].into_iter().chain(live_copies).collect()
    }

    /// What such a connection may carry, whatever its destination is allowed.
    pub fn contents(self) -> &'static [Content] {
        match self {
            Self::Mqtt => &[Content::Protocol, Content::Answer, Content::Presence, Content::Report, Content::Call],
            Self::Updates => &[Content::Protocol, Content::Request],
            Self::Audit | Self::LiveCopy(_) => &[Content::Protocol, Content::Audit],
        }
    }

    /// Whether it carries the audit log itself. Such a connection is recorded when it is the first, or after a failure.
    fn is_of_audit(self) -> bool {
        matches!(self, Self::Audit | Self::LiveCopy(_))
    }

    /// As the audit log has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mqtt => "mqtt",
            Self::Updates => "updates",
            Self::Audit => "audit",
            Self::LiveCopy(name) => name,
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// A name or an IP address.
    pub host: String,
    pub port: u16,
    /// TLS, or a connection that anybody on the way can read and change.
    pub tls: Option<TlsSettings>,
}

/// What forbids connections under systemd without a word.
const FILTER: &str = "IPAddressAllow= of the unit, which `ledge config systemd-drop-in` makes";

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    #[error("{reason}")]
    Denied { reason: String },
    #[error("{destination}: the name is not found, is it spelled right and does this machine's DNS know it? ({error})")]
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
        "{destination}: {step} got no answer in time: is the address right, is the machine on, does a firewall drop it, or the \
         service's own filter ({FILTER})?"
    )]
    TimedOut {
        /// `HOST:PORT`.
        destination: String,
        step: &'static str,
    },
    #[error(
        "{destination} may not be connected to from here: the service's own filter or a firewall forbids it ({FILTER})"
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

/// The way out of this box. Clones share one allow-list and one set of counters.
#[derive(Debug, Clone)]
pub struct Egress(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    config: EgressConfig,
    audit: AuditSink,
    limit: Duration,
    accounts: Mutex<BTreeMap<HostPort, (String, Arc<Account>)>>,
}

impl Egress {
    /// A way out to what `config` allows.
    pub fn new(config: &EgressConfig, audit: AuditSink) -> Self {
        Self::with_limit(config, audit, LIMIT)
    }

    fn with_limit(config: &EgressConfig, audit: AuditSink, limit: Duration) -> Self {
        // Those that were never connected to as well: their zeros say so.
        let account = |entry: &Allowed| (entry.host.clone(), (entry.region.to_string(), Arc::default()));
        let accounts = Mutex::new(config.allow.iter().map(account).collect());
        Self(Arc::new(Shared { config: config.clone(), audit, limit, accounts }))
    }

    /// Connects, if the allow-list has the destination: else neither DNS nor the network hear of it.
    pub async fn connect(&self, to: &Destination, purpose: Purpose) -> Result<(LinkReader, LinkWriter), EgressError> {
        let address = HostPort::new(&to.host, to.port).map_err(|error| error.to_string());
        let granted = address.and_then(|address| self.0.config.grant(&address).map(|grant| (address, grant)));
        let (address, grant) =
            granted.map_err(|reason| self.denied(format!("{}:{}", to.host, to.port), purpose, reason))?;
        let grant = grant.limited_to(purpose.contents());
        let account = self.account(&address, &grant.region);
        let connected = self.open(&address, to.tls.clone(), &grant, &account, purpose).await;
        if connected.is_err() {
            account.failures.fetch_add(1, Ordering::Relaxed);
        }
        connected
    }

    /// A refusal, audited.
    fn denied(&self, destination: String, purpose: Purpose, reason: String) -> EgressError {
        self.0.audit.record_own(AuditEvent::ConnectionRefused { destination, purpose: purpose.name().into() });
        EgressError::Denied { reason }
    }

    async fn open(
        &self,
        to: &HostPort,
        tls: Option<TlsSettings>,
        grant: &Grant,
        account: &Arc<Account>,
        purpose: Purpose,
    ) -> Result<(LinkReader, LinkWriter), EgressError> {
        let destination = to.to_string();
        let deadline = Instant::now() + self.0.limit;
        let tls_failed = |error| EgressError::Tls { destination: destination.clone(), error };
        // Before anything is connected: a file that cannot be read is no reason to disturb the other side.
        let client = match tls {
            Some(settings) => Some(read_settings(settings, to.clone()).await.map_err(tls_failed)?),
            None => None,
        };
        let stream = dial(to, deadline).await?;
        let socket = stream.as_fd().try_clone_to_owned().map_err(|error| unreachable(to, error))?;
        account.opened.fetch_add(1, Ordering::Relaxed);
        self.0.audit.record_connection(destination.clone(), grant.region.clone(), purpose.name());
        let (grant, account) = (grant.clone(), account.clone());
        let Some(client) = client else {
            let (reading, writing) = stream.into_split();
            return Ok(link::link((Box::new(reading), Box::new(writing)), socket, None, destination, grant, account));
        };
        let late = |_| EgressError::TimedOut { destination: destination.clone(), step: "the TLS handshake" };
        let shaken = timeout_at(deadline, client.connect(stream)).await.map_err(late)?;
        let (stream, peer) = shaken.map_err(tls_failed)?;
        let (reading, writing) = tokio::io::split(stream);
        Ok(link::link((Box::new(reading), Box::new(writing)), socket, Some(peer), destination, grant, account))
    }

    fn account(&self, address: &HostPort, region: &str) -> Arc<Account> {
        let mut accounts = self.0.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, account) = accounts.entry(address.clone()).or_insert_with(|| (region.to_owned(), Arc::default()));
        account.clone()
    }

    /// Whether a destination may get such content.
    pub fn permits(&self, to: &Destination, content: Content) -> bool {
        let address = HostPort::new(&to.host, to.port).ok();
        let grant = address.and_then(|address| self.0.config.grant(&address).ok());
        grant.is_some_and(|grant| grant.permits(content))
    }

    /// What went out and came in since the start, by destination.
    pub fn statistics(&self) -> Vec<DestinationStatistics> {
        let accounts = self.0.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.iter().map(|(to, (region, account))| account.read(to.to_string(), region.clone())).collect()
    }
}

/// Reads the files of `settings` where it disturbs nobody.
async fn read_settings(settings: TlsSettings, to: HostPort) -> Result<Client, TlsError> {
    let read = tokio::task::spawn_blocking(move || Client::read(&settings, &to));
    read.await.unwrap_or_else(|error| Err(TlsError::Failed { reason: error.to_string() }))
}

/// Connects to the first address that takes the connection.
async fn dial(to: &HostPort, deadline: Instant) -> Result<TcpStream, EgressError> {
    let addresses = match to.addresses() {
        Some(addresses) => addresses.into_iter().map(|address| SocketAddr::new(address, to.port)).collect(),
        None => look_up(to, deadline).await?,
    };
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (tried, address) in addresses.iter().enumerate() {
        // One share more than addresses are left: what comes after needs time as well.
        let shares = u32::try_from(addresses.len() - tried + 1).unwrap_or(u32::MAX);
        let share = deadline.saturating_duration_since(Instant::now()) / shares;
        last = match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Messages are written as a whole; waiting for more would only delay them.
                return match stream.set_nodelay(true) {
                    Ok(()) => Ok(stream),
                    Err(error) => Err(unreachable(to, error)),
                };
            }
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
    }
    Err(unreachable(to, last))
}

async fn look_up(to: &HostPort, deadline: Instant) -> Result<Vec<SocketAddr>, EgressError> {
    let destination = to.to_string();
    match timeout_at(deadline, tokio::net::lookup_host((to.host.to_string(), to.port))).await {
        Ok(Ok(found)) => Ok(found.take(MOST_ADDRESSES).collect()),
        Ok(Err(error)) => Err(EgressError::NotFound { destination, error }),
        Err(_) => Err(EgressError::TimedOut { destination, step: "looking up the name" }),
    }
}

fn unreachable(to: &HostPort, error: io::Error) -> EgressError {
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
