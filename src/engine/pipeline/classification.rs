//! Scores into classes: ranking for pipeline kinds that answer with classes, and Triton's classification extension.

use std::cmp::Ordering;

use half::{bf16, f16};
use ledge_base::tensor::{DataType, Tensor, TensorElement, TensorError};

use super::quantization::Quantization;

/// An output that does not give classes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClassificationError {
    #[error("expected {expected} scores, got {datatype}")]
    Datatype { expected: &'static str, datatype: DataType },
    #[error(
        "the scores are {datatype}, and neither the model's file nor model.toml has their scale: set \
         quantization = {{ scale = ..., zero_point = ... }} in the [[output]] of model.toml"
    )]
    Unscaled { datatype: DataType },
    /// The shape is not one row of scores.
    #[error("expected scores of shape [1, K] or [K], got {shape:?}")]
    Shape { shape: Vec<usize> },
    /// NaN and infinity cannot be ranked or written.
    #[error("score {index} is not a finite number")]
    NotFinite {
        /// Position, row-major.
        index: usize,
    },
    #[error("the classes do not fit into a tensor")]
    Tensor(#[from] TensorError),
}

/// Triton's classification extension: the output as a `BYTES` tensor of its best `n` classes, best first, each
/// `value:index` or `value:index:label`, such as `0.090633:2:espresso`.
///
/// The shape is `[batch, n]`, or `[n]` for an output of one dimension. `n` is at most the number of classes, and
/// dimensions after the first count as one. Every numeric datatype is accepted; floats have six decimals, as in Triton.
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

/// The lines of a label file, in the order of the classes. An empty line is a class without a name.
pub fn parse_labels(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// [`classify`] for one datatype.
fn classes<T: TensorElement + bytemuck::Pod>(
    output: &Tensor,
    n: usize,
    labels: &[String],
    order: impl Fn(&T, &T) -> Ordering,
    write: impl Fn(&T) -> String,
) -> Result<Tensor, ClassificationError> {
    let values = elements::<T>(output)?;
    let (batch, per_row) = match output.shape() {
        // A scalar is one class.
        [] => (None, 1),
        [classes] => (None, *classes),
        // The tensor fills its shape, so only an empty one can have a product that overflows.
        [batch, rest @ ..] => (Some(*batch), ledge_base::tensor::element_count(rest).unwrap_or(0)),
    };
    let n = n.min(per_row);
    let shape = batch.into_iter().chain([n]).collect();
    let strings = values.chunks(per_row.max(1)).flat_map(|row| {
        top(row, n, &order).into_iter().map(|(index, value)| match class_name(labels, index) {
            Some(label) => format!("{}:{index}:{label}", write(value)),
            None => format!("{}:{index}", write(value)),
        })
    });
    Ok(Tensor::from_strings(shape, strings)?)
}

/// The name of a class, if it has one that is not empty.
pub(super) fn class_name(labels: &[String], index: usize) -> Option<String> {
    labels.get(index).filter(|label| !label.is_empty()).cloned()
}

/// The `count` largest values with their positions, largest first, equal ones by position.
pub(super) fn top<T>(values: &[T], count: usize, order: impl Fn(&T, &T) -> Ordering) -> Vec<(usize, &T)> {
    let mut ranked: Vec<_> = values.iter().enumerate().collect();
    let by_rank = |a: &(usize, &T), b: &(usize, &T)| order(b.1, a.1).then(a.0.cmp(&b.0));
    if count < ranked.len() {
        ranked.select_nth_unstable_by(count, by_rank);
        ranked.truncate(count);
    }
    ranked.sort_unstable_by(by_rank);
    ranked
}

/// Converts logits to probabilities. The largest is subtracted first, so that no exponential overflows.
pub(super) fn softmax(logits: &mut [f32]) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for logit in &mut *logits {
        *logit = (*logit - largest).exp();
    }
    let sum: f32 = logits.iter().sum();
    for logit in logits {
        *logit /= sum;
    }
}

/// The elements of a tensor of floats, or the real numbers of integers of up to 32 bits.
pub(super) fn numbers(output: &Tensor, quantization: Option<Quantization>) -> Result<Vec<f32>, ClassificationError> {
    let datatype = output.datatype();
    if !is_quantized(datatype) {
        return floats(output);
    }
    let quantization = quantization.ok_or(ClassificationError::Unscaled { datatype })?;
    let integers = ledge_base::tensor::to_f64(output).unwrap_or_default();
    Ok(integers.into_iter().map(|integer| quantization.dequantize(integer)).collect())
}

/// Returns true if integers of this datatype can stand for real numbers.
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

/// The elements, if they have this type.
fn elements<T: TensorElement + bytemuck::Pod>(
    tensor: &Tensor,
) -> Result<std::borrow::Cow<'_, [T]>, ClassificationError> {
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
