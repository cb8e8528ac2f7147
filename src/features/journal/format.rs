//! The journal's bytes: the header of a segment, groups, and the entries in them. All integers are little-endian.
//!
//! Every group begins with the mark of its segment, a random number. A pushed value cannot contain it, so a match when
//! searching for the mark is a group, and bytes left over from another segment are not taken for one.

use std::ops::RangeInclusive;

use bytes::{Buf, BufMut, Bytes};

use super::{JournalChange, JournalEntry};
use crate::key::IndexKey;
use crate::record::{CipherHeader, DamagedBytes};
use crate::wire::{ByteReader, length32};

/// The length of a segment's header. It is the same in every version, so that a later version can be distinguished from
/// damage.
pub const HEADER_BYTES: usize = 64;
/// Bytes before a group's content: mark, length of the content, checksum.
pub const GROUP_HEAD_BYTES: usize = 16;
/// The longest content of a group.
pub const GROUP_BYTES_MAX: usize = 64 << 20;

const MAGIC: &[u8; 8] = b"LEDGEJNL";
/// 2: a group may end with the latest event time that was trusted when it was written. 3: rows may be packed.
const VERSION: u16 = 3;
/// The versions that are read.
const VERSIONS: RangeInclusive<u16> = 1..=VERSION;
/// The bytes of the first entry's number, and of the number of entries.
const GROUP_NUMBERS_BYTES: usize = 12;
/// The bytes of the latest event time that was trusted; omitted where all were.
const GROUP_LATEST_BYTES: usize = 8;
/// The bytes before the body of an entry: its length, and the head, which the length includes.
const ENTRY_LENGTH_BYTES: usize = 4;
const ENTRY_HEAD_BYTES: usize = 6 + IndexKey::LENGTH;

const KIND_PUT: u8 = 1;
const KIND_DELETE: u8 = 2;

/// A segment, as stated in the header of the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreviousSegment {
    /// The sequence number in its name.
    pub first_seq: u64,
    /// The number of its acknowledged bytes; bytes beyond do not count.
    pub length: u64,
    /// The sequence number after its last entry.
    pub next_seq: u64,
}

/// The header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The first bytes of every group of this segment.
    pub mark: u64,
    /// The sequence number of its first entry.
    pub first_seq: u64,
    pub previous: Option<PreviousSegment>,
    /// True when groups of this version may be appended.
    pub is_current: bool,
}

impl SegmentHeader {
    /// Creates the header of a new segment.
    pub fn new(mark: u64, first_seq: u64, previous: Option<PreviousSegment>) -> Self {
        Self { mark, first_seq, previous, is_current: true }
    }

    /// Encodes the header of a new segment.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let seal = CipherHeader::default();
        let previous = self.previous.unwrap_or(PreviousSegment { first_seq: 0, length: 0, next_seq: 0 });
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[seal.cipher, 0]);
        bytes.extend_from_slice(&seal.key_id.to_le_bytes());
        for number in [self.mark, self.first_seq, previous.first_seq, previous.length, previous.next_seq, 0] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.truncate(HEADER_BYTES - 4);
        let sum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&bytes);
        header
    }

    /// Reads the output of [`Self::encode`].
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, DamagedBytes> {
        let Some((content, sum)) = bytes.split_last_chunk::<4>() else { return Err(DamagedBytes::Malformed) };
        let mut reader = ByteReader::new(content);
        if reader.array()? != *MAGIC {
            return Err(DamagedBytes::Malformed);
        }
        if crc32fast::hash(content) != u32::from_le_bytes(*sum) {
            return Err(DamagedBytes::Checksum);
        }
        let version = u16::from_le_bytes(reader.array()?);
        let [cipher, _] = reader.array()?;
        let key_id = u32::from_le_bytes(reader.array()?);
        if !VERSIONS.contains(&version) || (CipherHeader { key_id, cipher }) != CipherHeader::default() {
            return Err(DamagedBytes::Unknown);
        }
        let mut number = || reader.array().map(u64::from_le_bytes);
        let (mark, first_seq) = (number()?, number()?);
        let previous = PreviousSegment { first_seq: number()?, length: number()?, next_seq: number()? };
        let previous = (previous.first_seq > 0).then_some(previous);
        Ok(Self { mark, first_seq, previous, is_current: version == VERSION })
    }
}

/// The beginning of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalGroupHeader {
    /// The mark of its segment.
    pub mark: u64,
    length: u32,
    sum: u32,
}

impl JournalGroupHeader {
    /// Creates the head of a group with this content.
    pub fn of(mark: u64, content: &[u8]) -> Self {
        Self { mark, length: u32::from_le_bytes(length32(content.len())), sum: checksum(content) }
    }

    pub fn encode(&self) -> [u8; GROUP_HEAD_BYTES] {
        let mut bytes = [0; GROUP_HEAD_BYTES];
        let mut place = &mut bytes[..];
        place.put_u64_le(self.mark);
        place.put_u32_le(self.length);
        place.put_u32_le(self.sum);
        bytes
    }

    /// Reads the output of [`Self::encode`]. `None` for a length that no group can have.
    pub fn decode(bytes: [u8; GROUP_HEAD_BYTES]) -> Option<Self> {
        let mut bytes = &bytes[..];
        let head = Self { mark: bytes.get_u64_le(), length: bytes.get_u32_le(), sum: bytes.get_u32_le() };
        (GROUP_NUMBERS_BYTES..=GROUP_BYTES_MAX).contains(&head.length()).then_some(head)
    }

    /// The length of the content.
    pub fn length(&self) -> usize {
        self.length as usize
    }

    /// True when `content` matches the checksum.
    pub fn matches(&self, content: &[u8]) -> bool {
        checksum(content) == self.sum
    }
}

/// The content of a group: one write and one fsync.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalGroup {
    /// The sequence number of its first entry.
    pub first_seq: u64,
    /// The sequence number after its last entry.
    pub next_seq: u64,
    count: u32,
    entries: Bytes,
}

impl JournalGroup {
    /// Reads the numbers of a content that [`JournalGroupHeader::matches`].
    pub fn decode(content: &Bytes) -> Result<Self, DamagedBytes> {
        let mut reader = ByteReader::new(content);
        let first_seq = u64::from_le_bytes(reader.array()?);
        let count = u32::from_le_bytes(reader.array()?);
        let next_seq = first_seq.checked_add(u64::from(count)).ok_or(DamagedBytes::Malformed)?;
        // Each entry has a head at least, so a count cannot ask for more than there are bytes.
        if (count as usize)
            .checked_mul(ENTRY_LENGTH_BYTES + ENTRY_HEAD_BYTES)
            .is_none_or(|least| least > reader.rest().len())
        {
            return Err(DamagedBytes::Malformed);
        }
        Ok(Self { first_seq, next_seq, count, entries: content.slice(GROUP_NUMBERS_BYTES..) })
    }

    /// Its entries, all of which are well-formed.
    pub fn entries(&self) -> Result<Vec<JournalEntry>, DamagedBytes> {
        let mut rest = self.entries.clone();
        let mut entries = Vec::with_capacity(self.count as usize);

        for seq in self.first_seq..self.next_seq {
            let length = rest.try_get_u32_le().map_err(|_| DamagedBytes::Malformed)? as usize;
            if length < ENTRY_HEAD_BYTES || length > rest.len() {
                return Err(DamagedBytes::Malformed);
            }
            let mut body = rest.split_to(length);
            let mut reader = ByteReader::new(&body);
            let [kind, cipher] = reader.array()?;
            let key_id = u32::from_le_bytes(reader.array()?);
            let key = reader.take(IndexKey::LENGTH)?.try_into().map_err(|_| DamagedBytes::Malformed)?;
            let seal = CipherHeader { key_id, cipher };
            if !seal.is_known() {
                return Err(DamagedBytes::Unknown);
            }
            body.advance(ENTRY_HEAD_BYTES);
            let is_plain = seal == CipherHeader::default();
            let change = match kind {
                KIND_PUT if is_plain => JournalChange::Put(body),
                KIND_PUT => JournalChange::PutSealed(key_id, body),
                KIND_DELETE if body.is_empty() && is_plain => JournalChange::Delete,
                KIND_DELETE => return Err(DamagedBytes::Malformed),
                _ => return Err(DamagedBytes::Unknown),
            };
            entries.push(JournalEntry { seq, key, change, latest_us: i64::MAX });
        }

        if !rest.is_empty() {
            let latest_us = i64::from_le_bytes((&rest[..]).try_into().map_err(|_| DamagedBytes::Malformed)?);
            if entries.is_empty() || latest_us == i64::MAX {
                return Err(DamagedBytes::Malformed);
            }
            for entry in &mut entries {
                entry.latest_us = latest_us;
            }
        }

        Ok(entries)
    }
}

/// The maximum length of the content of a group with these changes. `None`: longer than a group may be.
pub fn group_length(changes: &[(IndexKey, JournalChange)]) -> Option<usize> {
    let length = changes.iter().try_fold(GROUP_NUMBERS_BYTES + GROUP_LATEST_BYTES, |sum, (_, change)| {
        sum.checked_add(ENTRY_LENGTH_BYTES + ENTRY_HEAD_BYTES)?
            .checked_add(change.bytes())
            .filter(|&sum| sum <= GROUP_BYTES_MAX)
    })?;
    u32::try_from(changes.len()).is_ok().then_some(length)
}

/// Replaces `bytes` by a group of changes, which [`group_length`] allows. Event times up to `latest_us` are trusted
/// now.
pub fn encode_group(
    bytes: &mut Vec<u8>,
    mark: u64,
    first_seq: u64,
    changes: &[(IndexKey, JournalChange)],
    latest_us: i64,
) {
    bytes.clear();
    bytes.reserve(GROUP_HEAD_BYTES + group_length(changes).unwrap_or(0));
    bytes.extend_from_slice(&[0; GROUP_HEAD_BYTES]);
    bytes.extend_from_slice(&first_seq.to_le_bytes());
    bytes.extend_from_slice(&length32(changes.len()));
    for (key, change) in changes {
        let (kind, seal, body) = match change {
            JournalChange::Put(row) => (KIND_PUT, CipherHeader::default(), &row[..]),
            JournalChange::PutSealed(key_id, row) => (KIND_PUT, CipherHeader::of_entity(*key_id), &row[..]),
            JournalChange::Delete => (KIND_DELETE, CipherHeader::default(), &[][..]),
        };
        bytes.extend_from_slice(&length32(ENTRY_HEAD_BYTES + body.len()));
        bytes.extend_from_slice(&[kind, seal.cipher]);
        bytes.extend_from_slice(&seal.key_id.to_le_bytes());
        bytes.extend_from_slice(key.as_bytes());
        bytes.extend_from_slice(body);
    }
    if latest_us != i64::MAX && !changes.is_empty() {
        bytes.extend_from_slice(&latest_us.to_le_bytes());
    }
    if let Some((head, content)) = bytes.split_first_chunk_mut::<GROUP_HEAD_BYTES>() {
        *head = JournalGroupHeader::of(mark, content).encode();
    }
}

/// The checksum of a content, which covers the length, too.
fn checksum(content: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length32(content.len()));
    hasher.update(content);
    hasher.finalize()
}
