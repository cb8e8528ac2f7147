//! The upkeep thread: opening, rebuilding, snapshots, sweeping of expired rows, the search for damage, compaction.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use ledge_base::clock;
use ledge_base::principal::Principal;
use ledge_service::audit_event::AuditEvent;
use tokio::sync::oneshot;

use super::super::online::FeatureError;
use super::super::statistics::Counters;
use super::super::store::Index;
use super::applier::Applier;
use super::commands::{UpkeepJob, WriterCommand};
use super::recovery::{self, close, set_aside};
use super::{Engine, StoreState};
use super::{disk_space, restore};

/// The interval of the periodic work, such as the check if a snapshot is due.
const PERIODIC_INTERVAL: Duration = Duration::from_secs(5);
/// The interval between two sweeps of expired rows.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);
/// The interval between two scrubs, which read and check every file.
const SCRUB_INTERVAL: Duration = Duration::from_hours(24);
/// The most by which the wall clock may run ahead of a monotonic clock between two sweeps, in microseconds.
const CLOCK_JUMP_MIN_US: i64 = 300_000_000;
/// The pause of the sweep after such a jump, and after a start.
const SWEEP_PAUSE: Duration = Duration::from_hours(1);
/// The most expired rows that are removed at a time.
const SWEEP_BATCH_ROWS: usize = 1000;
/// The pause before a failed rebuild is tried again.
const REBUILD_RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// The state of the upkeep thread.
pub struct Upkeep {
    pub(super) engine: Arc<Engine>,
    swept: Instant,
    pub(super) scrubbed: Instant,
    /// The journal's next entry when the last snapshot was taken.
    pub(super) snapshot_at: u64,
    /// The earliest time of the next snapshot, after one that failed.
    pub(super) no_snapshot_before: Instant,
    /// The journal's next entry when the index was last written.
    written_out: u64,
    retry: Option<Instant>,
    clock: SteadyClock,
    no_sweep_before: Instant,
    /// True when the log already says that no space is reserved.
    no_reserve: bool,
    /// The next attempt to encrypt plain values, and the pause before it.
    pub(super) encrypt_retry: (Instant, Duration),
}

impl Upkeep {
    pub fn new(engine: Arc<Engine>) -> Self {
        let now = Instant::now();
        let clock = SteadyClock { then: now, then_us: clock::unix_micros() };
        Self {
            engine,
            swept: now,
            scrubbed: now,
            snapshot_at: 0,
            no_snapshot_before: now,
            written_out: 0,
            retry: None,
            clock,
            // A server may start with its clock ahead, and have it set a little later.
            no_sweep_before: now + SWEEP_PAUSE,
            no_reserve: false,
            encrypt_retry: (now, Duration::ZERO),
        }
    }

    /// Runs until [`UpkeepJob::Stop`].
    pub fn run(mut self, jobs: &Receiver<UpkeepJob>) {
        let mut ticked = Instant::now();
        loop {
            if ticked.elapsed() >= PERIODIC_INTERVAL {
                ticked = Instant::now();
                self.run_periodic();
            }
            match jobs.recv_timeout(PERIODIC_INTERVAL.saturating_sub(ticked.elapsed())) {
                Ok(UpkeepJob::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(UpkeepJob::Open) => drop(self.build_and_hand_over(recovery::open)),
                Ok(UpkeepJob::Rebuild { index, damaged }) => self.replace(index, damaged),
                Ok(UpkeepJob::Snapshot { reply }) => {
                    let _ = reply.send(self.snapshot());
                }
                Ok(UpkeepJob::Compact { reply }) => {
                    let _ = reply.send(self.compact());
                }
                Ok(UpkeepJob::Restore { received, principal, reply }) => {
                    let file = received.path.clone();
                    let restored = self.restore(received, &principal);
                    let _ = fs::remove_file(&file);
                    let _ = reply.send(restored);
                }
                Ok(UpkeepJob::Erase { entities, principal, reply }) => {
                    let _ = reply.send(self.erase(&entities, &principal));
                }
                Ok(UpkeepJob::Rekey { reply }) => {
                    let _ = reply.send(self.rekey());
                }
                Ok(UpkeepJob::FoldKeys) => self.fold_keys(),
                Ok(UpkeepJob::RunPeriodic) => self.run_periodic(),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn run_periodic(&mut self) {
        if self.engine.is_disk_full() {
            disk_space::remove_damaged_files(&self.engine);
        }
        if self.retry.is_some_and(|at| at <= Instant::now()) {
            return drop(self.build_and_hand_over(recovery::open));
        }
        if self.engine.live().is_none() {
            return;
        }

        if self.swept.elapsed() >= SWEEP_INTERVAL {
            self.swept = Instant::now();
            self.sweep();
        }
        if self.encrypt_retry.0 <= Instant::now() {
            // The attempt when the store was opened may have failed.
            self.encrypt_plain_values();
        }
        if self.scrubbed.elapsed() >= SCRUB_INTERVAL {
            self.scrub();
        }

        if self.snapshot_due() {
            if let Err(error) = self.snapshot() {
                tracing::warn!(%error, "a snapshot of the feature store failed; the journal is kept");
            }
            self.compact_if_worth_it();
        }

        self.write_out();
        self.update_index_size();
        self.hold_reserve();
    }

    /// Gives the changes since the last time to the kernel: a start after a crash takes the rest from the journal.
    fn write_out(&mut self) {
        let next = self.engine.counters.journal_next_seq.load(Relaxed);
        if let Some(index) = self.engine.live().filter(|_| self.written_out != next) {
            match index.write_out() {
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
    fn build_and_hand_over(&mut self, build: impl FnOnce(&Engine) -> Result<Applier, String>) -> Result<(), String> {
        let started = Instant::now();
        self.retry = None;

        let mut made = build(&self.engine).and_then(|applier| self.hand_over(applier));
        if made.is_err() && !self.engine.files.has_room() && disk_space::free_space(&self.engine) {
            made = recovery::open(&self.engine).and_then(|applier| self.hand_over(applier));
        }

        self.engine.opened.send_replace(true);

        match made {
            Ok(_) => {
                let took = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.engine.counters.last_recovery_us.store(took, Relaxed);
                let rebuilt = self.engine.counters.rebuilds.load(Relaxed);
                tracing::info!(ms = took / 1000, rebuilt, "the feature store is ready");
                self.update_snapshot_figures();
                self.scrub();
                self.encrypt_plain_values();
                self.update_index_size();
                self.hold_reserve();
                Ok(())
            }
            Err(reason) => {
                tracing::error!(
                    reason,
                    retry_s = REBUILD_RETRY_INTERVAL.as_secs(),
                    "the feature store has no usable index; another attempt follows"
                );
                let why = format!("it has no index: {reason}");
                if matches!(&**self.engine.state.load(), StoreState::Opening | StoreState::Rebuilding { .. }) {
                    self.engine.state.store(Arc::new(StoreState::Rebuilding { reason: why }));
                }
                self.retry = Some(Instant::now() + REBUILD_RETRY_INTERVAL);
                Err(reason)
            }
        }
    }

    pub(super) fn hand_over(&self, applier: Applier) -> Result<Option<Applier>, String> {
        let (reply, answer) = mpsc::channel();
        let sent = self.engine.commands.blocking_send(WriterCommand::Handover { applier, reply });
        sent.map_err(|_| "the writer is gone".to_owned())?;
        answer.recv().map_err(|_| "the writer is gone".to_owned())?
    }

    /// Replaces an index that was given up.
    fn replace(&mut self, index: Arc<Index>, damaged: bool) {
        // This command makes the writer drop the index.
        let _ = self.index_position(false);
        let folder = index.folder().to_owned();
        close(index);
        if self.engine.live().is_some() {
            // Another index, built meanwhile, is already in use.
            return set_aside(&self.engine, &folder);
        }
        Counters::count(&self.engine.counters.rebuilds);
        if damaged {
            set_aside(&self.engine, &folder);
            drop(self.build_and_hand_over(recovery::rebuild));
        } else {
            drop(self.build_and_hand_over(recovery::open));
        }
    }

    /// The index, the journal entry before which it has every entry, and how many records it has.
    pub(super) fn index_position(&self, rotate: bool) -> Result<(Arc<Index>, u64, u64), FeatureError> {
        let unavailable = || FeatureError::Unavailable { reason: self.engine.state.load().reason() };
        let (reply, answer) = oneshot::channel();
        self.engine.commands.blocking_send(WriterCommand::Position { rotate, reply }).map_err(|_| unavailable())?;
        let (seq, records) = answer.blocking_recv().map_err(|_| unavailable())??;
        Ok((self.engine.live().ok_or_else(unavailable)?, seq, records))
    }

    /// Replaces everything by a backup. The rename of its snapshot decides: a power cut before it leaves the old store,
    /// one after it the new store.
    fn restore(&mut self, received: restore::ReceivedBackup, principal: &Principal) -> Result<u64, FeatureError> {
        let file = received.path.clone();
        let backup = restore::CheckedBackup::check(&self.engine, received)?;
        let closed = || FeatureError::Unavailable { reason: StoreState::Closed.reason() };

        let (reply, answer) = mpsc::channel();
        self.engine.commands.blocking_send(WriterCommand::BeginRestore { reply }).map_err(|_| closed())?;
        let next_seq = answer.recv().map_err(|_| closed())?;
        let replay_from = next_seq.saturating_add(1);

        let written = backup.write(&self.engine, replay_from);
        let (reply, answer) = mpsc::channel();
        let end = WriterCommand::EndRestore { replay_from: written.is_ok().then_some(replay_from), reply };
        self.engine.commands.blocking_send(end).map_err(|_| closed())?;
        let old = answer.recv().map_err(|_| closed())?;

        let records = written?;
        // From here on the disk has the new store, which needs the space.
        let _ = fs::remove_file(&file);
        let generations = self.engine.files.generations().unwrap_or_default();
        old.into_iter().for_each(close);
        self.engine.audit.record(principal, AuditEvent::FeatureStoreRestored { records });
        Counters::count(&self.engine.counters.rebuilds);

        self.build_and_hand_over(recovery::rebuild).map_err(|reason| FeatureError::Unavailable {
            reason: format!("the backup of {records} records is restored, but its index is not built yet: {reason}"),
        })?;

        for generation in generations {
            if let Err(error) = self.engine.files.remove_index(generation) {
                tracing::warn!(generation, %error, "the old feature index cannot be removed");
            }
        }
        self.remove_superseded(replay_from);
        self.snapshot_at = replay_from;
        Ok(records)
    }

    /// Removes rows whose ttl passed long enough ago. Skipped while the disk is full: sled would need space for it.
    pub(super) fn sweep(&mut self) {
        if self.clock.has_jumped(Instant::now(), clock::unix_micros()) {
            tracing::warn!("the clock jumped ahead: no expired features are removed for an hour");
            self.no_sweep_before = Instant::now() + SWEEP_PAUSE;
        }
        if Instant::now() < self.no_sweep_before || self.engine.is_disk_full() {
            return;
        }

        while let Some(index) = self.engine.live() {
            let now_us = clock::unix_micros();
            let expired = match index.expired(now_us, SWEEP_BATCH_ROWS) {
                Ok(expired) => expired,
                Err(error) => return self.engine.give_up(&index, &error),
            };
            let swept = expired.len();
            if swept == 0 {
                return;
            }
            let (reply, answer) = mpsc::channel();
            if self.engine.commands.blocking_send(WriterCommand::Purge { expired, now_us, reply }).is_err() {
                return;
            }
            let Ok(gone) = answer.recv() else { return };
            self.engine.counters.purged.fetch_add(gone as u64, Relaxed);
            if swept < SWEEP_BATCH_ROWS {
                return;
            }
        }
    }
}

/// Compares the wall clock with the monotonic clock.
#[derive(Debug)]
struct SteadyClock {
    then: Instant,
    then_us: i64,
}

impl SteadyClock {
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
        let mut clock = SteadyClock { then: begin, then_us: 0 };
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        assert!(!clock.has_jumped(at(60), 60_000_000));
        assert!(!clock.has_jumped(at(4000), 4_001_000_000));
        assert!(clock.has_jumped(at(4060), 9_000_000_000));
        assert!(!clock.has_jumped(at(4120), 9_060_000_000));
        assert!(!clock.has_jumped(at(4180), 4_000_000_000));
    }
}
