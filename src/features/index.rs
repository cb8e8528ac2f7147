//! The index: the record of each entity. The newest snapshot is read in place; layers over it have what changed since.
//!
//! ```text
//! top      a layer: the changes from here on
//! frozen   a layer: the changes before, while a snapshot of everything below `top` is being written
//! snapshot a file, sorted by key; a store without any has everything in its layers
//! ```
//!
//! An index never changes its parts: the writer puts another one in use.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use super::key::IndexKey;
pub use super::mem_table::{ContentChecksum, IndexError, MemTable, MemTableValue};
use super::mem_table::{MemTableBytes, MemTableScan};
use super::snapshot::{SnapshotError, SortedTable, SortedTableScan};
use super::view::ViewId;

/// The record of each entity.
#[derive(Debug)]
pub struct EntityIndex {
    snapshot: Option<Arc<SortedTable>>,
    frozen: Option<ImmutableMemTable>,
    top: Arc<MemTable>,
}

/// A layer that does not change any more.
#[derive(Debug, Clone)]
pub struct ImmutableMemTable {
    pub layer: Arc<MemTable>,
    /// The number of the snapshot that takes its place: it has every journal entry before this one.
    pub number: u64,
    /// The number of records of the layer and everything below it.
    pub records: u64,
    /// The entities of each view that have a value in the layer.
    pub changed: Vec<(ViewId, u64)>,
}

/// The bytes of a record.
#[derive(Debug, Clone)]
pub enum RecordBytes {
    InLayer(MemTableBytes),
    InSnapshot(Vec<u8>),
}

impl Deref for RecordBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::InLayer(bytes) => bytes,
            Self::InSnapshot(bytes) => bytes,
        }
    }
}

/// An entity in the index.
#[derive(Debug, Default)]
pub struct IndexEntry {
    pub record: Option<RecordBytes>,
    /// The value of the top layer, which the next change replaces.
    pub top: Option<MemTableValue>,
    /// True when there is a record below the top layer.
    pub is_below: bool,
}

impl EntityIndex {
    /// An index over the snapshot that `top` was made for.
    pub fn new(snapshot: Option<Arc<SortedTable>>, top: Arc<MemTable>) -> Self {
        Self { snapshot, frozen: None, top }
    }

    /// The same content, under another top layer. The top layer of this one becomes the frozen one.
    pub fn rotate(&self, top: Arc<MemTable>, number: u64, records: u64, changed: Vec<(ViewId, u64)>) -> Self {
        let frozen = ImmutableMemTable { layer: self.top.clone(), number, records, changed };
        Self { snapshot: self.snapshot.clone(), frozen: Some(frozen), top }
    }

    /// The same content, with a snapshot that has everything below the top layer.
    pub fn install(&self, snapshot: Arc<SortedTable>) -> Self {
        Self::new(Some(snapshot), self.top.clone())
    }

    /// The layer that changes.
    pub fn top(&self) -> &Arc<MemTable> {
        &self.top
    }

    pub fn frozen(&self) -> Option<&ImmutableMemTable> {
        self.frozen.as_ref()
    }

    pub fn snapshot(&self) -> Option<&Arc<SortedTable>> {
        self.snapshot.as_ref()
    }

    /// Its layers, the older one first.
    pub fn layers(&self) -> Vec<Arc<MemTable>> {
        self.frozen.iter().map(|frozen| &frozen.layer).chain([&self.top]).cloned().collect()
    }

    /// The folders of its layers.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        self.frozen.iter().map(|frozen| frozen.layer.folder()).chain([self.top.folder()])
    }

    /// The record of an entity, as it was written. Its own checksum is not checked here.
    pub fn get(&self, key: &IndexKey) -> Result<Option<RecordBytes>, IndexError> {
        match self.top.get(key)? {
            Some(value) => Ok(value.record.map(RecordBytes::InLayer)),
            None => self.get_below(key),
        }
    }

    /// As [`Self::get`], for a change.
    pub fn find(&self, key: &IndexKey) -> Result<IndexEntry, IndexError> {
        if let Some(top) = self.top.get(key)? {
            let (record, is_below) = (top.record.clone().map(RecordBytes::InLayer), top.is_below);
            return Ok(IndexEntry { record, top: Some(top), is_below });
        }
        let record = self.get_below(key)?;
        Ok(IndexEntry { is_below: record.is_some(), record, top: None })
    }

    fn get_below(&self, key: &IndexKey) -> Result<Option<RecordBytes>, IndexError> {
        if let Some(frozen) = &self.frozen
            && let Some(value) = frozen.layer.get(key)?
        {
            return Ok(value.record.map(RecordBytes::InLayer));
        }
        let Some(snapshot) = &self.snapshot else { return Ok(None) };
        let found = snapshot.get(key).map_err(|error| unusable(snapshot, &error))?;
        Ok(found.map(RecordBytes::InSnapshot))
    }

    /// Calls `each` for every record with a key that begins with `prefix`, in the order of the keys, until it returns
    /// an error.
    pub fn scan_prefix<E: From<IndexError>>(
        &self,
        prefix: &[u8],
        each: impl FnMut(IndexKey, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let layers = [Some(&self.top), self.frozen.as_ref().map(|frozen| &frozen.layer)];
        merge(self.snapshot.as_deref(), layers.into_iter().flatten(), prefix, each)
    }

    /// As [`Self::scan_prefix`], for every record.
    pub fn scan<E: From<IndexError>>(&self, each: impl FnMut(IndexKey, &[u8]) -> Result<(), E>) -> Result<(), E> {
        self.scan_prefix(&[], each)
    }

    /// As [`Self::scan`], without the changes of the top layer, where there is a frozen one.
    pub fn scan_frozen<E: From<IndexError>>(
        &self,
        each: impl FnMut(IndexKey, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let layer = self.frozen.as_ref().map_or(&self.top, |frozen| &frozen.layer);
        merge(self.snapshot.as_deref(), [layer].into_iter(), &[], each)
    }
}

/// Merges layers, the newest first, over a snapshot.
fn merge<'i, E: From<IndexError>>(
    snapshot: Option<&SortedTable>,
    layers: impl Iterator<Item = &'i Arc<MemTable>>,
    prefix: &[u8],
    mut each: impl FnMut(IndexKey, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut below = snapshot.map(|snapshot| SortedTableCursor::new(snapshot, prefix)).transpose()?;
    let mut layers = layers.map(|layer| MemTableCursor::new(layer.scan(prefix))).collect::<Result<Vec<_>, _>>()?;
    loop {
        let next = layers.iter().filter_map(MemTableCursor::key).min();
        // Everything of the snapshot before the next change.
        while let Some((cursor, key)) = below.as_mut().and_then(|cursor| cursor.key.map(|key| (cursor, key)))
            && next.is_none_or(|next| key <= next)
        {
            if next != Some(key) {
                each(key, &cursor.record)?;
            }
            cursor.advance()?;
        }
        let Some(next) = next else { return Ok(()) };
        let mut newest = None;
        for cursor in layers.iter_mut().filter(|cursor| cursor.key() == Some(next)) {
            let value = cursor.take()?;
            newest = newest.or(value);
        }
        if let Some(record) = newest.and_then(|value| value.record) {
            each(next, &record)?;
        }
    }
}

/// A snapshot that is being read, and its next record.
struct SortedTableCursor<'t> {
    snapshot: &'t SortedTable,
    scan: SortedTableScan<'t>,
    key: Option<IndexKey>,
    record: Vec<u8>,
}

impl<'t> SortedTableCursor<'t> {
    fn new(snapshot: &'t SortedTable, prefix: &[u8]) -> Result<Self, IndexError> {
        let mut cursor = Self { snapshot, scan: snapshot.scan(prefix), key: None, record: Vec::new() };
        cursor.advance()?;
        Ok(cursor)
    }

    fn advance(&mut self) -> Result<(), IndexError> {
        let next = self.scan.next().map_err(|error| unusable(self.snapshot, &error))?;
        self.key = next.map(|(key, record)| {
            self.record.clear();
            self.record.extend_from_slice(record);
            key
        });
        Ok(())
    }
}

/// A layer that is being read, and its next value.
struct MemTableCursor {
    scan: MemTableScan,
    next: Option<(IndexKey, MemTableValue)>,
}

impl MemTableCursor {
    fn new(mut scan: MemTableScan) -> Result<Self, IndexError> {
        Ok(Self { next: scan.next()?, scan })
    }

    fn key(&self) -> Option<IndexKey> {
        self.next.as_ref().map(|(key, _)| *key)
    }

    fn take(&mut self) -> Result<Option<MemTableValue>, IndexError> {
        let next = self.scan.next()?;
        Ok(std::mem::replace(&mut self.next, next).map(|(_, value)| value))
    }
}

fn unusable(snapshot: &SortedTable, error: &SnapshotError) -> IndexError {
    let reason = format!("{}: {error}", snapshot.path().display());
    if error.is_damage() { IndexError::damaged(reason) } else { IndexError::Io { reason } }
}
