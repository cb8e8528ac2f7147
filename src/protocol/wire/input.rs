//! One input: its fields in any order, then its data from the JSON or from the binary part of the body.

use std::fmt;
use std::mem::replace;

use bytes::Bytes;
use ledge_base::names::ModelName;
use ledge_base::serde_messages::in_json;
use ledge_base::tensor::{DataType, Tensor, TensorError, element_count};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::super::error::{ProtocolError, excerpt};
use super::super::json::{STRINGS_MAX, TensorSeed};
use super::super::object::{FirstError, ObjectFields};
use super::super::parameters::InputParameters;
use super::data_source::RequestReadState;

/// The most dimensions of a tensor, as in NumPy.
pub const RANK_MAX: usize = 64;

/// Collects the fields of one input.
pub(super) struct InputReader<'r, 's, 'de> {
    source: &'r mut RequestReadState<'s>,
    /// The input in messages: its number until its name is read.
    place: String,
    name: Option<String>,
    shape: Option<Vec<usize>>,
    datatype: Option<String>,
    parameters: InputParameters,
    has_parameters: bool,
    data: Option<InputData<'de>>,
}

/// The value of "data".
enum InputData<'de> {
    /// It came after name, datatype and shape, and was read at once.
    Read(Tensor),
    /// It came before one of them.
    Unread(&'de RawValue),
}

impl<'r, 's> InputReader<'r, 's, '_> {
    /// A reader of input number `index`.
    pub(super) fn new(source: &'r mut RequestReadState<'s>, index: usize) -> Self {
        Self {
            source,
            place: format!("input #{index}"),
            name: None,
            shape: None,
            datatype: None,
            parameters: InputParameters::default(),
            has_parameters: false,
            data: None,
        }
    }

    /// The reader for "data", if name, datatype and shape are known already.
    fn seed(&mut self) -> Option<TensorSeed<'_>> {
        Some(TensorSeed {
            input: self.name.as_deref()?,
            datatype: DataType::from_name(self.datatype.as_deref()?)?,
            shape: self.shape.as_deref()?,
            body_length: self.source.json_length,
            account: self.source.account,
            failure: &mut *self.source.failure,
        })
    }

    /// Returns the input, after the end of its object.
    pub(super) fn finish(self) -> Result<(String, Tensor), ProtocolError> {
        let missing = |key| ProtocolError::Missing { place: self.place.clone(), key };
        let name = self.name.ok_or_else(|| missing("name"))?;
        let shape = self.shape.ok_or_else(|| missing("shape"))?;
        let datatype = self.datatype.ok_or_else(|| missing("datatype"))?;
        let input = || excerpt(&name);
        let datatype = DataType::from_name(&datatype)
            .ok_or_else(|| ProtocolError::InvalidDatatype { input: input(), datatype: excerpt(&datatype) })?;
        let tensor = match (self.data, self.parameters.binary_data_size) {
            (None, None) => return Err(ProtocolError::NoData { input: input() }),
            (Some(_), Some(_)) => return Err(ProtocolError::TwoData { input: input() }),
            (Some(InputData::Read(tensor)), None) => tensor,
            (Some(InputData::Unread(json)), None) => {
                let mut failure = FirstError::default();
                let body_length = json.get().len();
                let account = self.source.account;
                let seed =
                    TensorSeed { input: &name, datatype, shape: &shape, body_length, account, failure: &mut failure };
                seed.deserialize(&mut serde_json::Deserializer::from_str(json.get()))
                    .map_err(|error| failure.or(ProtocolError::Json { reason: in_json(&error.to_string()) }))?
            }
            (None, Some(size)) => binary_tensor(self.source, &name, datatype, shape, size)?,
        };
        Ok((name, tensor))
    }
}

impl<'de> ObjectFields<'de> for InputReader<'_, '_, 'de> {
    const EXPECTED: &'static str = "an input object";

    fn field<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "name" => {
                self.source.failure.once(&self.place, "name", self.name.is_some())?;
                let name: String = self.source.failure.field(&self.place, "name", map.next_value())?;
                self.place = format!("input '{}'", excerpt(&name));
                self.name = Some(name);
            }
            "shape" => {
                self.source.failure.once(&self.place, "shape", self.shape.is_some())?;
                let TensorShape(shape) = self.source.failure.field(&self.place, "shape", map.next_value())?;
                let reason = if shape.len() > RANK_MAX {
                    Some("has more than 64 dimensions")
                } else if element_count(&shape).is_none() {
                    Some("has too many elements")
                } else {
                    None
                };
                if let Some(reason) = reason {
                    let error = ProtocolError::Shape { place: self.place.clone(), reason };
                    return Err(self.source.failure.refuse(error));
                }
                self.shape = Some(shape);
            }
            "datatype" => {
                self.source.failure.once(&self.place, "datatype", self.datatype.is_some())?;
                self.datatype = Some(self.source.failure.field(&self.place, "datatype", map.next_value())?);
            }
            "parameters" => {
                self.source.failure.once(&self.place, "parameters", replace(&mut self.has_parameters, true))?;
                self.source.parameters(&self.place, &mut self.parameters, map)?;
            }
            "data" => {
                self.source.failure.once(&self.place, "data", self.data.is_some())?;
                self.data = Some(match self.seed() {
                    Some(seed) => InputData::Read(map.next_value_seed(seed)?),
                    None => InputData::Unread(self.source.failure.field(&self.place, "data", map.next_value())?),
                });
            }
            _ => drop(map.next_value::<IgnoredAny>()?),
        }
        Ok(())
    }
}

/// A shape. Dimensions after the first one too many are dropped.
struct TensorShape(Vec<usize>);

impl<'de> Deserialize<'de> for TensorShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(DimsVisitor)
    }
}

struct DimsVisitor;

impl<'de> Visitor<'de> for DimsVisitor {
    type Value = TensorShape;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<TensorShape, A::Error> {
        let mut dims = Vec::new();
        while let Some(dim) = seq.next_element()? {
            if dims.len() <= RANK_MAX {
                dims.push(dim);
            }
        }
        Ok(TensorShape(dims))
    }
}

/// Takes the next `size` bytes of the binary part of the body (Triton's binary tensor data extension); the bytes are
/// shared, not copied.
fn binary_tensor(
    source: &mut RequestReadState<'_>,
    name: &str,
    datatype: DataType,
    shape: Vec<usize>,
    size: usize,
) -> Result<Tensor, ProtocolError> {
    if let Some(missing) = size.checked_sub(source.binary.len()).filter(|missing| *missing > 0) {
        return Err(ProtocolError::ShortBinary { input: excerpt(name), missing, model: source.model.clone() });
    }
    tensor(source.model, name, datatype, shape, source.binary.split_to(size))
}

/// The tensor of input `name` over bytes in the form of the binary tensor data extension, which are shared.
pub fn tensor(
    model: &ModelName,
    name: &str,
    datatype: DataType,
    shape: Vec<usize>,
    data: Bytes,
) -> Result<Tensor, ProtocolError> {
    // An element takes four bytes here, and many times as much in a runtime.
    if datatype == DataType::Bytes && element_count(&shape).is_none_or(|count| count > STRINGS_MAX) {
        return Err(ProtocolError::TooManyStrings { input: excerpt(name), limit: STRINGS_MAX });
    }
    Tensor::new(datatype, shape, data).map_err(|error| {
        let (input, model) = (excerpt(name), model.clone());
        match error {
            TensorError::TooLarge { .. } => {
                ProtocolError::Shape { place: format!("input '{input}'"), reason: "has too many elements" }
            }
            TensorError::ByteSize { expected, got } => ProtocolError::ByteSize { input, model, expected, got },
            TensorError::IncompleteString { length, left } => ProtocolError::IncompleteString { input, length, left },
            TensorError::StringCount { expected, got } => ProtocolError::StringCount { input, model, expected, got },
            TensorError::NotABool { index, byte } => ProtocolError::NotABool { input, index, byte },
        }
    })
}
