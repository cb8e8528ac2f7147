//! Scores into labels: the answer of an image classifier, and Triton's classification extension.

use std::cmp::Ordering;

use half::{bf16, f16};
use ledge_base::tensor::{DataType, Element, Tensor, TensorError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::preparation::{Color, ImagePreparation, Layout};
use super::quantization::Quantization;

/// The longest side of a crop.
const MAX_CROP: u32 = 4096;
/// The most labels that an answer may hold.
const MAX_TOP_K: usize = 1000;

/// What turns a model's output into scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// The output is the scores.
    #[default]
    None,
    /// The output is logits, the scores are probabilities.
    Softmax,
}

/// The table `[pipeline.image_classification]` of a model's config: a picture in, labels out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageClassification {
    /// The model's input for the picture; may be left out when it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// The model's output with the scores; may be left out when it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// See [`ImagePreparation::resize_shorter_side`].
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
    pub layout: Layout,
    /// `RGB` by default.
    #[serde(default)]
    pub color: Color,
    /// `none` by default.
    #[serde(default)]
    pub activation: Activation,
    /// How many labels an answer holds, 1 to 1000; 5 by default.
    #[serde(default = "five")]
    pub top_k: usize,
}

fn ones() -> [f32; 3] {
    [1.0; 3]
}

fn five() -> usize {
    5
}

/// One class of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Label {
    /// Its name; none where the model has no labels or its line is empty.
    pub label: Option<String>,
    /// Its position among the scores, from 0.
    pub index: usize,
    /// Its score.
    pub score: f32,
}

/// Why an output does not give classes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClassificationError {
    #[error("expected {expected} scores, got {datatype}")]
    Datatype { expected: &'static str, datatype: DataType },
    #[error(
        "the scores are {datatype}, and neither the model's file nor model.toml says what these are worth: give \
         quantization = {{ scale = ..., zero_point = ... }} in the [[output]] of model.toml"
    )]
    Unscaled { datatype: DataType },
    /// The shape is not that of one row of scores.
    #[error("expected scores of shape [1, K] or [K], got {shape:?}")]
    Shape { shape: Vec<usize> },
    /// A score that cannot be ranked or written: the model gave NaN or infinity.
    #[error("score {index} is not a finite number")]
    NotFinite {
        /// Position, row-major.
        index: usize,
    },
    #[error("the classes do not make a tensor")]
    Tensor(#[from] TensorError),
}

impl ImageClassification {
    /// How a picture becomes the model's input.
    pub fn preparation(&self) -> ImagePreparation {
        let &Self { resize_shorter_side, crop, mean, std, layout, color, .. } = self;
        ImagePreparation { resize_shorter_side, crop, mean, std, layout, color }
    }

    /// Every mistake that the types let through, each with its key; empty when there is none.
    pub fn validate(&self) -> Vec<(String, String)> {
        let mut mistakes = Vec::new();
        let mut mistake = |key: &str, text| mistakes.push((format!("pipeline.image_classification.{key}"), text));
        let [height, width] = self.crop;
        for (name, side) in [("height", height), ("width", width)] {
            if !(1..=MAX_CROP).contains(&side) {
                mistake("crop", format!("{name} is {side}, expected 1 to {MAX_CROP}"));
            }
        }
        if let Some(side) = self.resize_shorter_side
            && !(height.max(width)..=MAX_CROP).contains(&side)
        {
            // A portrait is cut as well as a landscape, so the shorter side must hold the longer side of the crop.
            let longer = height.max(width);
            let problem = format!("is {side}, expected {longer} (the longer side of crop) to {MAX_CROP}");
            mistake("resize_shorter_side", problem);
        }
        if !self.mean.iter().all(|mean| mean.is_finite()) {
            mistake("mean", format!("is {:?}, expected finite numbers", self.mean));
        }
        if !self.std.iter().all(|std| std.is_normal()) {
            mistake("std", format!("is {:?}, expected finite numbers other than 0", self.std));
        }
        if !(1..=MAX_TOP_K).contains(&self.top_k) {
            mistake("top_k", format!("is {}, expected 1 to {MAX_TOP_K}", self.top_k));
        }
        mistakes
    }

    /// The best `top_k` classes of an output of K scores, best first and equal ones by index.
    ///
    /// The shape is `[K]` or `[1, K]`; further dimensions of 1, which converters leave behind, do not matter. `labels`
    /// are the names by index, possibly fewer than K; `quantization` is what integers are worth.
    pub fn labels(
        &self,
        scores: &Tensor,
        labels: &[String],
        quantization: Option<Quantization>,
    ) -> Result<Vec<Label>, ClassificationError> {
        if scores.shape().iter().filter(|&&side| side != 1).count() > 1 {
            return Err(ClassificationError::Shape { shape: scores.shape().to_vec() });
        }
        let mut scores = worth(scores, quantization)?;
        if self.activation == Activation::Softmax {
            softmax(&mut scores);
        }
        if let Some(index) = scores.iter().position(|score| !score.is_finite()) {
            return Err(ClassificationError::NotFinite { index });
        }
        let ranked = top(&scores, self.top_k, f32::total_cmp);
        Ok(ranked.into_iter().map(|(index, &score)| Label { label: name(labels, index), index, score }).collect())
    }
}

/// Triton's classification extension: the output as a `BYTES` tensor of its best `n` classes, best first, each
/// `value:index` or `value:index:label`, such as `0.090633:2:espresso`.
///
/// The shape is `[batch, n]`, or `[n]` for an output of one dimension; `n` is cut to the number of classes, and
/// dimensions after the first count as one. Every numeric datatype will do; floats have six decimals, as in Triton.
pub fn classify(output: &Tensor, n: usize, labels: &[String]) -> Result<Tensor, ClassificationError> {
    match output.datatype() {
        DataType::Uint8 => classes(output, n, labels, u8::cmp, u8::to_string),
        DataType::Uint16 => classes(output, n, labels, u16::cmp, u16::to_string),
        DataType::Uint32 => classes(output, n, labels, u32::cmp, u32::to_string),
        DataType::Uint64 => classes(output, n, labels, u64::cmp, u64::to_string),
        DataType::Int8 => classes(output, n, labels, i8::cmp, i8::to_string),
        DataType::Int16 => classes(output, n, labels, i16::cmp, i16::to_string),
        DataType::Int32 => classes(output, n, labels, i32::cmp, i32::to_string),
        DataType::Int64 => classes(output, n, labels, i64::cmp, i64::to_string),
        DataType::Fp64 => {
            let doubles = elements::<f64>(output)?;
            finite(doubles.iter().map(|double| double.is_finite()))?;
            classes(output, n, labels, f64::total_cmp, |value| format!("{value:.6}"))
        }
        DataType::Fp16 | DataType::Bf16 | DataType::Fp32 => {
            let floats = floats(output)?;
            finite(floats.iter().map(|float| float.is_finite()))?;
            let floats = Tensor::from_vec(output.shape().to_vec(), floats)?;
            classes(&floats, n, labels, f32::total_cmp, |value| format!("{value:.6}"))
        }
        datatype @ (DataType::Bool | DataType::Bytes) => {
            Err(ClassificationError::Datatype { expected: "numeric", datatype })
        }
    }
}

/// The lines of a label file, in the order of the classes. An empty line in the middle is a class without a name.
pub fn parse_labels(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// [`classify`] for one datatype.
fn classes<T: Element + bytemuck::Pod>(
    output: &Tensor,
    n: usize,
    labels: &[String],
    order: impl Fn(&T, &T) -> Ordering,
    write: impl Fn(&T) -> String,
) -> Result<Tensor, ClassificationError> {
    let values = elements::<T>(output)?;
    // A scalar is one class.
    let (batch, per_row) = match output.shape() {
        [] => (None, 1),
        [classes] => (None, *classes),
        // The tensor fills its shape, so a product that does not fit belongs to an empty one.
        [batch, rest @ ..] => (Some(*batch), ledge_base::tensor::element_count(rest).unwrap_or(0)),
    };
    let n = n.min(per_row);
    let shape = batch.into_iter().chain([n]).collect();
    let strings = values.chunks(per_row.max(1)).flat_map(|row| {
        top(row, n, &order).into_iter().map(|(index, value)| match name(labels, index) {
            Some(label) => format!("{}:{index}:{label}", write(value)),
            None => format!("{}:{index}", write(value)),
        })
    });
    Ok(Tensor::from_strings(shape, strings)?)
}

/// The name of a class, unless it has none or an empty one.
fn name(labels: &[String], index: usize) -> Option<String> {
    labels.get(index).filter(|label| !label.is_empty()).cloned()
}

/// The `count` largest values with their positions, largest first and equal ones by position.
fn top<T>(values: &[T], count: usize, order: impl Fn(&T, &T) -> Ordering) -> Vec<(usize, &T)> {
    let mut ranked: Vec<_> = values.iter().enumerate().collect();
    let by_rank = |a: &(usize, &T), b: &(usize, &T)| order(b.1, a.1).then(a.0.cmp(&b.0));
    if count < ranked.len() {
        ranked.select_nth_unstable_by(count, by_rank);
        ranked.truncate(count);
    }
    ranked.sort_unstable_by(by_rank);
    ranked
}

/// Logits to probabilities. The largest is taken off first, so that no exponential overflows.
fn softmax(logits: &mut [f32]) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for logit in &mut *logits {
        *logit = (*logit - largest).exp();
    }
    let sum: f32 = logits.iter().sum();
    for logit in logits {
        *logit /= sum;
    }
}

/// The elements of a tensor of floats, or of integers of up to 32 bits by what they are worth.
fn worth(scores: &Tensor, quantization: Option<Quantization>) -> Result<Vec<f32>, ClassificationError> {
    let datatype = scores.datatype();
    if !is_quantized(datatype) {
        return floats(scores);
    }
    let quantization = quantization.ok_or(ClassificationError::Unscaled { datatype })?;
    let integers = ledge_base::tensor::to_f64(scores).unwrap_or_default();
    Ok(integers.into_iter().map(|integer| quantization.real(integer)).collect())
}

/// Whether tensors of this datatype can stand for real numbers.
pub fn is_quantized(datatype: DataType) -> bool {
    use DataType::{Int8, Int16, Int32, Uint8, Uint16, Uint32};
    matches!(datatype, Uint8 | Int8 | Uint16 | Int16 | Uint32 | Int32)
}

/// The elements of a float tensor as `f32`.
fn floats(tensor: &Tensor) -> Result<Vec<f32>, ClassificationError> {
    match tensor.datatype() {
        DataType::Fp32 => Ok(elements::<f32>(tensor)?.into_owned()),
        DataType::Fp16 => Ok(elements::<f16>(tensor)?.iter().map(|half| half.to_f32()).collect()),
        DataType::Bf16 => Ok(elements::<bf16>(tensor)?.iter().map(|half| half.to_f32()).collect()),
        #[expect(clippy::cast_possible_truncation, reason = "a score needs no more than an f32")]
        DataType::Fp64 => Ok(elements::<f64>(tensor)?.iter().map(|&double| double as f32).collect()),
        datatype => Err(ClassificationError::Datatype { expected: "FP16, BF16, FP32 or FP64", datatype }),
    }
}

/// The elements, if they are of this type.
fn elements<T: Element + bytemuck::Pod>(tensor: &Tensor) -> Result<std::borrow::Cow<'_, [T]>, ClassificationError> {
    tensor
        .elements::<T>()
        .ok_or_else(|| ClassificationError::Datatype { expected: T::DATATYPE.as_str(), datatype: tensor.datatype() })
}

/// Checks that every element is a finite number.
fn finite(mut elements: impl Iterator<Item = bool>) -> Result<(), ClassificationError> {
    elements.position(|is_finite| !is_finite).map_or(Ok(()), |index| Err(ClassificationError::NotFinite { index }))
}

#[cfg(test)]
mod tests;
