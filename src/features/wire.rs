//! The small parts of rows: variable-length integers and values.

use super::value::Value;

/// Reasons why bytes cannot be read as a row or record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damaged {
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

/// Appends a value behind the number of its type. The numbers are those of Feast's `ValueType`.
pub fn put_value(bytes: &mut Vec<u8>, value: &Value) {
    macro_rules! list {
        ($tag:literal, $values:expr) => {{
            bytes.push($tag);
            put_varint(bytes, $values.len() as u64);
            for value in $values {
                bytes.extend_from_slice(&value.to_le_bytes());
            }
        }};
    }

    macro_rules! one {
        ($tag:literal, $value:expr) => {{
            bytes.push($tag);
            bytes.extend_from_slice(&$value.to_le_bytes());
        }};
    }

    match value {
        Value::Bytes(value) => {
            bytes.push(1);
            put_bytes(bytes, value);
        }
        Value::String(value) => {
            bytes.push(2);
            put_bytes(bytes, value.as_bytes());
        }
        Value::Int32(value) => one!(3, value),
        Value::Int64(value) => one!(4, value),
        Value::Float64(value) => one!(5, value),
        Value::Float32(value) => one!(6, value),
        Value::Bool(value) => bytes.extend_from_slice(&[7, u8::from(*value)]),
        Value::UnixTimestamp(value) => one!(8, value),
        Value::BytesList(values) => {
            bytes.push(11);
            put_varint(bytes, values.len() as u64);
            for value in values {
                put_bytes(bytes, value);
            }
        }
        Value::StringList(values) => {
            bytes.push(12);
            put_varint(bytes, values.len() as u64);
            for value in values {
                put_bytes(bytes, value.as_bytes());
            }
        }
        Value::Int32List(values) => list!(13, values),
        Value::Int64List(values) => list!(14, values),
        Value::Float64List(values) => list!(15, values),
        Value::Float32List(values) => list!(16, values),
        Value::BoolList(values) => {
            bytes.push(17);
            put_varint(bytes, values.len() as u64);
            bytes.extend(values.iter().map(|value| u8::from(*value)));
        }
        Value::UnixTimestampList(values) => list!(18, values),
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
pub struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
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
    pub fn take(&mut self, count: usize) -> Result<&'b [u8], Damaged> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Damaged::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Damaged::Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// A number that [`put_varint`] wrote.
    pub fn varint(&mut self) -> Result<u64, Damaged> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Damaged::Malformed);
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Damaged::Malformed)
    }

    /// Reads the number of items of at least `size` bytes that follow. More than the remaining bytes allow is damage.
    pub fn count(&mut self, size: usize) -> Result<usize, Damaged> {
        let count = usize::try_from(self.varint()?).map_err(|_| Damaged::Malformed)?;
        if count.checked_mul(size).is_some_and(|bytes| bytes <= self.0.len()) {
            Ok(count)
        } else {
            Err(Damaged::Malformed)
        }
    }

    fn bytes(&mut self) -> Result<&'b [u8], Damaged> {
        let length = self.count(1)?;
        self.take(length)
    }

    fn text(&mut self) -> Result<Box<str>, Damaged> {
        std::str::from_utf8(self.bytes()?).map(Into::into).map_err(|_| Damaged::Malformed)
    }

    fn flag(&mut self) -> Result<bool, Damaged> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(Damaged::Malformed),
        }
    }

    fn many<T>(
        &mut self,
        size: usize,
        mut one: impl FnMut(&mut Self) -> Result<T, Damaged>,
    ) -> Result<Vec<T>, Damaged> {
        let count = self.count(size)?;
        (0..count).map(|_| one(self)).collect()
    }

    /// A value that [`put_value`] wrote.
    pub fn value(&mut self) -> Result<Value, Damaged> {
        let [tag] = self.array()?;
        Ok(match tag {
            1 => Value::Bytes(self.bytes()?.into()),
            2 => Value::String(self.text()?),
            3 => Value::Int32(i32::from_le_bytes(self.array()?)),
            4 => Value::Int64(i64::from_le_bytes(self.array()?)),
            5 => Value::Float64(f64::from_le_bytes(self.array()?)),
            6 => Value::Float32(f32::from_le_bytes(self.array()?)),
            7 => Value::Bool(self.flag()?),
            8 => Value::UnixTimestamp(i64::from_le_bytes(self.array()?)),
            11 => Value::BytesList(self.many(1, |reader| reader.bytes().map(Into::into))?),
            12 => Value::StringList(self.many(1, Self::text)?),
            13 => Value::Int32List(self.many(4, |reader| reader.array().map(i32::from_le_bytes))?),
            14 => Value::Int64List(self.many(8, |reader| reader.array().map(i64::from_le_bytes))?),
            15 => Value::Float64List(self.many(8, |reader| reader.array().map(f64::from_le_bytes))?),
            16 => Value::Float32List(self.many(4, |reader| reader.array().map(f32::from_le_bytes))?),
            17 => Value::BoolList(self.many(1, Self::flag)?),
            18 => Value::UnixTimestampList(self.many(8, |reader| reader.array().map(i64::from_le_bytes))?),
            _ => return Err(Damaged::Malformed),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::value::tests::any_value;

    proptest! {
        #[test]
        fn a_number_comes_back_as_it_was(number in any::<u64>(), shift in 0..64_u32) {
            let number = number >> shift;
            let mut bytes = Vec::new();
            put_varint(&mut bytes, number);
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.varint(), Ok(number));
            prop_assert!(reader.is_empty());
            prop_assert_eq!(bytes.len(), (number | 1).ilog2() as usize / 7 + 1);
        }

        #[test]
        fn values_come_back_as_they_were(values in prop::collection::vec(any_value(), 0..5)) {
            let mut bytes = Vec::new();
            for value in &values {
                put_value(&mut bytes, value);
            }
            let mut reader = Reader::new(&bytes);
            for value in values {
                prop_assert_eq!(reader.value(), Ok(value));
            }
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn any_bytes_are_values_or_damage(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut reader = Reader::new(&bytes);
            while !reader.is_empty() && reader.value().is_ok() {}
            prop_assert!(reader.rest().len() <= bytes.len());
        }
    }

    #[test]
    fn a_number_of_more_than_64_bits_or_without_an_end_is_damage() {
        let most = [[0xff; 9].as_slice(), &[1]].concat();
        assert_eq!(Reader::new(&most).varint(), Ok(u64::MAX));
        for wrong in [[[0xff; 9].as_slice(), &[2]].concat(), vec![0xff; 9], vec![0x80; 20], Vec::new()] {
            assert_eq!(Reader::new(&wrong).varint(), Err(Damaged::Malformed), "{wrong:?}");
        }
    }

    #[test]
    fn a_count_beyond_the_bytes_asks_for_no_memory() {
        for tag in [1, 2, 11, 12, 13, 14, 15, 16, 17, 18] {
            let mut bytes = vec![tag];
            put_varint(&mut bytes, u64::MAX >> 1);
            assert_eq!(Reader::new(&bytes).value(), Err(Damaged::Malformed), "{tag}");
        }
    }
}
