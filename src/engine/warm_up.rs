//! Warm-up: runs on zeros before an instance serves, so that the first callers do not pay for lazy allocation, nor for
//! the compilation of a batch size.

use std::time::Instant;

use ledge_base::tensor::{Tensor, element_count};
use serde::{Deserialize, Serialize};

use crate::backend::{self, Backend, ModelPort, ModelSignature, RunContext};
use crate::pipeline::work;

/// Bound on one input of a warm-up run, in bytes: a larger one is not worth a warm-up.
const WARM_UP_BYTES_MAX: usize = 64 << 20;

/// Runs that every instance of a model does before it serves.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WarmUp {
    /// Inputs of the model, with the dimensions that its model config fixes.
    pub signature: ModelSignature,
    /// The batch sizes to run; empty for a model without a batch dimension.
    pub sizes: Vec<usize>,
}

impl WarmUp {
    /// Runs the model on the inputs of all sizes. Inputs that the first instance accepted are accepted by this one too,
    /// so a failure is not looked at.
    pub fn run(&self, backend: &mut dyn Backend) {
        let outputs: Vec<usize> = (0..backend.signature().outputs.len()).collect();
        for (_, inputs) in self.runs() {
            let place = RunContext { core: 0, is_wide: true, deadline: Instant::now(), patience: None };
            let _ = work::run_tensors(backend, &inputs, &outputs, place);
        }
        backend::repair(backend);
    }

    /// The number of batch elements of each run, and its inputs. Variable dimensions other than the batch are 1. A
    /// batch size with inputs above 64 MiB is left out.
    pub fn runs(&self) -> impl Iterator<Item = (usize, Vec<Tensor>)> {
        let sizes = if self.sizes.is_empty() { &[1][..] } else { &self.sizes };
        sizes.iter().filter_map(|&rows| {
            let zeros = |port| zeros(port, rows);
            Some((rows, self.signature.inputs.iter().map(zeros).collect::<Option<_>>()?))
        })
    }
}

/// Zeros for `port`, `rows` of them when its first dimension is variable.
fn zeros(port: &ModelPort, rows: usize) -> Option<Tensor> {
    let dim = |(place, &dim): (usize, &i64)| usize::try_from(dim).unwrap_or(if place == 0 { rows } else { 1 });
    let shape: Vec<usize> = port.shape.iter().enumerate().map(dim).collect();
    let bytes = element_count(&shape)?.checked_mul(port.datatype.size().unwrap_or(4))?;
    // An empty string is four bytes of zeros, so this holds for BYTES too.
    (bytes <= WARM_UP_BYTES_MAX).then(|| Tensor::new(port.datatype, shape, vec![0; bytes].into()).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_base::tensor::DataType;

    fn warm_up(shape: &[i64], datatype: DataType, sizes: &[usize]) -> Vec<(usize, Vec<usize>)> {
        let port = ModelPort { name: "x".into(), datatype, shape: shape.into() };
        let warm_up = WarmUp { signature: ModelSignature { inputs: vec![port], outputs: vec![] }, sizes: sizes.into() };
        warm_up.runs().map(|(rows, inputs)| (rows, inputs[0].shape().to_vec())).collect()
    }

    #[test]
    fn each_size_runs_with_every_other_variable_dimension_one() {
        assert_eq!(warm_up(&[-1, 3, -1], DataType::Fp32, &[1, 4]), [(1, vec![1, 3, 1]), (4, vec![4, 3, 1])]);
        assert_eq!(warm_up(&[2, 3], DataType::Bytes, &[]), [(1, vec![2, 3])]);
        assert_eq!(warm_up(&[], DataType::Int64, &[]), [(1, vec![])]);
    }

    #[test]
    fn what_is_too_large_is_left_out() {
        assert_eq!(warm_up(&[-1, 1 << 20], DataType::Fp32, &[1, 16, 17]).len(), 2);
        assert_eq!(warm_up(&[i64::MAX, i64::MAX], DataType::Fp32, &[]), []);
    }
}
