//! The content of blocks, and figures over the records.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::{BLOCK_HEAD_BYTES, FOOTER_BYTES, INDEX_ENTRY_BYTES, SnapshotStatistics, VIEW_ENTRY_BYTES, VIEWS_MAX};
use crate::key::IndexKey;
use crate::record::{DamagedBytes, event_us, purge_us};
use crate::view::ViewId;
use crate::wire::{ByteReader, length32, put_varint};

/// The bytes before the content of a block.
#[derive(Debug, Clone, Copy)]
pub struct BlockHeader {
    pub kind: u8,
    /// The length of the content, which may be an impossible one.
    pub length: usize,
    zeros: [u8; 3],
    sum: u32,
}

impl BlockHeader {
    /// The bytes before this content.
    pub fn encode(kind: u8, content: &[u8]) -> [u8; BLOCK_HEAD_BYTES] {
        let mut head = [0; BLOCK_HEAD_BYTES];
        let [first, _, _, _, rest @ ..] = &mut head;
        *first = kind;
        let (length, sum) = rest.split_at_mut(4);
        length.copy_from_slice(&length32(content.len()));
        sum.copy_from_slice(&checksum([kind, 0, 0, 0], content).to_le_bytes());
        head
    }

    pub fn decode(head: [u8; BLOCK_HEAD_BYTES]) -> Self {
        let [kind, zeros @ .., _, _, _, _, _, _, _, _] = head;
        let [_, _, _, _, length @ .., _, _, _, _] = head;
        let [_, _, _, _, _, _, _, _, sum @ ..] = head;
        Self { kind, zeros, length: u32::from_le_bytes(length) as usize, sum: u32::from_le_bytes(sum) }
    }

    /// Checks the content behind it.
    pub fn verify(&self, content: &[u8]) -> Result<(), DamagedBytes> {
        let [a, b, c] = self.zeros;
        if content.len() != self.length {
            Err(DamagedBytes::Malformed)
        } else if checksum([self.kind, a, b, c], content) != self.sum {
            Err(DamagedBytes::Checksum)
        } else {
            Ok(())
        }
    }
}

/// The checksum of a block, which covers its kind, too.
fn checksum(kind: [u8; 4], content: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&kind);
    hasher.update(content);
    hasher.finalize()
}

/// A record in a block, with the end of its key.
#[derive(Debug)]
struct BlockRecord<'b> {
    /// The number of bytes of the key that are those of the key before it.
    shared: usize,
    /// The rest of the key.
    rest: &'b [u8],
    record: &'b [u8],
}

impl<'b> BlockRecord<'b> {
    fn read(reader: &mut ByteReader<'b>) -> Result<Self, DamagedBytes> {
        let [shared] = reader.array()?;
        let shared = usize::from(shared);
        let rest = reader.take(IndexKey::LENGTH.checked_sub(shared).ok_or(DamagedBytes::Malformed)?)?;
        let length = usize::try_from(reader.varint()?).map_err(|_| DamagedBytes::Malformed)?;
        Ok(Self { shared, rest, record: reader.take(length)? })
    }
}

/// Appends a record to a block. `previous` is the key before it in the same block.
pub fn put_record(block: &mut Vec<u8>, previous: Option<&IndexKey>, key: &IndexKey, record: &[u8]) {
    let shared = previous.map_or(0, |previous| common(previous.as_bytes(), key.as_bytes()));
    block.push(u8::try_from(shared).unwrap_or(0));
    block.extend_from_slice(key.as_bytes().get(shared..).unwrap_or_default());
    put_varint(block, record.len() as u64);
    block.extend_from_slice(record);
}

/// The next record of a block. `previous` is the key before it in the same block.
pub fn record<'b>(
    reader: &mut ByteReader<'b>,
    previous: Option<&IndexKey>,
) -> Result<(IndexKey, &'b [u8]), DamagedBytes> {
    let BlockRecord { shared, rest, record } = BlockRecord::read(reader)?;
    let mut key = match previous {
        Some(previous) => *previous.as_bytes(),
        None if shared == 0 => [0; IndexKey::LENGTH],
        None => return Err(DamagedBytes::Malformed),
    };
    key.get_mut(shared..).ok_or(DamagedBytes::Malformed)?.copy_from_slice(rest);
    Ok((IndexKey::from(key), record))
}

/// The next record of a block of version 1.
pub fn record_1<'b>(reader: &mut ByteReader<'b>) -> Result<(IndexKey, &'b [u8]), DamagedBytes> {
    let key = reader.array()?;
    let length = u32::from_le_bytes(reader.array()?);
    Ok((IndexKey::from(key), reader.take(length as usize)?))
}

/// The record under `key` in a block of ascending keys that begins with `first`.
pub fn find<'b>(block: &'b [u8], first: &IndexKey, key: &IndexKey) -> Result<Option<&'b [u8]>, DamagedBytes> {
    let mut reader = ByteReader::new(block);
    let mut stored = BlockRecord::read(&mut reader)?;
    // A block that was written to the place of another one has a correct checksum.
    if stored.rest != first.as_bytes() {
        return Err(DamagedBytes::Malformed);
    }

    // The number of bytes that the key which was read last has in common with `key`, and it is the smaller one. As long
    // as more bytes stay the same from one key to the next, they are smaller, too, and need no comparison.
    let mut same = 0;
    loop {
        if stored.shared <= same {
            let wanted = key.as_bytes().get(stored.shared..).unwrap_or_default();
            let begin = common(stored.rest, wanted);
            match stored.rest.get(begin).cmp(&wanted.get(begin)) {
                Ordering::Less => same = stored.shared + begin,
                Ordering::Equal => return Ok(Some(stored.record)),
                Ordering::Greater => return Ok(None),
            }
        }
        if reader.is_empty() {
            return Ok(None);
        }
        stored = BlockRecord::read(&mut reader)?;
    }
}

/// The number of leading bytes that are the same.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// A block of records in the index: its first key, and the length of its content.
pub fn index_entry(first: &IndexKey, length: usize) -> [u8; INDEX_ENTRY_BYTES] {
    let mut entry = [0; INDEX_ENTRY_BYTES];
    let (key, bytes) = entry.split_at_mut(IndexKey::LENGTH);
    key.copy_from_slice(first.as_bytes());
    bytes.copy_from_slice(&length32(length));
    entry
}

/// Reads the output of [`index_entry`].
pub fn read_index_entry(reader: &mut ByteReader<'_>) -> Result<(IndexKey, usize), DamagedBytes> {
    Ok((IndexKey::from(reader.array()?), u32::from_le_bytes(reader.array()?) as usize))
}

/// The last block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotFooter {
    pub records: u64,
    /// The offset of the index in the file; 0 is no index.
    pub index_at: u64,
    /// [`SnapshotStatistics::newest_us`].
    pub newest_us: i64,
    /// [`SnapshotStatistics::earliest_purge_us`].
    pub earliest_purge_us: i64,
    /// The hash of everything before this block.
    pub hash: [u8; blake3::OUT_LEN],
}

impl SnapshotFooter {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FOOTER_BYTES);
        bytes.extend_from_slice(&self.records.to_le_bytes());
        bytes.extend_from_slice(&self.index_at.to_le_bytes());
        bytes.extend_from_slice(&self.newest_us.to_le_bytes());
        bytes.extend_from_slice(&self.earliest_purge_us.to_le_bytes());
        bytes.extend_from_slice(&self.hash);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, DamagedBytes> {
        let mut reader = ByteReader::new(bytes);
        let footer = Self {
            records: u64::from_le_bytes(reader.array()?),
            index_at: u64::from_le_bytes(reader.array()?),
            newest_us: i64::from_le_bytes(reader.array()?),
            earliest_purge_us: i64::from_le_bytes(reader.array()?),
            hash: reader.array()?,
        };
        if reader.is_empty() { Ok(footer) } else { Err(DamagedBytes::Malformed) }
    }
}

/// Figures over the records that were written or read so far.
#[derive(Debug)]
pub struct SnapshotFigures {
    views: BTreeMap<ViewId, u64>,
    last: Option<IndexKey>,
    is_ascending: bool,
    newest_us: i64,
    earliest_purge_us: i64,
}

/// More than [`VIEWS_MAX`] views have records.
#[derive(Debug)]
pub struct TooManyViews;

impl SnapshotFigures {
    pub fn new() -> Self {
        Self {
            views: BTreeMap::new(),
            last: None,
            is_ascending: true,
            newest_us: i64::MIN,
            earliest_purge_us: i64::MAX,
        }
    }

    pub fn add(&mut self, key: &IndexKey, record: &[u8]) -> Result<(), TooManyViews> {
        let views = self.views.len();
        match self.views.entry(key.view()) {
            Entry::Occupied(mut records) => *records.get_mut() += 1,
            Entry::Vacant(_) if views == VIEWS_MAX => return Err(TooManyViews),
            Entry::Vacant(new) => _ = new.insert(1),
        }
        self.is_ascending &= self.last.is_none_or(|last| last < *key);
        self.last = Some(*key);
        self.newest_us = self.newest_us.max(event_us(record));
        self.earliest_purge_us = self.earliest_purge_us.min(purge_us(record));
        Ok(())
    }

    /// The key that was added last.
    pub fn last(&self) -> Option<&IndexKey> {
        self.last.as_ref()
    }

    /// True when each key was greater than the one before it.
    pub fn is_ascending(&self) -> bool {
        self.is_ascending
    }

    /// The content of the block of statistics.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.views.len() * VIEW_ENTRY_BYTES);
        for (view, records) in &self.views {
            bytes.extend_from_slice(&view.0.to_le_bytes());
            bytes.extend_from_slice(&records.to_le_bytes());
        }
        bytes
    }

    /// The footer of a snapshot of these records.
    pub fn footer(&self, records: u64, index_at: u64, hash: blake3::Hash) -> SnapshotFooter {
        let Self { newest_us, earliest_purge_us, .. } = *self;
        SnapshotFooter { records, index_at, newest_us, earliest_purge_us, hash: hash.into() }
    }
}

impl SnapshotStatistics {
    /// Reads a block of statistics. All its records together must be those of the footer.
    pub(super) fn decode(bytes: &[u8], footer: &SnapshotFooter) -> Result<Self, DamagedBytes> {
        let mut reader = ByteReader::new(bytes);
        let mut records: Vec<(ViewId, u64)> = Vec::with_capacity(bytes.len() / VIEW_ENTRY_BYTES);
        let mut all = Some(0_u64);
        while !reader.is_empty() {
            let view = ViewId(u32::from_le_bytes(reader.array()?));
            let count = u64::from_le_bytes(reader.array()?);
            if count == 0 || records.last().is_some_and(|(last, _)| *last >= view) {
                return Err(DamagedBytes::Malformed);
            }
            all = all.and_then(|all| all.checked_add(count));
            records.push((view, count));
        }
        if all != Some(footer.records) {
            return Err(DamagedBytes::Malformed);
        }
        Ok(Self { records, newest_us: footer.newest_us, earliest_purge_us: footer.earliest_purge_us })
    }
}
