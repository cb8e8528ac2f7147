//! The interface between a pipeline kind and the rest of Ledge: what a kind provides, and what it gets.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use ledge_base::memory_budget::MemoryReservation;
use ledge_base::tensor::Tensor;
use ledge_base::toml_check::ValueProblem;
use schemars::{Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::annotation::TextOutline;
use super::chain::{LeaseId, ModelChain};
use super::content::{CallContent, ContentDivision, PipelineInput};
use super::detection::Detection;
pub use super::error::{PostprocessError, PreprocessError};
use super::image::{self, DecodeLimits, ImageError, Photograph};
use super::ocr::fields::DocumentFieldDeclaration;
use super::preparation::ImagePreparation;
pub use super::prepared_inputs::{Postprocess, PreprocessedInputs};
use super::quantization::Quantization;
use super::table::ColumnType;
pub use super::table::FeatureColumn;
use crate::backend::{ModelPort, ModelSignature};

/// A line of the table of kinds: the facts about a kind that need no model.
#[derive(Debug, Clone, Copy)]
pub struct PipelineKind {
    /// The name of its section: `[pipeline.NAME]` in `model.toml`.
    pub name: &'static str,
    pub input: PipelineInput,
    /// The models of a chain, the first of which always exists; empty for a pipeline of one model.
    pub models: &'static [ChainModel],
    /// The member of the JSON answer that holds the result. Kinds may share one, with the same schema. Never `outputs`,
    /// the member of an answer in tensors.
    pub member: &'static str,
    /// The JSON Schema of that member.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
    /// Makes a plain text of the results of a call, for a caller that prefers it to JSON; `None` for a kind without
    /// one.
    pub text: Option<ResultsToText>,
    /// True when the result is a list with the best part first, of which `ledge infer --top` keeps the first ones.
    pub is_ranked: bool,
    /// The rows that `ledge infer` prints for a result.
    pub rows: fn(&Value) -> Vec<PrintedRow>,
}

/// Makes a plain text of results.
pub type ResultsToText = fn(&[&Tensor]) -> String;

impl PipelineKind {
    /// True for one that runs several models.
    pub fn is_chain(&self) -> bool {
        !self.models.is_empty()
    }
}

/// A row that `ledge infer` prints.
#[derive(Debug, Clone, PartialEq)]
pub struct PrintedRow {
    pub score: Option<f64>,
    pub text: String,
}

/// The section of a kind in `model.toml`, as it was read.
pub trait PipelineSection: fmt::Debug {
    /// The kind's line of the table.
    fn kind(&self) -> &'static PipelineKind;

    /// The files of the model's folder that the pipeline needs, each as its key in the section and its name.
    fn files(&self) -> Vec<(&'static str, &str)> {
        Vec::new()
    }

    /// The type of a column of the rows; `None` for an unknown column.
    fn column_type(&self, _name: &str) -> Option<ColumnType> {
        None
    }

    /// The columns of a row, in the order of the section; empty for a kind that reads no rows.
    fn columns(&self) -> Vec<&str> {
        Vec::new()
    }

    /// The columns that a row must have, because neither a rule nor the feature store fills them.
    fn required_columns(&self) -> Vec<&str> {
        Vec::new()
    }

    /// The mistakes that the section's types let through, each with its key in the section.
    fn mistakes(&self) -> Vec<ValueProblem>;

    /// The pipeline for `model`, or the reason why the section does not fit the model's tensors.
    fn bind(&self, model: ModelFacts<'_>) -> Result<Arc<dyn Pipeline>, String>;
}

/// One of the models of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainModel {
    /// The stem of its file in the folder of a version, as in `find.onnx`.
    pub name: &'static str,
    /// Set when the chain works without it.
    pub is_optional: bool,
}

/// A pipeline bound to one loaded model: it makes the inputs of a run, and an answer of its outputs.
pub trait Pipeline: fmt::Debug + Send + Sync {
    /// The kind's line of the table.
    fn kind(&self) -> &'static PipelineKind;

    /// An input that this pipeline can answer, for the check of the model at its load.
    fn sample(&self) -> CallContent {
        self.kind().input.sample()
    }

    /// The part of a pipeline that runs several models; `None` for one that runs one. With it, [`Self::divide`] and
    /// [`Self::prepare`] are not called.
    fn chain(&self) -> Option<&dyn ModelChain> {
        None
    }

    /// Divides a content that is too much for one run into parts, each of which is run and answered by itself, with a
    /// row of each result for each input. `None` for one run.
    fn divide(&self, _content: &CallContent) -> Option<ContentDivision> {
        None
    }

    /// The columns of rows that the feature store fills where a row leaves them out.
    fn feature_columns(&self) -> &[FeatureColumn] {
        &[]
    }

    /// True for a column that rows have.
    fn has_column(&self, _name: &str) -> bool {
        false
    }

    /// The memory in bytes that [`Self::prepare`] takes for this content, as far as it is known in advance. The daemon
    /// reserves it when another process prepares the content.
    fn memory_of(&self, content: &CallContent, _limits: DecodeLimits) -> usize {
        match content {
            CallContent::Texts(_) | CallContent::Rows(_) => content.bytes().saturating_mul(TREE_BYTES),
            // A kind that decodes files counts them itself.
            _ => 0,
        }
    }

    /// Makes the model's inputs, in the signature's order, from the content that a caller sent. Called on a worker's
    /// core. `hold` reserves the memory of large intermediate results.
    fn prepare(
        &self,
        content: &CallContent,
        limits: DecodeLimits,
        hold: &mut MemoryReservation,
    ) -> Result<PreprocessedInputs, PreprocessError>;

    /// The number by which other processes know it, where the models run in those; see the crate `isolation`.
    fn remote_id(&self) -> Option<u64> {
        None
    }

    /// Frees the state of a lease of its chain, wherever it is.
    fn release(&self, lease: LeaseId) {
        if let Some(chain) = self.chain() {
            chain.release(lease);
        }
    }

    /// The outputs of the run that the answer needs, as positions in the signature.
    fn outputs(&self) -> &[usize];

    /// The output that holds the scores of classes, if there is one, as a position in the signature. The number of its
    /// classes is compared with its labels, and an update compares the best class of two versions.
    fn scores(&self) -> Option<usize> {
        None
    }

    /// The names of the results, where they are not outputs of the model.
    fn results(&self) -> Option<&'static [&'static str]> {
        None
    }

    /// The objects that a kind finds in photographs; `None` for other kinds.
    fn detections(&self, _results: &[&Tensor]) -> Option<Vec<Detection>> {
        None
    }

    /// The objects that [`Self::detections`] leaves out because their score is too low, their label is not wanted, or
    /// there are too many. An object that is to be blurred is blurred all the same.
    fn unreported(&self, _results: &[&Tensor]) -> Vec<Detection> {
        Vec::new()
    }

    /// The texts on the photograph or the first page, to draw; `None` for other kinds.
    fn outlines(&self, _results: &[&Tensor]) -> Option<Vec<TextOutline>> {
        None
    }

    /// The value of the answer's [`PipelineKind::member`], made from the results: those of
    /// [`PreprocessedInputs::postprocess`], or the outputs in the order of [`Self::outputs`].
    fn answer(&self, results: &[&Tensor]) -> Result<Box<RawValue>, PostprocessError>;

    /// Compares the answer with the one that a golden input expects; the reason when they differ.
    fn judge(&self, results: &[&Tensor], expected: GoldenExpectation<'_>) -> Result<(), String>;
}

/// The answer that a golden input expects, besides its outputs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GoldenExpectation<'e> {
    pub label: Option<&'e str>,
    pub min_score: Option<f32>,
    /// The objects that must be found. With an empty list, no object may be found.
    pub detections: Option<&'e [ExpectedDetection]>,
    /// The words that must be read.
    pub words: Option<&'e [String]>,
}

/// An object that a golden photograph shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedDetection {
    pub label: String,
    /// x, y, width and height, in pixels of the photograph.
    #[serde(rename = "box")]
    pub area: [f64; 4],
    /// The least intersection over union with the detected box, 0 to 1; 0.7 by default.
    #[serde(default = "seven_tenths")]
    pub min_iou: f64,
    /// The least score, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_score: Option<f32>,
}

fn seven_tenths() -> f64 {
    0.7
}

impl ExpectedDetection {
    /// The mistake that types let through, if there is one.
    pub fn mistake(&self) -> Option<String> {
        let [x, y, width, height] = self.area;
        let is_box = [x, y].iter().all(|start| start.is_finite() && *start >= 0.0)
            && [width, height].iter().all(|side| side.is_finite() && *side > 0.0);
        if !is_box {
            return Some(format!("the box {:?} is no [x, y, width, height] in pixels", self.area));
        }
        let shares = [("min_iou", Some(self.min_iou)), ("min_score", self.min_score.map(f64::from))];
        let wrong = shares.into_iter().find(|(_, share)| share.is_some_and(|share| !(0.0..=1.0).contains(&share)));
        wrong.map(|(key, _)| format!("{key} of {:?} is not 0 to 1", self.label))
    }
}

/// The facts about a loaded model that a pipeline may use.
#[derive(Debug, Clone, Copy)]
pub struct ModelFacts<'m> {
    pub signature: &'m ModelSignature,
    /// The class names of outputs, by output name.
    pub labels: &'m HashMap<String, Arc<[String]>>,
    /// The quantization of inputs and outputs, by name, where it is known.
    pub quantization: &'m HashMap<String, Quantization>,
    /// The content of the files that the section names, by their names.
    pub files: &'m HashMap<String, Bytes>,
    /// The signatures of the models of a chain, by the names of the parts.
    pub parts: &'m HashMap<String, ModelSignature>,
    /// The metadata of their ONNX files, by the names of the parts.
    pub part_metadata: &'m HashMap<String, HashMap<String, String>>,
    /// `[[field]]` of `model.toml`.
    pub fields: &'m [DocumentFieldDeclaration],
}

impl<'m> ModelFacts<'m> {
    /// The input that the key `input` of a section names, or the only one.
    pub fn input(self, kind: &PipelineKind, name: Option<&str>) -> Result<(usize, &'m ModelPort), String> {
        find(kind, "input", "input", &self.signature.inputs, name)
    }

    /// The output that the key `output` of a section names, or the only one.
    pub fn output(self, kind: &PipelineKind, name: Option<&str>) -> Result<(usize, &'m ModelPort), String> {
        find(kind, "output", "output", &self.signature.outputs, name)
    }
}

/// The port that the key `key` of a kind's section names, or the only one. `what` is "input" or "output".
pub(super) fn find<'m>(
    kind: &PipelineKind,
    key: &str,
    what: &str,
    ports: &'m [ModelPort],
    name: Option<&str>,
) -> Result<(usize, &'m ModelPort), String> {
    let kind = kind.name;
    let mut numbered = ports.iter().enumerate();
    match (name, ports) {
        (Some(name), _) => numbered
            .find(|(_, port)| port.name == name)
            .ok_or_else(|| format!("pipeline.{kind}.{key} names {name:?}, which the model lacks")),
        (None, [only]) => Ok((0, only)),
        (None, _) => Err(format!("the model has {} {what}s: pipeline.{kind}.{key} must name one", ports.len())),
    }
}

/// Checks that a model takes one input, and the pictures that `preparation` makes for it.
pub(super) fn check_picture_input(
    kind: &PipelineKind,
    model: ModelFacts<'_>,
    input: &ModelPort,
    preparation: &ImagePreparation,
) -> Result<(), String> {
    let (kind, count, prepared) = (kind.name, model.signature.inputs.len(), preparation.shape());
    if count != 1 {
        return Err(format!("the model has {count} inputs, pipeline.{kind} takes one"));
    }
    if !input.takes_shape(&prepared) {
        return Err(format!(
            "pipeline.{kind} makes tensors of shape {prepared:?}, input {:?} takes {:?}",
            input.name, input.shape
        ));
    }
    Ok(())
}

/// The memory of a byte of texts or rows that become tensors, in bytes.
const TREE_BYTES: usize = 10;

/// The memory of a photograph that [`decode_photograph`] decodes.
pub(super) fn memory_of_photograph(
    content: &CallContent,
    limits: DecodeLimits,
    preparation: &ImagePreparation,
) -> usize {
    let CallContent::Photograph(content) = content else { return 0 };
    image::memory_of(content, limits, &|size| preparation.resized_size(size))
}

/// Decodes the photograph that a caller sent, no larger than `preparation` needs it.
pub(super) fn decode_photograph(
    content: &CallContent,
    limits: DecodeLimits,
    preparation: &ImagePreparation,
    hold: &mut MemoryReservation,
) -> Result<Photograph, PreprocessError> {
    let CallContent::Photograph(content) = content else {
        return Err(PreprocessError::Content("expected a photograph".into()));
    };
    image::decode_within(content, limits, &|size| preparation.resized_size(size), hold).map_err(|error| match error {
        ImageError::NoRoom(error) => PreprocessError::NoRoom(error),
        error => PreprocessError::Content(error.to_string()),
    })
}
