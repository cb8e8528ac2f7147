//! The `data` of a tensor in JSON, read straight into a vector of elements.
//!
//! Data is flat or nested exactly as its shape (OIP "Tensor Data"); Triton only counts elements, we also refuse ragged or
//! differently nested data, integers out of range and numbers that overflow to infinity. FP16 and BF16 are rounded from
//! FP32. `serde_json`'s feature `float_roundtrip` is on, without which an FP64 may be off by its last bit.
//!
//! Measured for 218 KB of numbers: 0.6-0.8 ms. Skipping over the array with a `RawValue` and parsing it by hand took as
//! long: skipping alone takes 0.2-0.5 ms.

use std::fmt;

use half::{bf16, f16};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, Visitor};

use self::nest::Level;
use super::error::{ProtocolError, excerpt};
use super::object::Failure;
use crate::tensor::{DataType, Element, Tensor, element_count, push_string};

mod nest;

/// Reads the `data` of one input. Why it failed, if not for broken JSON, is left in `failure`.
pub(super) struct TensorSeed<'s> {
    /// The input, for messages.
    pub input: &'s str,
    /// Its datatype.
    pub datatype: DataType,
    /// Its shape.
    pub shape: &'s [usize],
    /// Bytes of JSON that hold the data at most; bounds what is allocated before anything is read.
    pub body_length: usize,
    /// Where the reason goes.
    pub failure: &'s mut Failure,
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
    fn numbers<'de, T: JsonElement, D: Deserializer<'de>>(self, deserializer: D) -> Result<Tensor, D::Error> {
        // An element and its comma take at least two bytes.
        let capacity = element_count(self.shape).unwrap_or(usize::MAX).min(self.body_length / 2 + 1);
        let mut sink = Numbers(Vec::<T>::with_capacity(capacity));
        let shape = self.fill(&mut sink, deserializer)?;
        Tensor::from_vec(shape, sink.0).map_err(D::Error::custom)
    }

    fn strings<'de, D: Deserializer<'de>>(self, deserializer: D) -> Result<Tensor, D::Error> {
        let mut sink = Strings { data: Vec::new(), count: 0 };
        let shape = self.fill(&mut sink, deserializer)?;
        Tensor::new(DataType::Bytes, shape, sink.data.into()).map_err(D::Error::custom)
    }

    fn fill<'de, S: Sink, D: Deserializer<'de>>(self, sink: &mut S, deserializer: D) -> Result<Vec<usize>, D::Error> {
        let mut problem = None;
        let level = Level { sink, dims: self.shape, outermost: true, problem: &mut problem };
        let result = level.deserialize(deserializer);
        let (got, expected) = (sink.len(), element_count(self.shape).unwrap_or(usize::MAX));
        let (input, shape) = (excerpt(self.input), self.shape.to_vec());
        Err(self.failure.refuse(match (result, problem) {
            (Ok(()), _) if got == expected => return Ok(shape),
            (Ok(()), _) => ProtocolError::ElementCount { input, shape, expected, got },
            (Err(_), Some((expected, got))) => ProtocolError::Nesting { input, shape, expected, got },
            (Err(error), None) => {
                let (datatype, reason) = (self.datatype, excerpt(&error.to_string()));
                ProtocolError::Element { input, datatype, index: got, reason }
            }
        }))
    }
}

/// A Rust type that is written in JSON as the protocol says.
trait JsonElement: Element {
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

/// Takes elements in row-major order.
trait Sink {
    /// Reads and keeps one element.
    fn push<'de, D: Deserializer<'de>>(&mut self, deserializer: D) -> Result<(), D::Error>;

    /// Elements kept so far.
    fn len(&self) -> usize;
}

struct Numbers<T>(Vec<T>);

impl<T: JsonElement> Sink for Numbers<T> {
    fn push<'de, D: Deserializer<'de>>(&mut self, deserializer: D) -> Result<(), D::Error> {
        self.0.push(T::read(deserializer)?);
        Ok(())
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Elements as a binary body would carry them.
struct Strings {
    data: Vec<u8>,
    count: usize,
}

impl Sink for Strings {
    fn push<'de, D: Deserializer<'de>>(&mut self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(&mut *self)
    }

    fn len(&self) -> usize {
        self.count
    }
}

impl Visitor<'_> for &mut Strings {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: serde::de::Error>(self, string: &str) -> Result<(), E> {
        if u32::try_from(string.len()).is_err() {
            return Err(E::custom("the string is longer than 4 GiB"));
        }
        push_string(&mut self.data, string.as_bytes());
        self.count += 1;
        Ok(())
    }
}
