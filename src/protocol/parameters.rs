//! Parameters: JSON objects of strings, numbers and booleans, on the request, its inputs and its outputs.
//!
//! Known parameters are read; all others are accepted and ignored, as the protocol requires.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use super::error::{ProtocolError, excerpt};
use super::object::{FirstError, ObjectFields};

/// The value of a parameter.
#[derive(Debug, Clone, PartialEq)]
pub enum ParameterValue {
    Bool(bool),
    Unsigned(u64),
    /// Negative or not an integer.
    OtherNumber,
    Text(String),
}

impl<'de> Deserialize<'de> for ParameterValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ValueVisitor;

        impl Visitor<'_> for ValueVisitor {
            type Value = ParameterValue;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a string, a number or a boolean")
            }

            fn visit_bool<E>(self, value: bool) -> Result<ParameterValue, E> {
                Ok(ParameterValue::Bool(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<ParameterValue, E> {
                Ok(ParameterValue::Unsigned(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<ParameterValue, E> {
                Ok(u64::try_from(value).map_or(ParameterValue::OtherNumber, ParameterValue::Unsigned))
            }

            fn visit_f64<E>(self, _: f64) -> Result<ParameterValue, E> {
                Ok(ParameterValue::OtherNumber)
            }

            fn visit_str<E>(self, value: &str) -> Result<ParameterValue, E> {
                Ok(ParameterValue::Text(value.to_owned()))
            }
        }

        deserializer.deserialize_any(ValueVisitor)
    }
}

/// Reads one "parameters" object into `known`; a refusal is left in `failure`.
pub(super) struct ParametersFields<'s, K> {
    pub place: &'s str,
    pub known: &'s mut K,
    pub failure: &'s mut FirstError,
}

/// The parameters that are known in one place.
pub(super) trait KnownParameters {
    /// Takes a parameter if it is a known one. `Err` is the reason to refuse the value.
    fn take(&mut self, name: &str, value: &ParameterValue) -> Result<(), ParameterError>;
}

/// Reason why a parameter is refused.
pub(super) enum ParameterError {
    Expected(&'static str),
    Twice(&'static str),
    SharedMemory,
    Sequence,
}

impl<'de, K: KnownParameters> ObjectFields<'de> for ParametersFields<'_, K> {
    const EXPECTED: &'static str = "an object of parameters";

    fn field<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        let value: ParameterValue = self.failure.field(self.place, key, map.next_value())?;
        self.known.take(key, &value).map_err(|refused| self.failure.refuse(refused.at(self.place, key)))
    }
}

impl ParameterError {
    /// The error about the parameter `name` of `place`.
    pub fn at(self, place: &str, name: &str) -> ProtocolError {
        let (place, name) = (place.to_owned(), excerpt(name));
        match self {
            Self::Expected(reason) => ProtocolError::Field { place, key: name, reason: reason.into() },
            Self::Twice(key) => ProtocolError::DuplicateKey { place, key },
            Self::SharedMemory => ProtocolError::SharedMemory { place, parameter: name },
            Self::Sequence => ProtocolError::Sequence,
        }
    }
}

/// Parameters of a whole request.
#[derive(Debug, Default)]
pub(super) struct RequestParameters {
    /// True when outputs are binary unless they choose otherwise.
    pub binary_data_output: Option<bool>,
    /// Time that the caller waits; zero is for ever.
    pub timeout: Option<Duration>,
    /// 0 is the default, 1 the highest.
    pub priority: Option<u64>,
    /// True when the answer reports the feature values that were used; Ledge's own parameter.
    pub feature_values: Option<bool>,
}

impl KnownParameters for RequestParameters {
    fn take(&mut self, name: &str, value: &ParameterValue) -> Result<(), ParameterError> {
        match name {
            "binary_data_output" => set(&mut self.binary_data_output, "binary_data_output", boolean(value)?),
            "timeout" => set(&mut self.timeout, "timeout", Duration::from_micros(unsigned(value)?)),
            "priority" => set(&mut self.priority, "priority", unsigned(value)?),
            "feature_values" => set(&mut self.feature_values, "feature_values", boolean(value)?),
            "sequence_id" => match value {
                ParameterValue::Unsigned(0) => Ok(()),
                ParameterValue::Text(text) if text.is_empty() => Ok(()),
                ParameterValue::Unsigned(_) | ParameterValue::Text(_) => Err(ParameterError::Sequence),
                ParameterValue::Bool(_) | ParameterValue::OtherNumber => {
                    Err(ParameterError::Expected("expected a non-negative integer or a string"))
                }
            },
            "sequence_start" | "sequence_end" => boolean(value).map(|_| ()),
            _ => Ok(()),
        }
    }
}

/// Parameters of an input.
#[derive(Debug, Default)]
pub(super) struct InputParameters {
    /// Bytes of this input in the binary part of the body.
    pub binary_data_size: Option<usize>,
}

impl KnownParameters for InputParameters {
    fn take(&mut self, name: &str, value: &ParameterValue) -> Result<(), ParameterError> {
        match name {
            "binary_data_size" => {
                // More than the machine can address is more than any body holds.
                let size = usize::try_from(unsigned(value)?).unwrap_or(usize::MAX);
                set(&mut self.binary_data_size, "binary_data_size", size)
            }
            _ if name.starts_with("shared_memory_") => Err(ParameterError::SharedMemory),
            _ => Ok(()),
        }
    }
}

/// Parameters of a requested output.
#[derive(Debug, Default)]
pub(super) struct OutputParameters {
    /// True when the output is binary.
    pub binary_data: Option<bool>,
    /// The number of classes wanted instead of the tensor; 0 is the tensor, as in Triton.
    pub classification: Option<usize>,
}

impl KnownParameters for OutputParameters {
    fn take(&mut self, name: &str, value: &ParameterValue) -> Result<(), ParameterError> {
        match name {
            "binary_data" => set(&mut self.binary_data, "binary_data", boolean(value)?),
            "classification" => {
                let classes = usize::try_from(unsigned(value)?).unwrap_or(usize::MAX);
                set(&mut self.classification, "classification", classes)
            }
            _ if name.starts_with("shared_memory_") => Err(ParameterError::SharedMemory),
            _ => Ok(()),
        }
    }
}

fn set<T>(slot: &mut Option<T>, name: &'static str, value: T) -> Result<(), ParameterError> {
    if slot.replace(value).is_some() { Err(ParameterError::Twice(name)) } else { Ok(()) }
}

fn boolean(value: &ParameterValue) -> Result<bool, ParameterError> {
    if let ParameterValue::Bool(value) = value {
        Ok(*value)
    } else {
        Err(ParameterError::Expected("expected true or false"))
    }
}

fn unsigned(value: &ParameterValue) -> Result<u64, ParameterError> {
    if let ParameterValue::Unsigned(value) = value {
        Ok(*value)
    } else {
        Err(ParameterError::Expected("expected a non-negative integer"))
    }
}
