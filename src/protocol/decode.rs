//! Decoding of an inference request from its bytes.

use std::time::Instant;

use bytes::Bytes;
use ledge_base::memory_budget::MemoryAccount;
use ledge_base::names::{InvalidName, ModelName, ModelVersion};
use ledge_base::tensor::Tensor;
use ledge_identity::access::ViewScope;
use ledge_models::scheduling::terms::Priority;
use ledge_models::serving::request::{CallInputs, FeatureRequest, OutputRequest, TensorPayload};
use ledge_part::api_error::{ApiError, StatusCode};

use super::error::{ProtocolError, excerpt};
use super::parameters::RequestParameters;
use super::wire::{self, RequestedOutput};

/// The model that a request is for, as its path or topic says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelTarget {
    pub model: ModelName,
    /// The version; `None` is the model's default.
    pub version: Option<ModelVersion>,
}

impl ModelTarget {
    /// Reads a model and a version. A text that is not a version is answered like an unknown version.
    pub fn parse(model: &str, version: Option<&str>) -> Result<Self, ApiError> {
        let failure = |status, error: InvalidName| ApiError::new(status, error.to_string());
        let version = version.map(str::parse::<ModelVersion>).transpose();
        Ok(Self {
            model: model.parse().map_err(|error| failure(StatusCode::BAD_REQUEST, error))?,
            version: version.map_err(|error| failure(StatusCode::NOT_FOUND, error))?,
        })
    }
}

/// A request, and the options that concern its answer.
#[derive(Debug, Clone)]
pub struct DecodedRequest {
    /// The client's id, echoed when given.
    pub id: Option<String>,
    pub tensors: TensorPayload,
    /// The deadline of its parameter "timeout".
    pub deadline: Option<Instant>,
    /// The priority of its parameters.
    pub priority: Option<Priority>,
    /// Form in which the outputs are written.
    pub reply: ReplyFormat,
}

/// Choice of binary or JSON for each output.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplyFormat {
    /// True when outputs that are not named below are binary.
    pub binary: bool,
    /// Outputs for which the request chooses, with true for binary.
    pub named: Vec<(String, bool)>,
}

impl ReplyFormat {
    /// Every output in JSON.
    pub const JSON: Self = Self { binary: false, named: Vec::new() };
    /// Every output binary.
    pub const BINARY: Self = Self { binary: true, named: Vec::new() };

    /// True when `output` is written as binary.
    pub fn is_binary(&self, output: &str) -> bool {
        self.named.iter().find(|(name, _)| name == output).map_or(self.binary, |(_, binary)| *binary)
    }
}

/// Reads the value of the header `Inference-Header-Content-Length`, in bytes.
pub fn parse_header_length(value: &[u8]) -> Result<usize, ProtocolError> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let number = if digits { std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()) } else { None };
    number.ok_or_else(|| ProtocolError::HeaderLength { value: excerpt(&String::from_utf8_lossy(value)) })
}

/// Decodes an inference request.
///
/// `header_length` is the length of the JSON in bytes: `None` when the whole body is JSON, `Some(0)` for a raw binary
/// request: the whole body is the only input, and all outputs are binary. The parameter "timeout" (microseconds) counts
/// from `received`. "entities" and "features" are Ledge's own: entity keys for the inputs that are not sent, and values
/// that replace the stored ones. An empty list of outputs asks for all of them, as in gRPC.
pub fn decode_request(
    model: &ModelName,
    body: Bytes,
    header_length: Option<usize>,
    received: Instant,
) -> Result<DecodedRequest, ProtocolError> {
    decode_within(model, body, header_length, received, &MemoryAccount::unlimited())
}

/// [`decode_request`] within the memory budget: everything made from the body is counted while it exists.
pub fn decode_within(
    model: &ModelName,
    body: Bytes,
    header_length: Option<usize>,
    received: Instant,
    account: &MemoryAccount,
) -> Result<DecodedRequest, ProtocolError> {
    if header_length == Some(0) {
        let tensors =
            TensorPayload { inputs: CallInputs::Raw(body), outputs: None, features: FeatureRequest::default() };
        let reply = ReplyFormat::BINARY;
        return Ok(DecodedRequest { id: None, tensors, deadline: None, priority: None, reply });
    }
    let length = header_length.unwrap_or(body.len());
    if length > body.len() {
        return Err(ProtocolError::HeaderRange { length, body: body.len() });
    }
    let mut binary = body;
    let json = binary.split_to(length);
    let wire::WireRequest { id, parameters, inputs, outputs, entities, features } =
        wire::read(&json, binary, model, account)?;

    let features = FeatureRequest {
        entities,
        given: features,
        values_wanted: parameters.feature_values.unwrap_or(false),
        views: ViewScope::default(),
    };
    Ok(decoded(id, &parameters, inputs, outputs, features, received))
}

/// The request of its parts, each of which is checked.
pub(super) fn decoded(
    id: Option<String>,
    parameters: &RequestParameters,
    inputs: Vec<(String, Tensor)>,
    outputs: Vec<RequestedOutput>,
    features: FeatureRequest,
    received: Instant,
) -> DecodedRequest {
    let named = outputs.iter().filter_map(|o| Some((o.name.clone(), o.parameters.binary_data?))).collect();
    let reply = ReplyFormat { binary: parameters.binary_data_output.unwrap_or(false), named };
    let wanted = outputs.into_iter().map(|output| OutputRequest {
        name: output.name,
        classification: output.parameters.classification.filter(|classes| *classes > 0),
    });
    let wanted: Vec<_> = wanted.collect();
    DecodedRequest {
        id,
        tensors: TensorPayload {
            inputs: CallInputs::Named(inputs),
            outputs: (!wanted.is_empty()).then_some(wanted),
            features,
        },
        // A deadline beyond the range of the clock counts as no deadline.
        deadline: parameters.timeout.filter(|timeout| !timeout.is_zero()).and_then(|t| received.checked_add(t)),
        priority: parameters.priority.map(Priority::from_level),
        reply,
    }
}

#[cfg(test)]
mod tests;
