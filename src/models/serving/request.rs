//! A request to a model and its response, the same for every protocol.

use std::time::{Duration, Instant};

use bytes::Bytes;
use ledge_base::memory_budget::{MemoryAccount, MemoryReservation};
use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::tensor::Tensor;
use ledge_engine::backend::Runtime;
use ledge_engine::pipeline::annotation::TextOutline;
use ledge_engine::pipeline::content::CallContent;
use ledge_engine::pipeline::detection::Detection;
use ledge_engine::pipeline::kind::PipelineKind;
use ledge_features::online::{FieldStatus, FrameColumns, bytes_of};
use ledge_features::value::Value;
use ledge_identity::access::ViewScope;
use serde_json::value::RawValue;

use crate::repository::LoadedModel;
use crate::scheduling::terms::Priority;

/// One call of a model, the same for every interface. Valid as far as it can be without the model: tensors fill
/// their shapes.
#[derive(Debug, Clone)]
pub struct InferRequest {
    pub payload: Payload,
    /// Time after which the caller no longer needs the answer; `None` is the model's default.
    pub deadline: Option<Instant>,
    /// Its priority; `None` is the default.
    pub priority: Option<Priority>,
    /// Account that decoded content and the answer are counted on.
    pub account: MemoryAccount,
}

/// The data that a caller sends to a model, and the form in which it wants the answer.
#[derive(Debug, Clone)]
pub enum Payload {
    /// Inputs of the model.
    Tensors(TensorPayload),
    /// Content for the model's pipeline.
    Content(CallContent, ResultForm),
}

impl Payload {
    /// The length of the inputs in bytes, without entity keys.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Tensors(tensors) => tensors.inputs.bytes(),
            Self::Content(content, _) => content.bytes(),
        }
    }
}

/// Tensors for the inputs of a model.
#[derive(Debug, Clone)]
pub struct TensorPayload {
    pub inputs: CallInputs,
    /// The outputs asked for, in the order of the answer; `None` is all.
    pub outputs: Option<Vec<OutputRequest>>,
    /// Entity keys and features for the inputs that are not among [`Self::inputs`].
    pub features: FeatureRequest,
}

/// Data that a caller sends for inputs that are made of features.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FeatureRequest {
    /// Entity keys: a column for each join key, with an element for each batch element.
    pub entities: FrameColumns,
    /// Values that replace the stored ones: a column for each `VIEW:FEATURE`.
    pub given: FrameColumns,
    /// True when the answer reports the values that were used.
    pub values_wanted: bool,
    /// The feature views of which the answer may report values.
    pub views: ViewScope,
}

impl FeatureRequest {
    /// True when there is neither an entity nor a value.
    pub fn is_empty(&self) -> bool {
        self.entities.is_empty() && self.given.is_empty()
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.entities.iter().chain(&self.given).map(|(_, cells)| cells.len()).max().unwrap_or(0)
    }

    /// Their length in memory, in bytes.
    pub fn bytes(&self) -> usize {
        if self.is_empty() { 0 } else { bytes_of(&self.entities) + bytes_of(&self.given) }
    }
}

/// The form in which a caller wants the result of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultForm {
    Json,
    /// Only tensors; JSON is not written.
    Tensors,
}

/// The inputs of a call.
#[derive(Debug, Clone)]
pub enum CallInputs {
    Named(Vec<(String, Tensor)>),
    /// The bytes of the model's only input, as one batch element (the protocol's raw binary request).
    Raw(Bytes),
}

impl CallInputs {
    /// Their length in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Named(named) => named.iter().map(|(_, tensor)| tensor.data().len()).sum(),
            Self::Raw(bytes) => bytes.len(),
        }
    }

    /// Number of batch elements, for a model with a batch dimension.
    pub fn batch(&self) -> usize {
        match self {
            Self::Named(named) => named.first().and_then(|(_, tensor)| tensor.shape().first().copied()).unwrap_or(1),
            Self::Raw(_) => 1,
        }
    }
}

/// One output asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputRequest {
    pub name: String,
    /// Instead of the tensor, its `n` highest values per batch element as `value:index[:label]`.
    pub classification: Option<usize>,
}

/// The answer to an inference call.
#[derive(Debug)]
pub struct InferResponse {
    pub model: ModelName,
    pub version: ModelVersion,
    pub runtime: Runtime,
    /// The outputs, in the order asked for.
    pub outputs: Vec<(String, Tensor)>,
    pub timings: Timings,
    /// Result of the response cache; `None` for a model without one.
    pub cache: Option<CacheOutcome>,
    /// The feature values that the inputs were made of, if the caller asked for them.
    pub features: Vec<UsedFeature>,
    /// Result that the model's pipeline made of the outputs, for a caller that wants JSON of it.
    pub result: Option<PipelineResult>,
    /// Memory of the outputs, counted while they exist.
    pub memory: MemoryReservation,
}

/// The result of a pipeline.
#[derive(Debug)]
pub struct PipelineResult {
    pub kind: &'static PipelineKind,
    pub json: Box<RawValue>,
}

impl InferResponse {
    /// The objects that the model found; `None` for a model that finds none.
    pub fn detections(&self) -> Option<Vec<Detection>> {
        let result = self.result.as_ref().filter(|result| result.kind.member == Detection::MEMBER)?;
        serde_json::from_str(result.json.get()).ok()
    }

    /// The objects that it found and does not report; see [`ledge_engine::pipeline::kind::Pipeline::unreported`].
    /// `model` is the version that answered.
    pub fn unreported(&self, model: &LoadedModel) -> Vec<Detection> {
        model.pipeline.as_ref().map_or_else(Vec::new, |pipeline| pipeline.unreported(&self.results()))
    }

    /// The texts that `model`, the version that answered, has read on a photograph, to draw; `None` for a model that
    /// reads none.
    pub fn texts(&self, model: &LoadedModel) -> Option<Vec<TextOutline>> {
        model.pipeline.as_ref()?.outlines(&self.results())
    }

    fn results(&self) -> Vec<&Tensor> {
        self.outputs.iter().map(|(_, tensor)| tensor).collect()
    }
}

/// One feature in an answer: a cell for each batch element.
#[derive(Debug, Clone, PartialEq)]
pub struct UsedFeature {
    /// `VIEW:FEATURE`.
    pub name: String,
    pub cells: Vec<UsedCell>,
}

/// One feature of one batch element.
#[derive(Debug, Clone, PartialEq)]
pub struct UsedCell {
    /// The value that was used; `None` is NaN.
    pub value: Option<Value>,
    /// Its status in the store; PRESENT for a value that the caller gave.
    pub status: FieldStatus,
    /// Event timestamp of its row, in microseconds since the Unix epoch; 0 without a row.
    pub event_us: i64,
    /// Source of the value.
    pub source: ValueSource,
}

/// Source of the value of a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueSource {
    Store,
    Given,
    /// The default of the model's config for its status.
    Default,
    /// NaN, as the model's config says for its status.
    Nan,
}

impl ValueSource {
    /// The word in answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Given => "given",
            Self::Default => "default",
            Self::Nan => "nan",
        }
    }
}

/// Result of the response cache for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheOutcome {
    Hit,
    Miss,
    /// An equal call was in progress, and its answer is used for this one too.
    Joined,
}

impl CacheOutcome {
    /// The word in headers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Joined => "joined",
        }
    }
}

/// Time spent in the parts of one call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timings {
    /// Decoding and preparing a photograph, or texts, into tensors. Zero for tensors.
    pub decode: Duration,
    pub queue: Duration,
    pub compute: Duration,
    /// Making results of the outputs. Zero where they are the results.
    pub postprocess: Duration,
    /// The CPU time of the run on its thread, with preparation and results; zero where it is not known, as when it was
    /// shared with other calls.
    pub cpu: Duration,
    /// The parts of a chain: the time on the clock in which each of its models worked, with making its inputs and
    /// reading its outputs.
    pub stages: Vec<(&'static str, Duration)>,
}
