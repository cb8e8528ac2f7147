//! Reading a snapshot from any stream.

use std::io::{self, Read};

use super::form::{self, BlockHeader, SnapshotFigures, SnapshotFooter};
use super::{
    BLOCK_BYTES_MAX, CATALOG_BYTES_MAX, FOOTER_BYTES, FOOTER_BYTES_1, HEADER_BYTES, INDEX_ENTRY_BYTES, KIND_FOOTER,
    KIND_INDEX, KIND_RECORDS, KIND_STATISTICS, MAGIC, SnapshotError, SnapshotHeader, SnapshotSize, VERSION, VERSION_1,
    VIEW_ENTRY_BYTES,
};
use crate::key::IndexKey;
use crate::record::{CipherHeader, DamagedBytes};
use crate::wire;

/// Reads the records of a snapshot.
#[derive(Debug)]
pub struct SnapshotReader<R> {
    stream: HashedInput<R>,
    header: SnapshotHeader,
    version: u16,
    /// The kind of the block that was read last.
    kind: u8,
    block: Vec<u8>,
    /// The number of bytes of the block that were read.
    used: usize,
    records: u64,
    figures: SnapshotFigures,
    /// The hash of the index that these records should have.
    index: blake3::Hasher,
    /// The hash of the index that was read.
    found: blake3::Hasher,
    /// The end of the last block of records, once it is known.
    records_end: Option<u64>,
    /// The hash of the statistics that were read.
    statistics: blake3::Hash,
    over: bool,
}

/// The input, counted and hashed.
#[derive(Debug)]
struct HashedInput<R> {
    reader: R,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl<R: Read> SnapshotReader<R> {
    /// Reads the header.
    pub fn new(reader: R) -> Result<Self, SnapshotError> {
        let mut stream = HashedInput { reader, hasher: blake3::Hasher::new(), bytes: 0 };
        let (header, version) = read_header(&mut stream)?;
        Ok(Self {
            stream,
            header,
            version,
            kind: KIND_RECORDS,
            block: Vec::new(),
            used: 0,
            records: 0,
            figures: SnapshotFigures::new(),
            index: blake3::Hasher::new(),
            found: blake3::Hasher::new(),
            records_end: None,
            statistics: blake3::hash(b""),
            over: false,
        })
    }

    /// The header of the snapshot.
    pub fn header(&self) -> &SnapshotHeader {
        &self.header
    }

    /// The size that was read so far.
    pub fn summary(&self) -> SnapshotSize {
        SnapshotSize { records: self.records, bytes: self.stream.bytes }
    }

    /// The version and the length of the header.
    pub(super) fn form(&self) -> (u16, u64) {
        (self.version, self.stream.bytes)
    }

    /// The next record. `None` comes only when the footer has proved that all of them were read.
    #[expect(clippy::should_implement_trait, reason = "an error ends it for good, which an iterator does not promise")]
    pub fn next(&mut self) -> Result<Option<(IndexKey, Vec<u8>)>, SnapshotError> {
        while self.used >= self.block.len() {
            if self.over {
                return Ok(None);
            }
            self.next_block()?;
        }
        self.next_record().map_err(|reason| {
            self.used = self.block.len();
            self.stream.damaged(reason)
        })
    }

    /// The next record of the block.
    fn next_record(&mut self) -> Result<Option<(IndexKey, Vec<u8>)>, DamagedBytes> {
        let mut reader = wire::ByteReader::new(self.block.get(self.used..).unwrap_or_default());
        let is_first = self.used == 0;
        let (key, record) = if self.version == VERSION_1 {
            form::record_1(&mut reader)?
        } else {
            let previous = self.figures.last().filter(|_| !is_first);
            let (key, record) = form::record(&mut reader, previous)?;
            self.figures.add(&key, record).map_err(|_| DamagedBytes::Malformed)?;
            if is_first {
                self.index.update(&form::index_entry(&key, self.block.len()));
            }
            (key, record)
        };
        let found = (key, record.to_vec());
        self.used = self.block.len() - reader.rest().len();
        self.records += 1;
        Ok(Some(found))
    }

    fn next_block(&mut self) -> Result<(), SnapshotError> {
        let begin = self.stream.bytes;
        let bytes = self.stream.array_not_hashed()?;
        let head = BlockHeader::decode(bytes);
        // Impossible lengths are refused before anything is read, or memory is allocated, for them.
        if !self.is_possible(&head) {
            return Err(self.stream.damaged(DamagedBytes::Malformed));
        }
        let hash = (head.kind == KIND_FOOTER).then(|| self.stream.hasher.finalize());
        self.stream.hasher.update(&bytes);

        let read = self.stream.fill(&mut self.block, head.length);
        // From a block only records are read, and from a damaged block nothing.
        self.used = self.block.len();
        read?;
        head.verify(&self.block).map_err(|reason| self.stream.damaged(reason))?;
        self.kind = head.kind;

        match head.kind {
            KIND_RECORDS => self.used = 0,
            KIND_INDEX => {
                self.records_end.get_or_insert(begin);
                self.found.update(&self.block);
            }
            KIND_STATISTICS => {
                self.records_end.get_or_insert(begin);
                self.statistics = blake3::hash(&self.block);
            }
            _ => {
                self.is_whole(hash)?;
                self.over = true;
            }
        }
        Ok(())
    }

    /// True when a block with this head can follow the last one.
    fn is_possible(&self, head: &BlockHeader) -> bool {
        let length = head.length;
        let is_statistics_next = self.kind != KIND_STATISTICS;
        match (self.version, head.kind) {
            (_, KIND_RECORDS) => self.kind == KIND_RECORDS && (1..=BLOCK_BYTES_MAX).contains(&length),
            (VERSION_1, KIND_FOOTER) => length == FOOTER_BYTES_1,
            (VERSION, KIND_INDEX) => {
                is_statistics_next
                    && (1..=BLOCK_BYTES_MAX).contains(&length)
                    && length.is_multiple_of(INDEX_ENTRY_BYTES)
            }
            (VERSION, KIND_STATISTICS) => {
                is_statistics_next && length <= BLOCK_BYTES_MAX && length.is_multiple_of(VIEW_ENTRY_BYTES)
            }
            (VERSION, KIND_FOOTER) => !is_statistics_next && length == FOOTER_BYTES,
            _ => false,
        }
    }

    /// Checks that the footer, in the block, is that of everything before it. `hash` is the hash of that.
    fn is_whole(&mut self, hash: Option<blake3::Hash>) -> Result<(), SnapshotError> {
        let hash = hash.ok_or(SnapshotError::Hash)?;
        if self.version == VERSION_1 {
            let mut footer = wire::ByteReader::new(&self.block);
            let records = footer.array().map(u64::from_le_bytes).map_err(|reason| self.stream.damaged(reason))?;
            if records != self.records || footer.rest() != hash.as_bytes() {
                return Err(SnapshotError::Hash);
            }
        } else {
            let footer = SnapshotFooter::decode(&self.block).map_err(|reason| self.stream.damaged(reason))?;
            if footer.records != self.records || footer.hash != *hash.as_bytes() {
                return Err(SnapshotError::Hash);
            }
            if !self.describes(&footer, hash) {
                return Err(self.stream.damaged(DamagedBytes::Malformed));
            }
        }

        let mut more = Vec::new();
        (&mut self.stream.reader).take(1).read_to_end(&mut more).map_err(SnapshotError::Read)?;
        if more.is_empty() { Ok(()) } else { Err(SnapshotError::TooLong) }
    }

    /// True when index, statistics and footer are those of the records that were read.
    fn describes(&self, footer: &SnapshotFooter, hash: blake3::Hash) -> bool {
        let index_is_right = if footer.index_at == 0 {
            self.found.count() == 0
        } else {
            self.figures.is_ascending()
                && self.records_end == Some(footer.index_at)
                && self.found.finalize() == self.index.finalize()
        };
        index_is_right
            && self.statistics == blake3::hash(&self.figures.encode())
            && *footer == self.figures.footer(self.records, footer.index_at, hash)
    }
}

fn read_header(stream: &mut HashedInput<impl Read>) -> Result<(SnapshotHeader, u16), SnapshotError> {
    let fixed: [u8; HEADER_BYTES] = match stream.array() {
        Err(SnapshotError::Cut { bytes }) if bytes < MAGIC.len() as u64 => return Err(SnapshotError::Foreign),
        fixed => fixed?,
    };
    let fields = || {
        let mut reader = wire::ByteReader::new(&fixed);
        let magic: [u8; 8] = reader.array()?;
        let version = u16::from_le_bytes(reader.array()?);
        let [cipher, part] = reader.array()?;
        let key_id = u32::from_le_bytes(reader.array()?);
        let replay_from = u64::from_le_bytes(reader.array()?);
        let created_ms = u64::from_le_bytes(reader.array()?);
        let (hash_key_id, partial) = (reader.array()?, part == 1);
        let header = SnapshotHeader { replay_from, created_ms, hash_key_id, partial, catalog: String::new() };
        let length = u32::from_le_bytes(reader.array()?) as usize;
        Ok((magic, version, CipherHeader { key_id, cipher }, part, header, length))
    };

    let (magic, version, seal, part, mut header, length) = fields().map_err(|reason| stream.damaged(reason))?;
    if magic != *MAGIC {
        return Err(SnapshotError::Foreign);
    }
    if length > CATALOG_BYTES_MAX {
        return Err(stream.damaged(DamagedBytes::Malformed));
    }

    let mut catalog = Vec::new();
    stream.fill(&mut catalog, length)?;
    let sum = u32::from_le_bytes(stream.array()?);
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&fixed);
    hasher.update(&catalog);
    if hasher.finalize() != sum {
        return Err(stream.damaged(DamagedBytes::Checksum));
    }

    // After the checksum: a flipped bit must not be taken for a later version.
    if !(VERSION_1..=VERSION).contains(&version) || seal != CipherHeader::default() || part > 1 {
        return Err(SnapshotError::Newer);
    }
    header.catalog = String::from_utf8(catalog).map_err(|_| stream.damaged(DamagedBytes::Malformed))?;
    Ok((header, version))
}
impl<R: Read> HashedInput<R> {
    /// Replaces `bytes` by the next `length` ones. Memory is allocated only for bytes that arrive.
    fn fill(&mut self, bytes: &mut Vec<u8>, length: usize) -> Result<(), SnapshotError> {
        bytes.clear();
        let read = (&mut self.reader).take(length as u64).read_to_end(bytes).map_err(SnapshotError::Read)?;
        self.bytes += read as u64;
        self.hasher.update(bytes);
        if read < length { Err(SnapshotError::Cut { bytes: self.bytes }) } else { Ok(()) }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let array = self.array_not_hashed()?;
        self.hasher.update(&array);
        Ok(array)
    }

    fn array_not_hashed<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
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
        Ok(array)
    }

    fn damaged(&self, reason: DamagedBytes) -> SnapshotError {
        SnapshotError::Damaged { offset: self.bytes, reason }
    }
}
