//! Applies journal entries and snapshot records to an index. Pushes, replays and rebuilds share this code.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::entity_keys::KeysError;
use super::super::key::IndexKey;
use super::super::merge::{Merged, merge, purge_us, supersede};
use super::super::protection::{Body, Protection, Unsealable};
use super::super::record::{self, Record, Row, Seal};
use super::super::registry::Registry;
use super::super::seal::SealContext;
use super::super::store::{Changes, Index, IndexError, RecordBytes, Tally, expiry_key};
use super::super::view::{FeatureView, ViewId};

/// The rows that are merged before they are written: their results are in memory until then.
const CHUNK_ROWS: usize = 128;

/// One change from the journal.
#[derive(Debug, Clone)]
pub struct PendingChange {
    /// Its sequence number.
    pub seq: u64,
    pub key: IndexKey,
    pub action: Action,
    /// The latest event time that was trusted when it was written.
    pub latest_us: i64,
}

#[derive(Debug, Clone)]
pub enum Action {
    /// Merges a row; the body is the row as the journal has it.
    Put(Arc<FeatureView>, Row, Body),
    Delete,
    /// The row of a view that is no longer declared: kept until the view is declared again.
    PutUndeclared(Row),
}

impl Action {
    /// The action for a row that was pushed to `view`, and its bytes in the journal.
    pub fn of_row(registry: &Registry, view: ViewId, row: Row, body: Body) -> Self {
        match registry.view_by_id(view) {
            Some(view) => Self::Put(view.clone(), row, body),
            None => Self::PutUndeclared(row),
        }
    }
}

/// Figures of the records in an index.
#[derive(Debug, Clone, Default)]
pub struct IndexContent {
    pub tally: Tally,
    /// The rows of each view.
    pub rows: HashMap<ViewId, u64>,
    /// The highest sequence number of any record that was ever in it.
    pub highest: u64,
    /// The newest event time of any record.
    pub newest_us: i64,
}

impl IndexContent {
    /// Counts a record in.
    pub fn add(&mut self, key: &IndexKey, record: &[u8]) {
        self.tally.add(key, record);
        self.highest = self.highest.max(record::sequence_number(record));
        self.newest_us = self.newest_us.max(record::event_us(record));
        *self.rows.entry(key.view()).or_default() += 1;
    }

    fn subtract(&mut self, key: &IndexKey, record: &[u8]) {
        self.tally.subtract(key, record);
        let rows = self.rows.entry(key.view()).or_default();
        *rows = rows.saturating_sub(1);
    }
}

/// Writes into one index and keeps the figures of its content. Each index has one applier.
#[derive(Debug)]
pub struct Applier {
    pub index: Arc<Index>,
    pub content: IndexContent,
    /// The last journal entry that is in it.
    pub applied: u64,
    /// Rows that replaced one from a future that the clock left again.
    pub taken_back: u64,
    keep_us: i64,
    protection: Arc<Protection>,
}

/// The record of an entity while a batch is merged.
struct RecordInChunk {
    stored: Option<(record::RecordHeader, RecordBytes)>,
    change: RecordChange,
}

enum RecordChange {
    Unchanged,
    Changed(record::RecordHeader, Vec<u8>),
    Removed,
}

impl Applier {
    /// Creates an applier for an index with this content. `keep_us` is how long a row is kept after its ttl has passed.
    pub fn new(
        index: Arc<Index>,
        content: IndexContent,
        applied: u64,
        keep_us: i64,
        protection: Arc<Protection>,
    ) -> Self {
        Self { index, content, applied, taken_back: 0, keep_us, protection }
    }

    /// Applies the changes in order. Returns the outcome of each.
    pub fn apply(&mut self, pending: &[PendingChange]) -> Result<Vec<Merged>, IndexError> {
        let mut outcomes = Vec::with_capacity(pending.len());
        for chunk in pending.chunks(CHUNK_ROWS) {
            let touched = self.merged(chunk, &mut outcomes)?;
            self.applied = chunk.last().map_or(self.applied, |last| last.seq.max(self.applied));
            self.write(touched)?;
        }
        Ok(outcomes)
    }

    /// Applies changes in the order of their keys: neighbours in the index are read and written together, which takes a tenth of the
    /// time where the index is larger than its cache. Those of one entity stay in their order. They count as applied when all
    /// are: after a crash meanwhile they are applied again.
    pub fn replay(&mut self, mut pending: Vec<PendingChange>) -> Result<(), IndexError> {
        let last = pending.iter().map(|change| change.seq).max();
        pending.sort_by_key(|change| change.key);
        for chunk in pending.chunks(CHUNK_ROWS) {
            let touched = self.merged(chunk, &mut Vec::with_capacity(chunk.len()))?;
            self.write(touched)?;
        }
        self.applied = self.applied.max(last.unwrap_or(0));
        self.note_applied()
    }

    /// Merges a chunk, and adds the outcome of each change.
    fn merged(
        &mut self,
        chunk: &[PendingChange],
        outcomes: &mut Vec<Merged>,
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
            self.taken_back += u64::from(merged == Merged::Accepted && had_us > change.latest_us && !is_newer);
            outcomes.push(merged);
        }
        Ok(touched)
    }

    /// Stores records of a snapshot that are newer than those of the index. Plain ones are encrypted where encryption
    /// is on.
    pub fn upsert(&mut self, mut records: Vec<(IndexKey, Vec<u8>)>) -> Result<(), IndexError> {
        for (key, bytes) in &mut records {
            let sealed = self.protection.sealed(key, bytes).map_err(|error| match error {
                Unsealable::Damaged(error) => damaged(error),
                Unsealable::Keys(error) => unwritten(&error),
            })?;
            if let Some(sealed) = sealed {
                *bytes = sealed;
            }
        }

        self.protection.persist().map_err(|error| unwritten(&error))?;

        for chunk in records.chunks(CHUNK_ROWS) {
            let mut changes = Changes::default();
            for (key, bytes) in chunk {
                let header = verified(key, bytes)?;
                let stored = self.index.get(key)?;
                let old = stored.as_ref().map(|stored| verified(key, stored)).transpose()?;
                if old.is_none_or(|old| old.seq < header.seq) {
                    if let Some(stored) = &stored {
                        self.content.subtract(key, stored);
                    }
                    self.content.add(key, bytes);
                    changes.put(key, bytes, header.purge_us, old.map(|old| old.purge_us));
                }
            }
            self.index.apply(&changes)?;
        }

        Ok(())
    }

    /// Removes expired records, except those that were pushed again or whose view has another ttl by now. Returns how
    /// many were removed.
    pub fn purge(
        &mut self,
        registry: &Registry,
        expired: &[(Vec<u8>, IndexKey)],
        now_us: i64,
    ) -> Result<usize, IndexError> {
        let mut gone = 0;
        for chunk in expired.chunks(CHUNK_ROWS) {
            let mut changes = Changes::default();
            for (entry, key) in chunk {
                changes.forget_expiry(entry);
                let Some(stored) = self.index.get(key)? else { continue };
                let header = verified(key, &stored)?;
                // After a crash an expiry entry of an earlier record may be left.
                if expiry_key(header.purge_us, key).is_none_or(|own| own != **entry) {
                    continue;
                }
                let until = |view: &Arc<FeatureView>| purge_us(view, header.event_us, self.keep_us);
                let purge_us = registry.view_by_id(key.view()).map_or(header.purge_us, until);
                self.content.subtract(key, &stored);
                if purge_us <= now_us {
                    changes.remove(key, header.purge_us);
                    gone += 1;
                } else {
                    let stored = record::StoredRecord::verify(key, &stored).map_err(damaged)?;
                    let header = record::RecordHeader { purge_us, ..header };
                    let bytes = header.with_body(key, stored.seal, stored.windows, stored.body);
                    self.content.add(key, &bytes);
                    changes.put(key, &bytes, purge_us, None);
                }
            }
            self.index.apply(&changes)?;
        }
        Ok(gone)
    }

    /// Stores the number of the last applied entry: it may come from a snapshot, without an entry of its own.
    pub fn note_applied(&self) -> Result<(), IndexError> {
        let mut changes = Changes::default();
        changes.applied(self.applied);
        self.index.apply(&changes)
    }

    fn load(&self, key: &IndexKey) -> Result<RecordInChunk, IndexError> {
        let stored = match self.index.get(key)? {
            Some(bytes) => Some((verified(key, &bytes)?, bytes)),
            None => None,
        };
        // The leftover record of an erased entity must not affect a new one of the same key.
        let erased = stored.as_ref().is_some_and(|(_, bytes)| self.protection.is_erased(key, bytes));
        Ok(RecordInChunk { stored, change: if erased { RecordChange::Removed } else { RecordChange::Unchanged } })
    }

    fn write(&mut self, touched: HashMap<IndexKey, RecordInChunk>) -> Result<(), IndexError> {
        self.protection.persist().map_err(|error| unwritten(&error))?;
        let mut changes = Changes::default();
        changes.applied(self.applied);
        for (key, RecordInChunk { stored, change }) in touched {
            if matches!(change, RecordChange::Unchanged) {
                continue;
            }
            if let Some((_, bytes)) = &stored {
                self.content.subtract(&key, bytes);
            }
            let old = stored.map(|(header, _)| header.purge_us);
            if let RecordChange::Changed(header, bytes) = change {
                self.content.add(&key, &bytes);
                changes.put(&key, &bytes, header.purge_us, old);
            } else {
                changes.remove(&key, old.unwrap_or(i64::MAX));
            }
        }
        self.index.apply(&changes)
    }
}

impl RecordInChunk {
    fn take(&mut self, change: &PendingChange, keep_us: i64, protection: &Protection) -> Result<Merged, IndexError> {
        let PendingChange { seq, key, action, latest_us } = change;
        let (record, merged) = match action {
            Action::Put(view, row, body) if view.aggregations.is_empty() => {
                let merged = supersede(self.header(), row.event_us, *seq, *latest_us);
                if merged == Merged::Accepted {
                    let purge_us = purge_us(view, row.event_us, keep_us);
                    let header = record::RecordHeader { seq: *seq, event_us: row.event_us, purge_us };
                    let bytes = if body.seal == Seal::default() {
                        let context = SealContext { key, seq: *seq, windows: false };
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
            Action::Put(view, row, _) => {
                let merged = merge(view, self.record(key, protection)?.as_ref(), row, *seq, *latest_us, keep_us);
                merged.map_err(|error| IndexError::damaged(format!("a record cannot be used: {error}")))?
            }
            Action::PutUndeclared(row) => undeclared(self.record(key, protection)?.as_ref(), row, *seq, *latest_us),
            Action::Delete => {
                // A record of a later entry belongs to the entity after it was pushed again.
                if self.header().is_some_and(|current| current.seq < *seq) {
                    self.change = RecordChange::Removed;
                }
                return Ok(Merged::Accepted);
            }
        };

        if let Some(record) = record {
            let bytes = protection.encode(key, &record).map_err(|error| unwritten(&error))?;
            self.change = RecordChange::Changed(record.header(), bytes);
        }
        Ok(merged)
    }

    fn header(&self) -> Option<record::RecordHeader> {
        match &self.change {
            RecordChange::Unchanged => self.stored.as_ref().map(|(header, _)| *header),
            RecordChange::Changed(header, _) => Some(*header),
            RecordChange::Removed => None,
        }
    }

    fn record(&self, key: &IndexKey, protection: &Protection) -> Result<Option<Record>, IndexError> {
        let bytes: &[u8] = match (&self.change, &self.stored) {
            (RecordChange::Unchanged, Some((_, bytes))) => bytes,
            (RecordChange::Changed(_, bytes), _) => bytes,
            (RecordChange::Unchanged, None) | (RecordChange::Removed, _) => return Ok(None),
        };
        match protection.record(key, bytes) {
            Ok(record) => Ok(Some(record)),
            Err(record::Damaged::Erased) => Ok(None),
            Err(error) => Err(damaged(error)),
        }
    }
}

/// Merges a row of a view that is no longer declared. It is kept for when the view is declared again, with its
/// aggregates unchanged.
fn undeclared(old: Option<&Record>, row: &Row, seq: u64, latest_us: i64) -> (Option<Record>, Merged) {
    match supersede(old.map(Record::header), row.event_us, seq, latest_us) {
        refused @ (Merged::Duplicate | Merged::Outdated | Merged::TooLate) => (None, refused),
        Merged::Accepted => {
            let windows = old.map_or_else(Vec::new, |old| old.windows.clone());
            (Some(Record { seq, purge_us: i64::MAX, row: row.clone(), windows }), Merged::Accepted)
        }
    }
}

fn verified(key: &IndexKey, bytes: &[u8]) -> Result<record::RecordHeader, IndexError> {
    record::verify(key, bytes).map_err(damaged)
}

fn unwritten(error: &KeysError) -> IndexError {
    IndexError::Io { reason: error.to_string() }
}

fn damaged(error: record::Damaged) -> IndexError {
    IndexError::damaged(format!("a record cannot be used: {error}"))
}

#[cfg(test)]
mod tests;
