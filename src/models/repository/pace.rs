//! The paces of two versions, measured in pairs: both run on the same input one right after the other, so that other
//! activity of the machine affects both alike.

use std::time::{Duration, Instant};

use ledge_base::memory_budget::MemoryAccount;
use ledge_engine::pipeline::image::DecodeLimits;

use super::super::scheduling::outcome::{FinishedRun, InferError};
use super::loaded_model::LoadedModel;
pub use super::recent_inputs::{RecentInputs, SampleInput};
use super::{golden, tuning};

/// Golden inputs that versions are measured with: the first ones.
const GOLDENS_MAX: usize = 4;

/// The time for which pairs are measured, where a run is brief, and at most.
const TIME: Duration = Duration::from_millis(600);
const TIME_MAX: Duration = Duration::from_secs(20);

/// The least number of pairs, if they end in time, and the most.
const PAIRS_MIN: usize = 24;
const PAIRS_MAX: usize = 400;

/// The cost of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunCost {
    /// From its begin to its end, without the queue.
    pub wall: Duration,
    /// The CPU time of its thread; zero where it is not known.
    pub cpu: Duration,
}

/// The costs of two runs on one input, one right after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacePair {
    pub new: RunCost,
    pub live: RunCost,
}

/// Reasons why no pairs were measured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PaceError {
    /// There is no input that the live version answers.
    #[error("the live version answers no input that it could be measured with")]
    NoInput,
    /// The new version fails on an input that the live version answers.
    #[error("the new version failed while it was timed, and the live version did not: {0}")]
    Failed(String),
}

/// Measures pairs of runs of both versions, on zeros, on golden inputs of `new`, and on `recent` inputs.
pub async fn pairs(
    new: &LoadedModel,
    live: &LoadedModel,
    recent: Vec<SampleInput>,
) -> Result<Vec<PacePair>, PaceError> {
    let mut inputs: Vec<_> = tuning::sample(new).map(SampleInput::Tensors).into_iter().collect();
    // The files of an encrypted version are open only while it is loaded.
    if let Some(folder) = new.golden_folder() {
        let goldens = new.config.golden.iter().take(GOLDENS_MAX);
        inputs.extend(goldens.filter_map(|one| golden::sample_input(new, one, folder).ok()));
    }
    inputs.extend(recent);

    // The first run on an input may allocate, and shows which inputs are answered.
    let mut answered = Vec::new();
    for input in inputs {
        if run(live, &input).await.is_ok() {
            run(new, &input).await.map_err(|error| PaceError::Failed(error.to_string()))?;
            answered.push(input);
        }
    }
    if answered.is_empty() {
        return Err(PaceError::NoInput);
    }

    let (start, mut pairs) = (Instant::now(), Vec::new());
    for (turn, input) in answered.iter().cycle().enumerate() {
        let taken = start.elapsed();
        if taken >= TIME && pairs.len() >= PAIRS_MIN || taken >= TIME_MAX || pairs.len() >= PAIRS_MAX {
            break;
        }
        let failed = |error: InferError| PaceError::Failed(error.to_string());
        // Whichever comes first finds the caches as others left them.
        pairs.extend(if (turn / answered.len()).is_multiple_of(2) {
            let new = run(new, input).await.map_err(failed)?;
            run(live, input).await.ok().map(|live| PacePair { new, live })
        } else {
            match run(live, input).await {
                Ok(live) => Some(PacePair { new: run(new, input).await.map_err(failed)?, live }),
                Err(_) => None,
            }
        });
        // An inline run never waits: yield, so that callers get their turns.
        tokio::task::yield_now().await;
    }
    Ok(pairs)
}

async fn run(model: &LoadedModel, input: &SampleInput) -> Result<RunCost, InferError> {
    let FinishedRun { run, prepare, postprocess, .. } = run_sample(model, input).await?;
    Ok(RunCost { wall: prepare + run.time.total() + postprocess, cpu: run.cpu })
}

/// Runs the model on an input: for all outputs, or through its pipeline for its results.
pub(super) async fn run_sample(model: &LoadedModel, input: &SampleInput) -> Result<FinishedRun, InferError> {
    let terms = golden::terms(model);
    match (input, &model.pipeline) {
        (SampleInput::Tensors(tensors), _) => {
            let outputs = (0..model.signature.outputs.len()).collect();
            model.run(tensors.clone(), outputs, terms).await
        }
        (SampleInput::Content(content), Some(pipeline)) => {
            let (limits, account) = (DecodeLimits::default(), MemoryAccount::unlimited());
            model.run_pipeline(pipeline, content.clone(), limits, account, Vec::new(), terms).await
        }
        (SampleInput::Content(_), None) => Err(InferError::Unavailable { reason: "it has no pipeline".to_owned() }),
    }
}
