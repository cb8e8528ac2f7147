//! Snapshots, and the search for damage: parts of the maintenance thread.
//!
//! A snapshot is the one before with the changes of the layer over it, without expired records, and the index reads it
//! in place from then on. The two newest snapshots are kept, and the journal from the older one on: one bad place
//! anywhere loses nothing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ledge_base::{clock, sys};
use tokio::sync::oneshot;

use super::super::index::{EntityIndex, IndexError};
use super::super::journal;
use super::super::merge::purge_us;
use super::super::online::FeatureError;
use super::super::protection::RowEncryptionError;
use super::super::record::{self, StoredRecord};
use super::super::snapshot::{self, SnapshotWriter, SortedTable};
use super::super::statistics::StoreCounters;
use super::StoreEngine;
use super::commands::StoreWriterCommand;
use super::files::FeatureStoreFiles;
use super::maintenance::Maintenance;
use super::manifest::SnapshotChanges;
use super::recovery::{self, close, set_aside};

/// The age at which a snapshot is replaced, however little has changed, in milliseconds: a day.
const SNAPSHOT_AGE_MAX_MS: u64 = 86_400_000;
/// The growth of the journal up to which no snapshot is taken, in bytes: it is read again within a tenth of a second.
const JOURNAL_GROWTH_MIN: u64 = 8 << 20;
/// The pause before a failed snapshot is tried again.
const SNAPSHOT_RETRY_INTERVAL: Duration = Duration::from_mins(1);
/// The number of snapshots that are kept: the older one is for when the newer one is damaged.
const SNAPSHOTS_KEPT: usize = 2;
/// The records after which new keys are written to the disk; until then they wait in memory.
const PERSIST_INTERVAL_RECORDS: u64 = 4096;
/// The divisor of the cache that gives the most changes since a snapshot: beyond it sled is slow.
const LAYER_CACHE_DIVISOR: u64 = 2;

/// Reasons why a scan into a file ended early.
pub enum SnapshotScanError {
    Index(IndexError),
    Io(io::Error),
}

impl From<IndexError> for SnapshotScanError {
    fn from(error: IndexError) -> Self {
        Self::Index(error)
    }
}

impl From<io::Error> for SnapshotScanError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The counts of the records that a snapshot was made from.
#[derive(Debug, Default)]
struct SnapshotCopyCounts {
    written: u64,
    /// Removed because they had expired.
    expired: u64,
    /// Left out because their entity was erased.
    erased: u64,
}

/// Writes every record of an index below its top layer.
fn write_all<W: io::Write>(
    engine: &StoreEngine,
    index: &EntityIndex,
    remove_until_us: Option<i64>,
    writer: &mut SnapshotWriter<W>,
) -> Result<SnapshotCopyCounts, SnapshotScanError> {
    let registry = engine.registry.load_full();
    let protection = &engine.protection;
    let mut copied = SnapshotCopyCounts::default();
    let damaged = |error| SnapshotScanError::Index(IndexError::damaged(format!("a record cannot be used: {error}")));

    index.scan_frozen(|key, bytes| {
        if protection.is_erased(&key, bytes) {
            copied.erased += 1;
            return Ok(());
        }
        let mut changed = None;
        if let Some(now_us) = remove_until_us.filter(|now_us| record::purge_us(bytes) <= *now_us) {
            let StoredRecord { header, seal, windows, body } = StoredRecord::verify(&key, bytes).map_err(damaged)?;
            // The view may have another ttl by now.
            let until = registry.view_by_id(key.view());
            let purge_us = until.map_or(header.purge_us, |view| purge_us(view, header.event_us, engine.keep_us()));
            if purge_us <= now_us {
                copied.expired += 1;
                return Ok(());
            }
            changed = Some(record::RecordHeader { purge_us, ..header }.with_body(&key, seal, windows, body));
        }
        let bytes = changed.as_deref().unwrap_or(bytes);
        let sealed = protection.sealed(&key, bytes).map_err(|error| match error {
            RowEncryptionError::Damaged(error) => damaged(error),
            RowEncryptionError::Keys(error) => SnapshotScanError::Io(io::Error::other(error)),
        })?;
        writer.add(&key, sealed.as_deref().unwrap_or(bytes))?;
        copied.written += 1;
        if copied.written.is_multiple_of(PERSIST_INTERVAL_RECORDS) {
            protection.persist().map_err(io::Error::other)?;
        }
        Ok::<(), SnapshotScanError>(())
    })?;
    protection.persist().map_err(io::Error::other)?;
    Ok(copied)
}

impl Maintenance {
    /// True when the journal has grown long, or the last snapshot is old.
    pub fn snapshot_due(&self) -> bool {
        let counters = &self.engine.counters;
        let (next, bytes) = (counters.journal_next_seq.load(Relaxed), counters.journal_bytes.load(Relaxed));
        let age = clock::unix_millis().saturating_sub(counters.snapshot_created_ms.load(Relaxed));
        let has_changed = next > self.snapshot_at || self.has_expired();
        // One of every day waits until expired rows may be removed: a box that is restarted daily would keep them.
        let is_old = age > SNAPSHOT_AGE_MAX_MS && Instant::now() >= self.no_removal_before;
        let due = self.engine.has_grown(bytes) || (has_changed && is_old);
        due && Instant::now() >= self.no_snapshot_before
    }

    /// True when the newest snapshot has records that may be removed.
    fn has_expired(&self) -> bool {
        let index = self.engine.live();
        let earliest = index.as_ref().and_then(|index| Some(index.snapshot()?.statistics().earliest_purge_us));
        earliest.is_some_and(|earliest_us| earliest_us <= clock::unix_micros())
    }

    /// Takes a snapshot that has every change made until now.
    pub fn snapshot(&mut self) -> Result<(), FeatureError> {
        if self.engine.live().is_some_and(|index| index.frozen().is_some()) {
            // That of an attempt that failed has the changes until then.
            self.write_snapshot()?;
        }
        self.write_snapshot()?;
        self.snapshot_fault.end();
        Ok(())
    }

    /// Writes a snapshot of the frozen layer, makes the index read from it, and removes the files that it replaces.
    fn write_snapshot(&mut self) -> Result<(), FeatureError> {
        self.no_snapshot_before = Instant::now() + SNAPSHOT_RETRY_INTERVAL;
        self.make_room()?;
        let unavailable = |reason: String| FeatureError::Unavailable { reason };

        let index = self.frozen_index()?;
        let Some(frozen) = index.frozen() else { return Err(unavailable("it has no changes to write".into())) };
        let number = frozen.number;
        let started = Instant::now();
        let journal = self.engine.counters.journal_bytes.load(Relaxed);
        let header = self.engine.snapshot_header(number);

        let remove_until_us = self.may_remove_until();
        let (mut broken, mut copied) = (None, SnapshotCopyCounts::default());
        let written = snapshot::write_file(self.engine.files.folder(), &header, |writer| {
            let written = write_all(&self.engine, &index, remove_until_us, writer).and_then(|written| {
                let (has, found) = (frozen.records, written.written + written.expired + written.erased);
                let lacks = || format!("it should have {has} records, and only {found} were found");
                if found < has { Err(IndexError::damaged(lacks()).into()) } else { Ok(written) }
            });
            copied = written.map_err(|error| match error {
                SnapshotScanError::Io(error) => error,
                SnapshotScanError::Index(error) => {
                    broken = Some(error.clone());
                    io::Error::other(error)
                }
            })?;
            Ok(())
        });

        if let Some(error) = broken {
            self.engine.give_up(&index, &error);
            return Err(unavailable(error.to_string()));
        }

        let not_written = |error: &dyn std::fmt::Display| FeatureError::NotWritten { reason: error.to_string() };
        let (path, summary) = written.map_err(|error| not_written(&error))?;
        let table = SortedTable::open(&path).map_err(|error| not_written(&error))?;
        let table = table.ok_or_else(|| not_written(&"it is not sorted"))?;
        let (bytes, ms) = (summary.bytes, started.elapsed().as_millis());
        tracing::info!(
            name: "features.snapshot_taken",
            records = summary.records,
            bytes,
            ms,
            "a snapshot of the feature store was taken"
        );
        StoreCounters::count(&self.engine.counters.snapshots);
        self.engine.counters.purged.fetch_add(copied.expired, Relaxed);
        self.no_snapshot_before = Instant::now();
        self.snapshot_at = number;
        // A layer with every record has entries from the beginning on.
        let after = index.snapshot().map_or(1, |snapshot| snapshot.header().replay_from);
        let noted =
            self.engine.files.add_to_manifest(SnapshotChanges { after, number, changed: frozen.changed.clone() });
        if let Err(error) = noted {
            tracing::warn!(%error, "cannot write the manifest of the feature store; a loss of its snapshots might not be counted");
        }

        // A reader may have found damage while the snapshot was written.
        if self.install(&index, Arc::new(table)) {
            let kept = snapshot::list(self.engine.files.folder()).unwrap_or_default();
            if self.engine.acknowledged.lacking().is_some() || self.engine.has_gap.swap(false, Relaxed) {
                // An older snapshot would need entries that the journal lacks.
                self.remove_superseded(number);
                self.engine.acknowledged.in_snapshot(number);
                self.second_copy_due = true;
            } else if let Some((oldest, _)) = kept.get(SNAPSHOTS_KEPT - 1) {
                // The first snapshot removes nothing: the journal goes back to the beginning.
                self.remove_superseded(*oldest);
            }
            let folder = frozen.layer.folder().to_owned();
            close(index);
            if let Err(error) = fs::remove_dir_all(&folder) {
                tracing::warn!(folder = %folder.display(), %error, "the changes that are in a snapshot now cannot be removed");
            }
        }

        if copied.expired > 0 {
            // The profiles of entities end with their rows.
            self.engine.profiles.settle(&self.engine);
        }

        let left = self.engine.counters.journal_bytes.load(Relaxed);
        self.engine.counters.journal_bytes_at_snapshot.store(left.min(journal), Relaxed);
        self.engine.snapshot_asked.store(false, Relaxed);
        self.update_snapshot_figures();
        self.update_index_size();
        sys::return_free_memory();
        Ok(())
    }

    /// The index in use, with a layer that does not change any more: of an earlier attempt at a snapshot, or a new one.
    fn frozen_index(&self) -> Result<Arc<EntityIndex>, FeatureError> {
        let unavailable = || FeatureError::Unavailable { reason: self.engine.state.load().reason() };
        // Waits until earlier commands, such as one of an erasure, are done.
        let (index, ..) = self.index_position()?;
        if index.frozen().is_some() {
            return Ok(index);
        }
        let layer = self.engine.syncing(|| recovery::new_layer(&self.engine));
        let layer = layer.map_err(|reason| FeatureError::NotWritten { reason })?;
        let folder = layer.folder().to_owned();
        // No two snapshots have the same number, also without an entry between them.
        let snapshots = snapshot::list(self.engine.files.folder());
        let snapshots = snapshots.map_err(|error| FeatureError::NotWritten { reason: error.to_string() })?;
        let least = snapshots.first().map_or(0, |(newest, _)| newest + 1);
        let (reply, answer) = oneshot::channel();
        let sent = self.engine.commands.blocking_send(StoreWriterCommand::Freeze { layer, least, reply });
        let frozen =
            sent.map_err(|_| unavailable()).and_then(|()| answer.blocking_recv().map_err(|_| unavailable())?);
        frozen.inspect_err(|_| drop(fs::remove_dir_all(folder)))
    }

    fn install(&self, index: &Arc<EntityIndex>, snapshot: Arc<SortedTable>) -> bool {
        let (reply, answer) = std::sync::mpsc::channel();
        let command = StoreWriterCommand::Rebase { index: index.clone(), snapshot, reply };
        self.engine.commands.blocking_send(command).is_ok() && answer.recv().unwrap_or(false)
    }

    /// Ensures that there is room for a snapshot, if need be by removing the older of two. It may use half of
    /// `min_free_mb`, since it is a snapshot that allows journal segments to be removed.
    fn make_room(&self) -> Result<(), FeatureError> {
        // The remainder of a failed snapshot must not take room from the next one.
        let _ = snapshot::remove_unfinished(self.engine.files.folder());
        let snapshots = snapshot::list(self.engine.files.folder()).unwrap_or_default();
        let last = snapshots.first().map_or(0, |(_, path)| FeatureStoreFiles::size(path));
        let need = last / 4 * 5 + (self.engine.config.min_free_mb << 19);
        let free = || self.engine.files.free().unwrap_or(u64::MAX);
        if free() < need
            && let [(newest, newest_path), (_, oldest_path), ..] = snapshots.as_slice()
            && free() + FeatureStoreFiles::size(oldest_path) >= need
            && snapshot::verify_file(newest_path).is_ok()
        {
            tracing::warn!("there is no room for a third snapshot of the feature store; the oldest one is removed");
            self.remove_superseded(*newest);
        }
        if free() >= need { Ok(()) } else { Err(self.engine.disk_full(free())) }
    }

    /// Removes snapshots of lower numbers, and the journal that only they need. A file that cannot be removed does not
    /// stop the removal of the others; the first error is returned.
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
        let sent = self.engine.commands.blocking_send(StoreWriterCommand::RemoveBefore { seq: number, reply });
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

        let _ = self.engine.commands.blocking_send(StoreWriterCommand::NoteDamage(damage));
        if let Some(index) = self.engine.live()
            && let Some(path) = index.snapshot().map(|snapshot| snapshot.path().to_owned())
            && damaged.contains(&path)
        {
            set_aside(&self.engine, &path);
            if !self.replace_base(index) {
                return;
            }
        }
        match self.snapshot() {
            Ok(()) => {
                // The new snapshot must not become the older one of two: the journal of a still older one would begin
                // too late.
                let new = self.engine.files.folder().join(snapshot::file_name(self.snapshot_at));
                for path in damaged.iter().filter(|path| **path != new && path.exists()) {
                    set_aside(&self.engine, path);
                }
                if let Some((newest, _)) = snapshot::list(self.engine.files.folder()).unwrap_or_default().first() {
                    self.remove_superseded(*newest);
                }
                self.keep_two_copies();
            }
            Err(error) => {
                tracing::error!(%error, "the damaged files of the feature store could not be replaced by a snapshot");
            }
        }
    }

    /// Makes an index over the snapshot before, and uses it instead of `index`, as its snapshot is damaged. False: no
    /// such index could be made, and `index` is given up.
    fn replace_base(&self, index: Arc<EntityIndex>) -> bool {
        let folders: Vec<PathBuf> = index.folders().map(Path::to_owned).collect();
        match recovery::make_anew(&self.engine, &index).and_then(|applier| self.hand_over(applier)) {
            Ok(old) => drop(old),
            Err(reason) => {
                self.engine.give_up(&index, &IndexError::damaged(reason));
                return false;
            }
        }
        close(index);
        for folder in folders {
            if let Err(error) = fs::remove_dir_all(&folder) {
                tracing::warn!(folder = %folder.display(), %error, "an old feature index cannot be removed");
            }
        }
        true
    }

    /// Updates the figures of the snapshots.
    pub fn update_snapshot_figures(&self) {
        let snapshots = snapshot::list(self.engine.files.folder()).unwrap_or_default();
        let sizes: Vec<u64> = snapshots.iter().map(|(_, path)| FeatureStoreFiles::size(path)).collect();
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
            let bytes = index.folders().map(FeatureStoreFiles::size).sum();
            self.engine.counters.index_bytes.store(bytes, Relaxed);
        }
    }

    /// Writes everything into a new snapshot, and starts over with no changes. Returns the bytes that the changes took
    /// before and after.
    pub fn compact(&mut self) -> Result<(u64, u64), FeatureError> {
        self.update_index_size();
        let before = self.engine.counters.index_bytes.load(Relaxed);
        self.snapshot()?;
        Ok((before, self.engine.counters.index_bytes.load(Relaxed)))
    }
}

impl StoreEngine {
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

    /// True when enough has changed for a snapshot: a start after a crash reads it and the journal, and the changes
    /// should fit sled's cache. At half of the snapshot a start reads at most half more than it must, and snapshots
    /// write two bytes for each of the journal.
    pub fn has_grown(&self, journal_bytes: u64) -> bool {
        let grown = journal_bytes.saturating_sub(self.counters.journal_bytes_at_snapshot.load(Relaxed));
        let half = self.counters.newest_snapshot_bytes.load(Relaxed) / 2;
        grown >= half.max(JOURNAL_GROWTH_MIN).min(self.config.snapshot_mb << 20)
            || self.counters.layer_bytes.load(Relaxed) >= (self.config.cache_mb << 20) / LAYER_CACHE_DIVISOR
    }

    /// Runs work that makes sled sync a file: it has one lock for all its stores, and holds it meanwhile.
    pub fn syncing<T>(&self, work: impl FnOnce() -> T) -> T {
        self.is_syncing.store(true, Relaxed);
        let done = work();
        self.is_syncing.store(false, Relaxed);
        done
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

#[cfg(test)]
mod tests;
