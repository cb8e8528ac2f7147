//! The engine: journal, index and snapshots together, and their owners.
//!
//! * The **writer** thread owns the journal, and only it writes into the index that answers reads.
//! * The **maintenance** thread opens and rebuilds indexes, takes snapshots without expired rows, and searches for
//!   damage.
//! * **Readers** read the index that [`StoreState::Ready`] has. A reader that finds damage makes it unavailable to all
//!   others at once.

pub mod commit_watermark;
pub mod applier;
pub mod backup;
pub mod commands;
pub mod disclosure;
pub mod disk_space;
pub mod erasure;
pub mod files;
pub mod manifest;
pub mod recovery;
pub mod restore;
pub mod snapshots;
mod spool;
pub mod tombstones;
pub mod maintenance;
pub mod writer;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::mpsc;

use arc_swap::ArcSwap;
use ledge_base::clock::{self, ClockSettling};
use ledge_service::audit_event::{AuditEvent, AuditSink};
use tokio::sync::Semaphore;

use super::config::FeaturesConfig;
use super::incoming::EventTimeLimits;
use super::index::{EntityIndex, IndexError};
use super::key::HashKey;
use super::profiles::EntityProfiles;
use super::protection::RowCipher;
use super::record::DamagedBytes;
use super::registry::Registry;
use super::statistics::StoreCounters;
use commands::{MaintenanceJob, StoreWriterCommand};
use commit_watermark::CommitWatermark;
use files::FeatureStoreFiles;
use tombstones::Tombstones;

/// Allowance for a small correction of the clock, in microseconds: event times accepted just before it are still
/// trusted.
const CLOCK_STEP_MAX_US: i64 = 60_000_000;

/// The capacity of the writer's queue. Each push is one command; a push that finds the queue full is refused as
/// overloaded.
pub const WRITER_QUEUE_LENGTH: usize = 4096;

/// The state of the store.
#[derive(Debug)]
pub enum StoreState {
    Opening,
    /// The index is compared with the journal; pushes are accepted.
    Comparing,
    Ready(Arc<EntityIndex>),
    /// The index is being rebuilt; pushes are accepted.
    Rebuilding {
        reason: String,
    },
    /// A backup is replacing everything; neither reads nor pushes are accepted.
    Restoring,
    Closed,
}

impl StoreState {
    /// The name of the state in statistics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Opening | Self::Comparing => "opening",
            Self::Ready(_) => "ready",
            Self::Rebuilding { .. } => "rebuilding",
            Self::Restoring => "restoring",
            Self::Closed => "closed",
        }
    }

    /// The reason why reads are refused.
    pub fn reason(&self) -> String {
        match self {
            Self::Ready(_) => "it is ready".into(),
            Self::Opening => "it is being opened".into(),
            Self::Comparing => "it is being compared with the journal".into(),
            Self::Rebuilding { reason } => format!("it is being rebuilt, because {reason}"),
            Self::Restoring => "a backup is being restored".into(),
            Self::Closed => "it is closed".into(),
        }
    }
}

/// The parts of an open store that its threads and handles share.
#[derive(Debug)]
pub struct StoreEngine {
    pub config: FeaturesConfig,
    pub files: FeatureStoreFiles,
    pub registry: ArcSwap<Registry>,
    pub hash_key: HashKey,
    pub protection: Arc<RowCipher>,
    pub tombstones: Tombstones,
    pub profiles: EntityProfiles,
    pub acknowledged: CommitWatermark,
    pub state: ArcSwap<StoreState>,
    /// The highest generation number that an index ever had.
    pub generation: AtomicU64,
    /// True while a layer is made, or brought to the disk, which makes readers wait now and then.
    pub is_syncing: AtomicBool,
    /// True when a record that cannot be decrypted was reported.
    pub has_undecryptable: AtomicBool,
    /// True when the writer has requested a snapshot.
    pub snapshot_asked: AtomicBool,
    /// True when the journal lacks entries that the snapshots in use do not have: the next snapshot takes their place.
    pub has_gap: AtomicBool,
    /// True when the first opening has ended, with or without success.
    pub opened: tokio::sync::watch::Sender<bool>,
    pub counters: StoreCounters,
    /// The event time given to the last row without one, or that of the newest row at the start.
    pub stamped_us: AtomicI64,
    /// The newest event time that the index has; `i64::MAX` until that is known.
    pub newest_us: AtomicI64,
    /// Reports if the clock may still be behind, as after a boot.
    pub settling: ClockSettling,
    pub audit: AuditSink,
    pub commands: tokio::sync::mpsc::Sender<StoreWriterCommand>,
    pub jobs: mpsc::Sender<MaintenanceJob>,
    /// Each running backup holds a permit.
    pub backups: Arc<Semaphore>,
    /// A running restore holds the only permit.
    pub restores: Arc<Semaphore>,
}

impl StoreEngine {
    /// The time for which a row is kept after its ttl has passed, in microseconds.
    pub fn keep_us(&self) -> i64 {
        i64::try_from(self.config.keep_expired_h).unwrap_or(i64::MAX).saturating_mul(3_600_000_000)
    }

    /// The event time limits of a push that arrives now.
    pub fn times(&self) -> EventTimeLimits {
        let now_us = clock::unix_micros();
        let (stamp_us, latest_us) = (self.stamp(now_us), self.accepted_until(now_us));
        EventTimeLimits { stamp_us, latest_us, is_ahead: latest_us == i64::MAX && stamp_us > now_us }
    }

    /// The latest event time that is accepted. `i64::MAX` disables the check: where the clock was never set, and where
    /// it may be behind, which is the case when there are later rows and no time source had a chance yet to set it.
    pub fn accepted_until(&self, now_us: i64) -> i64 {
        let accepted_until = self.config.accepted_until(now_us);
        let has_later = self.newest_us.load(Relaxed) > accepted_until.saturating_add(CLOCK_STEP_MAX_US);
        if has_later && !self.settling.is_over() { i64::MAX } else { accepted_until }
    }

    /// The latest event time that is trusted in rows accepted before. A later one came from a clock that was ahead, or
    /// not set, and is right now.
    pub fn trusted_until(&self, now_us: i64) -> i64 {
        self.accepted_until(now_us).saturating_add(CLOCK_STEP_MAX_US)
    }

    /// The event time of a row without one: now, but after every earlier trusted row without an event time. Therefore a
    /// clock that steps back by seconds, is behind or was never set makes no row older than the one before it.
    pub fn stamp(&self, now_us: i64) -> i64 {
        let trusted_until = self.trusted_until(now_us);
        let next = |last: i64| {
            let is_later = (now_us..=trusted_until).contains(&last);
            if is_later { last.saturating_add(1) } else { now_us }
        };
        let before = self.stamped_us.fetch_update(Relaxed, Relaxed, |last| Some(next(last)));
        before.map_or(now_us, next)
    }

    /// Records the newest event time of an index. From that of the first one on, rows without an event time continue
    /// where it is trusted: some of the times given before the start may be later than the clock is now.
    pub fn note_newest(&self, newest_us: i64) {
        let is_first = self.newest_us.swap(newest_us, Relaxed) == i64::MAX;
        if is_first && newest_us <= self.trusted_until(clock::unix_micros()) {
            self.stamped_us.fetch_max(newest_us, Relaxed);
        }
    }

    /// The index that answers reads, if there is one now.
    pub fn live(&self) -> Option<Arc<EntityIndex>> {
        match &**self.state.load() {
            StoreState::Ready(index) => Some(index.clone()),
            _ => None,
        }
    }

    /// Puts an index of the same content in use instead of the current one. False when that one is not in use any more.
    pub fn exchange(&self, old: &Arc<EntityIndex>, new: &Arc<EntityIndex>) -> bool {
        let current = self.state.load();
        let StoreState::Ready(live) = &**current else { return false };
        if !Arc::ptr_eq(live, old) {
            return false;
        }
        let before = self.state.compare_and_swap(&*current, Arc::new(StoreState::Ready(new.clone())));
        Arc::ptr_eq(&before, &current)
    }

    /// The journal's next entry: all entries before it are durable.
    pub fn journal_end(&self) -> u64 {
        self.counters.journal_next_seq.load(Relaxed)
    }

    /// Removes a damaged index from use and starts a rebuild. Only the first caller to find the damage does so.
    pub fn give_up(&self, index: &Arc<EntityIndex>, error: &IndexError) {
        let current = self.state.load();
        let StoreState::Ready(live) = &**current else { return };
        if !Arc::ptr_eq(live, index) {
            return;
        }
        let rebuilding = Arc::new(StoreState::Rebuilding { reason: error.to_string() });
        let before = self.state.compare_and_swap(&*current, rebuilding);
        if Arc::ptr_eq(&before, &current) {
            let what = "the feature index cannot be used; it is rebuilt from snapshot and journal";
            // On a full disk sled fails in many ways although nothing is damaged.
            let damaged = matches!(error, IndexError::Damaged { .. }) && self.files.has_room();
            if damaged {
                self.alarm(what, &error.to_string());
            } else {
                tracing::error!(%error, "{what}");
            }
            // The maintenance thread ends only when the store closes.
            let _ = self.jobs.send(MaintenanceJob::Rebuild { index: index.clone(), damaged });
        }
    }

    /// Reports the first record that cannot be decrypted: it is left out like one that does not exist.
    pub fn leave_out(&self, error: DamagedBytes) {
        if !self.has_undecryptable.swap(true, Relaxed) {
            self.alarm("records of the feature store cannot be decrypted, and are left out", &error.to_string());
        }
    }

    /// Reports damage, in the log and in the audit log.
    pub fn alarm(&self, what: &str, reason: &str) {
        tracing::error!(name: "features.damaged", folder = %self.files.folder().display(), reason, "{what}");
        self.count_damage();
    }

    /// Reports acknowledged entries that are lost, in the log and in the audit log.
    pub fn alarm_lost(&self, entries: u64, reason: &str) {
        self.counters.entries_lost.fetch_add(entries, Relaxed);
        tracing::error!(
            name: "features.entries_lost",
            folder = %self.files.folder().display(),
            entries,
            reason,
            "acknowledged entries of the feature store are lost"
        );
        self.count_damage();
    }

    fn count_damage(&self) {
        StoreCounters::count(&self.counters.damage_found);
        self.audit.record_own(AuditEvent::FeatureStoreDamaged);
    }
}
