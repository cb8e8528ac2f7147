//! Rows and records as bytes. The journal has the row of each push; index and snapshots have the record of each entity:
//! the newest row, and the aggregates.
//!
//! All integers are little-endian. Every row and record names a key and a cipher: the body may be encrypted under the
//! key of its entity ([`super::protection`]). This file reads and writes plain ones.

use super::key::IndexKey;
use super::seal;
use super::value::Value;
use super::view::FieldId;
pub use super::wire::Damaged;
use super::wire::{Reader, put_value, put_varint};

/// The encryption of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seal {
    /// The number of the key; 0 is none.
    pub key_id: u32,
    /// The number of the cipher; 0 is none.
    pub cipher: u8,
}

/// One pushed row.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The values of the join keys, in the view's order.
    pub entity: Vec<Value>,
    /// The event time, in microseconds since the Unix epoch.
    pub event_us: i64,
    /// Its values that are not null, by the number of the field, ascending.
    pub values: Vec<(FieldId, Value)>,
}

/// The record of an entity.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The sequence number of the last journal entry that was merged.
    pub seq: u64,
    /// The time from which it may be removed, in microseconds since the Unix epoch; `i64::MAX` is never.
    pub purge_us: i64,
    pub row: Row,
    /// The aggregates, as [`super::window::WindowState`] wrote them; empty without any.
    pub windows: Vec<u8>,
}

/// The largest record, in bytes. sled never frees the space of values above twice that (measured with 0.34.7: 5 MB of
/// live values took 305 MB).
pub const RECORD_BYTES_MAX: usize = 64 << 10;

/// The largest row that a record can have, in bytes.
pub const ROW_BYTES_MAX: usize = RECORD_BYTES_MAX - HEADER_BYTES - CHECKSUM_BYTES;

/// The version of the record's form.
const FORMAT: u8 = 1;

/// Bytes before the body of a record, and after it.
const HEADER_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 4;

impl Row {
    /// The bytes of the row, for the journal.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(16 + self.values.len() * 8);
        self.encode_into(&mut bytes);
        bytes
    }

    fn encode_into(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.event_us.to_le_bytes());
        put_varint(bytes, self.entity.len() as u64);
        for value in &self.entity {
            put_value(bytes, value);
        }
        put_varint(bytes, self.values.len() as u64);
        for (field, value) in &self.values {
            put_varint(bytes, u64::from(field.0));
            put_value(bytes, value);
        }
    }

    /// Reads what [`Self::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        let mut reader = Reader::new(bytes);
        let row = Self::read(&mut reader)?;
        if reader.is_empty() { Ok(row) } else { Err(Damaged::Malformed) }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Damaged> {
        let event_us = i64::from_le_bytes(reader.array()?);
        // Each value takes two bytes at least, so a count cannot request more memory than there are bytes.
        let count = reader.count(2)?;
        let entity = (0..count).map(|_| reader.value()).collect::<Result<_, _>>()?;
        let count = reader.count(3)?;
        let mut values: Vec<(FieldId, Value)> = Vec::with_capacity(count);
        for _ in 0..count {
            let field = FieldId(u16::try_from(reader.varint()?).map_err(|_| Damaged::Malformed)?);
            if values.last().is_some_and(|(last, _)| *last >= field) {
                return Err(Damaged::Malformed);
            }
            values.push((field, reader.value()?));
        }
        Ok(Self { entity, event_us, values })
    }

    /// The value of a field; `None` is null.
    pub fn value(&self, field: FieldId) -> Option<&Value> {
        let at = self.values.binary_search_by_key(&field, |(field, _)| *field).ok()?;
        self.values.get(at).map(|(_, value)| value)
    }
}

impl Record {
    /// The bytes of the record, for index and snapshots. The checksum covers `key`, too: a record found under another
    /// key is damage.
    pub fn encode(&self, key: &IndexKey) -> Vec<u8> {
        self.header().with_body(key, Seal::default(), false, &self.body())
    }

    /// Its header.
    pub fn header(&self) -> RecordHeader {
        RecordHeader { seq: self.seq, event_us: self.row.event_us, purge_us: self.purge_us }
    }

    /// Reads the output of [`Self::encode`] under the same key.
    pub fn decode(key: &IndexKey, bytes: &[u8]) -> Result<Self, Damaged> {
        let stored = StoredRecord::verify(key, bytes)?;
        if stored.seal != Seal::default() {
            return Err(Damaged::Unknown);
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

    /// Reads what [`Self::body`] wrote.
    pub fn of_body(header: RecordHeader, body: &[u8]) -> Result<Self, Damaged> {
        let mut reader = Reader::new(body);
        let row = Row::read(&mut reader)?;
        Ok(Self { seq: header.seq, purge_us: header.purge_us, row, windows: reader.rest().to_vec() })
    }
}

/// The header of a record, before its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// [`Record::seq`].
    pub seq: u64,
    /// [`Row::event_us`].
    pub event_us: i64,
    /// [`Record::purge_us`].
    pub purge_us: i64,
}

/// The sequence number of a record whose checksum is right.
pub fn sequence_number(record: &[u8]) -> u64 {
    record.get(8..16).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// The event time of a record whose checksum is right.
pub fn event_us(record: &[u8]) -> i64 {
    record.get(16..24).and_then(|bytes| bytes.try_into().ok()).map_or(0, i64::from_le_bytes)
}

/// The time from which a record whose checksum is right may be removed; `i64::MAX` is never.
pub fn purge_us(record: &[u8]) -> i64 {
    record.get(24..32).and_then(|bytes| bytes.try_into().ok()).map_or(i64::MAX, i64::from_le_bytes)
}

impl RecordHeader {
    /// The bytes of a record with this body: the output of [`Row::encode`], with the same event time, and the
    /// aggregates. For an encrypted body, `windows` says if it has aggregates.
    pub fn with_body(&self, key: &IndexKey, seal: Seal, windows: bool, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len() + CHECKSUM_BYTES);
        bytes.extend_from_slice(&[FORMAT, seal.cipher, u8::from(windows), 0]);
        bytes.extend_from_slice(&seal.key_id.to_le_bytes());
        bytes.extend_from_slice(&self.seq.to_le_bytes());
        bytes.extend_from_slice(&self.event_us.to_le_bytes());
        bytes.extend_from_slice(&self.purge_us.to_le_bytes());
        bytes.extend_from_slice(body);
        with_checksum(key, bytes)
    }
}

/// A stored record. Its body may be encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredRecord<'b> {
    pub header: RecordHeader,
    /// The encryption of the body.
    pub seal: Seal,
    /// True for an encrypted body with aggregates.
    pub windows: bool,
    pub body: &'b [u8],
}

impl<'b> StoredRecord<'b> {
    /// Checks a record without reading its body.
    pub fn verify(key: &IndexKey, bytes: &'b [u8]) -> Result<Self, Damaged> {
        let at = bytes.len().checked_sub(CHECKSUM_BYTES).filter(|&at| at >= HEADER_BYTES).ok_or(Damaged::Malformed)?;
        let (content, sum) = bytes.split_at(at);
        if checksum(key, content).to_le_bytes() != sum {
            return Err(Damaged::Checksum);
        }
        let mut reader = Reader::new(content);
        let [format, cipher, windows, zero] = reader.array()?;
        let seal = Seal { key_id: u32::from_le_bytes(reader.array()?), cipher };
        let known = if seal == Seal::default() { windows == 0 } else { seal.is_known() && windows <= 1 };
        if format != FORMAT || !known || zero != 0 {
            return Err(Damaged::Unknown);
        }
        let header = RecordHeader {
            seq: u64::from_le_bytes(reader.array()?),
            event_us: i64::from_le_bytes(reader.array()?),
            purge_us: i64::from_le_bytes(reader.array()?),
        };
        Ok(Self { header, seal, windows: windows == 1, body: reader.rest() })
    }
}

impl Seal {
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
pub fn verify(key: &IndexKey, bytes: &[u8]) -> Result<RecordHeader, Damaged> {
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
pub fn fuzz(data: &[u8]) -> bool {
    let key = IndexKey::try_from([0; IndexKey::LENGTH].as_slice());
    let Ok(key) = key else { return false };
    let mut accepted = false;
    // As they are, and with a correct checksum, without which hardly any bytes get further.
    let _ = verify(&key, data);
    let sum = checksum(&key, data).to_le_bytes();
    let sealed = [data, sum.as_slice()].concat();
    if let Ok(record) = Record::decode(&key, &sealed) {
        accepted = true;
        // Bytes and not values: a NaN is not equal to itself.
        let bytes = record.encode(&key);
        assert!(Record::decode(&key, &bytes).is_ok_and(|again| again.encode(&key) == bytes), "{data:?}");
    }
    if let Ok(row) = Row::decode(data) {
        accepted = true;
        let bytes = row.encode();
        assert!(Row::decode(&bytes).is_ok_and(|again| again.encode() == bytes), "{data:?}");
    }
    accepted
}

#[cfg(test)]
mod tests;
