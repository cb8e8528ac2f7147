//! The small parts of rows: variable-length integers and values.

use super::value::Value;

/// Reasons why bytes cannot be read as a row or record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DamagedBytes {
    /// They end too early, or have an impossible length, type or text.
    #[error("it is malformed")]
    Malformed,
    #[error("its checksum does not match")]
    Checksum,
    /// A later version of Ledge wrote them, or they are encrypted.
    #[error("it has a form that this version of Ledge cannot read")]
    Unknown,
    /// They do not decrypt with their key: they were changed, or belong to another entity, view or time.
    #[error("it was changed since it was encrypted, or moved here from another place")]
    Forged,
    #[error("it is not encrypted, but everything in this store should be")]
    Plain,
    /// Their key was never made here, or its file is lost.
    #[error("its encryption key is missing")]
    KeyMissing,
    /// Their entity was erased, and its key with it. This is not damage.
    #[error("its entity was erased")]
    Erased,
}

impl DamagedBytes {
    /// True when the bytes are as they were written, and cannot be decrypted here, or must not be taken. No other copy
    /// would help.
    pub fn is_undecryptable(self) -> bool {
        matches!(self, Self::Forged | Self::Plain | Self::KeyMissing)
    }
}

/// Appends a number, seven bits a byte, lowest first.
pub fn put_varint(bytes: &mut Vec<u8>, mut number: u64) {
    loop {
        let [lowest, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            return bytes.push(lowest);
        }
        bytes.push(lowest | 0x80);
    }
}

fn put_bytes(bytes: &mut Vec<u8>, content: &[u8]) {
    put_varint(bytes, content.len() as u64);
    bytes.extend_from_slice(content);
}

/// Appends a number so that small ones of either sign take few bytes (zigzag).
pub fn put_signed(bytes: &mut Vec<u8>, number: i64) {
    put_varint(bytes, (number << 1 ^ number >> 63).cast_unsigned());
}

/// Appends a value behind the number of its type.
pub fn put_value(bytes: &mut Vec<u8>, value: &Value) {
    bytes.push(tag(value));
    put_body(bytes, value);
}

/// The number of a value's type: that of Feast's `ValueType`. All are below 64.
pub fn tag(value: &Value) -> u8 {
    match value {
        Value::Bytes(_) => 1,
        Value::String(_) => 2,
        Value::Int32(_) => 3,
        Value::Int64(_) => 4,
        Value::Float64(_) => 5,
        Value::Float32(_) => 6,
        Value::Bool(_) => 7,
        Value::UnixTimestamp(_) => 8,
        Value::BytesList(_) => 11,
        Value::StringList(_) => 12,
        Value::Int32List(_) => 13,
        Value::Int64List(_) => 14,
        Value::Float64List(_) => 15,
        Value::Float32List(_) => 16,
        Value::BoolList(_) => 17,
        Value::UnixTimestampList(_) => 18,
    }
}

/// Appends a value without the number of its type.
pub fn put_body(bytes: &mut Vec<u8>, value: &Value) {
    macro_rules! list {
        ($values:expr) => {{
            put_varint(bytes, $values.len() as u64);
            for value in $values {
                bytes.extend_from_slice(&value.to_le_bytes());
            }
        }};
    }

    match value {
        Value::Bytes(value) => put_bytes(bytes, value),
        Value::String(value) => put_bytes(bytes, value.as_bytes()),
        Value::Int32(value) => bytes.extend_from_slice(&value.to_le_bytes()),
        Value::Int64(value) | Value::UnixTimestamp(value) => bytes.extend_from_slice(&value.to_le_bytes()),
        Value::Float64(value) => bytes.extend_from_slice(&value.to_le_bytes()),
        Value::Float32(value) => bytes.extend_from_slice(&value.to_le_bytes()),
        Value::Bool(value) => bytes.push(u8::from(*value)),
        Value::BytesList(values) => {
            put_varint(bytes, values.len() as u64);
            for value in values {
                put_bytes(bytes, value);
            }
        }
        Value::StringList(values) => {
            put_varint(bytes, values.len() as u64);
            for value in values {
                put_bytes(bytes, value.as_bytes());
            }
        }
        Value::Int32List(values) => list!(values),
        Value::Int64List(values) | Value::UnixTimestampList(values) => list!(values),
        Value::Float64List(values) => list!(values),
        Value::Float32List(values) => list!(values),
        Value::BoolList(values) => {
            put_varint(bytes, values.len() as u64);
            bytes.extend(values.iter().map(|value| u8::from(*value)));
        }
    }
}

/// A length in four bytes. The caller has checked that it is far below 4 GiB.
#[expect(clippy::cast_possible_truncation, reason = "the caller has checked the length")]
pub fn length32(length: usize) -> [u8; 4] {
    debug_assert!(u32::try_from(length).is_ok());
    (length as u32).to_le_bytes()
}

/// Reads from the front of bytes, and never past their end.
#[derive(Debug)]
pub struct ByteReader<'b>(&'b [u8]);

impl<'b> ByteReader<'b> {
    /// At the beginning of `bytes`.
    pub fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    /// True when everything is read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes that were not read yet.
    pub fn rest(&self) -> &'b [u8] {
        self.0
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'b [u8], DamagedBytes> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(DamagedBytes::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DamagedBytes> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(DamagedBytes::Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// A number that [`put_varint`] wrote.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, DamagedBytes> {
        // Most have one byte.
        if let [byte @ ..0x80, rest @ ..] = self.0 {
            self.0 = rest;
            return Ok(u64::from(*byte));
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Result<u64, DamagedBytes> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(DamagedBytes::Malformed);
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(DamagedBytes::Malformed)
    }

    /// A number that [`put_signed`] wrote.
    pub fn signed(&mut self) -> Result<i64, DamagedBytes> {
        let number = self.varint()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    /// Reads the number of items of at least `size` bytes that follow. More than the remaining bytes allow is damage.
    pub fn count(&mut self, size: usize) -> Result<usize, DamagedBytes> {
        let count = usize::try_from(self.varint()?).map_err(|_| DamagedBytes::Malformed)?;
        if count.checked_mul(size).is_some_and(|bytes| bytes <= self.0.len()) {
            Ok(count)
        } else {
            Err(DamagedBytes::Malformed)
        }
    }

    fn bytes(&mut self) -> Result<&'b [u8], DamagedBytes> {
        let length = self.count(1)?;
        self.take(length)
    }

    fn text(&mut self) -> Result<Box<str>, DamagedBytes> {
        std::str::from_utf8(self.bytes()?).map(Into::into).map_err(|_| DamagedBytes::Malformed)
    }

    fn flag(&mut self) -> Result<bool, DamagedBytes> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(DamagedBytes::Malformed),
        }
    }

    fn many<T>(
        &mut self,
        size: usize,
        mut one: impl FnMut(&mut Self) -> Result<T, DamagedBytes>,
    ) -> Result<Vec<T>, DamagedBytes> {
        let count = self.count(size)?;
        (0..count).map(|_| one(self)).collect()
    }

    /// A value that [`put_value`] wrote.
    pub fn value(&mut self) -> Result<Value, DamagedBytes> {
        let [tag] = self.array()?;
        let mut value = Err(DamagedBytes::Malformed);
        self.values_of(tag, 1, |one| value = Ok(one))?;
        value
    }

    /// Reads `count` values that [`put_body`] wrote, of the type with this number ([`tag`]), and calls `each` with
    /// them. Returning each value instead took half as long again for a row of 20 Float32.
    #[inline]
    pub fn values_of(&mut self, tag: u8, count: usize, mut each: impl FnMut(Value)) -> Result<(), DamagedBytes> {
        macro_rules! numbers {
            ($variant:ident, $number:ty) => {{
                let length = count.checked_mul(size_of::<$number>()).ok_or(DamagedBytes::Malformed)?;
                let (numbers, _) = self.take(length)?.as_chunks();
                for bytes in numbers {
                    each(Value::$variant(<$number>::from_le_bytes(*bytes)));
                }
            }};
        }

        macro_rules! others {
            ($variant:ident, $value:expr) => {
                for _ in 0..count {
                    each(Value::$variant($value));
                }
            };
        }

        match tag {
            1 => others!(Bytes, self.bytes()?.into()),
            2 => others!(String, self.text()?),
            3 => numbers!(Int32, i32),
            4 => numbers!(Int64, i64),
            5 => numbers!(Float64, f64),
            6 => numbers!(Float32, f32),
            7 => others!(Bool, self.flag()?),
            8 => numbers!(UnixTimestamp, i64),
            11 => others!(BytesList, self.many(1, |reader| reader.bytes().map(Into::into))?),
            12 => others!(StringList, self.many(1, Self::text)?),
            13 => others!(Int32List, self.many(4, |reader| reader.array().map(i32::from_le_bytes))?),
            14 => others!(Int64List, self.many(8, |reader| reader.array().map(i64::from_le_bytes))?),
            15 => others!(Float64List, self.many(8, |reader| reader.array().map(f64::from_le_bytes))?),
            16 => others!(Float32List, self.many(4, |reader| reader.array().map(f32::from_le_bytes))?),
            17 => others!(BoolList, self.many(1, Self::flag)?),
            18 => others!(UnixTimestampList, self.many(8, |reader| reader.array().map(i64::from_le_bytes))?),
            _ => return Err(DamagedBytes::Malformed),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::value::tests::{any_type, any_value, value_of};

    proptest! {
        #[test]
        fn a_number_comes_back_as_it_was(number in any::<u64>(), shift in 0..64_u32) {
            let number = number >> shift;
            let mut bytes = Vec::new();
            put_varint(&mut bytes, number);
            let mut reader = ByteReader::new(&bytes);
            prop_assert_eq!(reader.varint(), Ok(number));
            prop_assert!(reader.is_empty());
            prop_assert_eq!(bytes.len(), (number | 1).ilog2() as usize / 7 + 1);
        }

        #[test]
        fn a_signed_number_comes_back_as_it_was(number in any::<i64>(), shift in 0..64_u32) {
            let number = number >> shift;
            let mut bytes = Vec::new();
            put_signed(&mut bytes, number);
            let mut reader = ByteReader::new(&bytes);
            prop_assert_eq!(reader.signed(), Ok(number));
            prop_assert!(reader.is_empty());
            // One bit for the sign, and those below the highest one that differs from it.
            let bits = 1 + (64 - (number ^ number >> 63).leading_zeros());
            prop_assert_eq!(bytes.len(), bits.div_ceil(7) as usize);
        }

        #[test]
        fn values_come_back_as_they_were(values in prop::collection::vec(any_value(), 0..5)) {
            let mut bytes = Vec::new();
            for value in &values {
                put_value(&mut bytes, value);
            }
            let mut reader = ByteReader::new(&bytes);
            for value in values {
                prop_assert_eq!(reader.value(), Ok(value));
            }
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn values_of_one_type_come_back_without_it(
            values in any_type().prop_flat_map(|kind| prop::collection::vec(value_of(kind), 1..5)),
        ) {
            let (mut bytes, mut read) = (Vec::new(), Vec::new());
            let number = tag(&values[0]);
            prop_assert!(number < 64);
            for value in &values {
                put_body(&mut bytes, value);
            }
            let mut reader = ByteReader::new(&bytes);
            prop_assert_eq!(reader.values_of(number, values.len(), |value| read.push(value)), Ok(()));
            prop_assert!(reader.is_empty());
            prop_assert_eq!(&read, &values);
            // An empty list has its length.
            prop_assert_eq!(reader.values_of(number, 1, |_| {}), Err(DamagedBytes::Malformed));
        }

        #[test]
        fn any_bytes_are_values_or_damage(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut reader = ByteReader::new(&bytes);
            while !reader.is_empty() && reader.value().is_ok() {}
            prop_assert!(reader.rest().len() <= bytes.len());
        }
    }

    #[test]
    fn a_number_of_more_than_64_bits_or_without_an_end_is_damage() {
        let most = [[0xff; 9].as_slice(), &[1]].concat();
        assert_eq!(ByteReader::new(&most).varint(), Ok(u64::MAX));
        for wrong in [[[0xff; 9].as_slice(), &[2]].concat(), vec![0xff; 9], vec![0x80; 20], Vec::new()] {
            assert_eq!(ByteReader::new(&wrong).varint(), Err(DamagedBytes::Malformed), "{wrong:?}");
        }
    }

    #[test]
    fn a_count_beyond_the_bytes_asks_for_no_memory() {
        for tag in [1, 2, 11, 12, 13, 14, 15, 16, 17, 18] {
            let mut bytes = vec![tag];
            put_varint(&mut bytes, u64::MAX >> 1);
            assert_eq!(ByteReader::new(&bytes).value(), Err(DamagedBytes::Malformed), "{tag}");
        }
    }
}
