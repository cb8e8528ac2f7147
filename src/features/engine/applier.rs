//! Applies journal entries and snapshot records to an index. Pushes, replays and rebuilds share this code.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::super::entity_keys::EntityKeysError;
use super::super::index::{ContentChecksum, EntityIndex, IndexEntry, IndexError, MemTableValue, RecordBytes};
use super::super::key::IndexKey;
use super::super::mem_table::MemTableChanges;
use super::super::merge::{MergeOutcome, merge, purge_us, supersede};
use super::super::profiles::sampler::RowSampler;
use super::super::protection::{RecordBody, RowCipher, RowEncryptionError};
use super::super::record::{self, CipherHeader, FeatureRecord, FeatureRow};
use super::super::registry::Registry;
use super::super::seal::CipherContext;
use super::super::snapshot::SnapshotStatistics;
use super::super::view::{FeatureView, ViewId};

/// The rows that are merged before they are written: their results are in memory until then.
const CHUNK_ROWS: usize = 128;

/// One change from the journal.
#[derive(Debug, Clone)]
pub struct PendingChange {
    /// Its sequence number.
    pub seq: u64,
    pub key: IndexKey,
    pub action: PendingAction,
    /// The latest event time that was trusted when it was written.
    pub latest_us: i64,
}

#[derive(Debug, Clone)]
pub enum PendingAction {
    /// Merges a row; the body is the row as the journal has it.
    Put(Arc<FeatureView>, FeatureRow, RecordBody),
    Delete,
    /// The row of a view that is no longer declared: kept until the view is declared again.
    PutUndeclared(FeatureRow),
}

impl PendingAction {
    /// The action for a row that was pushed to `view`, and its bytes in the journal.
    pub fn of_row(registry: &Registry, view: ViewId, row: FeatureRow, body: RecordBody) -> Self {
        match registry.view_by_id(view) {
            Some(view) => Self::Put(view.clone(), row, body),
            None => Self::PutUndeclared(row),
        }
    }
}

/// Figures of the records in an index.
#[derive(Debug, Clone, Default)]
pub struct IndexContent {
    /// The rows of each view in the snapshot.
    snapshot_rows: HashMap<ViewId, u64>,
    snapshot_newest_us: i64,
    /// The frozen layer, over that.
    frozen: MemTableContent,
    pub top: MemTableContent,
    /// The highest sequence number of any record that was ever in it.
    pub highest: u64,
}

/// Figures of a layer.
#[derive(Debug, Clone, Default)]
pub struct MemTableContent {
    pub checksum: ContentChecksum,
    /// The bytes of its keys and values.
    pub bytes: u64,
    views: HashMap<ViewId, MemTableViewContent>,
    /// The newest event time of its records.
    newest_us: i64,
}

/// Figures of one view in a layer.
#[derive(Debug, Clone, Copy, Default)]
struct MemTableViewContent {
    /// The rows that the layer has in addition to those below it; negative where it removes some.
    rows: i64,
    /// The entities with a value.
    values: u64,
}

impl MemTableContent {
    /// Counts a value in.
    pub fn add(&mut self, key: &IndexKey, value: &MemTableValue) {
        self.checksum.add(key, value.as_bytes());
        self.bytes += (IndexKey::LENGTH + value.as_bytes().len()) as u64;
        self.newest_us = value.record.as_ref().map_or(i64::MIN, |record| record::event_us(record)).max(self.newest_us);
        let view = self.views.entry(key.view()).or_default();
        view.rows += Self::rows_of(value);
        view.values += 1;
    }

    fn subtract(&mut self, key: &IndexKey, value: &MemTableValue) {
        self.checksum.subtract(key, value.as_bytes());
        self.bytes = self.bytes.saturating_sub((IndexKey::LENGTH + value.as_bytes().len()) as u64);
        let view = self.views.entry(key.view()).or_default();
        view.rows -= Self::rows_of(value);
        view.values = view.values.saturating_sub(1);
    }

    /// The entities of each view that have a value.
    pub fn changed(&self) -> Vec<(ViewId, u64)> {
        let changed = self.views.iter().filter(|(_, content)| content.values > 0);
        changed.map(|(view, content)| (*view, content.values)).collect()
    }

    /// The rows that a value adds to those below it.
    fn rows_of(value: &MemTableValue) -> i64 {
        i64::from(value.record.is_some()) - i64::from(value.is_below)
    }
}

impl IndexContent {
    /// The content of an index with an empty layer.
    pub fn over(snapshot: Option<&SnapshotStatistics>) -> Self {
        let mut content = Self::default();
        content.set_snapshot(snapshot);
        content
    }

    fn set_snapshot(&mut self, snapshot: Option<&SnapshotStatistics>) {
        self.snapshot_rows = snapshot.iter().flat_map(|snapshot| snapshot.records.iter().copied()).collect();
        self.snapshot_newest_us = snapshot.map_or(0, |snapshot| snapshot.newest_us);
    }

    /// Counts a value of the top layer in.
    pub fn add(&mut self, key: &IndexKey, value: &MemTableValue) {
        self.top.add(key, value);
        self.highest = self.highest.max(value.seq);
    }

    /// The newest event time of any record.
    pub fn newest_us(&self) -> i64 {
        self.snapshot_newest_us.max(self.frozen.newest_us).max(self.top.newest_us)
    }

    /// The rows of each view.
    pub fn rows(&self) -> HashMap<ViewId, u64> {
        let mut rows = self.snapshot_rows.clone();
        for (view, content) in self.frozen.views.iter().chain(&self.top.views) {
            let rows = rows.entry(*view).or_default();
            *rows = rows.saturating_add_signed(content.rows);
        }
        rows
    }

    /// The number of records.
    pub fn records(&self) -> u64 {
        self.rows().values().sum()
    }

    /// The top layer becomes the frozen one, under an empty one.
    fn rotate(&mut self) {
        self.frozen = std::mem::take(&mut self.top);
    }

    /// A snapshot takes the place of everything below the top layer.
    fn install(&mut self, snapshot: &SnapshotStatistics) {
        self.frozen = MemTableContent::default();
        self.set_snapshot(Some(snapshot));
    }
}

/// Writes into one index and keeps the figures of its content. Each index has one applier.
#[derive(Debug)]
pub struct IndexApplier {
    pub index: Arc<EntityIndex>,
    pub content: IndexContent,
    /// The last journal entry that is in it.
    pub applied: u64,
    /// The last journal entry that its layer knows of.
    begun: u64,
    /// Rows that replaced one from a future that the clock left again.
    pub taken_back: u64,
    keep_us: i64,
    protection: Arc<RowCipher>,
}

/// The record of an entity while a batch is merged.
struct RecordInChunk {
    stored: Option<(record::RecordHeader, RecordBytes)>,
    /// The value of the top layer.
    top: Option<MemTableValue>,
    is_below: bool,
    change: RecordChange,
}

enum RecordChange {
    Unchanged,
    Changed(record::RecordHeader, Vec<u8>),
    /// By this journal entry.
    Removed(u64),
}

impl IndexApplier {
    /// Creates an applier for an index with this content. `keep_us` is how long a row is kept after its ttl has passed.
    pub fn new(
        index: Arc<EntityIndex>,
        content: IndexContent,
        applied: u64,
        keep_us: i64,
        protection: Arc<RowCipher>,
    ) -> Self {
        let begun = index.top().begun().ok().flatten().unwrap_or(0).max(content.highest);
        Self { index, content, applied, begun, taken_back: 0, keep_us, protection }
    }

    /// Applies the changes in order. Returns the outcome of each.
    pub fn apply(&mut self, pending: &[PendingChange]) -> Result<Vec<MergeOutcome>, IndexError> {
        self.apply_sampled(pending, &mut RowSampler::default())
    }

    /// As [`Self::apply`]. The sampler takes the rows that are to be judged.
    pub fn apply_sampled(
        &mut self,
        pending: &[PendingChange],
        sampler: &mut RowSampler,
    ) -> Result<Vec<MergeOutcome>, IndexError> {
        let mut outcomes = Vec::with_capacity(pending.len());
        for chunk in pending.chunks(CHUNK_ROWS) {
            let touched = self.merged(chunk, &mut outcomes, Some(sampler))?;
            self.begun = chunk.last().map_or(self.begun, |last| last.seq.max(self.begun));
            self.applied = chunk.last().map_or(self.applied, |last| last.seq.max(self.applied));
            self.write(touched)?;
        }
        Ok(outcomes)
    }

    /// Applies changes in the order of their keys: neighbours in the index are read and written together, which takes a
    /// tenth of the time where the index is larger than its cache. Those of one entity stay in their order. They count
    /// as applied when all are: after a crash meanwhile they are applied again.
    pub fn replay(&mut self, mut pending: Vec<PendingChange>) -> Result<(), IndexError> {
        let last = pending.iter().map(|change| change.seq).max();
        self.begun = self.begun.max(last.unwrap_or(0));
        pending.sort_by_key(|change| change.key);
        for chunk in pending.chunks(CHUNK_ROWS) {
            let touched = self.merged(chunk, &mut Vec::with_capacity(chunk.len()), None)?;
            self.write(touched)?;
        }
        self.applied = self.applied.max(last.unwrap_or(0));
        self.note_applied()
    }

    /// Merges a chunk, and adds the outcome of each change.
    fn merged(
        &mut self,
        chunk: &[PendingChange],
        outcomes: &mut Vec<MergeOutcome>,
        mut sampler: Option<&mut RowSampler>,
    ) -> Result<HashMap<IndexKey, RecordInChunk>, IndexError> {
        let mut touched: HashMap<IndexKey, RecordInChunk> = HashMap::with_capacity(chunk.len());
        for change in chunk {
            let entity = match touched.entry(change.key) {
                std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::hash_map::Entry::Vacant(entry) => entry.insert(self.load(&change.key)?),
            };
            let had_us = entity.header().map_or(i64::MIN, |header| header.event_us);
            let merged = entity.take(change, self.keep_us, &self.protection)?;
            let is_newer = entity.header().is_none_or(|header| header.event_us >= had_us);
            self.taken_back += u64::from(merged == MergeOutcome::Accepted && had_us > change.latest_us && !is_newer);
            outcomes.push(merged);
            if let Some(sampler) = sampler.as_deref_mut().filter(|_| merged == MergeOutcome::Accepted) {
                entity.sample(change, &self.protection, sampler)?;
            }
        }
        Ok(touched)
    }

    /// Stores records of a snapshot that are newer than those of the index. Plain ones are encrypted where encryption
    /// is on.
    pub fn upsert(&mut self, mut records: Vec<(IndexKey, Vec<u8>)>) -> Result<(), IndexError> {
        for (key, bytes) in &mut records {
            let sealed = self.protection.sealed(key, bytes).map_err(|error| match error {
                RowEncryptionError::Damaged(error) => damaged(error),
                RowEncryptionError::Keys(error) => unwritten(&error),
            })?;
            if let Some(sealed) = sealed {
                *bytes = sealed;
            }
        }

        self.protection.persist().map_err(|error| unwritten(&error))?;

        for chunk in records.chunks(CHUNK_ROWS) {
            let (mut changes, mut keys) = (MemTableChanges::default(), HashSet::with_capacity(chunk.len()));
            for (key, bytes) in chunk {
                if !keys.insert(*key) {
                    // Two of one entity: the second one has to see the first.
                    self.index.top().apply(&std::mem::take(&mut changes))?;
                }
                let header = verified(key, bytes)?;
                let found = self.index.find(key)?;
                if Self::seq_of(key, &found)?.is_none_or(|seq| seq < header.seq) {
                    self.put(
                        key,
                        found.top.as_ref(),
                        Some(MemTableValue::of_record(bytes, found.is_below)),
                        &mut changes,
                    );
                }
            }
            self.index.top().apply(&changes)?;
        }

        Ok(())
    }

    /// Takes over values of a layer over a later snapshot, which cannot be read, where they are newer.
    pub fn absorb(&mut self, values: Vec<(IndexKey, MemTableValue)>) -> Result<(), IndexError> {
        let mut records = Vec::with_capacity(values.len());
        let mut changes = MemTableChanges::default();
        for (key, value) in values {
            if let Some(record) = &value.record {
                records.push((key, record.to_vec()));
                continue;
            }
            let found = self.index.find(&key)?;
            if Self::seq_of(&key, &found)?.is_some_and(|seq| seq < value.seq) {
                self.put(&key, found.top.as_ref(), found.is_below.then_some(value), &mut changes);
            }
        }
        self.index.top().apply(&changes)?;
        self.upsert(records)
    }

    /// The last journal entry of an entity that is in the index.
    fn seq_of(key: &IndexKey, found: &IndexEntry) -> Result<Option<u64>, IndexError> {
        let record = found.record.as_ref().map(|record| verified(key, record)).transpose()?;
        Ok(record.map(|header| header.seq).or(found.top.as_ref().map(|top| top.seq)))
    }

    /// Counts a change of the top layer, and adds it to the changes to be made.
    fn put(
        &mut self,
        key: &IndexKey,
        old: Option<&MemTableValue>,
        new: Option<MemTableValue>,
        changes: &mut MemTableChanges,
    ) {
        if let Some(old) = old {
            self.content.top.subtract(key, old);
        }
        if let Some(new) = &new {
            self.content.add(key, new);
            self.begun = self.begun.max(new.seq);
            changes.begun(self.begun);
        }
        changes.put(key, new);
    }

    /// Puts another index of the same content in the place of this one: its top layer, which is empty, takes the
    /// changes from now on.
    pub fn rotate(&mut self, index: Arc<EntityIndex>) {
        self.index = index;
        self.content.rotate();
    }

    /// Puts an index over this snapshot, which has everything below the top layer, in the place of this one.
    pub fn install(&mut self, index: Arc<EntityIndex>, snapshot: &SnapshotStatistics) {
        self.index = index;
        self.content.install(snapshot);
    }

    /// Stores the number of the last applied entry, which may come from a snapshot and not from an entry.
    pub fn note_applied(&self) -> Result<(), IndexError> {
        let mut changes = MemTableChanges::default();
        changes.applied(self.applied);
        self.index.top().apply(&changes)
    }

    fn load(&self, key: &IndexKey) -> Result<RecordInChunk, IndexError> {
        let IndexEntry { record, top, is_below } = self.index.find(key)?;
        let stored = match record {
            Some(bytes) => Some((verified(key, &bytes)?, bytes)),
            None => None,
        };
        // The leftover record of an erased entity must not affect a new one of the same key.
        let erased = stored.as_ref().filter(|(_, bytes)| self.protection.is_erased(key, bytes));
        let change = erased.map_or(RecordChange::Unchanged, |(header, _)| RecordChange::Removed(header.seq));
        Ok(RecordInChunk { stored, top, is_below, change })
    }

    fn write(&mut self, touched: HashMap<IndexKey, RecordInChunk>) -> Result<(), IndexError> {
        self.protection.persist().map_err(|error| unwritten(&error))?;
        let mut changes = MemTableChanges::default();
        changes.begun(self.begun);
        changes.applied(self.applied);
        for (key, RecordInChunk { top, is_below, change, .. }) in touched {
            let value = match change {
                RecordChange::Unchanged => continue,
                RecordChange::Changed(_, bytes) => Some(MemTableValue::of_record(&bytes, is_below)),
                RecordChange::Removed(seq) => is_below.then(|| MemTableValue::removed(&key, seq)),
            };
            self.put(&key, top.as_ref(), value, &mut changes);
        }
        self.index.top().apply(&changes)
    }
}

impl RecordInChunk {
    fn take(
        &mut self,
        change: &PendingChange,
        keep_us: i64,
        protection: &RowCipher,
    ) -> Result<MergeOutcome, IndexError> {
        let PendingChange { seq, key, action, latest_us } = change;
        if self.removed_by().is_some_and(|removed_by| removed_by >= *seq) {
            // A replay: the entity was removed by a later entry.
            return Ok(MergeOutcome::Duplicate);
        }
        let (record, merged) = match action {
            PendingAction::Put(view, row, body) if view.aggregations.is_empty() => {
                let merged = supersede(self.header(), row.event_us, *seq, *latest_us);
                if merged == MergeOutcome::Accepted {
                    let purge_us = purge_us(view, row.event_us, keep_us);
                    let header = record::RecordHeader { seq: *seq, event_us: row.event_us, purge_us };
                    let bytes = if body.seal == CipherHeader::default() {
                        let context = CipherContext { key, seq: *seq, windows: false };
                        let body = protection.seal(&context, &row.entity, body.bytes.clone());
                        let body = body.map_err(|error| unwritten(&error))?;
                        header.with_body(key, body.seal, false, &body.bytes)
                    } else {
                        header.with_body(key, body.seal, false, &body.bytes)
                    };
                    self.change = RecordChange::Changed(header, bytes);
                }
                return Ok(merged);
            }
            PendingAction::Put(view, row, _) => {
                let merged = merge(view, self.record(key, protection)?.as_ref(), row, *seq, *latest_us, keep_us);
                merged.map_err(|error| IndexError::damaged(format!("a record cannot be used: {error}")))?
            }
            PendingAction::PutUndeclared(row) => {
                undeclared(self.record(key, protection)?.as_ref(), row, *seq, *latest_us)
            }
            PendingAction::Delete => {
                // A record of a later entry belongs to the entity after it was pushed again.
                if self.header().is_some_and(|current| current.seq < *seq) {
                    self.change = RecordChange::Removed(*seq);
                }
                return Ok(MergeOutcome::Accepted);
            }
        };

        if let Some(record) = record {
            let bytes = protection.encode(key, &record).map_err(|error| unwritten(&error))?;
            self.change = RecordChange::Changed(record.header(), bytes);
        }
        Ok(merged)
    }

    /// Gives the sampler the record after a row that is its newest, if it is due. A time that is not trusted is that of
    /// a clock that is ahead.
    fn sample(
        &self,
        change: &PendingChange,
        protection: &RowCipher,
        sampler: &mut RowSampler,
    ) -> Result<(), IndexError> {
        let PendingAction::Put(view, row, _) = &change.action else { return Ok(()) };
        let is_newest = self.header().is_some_and(|header| header.event_us == row.event_us);
        if is_newest
            && row.event_us <= change.latest_us
            && sampler.is_due(view, &change.key, row.event_us)
            && let Some(record) = self.record(&change.key, protection)?
        {
            sampler.take(view, change.key, record);
        }
        Ok(())
    }

    /// The last journal entry of an entity that was removed.
    fn removed_by(&self) -> Option<u64> {
        match &self.change {
            RecordChange::Unchanged => self.top.as_ref().filter(|top| top.record.is_none()).map(|top| top.seq),
            RecordChange::Changed(..) => None,
            RecordChange::Removed(seq) => Some(*seq),
        }
    }

    fn header(&self) -> Option<record::RecordHeader> {
        match &self.change {
            RecordChange::Unchanged => self.stored.as_ref().map(|(header, _)| *header),
            RecordChange::Changed(header, _) => Some(*header),
            RecordChange::Removed(_) => None,
        }
    }

    fn record(&self, key: &IndexKey, protection: &RowCipher) -> Result<Option<FeatureRecord>, IndexError> {
        let bytes: &[u8] = match (&self.change, &self.stored) {
            (RecordChange::Unchanged, Some((_, bytes))) => bytes,
            (RecordChange::Changed(_, bytes), _) => bytes,
            (RecordChange::Unchanged, None) | (RecordChange::Removed(_), _) => return Ok(None),
        };
        match protection.record(key, bytes) {
            Ok(record) => Ok(Some(record)),
            // As a read does, which reports those that cannot be decrypted.
            Err(error) if error.is_undecryptable() || error == record::DamagedBytes::Erased => Ok(None),
            Err(error) => Err(damaged(error)),
        }
    }
}

/// Merges a row of a view that is no longer declared. It is kept for when the view is declared again, with its
/// aggregates unchanged.
fn undeclared(
    old: Option<&FeatureRecord>,
    row: &FeatureRow,
    seq: u64,
    latest_us: i64,
) -> (Option<FeatureRecord>, MergeOutcome) {
    match supersede(old.map(FeatureRecord::header), row.event_us, seq, latest_us) {
        refused @ (MergeOutcome::Duplicate | MergeOutcome::Outdated | MergeOutcome::TooLate) => (None, refused),
        MergeOutcome::Accepted => {
            let windows = old.map_or_else(Vec::new, |old| old.windows.clone());
            (Some(FeatureRecord { seq, purge_us: i64::MAX, row: row.clone(), windows }), MergeOutcome::Accepted)
        }
    }
}

fn verified(key: &IndexKey, bytes: &[u8]) -> Result<record::RecordHeader, IndexError> {
    record::verify(key, bytes).map_err(damaged)
}

fn unwritten(error: &EntityKeysError) -> IndexError {
    IndexError::Io { reason: error.to_string() }
}

fn damaged(error: record::DamagedBytes) -> IndexError {
    IndexError::damaged(format!("a record cannot be used: {error}"))
}

#[cfg(test)]
mod tests;
