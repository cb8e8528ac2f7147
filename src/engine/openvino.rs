//! OpenVINO. The only code that knows the crates `openvino` and `openvino-sys`.

use std::io;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ledge_base::checked_folder::CheckedFolder;
use ledge_base::tensor::{DataType, Tensor};
use openvino::{
    CompiledModel, Core, DeviceType, ElementType, InferRequest, InferenceError, Model, Node, RwPropertyKey, Shape,
};

use super::backend::{
    Backend, ComputeTime, LoadError, LoadOptions, ModelFiles, Port, RunError, RunResult, Runtime, Signature,
};
use super::foreign;

/// The runtime's library, loaded; one a process.
#[derive(Debug, Clone)]
pub struct OpenVino {
    version: String,
}

impl OpenVino {
    /// Loads the shared library at `library`; its plug-ins and frontends are found beside it.
    pub fn open(library: &Path) -> Result<Self, String> {
        openvino_sys::library::load_from(library.to_path_buf())?;
        // A library without its CPU plug-in loads too, and then fails at the first model: ask now.
        let core = Core::new().map_err(|error| error.to_string())?;
        let devices = core.available_devices().map_err(|error| words(&error))?;
        if !devices.contains(&DeviceType::CPU) {
            return Err("the CPU plug-in (libopenvino_intel_cpu_plugin.so) does not load".to_owned());
        }
        let build = openvino::version().build_number.clone();
        // "2026.4.1-22312-abcdef-releases/2026/4": the first part is the version that people know.
        Ok(Self { version: build.split('-').next().unwrap_or(&build).to_owned() })
    }

    /// The version, such as `2026.4.1`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Loads a model. The runtime's own threads inherit the cores of the calling thread.
    pub fn load(&self, files: &ModelFiles, options: &LoadOptions) -> Result<Box<dyn Backend>, LoadError> {
        let refused = |error: &InferenceError| refused(words(error));
        // One core a model: the crate sets properties on a core, not on a compilation.
        let mut core = Core::new().map_err(|error| self::refused(error.to_string()))?;
        configure(&mut core, options).map_err(|error| refused(&error))?;
        let weights = files.weights.as_deref().map_or(Ok(""), utf8)?;
        let model = core.read_model_from_file(utf8(&files.model)?, weights).map_err(|error| refused(&error))?;
        let signature = signature(&model, files)?;
        // Of another version it is of no use.
        let cache = options.cache_dir.as_ref().map(|folder| folder.join(&self.version));
        let mut source = Source { core, model, cache };
        let runner = source.compile().map_err(|error| refused(&error))?;
        // Only shapes that vary outlive a failed run in what is compiled.
        let source = (source.model.is_dynamic() || files.dangers.has_control_flow).then_some(source);
        let rows =
            |port: &Port| files.dangers.rows.iter().filter(|(name, _)| *name == port.name).map(|(_, rows)| *rows).min();
        let rows = signature.inputs.iter().map(rows).collect();
        Ok(Box::new(OpenVinoBackend { source, runner, is_sound: true, signature, rows }))
    }
}

fn refused(reason: String) -> LoadError {
    LoadError::Refused { runtime: Runtime::OpenVino, reason }
}

fn utf8(path: &Path) -> Result<&str, LoadError> {
    path.to_str().ok_or_else(|| refused(format!("the path {} is not UTF-8", path.display())))
}

/// The runtime's own words, in short.
fn words(error: &InferenceError) -> String {
    let told = error.message.as_deref().map(meaning).filter(|told| !told.is_empty());
    told.unwrap_or_else(|| error.kind.to_string())
}

/// Longer refusals list half a model.
const WORDS_MAX: usize = 300;

/// The part of a message that says anything to people: not where in OpenVINO's source which check failed, nor the node of
/// the graph with all its types, which stands beside its name.
fn meaning(message: &str) -> String {
    let lines = message.lines().map(|line| match line.trim() {
        position if position.ends_with(':') => before(before(position, "Exception from "), "Check '"),
        line => line,
    });
    let noise = ["FrontEnd API failed with ", "While validating node '"];
    let told: Vec<&str> = lines.filter(|line| !noise.iter().any(|noise| line.starts_with(noise))).collect();
    let told = super::one_line(&told.join(" "));
    match told.char_indices().nth(WORDS_MAX) {
        Some((end, _)) => format!("{}...", told.get(..end).unwrap_or(&told)),
        None => told,
    }
}

fn before<'a>(line: &'a str, mark: &str) -> &'a str {
    line.split_once(mark).map_or(line, |(before, _)| before)
}

fn configure(core: &mut Core, options: &LoadOptions) -> Result<(), InferenceError> {
    let threads = options.threads.to_string();
    // Without a stream a run stays on the calling thread. With one it passes through two more, for 8 us of CPU time, and
    // without one it never has a second thread.
    let streams = if options.threads == 1 { "0" } else { "1" };
    let properties = [
        (RwPropertyKey::NumStreams, streams),
        (RwPropertyKey::InferenceNumThreads, threads.as_str()),
        // Ledge places threads itself; two models whose runtimes pin to the same first core would share it.
        (RwPropertyKey::HintEnableCpuPinning, "NO"),
        // Its default computes float models in bfloat16 where the CPU can: 1.5e-3 off on a small classifier, and other
        // answers on the next box.
        (RwPropertyKey::HintInferencePrecision, "f32"),
    ];
    core.set_properties(&DeviceType::CPU, properties)
}

fn signature(model: &Model, files: &ModelFiles) -> Result<Signature, LoadError> {
    let error = |error: InferenceError| refused(words(&error));
    let names = files.port_names.as_ref();
    let mut signature = Signature::default();
    for index in 0..model.get_inputs_len().map_err(error)? {
        let node = FreedNode(ManuallyDrop::new(model.get_input_by_index(index).map_err(error)?));
        let name = names.and_then(|names| names.inputs.get(index));
        let mut port = port("input", index, &node.0, name)?;
        // It multiplies a matrix by an input of another length too, with numbers from behind that input.
        let width = files.dangers.widths.iter().find(|(name, _)| *name == port.name);
        if let (Some(last @ -1), Some((_, width))) = (port.shape.last_mut(), width) {
            *last = *width;
        }
        signature.inputs.push(port);
    }
    for index in 0..model.get_outputs_len().map_err(error)? {
        let node = FreedNode(ManuallyDrop::new(model.get_output_by_index(index).map_err(error)?));
        let name = names.and_then(|names| names.outputs.get(index));
        signature.outputs.push(port("output", index, &node.0, name)?);
    }
    Ok(signature)
}

/// A port that is freed. The crate never does, and a port keeps its whole model: 11 MB a load of a 5 MB classifier.
struct FreedNode(ManuallyDrop<Node>);

impl Drop for FreedNode {
    fn drop(&mut self) {
        foreign::free_openvino_port(&mut self.0);
    }
}

fn port(kind: &'static str, index: usize, node: &Node, name: Option<&String>) -> Result<Port, LoadError> {
    // A port of an IR may be nameless: then its position is its name.
    let name = name.cloned().or_else(|| node.get_name().ok()).unwrap_or_else(|| format!("{kind}_{index}"));
    let refused =
        |reason: String| LoadError::Port { runtime: Runtime::OpenVino, port: kind, name: name.clone(), reason };
    let element = node.get_element_type().map_err(|error| refused(words(&error)))?;
    if element == ElementType::String {
        return Err(refused("is of strings, which OpenVINO's C interface cannot read back".to_owned()));
    }
    let datatype =
        datatype(element).ok_or_else(|| refused(format!("has the datatype {element}, which the protocol lacks")))?;
    let shape = node.get_partial_shape().map_err(|error| refused(words(&error)))?;
    if shape.get_rank().is_dynamic() {
        return Err(refused("has no fixed number of dimensions".to_owned()));
    }
    let dims = shape.get_dimensions().iter().map(|dim| if dim.is_dynamic() { -1 } else { dim.get_min() }).collect();
    Ok(Port { name, datatype, shape: dims })
}

/// The datatypes that OpenVINO and the protocol share; strings are refused when a model is loaded.
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

/// What a model is compiled from.
struct Source {
    core: Core,
    model: Model,
    /// Where what was compiled is kept.
    cache: Option<PathBuf>,
}

/// How long a load waits for another one of the same model, before it compiles without the cache.
const CACHE_PATIENCE: Duration = Duration::from_mins(1);

impl Source {
    fn compile(&mut self) -> Result<Runner, InferenceError> {
        let kept = self.cache.as_deref().and_then(|path| {
            let taken = CheckedFolder::take(path, CACHE_PATIENCE);
            let warn = |error: &io::Error| {
                tracing::warn!(folder = %path.display(), %error, "a cache of compiled models cannot be used");
            };
            taken.inspect_err(warn).ok()
        });
        let folder = kept.as_ref().map_or(String::new(), |folder| folder.path().display().to_string());
        self.core.set_property(&DeviceType::CPU, &RwPropertyKey::CacheDir, &folder)?;
        let runner = Runner::new(self.core.compile_model(&self.model, DeviceType::CPU)?)?;
        if let Some(Err(error)) = kept.map(CheckedFolder::keep) {
            tracing::warn!(folder, %error, "what was compiled cannot be kept; the next start compiles again");
        }
        Ok(runner)
    }
}

/// A compiled model, and what runs it.
struct Runner {
    compiled: CompiledModel,
    request: InferRequest,
    /// The runtime's own tensor for each input, kept while the shape stays: a new one would be zeroed first.
    staged: Vec<Option<(Vec<usize>, openvino::Tensor)>>,
}

impl Runner {
    fn new(mut compiled: CompiledModel) -> Result<Self, InferenceError> {
        let request = compiled.create_infer_request()?;
        let staged = (0..compiled.get_input_size()?).map(|_| None).collect();
        Ok(Self { compiled, request, staged })
    }

    /// Runs what is staged.
    ///
    /// Never by `infer`: with one thread, OpenVINO 2026.4.1 drops what a run throws there and reports success, with the
    /// answer of the run before in the outputs. It keeps the failed run as well, to repeat it before the next.
    fn run(&mut self) -> Result<(), InferenceError> {
        self.request.infer_async()?;
        // The time running out is no error here; reading the outputs of a request that still runs is.
        self.request.wait(A_DAY_MS)
    }
}

const A_DAY_MS: i64 = 24 * 60 * 60 * 1000;

struct OpenVinoBackend {
    /// What the model is compiled from again; `None` where a new request will do.
    source: Option<Source>,
    runner: Runner,
    /// Not from the start of a run until it has gone well. After a failure OpenVINO takes some shapes of that run for
    /// those of the run before: the same mistake is answered, and a call that is right fails or is answered wrong.
    is_sound: bool,
    signature: Signature,
    /// For each input, how many rows its numbers choose from, where that is known.
    rows: Vec<Option<i64>>,
}

impl OpenVinoBackend {
    /// Gets rid of all that a failed run left behind. A new request does not: the shapes are in the compiled model.
    fn clear(&mut self) -> Result<(), InferenceError> {
        if self.is_sound {
            return Ok(());
        }
        if let Some(source) = &mut self.source {
            self.runner = source.compile()?;
        } else {
            self.runner.request = self.runner.compiled.create_infer_request()?;
            self.runner.staged.fill_with(|| None);
        }
        self.is_sound = true;
        Ok(())
    }
}

impl Backend for OpenVinoBackend {
    fn runtime(&self) -> Runtime {
        Runtime::OpenVino
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn is_sound(&self) -> bool {
        self.is_sound
    }

    fn repair(&mut self) {
        // A failure is told by the next run, which tries again.
        let _ = self.clear();
    }

    fn run(&mut self, inputs: &[Tensor], outputs: &[usize]) -> Result<RunResult, RunError> {
        let failed = |error: InferenceError| RunError::Runtime { runtime: Runtime::OpenVino, reason: words(&error) };
        self.clear().map_err(failed)?;

        let start = Instant::now();
        let Runner { request, staged, .. } = &mut self.runner;
        let ports = self.signature.inputs.iter().zip(&self.rows);
        for (index, ((tensor, (port, rows)), staged)) in inputs.iter().zip(ports).zip(staged).enumerate() {
            let checked = check_numbers(tensor, *rows);
            checked
                .and_then(|()| stage(request, index, tensor, staged))
                .map_err(|reason| RunError::Input { name: port.name.clone(), reason })?;
        }

        let staged = Instant::now();
        self.is_sound = false;
        self.runner.run().map_err(failed)?;

        let inferred = Instant::now();
        let outputs = outputs
            .iter()
            .map(|&index| {
                let name = self.signature.outputs.get(index).map_or("", |port| &port.name);
                let extracted = extract(&self.runner.request, index);
                extracted.map_err(|reason| RunError::Output { name: name.to_owned(), reason })
            })
            .collect::<Result<Vec<_>, _>>()?;
        self.is_sound = true;
        Ok(RunResult { outputs, time: ComputeTime::between(start, staged, inferred, Instant::now()) })
    }
}

/// Copies `tensor` to where the runtime reads input `index`.
fn stage(
    request: &mut InferRequest,
    index: usize,
    tensor: &Tensor,
    staged: &mut Option<(Vec<usize>, openvino::Tensor)>,
) -> Result<(), String> {
    let words = |error: InferenceError| words(&error);
    if tensor.data().is_empty() {
        return Err("is empty, which OpenVINO does not take".to_owned());
    }
    let fresh = match staged.take() {
        Some((shape, kept)) if shape == tensor.shape() => (shape, kept),
        _ => {
            let element = element(tensor.datatype()).ok_or("is of strings, which OpenVINO does not take")?;
            let dims: Vec<i64> = tensor.shape().iter().map(|&dim| i64::try_from(dim).unwrap_or(i64::MAX)).collect();
            let shape = Shape::new(&dims).map_err(words)?;
            let made = openvino::Tensor::new(element, &shape).map_err(words)?;
            request.set_input_tensor_by_index(index, &made).map_err(words)?;
            (tensor.shape().to_vec(), made)
        }
    };
    let (_, target) = staged.insert(fresh);
    let target = target.get_raw_data_mut().map_err(words)?;
    if target.len() != tensor.data().len() {
        return Err(format!("has {} bytes where OpenVINO keeps {}", tensor.data().len(), target.len()));
    }
    target.copy_from_slice(tensor.data());
    Ok(())
}

/// Refuses numbers that OpenVINO answers wrong rather than refuses: its CPU plug-in keeps 32 bits of whole numbers, and takes
/// a row of zeros where an index is out of the range of a table of `rows`.
fn check_numbers(tensor: &Tensor, rows: Option<i64>) -> Result<(), String> {
    let whole: Option<(usize, i128)> = match tensor.datatype() {
        DataType::Int64 => find(&tensor.elements::<i64>().unwrap_or_default(), rows),
        DataType::Uint64 => find(&tensor.elements::<u64>().unwrap_or_default(), rows),
        DataType::Uint32 => find(&tensor.elements::<u32>().unwrap_or_default(), rows),
        DataType::Int32 if rows.is_some() => find(&tensor.elements::<i32>().unwrap_or_default(), rows),
        _ => None,
    };
    match (whole, rows) {
        (None, _) => Ok(()),
        (Some((place, value)), Some(rows)) => {
            Err(format!("has the number {value} at place {place}, which chooses one of {rows} rows"))
        }
        (Some((place, value)), None) => Err(format!(
            "has the number {value} at place {place}, of which OpenVINO would keep 32 bits (runtime = \"onnxruntime\" keeps all)"
        )),
    }
}

/// The first number that does not fit, and its place.
fn find<T: Copy + Into<i128>>(numbers: &[T], rows: Option<i64>) -> Option<(usize, i128)> {
    // An index may count from the end.
    let (least, most) =
        rows.map_or((i32::MIN.into(), i32::MAX.into()), |rows| (-i128::from(rows), i128::from(rows) - 1));
    let range = least..=most;
    numbers.iter().map(|&number| number.into()).enumerate().find(|(_, number)| !range.contains(number))
}

fn extract(request: &InferRequest, index: usize) -> Result<Tensor, String> {
    let words = |error: InferenceError| words(&error);
    let answer = request.get_output_tensor_by_index(index).map_err(words)?;
    let element = answer.get_element_type().map_err(words)?;
    let datatype = datatype(element).ok_or_else(|| format!("has the datatype {element}"))?;
    let shape = answer.get_shape().map_err(words)?;
    let shape: Vec<usize> = shape
        .get_dimensions()
        .iter()
        .map(|&dim| usize::try_from(dim).map_err(|_| format!("has the dimension {dim}")))
        .collect::<Result<_, _>>()?;
    // An empty tensor may have no memory at all behind it.
    let data = if shape.contains(&0) { Vec::new() } else { super::copied(answer.get_raw_data().map_err(words)?)? };
    Tensor::new(datatype, shape, data.into()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_what_failed_and_not_where_in_the_source() {
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
            assert_eq!(meaning(message), expected);
        }
        assert_eq!(meaning(&"é".repeat(2000)).chars().count(), WORDS_MAX + 3);
    }

    #[test]
    fn numbers_that_openvino_would_answer_wrong_are_refused() {
        let int64 = |values: &[i64]| Tensor::from_vec(vec![values.len()], values.to_vec()).unwrap();
        let reason = |values: &[i64], rows| check_numbers(&int64(values), rows).err().unwrap_or_default();
        assert_eq!(reason(&[i32::MIN.into(), -1, i32::MAX.into()], None), "");
        assert!(reason(&[1, i64::from(i32::MAX) + 1], None).contains("2147483648 at place 1"));
        assert!(reason(&[i64::MIN], None).contains("-9223372036854775808"));
        let uint64 = Tensor::from_vec(vec![2], vec![7, u64::MAX]).unwrap();
        assert!(check_numbers(&uint64, None).unwrap_err().contains("18446744073709551615"));

        assert_eq!(reason(&[0, 29, -30], Some(30)), "");
        assert_eq!(reason(&[0, 30], Some(30)), "has the number 30 at place 1, which chooses one of 30 rows");
        assert!(reason(&[-31], Some(30)).contains("-31 at place 0"));
        let int32 = Tensor::from_vec(vec![1], vec![30_i32]).unwrap();
        assert!(check_numbers(&int32, Some(30)).is_err() && check_numbers(&int32, None).is_ok());
    }
}
