//! Reading a snapshot from any stream.

use std::io::{self, Read};

use super::{
    BLOCK_BYTES_MAX, BLOCK_HEAD_BYTES, CATALOG_BYTES_MAX, FOOTER_BYTES, HEADER_BYTES, KIND_FOOTER, KIND_RECORDS, MAGIC,
    SnapshotError, SnapshotHeader, Summary, VERSION, checksum,
};
use crate::key::IndexKey;
use crate::record::{Damaged, Seal};
use crate::wire;

/// Reads the records of a snapshot.
#[derive(Debug)]
pub struct SnapshotReader<R> {
    stream: Stream<R>,
    header: SnapshotHeader,
    block: Vec<u8>,
    /// The number of bytes of the block that were read.
    used: usize,
    records: u64,
    over: bool,
}

/// The input, counted and hashed.
#[derive(Debug)]
struct Stream<R> {
    reader: R,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl<R: Read> SnapshotReader<R> {
    /// Reads the header.
    pub fn new(reader: R) -> Result<Self, SnapshotError> {
        let mut stream = Stream { reader, hasher: blake3::Hasher::new(), bytes: 0 };
        let header = read_header(&mut stream)?;
        Ok(Self { stream, header, block: Vec::new(), used: 0, records: 0, over: false })
    }

    /// The header of the snapshot.
    pub fn header(&self) -> &SnapshotHeader {
        &self.header
    }

    /// The size that was read so far.
    pub fn summary(&self) -> Summary {
        Summary { records: self.records, bytes: self.stream.bytes }
    }

    /// The next record. `None` comes only when the footer has proved that all of them were read.
    #[expect(clippy::should_implement_trait, reason = "an error ends it for good, which an iterator does not promise")]
    pub fn next(&mut self) -> Result<Option<(IndexKey, Vec<u8>)>, SnapshotError> {
        if self.over {
            return Ok(None);
        }
        let rest = self.block.get(self.used..).unwrap_or_default();
        if rest.is_empty() {
            return if self.next_block()? { self.next() } else { Ok(None) };
        }
        let (key, record, left) = one_record(rest).map_err(|reason| self.stream.damaged(reason))?;
        let found = (key, record.to_vec());
        self.used = self.block.len() - left;
        self.records += 1;
        Ok(Some(found))
    }

    /// Reads the next block. False: it was the footer.
    fn next_block(&mut self) -> Result<bool, SnapshotError> {
        let hash = self.stream.hasher.finalize();
        let head: [u8; BLOCK_HEAD_BYTES] = self.stream.array()?;
        let [kind, a, b, c, head @ ..] = head;
        let [length, sum] =
            [head.first_chunk(), head.last_chunk()].map(|part| part.map_or(0, |part| u32::from_le_bytes(*part)));
        let length = length as usize;
        // Impossible lengths are refused before anything is read, or memory is allocated, for them.
        let possible = match kind {
            KIND_RECORDS => (1..=BLOCK_BYTES_MAX).contains(&length),
            KIND_FOOTER => length == FOOTER_BYTES,
            _ => false,
        };
        if !possible {
            return Err(self.stream.damaged(Damaged::Malformed));
        }
        self.used = 0;
        self.stream.fill(&mut self.block, length)?;
        if checksum([kind, a, b, c], &self.block) != sum {
            return Err(self.stream.damaged(Damaged::Checksum));
        }
        if kind == KIND_RECORDS {
            return Ok(true);
        }
        self.over = self.is_whole(hash)?;
        Ok(false)
    }

    fn is_whole(&mut self, hash: blake3::Hash) -> Result<bool, SnapshotError> {
        let mut footer = wire::Reader::new(&self.block);
        let records = footer.array().map(u64::from_le_bytes).map_err(|reason| self.stream.damaged(reason))?;
        if records != self.records || footer.rest() != hash.as_bytes() {
            return Err(SnapshotError::Hash);
        }
        let mut more = Vec::new();
        (&mut self.stream.reader).take(1).read_to_end(&mut more).map_err(SnapshotError::Read)?;
        if more.is_empty() { Ok(true) } else { Err(SnapshotError::TooLong) }
    }
}

fn read_header(stream: &mut Stream<impl Read>) -> Result<SnapshotHeader, SnapshotError> {
    let fixed: [u8; HEADER_BYTES] = match stream.array() {
        Err(SnapshotError::Cut { bytes }) if bytes < MAGIC.len() as u64 => return Err(SnapshotError::Foreign),
        fixed => fixed?,
    };
    let fields = || {
        let mut reader = wire::Reader::new(&fixed);
        let magic: [u8; 8] = reader.array()?;
        let version = u16::from_le_bytes(reader.array()?);
        let [cipher, part] = reader.array()?;
        let key_id = u32::from_le_bytes(reader.array()?);
        let replay_from = u64::from_le_bytes(reader.array()?);
        let created_ms = u64::from_le_bytes(reader.array()?);
        let (hash_key_id, partial) = (reader.array()?, part == 1);
        let header = SnapshotHeader { replay_from, created_ms, hash_key_id, partial, catalog: String::new() };
        let length = u32::from_le_bytes(reader.array()?) as usize;
        Ok((magic, version, Seal { key_id, cipher }, part, header, length))
    };

    let (magic, version, seal, part, mut header, length) = fields().map_err(|reason| stream.damaged(reason))?;
    if magic != *MAGIC {
        return Err(SnapshotError::Foreign);
    }
    if length > CATALOG_BYTES_MAX {
        return Err(stream.damaged(Damaged::Malformed));
    }

    let mut catalog = Vec::new();
    stream.fill(&mut catalog, length)?;
    let sum = u32::from_le_bytes(stream.array()?);
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&fixed);
    hasher.update(&catalog);
    if hasher.finalize() != sum {
        return Err(stream.damaged(Damaged::Checksum));
    }

    // After the checksum: a flipped bit must not be taken for a later version.
    if version != VERSION || seal != Seal::default() || part > 1 {
        return Err(SnapshotError::Newer);
    }
    header.catalog = String::from_utf8(catalog).map_err(|_| stream.damaged(Damaged::Malformed))?;
    Ok(header)
}

/// A key, a record, and the number of bytes behind it.
fn one_record(bytes: &[u8]) -> Result<(IndexKey, &[u8], usize), Damaged> {
    let mut reader = wire::Reader::new(bytes);
    let key = reader.take(IndexKey::LENGTH)?.try_into().map_err(|_| Damaged::Malformed)?;
    let length = u32::from_le_bytes(reader.array()?);
    let record = reader.take(length as usize)?;
    Ok((key, record, reader.rest().len()))
}

impl<R: Read> Stream<R> {
    /// Replaces `bytes` by the next `length` ones. Memory is allocated only for bytes that arrive.
    fn fill(&mut self, bytes: &mut Vec<u8>, length: usize) -> Result<(), SnapshotError> {
        bytes.clear();
        let read = (&mut self.reader).take(length as u64).read_to_end(bytes).map_err(SnapshotError::Read)?;
        self.bytes += read as u64;
        self.hasher.update(bytes);
        if read < length { Err(SnapshotError::Cut { bytes: self.bytes }) } else { Ok(()) }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let mut array = [0; N];
        let mut read = 0;
        while let Some(rest) = array.get_mut(read..).filter(|rest| !rest.is_empty()) {
            match self.reader.read(rest) {
                Ok(0) => return Err(SnapshotError::Cut { bytes: self.bytes + read as u64 }),
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(SnapshotError::Read(error)),
            }
        }
        self.bytes += N as u64;
        self.hasher.update(&array);
        Ok(array)
    }

    fn damaged(&self, reason: Damaged) -> SnapshotError {
        SnapshotError::Damaged { offset: self.bytes, reason }
    }
}
