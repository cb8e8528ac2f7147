//! Extracts the input of a model from a message, and the published part from an answer. Pure.

use std::collections::BTreeMap;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use ledge_base::serde_messages::in_json;
use ledge_engine::backend::{ModelPort, ModelSignature};
use ledge_engine::pipeline::content::PipelineInput;
use ledge_features::online::FrameColumns;
use ledge_models::repository::LoadedModel;
use ledge_protocol::call::BodyKind;
use serde_json::{Value, json};

use super::error::BindingError;
use super::value_kind::ValueKind;
use crate::field_path::FieldPath;

/// Base64 as devices write it: some leave out the padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The input that a binding takes from a message.
#[derive(Debug, Clone, PartialEq)]
pub enum ExtractedInput {
    /// A photograph, a text, or an inference request as the protocol has it.
    Body(Bytes, BodyKind),
    /// The elements of each input, of which [`request_of_rows`] makes a request.
    Rows(Vec<(String, Vec<Value>)>),
    /// The message is the value of this column or input, of which [`request_of_value`] makes a request.
    Value(String),
}

/// The photograph at `path`, in base64 or as a `data:` URL (RFC 2397).
pub(super) fn photograph(path: &FieldPath, payload: &Bytes) -> Result<ExtractedInput, BindingError> {
    let document = parse("message", payload)?;
    let value = find("message", path, &document)?;
    let Value::String(text) = value else {
        return Err(kind(path, value, "a text with a photograph in base64"));
    };
    let is_url = text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"));
    let digits = match text.split_once(',') {
        Some((head, data)) if is_url && head.to_ascii_lowercase().ends_with(";base64") => data,
        _ if is_url => {
            let reason = "the data: URL has no ';base64,' in it".to_owned();
            return Err(BindingError::NotBase64 { path: path.to_string(), reason });
        }
        _ => text,
    };
    let decoded = if digits.contains(|c: char| c.is_ascii_whitespace()) {
        BASE64.decode(digits.split_ascii_whitespace().collect::<String>())
    } else {
        BASE64.decode(digits)
    };
    match decoded {
        Ok(photograph) => Ok(ExtractedInput::Body(photograph.into(), BodyKind::Photograph)),
        Err(error) => Err(BindingError::NotBase64 { path: path.to_string(), reason: error.to_string() }),
    }
}

/// The text at `path`.
pub(super) fn text(path: &FieldPath, payload: &Bytes) -> Result<ExtractedInput, BindingError> {
    let document = parse("message", payload)?;
    match find("message", path, &document)? {
        Value::String(text) => Ok(ExtractedInput::Body(text.clone().into(), BodyKind::Text)),
        other => Err(kind(path, other, "a text")),
    }
}

/// The elements of each input.
pub(super) fn rows(inputs: &BTreeMap<String, Vec<FieldPath>>, payload: &Bytes) -> Result<ExtractedInput, BindingError> {
    const EXPECTED: &str = "a number, a text, true or false, or an array of them";
    let document = parse("message", payload)?;
    let mut rows = Vec::new();
    for (name, paths) in inputs {
        let mut row = Vec::new();
        for path in paths {
            let value = find("message", path, &document)?;
            match value {
                Value::Array(elements) => match elements.iter().find(|element| !is_element(element)) {
                    Some(Value::Array(_)) => {
                        return Err(kind(path, &Value::Array(Vec::new()), "an array of elements, not of arrays"));
                    }
                    Some(other) => return Err(kind(path, other, EXPECTED)),
                    None => row.extend(elements.iter().cloned()),
                },
                _ if is_element(value) => row.push(value.clone()),
                _ => return Err(kind(path, value, EXPECTED)),
            }
        }
        rows.push((name.clone(), row));
    }
    Ok(ExtractedInput::Rows(rows))
}

/// The request, in the JSON of the Open Inference Protocol, for one row of each input, and for the entities whose
/// features make the other inputs.
///
/// It is JSON so that the protocol's decoder reads the elements as the datatypes of the model, and reports mistakes.
/// Nothing is lost on the way: a number is written so that it reads the same again.
pub fn request_of_rows(
    rows: &[(String, Vec<Value>)],
    signature: &ModelSignature,
    entities: FrameColumns,
) -> Result<Bytes, BindingError> {
    let input = |(name, row): &(String, Vec<Value>)| {
        let port = signature.inputs.iter().find(|port| port.name == *name).ok_or_else(|| BindingError::Input {
            name: name.clone(),
            known: signature.inputs.iter().map(|port| port.name.clone()).collect(),
        })?;
        let shape = shape(port, row.len());
        Ok(json!({"name": name, "shape": shape, "datatype": port.datatype.as_str(), "data": row}))
    };
    let inputs: Vec<Value> = rows.iter().map(input).collect::<Result<_, _>>()?;
    let request = if entities.is_empty() {
        json!({"inputs": inputs})
    } else {
        let entities = entities.into_iter().map(|(name, cells)| (name, Value::Array(cells)));
        json!({"inputs": inputs, "entities": entities.collect::<serde_json::Map<_, _>>()})
    };
    Ok(request.to_string().into())
}

/// The request for a message that is the value `name`: a row for a model of a table, or the only element of an input.
/// Entity keys are for the columns or inputs that the feature store fills.
pub fn request_of_value(
    name: &str,
    payload: &Bytes,
    model: &LoadedModel,
    entities: FrameColumns,
) -> Result<Bytes, BindingError> {
    let section = model.config.pipeline.section().filter(|section| section.kind().input == PipelineInput::Rows);
    if let Some((section, pipeline)) = section.zip(model.pipeline.as_ref()) {
        let kind = section.column_type(name).ok_or_else(|| BindingError::Column { name: name.into() })?;
        let value = ValueKind::of_column(kind).read(name, payload)?;
        // The entity keys may be there only for the columns of the feature store, or be columns themselves.
        let is_taken = |key: &str| pipeline.has_column(key) || !pipeline.feature_columns().is_empty();
        let keys = entities.into_iter().filter(|(key, _)| is_taken(key));
        let keys = keys.filter_map(|(key, cells)| Some((key, cells.into_iter().next()?)));
        let row: Value = keys.chain([(name.to_owned(), value)]).collect();
        return Ok(row.to_string().into());
    }
    let port = model.signature.inputs.iter().find(|port| port.name == name);
    let kind = port.map_or(ValueKind::Text, |port| ValueKind::of_datatype(port.datatype));
    let row = vec![kind.read(name, payload)?];
    let entities = if model.config.has_features() { entities } else { FrameColumns::new() };
    request_of_rows(&[(name.to_owned(), row)], &model.signature, entities)
}

/// The shape of one row of `count` elements: `[1, count]`, unless the input has one dimension, or several of fixed
/// sizes with as many elements.
fn shape(port: &ModelPort, count: usize) -> Vec<usize> {
    match port.shape.as_slice() {
        [_] => vec![count],
        [_, inner @ ..] if inner.len() > 1 => {
            let fixed: Option<Vec<usize>> = inner.iter().map(|dim| usize::try_from(*dim).ok()).collect();
            match fixed {
                Some(fixed) if ledge_base::tensor::element_count(&fixed) == Some(count) => [vec![1], fixed].concat(),
                _ => vec![1, count],
            }
        }
        _ => vec![1, count],
    }
}

/// The part of an answer at `path`: a text without quotes, anything else as JSON.
pub(super) fn select(path: &FieldPath, answer: &Bytes) -> Result<Bytes, BindingError> {
    let document = parse("answer", answer)?;
    Ok(match find("answer", path, &document)? {
        Value::String(text) => text.clone().into(),
        value => value.to_string().into(),
    })
}

pub(super) fn parse(what: &'static str, text: &[u8]) -> Result<Value, BindingError> {
    serde_json::from_slice(text).map_err(|error| BindingError::NotJson { what, reason: in_json(&error.to_string()) })
}

pub(super) fn find<'v>(what: &'static str, path: &FieldPath, document: &'v Value) -> Result<&'v Value, BindingError> {
    path.find(document).ok_or_else(|| BindingError::Absent { what, path: path.to_string() })
}

fn is_element(value: &Value) -> bool {
    value.is_number() || value.is_string() || value.is_boolean()
}

pub(super) fn kind(path: &FieldPath, found: &Value, expected: &'static str) -> BindingError {
    let found = match found {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    BindingError::Kind { path: path.to_string(), found, expected }
}
