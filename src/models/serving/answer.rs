//! The tensors that answer a call: kept, shared with an equal call, or from a run of the model.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge_base::tensor::Tensor;
use ledge_engine::backend::RunError;
use ledge_engine::pipeline::image::DecodeLimits;
use ledge_engine::pipeline::kind::{Input, Pipeline};

use super::ServingError;
use super::cache::{Found, Key, ResponseCache};
use super::call::Counted;
use super::inputs::{Fitted, Misfit};
use super::request::{CacheOutcome, InferResponse, PhotographRequest, Timings};
use crate::repository::LoadedModel;
use crate::scheduling::instance::{self, InferError};
use crate::scheduling::queue::Unprepared;
use crate::scheduling::terms::Terms;

/// The tensors that answer a call, and how they came about.
#[derive(Debug)]
pub(super) struct Answer {
    pub outputs: Vec<Tensor>,
    pub timings: Timings,
    pub cache: Option<CacheOutcome>,
    pub counted: Counted,
}

impl Answer {
    /// The response to a call that asked for the outputs `names`.
    pub fn into_response(self, model: &LoadedModel, names: Vec<String>) -> (InferResponse, Counted) {
        let response = InferResponse {
            model: model.name.clone(),
            version: model.version,
            runtime: model.runtime(),
            outputs: names.into_iter().zip(self.outputs).collect(),
            timings: self.timings,
            cache: self.cache,
            features: Vec::new(),
        };
        (response, self.counted)
    }

    fn kept(outputs: &[Tensor], cache: CacheOutcome, lookup: Duration) -> Self {
        // For one who joined, looking for the answer was waiting for it.
        let queue = if cache == CacheOutcome::Joined { lookup } else { Duration::ZERO };
        let timings = Timings { queue, ..Timings::default() };
        Self { outputs: outputs.to_vec(), timings, cache: Some(cache), counted: Counted::Hit { lookup } }
    }
}

/// The names of the outputs asked for.
pub(super) fn names(model: &LoadedModel, outputs: &[usize]) -> Vec<String> {
    outputs.iter().filter_map(|&index| Some(model.signature.outputs.get(index)?.name.clone())).collect()
}

/// Runs the model, whatever is kept.
pub(super) async fn run(
    model: &LoadedModel,
    fitted: Fitted,
    terms: Terms,
    started: Instant,
) -> Result<Answer, ServingError> {
    let Fitted { inputs, outputs, batch } = fitted;
    taken_apart(model, model.run(inputs, outputs, terms).await, batch, started)
}

/// The model's pipeline, if it takes photographs.
pub(super) fn photograph_pipeline(model: &LoadedModel) -> Result<&Arc<dyn Pipeline>, Misfit> {
    let input = Input::Photograph;
    model.pipeline.as_ref().filter(|pipeline| pipeline.kind().input == input).ok_or_else(|| Misfit::Photograph {
        reason: format!(
            "model '{}' takes no photographs: its model.toml has no {}. Send tensors",
            model.name,
            input.sections()
        ),
    })
}

/// Decodes a photograph on a core of its own and runs the model on it.
pub(super) async fn run_photograph(
    model: &LoadedModel,
    pipeline: &Arc<dyn Pipeline>,
    request: PhotographRequest,
    limits: DecodeLimits,
    terms: Terms,
    started: Instant,
) -> Result<Answer, ServingError> {
    // Queued, a photograph waits undecoded: that is a few hundred kB, not some MB.
    let PhotographRequest { photograph, account, .. } = request;
    let outputs = pipeline.outputs().to_vec();
    let answer = model.run_pipeline(pipeline, photograph, limits, account, outputs, terms).await;
    taken_apart(model, answer, 1, started)
}

fn taken_apart(
    model: &LoadedModel,
    answer: Result<instance::Answer, InferError>,
    batch: usize,
    started: Instant,
) -> Result<Answer, ServingError> {
    let instance::Answer { run, queue, prepare } = answer.map_err(|error| match error {
        InferError::Overloaded { depth } => ServingError::Overloaded { model: model.name.clone(), depth },
        InferError::DeadlineExceeded { run, .. } => {
            ServingError::DeadlineExceeded { model: model.name.clone(), waited: started.elapsed(), run }
        }
        InferError::Unavailable { reason } => ServingError::Unavailable { model: model.name.clone(), reason },
        InferError::Unprepared(Unprepared::Misfit(reason)) => Misfit::Photograph { reason }.into(),
        InferError::Unprepared(Unprepared::NoRoom(error)) => error.into(),
        InferError::Run(error @ RunError::Input { .. }) => {
            ServingError::BadInput { model: model.name.clone(), reason: error.to_string() }
        }
        InferError::Run(error) => ServingError::failed(model, error.to_string()),
    })?;
    let compute = run.time;
    let timings = Timings { decode: prepare, queue, compute: compute.total() };
    let counted = Counted::Run { batch, queue, compute, missed: None };
    Ok(Answer { outputs: run.outputs, timings, cache: None, counted })
}

/// The error of a call whose deadline passed before it came to a run.
pub(super) fn late(model: &LoadedModel, started: Instant) -> ServingError {
    ServingError::DeadlineExceeded { model: model.name.clone(), waited: started.elapsed(), run: None }
}

/// The answer under `key`, or else what `compute` makes of it; `since` is when the making of the key began.
pub(super) async fn cached<F: Future<Output = Result<Answer, ServingError>>>(
    cache: &ResponseCache,
    key: Key,
    model: &Arc<LoadedModel>,
    terms: &Terms,
    times: Times,
    compute: impl FnOnce() -> F,
) -> Result<Answer, ServingError> {
    if let Some(outputs) = cache.get(key, times.since) {
        return Ok(Answer::kept(&outputs, CacheOutcome::Hit, times.since.elapsed()));
    }
    let join = cache.join(key, terms.priority, times.since);
    let found = tokio::time::timeout_at(terms.deadline.into(), join).await.map_err(|_| late(model, times.started))?;
    let lookup = times.since.elapsed();
    match found {
        Found::Joined(outputs) => Ok(Answer::kept(&outputs, CacheOutcome::Joined, lookup)),
        Found::Lead(lead) => {
            let mut answer = compute().await?;
            let now = Instant::now();
            lead.keep(&answer.outputs, now);
            answer.cache = Some(CacheOutcome::Miss);
            if let Counted::Run { missed, .. } = &mut answer.counted {
                *missed = Some((lookup, now.elapsed()));
            }
            Ok(answer)
        }
    }
}

/// When a call came in, and when it began to look for a kept answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub started: Instant,
    pub since: Instant,
}
