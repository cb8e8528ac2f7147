//! Journal entries and snapshot records into an index. The same code for pushes, replays and rebuilds.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::key::IndexKey;
use super::super::merge::{Merged, merge, purge_us};
use super::super::record::{self, Record, Row};
use super::super::registry::Registry;
use super::super::store::{Changes, Index, IndexError, Tally};
use super::super::view::{FeatureView, ViewId};

/// How many rows are written in one transaction. Readers wait for a transaction: 32 rows take under a millisecond.
pub const CHUNK: usize = 32;

/// One change that the journal has.
#[derive(Debug, Clone)]
pub struct Pending {
    /// Its sequence number.
    pub seq: u64,
    /// What it is for.
    pub key: IndexKey,
    /// What it does.
    pub action: Action,
}

/// What a change does.
#[derive(Debug, Clone)]
pub enum Action {
    /// A row comes in.
    Put(Arc<FeatureView>, Row),
    /// The entity is removed.
    Delete,
    /// The row of a view that is declared no more: it waits until the view comes back.
    PutUndeclared(Row),
}

impl Action {
    /// The action of a row that was pushed to `view` at some time.
    pub fn of_row(registry: &Registry, view: ViewId, row: Row) -> Self {
        match registry.view_by_id(view) {
            Some(view) => Self::Put(view.clone(), row),
            None => Self::PutUndeclared(row),
        }
    }
}

/// What is in an index.
#[derive(Debug, Clone, Default)]
pub struct Content {
    /// All of it.
    pub tally: Tally,
    /// The rows of each view.
    pub rows: HashMap<ViewId, u64>,
    /// The highest sequence number of any record that was ever in it.
    pub highest: u64,
}

impl Content {
    /// Counts a record in.
    pub fn add(&mut self, key: &IndexKey, record: &[u8]) {
        self.tally.add(key, record);
        self.highest = self.highest.max(record::sequence_number(record));
        *self.rows.entry(key.view()).or_default() += 1;
    }

    fn subtract(&mut self, key: &IndexKey, record: &[u8]) {
        self.tally.subtract(key, record);
        let rows = self.rows.entry(key.view()).or_default();
        *rows = rows.saturating_sub(1);
    }
}

/// Writes into one index, and knows what is in it. There is one writer for each index.
#[derive(Debug)]
pub struct Applier {
    /// The index.
    pub index: Arc<Index>,
    /// What is in it.
    pub content: Content,
    /// The last journal entry that is in it.
    pub applied: u64,
    keep_us: i64,
}

/// An entity during one transaction.
struct Touched {
    stored: Option<Vec<u8>>,
    current: Option<Record>,
    changed: bool,
}

impl Applier {
    /// Over an index with this content. `keep_us` is how long a row is kept after its ttl has passed.
    pub fn new(index: Arc<Index>, content: Content, applied: u64, keep_us: i64) -> Self {
        Self { index, content, applied, keep_us }
    }

    /// Makes the changes, in their order; what came of each.
    pub fn apply(&mut self, pending: &[Pending]) -> Result<Vec<Merged>, IndexError> {
        let mut outcomes = Vec::with_capacity(pending.len());
        for chunk in pending.chunks(CHUNK) {
            let mut touched: HashMap<IndexKey, Touched> = HashMap::with_capacity(chunk.len());
            for change in chunk {
                let entity = match touched.entry(change.key) {
                    std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                    std::collections::hash_map::Entry::Vacant(entry) => entry.insert(self.load(&change.key)?),
                };
                outcomes.push(entity.take(change, self.keep_us)?);
            }
            self.applied = chunk.last().map_or(self.applied, |last| last.seq.max(self.applied));
            self.write(touched)?;
        }
        Ok(outcomes)
    }

    /// Takes records of a snapshot: those that are newer than what is there.
    pub fn upsert(&mut self, records: &[(IndexKey, Vec<u8>)]) -> Result<(), IndexError> {
        for chunk in records.chunks(CHUNK * 4) {
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

    /// Removes what expired, unless it has been pushed to again, or its view has another ttl by now. Returns how many records
    /// went.
    pub fn purge(
        &mut self,
        registry: &Registry,
        expired: &[(Vec<u8>, IndexKey)],
        now_us: i64,
    ) -> Result<usize, IndexError> {
        let mut gone = 0;
        for chunk in expired.chunks(CHUNK) {
            let mut changes = Changes::default();
            for (entry, key) in chunk {
                changes.forget_expiry(entry);
                let Some(stored) = self.index.get(key)? else { continue };
                let header = verified(key, &stored)?;
                let until = |view: &Arc<FeatureView>| purge_us(view, header.event_us, self.keep_us);
                let purge_us = registry.view_by_id(key.view()).map_or(header.purge_us, until);
                self.content.subtract(key, &stored);
                if purge_us <= now_us {
                    changes.remove(key, header.purge_us);
                    gone += 1;
                } else {
                    let record = Record::decode(key, &stored).map_err(|error| damaged(&error))?;
                    let bytes = Record { purge_us, ..record }.encode(key);
                    self.content.add(key, &bytes);
                    changes.put(key, &bytes, purge_us, None);
                }
            }
            self.index.apply(&changes)?;
        }
        Ok(gone)
    }

    /// Writes down which entry is the last one in it: that may come from a snapshot, without an entry of its own.
    pub fn note_applied(&self) -> Result<(), IndexError> {
        let mut changes = Changes::default();
        changes.applied(self.applied);
        self.index.apply(&changes)
    }

    fn load(&self, key: &IndexKey) -> Result<Touched, IndexError> {
        let stored = self.index.get(key)?.map(|bytes| bytes.to_vec());
        let current = stored.as_ref().map(|bytes| Record::decode(key, bytes)).transpose();
        let current = current.map_err(|error| IndexError::damaged(format!("of a record, {error}")))?;
        Ok(Touched { stored, current, changed: false })
    }

    fn write(&mut self, touched: HashMap<IndexKey, Touched>) -> Result<(), IndexError> {
        let mut changes = Changes::default();
        changes.applied(self.applied);
        for (key, Touched { stored, current, changed }) in touched {
            if !changed {
                continue;
            }
            let old = stored.as_ref().map(|bytes| verified(&key, bytes)).transpose()?.map(|header| header.purge_us);
            if let Some(bytes) = &stored {
                self.content.subtract(&key, bytes);
            }
            match current {
                Some(record) => {
                    let bytes = record.encode(&key);
                    self.content.add(&key, &bytes);
                    changes.put(&key, &bytes, record.purge_us, old);
                }
                None => changes.remove(&key, old.unwrap_or(i64::MAX)),
            }
        }
        self.index.apply(&changes)
    }
}

impl Touched {
    fn take(&mut self, change: &Pending, keep_us: i64) -> Result<Merged, IndexError> {
        let (record, merged) = match &change.action {
            Action::Put(view, row) => merge(view, self.current.as_ref(), row, change.seq, keep_us)
                .map_err(|error| IndexError::damaged(format!("of a record, {error}")))?,
            Action::PutUndeclared(row) => undeclared(self.current.as_ref(), row, change.seq),
            Action::Delete => {
                // A record of a later entry is of the entity's next life.
                let gone = self.current.as_ref().is_some_and(|current| current.seq < change.seq);
                if gone {
                    (self.current, self.changed) = (None, true);
                }
                return Ok(Merged::Accepted);
            }
        };
        if let Some(record) = record {
            (self.current, self.changed) = (Some(record), true);
        }
        Ok(merged)
    }
}

/// A row of a view that is declared no more: kept for the day it comes back, its aggregates as they were.
fn undeclared(old: Option<&Record>, row: &Row, seq: u64) -> (Option<Record>, Merged) {
    match old {
        Some(old) if old.seq >= seq => (None, Merged::Duplicate),
        Some(old) if old.row.event_us > row.event_us => (None, Merged::Outdated),
        old => {
            let windows = old.map_or_else(Vec::new, |old| old.windows.clone());
            (Some(Record { seq, purge_us: i64::MAX, row: row.clone(), windows }), Merged::Accepted)
        }
    }
}

fn verified(key: &IndexKey, bytes: &[u8]) -> Result<record::Header, IndexError> {
    record::verify(key, bytes).map_err(|error| damaged(&error))
}

fn damaged(error: &record::Damaged) -> IndexError {
    IndexError::damaged(format!("of a record, {error}"))
}
