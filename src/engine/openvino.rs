//! OpenVINO behind `Backend`. Only this file and `ffi.rs` use the crates `openvino` and `openvino-sys`.

use std::io;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge_base::checked_folder::CheckedFolder;
use ledge_base::tensor::{DataType, Tensor};
use openvino::{
    CompiledModel, Core, DeviceType, ElementType, InferRequest, InferenceError, Model, Node, PropertyKey,
    RwPropertyKey, Shape,
};

use super::backend::{
    Backend, CancelRun, CompiledModelCache, ComputeTime, LoadOptions, ModelFiles, ModelLoadError, ModelPort,
    ModelPortKind, ModelRunError, ModelSignature, RunContext, RunResult, Runtime,
};
use super::elements::copy_elements;
use super::ffi::{self, OpenVinoCanceller};
use super::text::one_line;
use super::values::{OPENVINO_BITS, check_bits, first_outside};

/// The loaded library of the runtime. A process has one.
#[derive(Debug, Clone)]
pub struct OpenVino {
    version: String,
}

impl OpenVino {
    /// Loads the shared library at `library`. Its plug-ins and frontends are in the same folder.
    pub fn open(library: &Path) -> Result<Self, String> {
        openvino_sys::library::load_from(library.to_path_buf())?;
        // A library without its CPU plug-in loads, and then fails at the first model. Check now.
        let core = Core::new().map_err(|error| error.to_string())?;
        let devices = core.available_devices().map_err(|error| message_of(&error))?;
        if !devices.contains(&DeviceType::CPU) {
            return Err("the CPU plug-in (libopenvino_*_cpu_plugin.so) cannot be loaded".to_owned());
        }
        let build = openvino::version().build_number.clone();
        // "2026.4.1-22312-abcdef-releases/2026/4": the first part is the version of the release.
        Ok(Self { version: build.split('-').next().unwrap_or(&build).to_owned() })
    }

    /// The version, such as `2026.4.1`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Loads a model. The runtime's own threads inherit the cores of the calling thread.
    pub fn load(&self, files: &ModelFiles, options: &LoadOptions) -> Result<Box<dyn Backend>, ModelLoadError> {
        let refused = |error: &InferenceError| refused(message_of(error));
        if let Some(map) = files.class_maps.first() {
            let reason = "is a map that the operator ai.onnx.ml.ZipMap makes, which OpenVINO does not have".to_owned();
            return Err(ModelLoadError::Port {
                runtime: Runtime::OpenVino,
                port: ModelPortKind::Output,
                name: map.output.clone(),
                reason,
            });
        }

        // Each model has its own `Core`, because the crate sets properties on a core and not on a compilation.
        let mut core = Core::new().map_err(|error| self::refused(error.to_string()))?;
        configure(&mut core, options).map_err(|error| refused(&error))?;

        // Compiled models of another version cannot be used.
        let cache = match &options.cache {
            CompiledModelCache::Shared(folder) => CompiledModelCache::Shared(folder.join(&self.version)),
            other => other.clone(),
        };
        let weights = files.weights.as_deref().map_or(Ok(""), utf8)?.to_owned();
        let file = utf8(&files.model)?.to_owned();
        let mut source = CompilationSource { core, file, weights, cache, is_dynamic: false };
        let model = source.read().map_err(|error| refused(&error))?;
        let signature = signature(&model, files)?;
        let runner = source.compile(&model).map_err(|error| refused(&error))?;
        // A failed run changes a compiled model only through variable shapes.
        source.is_dynamic = model.is_dynamic();
        let source = (source.is_dynamic || files.dangers.has_control_flow).then_some(source);
        let rows = |port: &ModelPort| {
            files.dangers.rows.iter().filter(|(name, _)| *name == port.name).map(|(_, rows)| *rows).min()
        };
        let rows = signature.inputs.iter().map(rows).collect();
        let bits = files.dangers.bits_of(Runtime::OpenVino);
        let canceller = Arc::default();
        Ok(Box::new(OpenVinoBackend { source, runner: Some(runner), is_sound: true, signature, rows, bits, canceller }))
    }
}

fn refused(reason: String) -> ModelLoadError {
    ModelLoadError::Refused { runtime: Runtime::OpenVino, reason }
}

fn utf8(path: &Path) -> Result<&str, ModelLoadError> {
    path.to_str().ok_or_else(|| refused(format!("the path {} is not UTF-8", path.display())))
}

/// The runtime's own message, shortened.
fn message_of(error: &InferenceError) -> String {
    let message = error.message.as_deref().map(short_message).filter(|message| !message.is_empty());
    message.unwrap_or_else(|| error.kind.to_string())
}

/// The longest message, in characters. Longer ones list many nodes of a model.
const MESSAGE_CHARS_MAX: usize = 300;

/// The useful part of a message: without the position of the failed check in OpenVINO's source, and without the types
/// of a node, since its name is in the message as well.
fn short_message(message: &str) -> String {
    let lines = message.lines().map(|line| match line.trim() {
        position if position.ends_with(':') => before(before(position, "Exception from "), "Check '"),
        line => line,
    });
    let noise = ["FrontEnd API failed with ", "While validating node '"];
    let useful: Vec<&str> = lines.filter(|line| !noise.iter().any(|noise| line.starts_with(noise))).collect();
    let useful = one_line(&useful.join(" "));
    match useful.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((end, _)) => format!("{}...", useful.get(..end).unwrap_or(&useful)),
        None => useful,
    }
}

fn before<'a>(line: &'a str, mark: &str) -> &'a str {
    line.split_once(mark).map_or(line, |(before, _)| before)
}

/// The property with the number of nodes that a compiled model keeps prepared for shapes that came before.
const PREPARED_NODES: &str = "CPU_RUNTIME_CACHE_CAPACITY";

/// Enough for three shapes of a model of a hundred nodes. The default of 5,000 is reached after pages of fifty sizes,
/// and text detection grew by 6 MiB with each size. A run with a new shape takes up to a fifth longer.
const PREPARED_NODES_MAX: &str = "300";

/// The same for a model of a chain: enough for nodes that repeat within a run. With 300 the four models of
/// `document_reader` take 70 to 140 MiB more over sixty receipts. With 50 everywhere, sentences of all lengths would
/// take 11 % more CPU time.
const PREPARED_NODES_OF_PART_MAX: &str = "50";

fn configure(core: &mut Core, options: &LoadOptions) -> Result<(), InferenceError> {
    let threads = options.threads.to_string();
    // Without a stream a run stays on the calling thread, and cannot use a second one. With a stream it passes through
    // two more threads, which costs 8 us of CPU time.
    let streams = if options.threads == 1 { "0" } else { "1" };
    let prepared = if options.is_part { PREPARED_NODES_OF_PART_MAX } else { PREPARED_NODES_MAX };
    let properties = [
        (RwPropertyKey::NumStreams, streams),
        (RwPropertyKey::InferenceNumThreads, threads.as_str()),
        // Ledge pins threads itself. The runtimes of two models would pin their threads to the same first core.
        (RwPropertyKey::HintEnableCpuPinning, "NO"),
        // By default float models are computed in bfloat16 if the CPU can: 1.5e-3 off on a small classifier, and other
        // answers on another CPU.
        (RwPropertyKey::HintInferencePrecision, "f32"),
        (RwPropertyKey::Other(PREPARED_NODES.into()), prepared),
    ];
    core.set_properties(&DeviceType::CPU, properties)
}

fn signature(model: &Model, files: &ModelFiles) -> Result<ModelSignature, ModelLoadError> {
    let error = |error: InferenceError| refused(message_of(&error));
    let names = files.port_names.as_ref();
    let mut signature = ModelSignature::default();
    for index in 0..model.get_inputs_len().map_err(error)? {
        let node = OwnedNode(ManuallyDrop::new(model.get_input_by_index(index).map_err(error)?));
        let name = names.and_then(|names| names.inputs.get(index));
        let mut port = port(ModelPortKind::Input, index, &node.0, name)?;
        // OpenVINO also multiplies a matrix by an input of another length, and reads past the end of that input.
        let width = files.dangers.widths.iter().find(|(name, _)| *name == port.name);
        if let (Some(last @ -1), Some((_, width))) = (port.shape.last_mut(), width) {
            *last = *width;
        }
        signature.inputs.push(port);
    }
    for index in 0..model.get_outputs_len().map_err(error)? {
        let node = OwnedNode(ManuallyDrop::new(model.get_output_by_index(index).map_err(error)?));
        let name = names.and_then(|names| names.outputs.get(index));
        signature.outputs.push(port(ModelPortKind::Output, index, &node.0, name)?);
    }
    Ok(signature)
}

/// A port that is freed on drop. The crate never frees it, and a port keeps its whole model: 11 MB for each load of a 5
/// MB classifier.
struct OwnedNode(ManuallyDrop<Node>);

impl Drop for OwnedNode {
    fn drop(&mut self) {
        ffi::free_openvino_port(&mut self.0);
    }
}

fn port(kind: ModelPortKind, index: usize, node: &Node, name: Option<&String>) -> Result<ModelPort, ModelLoadError> {
    // A port of an IR may have no name. Its position is used then.
    let name = name.cloned().or_else(|| node.get_name().ok()).unwrap_or_else(|| format!("{kind}_{index}"));
    let refused =
        |reason: String| ModelLoadError::Port { runtime: Runtime::OpenVino, port: kind, name: name.clone(), reason };
    let element = node.get_element_type().map_err(|error| refused(message_of(&error)))?;
    if element == ElementType::String {
        return Err(refused("holds strings, which OpenVINO's C interface cannot read back".to_owned()));
    }
    let datatype = datatype(element)
        .ok_or_else(|| refused(format!("has the datatype {element}, which the protocol does not support")))?;
    let shape = node.get_partial_shape().map_err(|error| refused(message_of(&error)))?;
    if shape.get_rank().is_dynamic() {
        return Err(refused("has no fixed number of dimensions".to_owned()));
    }
    let dims = shape.get_dimensions().iter().map(|dim| if dim.is_dynamic() { -1 } else { dim.get_min() }).collect();
    Ok(ModelPort { name, datatype, shape: dims })
}

/// The datatypes that both OpenVINO and the protocol have. A model with strings is refused at its load.
const DATATYPES: [(ElementType, DataType); 13] = [
    (ElementType::Boolean, DataType::Bool),
    (ElementType::U8, DataType::Uint8),
    (ElementType::U16, DataType::Uint16),
    (ElementType::U32, DataType::Uint32),
    (ElementType::U64, DataType::Uint64),
    (ElementType::I8, DataType::Int8),
    (ElementType::I16, DataType::Int16),
    (ElementType::I32, DataType::Int32),
    (ElementType::I64, DataType::Int64),
    (ElementType::F16, DataType::Fp16),
    (ElementType::Bf16, DataType::Bf16),
    (ElementType::F32, DataType::Fp32),
    (ElementType::F64, DataType::Fp64),
];

fn datatype(element: ElementType) -> Option<DataType> {
    DATATYPES.iter().find(|(theirs, _)| *theirs == element).map(|&(_, ours)| ours)
}

fn element(datatype: DataType) -> Option<ElementType> {
    DATATYPES.iter().find(|(_, ours)| *ours == datatype).map(|&(theirs, _)| theirs)
}

/// The files that are compiled, and the core that compiles them. The model is read again for each compilation: it would
/// keep a second copy of many weights.
struct CompilationSource {
    core: Core,
    file: String,
    /// Empty for a format with weights in the file.
    weights: String,
    cache: CompiledModelCache,
    /// Set if a shape in the model varies.
    is_dynamic: bool,
}

/// The longest wait of a load for another load of the same model, before it compiles without the cache.
const CACHE_LOCK_TIMEOUT: Duration = Duration::from_mins(1);

impl CompilationSource {
    fn read(&mut self) -> Result<Model, InferenceError> {
        self.core.read_model_from_file(&self.file, &self.weights)
    }

    fn compile(&mut self, model: &Model) -> Result<CompiledModelRunner, InferenceError> {
        let (kept, folder) = match &self.cache {
            CompiledModelCache::None => (None, String::new()),
            CompiledModelCache::Own(path) => (None, path.display().to_string()),
            CompiledModelCache::Shared(path) => {
                let taken = CheckedFolder::take(path, CACHE_LOCK_TIMEOUT);
                let warn = |error: &io::Error| {
                    tracing::warn!(folder = %path.display(), %error,
                        "the cache of compiled models cannot be used; compiling without it");
                };
                let kept = taken.inspect_err(warn).ok();
                let folder = kept.as_ref().map_or(String::new(), |folder| folder.path().display().to_string());
                (kept, folder)
            }
        };
        self.core.set_property(&DeviceType::CPU, &RwPropertyKey::CacheDir, &folder)?;
        let runner = CompiledModelRunner::new(self.core.compile_model(model, DeviceType::CPU)?)?;

        if let Some(Err(error)) = kept.map(CheckedFolder::keep) {
            tracing::warn!(folder, %error, "the compiled model cannot be cached; the next start compiles it again");
        }
        Ok(runner)
    }
}

/// A compiled model with its inference request.
struct CompiledModelRunner {
    compiled: CompiledModel,
    request: InferRequest,
    /// The runtime's own tensor for each input, kept until the shape changes. A new one would be filled with zeros
    /// first.
    staged: Vec<Option<(Vec<usize>, openvino::Tensor)>>,
}

impl CompiledModelRunner {
    fn new(mut compiled: CompiledModel) -> Result<Self, InferenceError> {
        let request = compiled.create_infer_request()?;
        let staged = (0..compiled.get_input_size()?).map(|_| None).collect();
        Ok(Self { compiled, request, staged })
    }

    fn is_from_cache(&self) -> bool {
        let property = self.compiled.get_property(&PropertyKey::Other("LOADED_FROM_CACHE".into()));
        property.is_ok_and(|answer| answer == "YES")
    }

    /// Runs the model on the staged inputs.
    ///
    /// Does not use `infer`: with one thread, OpenVINO 2026.4.1 ignores an exception of the run there and reports
    /// success, with the answer of the previous run in the outputs. It also keeps the failed run, and repeats it before
    /// the next.
    fn run(&mut self, canceller: &OpenVinoCanceller) -> Result<(), InferenceError> {
        canceller.while_running(&mut self.request, |request| {
            request.infer_async()?;
            // A timeout is not an error here. Reading the outputs of a request that is still running is one.
            request.wait(RUN_TIMEOUT_MS)
        })
    }
}

/// A day: no run takes as long.
const RUN_TIMEOUT_MS: i64 = 24 * 60 * 60 * 1000;

struct OpenVinoBackend {
    /// The source to compile again after a failed run, and to release memory; `None` if a new request is enough, and
    /// memory does not grow.
    source: Option<CompilationSource>,
    /// `None` only with a source, when the compilation of it has failed.
    runner: Option<CompiledModelRunner>,
    /// False from the start of a run until it succeeds. After a failure OpenVINO takes some shapes of that run for
    /// those of the previous run: the same mistake then gets an answer, and a valid call fails or gets a wrong one.
    is_sound: bool,
    signature: ModelSignature,
    /// For each input, the number of rows that it indexes, if that is known.
    rows: Vec<Option<i64>>,
    /// The most bits of integers of callers that the model computes right.
    bits: u32,
    canceller: Arc<OpenVinoCanceller>,
}

impl CancelRun for OpenVinoCanceller {
    /// The runtime looks for it before each operator, but not before those of the body of a loop.
    fn cancel(&self) {
        self.cancel_run();
    }
}

impl OpenVinoBackend {
    /// Removes all traces of a failed run. A new request is not enough if shapes vary: they are in the compiled model.
    fn reset(&mut self) -> Result<(), InferenceError> {
        if self.is_sound {
            return Ok(());
        }
        if let Some(source) = &mut self.source {
            // Dropped first: the memory of two is not needed.
            self.runner = None;
            let model = source.read()?;
            self.runner = Some(source.compile(&model)?);
        } else if let Some(CompiledModelRunner { compiled, request, staged }) = &mut self.runner {
            *request = compiled.create_infer_request()?;
            staged.fill_with(|| None);
        }
        self.is_sound = true;
        Ok(())
    }
}

impl Backend for OpenVinoBackend {
    fn runtime(&self) -> Runtime {
        Runtime::OpenVino
    }

    fn signature(&self) -> &ModelSignature {
        &self.signature
    }

    fn missed_cache(&self) -> bool {
        self.runner.as_ref().is_some_and(|runner| !runner.is_from_cache())
    }

    fn is_sound(&self) -> bool {
        self.is_sound
    }

    fn repair(&mut self) {
        // The next run tries again, and reports the failure.
        let _ = self.reset();
    }

    /// Compiles the model again if its shapes vary. The compiled model keeps the memory of its largest run, and the C
    /// interface has no function to release it.
    fn release_memory(&mut self, _: &[Tensor]) {
        if self.source.as_ref().is_some_and(|source| source.is_dynamic) {
            self.is_sound = false;
            self.repair();
        }
    }

    fn canceller(&self) -> Option<Arc<dyn CancelRun>> {
        Some(self.canceller.clone())
    }

    fn run(&mut self, inputs: &[Tensor], outputs: &[usize], _: RunContext) -> Result<RunResult, ModelRunError> {
        let failed =
            |error: InferenceError| ModelRunError::Runtime { runtime: Runtime::OpenVino, reason: message_of(&error) };
        self.reset().map_err(failed)?;

        let start = Instant::now();
        let runner = self.runner.as_mut().ok_or_else(|| ModelRunError::Runtime {
            runtime: Runtime::OpenVino,
            reason: "the model is not compiled".to_owned(),
        })?;
        let CompiledModelRunner { request, staged, .. } = &mut *runner;
        let ports = self.signature.inputs.iter().zip(&self.rows);
        for (index, ((tensor, (port, rows)), staged)) in inputs.iter().zip(ports).zip(staged).enumerate() {
            let checked = check_numbers(tensor, *rows, self.bits);
            checked
                .and_then(|()| stage_input(request, index, tensor, staged))
                .map_err(|reason| ModelRunError::Input { name: port.name.clone(), reason })?;
        }

        let staged = Instant::now();
        self.is_sound = false;
        runner.run(&self.canceller).map_err(failed)?;

        let inferred = Instant::now();
        let outputs = outputs
            .iter()
            .map(|&index| {
                let name = self.signature.outputs.get(index).map_or("", |port| &port.name);
                let extracted = extract(&runner.request, index);
                extracted.map_err(|reason| ModelRunError::Output { name: name.to_owned(), reason })
            })
            .collect::<Result<Vec<_>, _>>()?;
        self.is_sound = true;
        let time = ComputeTime::between(start, staged, inferred, Instant::now());
        Ok(RunResult { outputs, time, ..RunResult::default() })
    }
}

/// Copies `tensor` into the runtime's tensor for the input `index`.
fn stage_input(
    request: &mut InferRequest,
    index: usize,
    tensor: &Tensor,
    staged: &mut Option<(Vec<usize>, openvino::Tensor)>,
) -> Result<(), String> {
    let message = |error: InferenceError| message_of(&error);
    if tensor.data().is_empty() {
        return Err("is empty, which OpenVINO does not accept".to_owned());
    }
    let fresh = match staged.take() {
        Some((shape, kept)) if shape == tensor.shape() => (shape, kept),
        _ => {
            let element = element(tensor.datatype()).ok_or("holds strings, which OpenVINO does not accept")?;
            let dims: Vec<i64> = tensor.shape().iter().map(|&dim| i64::try_from(dim).unwrap_or(i64::MAX)).collect();
            let shape = Shape::new(&dims).map_err(message)?;
            let made = openvino::Tensor::new(element, &shape).map_err(message)?;
            request.set_input_tensor_by_index(index, &made).map_err(message)?;
            (tensor.shape().to_vec(), made)
        }
    };
    let (_, target) = staged.insert(fresh);
    let target = target.get_raw_data_mut().map_err(message)?;
    if target.len() != tensor.data().len() {
        return Err(format!("has {} bytes, but OpenVINO expects {}", tensor.data().len(), target.len()));
    }
    target.copy_from_slice(tensor.data());
    Ok(())
}

/// Refuses numbers for which OpenVINO gives a wrong answer instead of an error: its CPU plug-in keeps only 32 bits of
/// integers, computes some operators right only up to fewer `bits`, and uses a row of zeros for an index outside a
/// table of `rows`.
fn check_numbers(tensor: &Tensor, rows: Option<i64>, bits: u32) -> Result<(), String> {
    if let Some(rows) = rows {
        // A negative index counts from the end.
        let outside = first_outside(tensor, -i128::from(rows), i128::from(rows) - 1);
        let reason =
            |(position, index)| format!("has the index {index} at position {position}, but the table has {rows} rows");
        return outside.map_or(Ok(()), |outside| Err(reason(outside)));
    }
    let keeps_all = tensor.datatype() == DataType::Int32;
    check_bits(tensor, if keeps_all { bits } else { bits.min(OPENVINO_BITS) }, "OpenVINO")
}

fn extract(request: &InferRequest, index: usize) -> Result<Tensor, String> {
    let message = |error: InferenceError| message_of(&error);
    let answer = request.get_output_tensor_by_index(index).map_err(message)?;
    let element = answer.get_element_type().map_err(message)?;
    let datatype = datatype(element).ok_or_else(|| format!("has the datatype {element}"))?;
    let shape = answer.get_shape().map_err(message)?;
    let shape: Vec<usize> = shape
        .get_dimensions()
        .iter()
        .map(|&dim| usize::try_from(dim).map_err(|_| format!("has the dimension {dim}")))
        .collect::<Result<_, _>>()?;
    // The pointer of an empty tensor may be null.
    let data = if shape.contains(&0) { Vec::new() } else { copy_elements(answer.get_raw_data().map_err(message)?)? };
    Tensor::new(datatype, shape, data.into()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::backend::ALL_BITS;
    use super::*;

    #[test]
    fn a_message_says_what_failed_without_the_place_in_the_source() {
        for (message, expected) in [
            (
                "Exception from src/inference/src/cpp/infer_request.cpp:224:\nException from src/plugins/node.cpp:794:\n\
                 [CPU] Reshape node with name 'y' Check 'minusOneCount <= 1' failed at src/shape_inference/reshape.cpp:77:\n\
                 [cpu]reshape: the shape of input data (2.6) conflicts with the reshape pattern (5.7)\n\n\n",
                "[CPU] Reshape node with name 'y' [cpu]reshape: the shape of input data (2.6) conflicts with the reshape \
                 pattern (5.7)",
            ),
            (
                "Exception from src/inference/src/cpp/core.cpp:84:\nCheck 'false' failed at src/report.cpp:151:\n\
                 FrontEnd API failed with OpConversionFailure:\nModel wasn't fully converted.\nSummary:\n\
                 -- No conversion rule found for operations: ai.onnx.ml.Scaler\n\n",
                "Model wasn't fully converted. Summary: -- No conversion rule found for operations: ai.onnx.ml.Scaler",
            ),
            ("two\nlines: of a kind", "two lines: of a kind"),
            ("", ""),
        ] {
            assert_eq!(short_message(message), expected);
        }
        assert_eq!(short_message(&"é".repeat(2000)).chars().count(), MESSAGE_CHARS_MAX + 3);
    }

    #[test]
    fn numbers_that_openvino_would_answer_wrong_are_refused() {
        let int64 = |values: &[i64]| Tensor::from_vec(vec![values.len()], values.to_vec()).unwrap();
        let reason = |values: &[i64], rows| check_numbers(&int64(values), rows, ALL_BITS).err().unwrap_or_default();
        assert_eq!(reason(&[-i64::from(i32::MAX), -1, i32::MAX.into()], None), "");
        assert!(reason(&[1, i64::from(i32::MAX) + 1], None).contains("2147483648 at position 1"));
        assert!(reason(&[i64::MIN], None).contains("-9223372036854775808"));
        let uint64 = Tensor::from_vec(vec![2], vec![7, u64::MAX]).unwrap();
        assert!(check_numbers(&uint64, None, ALL_BITS).unwrap_err().contains("18446744073709551615"));

        assert_eq!(reason(&[0, 29, -30], Some(30)), "");
        assert_eq!(reason(&[0, 30], Some(30)), "has the index 30 at position 1, but the table has 30 rows");
        assert!(reason(&[-31], Some(30)).contains("-31 at position 0"));
        let int32 = Tensor::from_vec(vec![1], vec![30_i32]).unwrap();
        assert!(check_numbers(&int32, Some(30), ALL_BITS).is_err() && check_numbers(&int32, None, ALL_BITS).is_ok());
        assert!(
            check_numbers(&int32, None, 5).is_ok() && check_numbers(&int32, None, 4).unwrap_err().contains("up to 15")
        );
    }
}
