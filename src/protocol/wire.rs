//! The JSON of an inference request, read entry by entry in one pass.

use std::mem::replace;

use bytes::Bytes;
use ledge_base::memory_budget::{MemoryAccount, UNCOUNTED_BYTES_MAX};
use ledge_base::names::ModelName;
use ledge_base::tensor::Tensor;
use ledge_features::online::FrameColumns;
use serde::de::{IgnoredAny, MapAccess, SeqAccess};

use self::input::InputReader;
pub(super) use self::input::{RANK_MAX, tensor};
use super::cells::REQUEST_VALUES_MAX;
use super::error::{ProtocolError, excerpt};
use super::object::{self, ArrayItems, ArraySeed, FirstError, NullableSeed, ObjectFields, ObjectSeed};
use super::parameters::{OutputParameters, RequestParameters};
pub(super) use columns::ENTRIES_MAX;
use data_source::{REQUEST_PLACE, RequestReadState};

mod columns;
mod data_source;
mod input;

/// An inference request, as in its JSON.
#[derive(Debug, Default)]
pub(super) struct WireRequest {
    pub id: Option<String>,
    pub parameters: RequestParameters,
    pub inputs: Vec<(String, Tensor)>,
    /// Empty when absent.
    pub outputs: Vec<RequestedOutput>,
    /// Entity keys for inputs made of features. Empty when absent, like the next field.
    pub entities: FrameColumns,
    /// Values of features that replace the stored ones.
    pub features: FrameColumns,
}

/// An output asked for.
#[derive(Debug)]
pub(super) struct RequestedOutput {
    pub name: String,
    pub parameters: OutputParameters,
}

/// Reads a request from its JSON and the binary data after it. Its tensors are counted while they exist.
pub(super) fn read(
    json: &[u8],
    binary: Bytes,
    model: &ModelName,
    account: &MemoryAccount,
) -> Result<WireRequest, ProtocolError> {
    let mut failure = FirstError::default();
    // A short JSON decodes to little data, which is not counted.
    let account = (json.len() > UNCOUNTED_BYTES_MAX).then_some(account);
    let source = RequestReadState {
        model,
        binary,
        json_length: json.len(),
        account,
        cells_left: REQUEST_VALUES_MAX,
        failure: &mut failure,
    };
    let mut reader = RequestReader { source, request: WireRequest::default(), seen: SeenRequestKeys::default() };
    let result = object::read(json, &mut reader);
    let RequestReader { source: RequestReadState { binary, .. }, request, seen } = reader;
    result.map_err(|error| failure.or(error))?;
    // For a model with inputs that are made from features, entity keys are enough.
    if !seen.inputs && request.entities.is_empty() && request.features.is_empty() {
        return Err(ProtocolError::Missing { place: REQUEST_PLACE.into(), key: "inputs" });
    }
    if !binary.is_empty() {
        return Err(ProtocolError::TrailingBinary { model: model.clone() });
    }
    Ok(request)
}

/// The keys that have been read; a key may be there and `null`.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "one for each key")]
struct SeenRequestKeys {
    id: bool,
    parameters: bool,
    inputs: bool,
    outputs: bool,
    entities: bool,
    features: bool,
}

struct RequestReader<'s> {
    source: RequestReadState<'s>,
    request: WireRequest,
    seen: SeenRequestKeys,
}

impl<'de> ObjectFields<'de> for RequestReader<'_> {
    const EXPECTED: &'static str = "an inference request object";

    fn field<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        let Self { source, request, seen } = self;
        match key {
            "id" => {
                source.failure.once(REQUEST_PLACE, "id", replace(&mut seen.id, true))?;
                request.id = source.failure.field(REQUEST_PLACE, "id", map.next_value())?;
            }
            "parameters" => {
                source.failure.once(REQUEST_PLACE, "parameters", replace(&mut seen.parameters, true))?;
                source.parameters(REQUEST_PLACE, &mut request.parameters, map)?;
            }
            "inputs" => {
                source.failure.once(REQUEST_PLACE, "inputs", replace(&mut seen.inputs, true))?;
                let mut reader = InputsReader { source, inputs: &mut request.inputs };
                let result = map.next_value_seed(ArraySeed(&mut reader));
                source.failure.field(REQUEST_PLACE, "inputs", result)?;
            }
            "outputs" => {
                source.failure.once(REQUEST_PLACE, "outputs", replace(&mut seen.outputs, true))?;
                let mut reader = OutputsReader { source, outputs: &mut request.outputs };
                let result = map.next_value_seed(NullableSeed(ArraySeed(&mut reader)));
                source.failure.field(REQUEST_PLACE, "outputs", result)?;
            }
            "entities" => {
                source.failure.once(REQUEST_PLACE, "entities", replace(&mut seen.entities, true))?;
                source.columns("entities", &mut request.entities, map)?;
            }
            "features" => {
                source.failure.once(REQUEST_PLACE, "features", replace(&mut seen.features, true))?;
                source.columns("features", &mut request.features, map)?;
            }
            _ => drop(map.next_value::<IgnoredAny>()?),
        }
        Ok(())
    }
}

struct InputsReader<'r, 's> {
    source: &'r mut RequestReadState<'s>,
    inputs: &'r mut Vec<(String, Tensor)>,
}

impl<'de> ArrayItems<'de> for InputsReader<'_, '_> {
    const EXPECTED: &'static str = "an array of inputs";

    fn item<A: SeqAccess<'de>>(&mut self, seq: &mut A) -> Result<bool, A::Error> {
        let index = self.inputs.len();
        let mut reader = InputReader::new(self.source, index);
        if seq.next_element_seed(ObjectSeed(&mut reader))?.is_none() {
            return Ok(false);
        }
        let input = match reader.finish() {
            Ok(input) => input,
            Err(error) => return Err(self.source.failure.refuse(error)),
        };
        if index == ENTRIES_MAX {
            return Err(self.source.failure.refuse(ProtocolError::TooMany { key: "inputs", limit: ENTRIES_MAX }));
        }
        if self.inputs.iter().any(|(name, _)| *name == input.0) {
            return Err(self.source.failure.refuse(ProtocolError::DuplicateInput { input: excerpt(&input.0) }));
        }
        self.inputs.push(input);
        Ok(true)
    }
}

struct OutputsReader<'r, 's> {
    source: &'r mut RequestReadState<'s>,
    outputs: &'r mut Vec<RequestedOutput>,
}

impl<'de> ArrayItems<'de> for OutputsReader<'_, '_> {
    const EXPECTED: &'static str = "an array of outputs";

    fn item<A: SeqAccess<'de>>(&mut self, seq: &mut A) -> Result<bool, A::Error> {
        let index = self.outputs.len();
        let mut reader = OutputReader {
            source: self.source,
            place: format!("output #{index}"),
            name: None,
            parameters: OutputParameters::default(),
            has_parameters: false,
        };
        if seq.next_element_seed(ObjectSeed(&mut reader))?.is_none() {
            return Ok(false);
        }
        let OutputReader { place, name, parameters, .. } = reader;
        let error = match name {
            None => ProtocolError::Missing { place, key: "name" },
            Some(_) if index == ENTRIES_MAX => ProtocolError::TooMany { key: "outputs", limit: ENTRIES_MAX },
            Some(name) if self.outputs.iter().any(|output| output.name == name) => {
                ProtocolError::DuplicateOutput { output: excerpt(&name) }
            }
            Some(name) => {
                self.outputs.push(RequestedOutput { name, parameters });
                return Ok(true);
            }
        };
        Err(self.source.failure.refuse(error))
    }
}

struct OutputReader<'r, 's> {
    source: &'r mut RequestReadState<'s>,
    /// The output in messages: its number until its name is read.
    place: String,
    name: Option<String>,
    parameters: OutputParameters,
    has_parameters: bool,
}

impl<'de> ObjectFields<'de> for OutputReader<'_, '_> {
    const EXPECTED: &'static str = "an output object";

    fn field<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "name" => {
                self.source.failure.once(&self.place, "name", self.name.is_some())?;
                let name: String = self.source.failure.field(&self.place, "name", map.next_value())?;
                self.place = format!("output '{}'", excerpt(&name));
                self.name = Some(name);
            }
            "parameters" => {
                self.source.failure.once(&self.place, "parameters", replace(&mut self.has_parameters, true))?;
                self.source.parameters(&self.place, &mut self.parameters, map)?;
            }
            _ => drop(map.next_value::<IgnoredAny>()?),
        }
        Ok(())
    }
}
