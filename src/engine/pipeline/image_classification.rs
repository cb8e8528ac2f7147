//! The kind `image_classification`: a photograph in, its best classes out.

use std::sync::Arc;

use ledge_base::memory_budget::MemoryReservation;
use ledge_base::tensor::{DataType, Tensor};
use ledge_base::toml_check::ValueProblem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::classification::{ClassificationError, class_name, numbers, softmax, top};
use super::content::{CallContent, PipelineInput};
use super::error::{PostprocessError, PreprocessError};
use super::image::DecodeLimits;
use super::kind;
use super::kind::{GoldenExpectation, ModelFacts, Pipeline, PipelineKind, PipelineSection, PrintedRow};
use super::picture_reading::PictureReading;
use super::preparation::{ChannelOrder, ImagePreparation, PictureFit, TensorLayout};
use super::prepared_inputs::PreprocessedInputs;
use super::quantization::Quantization;

pub const KIND: PipelineKind = PipelineKind {
    name: "image_classification",
    input: PipelineInput::Photograph,
    models: &[],
    member: "labels",
    schema: |generator| generator.subschema_for::<Vec<ClassScore>>(),
    text: None,
    is_ranked: true,
    rows,
};

/// The longest side of a crop, in pixels.
const CROP_SIDE_MAX: u32 = 4096;
/// The most labels that an answer may hold.
const TOP_K_MAX: usize = 1000;

/// The table `[pipeline.image_classification]` of a model's config.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageClassification {
    /// The model's input for the picture; may be left out when it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// The model's output with the scores; may be left out when it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The length of the shorter side after the resize, which keeps the aspect ratio. Without it the picture is resized
    /// to `crop`, and the aspect ratio changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resize_shorter_side: Option<u32>,
    /// Height and width of the model's input.
    pub crop: [u32; 2],
    /// See [`ImagePreparation::mean`]; 0 by default.
    #[serde(default)]
    pub mean: [f32; 3],
    /// See [`ImagePreparation::std`]; 1 by default.
    #[serde(default = "ones")]
    pub std: [f32; 3],
    /// `NCHW` by default.
    #[serde(default)]
    pub layout: TensorLayout,
    /// `RGB` by default.
    #[serde(default)]
    pub color: ChannelOrder,
    /// `none` by default.
    #[serde(default)]
    pub activation: ClassActivation,
    /// The number of labels in an answer, 1 to 1000; 5 by default.
    #[serde(default = "five")]
    pub top_k: usize,
}

/// The function that turns a model's output into scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClassActivation {
    /// The output is the scores.
    #[default]
    None,
    /// The output is logits, the scores are probabilities.
    Softmax,
}

pub(super) fn ones() -> [f32; 3] {
    [1.0; 3]
}

fn five() -> usize {
    5
}

/// One class of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ClassScore {
    /// Its name; none if the model has no labels or its line is empty.
    pub label: Option<String>,
    /// Its position among the scores, from 0.
    pub index: usize,
    /// Its score.
    pub score: f32,
}

impl ImageClassification {
    /// The preparation of a picture for the model's input.
    pub fn preparation(&self) -> ImagePreparation {
        let &Self { resize_shorter_side, crop, mean, std, layout, color, .. } = self;
        let fit = resize_shorter_side.map_or(PictureFit::Stretch, |shorter_side| PictureFit::Crop { shorter_side });
        ImagePreparation { fit, size: crop, mean, std, layout, color }
    }

    /// The best `top_k` classes of an output of K scores, best first and equal ones by index.
    ///
    /// The shape is `[K]` or `[1, K]`; further dimensions of 1, which converters leave behind, do not matter. `labels`
    /// are the names by index, possibly fewer than K; `quantization` is that of an output of integers.
    pub fn labels(
        &self,
        output: &Tensor,
        labels: &[String],
        quantization: Option<Quantization>,
    ) -> Result<Vec<ClassScore>, ClassificationError> {
        if output.shape().iter().filter(|&&side| side != 1).count() > 1 {
            return Err(ClassificationError::Shape { shape: output.shape().to_vec() });
        }
        let mut scores = numbers(output, quantization)?;
        if self.activation == ClassActivation::Softmax {
            softmax(&mut scores);
        }
        if let Some(index) = scores.iter().position(|score| !score.is_finite()) {
            return Err(ClassificationError::NotFinite { index });
        }
        let ranked = top(&scores, self.top_k, f32::total_cmp);
        Ok(ranked
            .into_iter()
            .map(|(index, &score)| ClassScore { label: class_name(labels, index), index, score })
            .collect())
    }
}

impl PipelineSection for ImageClassification {
    fn kind(&self) -> &'static PipelineKind {
        &KIND
    }

    fn mistakes(&self) -> Vec<ValueProblem> {
        let mut mistakes = Vec::new();
        let mut mistake = |key, message: String| mistakes.push(ValueProblem::new(key, message));

        let [height, width] = self.crop;
        for (name, side) in [("height", height), ("width", width)] {
            if !(1..=CROP_SIDE_MAX).contains(&side) {
                mistake("crop", format!("{name} is {side}, expected 1 to {CROP_SIDE_MAX}"));
            }
        }
        if let Some(side) = self.resize_shorter_side
            && !(height.max(width)..=CROP_SIDE_MAX).contains(&side)
        {
            // Portraits and landscapes are both cut, so the shorter side must be as long as the longer side of the
            // crop.
            let longer = height.max(width);
            let message = format!("is {side}, expected {longer} (the longer side of crop) to {CROP_SIDE_MAX}");
            mistake("resize_shorter_side", message);
        }

        for (key, message) in self.preparation().mistakes() {
            mistake(key, message);
        }
        if !(1..=TOP_K_MAX).contains(&self.top_k) {
            mistake("top_k", format!("is {}, expected 1 to {TOP_K_MAX}", self.top_k));
        }
        mistakes
    }

    fn bind(&self, model: ModelFacts<'_>) -> Result<Arc<dyn Pipeline>, String> {
        let (_, input) = model.input(&KIND, self.input.as_deref())?;
        let (output_position, output) = model.output(&KIND, self.output.as_deref())?;
        kind::check_picture_input(&KIND, model, input, &self.preparation())?;
        Ok(Arc::new(Classifier {
            config: self.clone(),
            datatype: input.datatype,
            input_quantization: model.quantization.get(&input.name).copied(),
            output: [output_position],
            output_quantization: model.quantization.get(&output.name).copied(),
            labels: model.labels.get(&output.name).cloned().unwrap_or_default(),
        }))
    }
}

/// The pipeline of one model.
#[derive(Debug)]
struct Classifier {
    config: ImageClassification,
    /// The datatype of the model's input.
    datatype: DataType,
    input_quantization: Option<Quantization>,
    /// The position of the output with the scores.
    output: [usize; 1],
    output_quantization: Option<Quantization>,
    /// The names of the classes.
    labels: Arc<[String]>,
}

impl Classifier {
    fn labels(&self, outputs: &[&Tensor]) -> Result<Vec<ClassScore>, PostprocessError> {
        let [output] = outputs else { return Err(PostprocessError::Outputs("the run gave no output".to_owned())) };
        let labels = self.config.labels(output, &self.labels, self.output_quantization);
        labels.map_err(|error| match error {
            ClassificationError::NotFinite { .. } => PostprocessError::Values(error.to_string()),
            _ => PostprocessError::Outputs(error.to_string()),
        })
    }
}

impl Pipeline for Classifier {
    fn kind(&self) -> &'static PipelineKind {
        &KIND
    }

    fn memory_of(&self, content: &CallContent, limits: DecodeLimits) -> usize {
        kind::memory_of_photograph(content, limits, &self.config.preparation())
    }

    fn prepare(
        &self,
        content: &CallContent,
        limits: DecodeLimits,
        hold: &mut MemoryReservation,
    ) -> Result<PreprocessedInputs, PreprocessError> {
        let preparation = self.config.preparation();
        let photograph = kind::decode_photograph(content, limits, &preparation, hold)?;
        let tensor = preparation.prepare(&photograph, self.datatype, self.input_quantization);
        let inputs = vec![tensor.map_err(|error| PreprocessError::Content(error.to_string()))?];
        let picture = PictureReading::of(photograph.image());
        Ok(PreprocessedInputs { inputs, postprocess: None, picture })
    }

    fn outputs(&self) -> &[usize] {
        &self.output
    }

    fn scores(&self) -> Option<usize> {
        Some(self.output[0])
    }

    fn answer(&self, results: &[&Tensor]) -> Result<Box<RawValue>, PostprocessError> {
        to_raw_value(&self.labels(results)?).map_err(|error| PostprocessError::Outputs(error.to_string()))
    }

    fn judge(&self, results: &[&Tensor], expected: GoldenExpectation<'_>) -> Result<(), String> {
        if expected.detections.is_some() {
            return Err("pipeline.image_classification detects no objects: leave `detections` out".to_owned());
        }
        let labels = self.labels(results).map_err(|error| error.to_string())?;
        let first = labels.first().ok_or("the answer has no class")?;
        let label = first.label.clone().unwrap_or_else(|| first.index.to_string());
        if let Some(expected) = expected.label
            && expected != label
        {
            return Err(format!("expected {expected:?} first, got {label:?} ({:.3})", first.score));
        }
        match expected.min_score {
            Some(least) if first.score < least => {
                Err(format!("{label:?} scores {:.3}, expected at least {least}", first.score))
            }
            _ => Ok(()),
        }
    }
}

fn rows(labels: &Value) -> Vec<PrintedRow> {
    let row = |label: &Value| {
        let text = label.get("label").and_then(Value::as_str).map(str::to_owned);
        PrintedRow {
            score: label.get("score").and_then(Value::as_f64),
            text: text.unwrap_or_else(|| format!("class {}", label.get("index").unwrap_or(&Value::Null))),
        }
    };
    labels.as_array().into_iter().flatten().map(row).collect()
}

#[cfg(test)]
mod tests;
