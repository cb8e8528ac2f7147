//! Messages between the daemon and a child: plain data. Orders and their results go over a socket, jobs and answers
//! through job channels.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ledge_base::tensor::{DataType, Tensor};
use ledge_engine::backend::{
    ComputeTime, LoadOptions, ModelFiles, ModelFormat, ModelLoadError, ModelSignature, Runtime,
};
use ledge_engine::files::ModelFileFacts;
use ledge_engine::pipeline::chain::LeaseId;
use ledge_engine::pipeline::picture_reading::PictureReading;
use ledge_engine::pipeline::setup::PipelineSetup;
use ledge_engine::pipeline::work::{PipelineRunError, PipelineRunHead, PipelineRunTimes};
use ledge_engine::warm_up::WarmUp;
use ledge_sandbox::SandboxReport;
use serde::{Deserialize, Serialize};

use crate::job_channel::{AreaWriter, ByteRange, JobChannelError};

/// A model in a child, by a number that the daemon gave it.
pub type ModelId = u64;

/// A pipeline in a child, likewise.
pub type PipelineId = u64;

/// The reading of a model file, likewise.
pub type ReadId = u64;

/// The first message to a child. The default is for one that runs no models.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ChildSetup {
    /// The job channels. A file with the shared memory of each follows, after that of the crash report.
    pub channels: Vec<JobChannelThread>,
    /// The folder of the runtimes' libraries.
    pub runtimes: PathBuf,
    /// The folders of runtimes that have their own, by their names.
    pub own_folders: BTreeMap<String, PathBuf>,
    /// The folders in which model files appear.
    pub readable: Vec<PathBuf>,
    /// The folders in which it may leave compiled models.
    pub writable: Vec<PathBuf>,
    /// The most memory that it may reserve, in bytes; `None` for no limit.
    pub memory_bytes: Option<u64>,
    /// The most memory that it may use for prepared content of calls, in bytes.
    pub content_bytes: usize,
    /// Set for a trial, which waits for the threads that answer requests.
    pub is_trial: bool,
    /// Set for one that ends before all others when memory is short.
    pub ends_first: bool,
}

/// The core and priority of the thread that serves a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobChannelThread {
    pub core: usize,
    /// True for a thread that gives way to the others of its core.
    pub is_background: bool,
}

impl JobChannelThread {
    /// The place of a thread that gives way to none.
    pub fn foreground(core: usize) -> Self {
        Self { core, is_background: false }
    }
}

/// An order of the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ChildRequest {
    Load(Box<ChildLoadRequest>),
    Unload(ModelId),
    Bind(PipelineId, Box<PipelineSetup>),
    Unbind(PipelineId),
    ReleaseLease(PipelineId, LeaseId),
    /// Cancel the run of this job, unless it has ended.
    Cancel {
        channel: usize,
        job: u32,
    },
    /// Read a model file for its facts. The open file follows.
    Read(ReadId, ModelFormat),
    /// Load the library of a runtime.
    Open(u64, Runtime),
}

/// The files of a model and how to load them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChildLoadRequest {
    pub model: ModelId,
    pub runtime: Runtime,
    pub files: ModelFiles,
    pub options: LoadOptions,
    /// The cores that the runtime's own threads may use.
    pub cores: Vec<usize>,
    /// Runs before the model serves.
    pub warm_up: Option<WarmUp>,
}

/// A message of a child: first the report about its sandbox, then the result of each order that has one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ChildMessage {
    Sandboxed(SandboxReport),
    Loaded(ModelId, Result<LoadedModelFacts, ModelLoadError>),
    Bound(PipelineId, Result<(), String>),
    Read(ReadId, Result<Box<ModelFileFacts>, String>),
    /// The version of a runtime, or the reason why it does not load.
    Opened(u64, Result<String, String>),
}

/// The facts about a model that was loaded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadedModelFacts {
    pub signature: ModelSignature,
    /// The memory that the load took, in bytes.
    pub bytes: u64,
    /// See [`Backend::missed_cache`](ledge_engine::backend::Backend::missed_cache).
    pub missed_cache: bool,
}

/// The head of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum JobHead {
    Run {
        model: ModelId,
        inputs: Vec<TensorHead>,
        outputs: Vec<usize>,
        /// See [`ledge_engine::backend::RunContext::is_wide`].
        is_wide: bool,
    },
    Work {
        model: ModelId,
        pipeline: PipelineId,
        calls: Vec<PipelineCallHead>,
        outputs: Vec<usize>,
        own: usize,
        is_wide: bool,
    },
    /// See [`ledge_engine::backend::Backend::repair`].
    Repair(ModelId),
}

/// One call of a run with a pipeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PipelineCallHead {
    pub input: PipelineRunHead,
    /// The large bytes of the input.
    pub places: Vec<ByteRange>,
}

/// A tensor without its bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TensorHead {
    pub datatype: DataType,
    pub shape: Vec<usize>,
    pub place: ByteRange,
}

impl TensorHead {
    /// Writes the bytes of `tensor` into an area.
    pub fn write(tensor: &Tensor, area: &mut AreaWriter<'_>) -> Result<Self, JobChannelError> {
        let place = area.put(tensor.data())?;
        Ok(Self { datatype: tensor.datatype(), shape: tensor.shape().to_vec(), place })
    }
}

/// The head of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerHead {
    pub result: Result<RunHead, PipelineRunError>,
    /// See [`ledge_engine::backend::Backend::is_sound`].
    pub is_sound: bool,
    pub times: PipelineRunTimes,
}

/// The result of a run without the bytes of its outputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunHead {
    pub outputs: Vec<TensorHead>,
    pub time: ComputeTime,
    /// See [`ledge_engine::backend::RunResult::pictures`].
    pub pictures: Vec<PictureReading>,
}

/// Reads a message of a child: the first byte says if it is one over the socket or the head of an answer. True when it
/// is one; it is the same after it was written and read again. Facts that pass their check name no file outside the
/// model's folder, and are not too many. The folder `fuzz/` and `tests/it/fuzz.rs` feed it.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_child_message(data: &[u8]) -> bool {
    fn message<T: Serialize + serde::de::DeserializeOwned>(bytes: &[u8]) -> Option<T> {
        let message = postcard::from_bytes::<T>(bytes).ok()?;
        let written = postcard::to_allocvec(&message).unwrap_or_default();
        let again = postcard::from_bytes::<T>(&written).map(|again| postcard::to_allocvec(&again).unwrap_or_default());
        // Not the values, since a scale may be no number.
        assert_eq!(again.as_ref(), Ok(&written));
        Some(message)
    }
    match data.split_first() {
        Some((kind, bytes)) if kind.is_multiple_of(2) => {
            let Some(done) = message::<ChildMessage>(bytes) else { return false };
            if let ChildMessage::Read(_, Ok(facts)) = done {
                for format in [ModelFormat::Onnx, ModelFormat::OpenVinoIr, ModelFormat::TfLite] {
                    if facts.check(format).is_ok() {
                        assert_sound(&facts);
                    }
                }
            }
            true
        }
        Some((_, bytes)) => message::<AnswerHead>(bytes).is_some(),
        None => false,
    }
}

/// Panics for facts that the daemon must not use.
#[cfg(any(test, feature = "fuzzing"))]
fn assert_sound(facts: &ModelFileFacts) {
    use std::path::Component;

    for path in facts.external.iter().map(|file| &file.path) {
        assert!(
            path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)),
            "{}",
            path.display()
        );
    }
    assert!(facts.quantization.values().all(|quantization| quantization.is_valid()));
    assert!(postcard::to_allocvec(facts).is_ok_and(|bytes| bytes.len() < crate::process::RESULT_BYTES_MAX));
}

impl RunHead {
    /// Where the outputs end in their area, as the child says.
    pub fn end(&self) -> usize {
        self.outputs.iter().map(|head| head.place.offset.saturating_add(head.place.length)).max().unwrap_or(0)
    }
}
