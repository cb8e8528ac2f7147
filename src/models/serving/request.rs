//! What a caller asks of a model and what comes back, whatever the protocol.

use std::time::{Duration, Instant};

use bytes::Bytes;
use ledge_base::memory_budget::Account;
use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::tensor::Tensor;
use ledge_engine::backend::Runtime;
use ledge_features::online::{Columns, FieldStatus};
use ledge_features::value::Value;
use ledge_identity::access::ViewScope;

use crate::scheduling::terms::Priority;

/// An inference call. Valid as far as it can be without the model: its tensors fill their shapes.
#[derive(Debug, Clone)]
pub struct InferRequest {
    pub model: ModelName,
    /// The version asked for; `None` is the model's default.
    pub version: Option<ModelVersion>,
    pub inputs: Inputs,
    /// The outputs asked for, in the order of the answer; `None` is all.
    pub outputs: Option<Vec<OutputRequest>>,
    /// When the caller stops caring; `None` is the model's default.
    pub deadline: Option<Instant>,
    /// How urgent it is; `None` is the default.
    pub priority: Option<Priority>,
    /// What the inputs are made of that are not among [`Self::inputs`].
    pub features: FeatureRequest,
}

/// What a caller sends for inputs that are made of features.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FeatureRequest {
    /// Whose features: a column for each join key, with an element for each batch element.
    pub entities: Columns,
    /// Values that count in the place of the stored ones: a column for each `VIEW:FEATURE`.
    pub given: Columns,
    /// Whether the answer says which values were used.
    pub values_wanted: bool,
    /// The feature views whose values the answer may say.
    pub views: ViewScope,
}

impl FeatureRequest {
    /// Whether there is neither an entity nor a value.
    pub fn is_empty(&self) -> bool {
        self.entities.is_empty() && self.given.is_empty()
    }
}

/// A photograph to be classified.
#[derive(Debug, Clone)]
pub struct PhotographRequest {
    pub model: ModelName,
    /// The version asked for; `None` is the model's default.
    pub version: Option<ModelVersion>,
    /// JPEG, PNG or WebP, whole.
    pub photograph: Bytes,
    /// When the caller stops caring; `None` is the model's default.
    pub deadline: Option<Instant>,
    /// How urgent it is; `None` is the default.
    pub priority: Option<Priority>,
    /// Who pays for the decoded picture.
    pub account: Account,
}

/// The inputs of a call.
#[derive(Debug, Clone)]
pub enum Inputs {
    Named(Vec<(String, Tensor)>),
    /// The bytes of the model's only input, as one batch element (the protocol's raw binary request).
    Raw(Bytes),
}

impl Inputs {
    /// How many bytes they have.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Named(named) => named.iter().map(|(_, tensor)| tensor.data().len()).sum(),
            Self::Raw(bytes) => bytes.len(),
        }
    }

    /// How many batch elements they have, for a model whose first dimension is a batch.
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
#[derive(Debug, Clone)]
pub struct InferResponse {
    pub model: ModelName,
    pub version: ModelVersion,
    pub runtime: Runtime,
    /// The outputs, in the order asked for.
    pub outputs: Vec<(String, Tensor)>,
    pub timings: Timings,
    /// What the response cache did; `None` for a model without one.
    pub cache: Option<CacheOutcome>,
    /// The feature values that the inputs were made of, if the caller wanted to know.
    pub features: Vec<UsedFeature>,
}

/// One feature as it was used: a cell for each batch element.
#[derive(Debug, Clone, PartialEq)]
pub struct UsedFeature {
    /// `VIEW:FEATURE`.
    pub name: String,
    pub cells: Vec<UsedCell>,
}

/// One feature of one batch element.
#[derive(Debug, Clone, PartialEq)]
pub struct UsedCell {
    /// The value that counted; `None` is NaN.
    pub value: Option<Value>,
    /// What the store knew of it; PRESENT for a value that was given.
    pub status: FieldStatus,
    /// When the row happened that it comes from, in microseconds since the Unix epoch; 0 without a row.
    pub event_us: i64,
    /// Where the value comes from.
    pub source: ValueSource,
}

/// Where the value of a feature comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueSource {
    Store,
    Given,
    /// The default that the model has for its status.
    Default,
    /// The model takes what is not a number for its status.
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

/// What the response cache did for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheOutcome {
    Hit,
    Miss,
    /// An equal call was under way, and its answer is this one's too.
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

/// Where the time of one call went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    /// Decoding and preparing what people send (a photograph) into tensors. Zero for tensors.
    pub decode: Duration,
    pub queue: Duration,
    pub compute: Duration,
}
