//! OpenVINO. The only code that knows the crates `openvino` and `openvino-sys`.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::time::Instant;

use openvino::{Core, DeviceType, ElementType, InferRequest, InferenceError, Model, Node, RwPropertyKey, Shape};

use super::backend::{
    Backend, ComputeTime, LoadError, LoadOptions, ModelFiles, Port, RunError, RunResult, Runtime, Signature,
};
use crate::sys;
use crate::tensor::{DataType, Tensor};

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
    #[expect(clippy::unused_self, reason = "a value of this type proves that the library is loaded")]
    pub fn load(&self, files: &ModelFiles, options: &LoadOptions) -> Result<Box<dyn Backend>, LoadError> {
        let refused = |error: &InferenceError| refused(words(error));
        // One core a model: the crate sets properties on a core, not on a compilation.
        let mut core = Core::new().map_err(|error| self::refused(error.to_string()))?;
        configure(&mut core, options).map_err(|error| refused(&error))?;
        let weights = files.weights.as_deref().map_or(Ok(""), utf8)?;
        let model = core.read_model_from_file(utf8(&files.model)?, weights).map_err(|error| refused(&error))?;
        let signature = signature(&model, files)?;
        let mut compiled = core.compile_model(&model, DeviceType::CPU).map_err(|error| refused(&error))?;
        let request = compiled.create_infer_request().map_err(|error| refused(&error))?;
        let staged = signature.inputs.iter().map(|_| None).collect();
        Ok(Box::new(OpenVinoBackend { staged, request, signature }))
    }
}

fn refused(reason: String) -> LoadError {
    LoadError::Refused { runtime: Runtime::OpenVino, reason }
}

fn utf8(path: &Path) -> Result<&str, LoadError> {
    path.to_str().ok_or_else(|| refused(format!("the path {} is not UTF-8", path.display())))
}

/// The runtime's own words, without its source positions ("Exception from src/...cpp:123:").
fn words(error: &InferenceError) -> String {
    let message = error.message.clone().unwrap_or_else(|| format!("{:?}", error.kind));
    let lines = message.lines().map(str::trim);
    let kept: Vec<&str> =
        lines.filter(|line| !(line.is_empty() || line.starts_with("Exception from ") && line.ends_with(':'))).collect();
    super::one_line(&kept.join(" "))
}

fn configure(core: &mut Core, options: &LoadOptions) -> Result<(), InferenceError> {
    let threads = options.threads.to_string();
    let mut properties = vec![
        (RwPropertyKey::NumStreams, "1"),
        (RwPropertyKey::InferenceNumThreads, threads.as_str()),
        // Ledge places threads itself; two models whose runtimes pin to the same first core would share it.
        (RwPropertyKey::HintEnableCpuPinning, "NO"),
        // Its default computes float models in bfloat16 where the CPU can: 1.5e-3 off on a small classifier, and other
        // answers on the next box.
        (RwPropertyKey::HintInferencePrecision, "f32"),
    ];
    let cache = options.cache_dir.as_ref().map(|folder| folder.display().to_string());
    if let Some(folder) = &cache {
        properties.push((RwPropertyKey::CacheDir, folder));
    }
    core.set_properties(&DeviceType::CPU, properties)
}

fn signature(model: &Model, files: &ModelFiles) -> Result<Signature, LoadError> {
    let error = |error: InferenceError| refused(words(&error));
    let names = files.port_names.as_ref();
    let mut signature = Signature::default();
    for index in 0..model.get_inputs_len().map_err(error)? {
        let node = FreedNode(ManuallyDrop::new(model.get_input_by_index(index).map_err(error)?));
        let name = names.and_then(|names| names.inputs.get(index));
        signature.inputs.push(port("input", index, &node.0, name)?);
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
        sys::free_openvino_port(&mut self.0);
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

struct OpenVinoBackend {
    /// The runtime's own tensor for each input, kept while the shape stays: a new one would be zeroed first.
    staged: Vec<Option<(Vec<usize>, openvino::Tensor)>>,
    request: InferRequest,
    signature: Signature,
}

impl Backend for OpenVinoBackend {
    fn runtime(&self) -> Runtime {
        Runtime::OpenVino
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn run(&mut self, inputs: &[Tensor], outputs: &[usize]) -> Result<RunResult, RunError> {
        let start = Instant::now();
        for (index, (tensor, port)) in inputs.iter().zip(&self.signature.inputs).enumerate() {
            let Some(staged) = self.staged.get_mut(index) else { continue };
            stage(&mut self.request, index, tensor, staged)
                .map_err(|reason| RunError::Input { name: port.name.clone(), reason })?;
        }
        let staged = Instant::now();
        self.request
            .infer()
            .map_err(|error| RunError::Runtime { runtime: Runtime::OpenVino, reason: words(&error) })?;
        let inferred = Instant::now();
        let outputs = outputs
            .iter()
            .map(|&index| {
                let name = self.signature.outputs.get(index).map_or("", |port| &port.name);
                extract(&self.request, index).map_err(|reason| RunError::Output { name: name.to_owned(), reason })
            })
            .collect::<Result<Vec<_>, _>>()?;
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
    let data = if shape.contains(&0) { Vec::new() } else { answer.get_raw_data().map_err(words)?.to_vec() };
    Tensor::new(datatype, shape, data.into()).map_err(|error| error.to_string())
}
