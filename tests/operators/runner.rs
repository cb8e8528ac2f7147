//! Runs tiny models on hostile numbers for `run.py`, in a process that may die: one JSON order a line on the standard
//! input, one JSON answer a line on the standard output.
//!
//! Models are read, loaded and run as a worker process does. An order of a load states whether the dangers in the file
//! are respected: without them, the table shows the behaviour of the runtimes; with them, what a caller of Ledge can
//! reach.

use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ledge_base::tensor::{DataType, Tensor};
use ledge_engine::backend::{
    Backend, CompiledModelCache, InputDangers, LoadOptions, ModelFiles, ModelFormat, ModelPort, RunContext, Runtime,
};
use ledge_engine::{Runtimes, files};
use serde_json::{Value, json};

/// Outputs of more bytes are answered by their beginning.
const SHOWN_BYTES_MAX: usize = 4096;

fn main() {
    let folder = std::env::args().nth(1).expect("usage: operators FOLDER_OF_RUNTIMES");
    let runtimes = Runtimes::new(PathBuf::from(folder));
    let mut loaded: Option<Box<dyn Backend>> = None;
    for line in std::io::stdin().lock().lines() {
        let order: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
        let is_run = order.get("inputs").is_some();
        missing_folder(if is_run { "/wide-redzones" } else { "/narrow-redzones" });
        if let Some(file) = order.get("refused").and_then(Value::as_str) {
            let (format, _) = format_of(&PathBuf::from(file));
            let facts =
                std::fs::read(file).map_err(|error| error.to_string()).and_then(|bytes| files::read(format, &bytes));
            let answer = facts.map(|facts| (facts.dangers.refused, facts.dangers.bits));
            println!("{}", json!({"refused": answer}));
            continue;
        }
        let answer = match order.get("file").and_then(Value::as_str) {
            Some(file) => {
                loaded = None;
                match load(&runtimes, file, &order) {
                    Ok(backend) => {
                        let ports =
                            |ports: &[ModelPort]| ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>();
                        let answer = json!({"inputs": ports(&backend.signature().inputs)});
                        loaded = Some(backend);
                        answer
                    }
                    Err(reason) => json!({"error": reason}),
                }
            }
            None if order.get("end").is_some() => {
                loaded = None;
                json!({})
            }
            None => match loaded.as_mut() {
                Some(backend) => run(&mut **backend, &order).unwrap_or_else(|reason| json!({"error": reason})),
                None => json!({"error": "no model is loaded"}),
            },
        };
        missing_folder(if is_run { "/check-redzones" } else { "/check-all-redzones" });
        let mut out = std::io::stdout().lock();
        writeln!(out, "{answer}").and_then(|()| out.flush()).expect("somebody reads the answers");
    }
}

/// Sends a message to the library `redzones.c`, by the removal of a folder that does not exist.
fn missing_folder(name: &str) {
    let _ = std::fs::remove_dir(name);
}

fn load(runtimes: &Runtimes, file: &str, order: &Value) -> Result<Box<dyn Backend>, String> {
    let is_respected = order.get("respects_dangers").and_then(Value::as_bool).unwrap_or(true);
    let (runtime, model) = (order.get("runtime").and_then(Value::as_str), PathBuf::from(file));
    let runtime = if runtime == Some("openvino") { Runtime::OpenVino } else { Runtime::OnnxRuntime };
    let (format, weights) = format_of(&model);
    let bytes = std::fs::read(&model).map_err(|error| error.to_string())?;
    let facts = files::read(format, &bytes)?;
    let dangers = if is_respected {
        facts.dangers
    } else {
        InputDangers { has_control_flow: facts.dangers.has_control_flow, ..InputDangers::default() }
    };
    let files = ModelFiles {
        format,
        model,
        weights,
        external: Vec::new(),
        port_names: facts.port_names,
        dangers,
        class_maps: facts.class_maps,
    };
    let options = LoadOptions { threads: 1, cache: CompiledModelCache::None, exact_int8: false, is_part: false };
    runtimes.load(runtime, &files, &options).map_err(|error| error.to_string())
}

/// The format of a model, and its file of weights.
fn format_of(model: &Path) -> (ModelFormat, Option<PathBuf>) {
    match model.extension().and_then(|extension| extension.to_str()) {
        Some("xml") => (ModelFormat::OpenVinoIr, Some(model.with_extension("bin"))),
        Some("tflite") => (ModelFormat::TfLite, None),
        _ => (ModelFormat::Onnx, None),
    }
}

fn run(backend: &mut dyn Backend, order: &Value) -> Result<Value, String> {
    let inputs = order.get("inputs").and_then(Value::as_array).ok_or("no inputs")?;
    let signature = backend.signature().clone();
    let mut tensors = Vec::new();
    for port in &signature.inputs {
        let input = inputs.iter().find(|input| input.get("name").and_then(Value::as_str) == Some(&port.name));
        let tensor = tensor(input.ok_or_else(|| format!("no input {}", port.name))?)?;
        if tensor.datatype() != port.datatype || !port.takes_shape(tensor.shape()) {
            return Err(format!("input {:?} does not fit {:?}", port.name, port.shape));
        }
        tensors.push(tensor);
    }
    let outputs: Vec<usize> = (0..signature.outputs.len()).collect();
    let deadline = Instant::now() + Duration::from_mins(1);
    let place = RunContext { core: 0, is_wide: false, deadline, patience: None };
    let result = backend.run(&tensors, &outputs, place).map_err(|error| error.to_string())?;
    let shown = result.outputs.iter().map(|tensor| {
        let data = tensor.data();
        json!({
            "datatype": tensor.datatype().as_str(), "shape": tensor.shape(),
            "hash": hash(data),
            "data": hex(data.get(..data.len().min(SHOWN_BYTES_MAX)).unwrap_or_default()),
        })
    });
    Ok(json!({"outputs": shown.collect::<Vec<_>>()}))
}

fn tensor(input: &Value) -> Result<Tensor, String> {
    let text = |key: &str| input.get(key).and_then(Value::as_str).ok_or_else(|| format!("no {key}"));
    let datatype = DataType::from_name(text("datatype")?).ok_or("an unknown datatype")?;
    let dims = input.get("shape").and_then(Value::as_array).ok_or("no shape")?;
    let shape = dims.iter().filter_map(Value::as_u64).filter_map(|dim| usize::try_from(dim).ok()).collect();
    let data = text("data")?.as_bytes();
    let byte = |pair: &[u8]| str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let data: Vec<u8> = data.chunks(2).map(byte).collect::<Option<_>>().ok_or("data that is not hexadecimal")?;
    Tensor::new(datatype, shape, data.into()).map_err(|error| error.to_string())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// FNV-1a of words of eight bytes.
fn hash(bytes: &[u8]) -> String {
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0_u64, |word, &byte| word << 8 | u64::from(byte));
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", bytes.chunks(8).map(word).fold(0xcbf2_9ce4_8422_2325 ^ bytes.len() as u64, mix))
}
