//! Snapshots, the search for damage, and compaction of the index: parts of the upkeep thread.
//!
//! The two newest snapshots are kept, and the journal from the older one on: one bad place anywhere loses nothing.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ledge_base::clock;

use super::super::journal;
use super::super::online::FeatureError;
use super::super::snapshot::{self, SnapshotWriter};
use super::super::statistics::Counters;
use super::super::store::{Index, IndexError};
use super::Engine;
use super::commands::WriterCommand;
use super::files::Files;
use super::recovery::{self, close, set_aside};
use super::upkeep::Upkeep;

/// The age at which a snapshot is replaced, however little has changed, in milliseconds: a day.
const SNAPSHOT_AGE_MAX_MS: u64 = 86_400_000;
/// The growth of the journal up to which no snapshot is taken, in bytes: it is read again within a tenth of a second.
const JOURNAL_GROWTH_MIN: u64 = 8 << 20;
/// The pause before a failed snapshot is tried again.
const SNAPSHOT_RETRY_INTERVAL: Duration = Duration::from_mins(1);
/// The number of snapshots that are kept: the older one is for when the newer one is damaged.
const SNAPSHOTS_KEPT: usize = 2;
/// The size of a sled index while it is built, as a multiple of its records.
pub const INDEX_FACTOR: u64 = 3;
/// The size of an index from which it is compacted, as a multiple of its records.
const COMPACTION_FACTOR: u64 = 6;
/// The size below which an index is never compacted, in bytes: there is little to gain.
const COMPACTION_MIN_BYTES: u64 = 256 << 20;

/// Reasons why a scan into a file ended early.
pub enum ScanError {
    Index(IndexError),
    Io(io::Error),
}

impl From<IndexError> for ScanError {
    fn from(error: IndexError) -> Self {
        Self::Index(error)
    }
}

impl From<io::Error> for ScanError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Writes every record of an index.
fn write_all<W: io::Write>(index: &Index, writer: &mut SnapshotWriter<W>) -> Result<(), ScanError> {
    index.scan(|key, record| Ok(writer.add(&key, record)?))
}

impl Upkeep {
    /// True when the journal has grown long, or the last snapshot is old.
    pub fn snapshot_due(&self) -> bool {
        let counters = &self.engine.counters;
        let (next, bytes) = (counters.journal_next_seq.load(Relaxed), counters.journal_bytes.load(Relaxed));
        let age = clock::unix_millis().saturating_sub(counters.snapshot_created_ms.load(Relaxed));
        let due = self.engine.has_journal_grown(bytes) || (next > self.snapshot_at && age > SNAPSHOT_AGE_MAX_MS);
        due && Instant::now() >= self.no_snapshot_before
    }

    /// Takes a snapshot, and removes the files that it replaces.
    pub fn snapshot(&mut self) -> Result<(), FeatureError> {
        self.no_snapshot_before = Instant::now() + SNAPSHOT_RETRY_INTERVAL;
        self.make_room()?;
        let unavailable = |reason: String| FeatureError::Unavailable { reason };

        let (index, replay_from, records) = self.index_position(true)?;
        let started = Instant::now();
        let journal = self.engine.counters.journal_bytes.load(Relaxed);
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
            return Err(unavailable(error.to_string()));
        }

        let (path, summary) = written.map_err(|error| FeatureError::NotWritten { reason: error.to_string() })?;
        // Only this thread removes records meanwhile.
        if summary.records < records {
            let found = summary.records;
            let error = IndexError::damaged(format!("it should have {records} records, and only {found} were found"));
            let _ = fs::remove_file(path);
            self.engine.give_up(&index, &error);
            return Err(unavailable(error.to_string()));
        }

        let (bytes, ms) = (summary.bytes, started.elapsed().as_millis());
        tracing::info!(records = summary.records, bytes, ms, "a snapshot of the feature store was taken");
        // The index on the disk is at most as old as the journal that is kept.
        if let Err(error) = index.flush() {
            tracing::warn!(%error, "the feature index cannot be written; the next start may build it again");
        }
        Counters::count(&self.engine.counters.snapshots);
        self.no_snapshot_before = Instant::now();
        self.snapshot_at = replay_from;

        // A reader may have found damage while the snapshot was written.
        if self.engine.live().is_some_and(|live| Arc::ptr_eq(&live, &index)) {
            let kept = snapshot::list(self.engine.files.folder()).unwrap_or_default();
            if self.engine.acknowledged.lacking().is_some() {
                // An older snapshot would need entries that the journal lacks.
                self.remove_superseded(replay_from);
                self.engine.acknowledged.in_snapshot(replay_from);
            } else if let Some((oldest, _)) = kept.get(SNAPSHOTS_KEPT - 1) {
                // The first snapshot removes nothing: the journal goes back to the beginning.
                self.remove_superseded(*oldest);
            }
        }

        let left = self.engine.counters.journal_bytes.load(Relaxed);
        self.engine.counters.journal_bytes_at_snapshot.store(left.min(journal), Relaxed);
        self.engine.snapshot_asked.store(false, Relaxed);
        self.update_snapshot_figures();
        Ok(())
    }

    /// Ensures that there is room for a snapshot, if need be by removing the older of two. It may use half of
    /// `min_free_mb`, since it is a snapshot that allows journal segments to be removed.
    fn make_room(&self) -> Result<(), FeatureError> {
        let snapshots = snapshot::list(self.engine.files.folder()).unwrap_or_default();
        let last = snapshots.first().map_or(0, |(_, path)| Files::size(path));
        let need = last / 4 * 5 + (self.engine.config.min_free_mb << 19);
        let free = || self.engine.files.free().unwrap_or(u64::MAX);
        if free() < need
            && let [(newest, _), _, ..] = snapshots.as_slice()
        {
            tracing::warn!("there is no room for a third snapshot of the feature store; the oldest one is removed");
            self.remove_superseded(*newest);
        }
        if free() >= need { Ok(()) } else { Err(self.engine.disk_full(free())) }
    }

    /// Removes snapshots of lower numbers, and the journal that only they need. A file that cannot be removed does not
    /// stop the others; the first such error is returned.
    pub fn remove_before(&self, number: u64) -> io::Result<()> {
        let mut result = Ok(());
        for (older, path) in snapshot::list(self.engine.files.folder())? {
            if older < number {
                let removed = fs::remove_file(&path);
                result = result.and(removed.map_err(|error| io::Error::other(format!("{}: {error}", path.display()))));
            }
        }
        let closed = || io::Error::other("the writer thread of the feature store has ended");
        let (reply, done) = std::sync::mpsc::channel();
        let sent = self.engine.commands.blocking_send(WriterCommand::RemoveBefore { seq: number, reply });
        let removed = sent.map_err(|_| closed()).and_then(|()| done.recv().map_err(|_| closed())?);
        self.update_snapshot_figures();
        result.and(removed)
    }

    /// As [`Self::remove_before`], where a failure only costs disk space until the next call.
    pub fn remove_superseded(&self, number: u64) {
        if let Err(error) = self.remove_before(number) {
            tracing::warn!(%error, "old snapshots of the feature store, or the journal before them, cannot be removed; the next snapshot tries again");
        }
    }

    /// Reads journal and snapshots and checks every checksum. The index has everything that they have, so damaged files
    /// are set aside once a new snapshot has replaced them.
    pub fn scrub(&mut self) {
        self.scrubbed = Instant::now();
        if let Err(error) = self.destroy_unused_keys() {
            tracing::warn!(%error, "unused keys of the feature store were not destroyed; the next scrub tries again");
        }

        let (damage, unread) = match journal::verify(&self.engine.files.journal()) {
            Ok(damage) => (damage, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        for reason in damage.iter().map(ToString::to_string).chain(unread.clone()) {
            self.engine.alarm("the journal of the feature store is damaged; a snapshot replaces it", &reason);
        }

        let mut damaged: Vec<PathBuf> = Vec::new();
        for (_, path) in snapshot::list(self.engine.files.folder()).unwrap_or_default() {
            if let Err(error) = snapshot::verify_file(&path) {
                let reason = format!("{}: {error}", path.display());
                self.engine.alarm("a snapshot of the feature store is damaged; a new one replaces it", &reason);
                damaged.push(path);
            }
        }

        if damage.is_empty() && unread.is_none() && damaged.is_empty() {
            return;
        }

        let _ = self.engine.commands.blocking_send(WriterCommand::NoteDamage(damage));
        match self.snapshot() {
            Ok(()) => {
                // The new snapshot must not become the older one of two: the journal of a still older one would begin
                // too late.
                let new = self.engine.files.folder().join(snapshot::file_name(self.snapshot_at));
                for path in damaged.iter().filter(|path| **path != new) {
                    set_aside(&self.engine, path);
                }
                if let Some((newest, _)) = snapshot::list(self.engine.files.folder()).unwrap_or_default().first() {
                    self.remove_superseded(*newest);
                }
            }
            Err(error) => {
                tracing::error!(%error, "the damaged files of the feature store could not be replaced by a snapshot");
            }
        }
    }

    /// Updates the figures of the snapshots.
    pub fn update_snapshot_figures(&self) {
        let snapshots = snapshot::list(self.engine.files.folder()).unwrap_or_default();
        let sizes: Vec<u64> = snapshots.iter().map(|(_, path)| Files::size(path)).collect();
        self.engine.counters.snapshot_bytes.store(sizes.iter().sum(), Relaxed);
        self.engine.counters.newest_snapshot_bytes.store(sizes.first().copied().unwrap_or(0), Relaxed);
        let newest = snapshots.first().and_then(|(_, path)| fs::metadata(path).ok()?.modified().ok());
        let created = newest.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        let created = created.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0));
        self.engine.counters.snapshot_created_ms.store(created, Relaxed);
    }

    /// Updates the size of the index.
    pub fn update_index_size(&self) {
        if let Some(index) = self.engine.live() {
            self.engine.counters.index_bytes.store(Files::size(index.folder()), Relaxed);
        }
    }

    /// Compacts an index that has grown far beyond its records: sled never frees space.
    pub fn compact_if_worth_it(&mut self) {
        self.update_index_size();
        let index = self.engine.counters.index_bytes.load(Relaxed);
        if index > (self.newest_snapshot() * COMPACTION_FACTOR).max(COMPACTION_MIN_BYTES)
            && let Err(error) = self.compact()
        {
            tracing::warn!(%error, "the feature index could not be compacted");
        }
    }

    fn newest_snapshot(&self) -> u64 {
        let snapshots = snapshot::list(self.engine.files.folder()).unwrap_or_default();
        snapshots.first().map_or(0, |(_, path)| Files::size(path))
    }

    /// Builds a smaller copy of the index and uses it. Returns the bytes before and after.
    pub fn compact(&mut self) -> Result<(u64, u64), FeatureError> {
        let unavailable = |reason: String| FeatureError::Unavailable { reason };
        let free = self.engine.files.free().unwrap_or(u64::MAX);
        if free < self.newest_snapshot() * INDEX_FACTOR + (self.engine.config.min_free_mb << 20) {
            return Err(self.engine.disk_full(free));
        }
        let (index, from, records) = self.index_position(false)?;
        let before = Files::size(index.folder());
        self.engine.compacting.store(true, Relaxed);
        let copied = recovery::compact(&self.engine, &index, from, records);
        self.engine.compacting.store(false, Relaxed);
        let applier = copied.map_err(unavailable)?;
        let after = applier.index.folder().to_owned();
        let old = self.hand_over(applier).map_err(unavailable)?;
        let folder = index.folder().to_owned();
        drop(old);
        close(index);
        if let Err(error) = fs::remove_dir_all(&folder) {
            tracing::warn!(folder = %folder.display(), %error, "the old feature index cannot be removed");
        }
        self.update_index_size();
        Ok((before, Files::size(&after)))
    }
}

impl Engine {
    /// The header of a snapshot that has every entry before `replay_from`.
    pub fn snapshot_header(&self, replay_from: u64) -> snapshot::SnapshotHeader {
        snapshot::SnapshotHeader {
            replay_from,
            created_ms: clock::unix_millis(),
            hash_key_id: self.hash_key.id(),
            partial: false,
            catalog: self.registry.load().catalog().to_json(),
        }
    }

    /// True when the journal is so long that a snapshot should replace it: a start after a crash reads both. At half of the
    /// snapshot it reads at most half more than it must, and snapshots write two bytes for each of the journal.
    pub fn has_journal_grown(&self, bytes: u64) -> bool {
        let grown = bytes.saturating_sub(self.counters.journal_bytes_at_snapshot.load(Relaxed));
        let half = self.counters.newest_snapshot_bytes.load(Relaxed) / 2;
        grown >= half.max(JOURNAL_GROWTH_MIN).min(self.config.snapshot_mb << 20)
    }

    /// True when less than `min_free_mb` is free.
    pub fn is_disk_full(&self) -> bool {
        self.files.free().is_ok_and(|free| free < self.config.min_free_mb << 20)
    }

    /// The error for too little free space.
    pub fn disk_full(&self, free: u64) -> FeatureError {
        FeatureError::DiskFull {
            folder: self.files.folder().display().to_string(),
            free_mb: free >> 20,
            kept_mb: self.config.min_free_mb,
        }
    }
}
