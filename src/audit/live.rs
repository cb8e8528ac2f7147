//! Live copies: each record is also sent elsewhere at once, for monitoring (a SIEM).
//!
//! A live copy may lose records, and counts those that it loses. The log itself and its copy on the platform are
//! complete. A live copy that is slow or cut off never delays the writer: it keeps the last records for a while, and
//! the sequence numbers that it sends have a gap where records were lost. The last records of a run may be among them.
//!
//! Each live copy is a module here, which implements [`LiveCopy`], and a line of the table `live_copies!` below.
//! Everything else that deals with live copies uses the table: see `docs/add-an-audit-exit.md`.

mod feed;
mod requests;
mod stream;
pub mod otlp;
pub mod syslog;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use ledge_base::names::DeviceName;
use ledge_base::toml_check::Problem;
use ledge_egress::{
    ConfiguredDestination, Egress, EgressError, HostPort, HttpError, HttpSettings, Purpose, TlsFiles, WebAddress,
};
use ledge_service::shutdown::Shutdown;

use super::config::AuditConfig;
use super::status::{AuditState, LiveRecord};
use feed::Feed;
use requests::Requests;
use stream::Stream;

/// Makes the table of live copies of the sections of [`AuditConfig`] that are named. It names the other fields itself:
/// without a line in the table, a new field of the configuration does not compile.
macro_rules! live_copies {
    ($($section:ident,)+) => {
        impl AuditConfig {
            /// Every live copy, whether it is switched on or not.
            pub fn live_copies(&self) -> Vec<&dyn LiveCopy> {
                let Self {
                    // An error here: a field of `AuditConfig` has no line in the table below. Do not add `..`.
                    path: _,
                    inference: _,
                    calls: _,
                    feature_entities: _,
                    quota_mb: _,
                    min_free_mb: _,
                    tag_period_days: _,
                    keep_tag_keys_days: _,
                    sync: _,
                    $($section,)+
                } = self;
                vec![$($section as &dyn LiveCopy,)+]
            }

            pub(super) fn live_copies_mut(&mut self) -> Vec<&mut dyn LiveCopy> {
                vec![$(&mut self.$section as &mut dyn LiveCopy,)+]
            }
        }
    };
}

live_copies! {
    syslog,
    otlp,
}

/// A live copy, implemented by its section of the configuration.
pub trait LiveCopy {
    /// The name of the section below `[audit]`. It is the name of the copy in statuses, metrics, records of connections
    /// and the report of `ledge audit egress`, too.
    fn name(&self) -> &'static str;

    /// The key of the section that has the address. Empty, it switches the copy off.
    fn address_key(&self) -> &'static str;

    /// The server that it connects to; `None`: it is switched off.
    fn address(&self) -> Option<Address>;

    /// The instruction that ends the message about an address that is not encrypted, such as "use https://".
    fn encryption_advice(&self) -> &'static str;

    fn tls(&self) -> &TlsFiles;

    /// The purpose of its connections.
    fn purpose(&self) -> Purpose {
        Purpose::LiveCopy(self.name())
    }

    /// Makes every path relative to `root`.
    fn resolve(&mut self, root: &Path);

    /// Mistakes other than those of the address and of TLS, with keys within the section.
    fn problems(&self) -> Vec<Problem> {
        Vec::new()
    }

    fn disclosure(&self) -> Disclosure;

    /// The settings of an HTTP client for `address`.
    fn http_settings(&self, address: &Address) -> HttpSettings {
        let tls = address.is_encrypted.then(|| self.tls().settings());
        HttpSettings { at: address.at.clone(), tls, proxy: None }
    }

    /// The form in which records are sent to `address` for the box named `device`. Nothing is connected yet.
    fn delivery(&self, address: &Address, device: &DeviceName, egress: &Egress) -> Delivery;
}

/// The server of a live copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The address as statuses and messages have it.
    pub text: String,
    pub at: HostPort,
    pub is_encrypted: bool,
}

impl Address {
    /// The address of something on a web server.
    pub fn of_web(address: &WebAddress) -> Self {
        Self { text: address.to_string(), at: address.at.clone(), is_encrypted: address.tls }
    }
}

/// The part of a live copy in the report of `ledge audit egress`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disclosure {
    /// The protocol, as in "by syslog".
    pub protocol: &'static str,
    /// Data of this box that each message has besides the record, the name of the box and the version of Ledge.
    pub beside_records: Option<&'static str>,
    /// Headers that its HTTP requests have and those of other copies have not, each with its content.
    pub request_headers: &'static [(&'static str, &'static str)],
}

/// The form in which a live copy sends records.
pub enum Delivery {
    /// Messages on one connection that stays open. Nobody acknowledges them: a record is sent when the system takes it.
    Stream(Box<dyn Framer>),
    /// Batches of records, each acknowledged by an answer.
    Requests(Box<dyn Requester>),
}

/// Makes messages for a connection that stays open.
pub trait Framer: Send + Sync {
    /// The bytes of a record on the connection, with what separates them from the next ones.
    fn frame(&self, record: &LiveRecord) -> Vec<u8>;
}

/// Sends batches of records.
pub trait Requester: Send + Sync {
    /// Sends records, the oldest first, and waits for the answer. May be dropped before there is one: the server may
    /// get the same records again.
    fn send<'a>(&'a self, records: &'a [Arc<LiveRecord>]) -> BoxFuture<'a, Result<Acknowledged, SendError>>;
}

/// The answer of a server that takes records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledged {
    /// The number of records that it refused, which counts them as lost.
    pub refused: u64,
}

/// Reasons why a batch was not sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendError {
    /// Another attempt may succeed, after this time if the server names one.
    Temporary { reason: String, retry_after: Option<Duration> },
    /// The configuration does not allow it. Another attempt follows after the longest pause.
    Denied { reason: String },
    /// The server refuses these records, or the settings are wrong. These records are lost.
    Refused { reason: String },
}

impl From<HttpError> for SendError {
    fn from(error: HttpError) -> Self {
        match error {
            HttpError::Connect(EgressError::Denied { reason }) => Self::Denied { reason },
            error @ (HttpError::Connect(_) | HttpError::Exchange { .. } | HttpError::Stalled { .. }) => {
                Self::Temporary { reason: error.to_string(), retry_after: None }
            }
            error @ (HttpError::Redirect { .. } | HttpError::Answer { .. }) => {
                Self::Refused { reason: error.to_string() }
            }
        }
    }
}

/// The destination of a live copy, with keys relative to `[audit]`. `None`: it is switched off.
pub(super) fn destination(copy: &dyn LiveCopy) -> Option<ConfiguredDestination> {
    let Address { at, is_encrypted, .. } = copy.address()?;
    let key = format!("{}.{}", copy.name(), copy.address_key());
    Some(super::config::destination(key, at, is_encrypted, None, copy.encryption_advice()))
}

/// Starts the live copies that are switched on. They get the records from now on.
pub fn spawn(config: &AuditConfig, device: &DeviceName, egress: &Egress, state: &AuditState, shutdown: &Shutdown) {
    for copy in config.live_copies() {
        let (Some(address), Some(destination)) = (copy.address(), destination(copy)) else { continue };
        let feed = Feed::new(state, copy.name(), address.text.clone());
        match copy.delivery(&address, device, egress) {
            Delivery::Stream(framer) => {
                let tls = address.is_encrypted.then(|| copy.tls().settings());
                let stream = Stream { egress: egress.clone(), to: address.at, tls, purpose: copy.purpose(), framer };
                shutdown.spawn(stream.run(feed, shutdown.clone()));
            }
            Delivery::Requests(requester) => {
                let requests = Requests::new(requester, copy.name(), &destination);
                shutdown.spawn(requests.run(feed, shutdown.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests;
