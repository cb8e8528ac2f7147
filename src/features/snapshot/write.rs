//! Writing a snapshot to any stream.

use std::io::{self, Write};

use super::form::{self, BlockHeader, SnapshotFigures};
use super::{
    BLOCK_BYTES, BLOCK_BYTES_MAX, CATALOG_BYTES_MAX, HEADER_BYTES, INDEX_BLOCK_BYTES, KIND_FOOTER, KIND_INDEX,
    KIND_RECORDS, KIND_STATISTICS, MAGIC, RECORD_HEAD_BYTES_MAX, SnapshotHeader, SnapshotSize, VERSION,
};
use crate::key::IndexKey;
use crate::record::CipherHeader;
use crate::wire::length32;

/// The bytes that are hashed and written at once: the hash of many is faster than that of one block after the other.
const OUTPUT_BYTES: usize = 64 << 10;

/// Writes records after a header. Records with strictly ascending keys become a table with an index, for
/// [`super::SortedTable`]; in any other order they can be read only as a stream.
#[derive(Debug)]
pub struct SnapshotWriter<W> {
    writer: W,
    hasher: blake3::Hasher,
    /// The bytes that were not written yet.
    output: Vec<u8>,
    /// The block that is being filled.
    block: Vec<u8>,
    /// Its first key.
    first: Option<IndexKey>,
    /// The content of the index; empty for a snapshot without one.
    index: Vec<u8>,
    figures: SnapshotFigures,
    summary: SnapshotSize,
}

impl<W: Write> SnapshotWriter<W> {
    /// Begins with the header.
    pub fn new(writer: W, header: &SnapshotHeader) -> io::Result<Self> {
        if header.catalog.len() > CATALOG_BYTES_MAX {
            return Err(invalid("the catalog is too long for a snapshot"));
        }
        let mut snapshot = Self {
            writer,
            hasher: blake3::Hasher::new(),
            output: Vec::with_capacity(OUTPUT_BYTES * 2),
            block: Vec::with_capacity(BLOCK_BYTES * 2),
            first: None,
            index: Vec::new(),
            figures: SnapshotFigures::new(),
            summary: SnapshotSize::default(),
        };
        snapshot.put(&header_bytes(header, VERSION))?;
        Ok(snapshot)
    }

    /// Adds a record, as [`crate::record::FeatureRecord::encode`] wrote it.
    pub fn add(&mut self, key: &IndexKey, record: &[u8]) -> io::Result<()> {
        let length = RECORD_HEAD_BYTES_MAX + record.len();
        if length > BLOCK_BYTES_MAX {
            return Err(invalid("the record is too long for a snapshot"));
        }
        if self.block.len() + length > BLOCK_BYTES {
            self.close_block()?;
        }
        let previous = self.first.and(self.figures.last());
        form::put_record(&mut self.block, previous, key, record);
        self.first.get_or_insert(*key);
        self.figures.add(key, record).map_err(|_| invalid("a snapshot cannot have so many feature views"))?;
        self.summary.records += 1;
        Ok(())
    }

    /// Writes index, statistics and footer, which completes the snapshot.
    pub fn finish(mut self) -> io::Result<(W, SnapshotSize)> {
        self.close_block()?;
        let mut index_at = 0;
        if self.figures.is_ascending() {
            index_at = self.summary.bytes;
            for piece in std::mem::take(&mut self.index).chunks(INDEX_BLOCK_BYTES) {
                self.put_block(KIND_INDEX, piece)?;
            }
        }
        self.put_block(KIND_STATISTICS, &self.figures.encode())?;

        self.write_output()?;
        let footer = self.figures.footer(self.summary.records, index_at, self.hasher.finalize());
        self.put_block(KIND_FOOTER, &footer.encode())?;
        self.write_output()?;
        self.writer.flush()?;
        Ok((self.writer, self.summary))
    }

    fn close_block(&mut self) -> io::Result<()> {
        let Some(first) = self.first.take() else { return Ok(()) };
        if self.figures.is_ascending() {
            self.index.extend_from_slice(&form::index_entry(&first, self.block.len()));
        } else {
            self.index = Vec::new();
        }
        let mut block = std::mem::take(&mut self.block);
        self.put_block(KIND_RECORDS, &block)?;
        block.clear();
        self.block = block;
        Ok(())
    }

    fn put_block(&mut self, kind: u8, content: &[u8]) -> io::Result<()> {
        self.put(&BlockHeader::encode(kind, content))?;
        self.put(content)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.extend_from_slice(bytes);
        self.summary.bytes += bytes.len() as u64;
        if self.output.len() < OUTPUT_BYTES { Ok(()) } else { self.write_output() }
    }

    fn write_output(&mut self) -> io::Result<()> {
        self.writer.write_all(&self.output)?;
        self.hasher.update(&self.output);
        self.output.clear();
        Ok(())
    }
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

/// The bytes before the first block.
pub(super) fn header_bytes(header: &SnapshotHeader, version: u16) -> Vec<u8> {
    let seal = CipherHeader::default();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + header.catalog.len() + 4);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&[seal.cipher, u8::from(header.partial)]);
    bytes.extend_from_slice(&seal.key_id.to_le_bytes());
    bytes.extend_from_slice(&header.replay_from.to_le_bytes());
    bytes.extend_from_slice(&header.created_ms.to_le_bytes());
    bytes.extend_from_slice(&header.hash_key_id);
    bytes.extend_from_slice(&length32(header.catalog.len()));
    bytes.extend_from_slice(header.catalog.as_bytes());
    let sum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}
