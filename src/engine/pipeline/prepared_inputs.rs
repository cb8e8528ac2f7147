//! The tensors that a pipeline makes of a content.

use std::fmt;

use ledge_base::tensor::Tensor;

use super::error::PostprocessError;
use super::picture_reading::PictureReading;

/// The tensors that a pipeline makes of the bytes of a caller.
pub struct PreprocessedInputs {
    /// The model's inputs, in the signature's order.
    pub inputs: Vec<Tensor>,
    /// Makes results of the outputs, on the worker's core: small tensors, which are cached in their place. Without it
    /// the outputs are the results.
    pub postprocess: Option<Postprocess>,
    /// Of a photograph.
    pub picture: Option<PictureReading>,
}

/// Makes results of the outputs of one run, in the order of [`Pipeline::outputs`](super::kind::Pipeline::outputs).
pub type Postprocess = Box<dyn FnOnce(Vec<Tensor>) -> Result<Vec<Tensor>, PostprocessError> + Send>;

impl fmt::Debug for PreprocessedInputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreprocessedInputs").field("inputs", &self.inputs).finish_non_exhaustive()
    }
}
