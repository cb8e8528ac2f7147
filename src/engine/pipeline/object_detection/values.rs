//! Outputs of a detector as numbers with a shape.

use std::borrow::Cow;

use ledge_base::tensor::Tensor;

use super::super::classification::{self, ClassificationError};
use super::super::error::PostprocessError;
use super::super::quantization::Quantization;

/// One output of one picture.
#[derive(Debug)]
pub struct OutputValues<'t> {
    name: &'t str,
    /// The dimensions without the batch.
    shape: Vec<usize>,
    numbers: Cow<'t, [f32]>,
}

impl<'t> OutputValues<'t> {
    /// The numbers of an output. A first dimension of 1 is the batch, if there are others.
    pub fn new(
        name: &'t str,
        output: &'t Tensor,
        quantization: Option<Quantization>,
    ) -> Result<Self, PostprocessError> {
        let numbers = match output.elements::<f32>() {
            Some(numbers) => numbers,
            None => Cow::Owned(classification::numbers(output, quantization).map_err(|error| match error {
                ClassificationError::NotFinite { .. } => PostprocessError::Values(format!("output {name:?}: {error}")),
                _ => PostprocessError::Outputs(format!("output {name:?}: {error}")),
            })?),
        };
        let shape = match output.shape() {
            [1, rest @ ..] if !rest.is_empty() => rest,
            shape => shape,
        };
        Ok(Self { name, shape: shape.to_vec(), numbers })
    }

    /// The dimensions without the batch, when there are `N`; `expected` names them for the error.
    pub fn dimensions<const N: usize>(&self, expected: &str) -> Result<[usize; N], PostprocessError> {
        <[usize; N]>::try_from(self.shape.as_slice())
            .map_err(|_| self.unfit(&format!("expected the shape [1, {expected}]")))
    }

    /// The shape as rows of numbers: every dimension but the last, and the last.
    pub fn rows(&self) -> Result<[usize; 2], PostprocessError> {
        match self.shape.as_slice() {
            [rest @ .., last] if *last > 0 => Ok([rest.iter().product(), *last]),
            _ => Err(self.unfit("expected rows of numbers")),
        }
    }

    /// The number of its elements.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    pub fn numbers(&self) -> &[f32] {
        &self.numbers
    }

    /// The number at `index`; NaN beyond the last one.
    pub fn at(&self, index: usize) -> f32 {
        self.numbers.get(index).copied().unwrap_or(f32::NAN)
    }

    /// The numbers from `start` on; NaN beyond the last one.
    pub fn four(&self, start: usize) -> [f32; 4] {
        std::array::from_fn(|offset| self.at(start + offset))
    }

    /// The error that this output does not have the shape that the section says.
    pub fn unfit(&self, reason: &str) -> PostprocessError {
        PostprocessError::Outputs(format!(
            "output {:?} has the shape {:?} without its batch: {reason}",
            self.name, self.shape
        ))
    }
}
