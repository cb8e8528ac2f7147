//! Traffic counters of each destination. They survive reconnects.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::policy::EgressContent;

/// The counters of one destination.
#[derive(Debug, Default)]
pub struct DestinationCounters {
    pub(super) opened: AtomicU64,
    pub(super) failures: AtomicU64,
    /// True after a successful connection of a copy of the audit log, until an attempt fails.
    pub(super) is_up: AtomicBool,
    /// In the order of [`EgressContent::ALL`], which is the order of the variants.
    sent: [AtomicU64; EgressContent::ALL.len()],
    received: AtomicU64,
}

/// Traffic and connections of one destination since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestinationStatistics {
    /// `HOST:PORT`.
    pub destination: String,
    pub region: String,
    pub connections: u64,
    /// Attempts to connect that failed, at any step.
    pub failures: u64,
    /// Bytes handed to the system, before encryption.
    pub sent: [(EgressContent, u64); EgressContent::ALL.len()],
    /// Bytes received, after decryption.
    pub received: u64,
}

impl DestinationCounters {
    pub(super) fn count_sent(&self, content: EgressContent, bytes: usize) {
        if let Some(counter) = self.sent.get(content as usize) {
            counter.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    pub(super) fn count_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn read(&self, destination: String, region: String) -> DestinationStatistics {
        let sent = |content: EgressContent| self.sent.get(content as usize).map_or(0, |it| it.load(Ordering::Relaxed));
        DestinationStatistics {
            destination,
            region,
            connections: self.opened.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            sent: EgressContent::ALL.map(|content| (content, sent(content))),
            received: self.received.load(Ordering::Relaxed),
        }
    }
}
