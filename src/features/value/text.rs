//! Values from texts without a type: topic levels, the command line.

use std::str::FromStr;

use serde_json::Value as Json;

use super::{ScalarType, Value, ValueType};

impl Value {
    /// Converts a text to the type `kind`. The error says what was expected.
    pub fn from_text(kind: ScalarType, text: &str) -> Result<Self, String> {
        fn number<T: FromStr>(kind: ScalarType, text: &str) -> Result<T, String> {
            text.parse().map_err(|_| format!("{text:?} is not a valid {kind}"))
        }
        let finite = |value: Value, is_finite: bool| {
            if is_finite { Ok(value) } else { Err(format!("{text:?} is not a valid {kind}")) }
        };
        match kind {
            ScalarType::Int32 => number(kind, text).map(Self::Int32),
            ScalarType::Int64 => number(kind, text).map(Self::Int64),
            ScalarType::Float32 => {
                number(kind, text).and_then(|number: f32| finite(Self::Float32(number), number.is_finite()))
            }
            ScalarType::Float64 => {
                number(kind, text).and_then(|number: f64| finite(Self::Float64(number), number.is_finite()))
            }
            ScalarType::Bool => number(kind, text).map(Self::Bool),
            ScalarType::UnixTimestamp => match text.parse() {
                Ok(seconds) => Ok(Self::UnixTimestamp(seconds)),
                Err(_) => Self::of_json_text(kind, text),
            },
            ScalarType::Bytes | ScalarType::String => Self::of_json_text(kind, text),
        }
    }

    /// Converts the text as a JSON string.
    fn of_json_text(kind: ScalarType, text: &str) -> Result<Self, String> {
        let value = Self::from_json(ValueType::Scalar(kind), &Json::from(text))?;
        value.ok_or_else(|| format!("{text:?} is not a valid {kind}"))
    }
}
