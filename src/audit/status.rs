//! How the log does: what metrics, reports and commands say of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, broadcast, watch};

use super::key::SignedCheckpoint;

/// How many records a live copy may be behind before it loses some.
const LIVE: usize = 4096;

/// How the log does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuditStatus {
    /// The first line of the log's checkpoints.
    pub origin: String,
    /// What its checkpoints are checked with.
    pub verifier_key: String,
    /// What is on the disk; not known until the log is open.
    pub log: Option<LogFigures>,
    /// What it may take, in bytes.
    pub quota: u64,
    /// What is wrong with it; records are lost until it is put right.
    pub error: Option<String>,
    /// What was found wrong with the log before this one.
    pub alarm: Option<String>,
    /// Inference calls, and other events, that never became records, since the start.
    pub lost: (u64, u64),
    /// How the copy on the platform does, where there is one.
    pub sync: Option<SyncStatus>,
    pub copies: Vec<CopyStatus>,
}

/// What there is of the log on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogFigures {
    /// How many records are durable.
    pub size: u64,
    /// The first record that is still on this box.
    pub first: u64,
    /// What it takes on the disk, in bytes.
    pub bytes: u64,
}

/// How the copy of the log on the platform does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SyncStatus {
    pub url: String,
    /// How many records of this log are there.
    pub size: u64,
    /// When that was last so, in milliseconds since the Unix epoch.
    pub at_ms: Option<u64>,
    /// When the first record that is not there was written, in the same.
    pub waiting_since_ms: Option<u64>,
    /// Why it does not go on.
    pub error: Option<String>,
}

/// How a live copy does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CopyStatus {
    /// The name of its section below `[audit]`.
    pub name: &'static str,
    pub to: String,
    /// Records sent since the start.
    pub sent: u64,
    /// Records that were not sent since the start.
    pub lost: u64,
    /// Why it does not go on.
    pub error: Option<String>,
}

/// A record as live copies get it.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveRecord {
    /// The origin of its log.
    pub origin: Arc<str>,
    pub seq: u64,
    /// When it happened, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The hash of its leaf.
    pub leaf: tlog_tiles::Hash,
    /// Its action, such as `model_loaded`.
    pub action: &'static str,
    /// Whether somebody should look at it.
    pub is_warning: bool,
    /// The record itself: a line of JSON.
    pub line: Vec<u8>,
}

/// The head that the platform may have: of which log, and what was signed.
#[derive(Debug, Clone, PartialEq)]
pub struct PublishedHead {
    /// Which of the logs of this box.
    pub generation: u32,
    pub checkpoint: SignedCheckpoint,
    /// When the last record of it was written, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Whether something of it should not wait for the next turn.
    pub is_urgent: bool,
}

/// What the sync tells the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncNews {
    /// The platform has a log up to here.
    Has {
        /// Which of the logs of this box.
        generation: u32,
        size: u64,
    },
    /// The platform has another history of this log: it must not go on.
    Forked {
        /// Which of the logs of this box.
        generation: u32,
    },
}

/// What the parts of the audit log know of each other. Clones share it.
#[derive(Debug, Clone)]
pub struct AuditState {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    status: Mutex<AuditStatus>,
    head: watch::Sender<Option<PublishedHead>>,
    live: broadcast::Sender<Arc<LiveRecord>>,
    news: Mutex<Vec<SyncNews>>,
    turned: Notify,
}

impl Default for AuditState {
    fn default() -> Self {
        let (live, _) = broadcast::channel(LIVE);
        let shared = Shared {
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
    /// How the log does.
    pub fn status(&self) -> AuditStatus {
        self.lock().clone()
    }

    /// Changes what is told.
    pub fn update(&self, change: impl FnOnce(&mut AuditStatus)) {
        change(&mut self.lock());
    }

    /// Says what is wrong with the log now; gives what was before.
    pub fn set_error(&self, error: Option<String>) -> Option<String> {
        std::mem::replace(&mut self.lock().error, error)
    }

    /// The signed heads, as they come.
    pub fn heads(&self) -> watch::Receiver<Option<PublishedHead>> {
        self.shared.head.subscribe()
    }

    /// A head was signed.
    pub fn publish(&self, mut head: PublishedHead) {
        let synced = self.lock().sync.as_ref().map_or(0, |sync| sync.size);
        self.shared.head.send_modify(|last| {
            // What could not wait then and was not sent since cannot wait now.
            head.is_urgent |= last.as_ref().is_some_and(|last| last.is_urgent && last.checkpoint.size > synced);
            *last = Some(head);
        });
    }

    /// The records, as they become durable. Who is too slow is told how many were lost.
    pub fn live(&self) -> broadcast::Receiver<Arc<LiveRecord>> {
        self.shared.live.subscribe()
    }

    /// Whether somebody listens to the records.
    pub fn is_listened_to(&self) -> bool {
        self.shared.live.receiver_count() > 0
    }

    /// A record is durable.
    pub fn send_live(&self, record: Arc<LiveRecord>) {
        let _ = self.shared.live.send(record);
    }

    /// The writer has done what there was to do.
    pub fn turn(&self) {
        self.shared.turned.notify_waiters();
    }

    /// Waits until the writer has done what there was to do, which it does at least once a second. Where its disk stands
    /// still, and where its thread died, that is never.
    pub async fn turned(&self) {
        self.shared.turned.notified().await;
    }

    /// Tells the writer what became of the sync. It looks within a second.
    pub fn tell(&self, news: SyncNews) {
        self.shared.news.lock().unwrap_or_else(PoisonError::into_inner).push(news);
    }

    /// What was told since it was last asked.
    pub fn take_news(&self) -> Vec<SyncNews> {
        std::mem::take(&mut *self.shared.news.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn lock(&self) -> MutexGuard<'_, AuditStatus> {
        self.shared.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
