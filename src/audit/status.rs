//! The state of the audit log, for metrics, reports and commands, and between its parts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, broadcast, watch};

use super::key::SignedCheckpoint;

/// Number of records that a live copy may fall behind before it loses some.
const LIVE_RECORDS_MAX: usize = 4096;

/// The state of the log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuditStatus {
    /// The first line of the log's checkpoints.
    pub origin: String,
    /// The verifier key of its checkpoints.
    pub verifier_key: String,
    /// The log on the disk; unknown until the log is open.
    pub log: Option<LocalLogFigures>,
    /// The largest size of the log, in bytes.
    pub quota: u64,
    /// The reason why it cannot be written. Records are lost until that is repaired.
    pub error: Option<String>,
    /// The reason why a log before this one was not continued, while that log is on this box.
    pub alarm: Option<String>,
    /// Inference calls, and other events, that never became records, since the start.
    pub lost: (u64, u64),
    /// The state of the copy on the platform, if there is one.
    pub sync: Option<AuditSyncStatus>,
    pub copies: Vec<LiveCopyStatus>,
}

/// The log on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LocalLogFigures {
    /// The number of durable records.
    pub size: u64,
    /// The first record that is still on this box.
    pub first: u64,
    /// The size on the disk, in bytes.
    pub bytes: u64,
}

/// The state of the copy on the platform.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuditSyncStatus {
    pub url: String,
    /// The number of records of this log on the platform.
    pub size: u64,
    /// The time of the last contact, in milliseconds since the Unix epoch.
    pub at_ms: Option<u64>,
    /// The time of the first record that is not there, in the same unit.
    pub waiting_since_ms: Option<u64>,
    /// The reason why it is not sent.
    pub error: Option<String>,
}

/// The state of a live copy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LiveCopyStatus {
    /// The name of its section below `[audit]`.
    pub name: &'static str,
    pub to: String,
    /// Records sent since the start.
    pub sent: u64,
    /// Records that were not sent since the start.
    pub lost: u64,
    /// The reason why it is not sent.
    pub error: Option<String>,
}

/// A record as live copies get it.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveCopyRecord {
    /// The origin of its log.
    pub origin: Arc<str>,
    pub seq: u64,
    /// When it happened, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The hash of its leaf.
    pub leaf: tlog_tiles::Hash,
    /// Its action, such as `model_loaded`.
    pub action: &'static str,
    /// True if it needs attention.
    pub is_warning: bool,
    /// The record itself: a line of JSON.
    pub line: Vec<u8>,
}

/// A signed head that may be sent to the platform.
#[derive(Debug, Clone, PartialEq)]
pub struct PublishedCheckpoint {
    /// The number of the log.
    pub generation: u32,
    pub checkpoint: SignedCheckpoint,
    /// When the last record of it was written, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// True if it has records that should be sent at once.
    pub is_urgent: bool,
}

/// News of the sync for the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditSyncEvent {
    /// The platform has a log up to here.
    Has {
        /// The number of the log.
        generation: u32,
        size: u64,
    },
    /// The platform has another history of this log, which must not be continued.
    Forked {
        /// The number of the log.
        generation: u32,
    },
}

/// The state that the parts of the audit log share. Clones are handles to the same state.
#[derive(Debug, Clone)]
pub struct AuditState {
    shared: Arc<AuditStateInner>,
}

#[derive(Debug)]
struct AuditStateInner {
    status: Mutex<AuditStatus>,
    head: watch::Sender<Option<PublishedCheckpoint>>,
    live: broadcast::Sender<Arc<LiveCopyRecord>>,
    news: Mutex<Vec<AuditSyncEvent>>,
    turned: Notify,
}

impl Default for AuditState {
    fn default() -> Self {
        let (live, _) = broadcast::channel(LIVE_RECORDS_MAX);
        let shared = AuditStateInner {
            status: Mutex::default(),
            head: watch::channel(None).0,
            live,
            news: Mutex::default(),
            turned: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }
}

impl AuditState {
    /// The state of the log.
    pub fn status(&self) -> AuditStatus {
        self.lock().clone()
    }

    /// Changes the state of the log.
    pub fn update(&self, change: impl FnOnce(&mut AuditStatus)) {
        change(&mut self.lock());
    }

    /// Sets the reason why the log cannot be written; returns the one before.
    pub fn set_error(&self, error: Option<String>) -> Option<String> {
        std::mem::replace(&mut self.lock().error, error)
    }

    /// Signed heads, as they are published.
    pub fn heads(&self) -> watch::Receiver<Option<PublishedCheckpoint>> {
        self.shared.head.subscribe()
    }

    /// Publishes a signed head.
    pub fn publish(&self, mut head: PublishedCheckpoint) {
        let synced = self.lock().sync.as_ref().map_or(0, |sync| sync.size);
        self.shared.head.send_modify(|last| {
            // Urgent records of the last head are still urgent if they were not sent since.
            head.is_urgent |= last.as_ref().is_some_and(|last| last.is_urgent && last.checkpoint.size > synced);
            *last = Some(head);
        });
    }

    /// Records, as they become durable. A receiver that is too slow gets the number of those it lost.
    pub fn live(&self) -> broadcast::Receiver<Arc<LiveCopyRecord>> {
        self.shared.live.subscribe()
    }

    /// Returns true if there is a receiver of records.
    pub fn is_listened_to(&self) -> bool {
        self.shared.live.receiver_count() > 0
    }

    /// Sends a durable record to the live copies.
    pub fn send_live(&self, record: Arc<LiveCopyRecord>) {
        let _ = self.shared.live.send(record);
    }

    /// Reports that the writer has finished a turn.
    pub fn turn(&self) {
        self.shared.turned.notify_waiters();
    }

    /// Waits until the writer has finished a turn, which it does at least once a second, but never while its disk hangs
    /// or after its thread died.
    pub async fn heartbeat(&self) {
        self.shared.turned.notified().await;
    }

    /// Sends news of the sync to the writer, which takes them within a second.
    pub fn tell(&self, news: AuditSyncEvent) {
        self.shared.news.lock().unwrap_or_else(PoisonError::into_inner).push(news);
    }

    /// Takes the news since the last call.
    pub fn take_news(&self) -> Vec<AuditSyncEvent> {
        std::mem::take(&mut *self.shared.news.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn lock(&self) -> MutexGuard<'_, AuditStatus> {
        self.shared.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
