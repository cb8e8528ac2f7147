//! What is done beside the work: opening, rebuilding, snapshots, sweeping, looking for damage, compaction.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::super::journal;
use super::super::online::FeatureError;
use super::super::snapshot::{self, SnapshotWriter};
use super::super::statistics::Counters;
use super::super::store::{Index, IndexError};
use super::applier::Applier;
use super::files::Files;
use super::recovery::{self, set_aside};
use super::restore;
use super::writer::Command;
use super::{Engine, State};
use crate::audit_event::AuditEvent;
use crate::clock;
use crate::principal::Principal;

/// How often it is asked whether a snapshot is due.
const TICK: Duration = Duration::from_secs(5);
/// How often expired rows are looked for.
const SWEEP: Duration = Duration::from_mins(1);
/// How often every file is read and checked.
const SCRUB: Duration = Duration::from_hours(24);
/// A snapshot is taken once a day, however little has changed.
const SNAPSHOT_AGE_MS: u64 = 86_400_000;
/// How many expired rows are removed at a time.
const SWEPT: usize = 1000;
/// After how long a rebuild that failed is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// What the upkeep thread is asked for.
#[derive(Debug)]
pub enum Job {
    /// The index is opened, or built.
    Open,
    /// The index is built anew. The one that is given up, if it is open.
    Rebuild {
        /// It.
        index: Option<Arc<Index>>,
    },
    /// A snapshot, now.
    Snapshot {
        /// Told the end.
        reply: oneshot::Sender<Result<(), FeatureError>>,
    },
    /// A smaller index, now.
    Compact {
        /// Told the end: bytes before and after.
        reply: oneshot::Sender<Result<(u64, u64), FeatureError>>,
    },
    /// A backup takes the place of everything.
    Restore {
        /// Its file, which is removed.
        file: PathBuf,
        /// Who asked for it.
        principal: Principal,
        /// Told the end: how many records it has.
        reply: oneshot::Sender<Result<u64, FeatureError>>,
    },
    /// The end.
    Stop,
}

/// The upkeep thread's own.
pub struct Upkeep {
    engine: Arc<Engine>,
    swept: Instant,
    scrubbed: Instant,
    /// The journal's next entry when the last snapshot was taken.
    snapshot_at: u64,
    /// The journal's bytes then.
    journal_then: u64,
    retry: Option<Instant>,
}

impl Upkeep {
    /// For one store.
    pub fn new(engine: Arc<Engine>) -> Self {
        let now = Instant::now();
        Self { engine, swept: now, scrubbed: now, snapshot_at: 0, journal_then: 0, retry: None }
    }

    /// Runs until it is told to stop.
    pub fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            match jobs.recv_timeout(TICK) {
                Ok(Job::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Job::Open) => drop(self.provide(recovery::open)),
                Ok(Job::Rebuild { index }) => {
                    self.put_away(index);
                    drop(self.provide(recovery::rebuild));
                }
                Ok(Job::Snapshot { reply }) => {
                    let _ = reply.send(self.snapshot());
                }
                Ok(Job::Compact { reply }) => {
                    let _ = reply.send(self.compact());
                }
                Ok(Job::Restore { file, principal, reply }) => {
                    let restored = self.restore(&file, principal);
                    let _ = fs::remove_file(&file);
                    let _ = reply.send(restored);
                }
                Err(RecvTimeoutError::Timeout) => self.tick(),
            }
        }
    }

    fn tick(&mut self) {
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
        if self.scrubbed.elapsed() >= SCRUB {
            self.scrub();
        }
        let counters = &self.engine.counters;
        let (next, bytes) = (counters.journal_next_seq.load(Relaxed), counters.journal_bytes.load(Relaxed));
        let age = clock::unix_millis().saturating_sub(counters.snapshot_created_ms.load(Relaxed));
        let grown = bytes.saturating_sub(self.journal_then) >= self.engine.config.snapshot_mb << 20;
        if grown || (next > self.snapshot_at && age > SNAPSHOT_AGE_MS) {
            if let Err(error) = self.snapshot() {
                tracing::warn!(%error, "no snapshot of the feature store was taken; the journal is kept");
            }
            self.compact_if_worth_it();
        }
        self.measure();
    }

    /// Makes an index, and hands it to the writer.
    fn provide(&mut self, make: impl FnOnce(&Engine) -> Result<Applier, String>) -> Result<(), String> {
        let started = Instant::now();
        self.retry = None;
        let made = make(&self.engine).and_then(|applier| self.hand_over(applier));
        self.engine.opened.send_replace(true);
        match made {
            Ok(_) => {
                let took = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.engine.counters.last_recovery_us.store(took, Relaxed);
                let rebuilt = self.engine.counters.rebuilds.load(Relaxed);
                tracing::info!(ms = took / 1000, rebuilt, "the feature store is ready");
                self.look_at_snapshots();
                self.scrub();
                self.measure();
                Ok(())
            }
            Err(reason) => {
                tracing::error!(reason, retry_s = RETRY.as_secs(), "the feature store has no index");
                let why = format!("it has no index: {reason}");
                if !matches!(&**self.engine.state.load(), State::Closed) {
                    self.engine.state.store(Arc::new(State::Rebuilding { reason: why }));
                }
                self.retry = Some(Instant::now() + RETRY);
                Err(reason)
            }
        }
    }

    fn hand_over(&self, applier: Applier) -> Result<Option<Applier>, String> {
        let (reply, answer) = mpsc::channel();
        let sent = self.engine.commands.blocking_send(Command::Handover { applier, reply });
        sent.map_err(|_| "the writer is gone".to_owned())?;
        answer.recv().map_err(|_| "the writer is gone".to_owned())?
    }

    /// Closes a damaged index and keeps its files for later.
    fn put_away(&self, index: Option<Arc<Index>>) {
        Counters::count(&self.engine.counters.rebuilds);
        let Some(index) = index else { return };
        let folder = index.folder().to_owned();
        close(index);
        set_aside(&self.engine, &folder);
    }

    fn mark(&self, rotate: bool) -> Option<(Arc<Index>, u64)> {
        let (reply, answer) = oneshot::channel();
        self.engine.commands.blocking_send(Command::Mark { rotate, reply }).ok()?;
        let seq = answer.blocking_recv().ok()??;
        Some((self.engine.live()?, seq))
    }

    fn snapshot(&mut self) -> Result<(), FeatureError> {
        let unavailable = || FeatureError::Unavailable { reason: self.engine.state.load().reason() };
        let (index, replay_from) = self.mark(true).ok_or_else(unavailable)?;
        let need = Files::size(index.folder());
        let free = self.engine.files.free().unwrap_or(u64::MAX);
        if free < need.saturating_add(self.engine.config.min_free_mb << 20) {
            return Err(FeatureError::DiskFull {
                folder: self.engine.files.folder().display().to_string(),
                free_mb: free >> 20,
                kept_mb: self.engine.config.min_free_mb,
            });
        }
        let header = self.engine.snapshot_header(replay_from);
        let mut broken = None;
        let written = snapshot::write_file(self.engine.files.folder(), &header, |writer| {
            write_all(&index, writer).map_err(|error| match error {
                ScanError::Io(error) => error,
                ScanError::Index(error) => {
                    broken = Some(error.clone());
                    io::Error::other(error)
                }
            })
        });
        if let Some(error) = broken {
            self.engine.give_up(&index, &error);
            return Err(FeatureError::Unavailable { reason: error.to_string() });
        }
        written.map_err(|error| FeatureError::NotWritten { reason: error.to_string() })?;
        Counters::count(&self.engine.counters.snapshots);
        self.remove_before(replay_from);
        self.journal_then = self.engine.counters.journal_bytes.load(Relaxed).min(self.journal_then);
        self.snapshot_at = replay_from;
        Ok(())
    }

    /// Removes what a snapshot of this number has the place of.
    fn remove_before(&self, replay_from: u64) {
        for (number, path) in snapshot::list(self.engine.files.folder()).unwrap_or_default() {
            if number < replay_from
                && let Err(error) = fs::remove_file(&path)
            {
                tracing::warn!(file = %path.display(), %error, "an old snapshot cannot be removed");
            }
        }
        let _ = self.engine.commands.blocking_send(Command::RemoveBefore(replay_from));
        self.look_at_snapshots();
    }

    /// Puts a backup in the place of everything. Until its snapshot has its name there is the old store, and from then on
    /// the new one, whenever the power goes.
    fn restore(&mut self, file: &Path, principal: Principal) -> Result<u64, FeatureError> {
        let backup = restore::Backup::check(&self.engine, file)?;
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
        let _ = fs::remove_file(file);
        let generations = self.engine.files.generations().unwrap_or_default();
        old.into_iter().for_each(close);
        self.engine.audit.record(AuditEvent::FeatureStoreRestored { records, principal });
        Counters::count(&self.engine.counters.rebuilds);
        self.provide(recovery::rebuild).map_err(|reason| FeatureError::Unavailable {
            reason: format!("the backup of {records} records is restored, and its index is not built yet: {reason}"),
        })?;
        for generation in generations {
            if let Err(error) = self.engine.files.remove_index(generation) {
                tracing::warn!(generation, %error, "the old feature index cannot be removed");
            }
        }
        self.remove_before(replay_from);
        self.snapshot_at = replay_from;
        self.journal_then = 0;
        Ok(records)
    }

    /// Removes rows whose ttl has passed long enough.
    fn sweep(&self) {
        while let Some(index) = self.engine.live() {
            let now_us = clock::unix_micros();
            let expired = match index.expired(now_us, SWEPT) {
                Ok(expired) => expired,
                Err(error) => return self.engine.give_up(&index, &error),
            };
            if expired.is_empty() {
                return;
            }
            let (reply, answer) = mpsc::channel();
            if self.engine.commands.blocking_send(Command::Purge { expired, now_us, reply }).is_err() {
                return;
            }
            let Ok(gone) = answer.recv() else { return };
            self.engine.counters.purged.fetch_add(gone as u64, Relaxed);
        }
    }

    /// Reads journal and snapshot and checks every checksum. The index has what they have, so what is damaged is set aside
    /// once a new snapshot has taken its place.
    fn scrub(&mut self) {
        self.scrubbed = Instant::now();
        let journal = journal::verify(&self.engine.files.journal()).unwrap_or_default();
        for damage in &journal {
            let reason = damage.to_string();
            self.engine.alarm("the journal of the feature store is damaged; a snapshot takes its place", &reason);
        }
        let mut damaged = Vec::new();
        for (_, path) in snapshot::list(self.engine.files.folder()).unwrap_or_default() {
            if let Err(error) = snapshot::verify_file(&path) {
                let reason = format!("{}: {error}", path.display());
                self.engine.alarm("a snapshot of the feature store is damaged; a new one takes its place", &reason);
                damaged.push(path);
            }
        }
        if journal.is_empty() && damaged.is_empty() {
            return;
        }
        damaged.iter().for_each(|path| set_aside(&self.engine, path));
        let _ = self.engine.commands.blocking_send(Command::NoteDamage(journal));
        if let Err(error) = self.snapshot() {
            tracing::error!(%error, "no snapshot could be taken in the place of what is damaged");
        }
    }

    fn look_at_snapshots(&self) {
        let snapshots = snapshot::list(self.engine.files.folder()).unwrap_or_default();
        let bytes = snapshots.iter().map(|(_, path)| Files::size(path)).sum();
        self.engine.counters.snapshot_bytes.store(bytes, Relaxed);
        let newest = snapshots.first().and_then(|(_, path)| fs::metadata(path).ok()?.modified().ok());
        let created = newest.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        let created = created.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0));
        self.engine.counters.snapshot_created_ms.store(created, Relaxed);
    }

    fn measure(&self) {
        if let Some(index) = self.engine.live() {
            self.engine.counters.index_bytes.store(Files::size(index.folder()), Relaxed);
        }
    }

    /// sled gives nothing back: an index that has grown far beyond what is in it is built anew.
    fn compact_if_worth_it(&mut self) {
        self.measure();
        let counters = &self.engine.counters;
        let (index, live) = (counters.index_bytes.load(Relaxed), counters.snapshot_bytes.load(Relaxed));
        if index > (live * 6).max(256 << 20)
            && let Err(error) = self.compact()
        {
            tracing::warn!(%error, "the feature index was not compacted");
        }
    }

    fn compact(&mut self) -> Result<(u64, u64), FeatureError> {
        let unavailable = |reason: String| FeatureError::Unavailable { reason };
        let (index, from) = self.mark(false).ok_or_else(|| unavailable(self.engine.state.load().reason()))?;
        let before = Files::size(index.folder());
        let applier = recovery::compact(&self.engine, &index, from).map_err(unavailable)?;
        let after = applier.index.folder().to_owned();
        let old = self.hand_over(applier).map_err(unavailable)?;
        let folder = index.folder().to_owned();
        drop(old);
        close(index);
        if let Err(error) = fs::remove_dir_all(&folder) {
            tracing::warn!(folder = %folder.display(), %error, "the old feature index cannot be removed");
        }
        self.measure();
        Ok((before, Files::size(&after)))
    }
}

/// Closes an index when its last reader is done. sled may hang or panic over a damaged one, so it is left to a thread.
fn close(mut index: Arc<Index>) {
    let closing = thread::Builder::new().name("features-close".into()).spawn(move || {
        for _ in 0..1000 {
            match Arc::try_unwrap(index) {
                Ok(index) => {
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(index)));
                    return;
                }
                Err(shared) => index = shared,
            }
            thread::park_timeout(Duration::from_millis(1));
        }
        // Somebody reads for seconds on end, as a backup does: the last one closes it.
    });
    let Ok(thread) = closing else { return };
    let until = Instant::now() + Duration::from_secs(2);
    while !thread.is_finished() && Instant::now() < until {
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// Writes every record of an index.
pub fn write_all<W: io::Write>(index: &Index, writer: &mut SnapshotWriter<W>) -> Result<(), ScanError> {
    index.scan(|key, record| Ok(writer.add(&key, record)?))
}

/// Why a scan into a file ended early.
pub enum ScanError {
    /// The index.
    Index(IndexError),
    /// The file.
    Io(std::io::Error),
}

impl From<IndexError> for ScanError {
    fn from(error: IndexError) -> Self {
        Self::Index(error)
    }
}

impl From<std::io::Error> for ScanError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl Engine {
    /// The header of a snapshot that has every entry before `replay_from`.
    pub fn snapshot_header(&self, replay_from: u64) -> snapshot::Header {
        snapshot::Header {
            replay_from,
            created_ms: clock::unix_millis(),
            hash_key_id: self.hash_key.id(),
            partial: false,
            catalog: self.registry.load().catalog().to_json(),
        }
    }
}
