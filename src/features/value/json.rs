//! Values as JSON, in the forms that Feast's clients send and expect: bytes in base64, times in seconds since the
//! epoch, floats that JSON cannot represent as null.

use base64::Engine as _;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use ledge_base::clock;
use serde::ser::{Serialize, SerializeSeq, Serializer};
use serde_json::Value as Json;

use super::{ScalarType, Value, ValueType};

/// The largest whole number up to which a double has no gaps: beyond it, 3.0e17 may stand for another number.
const EXACT_F64_MAX: f64 = 9_007_199_254_740_992.0;

impl Value {
    /// Converts a JSON value to the type `kind`; `None` is null. The error says what was expected.
    ///
    /// A whole number may be written as `3.0`, as data frames do in a column with nulls. In a list of floats null is
    /// NaN, as a NaN in a list is written as null.
    pub fn from_json(kind: ValueType, json: &Json) -> Result<Option<Self>, String> {
        match (kind, json) {
            (_, Json::Null) => Ok(None),
            (ValueType::Scalar(kind), json) => scalar(kind, json).map(Some),
            (ValueType::Array(kind), Json::Array(elements)) => list(kind, elements).map(Some),
            (ValueType::Array(_), json) => Err(format!("{} is not a valid {kind}", shown(json))),
        }
    }

    /// The value in JSON, as [`Self::from_json`] reads it.
    pub fn to_json(&self) -> Json {
        fn list<T>(values: &[T], one: impl FnMut(&T) -> Json) -> Json {
            Json::Array(values.iter().map(one).collect())
        }
        match self {
            Self::Bytes(bytes) => STANDARD.encode(bytes).into(),
            Self::String(text) => (**text).into(),
            Self::Int32(number) => (*number).into(),
            Self::Int64(number) | Self::UnixTimestamp(number) => (*number).into(),
            Self::Float32(number) => single(*number),
            Self::Float64(number) => (*number).into(),
            Self::Bool(flag) => (*flag).into(),
            Self::BytesList(values) => list(values, |bytes| STANDARD.encode(bytes).into()),
            Self::StringList(values) => list(values, |text| (**text).into()),
            Self::Int32List(values) => list(values, |number| (*number).into()),
            Self::Int64List(values) | Self::UnixTimestampList(values) => list(values, |number| (*number).into()),
            Self::Float32List(values) => list(values, |number| single(*number)),
            Self::Float64List(values) => list(values, |number| (*number).into()),
            Self::BoolList(values) => list(values, |flag| (*flag).into()),
        }
    }
}

/// The same JSON as [`Value::to_json`], written without building it.
impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Bytes(bytes) => JsonBase64(bytes).serialize(serializer),
            Self::String(text) => serializer.serialize_str(text),
            Self::Int32(number) => serializer.serialize_i32(*number),
            Self::Int64(number) | Self::UnixTimestamp(number) => serializer.serialize_i64(*number),
            Self::Float32(number) => JsonFloat32(*number).serialize(serializer),
            Self::Float64(number) => JsonFloat64(*number).serialize(serializer),
            Self::Bool(flag) => serializer.serialize_bool(*flag),
            Self::BytesList(values) => elements(serializer, values.iter().map(|bytes| JsonBase64(bytes))),
            Self::StringList(values) => elements(serializer, values.iter()),
            Self::Int32List(values) => elements(serializer, values.iter()),
            Self::Int64List(values) | Self::UnixTimestampList(values) => elements(serializer, values.iter()),
            Self::Float32List(values) => elements(serializer, values.iter().map(|number| JsonFloat32(*number))),
            Self::Float64List(values) => elements(serializer, values.iter().map(|number| JsonFloat64(*number))),
            Self::BoolList(values) => elements(serializer, values.iter()),
        }
    }
}

fn elements<S: Serializer, T: Serialize>(
    serializer: S,
    values: impl ExactSizeIterator<Item = T>,
) -> Result<S::Ok, S::Error> {
    let mut list = serializer.serialize_seq(Some(values.len()))?;
    for value in values {
        list.serialize_element(&value)?;
    }
    list.end()
}

struct JsonBase64<'b>(&'b [u8]);

impl Serialize for JsonBase64<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Base64Display::new(self.0, &STANDARD))
    }
}

struct JsonFloat32(f32);

impl Serialize for JsonFloat32 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() { serializer.serialize_f32(self.0) } else { serializer.serialize_unit() }
    }
}

struct JsonFloat64(f64);

impl Serialize for JsonFloat64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() { serializer.serialize_f64(self.0) } else { serializer.serialize_unit() }
    }
}

/// A number of single precision with its shortest digits: 0.1 and not 0.10000000149011612.
fn single(number: f32) -> Json {
    // The serializer chooses among several shortest forms; use the same.
    let text = serde_json::to_string(&number).unwrap_or_default();
    text.parse::<f64>().map_or(Json::Null, Json::from)
}

fn scalar(kind: ScalarType, json: &Json) -> Result<Value, String> {
    Ok(match kind {
        ScalarType::Bytes => Value::Bytes(bytes(json)?),
        ScalarType::String => Value::String(text(json, kind)?.into()),
        ScalarType::Int32 => Value::Int32(int32(json)?),
        ScalarType::Int64 => Value::Int64(integer(json, kind)?),
        ScalarType::Float32 => Value::Float32(float32(json)?),
        ScalarType::Float64 => Value::Float64(float(json, kind)?),
        ScalarType::Bool => Value::Bool(json.as_bool().ok_or_else(|| wrong(json, kind))?),
        ScalarType::UnixTimestamp => Value::UnixTimestamp(seconds(json)?),
    })
}

fn list(kind: ScalarType, elements: &[Json]) -> Result<Value, String> {
    fn all<T>(elements: &[Json], one: impl Fn(&Json) -> Result<T, String>) -> Result<Vec<T>, String> {
        let placed = |(at, json)| one(json).map_err(|reason| format!("element {at}: {reason}"));
        elements.iter().enumerate().map(placed).collect()
    }
    Ok(match kind {
        ScalarType::Bytes => Value::BytesList(all(elements, bytes)?),
        ScalarType::String => Value::StringList(all(elements, |json| Ok(text(json, kind)?.into()))?),
        ScalarType::Int32 => Value::Int32List(all(elements, int32)?),
        ScalarType::Int64 => Value::Int64List(all(elements, |json| integer(json, kind))?),
        ScalarType::Float32 => {
            Value::Float32List(all(elements, |json| if json.is_null() { Ok(f32::NAN) } else { float32(json) })?)
        }
        ScalarType::Float64 => {
            Value::Float64List(all(elements, |json| if json.is_null() { Ok(f64::NAN) } else { float(json, kind) })?)
        }
        ScalarType::Bool => Value::BoolList(all(elements, |json| json.as_bool().ok_or_else(|| wrong(json, kind)))?),
        ScalarType::UnixTimestamp => Value::UnixTimestampList(all(elements, seconds)?),
    })
}

fn bytes(json: &Json) -> Result<Box<[u8]>, String> {
    let text = json.as_str().ok_or_else(|| format!("{} is not a string with Bytes in base64", shown(json)))?;
    STANDARD.decode(text).map(Into::into).map_err(|error| format!("{} is not valid base64: {error}", shown(json)))
}

fn text(json: &Json, kind: ScalarType) -> Result<&str, String> {
    json.as_str().ok_or_else(|| wrong(json, kind))
}

fn integer(json: &Json, kind: ScalarType) -> Result<i64, String> {
    json.as_i64().or_else(|| whole(json.as_f64()?)).ok_or_else(|| wrong(json, kind))
}

/// The whole number that a float represents exactly.
#[expect(clippy::cast_possible_truncation, reason = "it is whole and within the range")]
fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() <= EXACT_F64_MAX).then_some(number as i64)
}

fn int32(json: &Json) -> Result<i32, String> {
    let number = integer(json, ScalarType::Int32)?;
    number.try_into().map_err(|_| wrong(json, ScalarType::Int32))
}

fn float(json: &Json, kind: ScalarType) -> Result<f64, String> {
    json.as_f64().filter(|number| number.is_finite()).ok_or_else(|| wrong(json, kind))
}

#[expect(clippy::cast_possible_truncation, reason = "rounding is what single precision means")]
fn float32(json: &Json) -> Result<f32, String> {
    let number = float(json, ScalarType::Float32)? as f32;
    if number.is_finite() { Ok(number) } else { Err(wrong(json, ScalarType::Float32)) }
}

fn seconds(json: &Json) -> Result<i64, String> {
    if let Some(text) = json.as_str() {
        let micros = clock::parse_micros(text).ok_or_else(|| format!("{} is not a time in RFC 3339", shown(json)))?;
        return Ok(micros.div_euclid(1_000_000));
    }
    integer(json, ScalarType::UnixTimestamp)
}

fn wrong(json: &Json, kind: ScalarType) -> String {
    format!("{} is not a valid {kind}", shown(json))
}

/// A JSON value for a message, shortened if it is long.
fn shown(json: &Json) -> String {
    const SHOWN_CHARS_MAX: usize = 60;
    match json {
        Json::Array(_) => "a list".into(),
        Json::Object(_) => "an object".into(),
        Json::String(text) if text.len() > SHOWN_CHARS_MAX => {
            format!("{:?}…", text.chars().take(SHOWN_CHARS_MAX).collect::<String>())
        }
        other => other.to_string(),
    }
}
