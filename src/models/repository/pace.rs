//! The paces of two versions, measured in pairs: both run on the same input one right after the other, so that whatever
//! the machine does meanwhile happens to both.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ledge_base::memory_budget::Account;
use ledge_base::tensor::Tensor;
use ledge_engine::pipeline::content::CallContent;
use ledge_engine::pipeline::image::DecodeLimits;

use super::loaded_model::LoadedModel;
use super::{golden, tuning};
use crate::scheduling::instance::{FinishedRun, InferError};

/// Golden inputs that versions are measured with: the first ones.
const GOLDENS_MAX: usize = 4;

/// The time for which pairs are measured, where a run is brief, and at most.
const TIME: Duration = Duration::from_millis(600);
const TIME_MAX: Duration = Duration::from_secs(20);

/// The least number of pairs, if they end in time, and the most.
const PAIRS_MIN: usize = 24;
const PAIRS_MAX: usize = 400;

/// Inputs of callers that are remembered, and the most bytes of each.
const RECENT_MAX: usize = 4;
const RECENT_BYTES_MAX: usize = 1 << 20;

/// An input that both versions take.
#[derive(Debug, Clone)]
pub enum SampleInput {
    Tensors(Vec<Tensor>),
    Content(CallContent),
}

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

/// The last inputs of callers.
#[derive(Debug, Default)]
pub struct RecentInputs(VecDeque<Vec<Tensor>>);

impl RecentInputs {
    /// Remembers an input, unless it is large, in place of the oldest.
    pub fn keep(&mut self, inputs: &[Tensor]) {
        if inputs.iter().map(|tensor| tensor.data().len()).sum::<usize>() > RECENT_BYTES_MAX {
            return;
        }
        if self.0.len() == RECENT_MAX {
            self.0.pop_front();
        }
        self.0.push_back(inputs.to_vec());
    }

    /// The inputs, the oldest first.
    pub fn all(&self) -> Vec<SampleInput> {
        self.0.iter().cloned().map(SampleInput::Tensors).collect()
    }
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
        // A brief run never waits: yield, so that callers get their turns.
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
            let (limits, account) = (DecodeLimits::default(), Account::unlimited());
            model.run_pipeline(pipeline, content.clone(), limits, account, Vec::new(), terms).await
        }
        (SampleInput::Content(_), None) => Err(InferError::Unavailable { reason: "it has no pipeline".to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_inputs_that_are_not_large_are_remembered() {
        let mut recent = RecentInputs::default();
        let tensor = |length: usize| Tensor::from_vec(vec![length], vec![0_u8; length]).unwrap();
        recent.keep(&[tensor(RECENT_BYTES_MAX), tensor(1)]);
        assert!(recent.all().is_empty());
        for length in 1..=RECENT_MAX + 2 {
            recent.keep(&[tensor(length)]);
        }
        let lengths: Vec<_> = recent.0.iter().map(|inputs| inputs[0].data().len()).collect();
        assert_eq!(lengths, [3, 4, 5, 6]);
    }
}
