//! Tensors as plain data: a datatype, a shape and little-endian bytes.
//!
//! A [`Tensor`] always fills its shape exactly; [`Tensor::new`] is the only way to make one from foreign bytes.
//! The bytes are those of the Open Inference Protocol's binary tensor data extension, so they travel from a request
//! to a runtime and back without another encoding.

use std::fmt;

use bytemuck::{NoUninit, Pod};
use bytes::Bytes;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::memory_budget::MemoryReservation;

/// The blocks of a large tensor that are read for a look at its values, and the bytes of each: a megabyte takes a tenth
/// of a millisecond.
const SAMPLED_BLOCKS_MAX: usize = 256;
const SAMPLED_BLOCK_BYTES: usize = 4096;

/// The datatypes of the Open Inference Protocol, and BF16 as Triton adds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum DataType {
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned, 8 bits.
    Uint8,
    /// Unsigned, 16 bits.
    Uint16,
    /// Unsigned, 32 bits.
    Uint32,
    /// Unsigned, 64 bits.
    Uint64,
    /// Signed, 8 bits.
    Int8,
    /// Signed, 16 bits.
    Int16,
    /// Signed, 32 bits.
    Int32,
    /// Signed, 64 bits.
    Int64,
    /// IEEE 754 binary16.
    Fp16,
    /// The upper half of an IEEE 754 binary32.
    Bf16,
    /// IEEE 754 binary32.
    Fp32,
    /// IEEE 754 binary64.
    Fp64,
    /// Byte strings; each element is a little-endian `u32` length and its bytes.
    Bytes,
}

impl DataType {
    /// All datatypes, in the protocol's order.
    pub const ALL: [Self; 14] = [
        Self::Bool,
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::Fp16,
        Self::Bf16,
        Self::Fp32,
        Self::Fp64,
        Self::Bytes,
    ];

    /// The protocol's name, such as `FP32`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Uint8 => "UINT8",
            Self::Uint16 => "UINT16",
            Self::Uint32 => "UINT32",
            Self::Uint64 => "UINT64",
            Self::Int8 => "INT8",
            Self::Int16 => "INT16",
            Self::Int32 => "INT32",
            Self::Int64 => "INT64",
            Self::Fp16 => "FP16",
            Self::Bf16 => "BF16",
            Self::Fp32 => "FP32",
            Self::Fp64 => "FP64",
            Self::Bytes => "BYTES",
        }
    }

    /// The datatype of a protocol name; exact case, as in Triton.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|datatype| datatype.as_str() == name)
    }

    /// Bytes of one element; `None` for `BYTES`, as its elements vary in size.
    pub fn size(self) -> Option<usize> {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => Some(1),
            Self::Uint16 | Self::Int16 | Self::Fp16 | Self::Bf16 => Some(2),
            Self::Uint32 | Self::Int32 | Self::Fp32 => Some(4),
            Self::Uint64 | Self::Int64 | Self::Fp64 => Some(8),
            Self::Bytes => None,
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The reason why bytes and a shape do not make a tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The shape's element or byte count does not fit the machine.
    #[error("shape {shape:?} has too many elements")]
    TooLarge { shape: Vec<usize> },
    /// Fixed-size elements: the byte count differs from what the shape needs.
    #[error("expected {expected} bytes, got {got}")]
    ByteSize {
        /// Bytes that the shape and the datatype need.
        expected: usize,
        /// Bytes that came.
        got: usize,
    },
    /// A `BYTES` element announces more bytes than are left.
    #[error("incomplete string data, expecting string of length {length} but only {left} bytes available")]
    IncompleteString {
        length: usize,
        /// The bytes left after the length.
        left: usize,
    },
    /// `BYTES`: fewer or more elements than the shape holds.
    #[error("expected {expected} string elements, got {got}")]
    StringCount {
        /// Elements of the shape.
        expected: usize,
        /// Elements that the bytes hold.
        got: usize,
    },
    /// A `BOOL` byte that is neither 0 nor 1.
    #[error("BOOL element {index} is {byte:#04x}, expected 0 or 1")]
    NotABool {
        /// Position, row-major.
        index: usize,
        /// The byte found.
        byte: u8,
    },
}

/// The number of elements of `shape`: the product of its dimensions, 1 for a scalar.
pub fn element_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1_usize, |product, &dim| product.checked_mul(dim))
}

/// A tensor that fills its shape. Cloning shares the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    datatype: DataType,
    shape: Vec<usize>,
    data: Bytes,
}

impl Tensor {
    /// A tensor of `shape` over `data`: row-major, little-endian, no padding.
    pub fn new(datatype: DataType, shape: Vec<usize>, data: Bytes) -> Result<Self, TensorError> {
        let Some(count) = element_count(&shape) else { return Err(TensorError::TooLarge { shape }) };
        if let Some(size) = datatype.size() {
            let Some(expected) = count.checked_mul(size) else { return Err(TensorError::TooLarge { shape }) };
            if data.len() != expected {
                return Err(TensorError::ByteSize { expected, got: data.len() });
            }
            if datatype == DataType::Bool
                && let Some((index, &byte)) = data.iter().enumerate().find(|(_, byte)| **byte > 1)
            {
                return Err(TensorError::NotABool { index, byte });
            }
        } else {
            let mut got = 0;
            for element in BytesElements(&data) {
                element.map_err(|(length, left)| TensorError::IncompleteString { length, left })?;
                got += 1;
            }
            if got != count {
                return Err(TensorError::StringCount { expected: count, got });
            }
        }
        Ok(Self { datatype, shape, data })
    }

    /// A tensor over a vector of elements, which is not copied.
    pub fn from_vec<T: TensorElement>(shape: Vec<usize>, elements: Vec<T>) -> Result<Self, TensorError> {
        Self::new(T::DATATYPE, shape, Bytes::from_owner(ElementOwner(elements)))
    }

    /// True when it holds NaN or an infinity. Of a large tensor only a sample is read, spread evenly.
    pub fn has_non_finite(&self) -> bool {
        // The bits of an exponent are all set.
        let half = |bits: u16| self.any_sampled(|element: &[u8; 2]| u16::from_le_bytes(*element) & bits == bits);
        match self.datatype {
            DataType::Fp16 => half(0x7c00),
            DataType::Bf16 => half(0x7f80),
            DataType::Fp32 => {
                self.any_sampled(|element: &[u8; 4]| u32::from_le_bytes(*element) & 0x7f80_0000 == 0x7f80_0000)
            }
            DataType::Fp64 => {
                let bits = 0x7ff0_0000_0000_0000;
                self.any_sampled(|element: &[u8; 8]| u64::from_le_bytes(*element) & bits == bits)
            }
            _ => false,
        }
    }

    fn any_sampled<const N: usize>(&self, is: impl Fn(&[u8; N]) -> bool) -> bool {
        let blocks = self.data.len().div_ceil(SAMPLED_BLOCK_BYTES);
        let step = blocks.div_ceil(SAMPLED_BLOCKS_MAX).max(1);
        self.data.chunks(SAMPLED_BLOCK_BYTES).step_by(step).any(|block| block.as_chunks().0.iter().any(&is))
    }

    /// A `BYTES` tensor.
    pub fn from_strings<S: AsRef<[u8]>>(
        shape: Vec<usize>,
        strings: impl IntoIterator<Item = S>,
    ) -> Result<Self, TensorError> {
        let mut data = Vec::new();
        for string in strings {
            push_string(&mut data, string.as_ref());
        }
        Self::new(DataType::Bytes, shape, data.into())
    }

    /// The same tensor with its elements counted against the memory budget until its last clone is dropped.
    #[must_use]
    pub fn kept(self, hold: MemoryReservation) -> Self {
        Self { data: hold.attach(self.data), ..self }
    }

    /// The datatype of every element.
    pub fn datatype(&self) -> DataType {
        self.datatype
    }

    /// The dimensions, the batch included.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements in the form of a binary body.
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// The elements, borrowed when their alignment allows and copied when not. `None` for another datatype.
    pub fn elements<T: TensorElement + Pod>(&self) -> Option<std::borrow::Cow<'_, [T]>> {
        (self.datatype == T::DATATYPE).then(|| match bytemuck::try_cast_slice(&self.data) {
            Ok(slice) => std::borrow::Cow::Borrowed(slice),
            Err(_) => std::borrow::Cow::Owned(bytemuck::pod_collect_to_vec(&self.data)),
        })
    }

    /// The elements of a `BOOL` tensor. `None` for another datatype.
    pub fn bools(&self) -> Option<&[bool]> {
        (self.datatype == DataType::Bool).then(|| bytemuck::checked::try_cast_slice(&self.data).ok()).flatten()
    }

    /// The elements of a `BYTES` tensor. `None` for another datatype.
    pub fn strings(&self) -> Option<impl Iterator<Item = &[u8]>> {
        (self.datatype == DataType::Bytes).then(|| BytesElements(&self.data).filter_map(Result::ok))
    }
}

/// A Rust type that is the element of a datatype.
pub trait TensorElement: NoUninit + Send + 'static {
    /// The datatype whose elements have this layout in memory.
    const DATATYPE: DataType;
}

macro_rules! elements {
    ($($rust:ty => $datatype:ident),* $(,)?) => {
        $(impl TensorElement for $rust { const DATATYPE: DataType = DataType::$datatype; })*
    };
}
elements!(bool => Bool, u8 => Uint8, u16 => Uint16, u32 => Uint32, u64 => Uint64, i8 => Int8, i16 => Int16,
    i32 => Int32, i64 => Int64, f16 => Fp16, bf16 => Bf16, f32 => Fp32, f64 => Fp64);

#[cfg(not(target_endian = "little"))]
compile_error!("tensors are little-endian on the wire and used in place");

/// A tensor of `datatype` from numbers; each is rounded to the nearest value of the datatype, out of range saturates.
/// `BYTES` is an error of byte size.
pub fn from_f64(datatype: DataType, shape: Vec<usize>, numbers: &[f64]) -> Result<Tensor, TensorError> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "documented to saturate")]
    fn data(datatype: DataType, numbers: &[f64]) -> Vec<u8> {
        macro_rules! collect {
            ($convert:expr) => {
                numbers.iter().flat_map(|&number| ($convert)(number.round_if_integer(datatype)).to_le_bytes()).collect()
            };
        }
        match datatype {
            DataType::Bool => numbers.iter().map(|&number| u8::from(number != 0.0)).collect(),
            DataType::Uint8 => collect!(|x| x as u8),
            DataType::Uint16 => collect!(|x| x as u16),
            DataType::Uint32 => collect!(|x| x as u32),
            DataType::Uint64 => collect!(|x| x as u64),
            DataType::Int8 => collect!(|x| x as i8),
            DataType::Int16 => collect!(|x| x as i16),
            DataType::Int32 => collect!(|x| x as i32),
            DataType::Int64 => collect!(|x| x as i64),
            DataType::Fp16 => collect!(f16::from_f64),
            DataType::Bf16 => collect!(bf16::from_f64),
            DataType::Fp32 => collect!(|x| x as f32),
            DataType::Fp64 => collect!(|x: f64| x),
            DataType::Bytes => Vec::new(),
        }
    }
    Tensor::new(datatype, shape, data(datatype, numbers).into())
}

trait RoundIfInteger {
    fn round_if_integer(self, datatype: DataType) -> Self;
}

impl RoundIfInteger for f64 {
    fn round_if_integer(self, datatype: DataType) -> Self {
        let real = matches!(datatype, DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64);
        if real { self } else { self.round() }
    }
}

/// The elements as numbers; 64-bit integers beyond 2^53 are rounded. `None` for `BYTES`.
pub fn to_f64(tensor: &Tensor) -> Option<Vec<f64>> {
    #[expect(clippy::cast_precision_loss, reason = "documented to round")]
    fn numbers(tensor: &Tensor) -> Option<Vec<f64>> {
        macro_rules! collect {
            ($rust:ty, $convert:expr) => {
                tensor.elements::<$rust>()?.iter().copied().map($convert).collect()
            };
        }
        Some(match tensor.datatype {
            DataType::Bool => tensor.bools()?.iter().copied().map(f64::from).collect(),
            DataType::Uint8 => collect!(u8, f64::from),
            DataType::Uint16 => collect!(u16, f64::from),
            DataType::Uint32 => collect!(u32, f64::from),
            DataType::Uint64 => collect!(u64, |x| x as f64),
            DataType::Int8 => collect!(i8, f64::from),
            DataType::Int16 => collect!(i16, f64::from),
            DataType::Int32 => collect!(i32, f64::from),
            DataType::Int64 => collect!(i64, |x| x as f64),
            DataType::Fp16 => collect!(f16, f64::from),
            DataType::Bf16 => collect!(bf16, f64::from),
            DataType::Fp32 => collect!(f32, f64::from),
            DataType::Fp64 => collect!(f64, |x| x),
            DataType::Bytes => return None,
        })
    }
    numbers(tensor)
}

/// Keeps a vector alive behind `Bytes`, with the alignment of its elements.
struct ElementOwner<T>(Vec<T>);

impl<T: NoUninit> AsRef<[u8]> for ElementOwner<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// Appends one `BYTES` element: its length as little-endian `u32`, then its bytes. Longer than 4 GiB is cut.
pub fn push_string(data: &mut Vec<u8>, string: &[u8]) {
    let length = u32::try_from(string.len()).unwrap_or(u32::MAX);
    data.extend_from_slice(&length.to_le_bytes());
    data.extend_from_slice(string.get(..length as usize).unwrap_or(string));
}

/// Walks the elements of `BYTES` data; an incomplete one gives its announced length and the bytes left.
struct BytesElements<'a>(&'a [u8]);

impl<'a> Iterator for BytesElements<'a> {
    type Item = Result<&'a [u8], (usize, usize)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let Some((prefix, rest)) = self.0.split_first_chunk::<4>() else {
            let left = std::mem::take(&mut self.0).len();
            return Some(Err((4, left)));
        };
        let length = u32::from_le_bytes(*prefix) as usize;
        let Some((string, rest)) = rest.split_at_checked(length) else {
            self.0 = &[];
            return Some(Err((length, rest.len())));
        };
        self.0 = rest;
        Some(Ok(string))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_that_are_not_finite_are_found_in_every_datatype() {
        let of = |datatype, numbers: &[f64]| from_f64(datatype, vec![numbers.len()], numbers).unwrap();
        for datatype in [DataType::Fp16, DataType::Bf16, DataType::Fp32, DataType::Fp64] {
            assert!(!of(datatype, &[0.0, -1.5, 3e4]).has_non_finite(), "{datatype}");
            for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                assert!(of(datatype, &[1.0, value]).has_non_finite(), "{datatype}");
            }
        }
        assert!(!of(DataType::Int32, &[1.0, -1.0]).has_non_finite());
        // A sample of a large one.
        let mut large = vec![0.5_f32; 1 << 22];
        assert!(!Tensor::from_vec(vec![large.len()], large.clone()).unwrap().has_non_finite());
        large.fill(f32::NAN);
        assert!(Tensor::from_vec(vec![large.len()], large).unwrap().has_non_finite());
    }

    #[test]
    fn a_tensor_fills_its_shape_exactly() {
        let tensor = Tensor::from_vec(vec![2, 2], vec![1.0_f32, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!(tensor.data().len(), 16);
        assert_eq!(Tensor::from_vec(vec![2, 3], vec![1.0_f32]), Err(TensorError::ByteSize { expected: 24, got: 4 }));
        assert!(Tensor::new(DataType::Fp64, vec![usize::MAX, 2], Bytes::new()).is_err());
        assert!(Tensor::new(DataType::Fp64, vec![usize::MAX], Bytes::new()).is_err());
        assert!(Tensor::from_vec::<f32>(vec![0, usize::MAX], vec![]).is_ok());
    }

    #[test]
    fn misaligned_bytes_are_copied_not_misread() {
        let mut body = vec![0_u8; 1];
        body.extend_from_slice(bytemuck::bytes_of(&[1.5_f32, -2.5]));
        let tensor = Tensor::new(DataType::Fp32, vec![2], Bytes::from(body).slice(1..)).unwrap();
        assert_eq!(tensor.elements::<f32>().unwrap().as_ref(), &[1.5, -2.5]);
        assert!(tensor.elements::<i32>().is_none());
    }

    #[test]
    fn a_string_that_is_cut_off_names_its_length() {
        let error = Tensor::new(DataType::Bytes, vec![1], Bytes::from_static(b"\x63\0\0\0abc"));
        assert_eq!(error, Err(TensorError::IncompleteString { length: 99, left: 3 }));
        let error = Tensor::from_strings(vec![3], ["a", "b"]);
        assert_eq!(error, Err(TensorError::StringCount { expected: 3, got: 2 }));
    }

    proptest! {
        #[test]
        fn strings_come_back_as_they_went_in(strings: Vec<Vec<u8>>) {
            let tensor = Tensor::from_strings(vec![strings.len()], &strings).unwrap();
            let back: Vec<Vec<u8>> = tensor.strings().unwrap().map(<[u8]>::to_vec).collect();
            prop_assert_eq!(back, strings);
        }

        #[test]
        fn foreign_bytes_never_panic(shape in prop::collection::vec(0_usize..5, 0..4), data: Vec<u8>, pick in 0_usize..14) {
            let _ = Tensor::new(DataType::ALL[pick], shape, data.into());
        }
    }
}
