//! The `data` of a tensor in JSON, read straight into a vector of elements.
//!
//! Data is flat or nested exactly as its shape (OIP "Tensor Data"); Triton only counts elements; Ledge also refuses
//! ragged or differently nested data, integers out of range and numbers that overflow to infinity. FP16 and BF16 are
//! rounded from FP32. `serde_json`'s feature `float_roundtrip` is on, because without it an FP64 may be off by its last
//! bit.
//!
//! Measured for 218 KB of numbers: 0.6-0.8 ms. Skipping over the array with a `RawValue` and parsing it by hand took as
//! long: only skipping takes 0.2-0.5 ms.

use std::fmt;

use half::{bf16, f16};
use ledge_base::memory_budget::{MemoryAccount, MemoryReservation};
use ledge_base::serde_messages::in_json;
use ledge_base::tensor::{DataType, Tensor, TensorElement, element_count, push_string};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, Visitor};

use super::error::{ProtocolError, excerpt};
use super::object::FirstError;
use nest::{ArrayLevel, ElementSink};

mod nest;

/// The most elements of a `BYTES` tensor.
pub(super) const STRINGS_MAX: usize = 1_000_000;

/// The most memory of a string besides its bytes, here and in a runtime that copies it and returns as many. With ONNX
/// Runtime 20 million empty ones took 2.5 GB.
const STRING_OVERHEAD_BYTES: usize = 128;

/// Reads the `data` of one input. The reason of a failure, other than broken JSON, is left in `failure`.
pub(super) struct TensorSeed<'s> {
    /// The input in messages.
    pub input: &'s str,
    pub datatype: DataType,
    pub shape: &'s [usize],
    /// The most bytes of JSON that the data can take; bounds the allocation before anything is read.
    pub body_length: usize,
    /// Account for the tensor, where it may be large.
    pub account: Option<&'s MemoryAccount>,
    pub failure: &'s mut FirstError,
}

impl<'de> DeserializeSeed<'de> for TensorSeed<'_> {
    type Value = Tensor;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tensor, D::Error> {
        match self.datatype {
            DataType::Bool => self.numbers::<bool, D>(deserializer),
            DataType::Uint8 => self.numbers::<u8, D>(deserializer),
            DataType::Uint16 => self.numbers::<u16, D>(deserializer),
            DataType::Uint32 => self.numbers::<u32, D>(deserializer),
            DataType::Uint64 => self.numbers::<u64, D>(deserializer),
            DataType::Int8 => self.numbers::<i8, D>(deserializer),
            DataType::Int16 => self.numbers::<i16, D>(deserializer),
            DataType::Int32 => self.numbers::<i32, D>(deserializer),
            DataType::Int64 => self.numbers::<i64, D>(deserializer),
            DataType::Fp16 => self.numbers::<f16, D>(deserializer),
            DataType::Bf16 => self.numbers::<bf16, D>(deserializer),
            DataType::Fp32 => self.numbers::<f32, D>(deserializer),
            DataType::Fp64 => self.numbers::<f64, D>(deserializer),
            DataType::Bytes => self.strings(deserializer),
        }
    }
}

impl TensorSeed<'_> {
    fn numbers<'de, T: JsonElement, D: Deserializer<'de>>(mut self, deserializer: D) -> Result<Tensor, D::Error> {
        // An element and its comma take at least two bytes.
        let expected = self.expected();
        let capacity = expected.min(self.body_length / 2 + 1);
        let hold = self.take(capacity.saturating_mul(size_of::<T>()))?;
        let mut sink = NumberSink { elements: Vec::<T>::with_capacity(capacity), most: expected, count: 0 };
        let shape = self.fill(&mut sink, deserializer)?;
        let tensor = Tensor::from_vec(shape, sink.elements).map_err(D::Error::custom)?;
        Ok(kept(tensor, hold))
    }

    fn strings<'de, D: Deserializer<'de>>(mut self, deserializer: D) -> Result<Tensor, D::Error> {
        let expected = self.expected();
        if expected > STRINGS_MAX {
            let error = ProtocolError::TooManyStrings { input: excerpt(self.input), limit: STRINGS_MAX };
            return Err(self.failure.refuse(error));
        }
        let beside = expected.min(self.body_length / 3 + 1) * STRING_OVERHEAD_BYTES;
        let mut hold = self.take(beside + self.body_length)?;
        let mut sink = StringSink { data: Vec::new(), most: expected, count: 0 };
        let shape = self.fill(&mut sink, deserializer)?;
        let tensor = Tensor::new(DataType::Bytes, shape, sink.data.into()).map_err(D::Error::custom)?;
        if let Some(hold) = &mut hold {
            hold.resize(beside + tensor.data().len()).map_err(D::Error::custom)?;
        }
        Ok(kept(tensor, hold))
    }

    fn expected(&self) -> usize {
        element_count(self.shape).unwrap_or(usize::MAX)
    }

    /// Takes bytes from the memory budget, where there is an account.
    fn take<E: serde::de::Error>(&mut self, bytes: usize) -> Result<Option<MemoryReservation>, E> {
        let hold = self.account.map(|account| account.take(bytes)).transpose();
        hold.map_err(|error| self.failure.refuse(error.into()))
    }

    fn fill<'de, S: ElementSink, D: Deserializer<'de>>(
        self,
        sink: &mut S,
        deserializer: D,
    ) -> Result<Vec<usize>, D::Error> {
        let mut problem = None;
        let expected = self.expected();
        let level = ArrayLevel { sink, dims: self.shape, outermost: true, problem: &mut problem };
        let result = level.deserialize(deserializer);
        let got = sink.len();
        let (input, shape) = (excerpt(self.input), self.shape.to_vec());
        Err(self.failure.refuse(match (result, problem) {
            (Ok(()), _) if got == expected => return Ok(shape),
            (Ok(()), _) => ProtocolError::ElementCount { input, shape, expected, got },
            (Err(_), Some((expected, got))) => ProtocolError::Nesting { input, shape, expected, got },
            (Err(error), None) => {
                let (datatype, reason) = (self.datatype, excerpt(&in_json(&error.to_string())));
                ProtocolError::Element { input, datatype, index: got, reason }
            }
        }))
    }
}

fn kept(tensor: Tensor, hold: Option<MemoryReservation>) -> Tensor {
    match hold {
        Some(hold) => tensor.kept(hold),
        None => tensor,
    }
}

/// A Rust type with a form in the protocol's JSON.
trait JsonElement: TensorElement {
    /// Reads one.
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
}

macro_rules! exact_elements {
    ($($rust:ty),*) => {
        $(impl JsonElement for $rust {
            fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::deserialize(deserializer)
            }
        })*
    };
}
exact_elements!(bool, u8, u16, u32, u64, i8, i16, i32, i64);

macro_rules! rounded_elements {
    ($($rust:ty, $from:ty, $round:expr);*) => {
        $(impl JsonElement for $rust {
            fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let number: Self = $round(<$from>::deserialize(deserializer)?);
                if number.is_finite() { Ok(number) } else { Err(D::Error::custom("the number is out of range")) }
            }
        })*
    };
}
rounded_elements!(f16, f32, f16::from_f32; bf16, f32, bf16::from_f32; f32, f32, |v| v; f64, f64, |v| v);

struct NumberSink<T> {
    elements: Vec<T>,
    most: usize,
    count: usize,
}

impl<T: JsonElement> ElementSink for NumberSink<T> {
    fn push<'de, D: Deserializer<'de>>(&mut self, deserializer: D) -> Result<(), D::Error> {
        let element = T::read(deserializer)?;
        if self.count < self.most {
            self.elements.push(element);
        }
        self.count += 1;
        Ok(())
    }

    fn len(&self) -> usize {
        self.count
    }
}

/// Elements in the form of a binary body.
struct StringSink {
    data: Vec<u8>,
    most: usize,
    count: usize,
}

impl ElementSink for StringSink {
    fn push<'de, D: Deserializer<'de>>(&mut self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(&mut *self)
    }

    fn len(&self) -> usize {
        self.count
    }
}

impl Visitor<'_> for &mut StringSink {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: serde::de::Error>(self, string: &str) -> Result<(), E> {
        if u32::try_from(string.len()).is_err() {
            return Err(E::custom("the string is longer than 4 GiB"));
        }
        if self.count < self.most {
            push_string(&mut self.data, string.as_bytes());
        }
        self.count += 1;
        Ok(())
    }
}
