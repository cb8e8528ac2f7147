//! A photograph through the pipeline of a model before it serves: a pipeline that cannot answer is refused at its load.

use ledge_base::memory_budget::Account;
use ledge_base::tensor::Tensor;
use ledge_engine::pipeline::classification::ClassificationError;
use ledge_engine::pipeline::image::DecodeLimits;

use super::golden::{self, GoldenError};
use super::loaded_model::LoadedModel;

/// A drawing of 32x24 pixels with edges, gradients and all colours.
const SAMPLE: &[u8] = include_bytes!("sample.png");

/// Asks `model` what is on a drawing, if it takes photographs. Whatever it says is right; wrong is a pipeline that cannot
/// say anything.
pub async fn rehearse(model: &LoadedModel) -> Result<(), GoldenError> {
    if model.config.pipeline.image_classification.is_none() {
        return Ok(());
    }
    answer(model).await.map_err(|error| error.of("pipeline.image_classification cannot answer a photograph"))
}

async fn answer(model: &LoadedModel) -> Result<(), GoldenError> {
    let prepared = model.photograph(SAMPLE.into(), DecodeLimits::default(), Account::unlimited());
    let (make, output) = prepared.map_err(GoldenError::Wrong)?;
    let answer = model.run_prepared(make, SAMPLE.len(), vec![output], golden::terms(model)).await?;
    judge(model, output, answer.run.outputs.first()).map_err(GoldenError::Wrong)
}

fn judge(model: &LoadedModel, output: usize, scores: Option<&Tensor>) -> Result<(), String> {
    let scores = scores.ok_or("no output came")?;
    match model.classes(scores) {
        // A drawing is none of the model's photographs, and another may have scores.
        Ok(_) | Err(ClassificationError::NotFinite { .. }) => {}
        Err(error) => return Err(error.to_string()),
    }
    // Where the model's signature does not say how many there are.
    let classes = scores.shape().iter().product();
    model.signature.outputs.get(output).map_or(Ok(()), |port| model.check_labels(&port.name, classes))
}
