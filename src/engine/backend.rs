//! The seam between Ledge and a runtime: plain data in, plain data out, on one thread at a time.
//!
//! Whatever crosses this seam could cross a process boundary too.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ledge_base::tensor::{DataType, Tensor};
use serde::{Deserialize, Serialize};

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
    /// Both, in the order that `auto` tries them for an ONNX model: ONNX Runtime loads ten times faster.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// `model.onnx`.
    Onnx,
    /// `model.xml` with `model.bin`.
    OpenVinoIr,
    /// `model.tflite`.
    TfLite,
}

impl Format {
    /// Whether `runtime` reads this format at all.
    pub fn is_read_by(self, runtime: Runtime) -> bool {
        match runtime {
            Runtime::OnnxRuntime => self == Self::Onnx,
            Runtime::OpenVino => true,
        }
    }

    /// What people call it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Onnx => "ONNX",
            Self::OpenVinoIr => "OpenVINO IR",
            Self::TfLite => "TFLite",
        }
    }
}

/// The files of one version of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFiles {
    pub format: Format,
    /// `model.onnx`, `model.xml` or `model.tflite`.
    pub model: PathBuf,
    /// `model.bin` of an OpenVINO IR.
    pub weights: Option<PathBuf>,
    /// The names of inputs and outputs in the file's order, where the file tells (ONNX). A runtime that knows several
    /// names for one tensor takes these.
    pub port_names: Option<PortNames>,
    /// What callers could do to a runtime, where the file tells.
    pub dangers: Dangers,
}

/// What callers could do to a runtime by the numbers that they send. Known of ONNX files; of others, whether they have
/// control flow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dangers {
    /// Why a runtime may not run the model at all: what a caller sends would end the process, lead into its memory, or be
    /// answered wrong.
    pub refused: Vec<(Runtime, String)>,
    /// The inputs whose numbers choose rows of a table, with how many rows it has.
    pub rows: Vec<(String, i64)>,
    /// The inputs that are multiplied by a matrix, with how long their last dimension must be for it.
    pub widths: Vec<(String, i64)>,
    /// The inputs by whose numbers whole numbers are divided.
    pub divisors: Vec<Divisor>,
    /// Whether the model has graphs within its graph, whose shapes its own do not tell.
    pub has_control_flow: bool,
}

/// A division of whole numbers by those of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divisor {
    pub input: String,
    /// The input that has the numbers that are divided, where one has.
    pub dividend: Option<String>,
}

impl ModelFiles {
    /// The same files in another folder.
    #[must_use]
    pub fn moved_to(&self, folder: &Path) -> Self {
        let moved = |path: &PathBuf| folder.join(path.file_name().unwrap_or_default());
        Self { model: moved(&self.model), weights: self.weights.as_ref().map(moved), ..self.clone() }
    }

    /// How long they are together, as far as they can be looked at.
    pub fn bytes(&self) -> u64 {
        let files = [Some(&self.model), self.weights.as_ref()];
        files.into_iter().flatten().filter_map(|path| Some(path.metadata().ok()?.len())).sum()
    }
}

/// The names of a model's inputs and outputs, in the model's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortNames {
    /// Inputs, initializers left out.
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
}

/// One input or output of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Port {
    /// Its name in the model.
    pub name: String,
    /// The datatype of its elements.
    pub datatype: DataType,
    /// Its dimensions, the batch included; -1 is variable.
    pub shape: Vec<i64>,
}

impl Port {
    /// Tells whether a tensor of `shape` fits.
    pub fn takes_shape(&self, shape: &[usize]) -> bool {
        let mut dims = self.shape.iter().zip(shape);
        self.shape.len() == shape.len() && dims.all(|(&dim, &side)| dim == -1 || usize::try_from(dim) == Ok(side))
    }
}

/// What a model takes and gives.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signature {
    /// Inputs in the model's order.
    pub inputs: Vec<Port>,
    /// Outputs in the model's order.
    pub outputs: Vec<Port>,
}

/// Why a runtime does not run a model. `Display` is one line for people; the runtime's own words are inside.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The runtime's shared library is not there or cannot be used.
    #[error("{runtime} is not available: {reason}")]
    RuntimeMissing {
        runtime: Runtime,
        /// What was looked for, and what happened.
        reason: String,
    },
    #[error("{runtime} does not read {} files", format.as_str())]
    Format { runtime: Runtime, format: Format },
    #[error("{runtime} refused the model: {reason}")]
    Refused { runtime: Runtime, reason: String },
    /// The runtime does not withstand what callers may send to this model.
    #[error("{runtime} is not safe for this model: {reason}")]
    Danger {
        runtime: Runtime,
        /// The operator, and what it does.
        reason: String,
    },
    /// The model has an input or output that Ledge cannot carry.
    #[error("{runtime}: {port} {name:?} {reason}")]
    Port {
        runtime: Runtime,
        /// "input" or "output".
        port: &'static str,
        /// The name of the input or output.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Why one run failed. The model stays loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The values cannot be handed to the runtime: the caller's fault.
    #[error("input {name:?} {reason}")]
    Input {
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    #[error("{runtime} failed: {reason}")]
    Runtime { runtime: Runtime, reason: String },
    /// The runtime gave an output that is not the tensor it announced.
    #[error("output {name:?} {reason}")]
    Output {
        name: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// What one run gave, and where its time went.
#[derive(Debug, Clone, PartialEq)]
pub struct RunResult {
    /// The outputs asked for, in that order.
    pub outputs: Vec<Tensor>,
    /// The time of each phase.
    pub time: ComputeTime,
}

/// The phases of one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ComputeTime {
    /// Handing the inputs to the runtime.
    pub input: Duration,
    pub infer: Duration,
    /// Taking the outputs from the runtime.
    pub output: Duration,
}

impl ComputeTime {
    /// The phases, from the instants between them.
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

    /// What it takes and gives.
    fn signature(&self) -> &Signature;

    /// Whether the next run begins at once. After a failed one it may begin with a repair, which can take as long as a load.
    fn is_sound(&self) -> bool {
        true
    }

    /// Does now what the next run would have to begin with.
    fn repair(&mut self) {}

    /// Runs the model once.
    ///
    /// `inputs` are in the signature's order and fit it; `outputs` are indices into the signature's outputs, and the
    /// tensors come back in that order.
    fn run(&mut self, inputs: &[Tensor], outputs: &[usize]) -> Result<RunResult, RunError>;
}

/// How a model is to be loaded.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Threads that the runtime may use for one run, the calling one included.
    pub threads: usize,
    /// Where compiled models are kept between starts; `None` keeps none.
    pub cache_dir: Option<PathBuf>,
    /// Whether the runtime is to take slower instructions where the CPU's own for int8 would give wrong sums, if it can.
    pub exact_int8: bool,
}
