//! Journal entries and snapshot records into an index. The same code for pushes, replays and rebuilds.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::entity_keys::KeysError;
use super::super::key::IndexKey;
use super::super::merge::{Merged, merge, purge_us, supersede};
use super::super::protection::{Body, Protection, Unsealable};
use super::super::record::{self, Record, Row, Seal};
use super::super::registry::Registry;
use super::super::seal::Place;
use super::super::store::{Changes, Index, IndexError, Stored, Tally, expiry_key};
use super::super::view::{FeatureView, ViewId};

/// How many rows are merged before they are written: what they become is in memory until then.
const CHUNK: usize = 128;

/// One change that the journal has.
#[derive(Debug, Clone)]
pub struct Pending {
    /// Its sequence number.
    pub seq: u64,
    pub key: IndexKey,
    pub action: Action,
    /// The latest event time that was believed when it was written.
    pub latest_us: i64,
}

/// What a change does.
#[derive(Debug, Clone)]
pub enum Action {
    /// A row comes in; with it, as the journal keeps it.
    Put(Arc<FeatureView>, Row, Body),
    Delete,
    /// The row of a view that is declared no more: it waits until the view comes back.
    PutUndeclared(Row),
}

impl Action {
    /// The action of a row that was pushed to `view` at some time, and its bytes in the journal.
    pub fn of_row(registry: &Registry, view: ViewId, row: Row, body: Body) -> Self {
        match registry.view_by_id(view) {
            Some(view) => Self::Put(view.clone(), row, body),
            None => Self::PutUndeclared(row),
        }
    }
}

/// What is in an index.
#[derive(Debug, Clone, Default)]
pub struct Content {
    pub tally: Tally,
    /// The rows of each view.
    pub rows: HashMap<ViewId, u64>,
    /// The highest sequence number of any record that was ever in it.
    pub highest: u64,
    /// The newest event time of any.
    pub newest_us: i64,
}

impl Content {
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

/// Writes into one index, and knows what is in it. There is one writer for each index.
#[derive(Debug)]
pub struct Applier {
    pub index: Arc<Index>,
    pub content: Content,
    /// The last journal entry that is in it.
    pub applied: u64,
    /// Rows that took the place of one from a future that the clock took back.
    pub taken_back: u64,
    keep_us: i64,
    protection: Arc<Protection>,
}

/// An entity during one chunk.
struct Touched {
    stored: Option<(record::Header, Stored)>,
    now: Now,
}

/// What has become of it.
enum Now {
    AsStored,
    Changed(record::Header, Vec<u8>),
    Gone,
}

impl Applier {
    /// Over an index with this content. `keep_us` is how long a row is kept after its ttl has passed.
    pub fn new(index: Arc<Index>, content: Content, applied: u64, keep_us: i64, protection: Arc<Protection>) -> Self {
        Self { index, content, applied, taken_back: 0, keep_us, protection }
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
                let had_us = entity.header().map_or(i64::MIN, |header| header.event_us);
                let merged = entity.take(change, self.keep_us, &self.protection)?;
                let is_newer = entity.header().is_none_or(|header| header.event_us >= had_us);
                self.taken_back += u64::from(merged == Merged::Accepted && had_us > change.latest_us && !is_newer);
                outcomes.push(merged);
            }
            self.applied = chunk.last().map_or(self.applied, |last| last.seq.max(self.applied));
            self.write(touched)?;
        }
        Ok(outcomes)
    }

    /// Takes records of a snapshot: those that are newer than what is there. What is plain is sealed where that is on.
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
        for chunk in records.chunks(CHUNK) {
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
                // After a crash there may be an entry of what the record was before as well.
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
                    let stored = record::Stored::verify(key, &stored).map_err(damaged)?;
                    let header = record::Header { purge_us, ..header };
                    let bytes = header.with_body(key, stored.seal, stored.windows, stored.body);
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
        let stored = match self.index.get(key)? {
            Some(bytes) => Some((verified(key, &bytes)?, bytes)),
            None => None,
        };
        // What is left of an entity that was erased says nothing of its next life.
        let erased = stored.as_ref().is_some_and(|(_, bytes)| self.protection.is_erased(key, bytes));
        Ok(Touched { stored, now: if erased { Now::Gone } else { Now::AsStored } })
    }

    fn write(&mut self, touched: HashMap<IndexKey, Touched>) -> Result<(), IndexError> {
        self.protection.persist().map_err(|error| unwritten(&error))?;
        let mut changes = Changes::default();
        changes.applied(self.applied);
        for (key, Touched { stored, now }) in touched {
            if matches!(now, Now::AsStored) {
                continue;
            }
            if let Some((_, bytes)) = &stored {
                self.content.subtract(&key, bytes);
            }
            let old = stored.map(|(header, _)| header.purge_us);
            if let Now::Changed(header, bytes) = now {
                self.content.add(&key, &bytes);
                changes.put(&key, &bytes, header.purge_us, old);
            } else {
                changes.remove(&key, old.unwrap_or(i64::MAX));
            }
        }
        self.index.apply(&changes)
    }
}

impl Touched {
    fn take(&mut self, change: &Pending, keep_us: i64, protection: &Protection) -> Result<Merged, IndexError> {
        let Pending { seq, key, action, latest_us } = change;
        let (record, merged) = match action {
            Action::Put(view, row, body) if view.aggregations.is_empty() => {
                let merged = supersede(self.header(), row.event_us, *seq, *latest_us);
                if merged == Merged::Accepted {
                    let purge_us = purge_us(view, row.event_us, keep_us);
                    let header = record::Header { seq: *seq, event_us: row.event_us, purge_us };
                    let bytes = if body.seal == Seal::default() {
                        let place = Place { key, seq: *seq, windows: false };
                        let body = protection.seal(&place, &row.entity, body.bytes.clone());
                        let body = body.map_err(|error| unwritten(&error))?;
                        header.with_body(key, body.seal, false, &body.bytes)
                    } else {
                        header.with_body(key, body.seal, false, &body.bytes)
                    };
                    self.now = Now::Changed(header, bytes);
                }
                return Ok(merged);
            }
            Action::Put(view, row, _) => {
                let merged = merge(view, self.record(key, protection)?.as_ref(), row, *seq, *latest_us, keep_us);
                merged.map_err(|error| IndexError::damaged(format!("of a record, {error}")))?
            }
            Action::PutUndeclared(row) => undeclared(self.record(key, protection)?.as_ref(), row, *seq, *latest_us),
            Action::Delete => {
                // A record of a later entry is of the entity's next life.
                if self.header().is_some_and(|current| current.seq < *seq) {
                    self.now = Now::Gone;
                }
                return Ok(Merged::Accepted);
            }
        };
        if let Some(record) = record {
            let bytes = protection.encode(key, &record).map_err(|error| unwritten(&error))?;
            self.now = Now::Changed(record.header(), bytes);
        }
        Ok(merged)
    }

    fn header(&self) -> Option<record::Header> {
        match &self.now {
            Now::AsStored => self.stored.as_ref().map(|(header, _)| *header),
            Now::Changed(header, _) => Some(*header),
            Now::Gone => None,
        }
    }

    fn record(&self, key: &IndexKey, protection: &Protection) -> Result<Option<Record>, IndexError> {
        let bytes: &[u8] = match (&self.now, &self.stored) {
            (Now::AsStored, Some((_, bytes))) => bytes,
            (Now::Changed(_, bytes), _) => bytes,
            (Now::AsStored, None) | (Now::Gone, _) => return Ok(None),
        };
        match protection.record(key, bytes) {
            Ok(record) => Ok(Some(record)),
            Err(record::Damaged::Erased) => Ok(None),
            Err(error) => Err(damaged(error)),
        }
    }
}

/// A row of a view that is declared no more: kept for the day it comes back, its aggregates as they were.
fn undeclared(old: Option<&Record>, row: &Row, seq: u64, latest_us: i64) -> (Option<Record>, Merged) {
    match supersede(old.map(Record::header), row.event_us, seq, latest_us) {
        refused @ (Merged::Duplicate | Merged::Outdated | Merged::TooLate) => (None, refused),
        Merged::Accepted => {
            let windows = old.map_or_else(Vec::new, |old| old.windows.clone());
            (Some(Record { seq, purge_us: i64::MAX, row: row.clone(), windows }), Merged::Accepted)
        }
    }
}

fn verified(key: &IndexKey, bytes: &[u8]) -> Result<record::Header, IndexError> {
    record::verify(key, bytes).map_err(damaged)
}

fn unwritten(error: &KeysError) -> IndexError {
    IndexError::Io { reason: error.to_string() }
}

fn damaged(error: record::Damaged) -> IndexError {
    IndexError::damaged(format!("of a record, {error}"))
}
