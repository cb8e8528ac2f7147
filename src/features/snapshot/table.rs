//! Reading single records of a snapshot in place.

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::form::{self, BlockHeader, SnapshotFooter};
use super::{
    BLOCK_BYTES_MAX, BLOCK_HEAD_BYTES, FOOTER_BYTES, KIND_FOOTER, KIND_INDEX, KIND_RECORDS, KIND_STATISTICS,
    SnapshotError, SnapshotHeader, SnapshotReader, SnapshotStatistics, VERSION_1,
};
use crate::key::IndexKey;
use crate::record::DamagedBytes;
use crate::wire;

/// The memory that a thread keeps for the blocks that it reads, in bytes.
const BUFFER_BYTES_KEPT: usize = 16 << 10;

thread_local! {
    /// The block that was read last, to be overwritten by the next one.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A file, or bytes, to read at any place.
pub trait ReadAt {
    /// Its length in bytes.
    fn size(&self) -> io::Result<u64>;

    /// Fills `bytes` from `offset` on. Fewer bytes than that are an error, [`io::ErrorKind::UnexpectedEof`].
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
}

impl ReadAt for File {
    fn size(&self) -> io::Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }
}

impl ReadAt for &[u8] {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)).unwrap_or_default();
        let found = rest.get(..bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(found);
        Ok(())
    }
}

/// The source from its beginning, as a stream.
struct ReadAtStream<'s, S> {
    source: &'s S,
    at: u64,
    size: u64,
}

impl<S: ReadAt> Read for ReadAtStream<'_, S> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.size.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let length = bytes.len().min(left);
        self.source.read_at(bytes.get_mut(..length).unwrap_or_default(), self.at)?;
        self.at += length as u64;
        Ok(length)
    }
}

/// A snapshot with an index, read in place. Only the first key of each block is in memory.
///
/// Opening checks header, index, statistics and footer, and each read checks the block that it reads. The hash over the
/// whole file is checked by [`super::verify_file`] only.
pub struct SortedTable<S = File> {
    source: S,
    path: PathBuf,
    header: SnapshotHeader,
    statistics: SnapshotStatistics,
    records: u64,
    /// The first key of each block of records.
    first_keys: Vec<IndexKey>,
    /// The offset of each block of records, and the end of the last one.
    offsets: Vec<u64>,
}

impl<S> fmt::Debug for SortedTable<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("SortedTable");
        fields.field("path", &self.path).field("records", &self.records).field("blocks", &self.first_keys.len());
        fields.finish_non_exhaustive()
    }
}

impl SortedTable {
    /// Opens a file. `None` is a snapshot that can be read as a stream only: it is of version 1, or its records are not
    /// ascending.
    pub fn open(path: &Path) -> Result<Option<Self>, SnapshotError> {
        let file = File::open(path).map_err(SnapshotError::Read)?;
        Self::of(file, path.to_owned())
    }
}

impl<S> SortedTable<S> {
    /// The header of the snapshot.
    pub fn header(&self) -> &SnapshotHeader {
        &self.header
    }

    /// The figures over its records.
    pub fn statistics(&self) -> &SnapshotStatistics {
        &self.statistics
    }

    /// The number of records.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The first key of each block.
    pub(super) fn first_keys(&self) -> &[IndexKey] {
        &self.first_keys
    }

    /// The first key of a block.
    pub(super) fn first_key(&self, block: usize) -> Option<&IndexKey> {
        self.first_keys.get(block)
    }

    /// The offset of a block; that of the block behind the last one is the end of the records.
    pub(super) fn offset(&self, block: usize) -> Option<u64> {
        self.offsets.get(block).copied()
    }

    /// The number of blocks that end at an offset or before it.
    pub(super) fn blocks_before(&self, offset: u64) -> usize {
        self.offsets.partition_point(|end| *end <= offset).saturating_sub(1)
    }
}

impl<S: ReadAt> SortedTable<S> {
    pub(super) fn of(source: S, path: PathBuf) -> Result<Option<Self>, SnapshotError> {
        let size = source.size().map_err(SnapshotError::Read)?;
        let reader = SnapshotReader::new(BufReader::new(ReadAtStream { source: &source, at: 0, size }))?;
        let (version, begin) = reader.form();
        let header = reader.header().clone();
        drop(reader);
        if version == VERSION_1 {
            return Ok(None);
        }

        let length = (BLOCK_HEAD_BYTES + FOOTER_BYTES) as u64;
        let Some(footer_at) = size.checked_sub(length).filter(|at| *at >= begin) else {
            return Err(SnapshotError::Cut { bytes: size });
        };
        let malformed = |offset| SnapshotError::Damaged { offset, reason: DamagedBytes::Malformed };
        let mut block = Vec::new();
        let kind = read_block(&source, footer_at, size, &mut block)?;
        let footer = SnapshotFooter::decode(&block).ok().filter(|_| kind == KIND_FOOTER);
        let footer = footer.ok_or_else(|| malformed(footer_at))?;
        if footer.index_at == 0 {
            return Ok(None);
        }
        if footer.index_at < begin || footer.index_at > footer_at {
            return Err(malformed(footer_at));
        }

        let (mut first_keys, mut offsets) = (Vec::new(), vec![begin]);
        let mut statistics = None;
        let mut at = footer.index_at;
        while at < footer_at {
            let kind = read_block(&source, at, footer_at, &mut block)?;
            if kind == KIND_INDEX && statistics.is_none() {
                read_index(&block, &mut first_keys, &mut offsets).map_err(|_| malformed(at))?;
            } else if kind == KIND_STATISTICS && statistics.is_none() {
                statistics = Some(SnapshotStatistics::decode(&block, &footer).map_err(|_| malformed(at))?);
            } else {
                return Err(malformed(at));
            }
            at += (BLOCK_HEAD_BYTES + block.len()) as u64;
        }
        if offsets.last() != Some(&footer.index_at) {
            return Err(malformed(footer.index_at));
        }
        let statistics = statistics.ok_or_else(|| malformed(footer_at))?;

        first_keys.shrink_to_fit();
        offsets.shrink_to_fit();
        Ok(Some(Self { source, path, header, statistics, records: footer.records, first_keys, offsets }))
    }

    /// The record under a key. Reads one block.
    pub fn get(&self, key: &IndexKey) -> Result<Option<Vec<u8>>, SnapshotError> {
        // The last block that begins at the key or before it.
        let Some(at) = self.first_keys.partition_point(|first| first <= key).checked_sub(1) else { return Ok(None) };
        let (Some(first), Some(begin), Some(end)) = (self.first_key(at), self.offset(at), self.offset(at + 1)) else {
            return Ok(None);
        };

        // Without a buffer, which happens only while the thread ends, memory is allocated.
        let mut buffer = BUFFER.try_with(Cell::take).unwrap_or_default();
        let found = self.read(begin, end, &mut buffer).and_then(|bytes| {
            let record = records_of(bytes).and_then(|content| form::find(content, first, key));
            record.map_err(|reason| SnapshotError::Damaged { offset: begin, reason })
        });
        let found = found.map(|record| record.map(<[u8]>::to_vec));
        if buffer.len() > BUFFER_BYTES_KEPT {
            buffer.truncate(BUFFER_BYTES_KEPT);
            buffer.shrink_to_fit();
        }
        let _ = BUFFER.try_with(|kept| kept.set(buffer));
        found
    }

    /// Reads a part of the file. The buffer only grows, since clearing new memory takes time.
    pub(super) fn read<'b>(&self, begin: u64, end: u64, buffer: &'b mut Vec<u8>) -> Result<&'b [u8], SnapshotError> {
        let length = usize::try_from(end.saturating_sub(begin)).unwrap_or(usize::MAX);
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        let bytes = buffer.get_mut(..length).unwrap_or_default();
        read_at(&self.source, bytes, begin)?;
        Ok(bytes)
    }
}

/// The content of a block of records.
pub(super) fn records_of(bytes: &[u8]) -> Result<&[u8], DamagedBytes> {
    let (head, content) = bytes.split_first_chunk().ok_or(DamagedBytes::Malformed)?;
    let head = BlockHeader::decode(*head);
    head.verify(content)?;
    if head.kind == KIND_RECORDS { Ok(content) } else { Err(DamagedBytes::Malformed) }
}

/// Adds the blocks of a part of the index.
fn read_index(bytes: &[u8], first_keys: &mut Vec<IndexKey>, offsets: &mut Vec<u64>) -> Result<(), DamagedBytes> {
    let mut reader = wire::ByteReader::new(bytes);
    while !reader.is_empty() {
        let (key, length) = form::read_index_entry(&mut reader)?;
        let is_possible = (1..=BLOCK_BYTES_MAX).contains(&length);
        if !is_possible || first_keys.last().is_some_and(|last| *last >= key) {
            return Err(DamagedBytes::Malformed);
        }
        let begin = offsets.last().ok_or(DamagedBytes::Malformed)?;
        offsets.push(begin + (BLOCK_HEAD_BYTES + length) as u64);
        first_keys.push(key);
    }
    Ok(())
}

/// Reads a block that has to end at `limit` or before it, and checks it. Returns its kind.
fn read_block(source: &impl ReadAt, at: u64, limit: u64, content: &mut Vec<u8>) -> Result<u8, SnapshotError> {
    let damaged = |reason| SnapshotError::Damaged { offset: at, reason };
    let room = limit.checked_sub(at + BLOCK_HEAD_BYTES as u64).ok_or_else(|| damaged(DamagedBytes::Malformed))?;
    let mut head = [0; BLOCK_HEAD_BYTES];
    read_at(source, &mut head, at)?;
    let head = BlockHeader::decode(head);
    if head.length > BLOCK_BYTES_MAX || head.length as u64 > room {
        return Err(damaged(DamagedBytes::Malformed));
    }
    content.resize(head.length, 0);
    read_at(source, content, at + BLOCK_HEAD_BYTES as u64)?;
    head.verify(content).map_err(damaged)?;
    Ok(head.kind)
}

/// Reads at a place which the file had when it was opened.
fn read_at(source: &impl ReadAt, bytes: &mut [u8], offset: u64) -> Result<(), SnapshotError> {
    source.read_at(bytes, offset).map_err(|error| {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            SnapshotError::Cut { bytes: source.size().unwrap_or(offset) }
        } else {
            SnapshotError::Read(error)
        }
    })
}
