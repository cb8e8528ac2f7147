//! The inputs of a job.

use std::sync::Arc;

use ledge_base::memory_budget::MemoryAccount;
use ledge_base::tensor::Tensor;
use ledge_engine::pipeline::kind::Pipeline;
use ledge_engine::pipeline::work::PipelineRunInput;

/// Inputs that a pipeline makes on a worker.
#[derive(Debug)]
pub struct PipelineInputs {
    pub pipeline: Arc<dyn Pipeline>,
    pub input: PipelineRunInput,
    /// Pays for intermediate results.
    pub account: MemoryAccount,
    /// The number of outputs that the caller asked for, in front of those of the pipeline.
    pub own: usize,
}

impl PipelineInputs {
    /// True when both can be one run: photographs, of which a pipeline makes tensors of one shape.
    pub fn can_batch_with(&self, other: &Self) -> bool {
        let both = [self, other].iter().all(|raw| raw.input.is_photograph());
        both && self.own == other.own && Arc::ptr_eq(&self.pipeline, &other.pipeline)
    }
}

/// The inputs of a job. A run leaves them as they are, so that a job whose run failed can be run again.
#[derive(Debug)]
pub enum JobInputs {
    /// In the signature's order; they fit it.
    Tensors(Vec<Tensor>),
    /// Something smaller, such as a photograph, that becomes tensors on the worker's core when the job's turn has come.
    Raw(PipelineInputs),
}
