//! Journal, index and snapshots together: who owns what.
//!
//! * The **writer** thread owns the journal, and alone writes into the index that answers reads.
//! * The **upkeep** thread opens and rebuilds indexes, takes snapshots, sweeps what expired, and looks for damage.
//! * **Readers** read the index that [`State::Ready`] has. One that finds damage takes it away from all others at once.

pub mod acknowledged;
pub mod applier;
pub mod backup;
pub mod erased;
pub mod erasure;
pub mod files;
pub mod orders;
pub mod recovery;
pub mod restore;
pub mod room;
pub mod snapshots;
mod spool;
pub mod upkeep;
pub mod writer;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::mpsc;

use arc_swap::ArcSwap;
use ledge_base::clock::{self, Settling};
use ledge_service::audit_event::{AuditEvent, AuditSink};
use tokio::sync::Semaphore;

use super::config::FeaturesConfig;
use super::incoming::Times;
use super::key::HashKey;
use super::protection::Protection;
use super::registry::Registry;
use super::statistics::Counters;
use super::store::{Index, IndexError};
use acknowledged::Acknowledged;
use erased::ErasedEntities;
use files::Files;
use orders::{Command, Job};

/// By how much clocks step back when they are corrected, in microseconds: what was taken just before is believed still.
const STEP_US: i64 = 60_000_000;

/// How many commands may wait for the writer. Each push is one; the callers behind more are told to come again.
pub const QUEUE: usize = 4096;

/// What the store can do just now.
#[derive(Debug)]
pub enum State {
    /// The index is being opened, and checked.
    Opening,
    Ready(Arc<Index>),
    /// The index is being rebuilt; pushes are taken.
    Rebuilding {
        reason: String,
    },
    /// Everything is being replaced by a backup; neither reads nor pushes are taken.
    Restoring,
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
    pub acknowledged: Acknowledged,
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
    /// The event time that the last row without one got, or that of the newest row there was at the start.
    pub stamped_us: AtomicI64,
    /// The newest event time that the index has; `i64::MAX` until that is known.
    pub newest_us: AtomicI64,
    /// Whether the clock may be behind, as after a boot.
    pub settling: Settling,
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

    /// The clock's part in a push that comes now.
    pub fn times(&self) -> Times {
        let now_us = clock::unix_micros();
        let (stamp_us, latest_us) = (self.stamp(now_us), self.taken_until(now_us));
        Times { stamp_us, latest_us, is_ahead: latest_us == i64::MAX && stamp_us > now_us }
    }

    /// The latest event time that is taken. It is `i64::MAX`, and the clock judges no time, where it was never set, and where
    /// it may be behind: there are later rows, and it had no time yet to be set.
    pub fn taken_until(&self, now_us: i64) -> i64 {
        let taken_until = self.config.taken_until(now_us);
        let has_later = self.newest_us.load(Relaxed) > taken_until.saturating_add(STEP_US);
        if has_later && !self.settling.is_over() { i64::MAX } else { taken_until }
    }

    /// The latest event time that is believed of what was taken before. What is later was taken by a clock that was ahead, or
    /// not set, and is right now.
    pub fn believed_until(&self, now_us: i64) -> i64 {
        self.taken_until(now_us).saturating_add(STEP_US)
    }

    /// When a row without an event time happened: now, and after every such row before that is believed. So a clock that
    /// steps back by seconds, that is behind or that was never set makes no row older than the one before it.
    pub fn stamp(&self, now_us: i64) -> i64 {
        let believed_until = self.believed_until(now_us);
        let next = |last: i64| {
            let is_later = (now_us..=believed_until).contains(&last);
            if is_later { last.saturating_add(1) } else { now_us }
        };
        let before = self.stamped_us.fetch_update(Relaxed, Relaxed, |last| Some(next(last)));
        before.map_or(now_us, next)
    }

    /// Takes note of the newest event time of an index. From that of the first one on, rows without an event time go on,
    /// where it is believed: some of what was given out before the start may be later than the clock is now.
    pub fn note_newest(&self, newest_us: i64) {
        let is_first = self.newest_us.swap(newest_us, Relaxed) == i64::MAX;
        if is_first && newest_us <= self.believed_until(clock::unix_micros()) {
            self.stamped_us.fetch_max(newest_us, Relaxed);
        }
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
        self.counters.journal_next_seq.load(Relaxed)
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
            // Without room sled fails in many ways, and nothing is damaged.
            let damaged = matches!(error, IndexError::Damaged { .. }) && self.files.has_room();
            if damaged {
                self.alarm(what, &error.to_string());
            } else {
                tracing::error!(%error, "{what}");
            }
            // The upkeep thread is gone at the end only.
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
