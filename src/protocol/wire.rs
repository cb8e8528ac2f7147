//! The JSON of an inference request, read entry by entry in one pass (oip.md section 2).

use std::mem::replace;

use bytes::Bytes;
use ledge_base::memory_budget::{Account, SMALL};
use ledge_base::names::ModelName;
use ledge_base::tensor::Tensor;
use ledge_features::online::Columns;
use serde::de::{IgnoredAny, MapAccess, SeqAccess};

use self::columns::ColumnsReader;
use self::input::InputReader;
use super::cells::MOST_VALUES;
use super::error::{ProtocolError, excerpt};
use super::object::{self, Array, Failure, Fields, Items, Nullable, Object};
use super::parameters::{Known, OutputParameters, Parameters, RequestParameters};

mod columns;
mod input;

/// The most inputs or outputs of one request: far beyond any model, and a bound on what a hostile list costs.
const MAX_ENTRIES: usize = 1024;

/// An inference request as its JSON says it.
#[derive(Debug, Default)]
pub(super) struct Request {
    pub id: Option<String>,
    pub parameters: RequestParameters,
    pub inputs: Vec<(String, Tensor)>,
    /// Empty when absent.
    pub outputs: Vec<Output>,
    /// Whose features make inputs. Empty when absent, as the next one.
    pub entities: Columns,
    /// Values of features that count in the place of the stored ones.
    pub features: Columns,
}

/// An output asked for.
#[derive(Debug)]
pub(super) struct Output {
    pub name: String,
    pub parameters: OutputParameters,
}

/// Reads a request out of its JSON and the binary data behind it. Its tensors count as long as they are there.
pub(super) fn read(json: &[u8], binary: Bytes, model: &ModelName, account: &Account) -> Result<Request, ProtocolError> {
    let mut failure = Failure::default();
    // What is made of a little JSON is little, too.
    let account = (json.len() > SMALL).then_some(account);
    let source =
        Source { model, binary, json_length: json.len(), account, cells_left: MOST_VALUES, failure: &mut failure };
    let mut reader = RequestReader { source, request: Request::default(), seen: Seen::default() };
    let result = object::read(json, &mut reader);
    let RequestReader { source: Source { binary, .. }, request, seen } = reader;
    result.map_err(|error| failure.or(error))?;
    // Entity keys alone make a request, of a model whose inputs are made of features.
    if !seen.inputs && request.entities.is_empty() && request.features.is_empty() {
        return Err(ProtocolError::Missing { place: REQUEST.into(), key: "inputs" });
    }
    if !binary.is_empty() {
        return Err(ProtocolError::TrailingBinary { model: model.clone() });
    }
    Ok(request)
}

/// The place of top-level keys in messages.
const REQUEST: &str = "the request";

/// What readers share: where data comes from and where the reason of a refusal goes.
struct Source<'s> {
    model: &'s ModelName,
    /// Binary data not taken yet.
    binary: Bytes,
    json_length: usize,
    /// Who pays for tensors that are made of JSON, where they may be large.
    account: Option<&'s Account>,
    /// How many cells "entities" and "features" may still have.
    cells_left: usize,
    failure: &'s mut Failure,
}

impl Source<'_> {
    /// Reads the value of "parameters".
    fn parameters<'de, A: MapAccess<'de>, K: Known>(
        &mut self,
        place: &str,
        known: &mut K,
        map: &mut A,
    ) -> Result<(), A::Error> {
        let mut parameters = Parameters { place, known, failure: &mut *self.failure };
        let result = map.next_value_seed(Nullable(Object(&mut parameters)));
        self.failure.field(place, "parameters", result).map(|_| ())
    }

    /// Reads the value of "entities" or "features".
    fn columns<'de, A: MapAccess<'de>>(
        &mut self,
        key: &'static str,
        columns: &mut Columns,
        map: &mut A,
    ) -> Result<(), A::Error> {
        let mut reader = ColumnsReader { key, columns, left: &mut self.cells_left, failure: &mut *self.failure };
        let result = map.next_value_seed(Nullable(Object(&mut reader)));
        self.failure.field(REQUEST, key, result).map(|_| ())
    }
}

/// Which keys have been there; a key may be there and `null`.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "one for each key")]
struct Seen {
    id: bool,
    parameters: bool,
    inputs: bool,
    outputs: bool,
    entities: bool,
    features: bool,
}

struct RequestReader<'s> {
    source: Source<'s>,
    request: Request,
    seen: Seen,
}

impl<'de> Fields<'de> for RequestReader<'_> {
    const EXPECTED: &'static str = "an inference request object";

    fn field<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        let Self { source, request, seen } = self;
        match key {
            "id" => {
                source.failure.once(REQUEST, "id", replace(&mut seen.id, true))?;
                request.id = source.failure.field(REQUEST, "id", map.next_value())?;
            }
            "parameters" => {
                source.failure.once(REQUEST, "parameters", replace(&mut seen.parameters, true))?;
                source.parameters(REQUEST, &mut request.parameters, map)?;
            }
            "inputs" => {
                source.failure.once(REQUEST, "inputs", replace(&mut seen.inputs, true))?;
                let mut reader = InputsReader { source, inputs: &mut request.inputs };
                let result = map.next_value_seed(Array(&mut reader));
                source.failure.field(REQUEST, "inputs", result)?;
            }
            "outputs" => {
                source.failure.once(REQUEST, "outputs", replace(&mut seen.outputs, true))?;
                let mut reader = OutputsReader { source, outputs: &mut request.outputs };
                let result = map.next_value_seed(Nullable(Array(&mut reader)));
                source.failure.field(REQUEST, "outputs", result)?;
            }
            "entities" => {
                source.failure.once(REQUEST, "entities", replace(&mut seen.entities, true))?;
                source.columns("entities", &mut request.entities, map)?;
            }
            "features" => {
                source.failure.once(REQUEST, "features", replace(&mut seen.features, true))?;
                source.columns("features", &mut request.features, map)?;
            }
            _ => drop(map.next_value::<IgnoredAny>()?),
        }
        Ok(())
    }
}

struct InputsReader<'r, 's> {
    source: &'r mut Source<'s>,
    inputs: &'r mut Vec<(String, Tensor)>,
}

impl<'de> Items<'de> for InputsReader<'_, '_> {
    const EXPECTED: &'static str = "an array of inputs";

    fn item<A: SeqAccess<'de>>(&mut self, seq: &mut A) -> Result<bool, A::Error> {
        let index = self.inputs.len();
        let mut reader = InputReader::new(self.source, index);
        if seq.next_element_seed(Object(&mut reader))?.is_none() {
            return Ok(false);
        }
        let input = match reader.finish() {
            Ok(input) => input,
            Err(error) => return Err(self.source.failure.refuse(error)),
        };
        if index == MAX_ENTRIES {
            return Err(self.source.failure.refuse(ProtocolError::TooMany { key: "inputs", limit: MAX_ENTRIES }));
        }
        if self.inputs.iter().any(|(name, _)| *name == input.0) {
            return Err(self.source.failure.refuse(ProtocolError::DuplicateInput { input: excerpt(&input.0) }));
        }
        self.inputs.push(input);
        Ok(true)
    }
}

struct OutputsReader<'r, 's> {
    source: &'r mut Source<'s>,
    outputs: &'r mut Vec<Output>,
}

impl<'de> Items<'de> for OutputsReader<'_, '_> {
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
        if seq.next_element_seed(Object(&mut reader))?.is_none() {
            return Ok(false);
        }
        let OutputReader { place, name, parameters, .. } = reader;
        let error = match name {
            None => ProtocolError::Missing { place, key: "name" },
            Some(_) if index == MAX_ENTRIES => ProtocolError::TooMany { key: "outputs", limit: MAX_ENTRIES },
            Some(name) if self.outputs.iter().any(|output| output.name == name) => {
                ProtocolError::DuplicateOutput { output: excerpt(&name) }
            }
            Some(name) => {
                self.outputs.push(Output { name, parameters });
                return Ok(true);
            }
        };
        Err(self.source.failure.refuse(error))
    }
}

struct OutputReader<'r, 's> {
    source: &'r mut Source<'s>,
    /// Which output, for messages: by number until its name is read.
    place: String,
    name: Option<String>,
    parameters: OutputParameters,
    has_parameters: bool,
}

impl<'de> Fields<'de> for OutputReader<'_, '_> {
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
