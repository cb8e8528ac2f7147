//! The interface of a live copy: its settings, and the way in which its records are sent.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use ledge_base::names::DeviceName;
use ledge_base::toml_check::ValueProblem;
use ledge_egress::{
    Egress, EgressError, EgressPurpose, HostPort, HttpClientSettings, HttpError, TlsClientFiles, WebAddress,
};

use crate::status::LiveCopyRecord;

/// A live copy, implemented by its section of the configuration.
pub trait LiveCopy {
    /// The name of the section below `[audit]`. It is the name of the copy in statuses, metrics, records of connections
    /// and the report of `ledge audit egress`, too.
    fn name(&self) -> &'static str;

    /// The key of the section that has the address. Empty, it switches the copy off.
    fn address_key(&self) -> &'static str;

    /// The server that it connects to; `None`: it is switched off.
    fn address(&self) -> Option<LiveCopyAddress>;

    /// The instruction that ends the message about an address that is not encrypted, such as "use https://".
    fn encryption_advice(&self) -> &'static str;

    fn tls(&self) -> &TlsClientFiles;

    /// The purpose of its connections.
    fn purpose(&self) -> EgressPurpose {
        EgressPurpose::LiveCopy(self.name())
    }

    /// Makes every path relative to `root`.
    fn resolve(&mut self, root: &Path);

    /// Mistakes other than those of the address and of TLS, with keys within the section.
    fn problems(&self) -> Vec<ValueProblem> {
        Vec::new()
    }

    fn disclosure(&self) -> LiveCopyDisclosure;

    /// The settings of an HTTP client for `address`.
    fn http_settings(&self, address: &LiveCopyAddress) -> HttpClientSettings {
        let tls = address.is_encrypted.then(|| self.tls().settings());
        HttpClientSettings { at: address.at.clone(), tls, proxy: None }
    }

    /// The form in which records are sent to `address` for the box named `device`. Nothing is connected yet.
    fn delivery(&self, address: &LiveCopyAddress, device: &DeviceName, egress: &Egress) -> LiveCopyDelivery;
}

/// The server of a live copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveCopyAddress {
    /// The address as statuses and messages have it.
    pub text: String,
    pub at: HostPort,
    pub is_encrypted: bool,
}

impl LiveCopyAddress {
    /// The address of something on a web server.
    pub fn of_web(address: &WebAddress) -> Self {
        Self { text: address.to_string(), at: address.at.clone(), is_encrypted: address.tls }
    }
}

/// The part of a live copy in the report of `ledge audit egress`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveCopyDisclosure {
    /// The protocol, as in "by syslog".
    pub protocol: &'static str,
    /// Data of this box that each message has besides the record, the name of the box and the version of Ledge.
    pub beside_records: Option<&'static str>,
    /// Headers that its HTTP requests have and those of other copies have not, each with its content.
    pub request_headers: &'static [(&'static str, &'static str)],
}

/// The form in which a live copy sends records.
pub enum LiveCopyDelivery {
    /// Messages on one connection that stays open. They are not acknowledged: a record counts as sent once the system
    /// has taken it.
    Stream(Box<dyn RecordFramer>),
    /// Batches of records, each acknowledged by an answer.
    Requests(Box<dyn RecordBatchSender>),
}

/// Makes messages for a connection that stays open.
pub trait RecordFramer: Send + Sync {
    /// The bytes of a record on the connection, with the separator from the next one.
    fn frame(&self, record: &LiveCopyRecord) -> Vec<u8>;
}

/// Sends batches of records.
pub trait RecordBatchSender: Send + Sync {
    /// Sends records, the oldest first, and waits for the answer. May be dropped before there is one: the server may
    /// get the same records again.
    fn send<'a>(
        &'a self,
        records: &'a [Arc<LiveCopyRecord>],
    ) -> BoxFuture<'a, Result<RecordBatchResponse, RecordBatchError>>;
}

/// The answer of a server that takes records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordBatchResponse {
    /// The number of records that it refused, which counts them as lost.
    pub refused: u64,
}

/// Reasons why a batch was not sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordBatchError {
    /// Another attempt may succeed, after this time if the server names one.
    Temporary { reason: String, retry_after: Option<Duration> },
    /// The configuration does not allow it. Another attempt follows after the longest pause.
    Denied { reason: String },
    /// The server refuses these records, or the settings are wrong. These records are lost.
    Refused { reason: String },
}

impl From<HttpError> for RecordBatchError {
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
