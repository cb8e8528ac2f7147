//! Joins the inputs of several requests into those of one run, and splits its outputs among them.
//!
//! Rows of different requests never mix: each request gets the output rows at the position of its own input rows.

use bytes::Bytes;
use ledge_base::tensor::{DataType, Tensor};
use serde::{Deserialize, Serialize};

/// True when two requests can be one run: the same outputs, and inputs that differ only in the batch dimension.
pub fn batch_together(inputs: &[Tensor], outputs: &[usize], others: &[Tensor], other_outputs: &[usize]) -> bool {
    let alike = |a: &Tensor, b: &Tensor| {
        a.datatype() == b.datatype() && a.shape().len() == b.shape().len() && a.shape().get(1..) == b.shape().get(1..)
    };
    outputs == other_outputs && inputs.len() == others.len() && inputs.iter().zip(others).all(|(a, b)| alike(a, b))
}

/// Joins the inputs of `requests` into those of one run. `None` when they cannot be joined (see [`batch_together`]),
/// for no requests, and without memory for it.
pub fn concat(requests: &[&[Tensor]]) -> Option<Vec<Tensor>> {
    let first = requests.first()?;
    let input = |index: usize, like: &Tensor| -> Option<Tensor> {
        let parts = requests.iter().map(|inputs| inputs.get(index)).collect::<Option<Vec<_>>>()?;
        let rows = parts.iter().map(|part| part.shape().first()).sum::<Option<usize>>()?;
        let mut data = Vec::new();
        data.try_reserve_exact(parts.iter().map(|part| part.data().len()).sum()).ok()?;
        for part in parts {
            data.extend_from_slice(part.data());
        }
        let shape = std::iter::once(rows).chain(like.shape().iter().skip(1).copied()).collect();
        Tensor::new(like.datatype(), shape, data.into()).ok()
    };
    first.iter().enumerate().map(|(index, like)| input(index, like)).collect()
}

/// Splits the outputs of one run into those of the requests, of which the n-th had `rows[n]` rows. Nothing is copied.
///
/// `Err` has the index of an output that does not have the batch as its first dimension: the model mixes rows, so no
/// output may be used as an answer.
pub fn split(outputs: &[Tensor], rows: &[usize]) -> Result<Vec<Vec<Tensor>>, UnbatchableOutput> {
    let total: usize = rows.iter().sum();
    let mut answers: Vec<Vec<Tensor>> = rows.iter().map(|_| Vec::with_capacity(outputs.len())).collect();
    for (index, output) in outputs.iter().enumerate() {
        let refused = || UnbatchableOutput { output: index, shape: output.shape().to_vec(), expected: total };
        if output.shape().first() != Some(&total) || total == 0 {
            return Err(refused());
        }
        let mut rest = output.data().clone();
        for (answer, &rows) in answers.iter_mut().zip(rows) {
            let length = match output.datatype() {
                DataType::Bytes => strings_length(&rest, output.shape(), rows),
                _ => Some(output.data().len() / total * rows),
            };
            let length = length.filter(|&length| length <= rest.len()).ok_or_else(refused)?;
            let data = rest.split_to(length);
            let shape = std::iter::once(rows).chain(output.shape().iter().skip(1).copied()).collect();
            answer.push(Tensor::new(output.datatype(), shape, data).map_err(|_| refused())?);
        }
    }
    Ok(answers)
}

/// An output that does not have the batch as its first dimension.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error(
    "output {output} has the shape {shape:?} for a batch of {expected}: its first dimension is not the batch, so requests \
     to this model cannot be batched"
)]
pub struct UnbatchableOutput {
    /// Index of the output among those asked for.
    pub output: usize,
    pub shape: Vec<usize>,
    /// The rows that the run had.
    pub expected: usize,
}

/// Length in bytes of `rows` rows of strings at the head of `data`: each string is a 4-byte little-endian length and
/// that many bytes.
fn strings_length(data: &Bytes, shape: &[usize], rows: usize) -> Option<usize> {
    let count = shape.iter().skip(1).try_fold(rows, |product, &dim| product.checked_mul(dim))?;
    let mut length = 0_usize;
    for _ in 0..count {
        let prefix = data.get(length..)?.first_chunk::<4>()?;
        length = length.checked_add(4)?.checked_add(usize::try_from(u32::from_le_bytes(*prefix)).ok()?)?;
    }
    Some(length)
}

#[cfg(test)]
mod tests;
