//! A request with fields that are parsed already, as in gRPC.

use std::time::Instant;

use bytes::Bytes;
use ledge_base::names::ModelName;
use ledge_base::tensor::{DataType, Tensor, element_count};
use ledge_models::serving::request::FeatureRequest;

use super::decode::{DecodedRequest, decoded};
use super::error::{ProtocolError, excerpt};
use super::parameters::{InputParameters, KnownParameters, OutputParameters, ParameterValue, RequestParameters};
use super::wire::{ENTRIES_MAX, RANK_MAX, RequestedOutput, tensor};

/// Parameters, as name and value.
pub type NamedValues = Vec<(String, ParameterValue)>;

/// An inference request.
#[derive(Debug, Clone, Default)]
pub struct TypedRequest {
    /// Echoed when given.
    pub id: Option<String>,
    pub parameters: NamedValues,
    pub inputs: Vec<TypedInput>,
    /// The outputs asked for; empty is all.
    pub outputs: Vec<(String, NamedValues)>,
}

/// An input of a request.
#[derive(Debug, Clone)]
pub struct TypedInput {
    pub name: String,
    /// The protocol's name of the datatype.
    pub datatype: String,
    pub shape: Vec<i64>,
    pub parameters: NamedValues,
    /// The elements, in the form of the binary tensor data extension; `None` where the request has none.
    pub data: Option<Bytes>,
}

impl TypedRequest {
    /// Checks each field, as a request in JSON is checked. The parameter "timeout" counts from `received`.
    pub fn decode(self, model: &ModelName, received: Instant) -> Result<DecodedRequest, ProtocolError> {
        let mut parameters = RequestParameters::default();
        take_all(&mut parameters, "the request", &self.parameters)?;
        for (key, count) in [("inputs", self.inputs.len()), ("outputs", self.outputs.len())] {
            if count > ENTRIES_MAX {
                return Err(ProtocolError::TooMany { key, limit: ENTRIES_MAX });
            }
        }

        let mut inputs = Vec::with_capacity(self.inputs.len());
        for input in self.inputs {
            if inputs.iter().any(|(name, _)| *name == input.name) {
                return Err(ProtocolError::DuplicateInput { input: excerpt(&input.name) });
            }
            inputs.push(input.decode(model)?);
        }
        let mut outputs: Vec<RequestedOutput> = Vec::with_capacity(self.outputs.len());
        for (name, values) in self.outputs {
            if outputs.iter().any(|output| output.name == name) {
                return Err(ProtocolError::DuplicateOutput { output: excerpt(&name) });
            }
            let mut parameters = OutputParameters::default();
            take_all(&mut parameters, &format!("output '{}'", excerpt(&name)), &values)?;
            outputs.push(RequestedOutput { name, parameters });
        }
        Ok(decoded(self.id, &parameters, inputs, outputs, FeatureRequest::default(), received))
    }
}

impl TypedInput {
    fn decode(self, model: &ModelName) -> Result<(String, Tensor), ProtocolError> {
        let place = || format!("input '{}'", excerpt(&self.name));
        take_all(&mut InputParameters::default(), &place(), &self.parameters)?;
        let datatype = DataType::from_name(&self.datatype).ok_or_else(|| ProtocolError::InvalidDatatype {
            input: excerpt(&self.name),
            datatype: excerpt(&self.datatype),
        })?;
        let refused = |reason| ProtocolError::Shape { place: place(), reason };
        if self.shape.len() > RANK_MAX {
            return Err(refused("has more than 64 dimensions"));
        }
        let shape: Result<Vec<usize>, _> = self.shape.iter().map(|dim| usize::try_from(*dim)).collect();
        let shape = shape.map_err(|_| refused("has a negative dimension"))?;
        if element_count(&shape).is_none() {
            return Err(refused("has too many elements"));
        }
        let data = self.data.ok_or_else(|| ProtocolError::NoData { input: excerpt(&self.name) })?;
        let tensor = tensor(model, &self.name, datatype, shape, data)?;
        Ok((self.name, tensor))
    }
}

fn take_all(known: &mut impl KnownParameters, place: &str, values: &NamedValues) -> Result<(), ProtocolError> {
    values.iter().try_for_each(|(name, value)| known.take(name, value).map_err(|refused| refused.at(place, name)))
}
