//! Warm-up, and inputs whose answers are known: before a version is ready it has run, and run right.

use std::path::Path;
use std::time::{Duration, Instant};

use super::loaded_model::LoadedModel;
use super::model_config::Golden;
use crate::inference::backend::Port;
use crate::inference::terms::{Priority, Terms};
use crate::inference::warm_up::WarmUp;
use crate::pipeline::image::DecodeLimits;
use crate::principal::Principal;
use crate::principal::memory::Account;
use crate::tensor::Tensor;

/// A model that needs longer than this for one warm-up run is refused.
const LIMIT: Duration = Duration::from_mins(1);

/// The daemon's own runs come before anybody's.
fn terms() -> Terms {
    Terms { deadline: Instant::now() + LIMIT, priority: Priority::Interactive, principal: Principal::Local }
}

/// How many golden inputs a model answers right.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GoldenScore {
    /// Answered as expected.
    pub right: usize,
    /// All of them.
    pub total: usize,
    /// What is wrong with the first that was not.
    pub first_wrong: Option<String>,
}

impl GoldenScore {
    /// Whether at least this share is right; of no inputs at all, every share is.
    pub fn reaches(&self, share: f64) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let (right, total) = (self.right as f64, self.total as f64);
        right >= share * total
    }
}

/// Runs every golden input of `model`, whose files are in `folder`, and compares the answers.
pub async fn score(model: &LoadedModel, folder: &Path) -> GoldenScore {
    let mut score = GoldenScore { total: model.config.golden.len(), ..GoldenScore::default() };
    for golden in &model.config.golden {
        match answered_right(model, golden, &folder.join(&golden.file)).await {
            Ok(()) => score.right += 1,
            Err(reason) => {
                score.first_wrong.get_or_insert_with(|| format!("golden input {}: {reason}", golden.file));
            }
        }
    }
    score
}

/// Whether `model` answers enough golden inputs right: the share `least` of them, or all.
pub async fn check(model: &LoadedModel, folder: &Path, least: Option<f64>) -> Result<(), String> {
    let score = score(model, folder).await;
    let Some(reason) = &score.first_wrong else { return Ok(()) };
    match least {
        Some(least) if score.reaches(least) => {
            let GoldenScore { right, total, .. } = score;
            tracing::warn!(model = %model.name, version = %model.version, right, total, reason,
                "some golden inputs have other answers; enough are right");
            Ok(())
        }
        Some(least) => {
            let GoldenScore { right, total, .. } = score;
            Err(format!("{right} of {total} golden inputs are answered right, expected {least} of them; {reason}"))
        }
        None => Err(reason.clone()),
    }
}

async fn answered_right(model: &LoadedModel, golden: &Golden, path: &Path) -> Result<(), String> {
    let content = std::fs::read(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    if model.config.pipeline.image_classification.is_some() && !content.starts_with(b"{") {
        photograph(model, golden, &content).await
    } else {
        request(model, golden, &content).await
    }
}

/// The runs on zeros of `warm_up`, each alone. A model that refuses zeros (an index that must not be 0, say) is not at
/// fault.
pub async fn warm_up(model: &LoadedModel, warm_up: &WarmUp) {
    let outputs: Vec<usize> = (0..model.signature.outputs.len()).collect();
    for (rows, inputs) in warm_up.runs() {
        if let Err(error) = model.run(inputs, outputs.clone(), terms()).await {
            tracing::info!(model = %model.name, version = %model.version, rows, %error,
                "warm-up with zeros failed; serving all the same");
        }
    }
}

async fn photograph(model: &LoadedModel, golden: &Golden, content: &[u8]) -> Result<(), String> {
    let pipeline = model.config.pipeline.image_classification.as_ref().ok_or("the model has no image pipeline")?;
    let (make, output) = model.photograph(content.to_vec().into(), DecodeLimits::default(), Account::unlimited())?;
    let answer = model.run_prepared(make, content.len(), vec![output], terms()).await;
    let answer = answer.map_err(|error| error.to_string())?;
    let scores = answer.run.outputs.first().ok_or("no output came")?;
    let labels = model.signature.outputs.get(output).and_then(|port| model.labels.get(&port.name));
    let found = pipeline.labels(scores, labels.map_or(&[], Vec::as_slice)).map_err(|error| error.to_string())?;
    let first = found.first().ok_or("no class came")?;
    let label = first.label.clone().unwrap_or_else(|| first.index.to_string());
    if let Some(expected) = &golden.label
        && *expected != label
    {
        return Err(format!("expected {expected:?} first, got {label:?} ({:.3})", first.score));
    }
    match golden.min_score {
        Some(least) if first.score < least => {
            Err(format!("{label:?} scores {:.3}, expected {least} at least", first.score))
        }
        _ => Ok(()),
    }
}

/// A request as it travels over HTTP, its answer beside it.
#[derive(serde::Deserialize)]
struct GoldenRequest {
    inputs: Vec<GoldenTensor>,
    outputs: Vec<GoldenTensor>,
}

#[derive(serde::Deserialize)]
struct GoldenTensor {
    name: String,
    shape: Vec<usize>,
    data: Vec<f64>,
}

async fn request(model: &LoadedModel, golden: &Golden, content: &[u8]) -> Result<(), String> {
    let request: GoldenRequest = serde_json::from_slice(content).map_err(|error| error.to_string())?;
    let find = |name: &str| request.inputs.iter().find(|tensor| tensor.name == name);
    let inputs = model
        .signature
        .inputs
        .iter()
        .map(|port| {
            let tensor = find(&port.name).ok_or_else(|| format!("input {:?} is missing", port.name))?;
            tensor.to_tensor(port)
        })
        .collect::<Result<Vec<_>, String>>()?;
    let outputs = request
        .outputs
        .iter()
        .map(|expected| {
            let position = model.signature.outputs.iter().position(|port| port.name == expected.name);
            position.ok_or_else(|| format!("output {:?} is not in the model", expected.name))
        })
        .collect::<Result<Vec<_>, String>>()?;
    let answer = model.run(inputs, outputs, terms()).await.map_err(|error| error.to_string())?;
    let tolerance = golden.tolerance.unwrap_or(1e-3);
    for (expected, got) in request.outputs.iter().zip(&answer.run.outputs) {
        expected.compare(got, tolerance).map_err(|reason| format!("output {:?} {reason}", expected.name))?;
    }
    Ok(())
}

impl GoldenTensor {
    fn to_tensor(&self, port: &Port) -> Result<Tensor, String> {
        let tensor = crate::tensor::from_f64(port.datatype, self.shape.clone(), &self.data);
        tensor.map_err(|error| format!("input {:?}: {error}", self.name))
    }

    fn compare(&self, got: &Tensor, tolerance: f64) -> Result<(), String> {
        if got.shape() != self.shape {
            return Err(format!("has shape {:?}, expected {:?}", got.shape(), self.shape));
        }
        let values = crate::tensor::to_f64(got).ok_or_else(|| format!("is {}, expected numbers", got.datatype()))?;
        if values.len() != self.data.len() {
            return Err(format!("has {} elements, the expected data {}", values.len(), self.data.len()));
        }
        let worst = values.iter().zip(&self.data).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        let unequal = worst > tolerance || values.iter().any(|value| value.is_nan());
        if unequal { Err(format!("differs by {worst:.6}, more than {tolerance}")) } else { Ok(()) }
    }
}
