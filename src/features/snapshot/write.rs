//! Writing a snapshot to any stream.

use std::io::{self, Write};

use super::{
    BLOCK_BYTES, BLOCK_BYTES_MAX, BLOCK_HEAD_BYTES, CATALOG_BYTES_MAX, FOOTER_BYTES, HEADER_BYTES, KIND_FOOTER,
    KIND_RECORDS, MAGIC, RECORD_HEAD_BYTES, SnapshotHeader, Summary, VERSION,
};
use crate::key::IndexKey;
use crate::record::Seal;
use crate::wire::length32;

/// Writes records behind a header.
#[derive(Debug)]
pub struct SnapshotWriter<W> {
    writer: W,
    hasher: blake3::Hasher,
    /// The block that is being filled.
    block: Vec<u8>,
    summary: Summary,
}

impl<W: Write> SnapshotWriter<W> {
    /// Writes the header.
    pub fn new(writer: W, header: &SnapshotHeader) -> io::Result<Self> {
        if header.catalog.len() > CATALOG_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the catalog is too long for a snapshot"));
        }
        let seal = Seal::default();
        let mut bytes = Vec::with_capacity(HEADER_BYTES + header.catalog.len() + 4);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[seal.cipher, u8::from(header.partial)]);
        bytes.extend_from_slice(&seal.key_id.to_le_bytes());
        bytes.extend_from_slice(&header.replay_from.to_le_bytes());
        bytes.extend_from_slice(&header.created_ms.to_le_bytes());
        bytes.extend_from_slice(&header.hash_key_id);
        bytes.extend_from_slice(&length32(header.catalog.len()));
        bytes.extend_from_slice(header.catalog.as_bytes());
        let sum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        let block = Vec::with_capacity(BLOCK_BYTES * 2);
        let mut snapshot = Self { writer, hasher: blake3::Hasher::new(), block, summary: Summary::default() };
        snapshot.put(&bytes)?;
        Ok(snapshot)
    }

    /// Adds a record, as [`crate::record::Record::encode`] wrote it.
    pub fn add(&mut self, key: &IndexKey, record: &[u8]) -> io::Result<()> {
        let length = RECORD_HEAD_BYTES + record.len();
        if length > BLOCK_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the record is too long for a snapshot"));
        }
        if self.block.len() + length > BLOCK_BYTES {
            self.close_block()?;
        }
        self.block.extend_from_slice(key.as_bytes());
        self.block.extend_from_slice(&length32(record.len()));
        self.block.extend_from_slice(record);
        self.summary.records += 1;
        Ok(())
    }

    /// Writes the footer, which completes the snapshot.
    pub fn finish(mut self) -> io::Result<(W, Summary)> {
        self.close_block()?;
        let mut footer = [0; FOOTER_BYTES];
        let (records, hash) = footer.split_at_mut(8);
        records.copy_from_slice(&self.summary.records.to_le_bytes());
        hash.copy_from_slice(self.hasher.finalize().as_bytes());
        self.put(&head(KIND_FOOTER, &footer))?;
        self.put(&footer)?;
        self.writer.flush()?;
        Ok((self.writer, self.summary))
    }

    fn close_block(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let mut block = std::mem::take(&mut self.block);
        self.put(&head(KIND_RECORDS, &block))?;
        self.put(&block)?;
        block.clear();
        self.block = block;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes)?;
        self.hasher.update(bytes);
        self.summary.bytes += bytes.len() as u64;
        Ok(())
    }
}

pub(super) fn head(kind: u8, content: &[u8]) -> [u8; BLOCK_HEAD_BYTES] {
    let mut head = [0; BLOCK_HEAD_BYTES];
    let [first, _, _, _, rest @ ..] = &mut head;
    *first = kind;
    let (length, sum) = rest.split_at_mut(4);
    length.copy_from_slice(&length32(content.len()));
    sum.copy_from_slice(&super::checksum([kind, 0, 0, 0], content).to_le_bytes());
    head
}
