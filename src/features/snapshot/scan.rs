//! Reading many records of a snapshot in place, in the order of their keys.

use std::cmp::Ordering;
use std::fmt;
use std::fs::File;
use std::ops::Range;

use super::form;
use super::table::{ReadAt, SortedTable, records_of};
use super::{BLOCK_HEAD_BYTES, SnapshotError};
use crate::key::IndexKey;
use crate::record::DamagedBytes;
use crate::wire;

/// The bytes that are read at once.
const PIECE_BYTES: u64 = 256 << 10;

/// The records of a table with keys that begin with a prefix, ascending.
pub struct SortedTableScan<'t, S = File> {
    table: &'t SortedTable<S>,
    prefix: Vec<u8>,
    /// The blocks that were not begun yet and may have records with the prefix.
    blocks: Range<usize>,
    /// Several blocks, read at once.
    piece: Vec<u8>,
    /// The part of the file that is in the piece.
    piece_at: Range<u64>,
    /// The offset of the block that is being read.
    block_at: u64,
    /// The part of the piece with the records of that block that were not read yet.
    rest: Range<usize>,
    /// The last key of the block that is being read.
    previous: Option<IndexKey>,
    /// The last key of all.
    last: Option<IndexKey>,
}

impl<S> fmt::Debug for SortedTableScan<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SortedTableScan")
            .field("table", &self.table)
            .field("blocks", &self.blocks)
            .finish_non_exhaustive()
    }
}

impl<S: ReadAt> SortedTable<S> {
    /// Reads the records whose key begins with `prefix`, ascending. An empty prefix is that of all.
    pub fn scan(&self, prefix: &[u8]) -> SortedTableScan<'_, S> {
        SortedTableScan::new(self, prefix)
    }
}

impl<'t, S: ReadAt> SortedTableScan<'t, S> {
    fn new(table: &'t SortedTable<S>, prefix: &[u8]) -> Self {
        Self {
            table,
            prefix: prefix.to_vec(),
            blocks: blocks_of(table.first_keys(), prefix),
            piece: Vec::new(),
            piece_at: 0..0,
            block_at: 0,
            rest: 0..0,
            previous: None,
            last: None,
        }
    }

    /// The next record.
    #[expect(clippy::should_implement_trait, reason = "the record is in the buffer of the scan")]
    pub fn next(&mut self) -> Result<Option<(IndexKey, &[u8])>, SnapshotError> {
        match self.find_next() {
            Ok(Some((key, record))) => Ok(Some((key, self.piece.get(record).unwrap_or_default()))),
            end => {
                // Neither the end nor an error is followed by a record.
                self.blocks = 0..0;
                self.rest = 0..0;
                end.map(|_| None)
            }
        }
    }

    /// The next key, and the place of its record in the piece.
    fn find_next(&mut self) -> Result<Option<(IndexKey, Range<usize>)>, SnapshotError> {
        loop {
            if self.rest.is_empty() && !self.next_block()? {
                return Ok(None);
            }
            let (key, record) = self.next_record().map_err(|reason| self.damaged(reason))?;
            let begin = key.as_bytes().get(..self.prefix.len()).unwrap_or_default();
            match begin.cmp(&self.prefix) {
                Ordering::Less => {}
                Ordering::Equal => return Ok(Some((key, record))),
                Ordering::Greater => return Ok(None),
            }
        }
    }

    /// The next record of the block.
    fn next_record(&mut self) -> Result<(IndexKey, Range<usize>), DamagedBytes> {
        let mut reader = wire::ByteReader::new(self.piece.get(self.rest.clone()).unwrap_or_default());
        let (key, record) = form::record(&mut reader, self.previous.as_ref())?;
        if self.last.is_some_and(|last| last >= key) {
            return Err(DamagedBytes::Malformed);
        }
        let end = self.rest.end - reader.rest().len();
        self.rest.start = end;
        self.previous = Some(key);
        self.last = Some(key);
        Ok((key, end - record.len()..end))
    }

    /// Begins the next block. False after the last one.
    fn next_block(&mut self) -> Result<bool, SnapshotError> {
        let Some(at) = self.blocks.next() else { return Ok(false) };
        let table = self.table;
        let (Some(first), Some(begin), Some(end)) = (table.first_key(at), table.offset(at), table.offset(at + 1))
        else {
            return Ok(false);
        };
        if begin >= self.piece_at.end {
            let last = table.blocks_before(begin + PIECE_BYTES).min(self.blocks.end).max(at + 1);
            let end = table.offset(last).unwrap_or(end);
            table.read(begin, end, &mut self.piece)?;
            self.piece_at = begin..end;
        }
        self.block_at = begin;
        let place = |offset: u64| usize::try_from(offset - self.piece_at.start).unwrap_or(usize::MAX);
        let (from, to) = (place(begin), place(end));
        let bytes = self.piece.get(from..to).unwrap_or_default();
        let content = records_of(bytes).map_err(|reason| self.damaged(reason))?;
        // A block that was written to the place of another one has a correct checksum.
        let (found, _) =
            form::record(&mut wire::ByteReader::new(content), None).map_err(|reason| self.damaged(reason))?;
        if found != *first {
            return Err(self.damaged(DamagedBytes::Malformed));
        }
        self.rest = from + BLOCK_HEAD_BYTES..to;
        self.previous = None;
        Ok(true)
    }

    fn damaged(&self, reason: DamagedBytes) -> SnapshotError {
        SnapshotError::Damaged { offset: self.block_at, reason }
    }
}

/// The blocks that may have keys with a prefix.
fn blocks_of(first_keys: &[IndexKey], prefix: &[u8]) -> Range<usize> {
    let mut lowest = [0; IndexKey::LENGTH];
    let Some(begin) = lowest.get_mut(..prefix.len()) else { return 0..0 };
    begin.copy_from_slice(prefix);
    let lowest = IndexKey::from(lowest);
    // The block before the first one that begins above the lowest key may have that key, too.
    let start = first_keys.partition_point(|first| *first <= lowest).saturating_sub(1);
    let end =
        first_keys.partition_point(|first| first.as_bytes().get(..prefix.len()).is_none_or(|first| first <= prefix));
    start..end.max(start)
}
