//! Journal, index and snapshots together: who owns what.
//!
//! * The **writer** thread owns the journal, and alone writes into the index that answers reads.
//! * The **upkeep** thread opens and rebuilds indexes, takes snapshots, sweeps what expired, and looks for damage.
//! * **Readers** read the index that [`State::Ready`] has. One that finds damage takes it away from all others at once.

pub mod applier;
pub mod backup;
pub mod erased;
pub mod erasure;
pub mod files;
pub mod orders;
pub mod recovery;
pub mod restore;
pub mod snapshots;
pub mod upkeep;
pub mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc;

use arc_swap::ArcSwap;
use tokio::sync::Semaphore;

use super::config::FeaturesConfig;
use super::key::HashKey;
use super::protection::Protection;
use super::registry::Registry;
use super::statistics::Counters;
use super::store::{Index, IndexError};
use crate::audit_event::{AuditEvent, AuditSink};
use erased::ErasedEntities;
use files::Files;
use orders::{Command, Job};

/// How many commands may wait for the writer. Each push is one; the callers behind more are told to come again.
pub const QUEUE: usize = 4096;

/// What the store can do just now.
#[derive(Debug)]
pub enum State {
    /// The index is being opened, and checked.
    Opening,
    /// Reads are answered.
    Ready(Arc<Index>),
    /// The index is being rebuilt; pushes are taken.
    Rebuilding {
        /// Why.
        reason: String,
    },
    /// Everything is being replaced by a backup; neither reads nor pushes are taken.
    Restoring,
    /// The end.
    Closed,
}

impl State {
    /// In a word.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Ready(_) => "ready",
            Self::Rebuilding { .. } => "rebuilding",
            Self::Restoring => "restoring",
            Self::Closed => "closed",
        }
    }

    /// Why there are no reads.
    pub fn reason(&self) -> String {
        match self {
            Self::Ready(_) => "it is ready".into(),
            Self::Opening => "it is being opened and checked".into(),
            Self::Rebuilding { reason } => format!("it is being rebuilt, because {reason}"),
            Self::Restoring => "a backup is being restored".into(),
            Self::Closed => "it is closed".into(),
        }
    }
}

/// What threads and handles share.
#[derive(Debug)]
pub struct Engine {
    pub config: FeaturesConfig,
    pub files: Files,
    pub registry: ArcSwap<Registry>,
    pub hash_key: HashKey,
    pub protection: Arc<Protection>,
    pub erased: ErasedEntities,
    pub state: ArcSwap<State>,
    /// The highest number that an index had.
    pub generation: AtomicU64,
    /// Whether an index is copied, which makes readers wait now and then.
    pub compacting: AtomicBool,
    /// Whether the writer has asked for a snapshot.
    pub snapshot_asked: AtomicBool,
    /// Whether the first opening is over, however it ended.
    pub opened: tokio::sync::watch::Sender<bool>,
    pub counters: Counters,
    pub audit: AuditSink,
    pub commands: tokio::sync::mpsc::Sender<Command>,
    pub jobs: mpsc::Sender<Job>,
    /// Each backup that is being read holds one.
    pub backups: Arc<Semaphore>,
    /// The backup that is being restored holds it.
    pub restores: Arc<Semaphore>,
}

impl Engine {
    /// How long a row is kept after its ttl has passed, in microseconds.
    pub fn keep_us(&self) -> i64 {
        i64::try_from(self.config.keep_expired_h).unwrap_or(i64::MAX).saturating_mul(3_600_000_000)
    }

    /// The index that answers reads, if there is one just now.
    pub fn live(&self) -> Option<Arc<Index>> {
        match &**self.state.load() {
            State::Ready(index) => Some(index.clone()),
            _ => None,
        }
    }

    /// The journal's next entry: what comes before it is durable.
    pub fn journal_end(&self) -> u64 {
        self.counters.journal_next_seq.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Takes a damaged index away from everybody, and has it rebuilt. Only the first to find it does.
    pub fn give_up(&self, index: &Arc<Index>, error: &IndexError) {
        let current = self.state.load();
        let State::Ready(live) = &**current else { return };
        if !Arc::ptr_eq(live, index) {
            return;
        }
        let rebuilding = Arc::new(State::Rebuilding { reason: error.to_string() });
        let before = self.state.compare_and_swap(&*current, rebuilding);
        if Arc::ptr_eq(&before, &current) {
            let what = "the feature index cannot be used; it is rebuilt from snapshot and journal";
            match error {
                // Nothing is damaged.
                IndexError::Io { reason } => tracing::error!(reason, "{what}"),
                error @ IndexError::Damaged { .. } => self.alarm(what, &error.to_string()),
            }
            // The upkeep thread is gone at the end only.
            let damaged = matches!(error, IndexError::Damaged { .. });
            let _ = self.jobs.send(Job::Rebuild { index: index.clone(), damaged });
        }
    }

    /// Tells of damage, in the log and for the audit.
    pub fn alarm(&self, what: &str, reason: &str) {
        tracing::error!(folder = %self.files.folder().display(), reason, "{what}");
        Counters::count(&self.counters.damage_found);
        self.audit.record_own(AuditEvent::FeatureStoreDamaged);
    }
}
