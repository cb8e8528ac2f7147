//! Live copies: each record is also sent elsewhere at once, for monitoring (a SIEM).
//!
//! A live copy may lose records, and counts those that it loses. The log itself and its copy on the platform are
//! complete. A live copy that is slow or cut off never delays the writer: it keeps the last records for a while, and
//! the sequence numbers that it sends have a gap where records were lost. The last records of a run may be among them.
//!
//! Each live copy is a module here, which implements [`LiveCopy`], and a line of the table `live_copies!` below.
//! Everything else that deals with live copies uses the table: see `docs/add-an-audit-exit.md`.

mod copy;
mod feed;
mod requests;
mod stream;
pub mod otlp;
pub mod syslog;

use ledge_base::names::DeviceName;
use ledge_egress::{ConfiguredDestination, Egress};
use ledge_service::shutdown::Shutdown;

use super::config::AuditConfig;
use super::status::AuditState;
pub use copy::{
    LiveCopy, LiveCopyAddress, LiveCopyDelivery, LiveCopyDisclosure, RecordBatchError, RecordBatchResponse,
    RecordBatchSender, RecordFramer,
};
use feed::LiveCopyQueue;
use requests::BatchedLiveCopy;
use stream::StreamedLiveCopy;

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

/// The destination of a live copy, with keys relative to `[audit]`. `None`: it is switched off.
pub(super) fn destination(copy: &dyn LiveCopy) -> Option<ConfiguredDestination> {
    let LiveCopyAddress { at, is_encrypted, .. } = copy.address()?;
    let key = format!("{}.{}", copy.name(), copy.address_key());
    Some(super::config::destination(key, at, is_encrypted, None, copy.encryption_advice()))
}

/// Starts the live copies that are switched on. They get the records from now on.
pub fn spawn(config: &AuditConfig, device: &DeviceName, egress: &Egress, state: &AuditState, shutdown: &Shutdown) {
    for copy in config.live_copies() {
        let (Some(address), Some(destination)) = (copy.address(), destination(copy)) else { continue };
        let feed = LiveCopyQueue::new(state, copy.name(), address.text.clone());
        match copy.delivery(&address, device, egress) {
            LiveCopyDelivery::Stream(framer) => {
                let tls = address.is_encrypted.then(|| copy.tls().settings());
                let stream =
                    StreamedLiveCopy { egress: egress.clone(), to: address.at, tls, purpose: copy.purpose(), framer };
                shutdown.spawn(stream.run(feed, shutdown.clone()));
            }
            LiveCopyDelivery::Requests(requester) => {
                let requests = BatchedLiveCopy::new(requester, copy.name(), &destination);
                shutdown.spawn(requests.run(feed, shutdown.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests;
