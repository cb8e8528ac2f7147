//! Models in this process, for tests on emulated CPUs, where no sandbox is possible. Only in builds with the feature
//! `in-process`, and only if the environment asks for it.

use std::sync::LazyLock;
use std::time::Duration;

use ledge_base::telemetry::process;
use ledge_base::tensor::Tensor;
use ledge_engine::backend::{
    Backend, ModelFiles, ModelLoadError, ModelRunError, ModelSignature, RunContext, RunResult, Runtime,
};
use ledge_engine::pipeline::kind::Pipeline;
use ledge_engine::pipeline::work::{self, FinishedPipelineRun, PipelineRun, PipelineRunTimes, RunPipeline};

use super::instance_spec::InstanceSpec;

/// The variable of the environment that asks for it.
pub const VARIABLE: &str = "LEDGE_TEST_IN_PROCESS";

/// True where the environment asks for models in this process.
pub fn is_asked_for() -> bool {
    static IS_ASKED_FOR: LazyLock<bool> = LazyLock::new(|| std::env::var_os(VARIABLE).is_some());
    *IS_ASKED_FOR
}

/// Loads an instance into this process, and runs its warm-up. Also returns its memory in bytes.
pub(super) fn load(spec: &InstanceSpec, files: &ModelFiles) -> Result<(Box<dyn RunPipeline>, u64), ModelLoadError> {
    let before = process::resident_bytes();
    let mut backend = spec.runtimes.load(spec.runtime, files, &spec.options)?;
    if let Some(warm_up) = spec.warm_up.get() {
        warm_up.run(&mut *backend);
    }
    let grown = process::resident_bytes().saturating_sub(before);
    Ok((Box::new(InProcessBackend(backend)), grown.max(files.bytes())))
}

/// A model in this process, with its pipelines.
struct InProcessBackend(Box<dyn Backend>);

impl Backend for InProcessBackend {
    fn runtime(&self) -> Runtime {
        self.0.runtime()
    }

    fn signature(&self) -> &ModelSignature {
        self.0.signature()
    }

    fn is_sound(&self) -> bool {
        self.0.is_sound()
    }

    fn repair(&mut self) {
        self.0.repair();
    }

    fn run(&mut self, inputs: &[Tensor], outputs: &[usize], place: RunContext) -> Result<RunResult, ModelRunError> {
        self.0.run(inputs, outputs, place)
    }
}

impl RunPipeline for InProcessBackend {
    fn run_work(&mut self, pipeline: &dyn Pipeline, work: PipelineRun<'_>, place: RunContext) -> FinishedPipelineRun {
        work::run(&mut *self.0, pipeline, work, place)
    }

    fn finish(&mut self, _patience: Duration) -> FinishedPipelineRun {
        let error = ModelRunError::Interrupted { reason: "no run is in progress".to_owned(), is_explained: false };
        FinishedPipelineRun { result: Err(error.into()), times: PipelineRunTimes::default() }
    }
}
