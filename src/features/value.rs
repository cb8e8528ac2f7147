//! Values of features and join keys: Feast's value types, lists included.

mod json;
mod text;

use std::fmt;
use std::str::FromStr;

/// The type of a single value. The names are those of Feast's Python types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScalarType {
    /// Any bytes; base64 in JSON.
    Bytes,
    /// UTF-8 text.
    String,
    /// 32 bits with sign.
    Int32,
    /// 64 bits with sign.
    Int64,
    Float32,
    Float64,
    /// True or false.
    Bool,
    /// Seconds since the Unix epoch.
    UnixTimestamp,
}

/// The type of a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ValueType {
    Scalar(ScalarType),
    /// A list of values, of any length: `Array(Float32)`.
    Array(ScalarType),
}

/// A value. Absence is `None` of an `Option<Value>`, which Feast calls `NULL_VALUE`.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "each holds what its ScalarType says, or a list of it")]
pub enum Value {
    Bytes(Box<[u8]>),
    String(Box<str>),
    Int32(i32),
    Int64(i64),
    Float32(f32),
    Float64(f64),
    Bool(bool),
    UnixTimestamp(i64),
    BytesList(Vec<Box<[u8]>>),
    StringList(Vec<Box<str>>),
    Int32List(Vec<i32>),
    Int64List(Vec<i64>),
    Float32List(Vec<f32>),
    Float64List(Vec<f64>),
    BoolList(Vec<bool>),
    UnixTimestampList(Vec<i64>),
}

impl ScalarType {
    /// Every type.
    pub const ALL: [Self; 8] = [
        Self::Bytes,
        Self::String,
        Self::Int32,
        Self::Int64,
        Self::Float32,
        Self::Float64,
        Self::Bool,
        Self::UnixTimestamp,
    ];

    /// Feast's name of it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bytes => "Bytes",
            Self::String => "String",
            Self::Int32 => "Int32",
            Self::Int64 => "Int64",
            Self::Float32 => "Float32",
            Self::Float64 => "Float64",
            Self::Bool => "Bool",
            Self::UnixTimestamp => "UnixTimestamp",
        }
    }
}

impl fmt::Display for ScalarType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scalar(scalar) => scalar.fmt(f),
            Self::Array(scalar) => write!(f, "Array({scalar})"),
        }
    }
}

impl FromStr for ScalarType {
    type Err = UnknownType;

    fn from_str(text: &str) -> Result<Self, UnknownType> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or_else(|| UnknownType(text.into()))
    }
}

impl FromStr for ValueType {
    type Err = UnknownType;

    fn from_str(text: &str) -> Result<Self, UnknownType> {
        match text.strip_prefix("Array(").and_then(|rest| rest.strip_suffix(')')) {
            Some(element) => element.parse().map(Self::Array).map_err(|_| UnknownType(text.into())),
            None => text.parse().map(Self::Scalar),
        }
    }
}

/// A text that names no type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown type {0:?}: expected Bytes, String, Int32, Int64, Float32, Float64, Bool or UnixTimestamp, or a list of one, such as Array(Float32)"
)]
pub struct UnknownType(String);

impl Value {
    /// The memory that it takes besides itself, in bytes.
    pub fn bytes_beside(&self) -> usize {
        match self {
            Self::Int32(_)
            | Self::Int64(_)
            | Self::Float32(_)
            | Self::Float64(_)
            | Self::Bool(_)
            | Self::UnixTimestamp(_) => 0,
            Self::Bytes(bytes) => bytes.len(),
            Self::String(text) => text.len(),
            Self::BytesList(list) => list.iter().map(|bytes| size_of::<Box<[u8]>>() + bytes.len()).sum(),
            Self::StringList(list) => list.iter().map(|text| size_of::<Box<str>>() + text.len()).sum(),
            Self::Int32List(list) => size_of_val(list.as_slice()),
            Self::Int64List(list) | Self::UnixTimestampList(list) => size_of_val(list.as_slice()),
            Self::Float32List(list) => size_of_val(list.as_slice()),
            Self::Float64List(list) => size_of_val(list.as_slice()),
            Self::BoolList(list) => size_of_val(list.as_slice()),
        }
    }

    /// Its type.
    pub fn value_type(&self) -> ValueType {
        use ScalarType as S;
        use ValueType::{Array, Scalar};
        match self {
            Self::Bytes(_) => Scalar(S::Bytes),
            Self::String(_) => Scalar(S::String),
            Self::Int32(_) => Scalar(S::Int32),
            Self::Int64(_) => Scalar(S::Int64),
            Self::Float32(_) => Scalar(S::Float32),
            Self::Float64(_) => Scalar(S::Float64),
            Self::Bool(_) => Scalar(S::Bool),
            Self::UnixTimestamp(_) => Scalar(S::UnixTimestamp),
            Self::BytesList(_) => Array(S::Bytes),
            Self::StringList(_) => Array(S::String),
            Self::Int32List(_) => Array(S::Int32),
            Self::Int64List(_) => Array(S::Int64),
            Self::Float32List(_) => Array(S::Float32),
            Self::Float64List(_) => Array(S::Float64),
            Self::BoolList(_) => Array(S::Bool),
            Self::UnixTimestampList(_) => Array(S::UnixTimestamp),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
