//! Runs of a loaded model, alone and through its pipeline.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use ledge_base::memory_budget::MemoryAccount;
use ledge_base::tensor::Tensor;
use ledge_engine::pipeline::content::{CallContent, ContentDivision, PipelineInput};
use ledge_engine::pipeline::image::DecodeLimits;
use ledge_engine::pipeline::kind::{Pipeline, PostprocessError, PreprocessError};
use ledge_engine::pipeline::work::PipelineRunInput;
use ledge_service::off_thread::off_thread;

use super::super::scheduling::inputs::PipelineInputs;
use super::super::scheduling::outcome::{FinishedRun, InferError};
use super::chain;
use super::loaded_model::LoadedModel;
use crate::scheduling::terms::RunTerms;

/// The most bytes of content that are divided on an async thread.
const INLINE_CONTENT_BYTES_MAX: usize = 64 << 10;

impl LoadedModel {
    /// Runs the model once. The inputs are in the signature's order and fit it.
    pub async fn run(
        &self,
        inputs: Vec<Tensor>,
        outputs: Vec<usize>,
        terms: RunTerms,
    ) -> Result<FinishedRun, InferError> {
        if self.is_chain() {
            let contents = self.input().map_or("content", PipelineInput::plural);
            let reason = format!("'{}' reads {contents}: send the bytes of one", self.name);
            return Err(InferError::Preparation(PreprocessError::Content(reason)));
        }
        let rows = self.batch_limit.and_then(|_| inputs.first()?.shape().first().copied()).unwrap_or(1);
        self.instances.run(inputs, outputs, rows, terms).await
    }

    /// Runs the model on what `pipeline`, the model's own, makes of `content`, on a core of its own. Intermediate
    /// results count for `account` while they are there. The answer has the outputs `outputs` of the run, by their
    /// positions, and behind them the pipeline's results.
    ///
    /// A content that is too much for one run becomes several, in turn with those of other callers. They take no more
    /// places in the queue at a time than there are instances, and one.
    pub async fn run_pipeline(
        &self,
        pipeline: &Arc<dyn Pipeline>,
        content: CallContent,
        limits: DecodeLimits,
        account: MemoryAccount,
        outputs: Vec<usize>,
        terms: RunTerms,
    ) -> Result<FinishedRun, InferError> {
        if let Some(chain) = pipeline.chain() {
            // Boxed: a call of one model does not reserve space for this future.
            return Box::pin(chain::run(self, (pipeline, chain), content, limits, account, terms)).await;
        }
        let run = |part| self.run_part(pipeline, part, limits, account.clone(), outputs.clone(), terms.clone());
        let Some(ContentDivision { parts, places }) = divide(pipeline, &content, &account).await else {
            return run(content).await;
        };
        let at_a_time = self.scale().max + 1;
        // Boxed: a call of one run does not reserve space for this future.
        let runs =
            Box::pin(stream::iter(parts.into_iter().map(run)).buffered(at_a_time).try_collect::<Vec<_>>()).await?;
        let wrong =
            || InferError::Outputs(PostprocessError::Values("the parts of the result do not fit together".to_owned()));
        join(&places, runs).ok_or_else(wrong)
    }

    async fn run_part(
        &self,
        pipeline: &Arc<dyn Pipeline>,
        content: CallContent,
        limits: DecodeLimits,
        account: MemoryAccount,
        outputs: Vec<usize>,
        terms: RunTerms,
    ) -> Result<FinishedRun, InferError> {
        let own = outputs.len();
        let outputs = outputs.into_iter().chain(pipeline.outputs().iter().copied()).collect();
        let input = PipelineRunInput::Content { content, limits };
        let raw = PipelineInputs { pipeline: pipeline.clone(), input, account, own };
        self.instances.run_raw(raw, outputs, terms).await
    }
}

/// Divides a content that is too much for one run, a large one off the async thread.
async fn divide(
    pipeline: &Arc<dyn Pipeline>,
    content: &CallContent,
    account: &MemoryAccount,
) -> Option<ContentDivision> {
    if content.bytes() <= INLINE_CONTENT_BYTES_MAX {
        return pipeline.divide(content);
    }
    let (pipeline, content) = (pipeline.clone(), content.clone());
    off_thread(account, move || pipeline.divide(&content)).await
}

/// The runs of the parts of a content as one run.
fn join(places: &[usize], runs: Vec<FinishedRun>) -> Option<FinishedRun> {
    let mut whole = FinishedRun::default();
    let mut parts = Vec::with_capacity(runs.len());
    for FinishedRun { run, queue, prepare, postprocess, cpu_share, .. } in runs {
        whole.run.time += run.time;
        whole.run.cpu += run.cpu;
        // Parts wait at the same time.
        whole.queue = whole.queue.max(queue);
        whole.prepare += prepare;
        whole.postprocess += postprocess;
        whole.cpu_share += cpu_share;
        parts.push(run.outputs);
    }
    whole.run.outputs = ContentDivision::join(places, &parts)?;
    Some(whole)
}
