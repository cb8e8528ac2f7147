//! Runs a sample through the pipeline of a model before it serves: a pipeline that cannot answer is refused at its
//! load.

use std::sync::Arc;

use ledge_base::memory_budget::MemoryAccount;
use ledge_base::tensor::Tensor;
use ledge_engine::pipeline::image::DecodeLimits;
use ledge_engine::pipeline::kind::{Pipeline, PostprocessError};

use super::super::scheduling::outcome::InferError;
use super::golden;
use super::golden_error::GoldenError;
use super::loaded_model::LoadedModel;

/// Runs `model` on a sample of its input, if it has a pipeline. Any answer is accepted; an error is a pipeline that
/// cannot answer.
pub async fn check(model: &LoadedModel) -> Result<(), GoldenError> {
    let Some(pipeline) = &model.pipeline else { return Ok(()) };
    let kind = pipeline.kind();
    let failed = |error: GoldenError| error.of(&format!("pipeline.{} cannot answer {}", kind.name, kind.input));
    answer(model, pipeline).await.map_err(failed)
}

async fn answer(model: &LoadedModel, pipeline: &Arc<dyn Pipeline>) -> Result<(), GoldenError> {
    let sample = pipeline.sample();
    let (limits, account) = (DecodeLimits::default(), MemoryAccount::unlimited());
    match model.run_pipeline(pipeline, sample, limits, account, Vec::new(), golden::terms(model)).await {
        Ok(answer) => judge(model, pipeline.as_ref(), &answer.run.outputs).map_err(GoldenError::Wrong),
        Err(InferError::Outputs(error)) => refused(Err(error)).map_err(GoldenError::Wrong),
        Err(error) => Err(error.into()),
    }
}

/// The reason why the outputs of the sample refuse the model. The sample is not like the model's own inputs, and a real
/// one may have finite scores.
fn refused(answered: Result<(), PostprocessError>) -> Result<(), String> {
    match answered {
        Ok(()) | Err(PostprocessError::Values(_)) => Ok(()),
        Err(error @ PostprocessError::Outputs(_)) => Err(error.to_string()),
    }
}

fn judge(model: &LoadedModel, pipeline: &dyn Pipeline, outputs: &[Tensor]) -> Result<(), String> {
    refused(pipeline.answer(&outputs.iter().collect::<Vec<_>>()).map(|_| ()))?;

    // Needed where the model's signature does not give the number of classes.
    let scores = pipeline.outputs().iter().zip(outputs).find(|(position, _)| Some(**position) == pipeline.scores());
    let Some((&position, scores)) = scores else { return Ok(()) };
    let classes = scores.shape().iter().product();
    model.signature.outputs.get(position).map_or(Ok(()), |port| model.check_labels(&port.name, classes))
}
