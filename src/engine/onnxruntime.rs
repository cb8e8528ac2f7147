//! ONNX Runtime behind `Backend`. Only this file and `ffi.rs` use the crate `ort`.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use half::{bf16, f16};
use ledge_base::sys;
use ledge_base::telemetry::system::Int8Arithmetic;
use ledge_base::tensor::{DataType, Tensor, TensorElement, element_count};
use ort::environment::Environment;
use ort::logging::LogLevel;
use ort::session::builder::SessionBuilder;
use ort::session::{RunOptions, Session, SessionInputValue};
use ort::value::{DynTensor, DynValue, PrimitiveTensorElementType, TensorElementType, TensorRef, ValueType};

use super::backend::{
    Backend, CancelRun, ComputeTime, Divisor, LoadOptions, ModelFiles, ModelFormat, ModelLoadError, ModelPort,
    ModelPortKind, ModelRunError, ModelSignature, RunContext, RunResult, Runtime,
};
use super::elements::copy_elements;
use super::ffi;
use super::onnx::class_maps;
use super::text::one_line;
use super::values::check_bits;

/// The loaded library of the runtime. A process has one.
#[derive(Debug, Clone)]
pub struct OnnxRuntime {
    environment: Environment,
    version: String,
}

impl OnnxRuntime {
    /// Loads the shared library at `library`.
    ///
    /// The library and its one environment live until the process ends, as ONNX Runtime requires.
    pub fn open(library: &Path) -> Result<Self, String> {
        // Nothing may leave the box, so a runtime that would send telemetry is refused.
        if std::env::var_os(sys::NO_TELEMETRY_VARIABLE).is_none_or(|value| value != "1") {
            return Err(format!(
                "ONNX Runtime would send telemetry: set {}=1 in its environment",
                sys::NO_TELEMETRY_VARIABLE
            ));
        }
        // The crate warns at each start that it was made for an older version. This version is pinned and tested.
        let silent = tracing::subscriber::NoSubscriber::default();
        let environment = tracing::subscriber::with_default(silent, || ort::init_from(library))
            .map_err(|error| error.to_string())?
            .with_name("ledge")
            .with_telemetry(false)
            .build()
            .map_err(|error| error.message().to_owned())?;
        // At lower levels it logs each pass of its optimizer, two hundred lines a model.
        environment.set_log_level(LogLevel::Warning);
        Ok(Self { environment, version: version_in_name(library, "libonnxruntime.so.") })
    }

    /// The version in the library's file name.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Loads a model. The runtime's own threads inherit the cores of the calling thread.
    pub fn load(&self, files: &ModelFiles, options: &LoadOptions) -> Result<Box<dyn Backend>, ModelLoadError> {
        if files.format != ModelFormat::Onnx {
            return Err(ModelLoadError::Format { runtime: Runtime::OnnxRuntime, format: files.format });
        }
        let session = self
            .session(files, options)
            .map_err(|reason| ModelLoadError::Refused { runtime: Runtime::OnnxRuntime, reason: one_line(&reason) })?;
        let ports = |kind, outlets: &[ort::value::Outlet]| -> Result<Vec<ModelPort>, ModelLoadError> {
            outlets.iter().map(|outlet| port(kind, outlet.name(), outlet.dtype())).collect()
        };
        let signature = ModelSignature {
            inputs: ports(ModelPortKind::Input, session.inputs())?,
            outputs: ports(ModelPortKind::Output, session.outputs())?,
        };
        let divisors = divisors(&files.dangers.divisors, &signature)?;
        let filled = signature.inputs.iter().map(|port| files.dangers.filled.contains(&port.name)).collect();
        let options = RunOptions::new().map_err(|error| {
            let reason = one_line(error.message());
            ModelLoadError::Refused { runtime: Runtime::OnnxRuntime, reason }
        })?;
        let options = Arc::new(SessionRunOptions(options));
        let bits = files.dangers.bits_of(Runtime::OnnxRuntime);
        Ok(Box::new(OnnxRuntimeBackend { session, signature, divisors, filled, bits, options }))
    }

    fn session(&self, files: &ModelFiles, options: &LoadOptions) -> Result<Session, String> {
        let message = |error: ort::Error<SessionBuilder>| error.message().to_owned();
        let builder = Session::builder(&self.environment).map_err(|error| error.message().to_owned())?;
        let builder = builder.with_intra_threads(options.threads).map_err(message)?;
        let builder = builder.with_inter_threads(1).map_err(message)?;
        // A thread that waits by spinning takes a core from the next model. Nothing here may use CPU time when idle.
        let builder = builder.with_intra_op_spinning(false).map_err(message)?;
        let mut builder = builder.with_inter_op_spinning(false).map_err(message)?;
        // Makes weights unsigned, so that their products are added in 32 bits. Not set with VNNI, where the same entry
        // takes twice as long and changes nothing.
        if options.exact_int8 && Int8Arithmetic::here() == Int8Arithmetic::Saturates {
            builder = builder.with_config_entry("session.x64quantprecision", "1").map_err(message)?;
        }
        if files.class_maps.is_empty() {
            return builder.commit_from_file(&files.model).map_err(|error| error.message().to_owned());
        }
        let bytes = std::fs::read(&files.model).map_err(|error| error.to_string())?;
        let rewritten = class_maps::rewrite(&bytes, &files.class_maps).ok_or("its file changed while it was loaded")?;
        drop(bytes);
        builder.commit_from_memory(&rewritten).map_err(|error| error.message().to_owned())
    }
}

/// The part of a library's file name after `prefix`, or `unknown`.
pub(super) fn version_in_name(library: &Path, prefix: &str) -> String {
    let name = library.file_name().unwrap_or_default().to_string_lossy();
    name.strip_prefix(prefix).unwrap_or("unknown").to_owned()
}

fn port(kind: ModelPortKind, name: &str, value_type: &ValueType) -> Result<ModelPort, ModelLoadError> {
    let refused = |reason: String| ModelLoadError::Port {
        runtime: Runtime::OnnxRuntime,
        port: kind,
        name: name.to_owned(),
        reason,
    };
    let ValueType::Tensor { ty, shape, .. } = value_type else {
        return Err(refused(format!("is a {value_type}, not a tensor")));
    };
    let datatype =
        datatype(*ty).ok_or_else(|| refused(format!("has the datatype {ty}, which the protocol does not support")))?;
    Ok(ModelPort { name: name.to_owned(), datatype, shape: shape.iter().map(|&dim| dim.max(-1)).collect() })
}

fn datatype(element: TensorElementType) -> Option<DataType> {
    Some(match element {
        TensorElementType::Bool => DataType::Bool,
        TensorElementType::Uint8 => DataType::Uint8,
        TensorElementType::Uint16 => DataType::Uint16,
        TensorElementType::Uint32 => DataType::Uint32,
        TensorElementType::Uint64 => DataType::Uint64,
        TensorElementType::Int8 => DataType::Int8,
        TensorElementType::Int16 => DataType::Int16,
        TensorElementType::Int32 => DataType::Int32,
        TensorElementType::Int64 => DataType::Int64,
        TensorElementType::Float16 => DataType::Fp16,
        TensorElementType::Bfloat16 => DataType::Bf16,
        TensorElementType::Float32 => DataType::Fp32,
        TensorElementType::Float64 => DataType::Fp64,
        TensorElementType::String => DataType::Bytes,
        _ => return None,
    })
}

struct OnnxRuntimeBackend {
    session: Session,
    signature: ModelSignature,
    /// The positions of the inputs that integers are divided by, each with the position of the dividend if it is an
    /// input.
    divisors: Vec<(usize, Option<usize>)>,
    /// For each input, true if it must not be empty, because an operator reads its first number without checking its
    /// length.
    filled: Vec<bool>,
    /// The most bits of integers of callers that the model computes right.
    bits: u32,
    options: Arc<SessionRunOptions>,
}

/// The options of all runs of one session. The runtime looks before each operator if a run is to end, also before those
/// of the body of a loop.
struct SessionRunOptions(RunOptions);

impl CancelRun for SessionRunOptions {
    fn cancel(&self) {
        // Neither call fails for options that exist.
        let _ = self.0.terminate();
    }

    fn reset(&self) {
        let _ = self.0.unterminate();
    }
}

fn divisors(found: &[Divisor], signature: &ModelSignature) -> Result<Vec<(usize, Option<usize>)>, ModelLoadError> {
    let position = |name: &str| signature.inputs.iter().position(|port| port.name == name);
    let positions = |Divisor { input, dividend }: &Divisor| {
        let reason = || format!("divides integers by {input:?}, which is not one of its inputs");
        let divisor = position(input)
            .ok_or_else(|| ModelLoadError::Refused { runtime: Runtime::OnnxRuntime, reason: reason() })?;
        Ok((divisor, dividend.as_deref().and_then(position)))
    };
    found.iter().map(positions).collect()
}

/// Refuses to divide the smallest integer by -1, for which the CPU ends the process. The value of a computed dividend
/// is not known, so no -1 is accepted for one.
fn check_division(divisor: &Tensor, dividend: Option<&Tensor>) -> Result<(), String> {
    fn contains<T: TensorElement + Pod + PartialEq>(tensor: &Tensor, number: T) -> bool {
        tensor.elements::<T>().is_some_and(|numbers| numbers.contains(&number))
    }
    let divides_by_minus_one = contains(divisor, -1_i64) || contains(divisor, -1_i32);
    let has_smallest = dividend.is_none_or(|dividend| contains(dividend, i64::MIN) || contains(dividend, i32::MIN));
    if divides_by_minus_one && has_smallest {
        return Err("is a divisor and contains -1, by which the smallest integer cannot be divided".to_owned());
    }
    Ok(())
}

impl Backend for OnnxRuntimeBackend {
    fn runtime(&self) -> Runtime {
        Runtime::OnnxRuntime
    }

    fn signature(&self) -> &ModelSignature {
        &self.signature
    }

    fn canceller(&self) -> Option<Arc<dyn CancelRun>> {
        Some(self.options.clone())
    }

    fn run(&mut self, inputs: &[Tensor], outputs: &[usize], _: RunContext) -> Result<RunResult, ModelRunError> {
        let options = self.options.clone();
        self.run_with(&options.0, inputs, outputs)
    }

    /// Runs with the option to shrink the arena at the end of the run: there is no other way to shrink it. With fixed
    /// shapes the next run would need the same memory.
    fn release_memory(&mut self, smallest: &[Tensor]) {
        let varies = self.signature.inputs.iter().any(|port| port.shape.contains(&-1));
        if varies
            && let Ok(mut options) = RunOptions::new()
            && options.set("memory.enable_memory_arena_shrinkage", "cpu:0").is_ok()
        {
            // A failure changes nothing.
            let _ = self.run_with(&options, smallest, &[]);
        }
    }
}

impl OnnxRuntimeBackend {
    fn run_with(
        &mut self,
        options: &RunOptions,
        inputs: &[Tensor],
        outputs: &[usize],
    ) -> Result<RunResult, ModelRunError> {
        let start = Instant::now();
        for &(divisor, dividend) in &self.divisors {
            let (Some(numbers), Some(port)) = (inputs.get(divisor), self.signature.inputs.get(divisor)) else {
                continue;
            };
            let dividend = dividend.and_then(|position| inputs.get(position));
            check_division(numbers, dividend)
                .map_err(|reason| ModelRunError::Input { name: port.name.clone(), reason })?;
        }

        let ports = self.signature.inputs.iter().zip(&self.filled);
        if let Some(((port, _), _)) =
            ports.zip(inputs).find(|((_, filled), tensor)| **filled && tensor.data().is_empty())
        {
            let reason = "is empty, and an operator reads its first number".to_owned();
            return Err(ModelRunError::Input { name: port.name.clone(), reason });
        }

        for (port, tensor) in self.signature.inputs.iter().zip(inputs) {
            check_bits(tensor, self.bits, "ONNX Runtime")
                .map_err(|reason| ModelRunError::Input { name: port.name.clone(), reason })?;
        }

        let values = self
            .signature
            .inputs
            .iter()
            .zip(inputs)
            .map(|(port, tensor)| {
                OrtInput::new(tensor).map_err(|reason| ModelRunError::Input { name: port.name.clone(), reason })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let views = values
            .iter()
            .zip(&self.signature.inputs)
            .map(|(value, port)| {
                value
                    .view()
                    .map_err(|reason| ModelRunError::Input { name: port.name.clone(), reason: reason.message().into() })
            })
            .collect::<Result<Vec<SessionInputValue<'_>>, _>>()?;

        let staged = Instant::now();
        let ran = self.session.run_with_options(views.as_slice(), options);
        let answers = ran.map_err(|error| ModelRunError::Runtime {
            runtime: Runtime::OnnxRuntime,
            reason: one_line(error.message()),
        })?;

        let inferred = Instant::now();
        let outputs = outputs
            .iter()
            .map(|&index| {
                let port = self.signature.outputs.get(index);
                let name = port.map_or("", |port| &port.name);
                answers
                    .get(name)
                    .ok_or_else(|| "was not produced".to_owned())
                    .and_then(extract)
                    .map_err(|reason| ModelRunError::Output { name: name.to_owned(), reason })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let time = ComputeTime::between(start, staged, inferred, Instant::now());
        Ok(RunResult { outputs, time, ..RunResult::default() })
    }
}

/// An input in the form that ONNX Runtime reads, borrowed from the tensor if its alignment allows that.
enum OrtInput<'a> {
    Numbers(NumberSlice<'a>, &'a [usize]),
    Strings(DynTensor),
}

macro_rules! numbers {
    ($($variant:ident($rust:ty)),* $(,)?) => {
        enum NumberSlice<'a> {
            Bool(&'a [bool]),
            $($variant(std::borrow::Cow<'a, [$rust]>),)*
        }

        impl<'a> NumberSlice<'a> {
            fn new(tensor: &'a Tensor) -> Option<Self> {
                match tensor.datatype() {
                    DataType::Bool => tensor.bools().map(Self::Bool),
                    $(DataType::$variant => tensor.elements::<$rust>().map(Self::$variant),)*
                    DataType::Bytes => None,
                }
            }

            fn view<'b>(&'b self, shape: &'b [usize]) -> ort::Result<SessionInputValue<'b>> {
                match self {
                    Self::Bool(elements) => view(shape, elements),
                    $(Self::$variant(elements) => view(shape, elements),)*
                }
            }
        }

        fn extract(value: &DynValue) -> Result<Tensor, String> {
            match element_type(value)? {
                DataType::Bool => extract_numbers::<bool>(value),
                $(DataType::$variant => extract_numbers::<$rust>(value),)*
                DataType::Bytes => extract_strings(value),
            }
        }
    };
}
numbers!(
    Uint8(u8),
    Uint16(u16),
    Uint32(u32),
    Uint64(u64),
    Int8(i8),
    Int16(i16),
    Int32(i32),
    Int64(i64),
    Fp16(f16),
    Bf16(bf16),
    Fp32(f32),
    Fp64(f64)
);

fn view<'b, T: PrimitiveTensorElementType + std::fmt::Debug + Clone + 'static>(
    shape: &'b [usize],
    elements: &'b [T],
) -> ort::Result<SessionInputValue<'b>> {
    Ok(TensorRef::from_array_view((shape, elements))?.into())
}

impl<'a> OrtInput<'a> {
    fn new(tensor: &'a Tensor) -> Result<Self, String> {
        if let Some(numbers) = NumberSlice::new(tensor) {
            return Ok(Self::Numbers(numbers, tensor.shape()));
        }
        let strings: Vec<&[u8]> = tensor.strings().into_iter().flatten().collect();
        ffi::onnxruntime_strings(tensor.shape(), strings.into_iter()).map(Self::Strings)
    }

    fn view(&self) -> ort::Result<SessionInputValue<'_>> {
        match self {
            Self::Numbers(numbers, shape) => numbers.view(shape),
            Self::Strings(strings) => Ok(strings.into()),
        }
    }
}

fn element_type(value: &DynValue) -> Result<DataType, String> {
    match value.dtype() {
        ValueType::Tensor { ty, .. } => datatype(*ty).ok_or_else(|| format!("has the datatype {ty}")),
        other => Err(format!("is a {other}, not a tensor")),
    }
}

fn extract_numbers<T: PrimitiveTensorElementType + TensorElement>(value: &DynValue) -> Result<Tensor, String> {
    let shape = shape(value)?;
    // The pointer of an empty tensor may be null.
    let elements = if shape.contains(&0) {
        Vec::new()
    } else {
        copy_elements(value.try_extract_tensor::<T>().map_err(|error| error.message().to_owned())?.1)?
    };
    Tensor::from_vec(shape, elements).map_err(|error| error.to_string())
}

fn extract_strings(value: &DynValue) -> Result<Tensor, String> {
    let shape = shape(value)?;
    let count = element_count(&shape).ok_or("has too many elements")?;
    let (bytes, starts) = ffi::onnxruntime_string_bytes(value, count)?;
    let ends = starts.iter().copied().skip(1).chain([bytes.len()]);
    let strings = starts.iter().zip(ends).map(|(&start, end)| bytes.get(start..end).unwrap_or_default());
    Tensor::from_strings(shape, strings).map_err(|error| error.to_string())
}

fn shape(value: &DynValue) -> Result<Vec<usize>, String> {
    value.shape().iter().map(|&dim| usize::try_from(dim).map_err(|_| format!("has the dimension {dim}"))).collect()
}
