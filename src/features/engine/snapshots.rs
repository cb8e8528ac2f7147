//! The upkeep's part that keeps copies: snapshots, the search for damage, and a smaller index.
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
use super::files::Files;
use super::orders::Command;
use super::recovery::{self, close, set_aside};
use super::upkeep::Upkeep;

/// A snapshot is taken once a day, however little has changed.
const SNAPSHOT_AGE_MS: u64 = 86_400_000;
/// After how long a snapshot that failed is tried again.
const PAUSE: Duration = Duration::from_mins(1);
/// How many snapshots are kept.
const KEPT: usize = 2;
/// A sled index takes up to so many times the room of its records while it is built.
pub const INDEX_FACTOR: u64 = 3;
/// An index that takes so many times the room of its records is built anew.
const WASTEFUL: u64 = 6;
/// Below this, in bytes, nobody minds.
const SMALL_INDEX: u64 = 256 << 20;

/// Why a scan into a file ended early.
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
    /// Whether the journal has grown long, or the last snapshot is old.
    pub fn snapshot_due(&self) -> bool {
        let counters = &self.engine.counters;
        let (next, bytes) = (counters.journal_next_seq.load(Relaxed), counters.journal_bytes.load(Relaxed));
        let age = clock::unix_millis().saturating_sub(counters.snapshot_created_ms.load(Relaxed));
        let due = self.engine.has_journal_grown(bytes) || (next > self.snapshot_at && age > SNAPSHOT_AGE_MS);
        due && Instant::now() >= self.no_snapshot_before
    }

    /// Takes a snapshot, and removes what it takes the place of.
    pub fn snapshot(&mut self) -> Result<(), FeatureError> {
        self.no_snapshot_before = Instant::now() + PAUSE;
        self.make_room()?;
        let unavailable = |reason: String| FeatureError::Unavailable { reason };
        let (index, replay_from, records) = self.mark(true)?;
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
        // Nothing is removed meanwhile but by this thread.
        if summary.records < records {
            let found = summary.records;
            let error = IndexError::damaged(format!("it should have {records} records, and only {found} were found"));
            let _ = fs::remove_file(path);
            self.engine.give_up(&index, &error);
            return Err(unavailable(error.to_string()));
        }
        let (bytes, ms) = (summary.bytes, started.elapsed().as_millis());
        tracing::info!(records = summary.records, bytes, ms, "a snapshot of the feature store was taken");
        Counters::count(&self.engine.counters.snapshots);
        self.no_snapshot_before = Instant::now();
        self.snapshot_at = replay_from;
        // A reader may have found damage while it was written.
        if self.engine.live().is_some_and(|live| Arc::ptr_eq(&live, &index)) {
            let kept = snapshot::list(self.engine.files.folder()).unwrap_or_default();
            if self.engine.acknowledged.lacking().is_some() {
                // An older one would need what the journal lacks.
                self.remove_superseded(replay_from);
                self.engine.acknowledged.in_snapshot(replay_from);
            } else if let Some((oldest, _)) = kept.get(KEPT - 1) {
                // The first one removes nothing of a journal that goes back to the beginning.
                self.remove_superseded(*oldest);
            }
        }
        let left = self.engine.counters.journal_bytes.load(Relaxed);
        self.engine.counters.journal_then.store(left.min(journal), Relaxed);
        self.engine.snapshot_asked.store(false, Relaxed);
        self.look_at_snapshots();
        Ok(())
    }

    /// Makes sure that there is room for a snapshot; the older of two goes when there is none. It may use half of what is kept
    /// free otherwise: it is what lets the journal go.
    fn make_room(&self) -> Result<(), FeatureError> {
        let snapshots = snapshot::list(self.engine.files.folder()).unwrap_or_default();
        let last = snapshots.first().map_or(0, |(_, path)| Files::size(path));
        let need = last / 4 * 5 + (self.engine.config.min_free_mb << 19);
        let free = || self.engine.files.free().unwrap_or(u64::MAX);
        if free() < need
            && let [(newest, _), _, ..] = snapshots.as_slice()
        {
            tracing::warn!("there is no room for another snapshot of the feature store beside two; the older one goes");
            self.remove_superseded(*newest);
        }
        if free() >= need { Ok(()) } else { Err(self.engine.disk_full(free())) }
    }

    /// Removes snapshots of lower numbers, and the journal that they need. What cannot be removed keeps nothing else from it,
    /// and the first such is the error.
    pub fn remove_before(&self, number: u64) -> io::Result<()> {
        let mut result = Ok(());
        for (older, path) in snapshot::list(self.engine.files.folder())? {
            if older < number {
                let removed = fs::remove_file(&path);
                result = result.and(removed.map_err(|error| io::Error::other(format!("{}: {error}", path.display()))));
            }
        }
        let closed = || io::Error::other("the writer is gone");
        let (reply, done) = std::sync::mpsc::channel();
        let sent = self.engine.commands.blocking_send(Command::RemoveBefore { seq: number, reply });
        let removed = sent.map_err(|_| closed()).and_then(|()| done.recv().map_err(|_| closed())?);
        self.look_at_snapshots();
        result.and(removed)
    }

    /// The same where nobody needs them to be gone: the next time does it as well.
    pub fn remove_superseded(&self, number: u64) {
        if let Err(error) = self.remove_before(number) {
            tracing::warn!(%error, "old snapshots of the feature store, or the journal before them, cannot be removed");
        }
    }

    /// Reads journal and snapshots and checks every checksum. The index has what they have, so what is damaged is set aside
    /// once a new snapshot has taken its place.
    pub fn scrub(&mut self) {
        self.scrubbed = Instant::now();
        if let Err(error) = self.forget_unused_keys() {
            tracing::warn!(%error, "keys that nothing uses were not destroyed");
        }
        let (damage, unread) = match journal::verify(&self.engine.files.journal()) {
            Ok(damage) => (damage, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        for reason in damage.iter().map(ToString::to_string).chain(unread.clone()) {
            self.engine.alarm("the journal of the feature store is damaged; a snapshot takes its place", &reason);
        }
        let mut damaged: Vec<PathBuf> = Vec::new();
        for (_, path) in snapshot::list(self.engine.files.folder()).unwrap_or_default() {
            if let Err(error) = snapshot::verify_file(&path) {
                let reason = format!("{}: {error}", path.display());
                self.engine.alarm("a snapshot of the feature store is damaged; a new one takes its place", &reason);
                damaged.push(path);
            }
        }
        if damage.is_empty() && unread.is_none() && damaged.is_empty() {
            return;
        }
        let _ = self.engine.commands.blocking_send(Command::NoteDamage(damage));
        match self.snapshot() {
            Ok(()) => {
                // It must not be the older one of two, beside which the journal begins too late.
                let new = self.engine.files.folder().join(snapshot::file_name(self.snapshot_at));
                for path in damaged.iter().filter(|path| **path != new) {
                    set_aside(&self.engine, path);
                }
                if let Some((newest, _)) = snapshot::list(self.engine.files.folder()).unwrap_or_default().first() {
                    self.remove_superseded(*newest);
                }
            }
            Err(error) => tracing::error!(%error, "no snapshot could be taken in the place of what is damaged"),
        }
    }

    /// Takes note of what the snapshots are.
    pub fn look_at_snapshots(&self) {
        let snapshots = snapshot::list(self.engine.files.folder()).unwrap_or_default();
        let bytes = snapshots.iter().map(|(_, path)| Files::size(path)).sum();
        self.engine.counters.snapshot_bytes.store(bytes, Relaxed);
        let newest = snapshots.first().and_then(|(_, path)| fs::metadata(path).ok()?.modified().ok());
        let created = newest.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        let created = created.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0));
        self.engine.counters.snapshot_created_ms.store(created, Relaxed);
    }

    /// Takes note of how large the index is.
    pub fn measure(&self) {
        if let Some(index) = self.engine.live() {
            self.engine.counters.index_bytes.store(Files::size(index.folder()), Relaxed);
        }
    }

    /// sled gives nothing back: an index that has grown far beyond what is in it is built anew.
    pub fn compact_if_worth_it(&mut self) {
        self.measure();
        let index = self.engine.counters.index_bytes.load(Relaxed);
        if index > (self.newest_snapshot() * WASTEFUL).max(SMALL_INDEX)
            && let Err(error) = self.compact()
        {
            tracing::warn!(%error, "the feature index was not compacted");
        }
    }

    fn newest_snapshot(&self) -> u64 {
        let snapshots = snapshot::list(self.engine.files.folder()).unwrap_or_default();
        snapshots.first().map_or(0, |(_, path)| Files::size(path))
    }

    /// Builds the index anew from itself; the bytes before and after.
    pub fn compact(&mut self) -> Result<(u64, u64), FeatureError> {
        let unavailable = |reason: String| FeatureError::Unavailable { reason };
        let free = self.engine.files.free().unwrap_or(u64::MAX);
        if free < self.newest_snapshot() * INDEX_FACTOR + (self.engine.config.min_free_mb << 20) {
            return Err(self.engine.disk_full(free));
        }
        let (index, from, records) = self.mark(false)?;
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
        self.measure();
        Ok((before, Files::size(&after)))
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

    /// Whether the journal is so long that a snapshot should take its place.
    pub fn has_journal_grown(&self, bytes: u64) -> bool {
        bytes.saturating_sub(self.counters.journal_then.load(Relaxed)) >= self.config.snapshot_mb << 20
    }

    /// Whether less is free than is kept free.
    pub fn is_disk_full(&self) -> bool {
        self.files.free().is_ok_and(|free| free < self.config.min_free_mb << 20)
    }

    /// That so much is free is too little.
    pub fn disk_full(&self, free: u64) -> FeatureError {
        FeatureError::DiskFull {
            folder: self.files.folder().display().to_string(),
            free_mb: free >> 20,
            kept_mb: self.config.min_free_mb,
        }
    }
}
