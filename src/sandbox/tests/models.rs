//! Both runtimes in a sandboxed process: every shipped model gives the same answers as outside.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use ledge_base::tensor::{DataType, Tensor, element_count, from_f64};
use ledge_engine::backend::{
    Backend, CompiledModelCache, InputDangers, LoadOptions, ModelFiles, ModelFormat, ModelPort, RunContext, Runtime,
};
use ledge_engine::{Runtimes, onnx};
use ledge_sandbox::MechanismState;

use crate::Test;
use crate::order::{ProbeOrder, parse};

pub const TESTS: &[Test] = &[
    ("models::every_model_answers_as_outside_on_one_thread", || every_model_answers_as_outside(1)),
    ("models::every_model_answers_as_outside_on_two_threads", || every_model_answers_as_outside(2)),
    ("models::models_of_all_formats_answer_as_outside", models_of_all_formats_answer_as_outside),
    ("models::no_code_is_generated_where_memory_is_writable_or_executable", no_code_is_generated),
];

/// Models that only tests use: each format, strings, quantized operators, data in a second file, control flow, and
/// files that a runtime refuses.
const TEST_MODELS: &[&str] = &[
    "add_sub",
    "broken_tflite",
    "external_data",
    "hostile_branch",
    "identity_string",
    "ir_add",
    "ml_scaler",
    "qoperator",
    "quantized_colours",
    "tflite_blazeface",
];

/// The folder that `make setup` fills; `LEDGE_TEST_ROOT` names another.
fn setup_root() -> PathBuf {
    let root = std::env::var_os("LEDGE_TEST_ROOT")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ledge"), PathBuf::from);
    assert!(root.join("models").is_dir(), "{} is missing: `make test` prepares it", root.display());
    root.canonicalize().unwrap()
}

/// Runs models outside, and `rounds` times in a sandboxed process, with the files that the first run left in the cache.
fn answers_are_the_same(models: &[PathBuf], threads: usize, rounds: usize) -> Vec<String> {
    let runtimes = setup_root().join("runtimes");
    let run = |cache: &Path, is_sandboxed| -> Vec<String> {
        ProbeOrder::Run {
            models: models.to_owned(),
            threads,
            runtimes: runtimes.clone(),
            cache: cache.to_owned(),
            is_sandboxed,
        }
        .lines()
    };
    let [outside, sandboxed] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let expected = run(outside.path(), false);
    for round in 0..rounds {
        assert_eq!(run(sandboxed.path(), true), expected, "round {round}");
        assert!(has_file(sandboxed.path(), "blob"), "nothing was cached");
    }
    expected
}

fn every_model_answers_as_outside(threads: usize) {
    let folders = std::fs::read_dir(setup_root().join("models")).unwrap();
    let mut models: Vec<_> = folders.map(|folder| folder.unwrap().path()).filter(|folder| folder.is_dir()).collect();
    models.sort();
    assert!(models.len() >= 8, "{models:?}");
    let answers = answers_are_the_same(&models, threads, 1);
    let answered =
        |runtime: Runtime| answers.iter().filter(|answer| answer.contains(&format!(" {runtime} ok "))).count();
    assert!(answered(Runtime::OnnxRuntime) >= 8 && answered(Runtime::OpenVino) >= 7, "{answers:#?}");
}

fn models_of_all_formats_answer_as_outside() {
    let root = setup_root().join("test-models");
    let models: Vec<_> = TEST_MODELS.iter().map(|name| root.join(name)).collect();
    let answers = answers_are_the_same(&models, 2, 2);
    assert!(answers.iter().filter(|answer| answer.contains(" ok ")).count() >= 10, "{answers:#?}");
}

fn no_code_is_generated() {
    let root = setup_root();
    let model = root.join("test-models/add_sub");
    let cache = tempfile::tempdir().unwrap();
    let order = ProbeOrder::WriteCode { model, runtimes: root.join("runtimes"), cache: cache.path().to_owned() };
    let output = order.output(None);
    let lines: Vec<serde_json::Value> = parse(&output);
    let state: MechanismState = serde_json::from_value(lines[0].clone()).unwrap();
    assert!(state.is_in_force(), "{state}");
    let answers: Vec<&str> = lines[1..].iter().map(|line| line.as_str().unwrap()).collect();
    let has = |text: &str| answers.iter().any(|answer| answer.contains(text));
    // ONNX Runtime generates no code; OpenVINO does, and gets none.
    assert!(has("onnxruntime ok") && !has("openvino ok"), "{answers:#?}");
}

fn has_file(folder: &Path, extension: &str) -> bool {
    std::fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            has_file(&path, extension)
        } else {
            path.extension().is_some_and(|found| found == extension)
        }
    })
}

/// Loads each model of these folders in each runtime, runs it, and reports the result.
pub fn run(folders: &[PathBuf], threads: usize, runtimes: &Path, cache: &Path, mut tell: impl FnMut(String)) {
    let runtimes = Runtimes::new(runtimes.to_owned());
    for files in folders.iter().flat_map(|folder| models_in(folder)) {
        for runtime in Runtime::ALL {
            let cache = cache.join(files.model.display().to_string().replace('/', "_"));
            let options =
                LoadOptions { threads, cache: CompiledModelCache::Shared(cache), exact_int8: false, is_part: false };
            let name = format!("{} {runtime}", files.model.display());
            tell(match runtimes.load(runtime, &files, &options) {
                Ok(backend) => format!("{name} {}", answer(backend)),
                // Its text may name a folder of the cache.
                Err(_) => format!("{name} refused"),
            });
        }
    }
}

/// The models of all versions in a folder.
fn models_in(folder: &Path) -> Vec<ModelFiles> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for version in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
        paths.extend(std::fs::read_dir(version).unwrap().map(|entry| entry.unwrap().path()));
    }
    paths.sort();
    paths.into_iter().filter_map(files_of).collect()
}

fn files_of(model: PathBuf) -> Option<ModelFiles> {
    let format = match model.extension()?.to_str()? {
        "onnx" => ModelFormat::Onnx,
        "xml" => ModelFormat::OpenVinoIr,
        "tflite" => ModelFormat::TfLite,
        _ => return None,
    };
    let weights = (format == ModelFormat::OpenVinoIr).then(|| model.with_extension("bin"));
    let dangers = InputDangers::default();
    let mut files =
        ModelFiles { format, model, weights, external: Vec::new(), port_names: None, dangers, class_maps: Vec::new() };
    if format == ModelFormat::Onnx {
        let summary = onnx::summarize(&std::fs::read(&files.model).unwrap()).unwrap();
        files.port_names = Some(summary.port_names);
        files.dangers = summary.dangers;
        files.class_maps = summary.class_maps;
    }
    Some(files)
}

/// Runs a model on a pinned thread, as a worker of Ledge does, twice with the same inputs.
fn answer(mut backend: Box<dyn Backend>) -> String {
    let inputs: Vec<Tensor> = backend.signature().inputs.iter().map(input).collect();
    let outputs: Vec<usize> = (0..backend.signature().outputs.len()).collect();
    let worker = std::thread::spawn(move || {
        ledge_engine::cores::pin(&ledge_engine::cores::allowed()).unwrap();
        let place = RunContext { core: 0, is_wide: true, deadline: std::time::Instant::now(), patience: None };
        let [first, second] = [(); 2].map(|()| backend.run(&inputs, &outputs, place).map(|result| result.outputs));
        assert_eq!(first, second);
        first
    });
    match worker.join().unwrap() {
        Ok(outputs) => {
            let mut hasher = DefaultHasher::new();
            for output in outputs {
                (output.shape(), &output.data()[..]).hash(&mut hasher);
            }
            format!("ok {:016x}", hasher.finish())
        }
        Err(_) => "failed".to_owned(),
    }
}

/// Small numbers, which are valid as indices too.
fn input(port: &ModelPort) -> Tensor {
    let shape: Vec<usize> = port.shape.iter().map(|side| usize::try_from(*side).unwrap_or(2)).collect();
    let count = element_count(&shape).unwrap();
    let numbers = (0..count).map(|index| u32::try_from(index % 5).unwrap());
    match port.datatype {
        DataType::Bytes => Tensor::from_strings(shape, numbers.map(|number| number.to_string())).unwrap(),
        DataType::Bool => from_f64(DataType::Bool, shape, &vec![1.0; count]).unwrap(),
        datatype => from_f64(datatype, shape, &numbers.map(f64::from).collect::<Vec<_>>()).unwrap(),
    }
}
