//! The tensors that answer a call: cached, shared with an equal call, or from a run of the model.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge_base::memory_budget::MemoryAccount;
use ledge_base::tensor::Tensor;
use ledge_engine::pipeline::content::{CallContent, PipelineInput};
use ledge_engine::pipeline::image::DecodeLimits;
use ledge_engine::pipeline::kind::Pipeline;
use ledge_engine::pipeline::picture_reading::PictureReading;

use super::super::scheduling::outcome::{FinishedRun, InferError};
use super::cache::{CacheKey, JoinOutcome, ResponseCache};
use super::call::CallStatistics;
use super::error::ServingError;
use super::inputs::{FittedRequest, InvalidRequest};
use super::request::{CacheOutcome, InferResponse, Timings};
use crate::repository::LoadedModel;
use crate::scheduling::terms::RunTerms;

/// The tensors that answer a call, with their timings and source.
#[derive(Debug)]
pub(super) struct ModelAnswer {
    pub outputs: Vec<Tensor>,
    pub timings: Timings,
    pub cache: Option<CacheOutcome>,
    pub counted: CallStatistics,
    /// Of a photograph that the model ran for.
    pub picture: Option<PictureReading>,
}

impl ModelAnswer {
    /// The response to a call that asked for the outputs `names`.
    pub fn into_response(self, model: &LoadedModel, names: Vec<String>) -> (InferResponse, CallStatistics) {
        let response = InferResponse {
            model: model.name.clone(),
            version: model.version,
            runtime: model.runtime(),
            outputs: names.into_iter().zip(self.outputs).collect(),
            timings: self.timings,
            cache: self.cache,
            features: Vec::new(),
            result: None,
            memory: MemoryAccount::unlimited().hold(),
        };
        (response, self.counted)
    }

    fn kept(outputs: &[Tensor], cache: CacheOutcome, lookup: Duration) -> Self {
        // For a call that joined another, the look-up was the wait.
        let queue = if cache == CacheOutcome::Joined { lookup } else { Duration::ZERO };
        let timings = Timings { queue, ..Timings::default() };
        let counted = CallStatistics::Hit { lookup };
        Self { outputs: outputs.to_vec(), timings, cache: Some(cache), counted, picture: None }
    }
}

/// Runs the model without the cache.
pub(super) async fn run(
    model: &LoadedModel,
    fitted: FittedRequest,
    terms: RunTerms,
    started: Instant,
) -> Result<ModelAnswer, ServingError> {
    let FittedRequest { inputs, outputs, batch } = fitted;
    into_answer(model, model.run(inputs, outputs, terms).await, batch, started)
}

/// The model's pipeline, if it takes `input`.
pub(super) fn content_pipeline(
    model: &LoadedModel,
    input: PipelineInput,
) -> Result<&Arc<dyn Pipeline>, InvalidRequest> {
    let pipeline = model.pipeline.as_ref();
    pipeline.filter(|pipeline| pipeline.kind().input == input).ok_or_else(|| {
        let (name, unwanted) = (&model.name, input.plural());
        let reason = if let Some(pipeline) = pipeline {
            format!("model '{name}' takes no {unwanted}: send {}", pipeline.kind().input.accepted())
        } else {
            let sections = input.sections();
            format!("model '{name}' takes no {unwanted}: its model.toml has no {sections}. Send tensors")
        };
        InvalidRequest::Content { reason }
    })
}

/// Runs the model on the content of a call, which is decoded on a core that models use. `account` counts the decoded
/// content.
pub(super) async fn run_content(
    model: &LoadedModel,
    pipeline: &Arc<dyn Pipeline>,
    (content, account): (CallContent, MemoryAccount),
    limits: DecodeLimits,
    terms: RunTerms,
    started: Instant,
) -> Result<ModelAnswer, ServingError> {
    // A photograph waits undecoded in the queue: it takes a few hundred kB then, not some MB.
    let batch = content.count();
    let answer = model.run_pipeline(pipeline, content, limits, account, Vec::new(), terms).await;
    into_answer(model, answer, batch, started)
}

fn into_answer(
    model: &LoadedModel,
    answer: Result<FinishedRun, InferError>,
    batch: usize,
    started: Instant,
) -> Result<ModelAnswer, ServingError> {
    let FinishedRun { run, queue, prepare, postprocess, cpu_share, stages } =
        answer.map_err(|error| ServingError::of_run(model, started, error))?;
    let compute = run.time;
    let timings = Timings { decode: prepare, queue, compute: compute.total(), postprocess, cpu: run.cpu, stages };
    let counted = CallStatistics::Run { batch, queue, compute, cpu: cpu_share, missed: None };
    let picture = run.pictures.first().copied();
    Ok(ModelAnswer { outputs: run.outputs, timings, cache: None, counted, picture })
}

/// Returns the answer under `key`, or else computes it. `times.since` is the time at which the computation of the key
/// began.
pub(super) async fn cached_or_computed<F: Future<Output = Result<ModelAnswer, ServingError>>>(
    cache: &ResponseCache,
    key: CacheKey,
    model: &Arc<LoadedModel>,
    terms: &RunTerms,
    times: LookupTimes,
    compute: impl FnOnce() -> F,
) -> Result<ModelAnswer, ServingError> {
    if let Some(outputs) = cache.get(key, times.since) {
        return Ok(ModelAnswer::kept(&outputs, CacheOutcome::Hit, times.since.elapsed()));
    }
    let join = cache.join(key, terms.priority, times.since);
    let found = tokio::time::timeout_at(terms.deadline.into(), join)
        .await
        .map_err(|_| ServingError::late(model, times.started))?;
    let lookup = times.since.elapsed();
    match found {
        JoinOutcome::Joined(outputs) => Ok(ModelAnswer::kept(&outputs, CacheOutcome::Joined, lookup)),
        JoinOutcome::Lead(lead) => {
            let mut answer = compute().await?;
            let now = Instant::now();
            lead.keep(&answer.outputs, now);
            answer.cache = Some(CacheOutcome::Miss);
            if let CallStatistics::Run { missed, .. } = &mut answer.counted {
                *missed = Some((lookup, now.elapsed()));
            }
            Ok(answer)
        }
    }
}

/// Time at which a call came in, and at which its cache look-up began.
#[derive(Debug, Clone, Copy)]
pub(super) struct LookupTimes {
    pub started: Instant,
    pub since: Instant,
}
