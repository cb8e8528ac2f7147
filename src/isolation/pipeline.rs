//! Pipelines that process foreign bytes in children. The daemon has a proxy of each, for its facts and to make answers
//! from results. A child makes the inputs of runs, and results from outputs.

use std::sync::Arc;

use ledge_base::memory_budget::MemoryReservation;
use ledge_base::tensor::Tensor;
use ledge_engine::pipeline::annotation::TextOutline;
use ledge_engine::pipeline::chain::{LeaseId, ModelChain};
use ledge_engine::pipeline::content::{CallContent, ContentDivision};
use ledge_engine::pipeline::detection::Detection;
use ledge_engine::pipeline::image::DecodeLimits;
use ledge_engine::pipeline::kind::{
    FeatureColumn, GoldenExpectation, Pipeline, PipelineKind, PostprocessError, PreprocessError, PreprocessedInputs,
};
use ledge_engine::pipeline::setup::PipelineSetup;
use serde_json::value::RawValue;

use crate::wire::PipelineId;
use crate::worker_process::{ChildPipelines, KnownPipeline};

/// A pipeline of a model in a child.
#[derive(Debug)]
pub(crate) struct RemotePipeline {
    proxy: Arc<dyn Pipeline>,
    id: PipelineId,
    pipelines: Arc<ChildPipelines>,
}

impl RemotePipeline {
    /// Registers a pipeline; `proxy` is bound of the same setup.
    pub fn new(pipelines: &Arc<ChildPipelines>, proxy: Arc<dyn Pipeline>, setup: PipelineSetup) -> Self {
        let id = pipelines.next_id();
        pipelines.lock().insert(id, KnownPipeline { setup: Arc::new(setup), homes: Vec::new() });
        Self { proxy, id, pipelines: pipelines.clone() }
    }
}

impl Drop for RemotePipeline {
    fn drop(&mut self) {
        for worker in self.pipelines.homes(self.id) {
            worker.child.unbind(self.id);
        }
        self.pipelines.lock().remove(&self.id);
    }
}

impl Pipeline for RemotePipeline {
    fn remote_id(&self) -> Option<u64> {
        Some(self.id)
    }

    fn release(&self, lease: LeaseId) {
        self.proxy.release(lease);
        for worker in self.pipelines.homes(self.id) {
            worker.child.release(self.id, lease);
        }
    }

    fn kind(&self) -> &'static PipelineKind {
        self.proxy.kind()
    }

    fn sample(&self) -> CallContent {
        self.proxy.sample()
    }

    fn chain(&self) -> Option<&dyn ModelChain> {
        self.proxy.chain()
    }

    fn divide(&self, content: &CallContent) -> Option<ContentDivision> {
        self.proxy.divide(content)
    }

    fn feature_columns(&self) -> &[FeatureColumn] {
        self.proxy.feature_columns()
    }

    fn has_column(&self, name: &str) -> bool {
        self.proxy.has_column(name)
    }

    fn memory_of(&self, content: &CallContent, limits: DecodeLimits) -> usize {
        self.proxy.memory_of(content, limits)
    }

    fn prepare(
        &self,
        content: &CallContent,
        limits: DecodeLimits,
        hold: &mut MemoryReservation,
    ) -> Result<PreprocessedInputs, PreprocessError> {
        self.proxy.prepare(content, limits, hold)
    }

    fn outputs(&self) -> &[usize] {
        self.proxy.outputs()
    }

    fn scores(&self) -> Option<usize> {
        self.proxy.scores()
    }

    fn results(&self) -> Option<&'static [&'static str]> {
        self.proxy.results()
    }

    fn detections(&self, results: &[&Tensor]) -> Option<Vec<Detection>> {
        self.proxy.detections(results)
    }

    fn unreported(&self, results: &[&Tensor]) -> Vec<Detection> {
        self.proxy.unreported(results)
    }

    fn outlines(&self, results: &[&Tensor]) -> Option<Vec<TextOutline>> {
        self.proxy.outlines(results)
    }

    fn answer(&self, results: &[&Tensor]) -> Result<Box<RawValue>, PostprocessError> {
        self.proxy.answer(results)
    }

    fn judge(&self, results: &[&Tensor], expected: GoldenExpectation<'_>) -> Result<(), String> {
        self.proxy.judge(results, expected)
    }
}
