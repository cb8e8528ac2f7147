//! The interface between Ledge and a runtime: plain data in, plain data out, on one thread at a time.
//!
//! All data that passes through this interface could pass through a process boundary too.

use std::fmt;
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge_base::tensor::{DataType, Tensor};
use serde::{Deserialize, Serialize};

use crate::pipeline::picture_reading::PictureReading;

/// The bits of integers of callers that are not limited.
pub(crate) const ALL_BITS: u32 = 64;

/// A runtime that can run models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// ONNX Runtime, through the crate `ort`.
    OnnxRuntime,
    /// OpenVINO, through the crate `openvino`.
    OpenVino,
}

impl Runtime {
    /// All runtimes, in the order in which `auto` tries them for an ONNX model: ONNX Runtime loads ten times faster.
    pub const ALL: [Self; 2] = [Self::OnnxRuntime, Self::OpenVino];

    /// The name in the configuration and in answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnnxRuntime => "onnxruntime",
            Self::OpenVino => "openvino",
        }
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The format of a model's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ModelFormat {
    /// `model.onnx`.
    Onnx,
    /// `model.xml` with `model.bin`.
    OpenVinoIr,
    /// `model.tflite`.
    TfLite,
}

impl ModelFormat {
    /// Returns true if `runtime` reads this format at all.
    pub fn is_read_by(self, runtime: Runtime) -> bool {
        match runtime {
            Runtime::OnnxRuntime => self == Self::Onnx,
            Runtime::OpenVino => true,
        }
    }

    /// The common name of the format.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Onnx => "ONNX",
            Self::OpenVinoIr => "OpenVINO IR",
            Self::TfLite => "TFLite",
        }
    }
}

/// The files of one version of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFiles {
    pub format: ModelFormat,
    /// `model.onnx`, `model.xml` or `model.tflite`.
    pub model: PathBuf,
    /// `model.bin` of an OpenVINO IR.
    pub weights: Option<PathBuf>,
    /// The files with external data of an ONNX model, relative to its folder.
    pub external: Vec<PathBuf>,
    /// The names of inputs and outputs in the file's order, if the file has them (ONNX). A runtime that knows several
    /// names for one tensor uses these.
    pub port_names: Option<ModelPortNames>,
    /// The harm that callers could do to a runtime, if the file shows it.
    pub dangers: InputDangers,
    /// The outputs that are maps from classes to scores, which become tensors at the load (ONNX).
    pub class_maps: Vec<ZipMapOutput>,
}

/// An output that the operator `ZipMap` makes, as scikit-learn's converter does by default: for each row a map from
/// classes to scores. The scores are a tensor before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZipMapOutput {
    pub output: String,
    /// The tensor `[rows, classes]` that the map is made of.
    pub scores: String,
    /// The keys, in the order of the columns.
    pub classes: Vec<String>,
}

/// The harm that callers could do to a runtime with the numbers that they send.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InputDangers {
    /// The runtimes that must not run the model, with the reason: numbers of a caller would crash the process, access
    /// its memory or get a wrong answer, or the runtime lacks an operator.
    pub refused: Vec<(Runtime, String)>,
    /// The inputs that index rows of a table, with the number of its rows.
    pub rows: Vec<(String, i64)>,
    /// The inputs that are multiplied by a matrix, with the length that their last dimension must have.
    pub widths: Vec<(String, i64)>,
    /// The inputs that integers are divided by.
    pub divisors: Vec<Divisor>,
    /// The inputs that must not be empty.
    pub filled: Vec<String>,
    /// The runtimes that compute the model right only for integers of callers up to a number of bits, without the sign.
    pub bits: Vec<(Runtime, u32)>,
    /// Set for a model with subgraphs, because their shapes do not follow from those of the model.
    pub has_control_flow: bool,
}

/// A division of integers by an input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Divisor {
    pub input: String,
    /// The input that is divided, if it is one.
    pub dividend: Option<String>,
}

impl InputDangers {
    /// The most bits of callers' integers that `runtime` computes right, without the sign.
    pub fn bits_of(&self, runtime: Runtime) -> u32 {
        self.bits.iter().filter(|(limited, _)| *limited == runtime).map(|(_, bits)| *bits).min().unwrap_or(ALL_BITS)
    }
}

impl ModelFiles {
    /// The same files in another folder.
    #[must_use]
    pub fn moved_to(&self, folder: &Path) -> Self {
        let moved = |path: &PathBuf| folder.join(path.file_name().unwrap_or_default());
        Self { model: moved(&self.model), weights: self.weights.as_ref().map(moved), ..self.clone() }
    }

    /// The size of the files together in bytes, without those that cannot be read.
    pub fn bytes(&self) -> u64 {
        let files = [Some(&self.model), self.weights.as_ref()];
        files.into_iter().flatten().filter_map(|path| Some(path.metadata().ok()?.len())).sum()
    }
}

/// The names of a model's inputs and outputs, in the model's order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelPortNames {
    /// Inputs, without initializers.
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
}

/// One input or output of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelPort {
    /// Its name in the model.
    pub name: String,
    /// The datatype of its elements.
    pub datatype: DataType,
    /// Its dimensions, the batch included; -1 is variable.
    pub shape: Vec<i64>,
}

impl ModelPort {
    /// Returns true if a tensor of `shape` fits.
    pub fn takes_shape(&self, shape: &[usize]) -> bool {
        let mut dims = self.shape.iter().zip(shape);
        self.shape.len() == shape.len() && dims.all(|(&dim, &side)| dim == -1 || usize::try_from(dim) == Ok(side))
    }
}

/// The inputs and outputs of a model.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ModelSignature {
    /// Inputs in the model's order.
    pub inputs: Vec<ModelPort>,
    /// Outputs in the model's order.
    pub outputs: Vec<ModelPort>,
}

/// The side of a model that a port is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ModelPortKind {
    Input,
    Output,
}

impl fmt::Display for ModelPortKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Input => "input",
            Self::Output => "output",
        })
    }
}

/// A runtime did not load a model. `Display` is one line for people, with the runtime's own message in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum ModelLoadError {
    /// The runtime's shared library does not exist or cannot be used.
    #[error("{runtime} is not available: {reason}")]
    RuntimeMissing {
        runtime: Runtime,
        /// The file that was searched for, and the result of the search.
        reason: String,
    },
    #[error("{runtime} does not read {} files", format.as_str())]
    Format { runtime: Runtime, format: ModelFormat },
    #[error("{runtime} refused the model: {reason}")]
    Refused { runtime: Runtime, reason: String },
    /// Callers of this model could crash the runtime, or get wrong answers from it, or it lacks an operator.
    #[error("{runtime} is not used for this model: {reason}")]
    Danger {
        runtime: Runtime,
        /// The operator, and the harm.
        reason: String,
    },
    /// The process that was to load it could not be started.
    #[error("{runtime}: its process cannot be started: {reason}")]
    NoProcess { runtime: Runtime, reason: String },
    /// The load ended the process that it was in.
    #[error("{runtime}: {reason}")]
    Crashed { runtime: Runtime, reason: String },
    /// The process that loaded it ended for another reason than this load, which may be tried again.
    #[error("{runtime}: {reason}")]
    Interrupted {
        runtime: Runtime,
        reason: String,
        /// True when it is known what else was the cause.
        is_explained: bool,
    },
    /// The model has an input or output that Ledge cannot carry.
    #[error("{runtime}: {port} {name:?} {reason}")]
    Port {
        runtime: Runtime,
        port: ModelPortKind,
        /// The name of the input or output.
        name: String,
        /// The problem with it.
        reason: String,
    },
}

/// One run failed. The model stays loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum ModelRunError {
    /// The values cannot be passed to the runtime: the caller's fault.
    #[error("input {name:?} {reason}")]
    Input {
        name: String,
        /// The problem with it.
        reason: String,
    },
    #[error("{runtime} failed: {reason}")]
    Runtime { runtime: Runtime, reason: String },
    /// The runtime returned an output that is not the tensor that the signature has.
    #[error("output {name:?} {reason}")]
    Output {
        name: String,
        /// The problem with it.
        reason: String,
    },
    /// The process that ran the model ended, and this run is to blame.
    #[error("{reason}")]
    Crashed {
        /// The end of the process, with the signal or the limit.
        reason: String,
    },
    /// The process that ran the model ended for another reason than this run, which may be tried again.
    #[error("{reason}")]
    Interrupted {
        reason: String,
        /// True when it is known what else was the cause.
        is_explained: bool,
    },
    /// The run is still in progress in another process after [`RunContext::patience`]. The caller of the run waits for
    /// its end.
    #[error("the run is in progress")]
    InProgress,
    /// The run went on beyond its deadline and was cancelled. Its process goes on.
    #[error("the run was cancelled, because its deadline has passed")]
    Cancelled,
}

/// The result of one run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunResult {
    /// The outputs asked for, in that order.
    pub outputs: Vec<Tensor>,
    /// The time of each phase.
    pub time: ComputeTime,
    /// The CPU time of the thread that ran it, as far as it was measured, without a runtime's own threads; of a run
    /// with a pipeline, with that of the pipeline.
    pub cpu: Duration,
    /// The figures of the photographs of its calls; empty where the calls had none.
    pub pictures: Vec<PictureReading>,
}

/// The phases of one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeTime {
    /// Passing the inputs to the runtime.
    pub input: Duration,
    pub infer: Duration,
    /// Copying the outputs from the runtime.
    pub output: Duration,
}

impl AddAssign for ComputeTime {
    fn add_assign(&mut self, Self { input, infer, output }: Self) {
        self.input += input;
        self.infer += infer;
        self.output += output;
    }
}

impl ComputeTime {
    /// The phases, from the instants at their ends.
    pub fn between(start: Instant, staged: Instant, inferred: Instant, end: Instant) -> Self {
        Self { input: staged - start, infer: inferred - staged, output: end - inferred }
    }

    /// All phases together.
    pub fn total(self) -> Duration {
        self.input + self.infer + self.output
    }
}

/// A loaded model in one runtime. Any thread may run it, one at a time.
pub trait Backend: Send {
    /// The runtime that runs it.
    fn runtime(&self) -> Runtime;

    /// The inputs and outputs of the model.
    fn signature(&self) -> &ModelSignature;

    /// True if it was compiled last, and not taken from [`CompiledModelCache`].
    fn missed_cache(&self) -> bool {
        false
    }

    /// True if the next run begins at once. After a failed run it may begin with a repair, which can take as long as a
    /// load.
    fn is_sound(&self) -> bool {
        true
    }

    /// Does the repair now, before the next run.
    fn repair(&mut self) {}

    /// Releases memory that runs have left for later ones, such as that of the largest so far. It takes as long as a
    /// small run, or as a compilation from the cache. `smallest` are inputs of the smallest shapes, in the signature's
    /// order.
    fn release_memory(&mut self, _smallest: &[Tensor]) {}

    /// The number of the process that runs it, if that is not this one; see the crate `isolation`.
    fn process(&self) -> Option<u64> {
        None
    }

    /// Runs the model once.
    ///
    /// `inputs` are in the signature's order and fit it; `outputs` are indices into the signature's outputs, and the
    /// tensors come back in that order.
    fn run(&mut self, inputs: &[Tensor], outputs: &[usize], place: RunContext) -> Result<RunResult, ModelRunError>;

    /// Runs the model for several callers, one run after the other, with a result for each. In another process they
    /// share one hand-over: when one of them is [`ModelRunError::InProgress`], those behind it are
    /// [`ModelRunError::Interrupted`].
    fn run_each(&mut self, runs: &[RunInputs<'_>], place: RunContext) -> Vec<Result<RunResult, ModelRunError>> {
        runs.iter().map(|run| self.run(run.inputs, run.outputs, place)).collect()
    }

    /// The handle by which another thread cancels a run in this process; `None` where the runtime has no means.
    fn canceller(&self) -> Option<Arc<dyn CancelRun>> {
        None
    }
}

/// The arguments of one run; see [`Backend::run`].
#[derive(Debug, Clone, Copy)]
pub struct RunInputs<'r> {
    pub inputs: &'r [Tensor],
    pub outputs: &'r [usize],
}

/// Cancels the run of one loaded model.
pub trait CancelRun: Send + Sync {
    /// Asks the runtime to end the run with an error. To be called only while the model runs. A runtime looks for it
    /// between two operators.
    fn cancel(&self);

    /// Lets later runs go on. To be called after the end of a run that was cancelled.
    fn reset(&self) {}
}

/// The activity of a run in another process at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunActivity {
    /// The CPU time of its thread so far. A wide run has the share of one core in that of its process.
    pub cpu: Duration,
    /// True while its thread waits for something other than a core.
    pub is_waiting: bool,
}

/// Repairs `backend` after a failed run, so that the next caller does not wait for it.
pub fn repair(backend: &mut dyn Backend) {
    if !backend.is_sound() {
        // A fault here occurs again in the next run, which reports it.
        let _ = catch_unwind(AssertUnwindSafe(|| backend.repair()));
    }
}

/// The core and the time of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunContext {
    /// The core that the calling thread may use for the run, as an index into those that models run on.
    pub core: usize,
    /// True when the runtime's own threads use further cores.
    pub is_wide: bool,
    /// The time after which the caller no longer waits for the answer.
    pub deadline: Instant,
    /// The longest wait of the calling thread for a run in another process, which goes on as
    /// [`ModelRunError::InProgress`]; `None` waits to its end.
    pub patience: Option<Duration>,
}

/// The options of a load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadOptions {
    /// The threads that the runtime may use for one run, including the calling thread.
    pub threads: usize,
    pub cache: CompiledModelCache,
    /// Makes the runtime use slower instructions, if it can, on a CPU with int8 instructions that would give wrong
    /// sums.
    pub exact_int8: bool,
    /// True for a model of a chain. The shapes of its inputs hardly ever repeat, so little is kept for each shape.
    pub is_part: bool,
}

/// The folder in which OpenVINO finds and leaves compiled models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompiledModelCache {
    None,
    /// Kept between starts and used by several processes: locked, and checked by hashes. A folder in it for each
    /// version of the runtime.
    Shared(PathBuf),
    /// For this load only.
    Own(PathBuf),
}
