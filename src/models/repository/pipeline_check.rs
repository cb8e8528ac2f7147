//! Runs a photograph through the pipeline of a model before it serves: a pipeline that cannot answer is refused at its
//! load.

use ledge_base::memory_budget::Account;
use ledge_base::tensor::Tensor;
use ledge_engine::pipeline::classification::ClassificationError;
use ledge_engine::pipeline::image::DecodeLimits;

use super::golden::{self, GoldenError};
use super::loaded_model::LoadedModel;

/// A drawing of 32x24 pixels with edges, gradients and all colours.
const SAMPLE_PNG: &[u8] = include_bytes!("sample.png");

/// Classifies a drawing with `model`, if it takes photographs. Any answer is accepted; an error is a pipeline that
/// cannot answer.
pub async fn check(model: &LoadedModel) -> Result<(), GoldenError> {
    if model.config.pipeline.image_classification.is_none() {
        return Ok(());
    }
    answer(model).await.map_err(|error| error.of("pipeline.image_classification cannot answer a photograph"))
}

async fn answer(model: &LoadedModel) -> Result<(), GoldenError> {
    let prepared = model.photograph(SAMPLE_PNG.into(), DecodeLimits::default(), Account::unlimited());
    let (make, output) = prepared.map_err(GoldenError::Wrong)?;
    let answer = model.run_prepared(make, SAMPLE_PNG.len(), vec![output], golden::terms(model)).await?;
    check_scores(model, output, answer.run.outputs.first()).map_err(GoldenError::Wrong)
}

fn check_scores(model: &LoadedModel, output: usize, scores: Option<&Tensor>) -> Result<(), String> {
    let scores = scores.ok_or("the model returned no output")?;
    match model.classes(scores) {
        // The drawing is not like the model's photographs, and a real one may have finite scores.
        Ok(_) | Err(ClassificationError::NotFinite { .. }) => {}
        Err(error) => return Err(error.to_string()),
    }
    // Needed where the model's signature does not give the number of classes.
    let classes = scores.shape().iter().product();
    model.signature.outputs.get(output).map_or(Ok(()), |port| model.check_labels(&port.name, classes))
}
