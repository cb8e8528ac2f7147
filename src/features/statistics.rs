//! Counters and figures of the store.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::merge::MergeOutcome;
use super::online::{FieldStatus, PushCounts};
use super::profiles::ProfileCounts;
use super::view::ViewId;

/// Counters since the start, updated by all threads of the store.
#[derive(Debug, Default)]
pub(super) struct StoreCounters {
    pub cells: [AtomicU64; FieldStatus::ALL.len()],
    /// The recent mean time of reading one record, in nanoseconds.
    pub usual_get_ns: AtomicU64,
    pub reads: AtomicU64,
    pub groups: AtomicU64,
    pub refused_disk_full: AtomicU64,
    pub refused_overload: AtomicU64,
    pub not_written: AtomicU64,
    pub purged: AtomicU64,
    pub rebuilds: AtomicU64,
    pub damage_found: AtomicU64,
    pub entries_lost: AtomicU64,
    pub taken_back: AtomicU64,
    /// Rows without an event time that got one ahead of the clock, because it was behind; since it was last right.
    pub stamped_ahead: AtomicU64,
    pub snapshots: AtomicU64,
    pub journal_bytes: AtomicU64,
    /// The bytes of the journal from before the last snapshot that are still kept.
    pub journal_bytes_at_snapshot: AtomicU64,
    /// The size of the newest snapshot.
    pub newest_snapshot_bytes: AtomicU64,
    pub journal_next_seq: AtomicU64,
    /// The bytes of the changes since the newest snapshot, as the index has them.
    pub layer_bytes: AtomicU64,
    pub index_bytes: AtomicU64,
    pub snapshot_bytes: AtomicU64,
    pub snapshot_created_ms: AtomicU64,
    pub last_recovery_us: AtomicU64,
    pub views: Mutex<HashMap<ViewId, ViewCounters>>,
}

/// The cells of one answer, by status in the order of [`FieldStatus::ALL`].
#[derive(Debug, Default)]
pub(super) struct FieldStatusCounts([u64; FieldStatus::ALL.len()]);

impl FieldStatusCounts {
    pub fn add(&mut self, status: FieldStatus) {
        let [present, null_value, not_found, outside_max_age] = &mut self.0;
        *match status {
            FieldStatus::Present => present,
            FieldStatus::NullValue => null_value,
            FieldStatus::NotFound => not_found,
            FieldStatus::OutsideMaxAge => outside_max_age,
        } += 1;
    }
}

/// The counters of one view.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ViewCounters {
    pub rows: u64,
    pub newest_us: i64,
    pub pushed: PushCounts,
    pub ignored: u64,
    pub lost: u64,
    pub profiles: ProfileCounts,
}

/// The figures of one view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewStatistics {
    pub view: String,
    pub rows: u64,
    /// The newest event time pushed since the start, in microseconds since the Unix epoch; 0 without one.
    pub newest_us: i64,
    /// The outcomes of the rows pushed since the start.
    pub pushed: PushCounts,
    /// Columns of pushes since the start that it does not have.
    pub ignored: u64,
    /// Acknowledged entries that were lost with snapshots, at least, when the store was opened.
    pub lost: u64,
    /// Its entities that are watched for unusual rows; `None`: the view does not ask for it.
    pub profiles: Option<ProfileCounts>,
}

/// The figures of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureStatistics {
    /// `opening`, `ready`, `rebuilding`, `restoring`, `closed`.
    pub state: &'static str,
    /// The reason why reads are refused, if they are.
    pub reason: Option<String>,
    /// Each declared view.
    pub views: Vec<ViewStatistics>,
    pub reads: u64,
    /// Cells answered, by status.
    pub cells: Vec<(FieldStatus, u64)>,
    /// Groups of pushes written, each with one fsync.
    pub groups: u64,
    /// Pushes refused because the disk was full.
    pub refused_disk_full: u64,
    /// Pushes refused because too many waited.
    pub refused_overload: u64,
    /// Pushes that could not be written for another reason.
    pub not_written: u64,
    /// Rows removed after their ttl.
    pub purged: u64,
    /// Times that the index was rebuilt.
    pub rebuilds: u64,
    /// Places where files were found damaged.
    pub damage_found: u64,
    /// Acknowledged journal entries that are lost.
    pub entries_lost: u64,
    /// Rows that replaced one with a later event time, from a future that the clock left again.
    pub taken_back: u64,
    /// Bytes of the journal, the index and the snapshots.
    pub journal_bytes: u64,
    pub index_bytes: u64,
    pub snapshot_bytes: u64,
    /// When the newest snapshot was taken, in milliseconds since the Unix epoch; 0 without one.
    pub snapshot_created_ms: u64,
    /// The next entry of the journal.
    pub journal_next_seq: u64,
    /// The duration of the last opening or rebuild, in microseconds.
    pub last_recovery_us: u64,
    /// `off`; `pending` while plain values are still to be encrypted; `on`.
    pub sealing: &'static str,
    pub keys: u64,
}

impl StoreCounters {
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Updates the mean time of reading one record.
    pub fn timed(&self, records: usize, took: Duration) {
        if let Some(each) = u64::try_from(took.as_nanos()).ok().and_then(|took| took.checked_div(records as u64)) {
            let usual = self.usual_get_ns.load(Ordering::Relaxed);
            self.usual_get_ns.store(usual - usual / 8 + each / 8, Ordering::Relaxed);
        }
    }

    /// The cells answered, by status.
    pub fn cells(&self) -> Vec<(FieldStatus, u64)> {
        FieldStatus::ALL.into_iter().zip(self.cells.iter().map(|count| count.load(Ordering::Relaxed))).collect()
    }

    pub fn count_cells(&self, counts: &FieldStatusCounts) {
        for (counter, count) in self.cells.iter().zip(counts.0).filter(|(_, count)| *count > 0) {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub fn with_views<T>(&self, work: impl FnOnce(&mut HashMap<ViewId, ViewCounters>) -> T) -> T {
        work(&mut self.views.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl FeatureStatistics {
    /// Pushes that were refused, or failed, by reason.
    pub fn refused(&self) -> [(&'static str, u64); 3] {
        [("disk_full", self.refused_disk_full), ("overload", self.refused_overload), ("not_written", self.not_written)]
    }
}

impl PushCounts {
    /// The number of rows by outcome.
    pub fn outcomes(&self) -> [(&'static str, usize); 4] {
        let Self { accepted, outdated, duplicate, too_late } = *self;
        [("accepted", accepted), ("outdated", outdated), ("duplicate", duplicate), ("too_late", too_late)]
    }

    pub(super) fn count(&mut self, merged: MergeOutcome) {
        match merged {
            MergeOutcome::Accepted => self.accepted += 1,
            MergeOutcome::Outdated => self.outdated += 1,
            MergeOutcome::Duplicate => self.duplicate += 1,
            MergeOutcome::TooLate => self.too_late += 1,
        }
    }
}
