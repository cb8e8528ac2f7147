//! A tensor of an ONNX file without its numbers: they are counted, and neither copied nor read.

use prost::bytes::{Buf, BufMut};
use prost::encoding::{self, DecodeContext, WireType};
use prost::{DecodeError, Message};

use super::StringStringEntryProto;

// Field numbers of `onnx.proto3`.
const DIMS: u32 = 1;
const DATA_TYPE: u32 = 2;
const FLOAT_DATA: u32 = 4;
const INT32_DATA: u32 = 5;
const STRING_DATA: u32 = 6;
const INT64_DATA: u32 = 7;
const NAME: u32 = 8;
const RAW_DATA: u32 = 9;
const DOUBLE_DATA: u32 = 10;
const UINT64_DATA: u32 = 11;
const EXTERNAL_DATA: u32 = 13;
const DATA_LOCATION: u32 = 14;

/// The value of `data_location` for data in another file.
const EXTERNAL: i32 = 1;

/// The numbers of a tensor in the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    /// Bytes of `raw_data`.
    pub raw: u64,
    pub floats: u64,
    pub doubles: u64,
    /// Of 32 bits, which also hold shorter ones.
    pub int32s: u64,
    pub int64s: u64,
    pub uint64s: u64,
    pub strings: u64,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct TensorProto {
    pub dims: Vec<i64>,
    pub data_type: i32,
    pub name: String,
    pub external_data: Vec<StringStringEntryProto>,
    pub data_location: i32,
    pub numbers: Numbers,
}

impl TensorProto {
    /// True when its numbers are in another file.
    pub fn is_external(&self) -> bool {
        // Some runtimes ignore `data_location`.
        self.data_location == EXTERNAL || !self.external_data.is_empty()
    }
}

/// The bytes of a field of variable length, all of which are there.
fn length(tag: u32, buf: &mut impl Buf, ctx: DecodeContext) -> Result<usize, DecodeError> {
    let length = encoding::decode_varint(buf)?;
    match usize::try_from(length) {
        Ok(length) if length <= buf.remaining() => Ok(length),
        // The error of a field that is cut off.
        _ => encoding::skip_field(WireType::SixtyFourBit, tag, &mut &[][..], ctx).map(|()| 0),
    }
}

/// The bytes among the next `length` that end a number of variable length.
fn count_varints(mut length: usize, buf: &mut impl Buf) -> u64 {
    let mut count = 0;
    while length > 0 {
        let chunk = buf.chunk();
        let chunk = chunk.get(..length.min(chunk.len())).unwrap_or_default();
        if chunk.is_empty() {
            break;
        }
        count += chunk.iter().filter(|byte| **byte < 0x80).count() as u64;
        let read = chunk.len();
        length -= read;
        buf.advance(read);
    }
    count
}

/// The numbers of a repeated field: one, or with a length so many as fit, of `size` bytes each; 0 is a variable size.
fn count(
    size: usize,
    tag: u32,
    wire_type: WireType,
    buf: &mut impl Buf,
    ctx: DecodeContext,
) -> Result<u64, DecodeError> {
    if wire_type != WireType::LengthDelimited {
        return encoding::skip_field(wire_type, tag, buf, ctx).map(|()| 1);
    }
    let length = length(tag, buf, ctx)?;
    let Some(count) = length.checked_div(size) else { return Ok(count_varints(length, buf)) };
    buf.advance(length);
    Ok(count as u64)
}

impl Message for TensorProto {
    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        let Numbers { raw, floats, doubles, int32s, int64s, uint64s, strings } = &mut self.numbers;
        match tag {
            DIMS => encoding::int64::merge_repeated(wire_type, &mut self.dims, buf, ctx)?,
            DATA_TYPE => encoding::int32::merge(wire_type, &mut self.data_type, buf, ctx)?,
            NAME => encoding::string::merge(wire_type, &mut self.name, buf, ctx)?,
            EXTERNAL_DATA => encoding::message::merge_repeated(wire_type, &mut self.external_data, buf, ctx)?,
            DATA_LOCATION => encoding::int32::merge(wire_type, &mut self.data_location, buf, ctx)?,
            RAW_DATA if wire_type == WireType::LengthDelimited => {
                let length = length(tag, buf, ctx)?;
                buf.advance(length);
                // The last one counts.
                *raw = length as u64;
            }
            FLOAT_DATA => *floats += count(4, tag, wire_type, buf, ctx)?,
            DOUBLE_DATA => *doubles += count(8, tag, wire_type, buf, ctx)?,
            INT32_DATA => *int32s += count(0, tag, wire_type, buf, ctx)?,
            INT64_DATA => *int64s += count(0, tag, wire_type, buf, ctx)?,
            UINT64_DATA => *uint64s += count(0, tag, wire_type, buf, ctx)?,
            STRING_DATA => {
                encoding::skip_field(wire_type, tag, buf, ctx)?;
                *strings += 1;
            }
            _ => encoding::skip_field(wire_type, tag, buf, ctx)?,
        }
        Ok(())
    }

    // Tensors are written only by tests, with zeros for raw data and without other numbers.

    fn encode_raw(&self, buf: &mut impl BufMut) {
        encoding::int64::encode_packed(DIMS, &self.dims, buf);
        encoding::int32::encode(DATA_TYPE, &self.data_type, buf);
        encoding::string::encode(NAME, &self.name, buf);
        if self.numbers.raw > 0 {
            encoding::bytes::encode(RAW_DATA, &self.zeros(), buf);
        }
        encoding::message::encode_repeated(EXTERNAL_DATA, &self.external_data, buf);
        encoding::int32::encode(DATA_LOCATION, &self.data_location, buf);
    }

    fn encoded_len(&self) -> usize {
        let raw = if self.numbers.raw > 0 { encoding::bytes::encoded_len(RAW_DATA, &self.zeros()) } else { 0 };
        encoding::int64::encoded_len_packed(DIMS, &self.dims)
            + encoding::int32::encoded_len(DATA_TYPE, &self.data_type)
            + encoding::string::encoded_len(NAME, &self.name)
            + raw
            + encoding::message::encoded_len_repeated(EXTERNAL_DATA, &self.external_data)
            + encoding::int32::encoded_len(DATA_LOCATION, &self.data_location)
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl TensorProto {
    fn zeros(&self) -> Vec<u8> {
        vec![0; usize::try_from(self.numbers.raw).unwrap_or_default()]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same fields, as the library reads them.
    #[derive(Message)]
    struct Whole {
        #[prost(int64, repeated, tag = "1")]
        dims: Vec<i64>,
        #[prost(float, repeated, tag = "4")]
        floats: Vec<f32>,
        #[prost(int32, repeated, tag = "5")]
        int32s: Vec<i32>,
        #[prost(bytes = "vec", repeated, tag = "6")]
        strings: Vec<Vec<u8>>,
        #[prost(int64, repeated, tag = "7")]
        int64s: Vec<i64>,
        #[prost(bytes = "vec", tag = "9")]
        raw: Vec<u8>,
        #[prost(double, repeated, tag = "10")]
        doubles: Vec<f64>,
        #[prost(uint64, repeated, packed = "false", tag = "11")]
        uint64s: Vec<u64>,
    }

    proptest! {
        #[test]
        fn numbers_are_counted_as_the_library_reads_them(
            dims: Vec<i64>, floats: Vec<f32>, int32s: Vec<i32>, strings: Vec<Vec<u8>>, int64s: Vec<i64>,
            raw: Vec<u8>, doubles: Vec<f64>, uint64s: Vec<u64>, cut: prop::sample::Index,
        ) {
            let numbers = Numbers {
                raw: raw.len() as u64,
                floats: floats.len() as u64,
                doubles: doubles.len() as u64,
                int32s: int32s.len() as u64,
                int64s: int64s.len() as u64,
                uint64s: uint64s.len() as u64,
                strings: strings.len() as u64,
            };
            let whole = Whole { dims: dims.clone(), floats, int32s, strings, int64s, raw, doubles, uint64s };
            let bytes = whole.encode_to_vec();
            let tensor = TensorProto::decode(&bytes[..]).unwrap();
            prop_assert_eq!((&tensor.dims, tensor.numbers), (&dims, numbers));
            // One byte less is an error for both, or for none.
            let cut = &bytes[..cut.index(bytes.len() + 1)];
            prop_assert_eq!(TensorProto::decode(cut).is_ok(), Whole::decode(cut).is_ok());
        }

        #[test]
        fn no_bytes_are_too_strange(bytes: Vec<u8>) {
            let _ = TensorProto::decode(&bytes[..]);
        }
    }
}
