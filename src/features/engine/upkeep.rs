//! What is done beside the work: opening, rebuilding, snapshots, sweeping, looking for damage, compaction.

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
use super::orders::{Command, Job};
use super::recovery::{self, close, set_aside};
use super::{Engine, State};
use super::{restore, room};

/// How often it is asked whether a snapshot is due.
const TICK: Duration = Duration::from_secs(5);
/// How often expired rows are looked for.
const SWEEP: Duration = Duration::from_mins(1);
/// How often every file is read and checked.
const SCRUB: Duration = Duration::from_hours(24);
/// How far the wall clock may go ahead of time between two sweeps, in microseconds.
const JUMP_US: i64 = 300_000_000;
/// For how long nothing is swept after it did, and after a start.
const JUMPED: Duration = Duration::from_hours(1);
/// How many expired rows are removed at a time.
const SWEPT: usize = 1000;
/// After how long a rebuild that failed is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// The upkeep thread's own.
pub struct Upkeep {
    pub(super) engine: Arc<Engine>,
    swept: Instant,
    pub(super) scrubbed: Instant,
    /// The journal's next entry when the last snapshot was taken.
    pub(super) snapshot_at: u64,
    /// Not before then, after one that failed.
    pub(super) no_snapshot_before: Instant,
    retry: Option<Instant>,
    clock: SteadyClock,
    no_sweep_before: Instant,
    /// Whether it was told that no room is held in reserve.
    no_reserve: bool,
    /// When what was plain is sealed, after an attempt that failed, and how long it was put off.
    pub(super) seal_again: (Instant, Duration),
}

impl Upkeep {
    /// For one store.
    pub fn new(engine: Arc<Engine>) -> Self {
        let now = Instant::now();
        let clock = SteadyClock { then: now, then_us: clock::unix_micros() };
        Self {
            engine,
            swept: now,
            scrubbed: now,
            snapshot_at: 0,
            no_snapshot_before: now,
            retry: None,
            clock,
            // A box may start with its clock ahead, and have it set a little later.
            no_sweep_before: now + JUMPED,
            no_reserve: false,
            seal_again: (now, Duration::ZERO),
        }
    }

    /// Runs until it is told to stop.
    pub fn run(mut self, jobs: &Receiver<Job>) {
        let mut ticked = Instant::now();
        loop {
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                self.tick();
            }
            match jobs.recv_timeout(TICK.saturating_sub(ticked.elapsed())) {
                Ok(Job::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Job::Open) => drop(self.provide(recovery::open)),
                Ok(Job::Rebuild { index, damaged }) => self.replace(index, damaged),
                Ok(Job::Snapshot { reply }) => {
                    let _ = reply.send(self.snapshot());
                }
                Ok(Job::Compact { reply }) => {
                    let _ = reply.send(self.compact());
                }
                Ok(Job::Restore { received, principal, reply }) => {
                    let file = received.path.clone();
                    let restored = self.restore(received, &principal);
                    let _ = fs::remove_file(&file);
                    let _ = reply.send(restored);
                }
                Ok(Job::Erase { entities, principal, reply }) => {
                    let _ = reply.send(self.erase(&entities, &principal));
                }
                Ok(Job::Reseal { reply }) => {
                    let _ = reply.send(self.reseal());
                }
                Ok(Job::FoldKeys) => self.fold_keys(),
                Ok(Job::Look) => self.tick(),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn tick(&mut self) {
        if self.engine.is_disk_full() {
            room::remove_evidence(&self.engine);
        }
        if self.retry.is_some_and(|at| at <= Instant::now()) {
            return drop(self.provide(recovery::open));
        }
        if self.engine.live().is_none() {
            return;
        }
        if self.swept.elapsed() >= SWEEP {
            self.swept = Instant::now();
            self.sweep();
        }
        if self.seal_again.0 <= Instant::now() {
            // Where it did not come to its end when the store was opened.
            self.seal_the_rest();
        }
        if self.scrubbed.elapsed() >= SCRUB {
            self.scrub();
        }
        if self.snapshot_due() {
            if let Err(error) = self.snapshot() {
                tracing::warn!(%error, "no snapshot of the feature store was taken; the journal is kept");
            }
            self.compact_if_worth_it();
        }
        self.measure();
        self.hold_reserve();
    }

    fn hold_reserve(&mut self) {
        match self.engine.files.hold_reserve() {
            Ok(()) => self.no_reserve = false,
            Err(error) => {
                if !std::mem::replace(&mut self.no_reserve, true) {
                    tracing::warn!(%error, "no room is held in reserve: on a full disk the feature index may not open");
                }
            }
        }
    }

    /// Makes an index, and hands it to the writer.
    fn provide(&mut self, build: impl FnOnce(&Engine) -> Result<Applier, String>) -> Result<(), String> {
        let started = Instant::now();
        self.retry = None;
        let mut made = build(&self.engine).and_then(|applier| self.hand_over(applier));
        if made.is_err() && !self.engine.files.has_room() && room::make_way(&self.engine) {
            made = recovery::open(&self.engine).and_then(|applier| self.hand_over(applier));
        }
        self.engine.opened.send_replace(true);
        match made {
            Ok(_) => {
                let took = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.engine.counters.last_recovery_us.store(took, Relaxed);
                let rebuilt = self.engine.counters.rebuilds.load(Relaxed);
                tracing::info!(ms = took / 1000, rebuilt, "the feature store is ready");
                self.look_at_snapshots();
                self.scrub();
                self.seal_the_rest();
                self.measure();
                self.hold_reserve();
                Ok(())
            }
            Err(reason) => {
                tracing::error!(reason, retry_s = RETRY.as_secs(), "the feature store has no index");
                let why = format!("it has no index: {reason}");
                if matches!(&**self.engine.state.load(), State::Opening | State::Rebuilding { .. }) {
                    self.engine.state.store(Arc::new(State::Rebuilding { reason: why }));
                }
                self.retry = Some(Instant::now() + RETRY);
                Err(reason)
            }
        }
    }

    pub(super) fn hand_over(&self, applier: Applier) -> Result<Option<Applier>, String> {
        let (reply, answer) = mpsc::channel();
        let sent = self.engine.commands.blocking_send(Command::Handover { applier, reply });
        sent.map_err(|_| "the writer is gone".to_owned())?;
        answer.recv().map_err(|_| "the writer is gone".to_owned())?
    }

    /// Sees to another index in the place of one that was given up.
    fn replace(&mut self, index: Arc<Index>, damaged: bool) {
        // The writer lets go of it when it looks.
        let _ = self.mark(false);
        let folder = index.folder().to_owned();
        close(index);
        if self.engine.live().is_some() {
            // One that was being made meanwhile has its place already.
            return set_aside(&self.engine, &folder);
        }
        Counters::count(&self.engine.counters.rebuilds);
        if damaged {
            set_aside(&self.engine, &folder);
            drop(self.provide(recovery::rebuild));
        } else {
            drop(self.provide(recovery::open));
        }
    }

    /// The index, the number of the journal entry before which it has everything, and how many records it has.
    pub(super) fn mark(&self, rotate: bool) -> Result<(Arc<Index>, u64, u64), FeatureError> {
        let unavailable = || FeatureError::Unavailable { reason: self.engine.state.load().reason() };
        let (reply, answer) = oneshot::channel();
        self.engine.commands.blocking_send(Command::Mark { rotate, reply }).map_err(|_| unavailable())?;
        let (seq, records) = answer.blocking_recv().map_err(|_| unavailable())??;
        Ok((self.engine.live().ok_or_else(unavailable)?, seq, records))
    }

    /// Puts a backup in the place of everything. Until its snapshot has its name there is the old store, and from then on
    /// the new one, whenever the power goes.
    fn restore(&mut self, received: restore::Received, principal: &Principal) -> Result<u64, FeatureError> {
        let file = received.path.clone();
        let backup = restore::Backup::check(&self.engine, received)?;
        let closed = || FeatureError::Unavailable { reason: State::Closed.reason() };
        let (reply, answer) = mpsc::channel();
        self.engine.commands.blocking_send(Command::BeginRestore { reply }).map_err(|_| closed())?;
        let next_seq = answer.recv().map_err(|_| closed())?;
        let replay_from = next_seq.saturating_add(1);
        let written = backup.write(&self.engine, replay_from);
        let (reply, answer) = mpsc::channel();
        let end = Command::EndRestore { replay_from: written.is_ok().then_some(replay_from), reply };
        self.engine.commands.blocking_send(end).map_err(|_| closed())?;
        let old = answer.recv().map_err(|_| closed())?;
        let records = written?;
        // From here on the disk has the new store: it needs the room.
        let _ = fs::remove_file(&file);
        let generations = self.engine.files.generations().unwrap_or_default();
        old.into_iter().for_each(close);
        self.engine.audit.record(principal, AuditEvent::FeatureStoreRestored { records });
        Counters::count(&self.engine.counters.rebuilds);
        self.provide(recovery::rebuild).map_err(|reason| FeatureError::Unavailable {
            reason: format!("the backup of {records} records is restored, and its index is not built yet: {reason}"),
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

    /// Removes rows whose ttl has passed long enough. Not while the disk is full: sled would need room for it.
    pub(super) fn sweep(&mut self) {
        if self.clock.has_jumped(Instant::now(), clock::unix_micros()) {
            tracing::warn!("the clock has jumped ahead: expired features are not removed for an hour");
            self.no_sweep_before = Instant::now() + JUMPED;
        }
        if Instant::now() < self.no_sweep_before || self.engine.is_disk_full() {
            return;
        }
        while let Some(index) = self.engine.live() {
            let now_us = clock::unix_micros();
            let expired = match index.expired(now_us, SWEPT) {
                Ok(expired) => expired,
                Err(error) => return self.engine.give_up(&index, &error),
            };
            let swept = expired.len();
            if swept == 0 {
                return;
            }
            let (reply, answer) = mpsc::channel();
            if self.engine.commands.blocking_send(Command::Purge { expired, now_us, reply }).is_err() {
                return;
            }
            let Ok(gone) = answer.recv() else { return };
            self.engine.counters.purged.fetch_add(gone as u64, Relaxed);
            if swept < SWEPT {
                return;
            }
        }
    }
}

/// The wall clock held against one that does not jump.
#[derive(Debug)]
struct SteadyClock {
    then: Instant,
    then_us: i64,
}

impl SteadyClock {
    /// Whether the wall clock has gone ahead of time since it was asked last: a box at a wrong date would remove everything.
    fn has_jumped(&mut self, now: Instant, now_us: i64) -> bool {
        let passed = i64::try_from(now.duration_since(self.then).as_micros()).unwrap_or(i64::MAX);
        let ahead = now_us.saturating_sub(self.then_us).saturating_sub(passed);
        (self.then, self.then_us) = (now, now_us);
        ahead > JUMP_US
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
