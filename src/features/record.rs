//! Rows and records as bytes. The journal has the row of each push; index and snapshots have the record of each entity:
//! the newest row, and the aggregates.
//!
//! All integers are little-endian, or varints. A body may be encrypted under the key of its entity
//! ([`super::protection`]); this file reads and writes plain ones.
//!
//! A row, in the packed form:
//!
//! | bytes | content |
//! | --- | --- |
//! | 8 | the event time |
//! | 1 | zero, where the first form has the number of join keys, which no view is without |
//! | varint, values | the number of join keys, and each behind the number of its type |
//! | the rest | the values ([`runs`]) |
//!
//! The first form has the number of values, then number, type and value of each field. It is read, and written no more.
//!
//! A record, in form 2:
//!
//! | bytes | content |
//! | --- | --- |
//! | 1 | the form with [`ENCRYPTED`], [`WINDOWS`] and [`NEVER`] |
//! | 1, varint | the cipher and the number of the key of an encrypted body |
//! | varint | the sequence number |
//! | 8 | the event time of an encrypted body; a plain one begins with it |
//! | varint | how much later it may be removed, in zigzag; unless it never may |
//! | the rest | the body: the row, and the aggregates |
//! | 4 | the CRC-32 of the index key and everything before |
//!
//! Form 1 has all these in fields of fixed length. It is read, and written no more.

mod runs;

use super::key::IndexKey;
use super::seal;
use super::value::Value;
use super::view::FieldId;
pub use super::wire::DamagedBytes;
use super::wire::{ByteReader, put_signed, put_value, put_varint};

/// The encryption of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CipherHeader {
    /// The number of the key; 0: no key.
    pub key_id: u32,
    /// The number of the cipher; 0: not encrypted.
    pub cipher: u8,
}

/// One pushed row.
#[derive(Debug, Clone, PartialEq)]
pub struct FeatureRow {
    /// The values of the join keys, in the view's order.
    pub entity: Vec<Value>,
    /// The event time, in microseconds since the Unix epoch.
    pub event_us: i64,
    /// Its values that are not null, by the number of the field, ascending.
    pub values: Vec<(FieldId, Value)>,
}

/// The record of an entity.
#[derive(Debug, Clone, PartialEq)]
pub struct FeatureRecord {
    /// The sequence number of the last journal entry that was merged.
    pub seq: u64,
    /// The time from which it may be removed, in microseconds since the Unix epoch; `i64::MAX` is never.
    pub purge_us: i64,
    pub row: FeatureRow,
    /// The aggregates, as [`super::window::WindowState`] wrote them; empty without any.
    pub windows: Vec<u8>,
}

/// The largest record, in bytes. sled never frees the space of values above twice that (measured with 0.34.7: 5 MB of
/// live values took 305 MB).
pub const RECORD_BYTES_MAX: usize = 64 << 10;

/// The largest row that a record can have, in bytes: encrypted or not, and in either form.
pub const ROW_BYTES_MAX: usize = RECORD_BYTES_MAX - OVERHEAD_BYTES_MAX;

/// The most bytes of a record besides its row, without aggregates.
const OVERHEAD_BYTES_MAX: usize = HEADER_BYTES_MAX + seal::TAG_BYTES + CHECKSUM_BYTES;

/// The most bytes before the body of a record: the form, the cipher, and the number of the key; the sequence number;
/// the event time; the time of removal. Form 1 has 32.
const HEADER_BYTES_MAX: usize = (1 + 1 + 5) + 10 + 8 + 10;
const CHECKSUM_BYTES: usize = 4;

/// The forms of a record. No first byte has the highest bit, in any form.
const FORM_1: u8 = 1;
const FORM_2: u8 = 2;
/// The bits of form 2 in a first byte. The others are flags.
const FORM_BITS: u8 = 0x0f;
/// The body is encrypted.
const ENCRYPTED: u8 = 0x10;
/// The encrypted body has aggregates.
const WINDOWS: u8 = 0x20;
/// The record may never be removed.
const NEVER: u8 = 0x40;

/// The number of join keys in the first form of a row; here the mark of the packed form.
const PACKED: u8 = 0;

impl FeatureRow {
    /// The bytes of the row, for the journal.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(16 + self.values.len() * 8);
        self.encode_into(&mut bytes);
        bytes
    }

    fn encode_into(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.event_us.to_le_bytes());
        bytes.push(PACKED);
        put_varint(bytes, self.entity.len() as u64);
        for value in &self.entity {
            put_value(bytes, value);
        }
        runs::put(bytes, &self.values);
    }

    /// Reads the output of [`Self::encode`] of this version or an earlier one.
    pub fn decode(bytes: &[u8]) -> Result<Self, DamagedBytes> {
        let mut reader = ByteReader::new(bytes);
        let row = Self::read(&mut reader)?;
        if reader.is_empty() { Ok(row) } else { Err(DamagedBytes::Malformed) }
    }

    fn read(reader: &mut ByteReader<'_>) -> Result<Self, DamagedBytes> {
        let event_us = i64::from_le_bytes(reader.array()?);
        // A join key takes two bytes at least, so a count cannot request more memory than there are bytes.
        let mut count = reader.count(2)?;
        let is_packed = count == usize::from(PACKED);
        if is_packed {
            count = reader.count(2)?;
        }
        let entity = (0..count).map(|_| reader.value()).collect::<Result<_, _>>()?;
        let values = if is_packed { runs::read(reader)? } else { read_fields(reader)? };
        Ok(Self { entity, event_us, values })
    }

    /// The value of a field; `None` is null.
    pub fn value(&self, field: FieldId) -> Option<&Value> {
        let at = self.values.binary_search_by_key(&field, |(field, _)| *field).ok()?;
        self.values.get(at).map(|(_, value)| value)
    }
}

/// Reads the values of the first form of a row.
fn read_fields(reader: &mut ByteReader<'_>) -> Result<Vec<(FieldId, Value)>, DamagedBytes> {
    // A value and the number of its field take three bytes at least.
    let count = reader.count(3)?;
    let mut values: Vec<(FieldId, Value)> = Vec::with_capacity(count);
    for _ in 0..count {
        let field = FieldId(u16::try_from(reader.varint()?).map_err(|_| DamagedBytes::Malformed)?);
        if values.last().is_some_and(|(last, _)| *last >= field) {
            return Err(DamagedBytes::Malformed);
        }
        let [tag] = reader.array()?;
        reader.values_of(tag, 1, |value| values.push((field, value)))?;
    }
    Ok(values)
}

impl FeatureRecord {
    /// The bytes of the record, for index and snapshots. The checksum covers `key`, too: a record found under another
    /// key is damage.
    pub fn encode(&self, key: &IndexKey) -> Vec<u8> {
        self.header().with_body(key, CipherHeader::default(), false, &self.body())
    }

    /// Its header.
    pub fn header(&self) -> RecordHeader {
        RecordHeader { seq: self.seq, event_us: self.row.event_us, purge_us: self.purge_us }
    }

    /// Reads the output of [`Self::encode`], of this version or an earlier one, under the same key.
    pub fn decode(key: &IndexKey, bytes: &[u8]) -> Result<Self, DamagedBytes> {
        let stored = StoredRecord::verify(key, bytes)?;
        if stored.seal != CipherHeader::default() {
            return Err(DamagedBytes::Unknown);
        }
        Self::of_body(stored.header, stored.body)
    }

    /// The body: the row, and the aggregates.
    pub fn body(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(32 + self.row.values.len() * 8 + self.windows.len());
        self.row.encode_into(&mut bytes);
        bytes.extend_from_slice(&self.windows);
        bytes
    }

    /// Reads the output of [`Self::body`].
    pub fn of_body(header: RecordHeader, body: &[u8]) -> Result<Self, DamagedBytes> {
        let mut reader = ByteReader::new(body);
        let row = FeatureRow::read(&mut reader)?;
        Ok(Self { seq: header.seq, purge_us: header.purge_us, row, windows: reader.rest().to_vec() })
    }
}

/// The header of a record, before its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// [`FeatureRecord::seq`].
    pub seq: u64,
    /// [`FeatureRow::event_us`].
    pub event_us: i64,
    /// [`FeatureRecord::purge_us`].
    pub purge_us: i64,
}

/// The sequence number of a record with a valid checksum.
pub fn sequence_number(record: &[u8]) -> u64 {
    header(record).map_or(0, |header| header.seq)
}

/// The event time of a record with a valid checksum.
pub fn event_us(record: &[u8]) -> i64 {
    header(record).map_or(0, |header| header.event_us)
}

/// The time from which a record with a valid checksum may be removed.
pub fn purge_us(record: &[u8]) -> i64 {
    header(record).map_or(i64::MAX, |header| header.purge_us)
}

fn header(record: &[u8]) -> Option<RecordHeader> {
    let (content, _) = record.split_last_chunk::<CHECKSUM_BYTES>()?;
    StoredRecord::read(content).ok().map(|stored| stored.header)
}

impl RecordHeader {
    /// The bytes of a record with this body: the output of [`FeatureRow::encode`], with the same event time, and the
    /// aggregates. For an encrypted body, `windows` says if it has aggregates.
    pub fn with_body(&self, key: &IndexKey, seal: CipherHeader, windows: bool, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES_MAX + body.len() + CHECKSUM_BYTES);
        let is_encrypted = seal != CipherHeader::default();
        let flag = |flag, is_set| if is_set { flag } else { 0 };
        let flags = flag(ENCRYPTED, is_encrypted)
            | flag(WINDOWS, is_encrypted && windows)
            | flag(NEVER, self.purge_us == i64::MAX);

        bytes.push(FORM_2 | flags);
        if is_encrypted {
            bytes.push(seal.cipher);
            put_varint(&mut bytes, seal.key_id.into());
        }
        put_varint(&mut bytes, self.seq);
        if is_encrypted {
            bytes.extend_from_slice(&self.event_us.to_le_bytes());
        } else {
            debug_assert!(body.starts_with(&self.event_us.to_le_bytes()), "a plain body begins with its event time");
        }
        if self.purge_us != i64::MAX {
            put_signed(&mut bytes, self.purge_us.wrapping_sub(self.event_us));
        }
        bytes.extend_from_slice(body);
        with_checksum(key, bytes)
    }
}

/// A stored record. Its body may be encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredRecord<'b> {
    pub header: RecordHeader,
    /// The encryption of the body.
    pub seal: CipherHeader,
    /// True for an encrypted body with aggregates.
    pub windows: bool,
    pub body: &'b [u8],
}

impl<'b> StoredRecord<'b> {
    /// Checks a record without reading its body.
    pub fn verify(key: &IndexKey, bytes: &'b [u8]) -> Result<Self, DamagedBytes> {
        let (content, sum) = bytes.split_last_chunk().ok_or(DamagedBytes::Malformed)?;
        if checksum(key, content).to_le_bytes() != *sum {
            return Err(DamagedBytes::Checksum);
        }
        Self::read(content)
    }

    /// Reads a record, without its checksum.
    fn read(content: &'b [u8]) -> Result<Self, DamagedBytes> {
        let mut reader = ByteReader::new(content);
        match reader.array()? {
            [FORM_1] => Self::read_form_1(reader),
            [first] if first & FORM_BITS == FORM_2 => Self::read_form_2(first & !FORM_BITS, reader),
            _ => Err(DamagedBytes::Unknown),
        }
    }

    fn read_form_2(flags: u8, mut reader: ByteReader<'b>) -> Result<Self, DamagedBytes> {
        let (is_encrypted, windows) = (flags & ENCRYPTED != 0, flags & WINDOWS != 0);
        if flags & !(ENCRYPTED | WINDOWS | NEVER) != 0 || (windows && !is_encrypted) {
            return Err(DamagedBytes::Unknown);
        }

        let mut seal = CipherHeader::default();
        if is_encrypted {
            [seal.cipher] = reader.array()?;
            seal.key_id = u32::try_from(reader.varint()?).map_err(|_| DamagedBytes::Malformed)?;
            if seal == CipherHeader::default() || !seal.is_known() {
                return Err(DamagedBytes::Unknown);
            }
        }
        let seq = reader.varint()?;
        let encrypted_us = if is_encrypted { Some(i64::from_le_bytes(reader.array()?)) } else { None };
        let kept_us = if flags & NEVER == 0 { Some(reader.signed()?) } else { None };

        let body = reader.rest();
        let event_us = encrypted_us.map_or_else(|| ByteReader::new(body).array().map(i64::from_le_bytes), Ok)?;
        let purge_us = kept_us.map_or(i64::MAX, |kept_us| event_us.wrapping_add(kept_us));
        if kept_us.is_some() && purge_us == i64::MAX {
            return Err(DamagedBytes::Malformed);
        }
        Ok(Self { header: RecordHeader { seq, event_us, purge_us }, seal, windows, body })
    }

    fn read_form_1(mut reader: ByteReader<'b>) -> Result<Self, DamagedBytes> {
        let [cipher, windows, zero] = reader.array()?;
        let seal = CipherHeader { key_id: u32::from_le_bytes(reader.array()?), cipher };
        let is_plain = seal == CipherHeader::default();
        let known = if is_plain { windows == 0 } else { seal.is_known() && windows <= 1 };
        if !known || zero != 0 {
            return Err(DamagedBytes::Unknown);
        }

        let header = RecordHeader {
            seq: u64::from_le_bytes(reader.array()?),
            event_us: i64::from_le_bytes(reader.array()?),
            purge_us: i64::from_le_bytes(reader.array()?),
        };
        let body = reader.rest();
        // In form 2 there is one event time only.
        if is_plain && ByteReader::new(body).array().map(i64::from_le_bytes)? != header.event_us {
            return Err(DamagedBytes::Forged);
        }
        Ok(Self { header, seal, windows: windows == 1, body })
    }
}

impl CipherHeader {
    /// Encryption under the key of an entity.
    pub fn of_entity(key_id: u32) -> Self {
        Self { key_id, cipher: seal::CIPHER }
    }

    /// True when this version can decrypt it, given the key.
    pub fn is_known(self) -> bool {
        self == Self::default() || (self.cipher == seal::CIPHER && self.key_id != 0)
    }
}

fn with_checksum(key: &IndexKey, mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = checksum(key, &bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// Checks a record without reading its body.
pub fn verify(key: &IndexKey, bytes: &[u8]) -> Result<RecordHeader, DamagedBytes> {
    StoredRecord::verify(key, bytes).map(|stored| stored.header)
}

fn checksum(key: &IndexKey, content: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key.as_bytes());
    hasher.update(content);
    hasher.finalize()
}

/// Feeds arbitrary bytes to the readers of rows and records, for a fuzzer: reading ends with a result, and content that
/// was read is the same after it was written and read again. True when the bytes are a row or a record.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz(data: &[u8]) -> bool {
    let key = IndexKey::try_from([0; IndexKey::LENGTH].as_slice());
    let Ok(key) = key else { return false };
    let mut accepted = false;
    // As they are, and with a correct checksum, without which hardly any bytes get further.
    let _ = verify(&key, data);
    let sum = checksum(&key, data).to_le_bytes();
    let sealed = [data, sum.as_slice()].concat();
    if let Ok(stored) = StoredRecord::verify(&key, &sealed) {
        let again = stored.header.with_body(&key, stored.seal, stored.windows, stored.body);
        assert_eq!(StoredRecord::verify(&key, &again), Ok(stored), "{data:?}");
        assert_eq!(sequence_number(&sealed), stored.header.seq, "{data:?}");
        assert_eq!(event_us(&sealed), stored.header.event_us, "{data:?}");
        assert_eq!(purge_us(&sealed), stored.header.purge_us, "{data:?}");
    }
    if let Ok(record) = FeatureRecord::decode(&key, &sealed) {
        accepted = true;
        // Bytes and not values: a NaN is not equal to itself.
        let bytes = record.encode(&key);
        assert!(FeatureRecord::decode(&key, &bytes).is_ok_and(|again| again.encode(&key) == bytes), "{data:?}");
    }
    if let Ok(row) = FeatureRow::decode(data) {
        accepted = true;
        let bytes = row.encode();
        assert!(FeatureRow::decode(&bytes).is_ok_and(|again| again.encode() == bytes), "{data:?}");
    }
    accepted
}

#[cfg(test)]
mod tests;
