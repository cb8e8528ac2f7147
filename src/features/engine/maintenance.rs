//! The maintenance thread: opening, rebuilding, restores, and when snapshots and the search for damage are due.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use ledge_base::log_limiter::LastingFault;
use ledge_base::principal::Principal;
use ledge_base::{clock, sys};
use ledge_service::audit_event::AuditEvent;
use tokio::sync::oneshot;

use super::super::index::EntityIndex;
use super::super::journal;
use super::super::online::FeatureError;
use super::super::snapshot::{self, SortedTable};
use super::super::statistics::StoreCounters;
use super::applier::IndexApplier;
use super::commands::{MaintenanceJob, StoreWriterCommand};
use super::manifest::SnapshotChanges;
use super::recovery::{self, close, set_aside};
use super::spool::ReceivedBackup;
use super::{StoreEngine, StoreState};
use super::{disk_space, restore};

/// The interval of periodic work, such as checking whether a snapshot is due.
const PERIODIC_INTERVAL: Duration = Duration::from_secs(5);
/// The interval between two looks at the clock.
const CLOCK_INTERVAL: Duration = Duration::from_mins(1);
/// The interval between two scrubs, which read and check every file.
const SCRUB_INTERVAL: Duration = Duration::from_hours(24);
/// The most by which the wall clock may run ahead of a monotonic clock between two looks, in microseconds.
const CLOCK_JUMP_MIN_US: i64 = 300_000_000;
/// The time after a jump of the clock, and after a start, in which no expired row is removed.
const REMOVAL_PAUSE: Duration = Duration::from_hours(1);
/// The pause before a failed rebuild is tried again.
const REBUILD_RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// The state of the maintenance thread.
pub struct Maintenance {
    pub(super) engine: Arc<StoreEngine>,
    clock_read: Instant,
    pub(super) scrubbed: Instant,
    /// The journal's next entry when the last snapshot was taken.
    pub(super) snapshot_at: u64,
    /// The earliest time of the next snapshot, after one that failed.
    pub(super) no_snapshot_before: Instant,
    /// The journal's next entry when the index was last written.
    written_out: u64,
    retry: Option<Instant>,
    /// Attempts to open the index that fail.
    index_fault: LastingFault,
    /// Snapshots that fail.
    pub(super) snapshot_fault: LastingFault,
    clock: MaintenanceClockWatch,
    pub(super) no_removal_before: Instant,
    /// True when the log already says that no space is reserved.
    no_reserve: bool,
    /// True while one bad place in a file would lose records.
    pub(super) second_copy_due: bool,
    /// The next attempt to encrypt plain values, and the pause before it.
    pub(super) encrypt_retry: (Instant, Duration),
}

impl Maintenance {
    pub fn new(engine: Arc<StoreEngine>) -> Self {
        let now = Instant::now();
        let clock = MaintenanceClockWatch { then: now, then_us: clock::unix_micros() };
        Self {
            engine,
            clock_read: now,
            scrubbed: now,
            snapshot_at: 0,
            no_snapshot_before: now,
            written_out: 0,
            retry: None,
            index_fault: LastingFault::default(),
            snapshot_fault: LastingFault::default(),
            clock,
            // A server may start with its clock ahead, and have it set a little later.
            no_removal_before: now + REMOVAL_PAUSE,
            no_reserve: false,
            second_copy_due: false,
            encrypt_retry: (now, Duration::ZERO),
        }
    }

    /// Runs until [`MaintenanceJob::Stop`].
    pub fn run(mut self, jobs: &Receiver<MaintenanceJob>) {
        let mut ticked = Instant::now();
        loop {
            if ticked.elapsed() >= PERIODIC_INTERVAL {
                ticked = Instant::now();
                self.run_periodic();
            }
            match jobs.recv_timeout(PERIODIC_INTERVAL.saturating_sub(ticked.elapsed())) {
                Ok(MaintenanceJob::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(MaintenanceJob::Open) => drop(self.open_index()),
                Ok(MaintenanceJob::Rebuild { index, damaged }) => self.replace(index, damaged),
                Ok(MaintenanceJob::Snapshot { reply }) => {
                    let _ = reply.send(self.snapshot());
                }
                Ok(MaintenanceJob::Compact { reply }) => {
                    let _ = reply.send(self.compact());
                }
                Ok(MaintenanceJob::Restore { received, principal, reply }) => {
                    let file = received.path.clone();
                    let restored = self.restore(received, &principal);
                    let _ = fs::remove_file(&file);
                    let _ = reply.send(restored);
                }
                Ok(MaintenanceJob::Erase { entities, naming, principal, reply }) => {
                    let _ = reply.send(self.erase(&entities, naming, &principal));
                }
                Ok(MaintenanceJob::Disclose { entity, principal, reply }) => {
                    let _ = reply.send(self.disclose(&entity, &principal));
                }
                Ok(MaintenanceJob::Rekey { reply }) => {
                    let _ = reply.send(self.rekey());
                }
                Ok(MaintenanceJob::FoldKeys) => self.fold_keys(),
                Ok(MaintenanceJob::RunPeriodic) => self.run_periodic(),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn run_periodic(&mut self) {
        if self.engine.is_disk_full() {
            disk_space::remove_damaged_files(&self.engine);
        }
        if self.retry.is_some_and(|at| at <= Instant::now()) {
            return drop(self.open_index());
        }
        if self.engine.live().is_none() {
            return;
        }

        if self.clock_read.elapsed() >= CLOCK_INTERVAL {
            self.clock_read = Instant::now();
            self.check_clock();
        }
        if self.encrypt_retry.0 <= Instant::now() {
            // The attempt when the store was opened may have failed.
            self.encrypt_plain_values();
        }
        if self.scrubbed.elapsed() >= SCRUB_INTERVAL {
            self.scrub();
        }

        if self.second_copy_due && Instant::now() >= self.no_snapshot_before {
            self.keep_two_copies();
        }
        if self.snapshot_due()
            && let Err(error) = self.snapshot()
            && self.snapshot_fault.is_to_be_logged(Instant::now())
        {
            tracing::warn!(%error, "a snapshot of the feature store failed; the journal is kept");
        }

        self.write_out();
        self.update_index_size();
        self.hold_reserve();
    }

    /// Gives the changes since the last time to the kernel: a start after a crash takes the rest from the journal. Not
    /// while the disk is full: sled does not survive a write that fails.
    fn write_out(&mut self) {
        if self.engine.is_disk_full() {
            return;
        }
        let next = self.engine.counters.journal_next_seq.load(Relaxed);
        if let Some(index) = self.engine.live().filter(|_| self.written_out != next) {
            match self.engine.syncing(|| index.top().write_out()) {
                Ok(()) => self.written_out = next,
                Err(error) => self.engine.give_up(&index, &error),
            }
        }
    }

    fn hold_reserve(&mut self) {
        match self.engine.files.hold_reserve() {
            Ok(()) => self.no_reserve = false,
            Err(error) => {
                if !std::mem::replace(&mut self.no_reserve, true) {
                    tracing::warn!(%error, "cannot reserve disk space for the feature store: on a full disk its index may not open");
                }
            }
        }
    }

    /// Opens or builds an index, and hands it to the writer.
    fn open_index(&mut self) -> Result<(), String> {
        let started = Instant::now();
        self.retry = None;

        let open =
            |maintenance: &Self| recovery::open(&maintenance.engine).and_then(|applier| maintenance.hand_over(applier));
        let mut made = open(self);
        if made.is_err() && !self.engine.files.has_room() && disk_space::free_space(&self.engine) {
            made = open(self);
        }

        self.engine.opened.send_replace(true);

        match made {
            Ok(_) => {
                self.index_fault.end();
                let took = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.engine.counters.last_recovery_us.store(took, Relaxed);
                let rebuilt = self.engine.counters.rebuilds.load(Relaxed);
                tracing::info!(name: "features.ready", ms = took / 1000, rebuilt, "the feature store is ready");
                let snapshot = self.engine.live().and_then(|index| Some(index.snapshot()?.header().replay_from));
                self.snapshot_at = snapshot.unwrap_or(0);
                self.engine.profiles.settle(&self.engine);
                self.update_snapshot_figures();
                self.scrub();
                self.replace_unread_snapshot();
                self.encrypt_plain_values();
                self.update_index_size();
                self.hold_reserve();
                sys::return_free_memory();
                Ok(())
            }
            Err(reason) => {
                if self.index_fault.is_to_be_logged(Instant::now()) {
                    tracing::error!(
                        reason,
                        retry_s = REBUILD_RETRY_INTERVAL.as_secs(),
                        "the feature store has no usable index; another attempt follows"
                    );
                }
                let why = format!("it has no index: {reason}");
                if matches!(
                    &**self.engine.state.load(),
                    StoreState::Opening | StoreState::Comparing | StoreState::Rebuilding { .. }
                ) {
                    self.engine.state.store(Arc::new(StoreState::Rebuilding { reason: why }));
                }
                self.retry = Some(Instant::now() + REBUILD_RETRY_INTERVAL);
                Err(reason)
            }
        }
    }

    pub(super) fn hand_over(&self, applier: IndexApplier) -> Result<Option<IndexApplier>, String> {
        let (reply, answer) = mpsc::channel();
        let sent =
            self.engine.commands.blocking_send(StoreWriterCommand::Handover { applier: Box::new(applier), reply });
        sent.map_err(|_| "the writer is gone".to_owned())?;
        answer.recv().map_err(|_| "the writer is gone".to_owned())?
    }

    /// Replaces an index that was given up. Of a damaged one the snapshot is set aside, or if that is good, the layers.
    fn replace(&mut self, index: Arc<EntityIndex>, damaged: bool) {
        // This command makes the writer drop the index.
        let _ = self.index_position();
        let layers: Vec<PathBuf> = index.folders().map(Path::to_owned).collect();
        let snapshot = index.snapshot().map(|snapshot| snapshot.path().to_owned());
        close(index);
        if self.engine.live().is_some() {
            // Another index, built meanwhile, is already in use.
            return;
        }
        StoreCounters::count(&self.engine.counters.rebuilds);
        if damaged {
            let bad = snapshot.filter(|path| matches!(snapshot::verify_file(path), Err(error) if error.is_damage()));
            for path in bad.map_or(layers, |snapshot| vec![snapshot]) {
                set_aside(&self.engine, &path);
            }
        }
        drop(self.open_index());
    }

    /// The index, the journal entry before which it has every entry, and how many records it has.
    pub(super) fn index_position(&self) -> Result<(Arc<EntityIndex>, u64, u64), FeatureError> {
        let unavailable = || FeatureError::Unavailable { reason: self.engine.state.load().reason() };
        let (reply, answer) = oneshot::channel();
        self.engine.commands.blocking_send(StoreWriterCommand::Position { reply }).map_err(|_| unavailable())?;
        let (seq, records) = answer.blocking_recv().map_err(|_| unavailable())??;
        Ok((self.engine.live().ok_or_else(unavailable)?, seq, records))
    }

    /// Replaces everything by a backup. The rename of its snapshot decides: a power cut before it leaves the old store,
    /// one after it the new store.
    fn restore(&mut self, received: ReceivedBackup, principal: &Principal) -> Result<u64, FeatureError> {
        let file = received.path.clone();
        let backup = restore::CheckedBackup::check(&self.engine, received)?;
        let closed = || FeatureError::Unavailable { reason: StoreState::Closed.reason() };

        let (reply, answer) = mpsc::channel();
        self.engine.commands.blocking_send(StoreWriterCommand::BeginRestore { reply }).map_err(|_| closed())?;
        let next_seq = answer.recv().map_err(|_| closed())?;
        let replay_from = next_seq.saturating_add(1);

        let written = backup.write(&self.engine, replay_from);
        let (reply, answer) = mpsc::channel();
        let end = StoreWriterCommand::EndRestore { replay_from: written.is_ok().then_some(replay_from), reply };
        self.engine.commands.blocking_send(end).map_err(|_| closed())?;
        let old = answer.recv().map_err(|_| closed())?;

        let records = written?;
        self.engine.profiles.leave_out_before(replay_from);
        let restored = SortedTable::open(&self.engine.files.folder().join(snapshot::file_name(replay_from)));
        if let Ok(Some(restored)) = restored {
            let changed = restored.statistics().records.clone();
            let noted =
                self.engine.files.add_to_manifest(SnapshotChanges { after: next_seq, number: replay_from, changed });
            if let Err(error) = noted {
                tracing::warn!(%error, "cannot write the manifest of the feature store; a loss of the restored snapshot might not be counted");
            }
        }
        // From here on the disk has the new store, which needs the space.
        let _ = fs::remove_file(&file);
        let generations = self.engine.files.generations().unwrap_or_default();
        old.into_iter().for_each(close);
        self.engine.audit.record(principal, AuditEvent::FeatureStoreRestored { records });
        StoreCounters::count(&self.engine.counters.rebuilds);

        // The snapshot replaces these indexes. A backup in progress may still have one of them open.
        for generation in generations {
            if let Err(error) = self.engine.files.remove_index(generation) {
                tracing::warn!(generation, %error, "the old feature index cannot be removed");
            }
        }
        self.open_index().map_err(|reason| FeatureError::Unavailable {
            reason: format!("the backup of {records} records is restored, but its index is not built yet: {reason}"),
        })?;

        if self.engine.live().is_some() {
            self.remove_superseded(replay_from);
            // So far only the restored snapshot has the data: make a second copy.
            self.keep_two_copies();
        }
        Ok(records)
    }

    /// Takes a snapshot where the index does not read the newest one in place: it is of an earlier version, of another
    /// box, or damaged. Likewise where only one file has all records.
    fn replace_unread_snapshot(&mut self) {
        let snapshots = snapshot::list(self.engine.files.folder()).unwrap_or_default();
        let Some((newest, _)) = snapshots.first() else { return };
        let read = self.engine.live().and_then(|index| Some(index.snapshot()?.header().replay_from));
        if read == Some(*newest) {
            return self.keep_two_copies();
        }
        if let Err(error) = self.snapshot() {
            tracing::warn!(%error, "the index of the feature store could not be written to a snapshot; the next one is due when the journal has grown");
        }
    }

    /// Takes a second snapshot where there is one, and the journal does not go back to the beginning: one bad place
    /// would lose records.
    pub(super) fn keep_two_copies(&mut self) {
        let files = &self.engine.files;
        let is_only = snapshot::list(files.folder()).is_ok_and(|snapshots| snapshots.len() == 1);
        let is_short =
            journal::list(&files.journal()).is_ok_and(|list| list.first().is_none_or(|(first, _)| *first > 1));
        self.second_copy_due = false;
        if is_only
            && is_short
            && let Err(error) = self.snapshot()
        {
            self.second_copy_due = true;
            if self.snapshot_fault.is_to_be_logged(Instant::now()) {
                tracing::warn!(%error, "there is no second snapshot of the feature store yet; another attempt follows");
            }
        }
    }

    fn check_clock(&mut self) {
        if self.clock.has_jumped(Instant::now(), clock::unix_micros()) {
            tracing::warn!("the clock jumped ahead: no expired features are removed for an hour");
            self.no_removal_before = Instant::now() + REMOVAL_PAUSE;
        }
    }

    /// The time up to which expired rows may be removed now, in microseconds since the Unix epoch; `None`: none.
    pub(super) fn may_remove_until(&mut self) -> Option<i64> {
        self.check_clock();
        (Instant::now() >= self.no_removal_before).then(clock::unix_micros)
    }
}

/// Compares the wall clock with the monotonic clock.
#[derive(Debug)]
struct MaintenanceClockWatch {
    then: Instant,
    then_us: i64,
}

impl MaintenanceClockWatch {
    /// True when the wall clock ran ahead since the last call. A server with a wrong date would remove all rows.
    fn has_jumped(&mut self, now: Instant, now_us: i64) -> bool {
        let passed = i64::try_from(now.duration_since(self.then).as_micros()).unwrap_or(i64::MAX);
        let ahead = now_us.saturating_sub(self.then_us).saturating_sub(passed);
        (self.then, self.then_us) = (now, now_us);
        ahead > CLOCK_JUMP_MIN_US
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_jumps_ahead_is_told_from_one_that_runs() {
        let begin = Instant::now();
        let mut clock = MaintenanceClockWatch { then: begin, then_us: 0 };
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        assert!(!clock.has_jumped(at(60), 60_000_000));
        assert!(!clock.has_jumped(at(4000), 4_001_000_000));
        assert!(clock.has_jumped(at(4060), 9_000_000_000));
        assert!(!clock.has_jumped(at(4120), 9_060_000_000));
        assert!(!clock.has_jumped(at(4180), 4_000_000_000));
    }
}
