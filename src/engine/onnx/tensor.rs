//! A tensor of an ONNX file without its numbers: they are counted and not copied, and of integers of 32 and 64 bits and
//! of few floats the least and the greatest are kept.

use prost::bytes::{Buf, BufMut};
use prost::encoding::{self, DecodeContext, WireType};
use prost::{DecodeError, Message};

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

// ONNX's numbers of datatypes.
const FLOAT: i32 = 1;
const INT32: i32 = 6;
const INT64: i32 = 7;
const DOUBLE: i32 = 11;
const UINT32: i32 = 12;
const UINT64: i32 = 13;

/// The most bytes of floats that are looked at. Weights have more, and no operator of integers gets them.
const FLOAT_BYTES_MAX: usize = 4096;

/// The value of `data_location` for data in another file.
const EXTERNAL: i32 = 1;

/// The numbers of a tensor in the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TensorNumbers {
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

/// The bounds of the numbers of a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct NumberBounds {
    pub low: f64,
    pub high: f64,
    /// Set if each is a number of FP32.
    pub is_single: bool,
}

impl NumberBounds {
    /// The bounds of some integers; `None` for an empty list.
    pub fn of(numbers: &[i64]) -> Option<Self> {
        let mut bounds = None;
        for number in numbers {
            Self::add(&mut bounds, bound((*number).into()));
        }
        bounds
    }

    fn add(bounds: &mut Option<Self>, number: f64) {
        #[expect(clippy::cast_possible_truncation, reason = "FP32 may not have it")]
        let is_single = f64::from(number as f32).to_bits() == number.to_bits();
        let known = bounds.get_or_insert(Self { low: number, high: number, is_single });
        let (low, high) = (known.low.min(number), known.high.max(number));
        *known = Self { low, high, is_single: known.is_single && is_single };
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct TensorProto {
    pub dims: Vec<i64>,
    pub data_type: i32,
    pub name: String,
    pub external_data: Vec<StringStringEntryProto>,
    pub data_location: i32,
    pub numbers: TensorNumbers,
    /// `None` if they are not known.
    pub bounds: Option<NumberBounds>,
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

/// The numbers of a repeated field, which may be packed. `read` takes one of them from the buffer.
fn count<B: Buf>(
    (tag, wire_type, unpacked): (u32, WireType, WireType),
    buf: &mut B,
    bounds: &mut Option<NumberBounds>,
    read: impl Fn(&mut B) -> Result<f64, DecodeError>,
) -> Result<u64, DecodeError> {
    if wire_type == unpacked {
        NumberBounds::add(bounds, read(buf)?);
        return Ok(1);
    }
    if wire_type != WireType::LengthDelimited {
        return encoding::skip_field(wire_type, tag, buf, DecodeContext::default()).map(|()| 1);
    }
    let length = length(tag, buf, DecodeContext::default())?;
    let end = buf.remaining() - length;
    let mut count = 0;
    while buf.remaining() > end {
        NumberBounds::add(bounds, read(buf)?);
        count += 1;
    }
    // The last number may be longer than its field.
    if buf.remaining() < end { cut_off(tag).map(|()| count) } else { Ok(count) }
}

/// The error of a field that is cut off.
fn cut_off(tag: u32) -> Result<(), DecodeError> {
    encoding::skip_field(WireType::SixtyFourBit, tag, &mut &[][..], DecodeContext::default())
}

fn float(buf: &mut impl Buf) -> Result<f64, DecodeError> {
    if buf.remaining() < 4 { cut_off(FLOAT_DATA).map(|()| 0.0) } else { Ok(buf.get_f32_le().into()) }
}

fn double(buf: &mut impl Buf) -> Result<f64, DecodeError> {
    if buf.remaining() < 8 { cut_off(DOUBLE_DATA).map(|()| 0.0) } else { Ok(buf.get_f64_le()) }
}

fn signed(buf: &mut impl Buf) -> Result<f64, DecodeError> {
    Ok(bound(encoding::decode_varint(buf)?.cast_signed().into()))
}

fn unsigned(buf: &mut impl Buf) -> Result<f64, DecodeError> {
    Ok(bound(encoding::decode_varint(buf)?.into()))
}

#[expect(clippy::cast_precision_loss, reason = "a bound beyond 53 bits need not be exact")]
pub(super) fn bound(number: i128) -> f64 {
    number as f64
}

/// Takes one number from the buffer, which has it.
type ReadNumber<B> = fn(&mut B) -> f64;

/// The size of one number of raw data, and the function that reads it. Only for the datatypes of which bounds are kept.
fn element<B: Buf>(data_type: i32, length: usize) -> Option<(usize, ReadNumber<B>)> {
    match data_type {
        FLOAT if length <= FLOAT_BYTES_MAX => Some((4, |buf| buf.get_f32_le().into())),
        DOUBLE if length <= FLOAT_BYTES_MAX => Some((8, |buf| buf.get_f64_le())),
        INT32 => Some((4, |buf| buf.get_i32_le().into())),
        UINT32 => Some((4, |buf| buf.get_u32_le().into())),
        INT64 => Some((8, |buf| bound(buf.get_i64_le().into()))),
        UINT64 => Some((8, |buf| bound(buf.get_u64_le().into()))),
        _ => None,
    }
}

impl Message for TensorProto {
    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        let TensorNumbers { raw, floats, doubles, int32s, int64s, uint64s, strings } = &mut self.numbers;
        let bounds = &mut self.bounds;
        let field = |unpacked| (tag, wire_type, unpacked);
        match tag {
            DIMS => encoding::int64::merge_repeated(wire_type, &mut self.dims, buf, ctx)?,
            DATA_TYPE => encoding::int32::merge(wire_type, &mut self.data_type, buf, ctx)?,
            NAME => encoding::string::merge(wire_type, &mut self.name, buf, ctx)?,
            EXTERNAL_DATA => encoding::message::merge_repeated(wire_type, &mut self.external_data, buf, ctx)?,
            DATA_LOCATION => encoding::int32::merge(wire_type, &mut self.data_location, buf, ctx)?,
            RAW_DATA if wire_type == WireType::LengthDelimited => {
                let length = length(tag, buf, ctx)?;
                let end = buf.remaining() - length;
                *bounds = None;
                if let Some((size, read)) = element(self.data_type, length) {
                    (0..length / size).for_each(|_| NumberBounds::add(bounds, read(buf)));
                }
                buf.advance(buf.remaining() - end);
                // The last one counts.
                *raw = length as u64;
            }
            FLOAT_DATA => *floats += count(field(WireType::ThirtyTwoBit), buf, bounds, float)?,
            DOUBLE_DATA => *doubles += count(field(WireType::SixtyFourBit), buf, bounds, double)?,
            INT32_DATA => *int32s += count(field(WireType::Varint), buf, bounds, signed)?,
            INT64_DATA => *int64s += count(field(WireType::Varint), buf, bounds, signed)?,
            UINT64_DATA => *uint64s += count(field(WireType::Varint), buf, bounds, unsigned)?,
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

#[derive(Clone, PartialEq, Message)]
pub(super) struct StringStringEntryProto {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same fields, as the library reads them.
    #[derive(Message)]
    struct WholeTensor {
        #[prost(int64, repeated, tag = "1")]
        dims: Vec<i64>,
        #[prost(int32, tag = "2")]
        data_type: i32,
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
            let numbers = TensorNumbers {
                raw: raw.len() as u64,
                floats: floats.len() as u64,
                doubles: doubles.len() as u64,
                int32s: int32s.len() as u64,
                int64s: int64s.len() as u64,
                uint64s: uint64s.len() as u64,
                strings: strings.len() as u64,
            };
            let whole = WholeTensor { data_type: 0, dims: dims.clone(), floats, int32s, strings, int64s, raw, doubles, uint64s };
            let bytes = whole.encode_to_vec();
            let tensor = TensorProto::decode(&bytes[..]).unwrap();
            prop_assert_eq!((&tensor.dims, tensor.numbers), (&dims, numbers));
            // One byte less is an error for both, or for none.
            let cut = &bytes[..cut.index(bytes.len() + 1)];
            prop_assert_eq!(TensorProto::decode(cut).is_ok(), WholeTensor::decode(cut).is_ok());
        }

        #[test]
        fn bounds_are_those_of_the_numbers(numbers in prop::collection::vec(any::<i64>(), 1..20)) {
            let typed = WholeTensor { int64s: numbers.clone(), ..WholeTensor::default() }.encode_to_vec();
            let raw = WholeTensor {
                data_type: INT64,
                raw: numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
                ..WholeTensor::default()
            };
            for bytes in [typed, raw.encode_to_vec()] {
                let bounds = TensorProto::decode(&bytes[..]).unwrap().bounds.unwrap();
                let ends = [numbers.iter().min().unwrap(), numbers.iter().max().unwrap()];
                let ends = ends.map(|number| bound((*number).into()).to_bits());
                prop_assert_eq!([bounds.low, bounds.high].map(f64::to_bits), ends);
            }
        }

        #[test]
        fn no_bytes_are_too_strange(bytes: Vec<u8>) {
            let _ = TensorProto::decode(&bytes[..]);
        }
    }
}
