//! Both runtimes: the models that each accepts, those that are passed on to the other, and the messages of refusals.

use std::path::{Path, PathBuf};

use ledge::engine::backend::ModelFormat;
use ledge::engine::files;
use serde_json::{Value, json};

use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot, data, model_folder, setup_root, write};

/// The reason in the index why a model is not served.
fn platform(client: &mut Client, model: &str) -> Value {
    client.get(&format!("/v2/models/{model}")).json()["platform"].clone()
}

#[test]
fn each_model_ends_in_the_runtime_that_can_run_it() {
    let models = ["add_sub", "qoperator", "ml_scaler", "tflite_blazeface", "ir_add"];
    let daemon = TestRoot::new().models(&models).start();
    let client = &mut daemon.client();
    for (model, expected) in [
        ("add_sub", "onnxruntime_onnx"),
        ("qoperator", "onnxruntime_onnx"),
        ("ml_scaler", "onnxruntime_onnx"),
        ("tflite_blazeface", "OpenVINO"),
        ("ir_add", "OpenVINO"),
    ] {
        assert_eq!(client.get(&format!("/v2/models/{model}/ready")).status, 200, "{model}");
        assert_eq!(platform(client, model), expected, "{model}");
        run_on_zeros(client, model);
    }
}

/// Runs a model on zeros of its input shapes.
fn run_on_zeros(client: &mut Client, model: &str) {
    let metadata = client.get(&format!("/v2/models/{model}")).json();
    let input = |port: &Value| {
        let shape: Vec<i64> =
            port["shape"].as_array().unwrap().iter().map(|dim| dim.as_i64().unwrap().max(1)).collect();
        let count = usize::try_from(shape.iter().product::<i64>()).unwrap();
        json!({"name": port["name"], "datatype": port["datatype"], "shape": shape, "data": vec![0; count]})
    };
    let inputs: Vec<Value> = metadata["inputs"].as_array().unwrap().iter().map(input).collect();
    let answer = client.post_json(&format!("/v2/models/{model}/infer"), &json!({"inputs": inputs}));
    assert_eq!(answer.status, 200, "{model}: {answer:?}");
    assert_eq!(answer.json()["outputs"].as_array().unwrap().len(), metadata["outputs"].as_array().unwrap().len());
}

#[test]
fn a_runtime_that_is_pinned_to_what_it_cannot_run_says_why() {
    let daemon = TestRoot::new()
        .models(&["qoperator", "ml_scaler", "tflite_blazeface", "ir_add", "identity_string", "add_sub"])
        .file("qoperator/model.toml", "runtime = \"openvino\"")
        .file("ml_scaler/model.toml", "runtime = \"openvino\"")
        .file("identity_string/model.toml", "runtime = \"openvino\"")
        .file("tflite_blazeface/model.toml", "runtime = \"onnxruntime\"")
        .file("ir_add/model.toml", "runtime = \"onnxruntime\"")
        .file("add_sub/model.toml", "runtime = \"openvino\"")
        .start();
    let client = &mut daemon.client();
    for model in ["qoperator", "ml_scaler", "identity_string"] {
        let reason = client.refusal(model);
        assert!(reason.contains("openvino") && !reason.contains('\n'), "{model}: {reason}");
    }
    for (model, format) in [("tflite_blazeface", "TFLite"), ("ir_add", "OpenVINO")] {
        let reason = client.refusal(model);
        assert!(reason.contains("onnxruntime") && reason.contains(format), "{model}: {reason}");
    }
    assert_eq!(platform(client, "add_sub"), "OpenVINO");
    let input = |name, value: f32| json!({"name": name, "datatype": "FP32", "shape": [2, 16], "data": vec![value; 32]});
    let request = json!({"inputs": [input("INPUT1", 1.0), input("INPUT0", 3.0)], "outputs": [{"name": "OUTPUT1"}]});
    let answer = client.post_json("/v2/models/add_sub/infer", &request).json();
    assert_eq!(answer["outputs"][0]["data"], json!(vec![2.0; 32]), "inputs and outputs go by name, not by order");
}

#[test]
fn openvino_carries_every_datatype_that_it_shares_with_the_protocol() {
    let types = [
        "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "fp16", "bf16", "fp32",
        "fp64",
    ];
    let root = types.iter().fold(TestRoot::new(), |root, name| {
        let model = format!("identity_{name}");
        root.models(&[&model]).file(&format!("{model}/model.toml"), "runtime = \"openvino\"")
    });
    let daemon = root.start();
    let client = &mut daemon.client();
    for name in types {
        let model = format!("identity_{name}");
        let metadata = client.get(&format!("/v2/models/{model}"));
        assert_eq!(metadata.status, 200, "{model}: {metadata:?}");
        let datatype = metadata.json()["inputs"][0]["datatype"].clone();
        let data = if name == "bool" { json!([true, false]) } else { json!([1, 2]) };
        let request = json!({"inputs": [{"name": "IN", "datatype": datatype, "shape": [2, 1], "data": data}]});
        let answer = client.post_json(&format!("/v2/models/{model}/infer"), &request);
        assert_eq!(answer.status, 200, "{model}: {answer:?}");
        let output = answer.json()["outputs"][0].clone();
        assert_eq!((&output["datatype"], &output["shape"]), (&datatype, &json!([2, 1])));
        let same = |a: &Value, b: &Value| a == b || a.as_f64() == b.as_f64();
        assert!(
            output["data"].as_array().unwrap().iter().zip(data.as_array().unwrap()).all(|(a, b)| same(a, b)),
            "{output}"
        );
    }
}

#[test]
fn no_file_of_a_model_is_read_through_a_link_out_of_its_folder() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    let add_sub = model_folder("add_sub");
    let model = add_sub.join("1/model.onnx");
    write(secret.path(), &std::fs::read(&model).unwrap());
    let root = TestRoot::new().models(&["add_sub"]);
    let links = ["labels.txt", "model.toml", "golden.json", "1/model.onnx", "1/model.float.onnx", "1/weights.bin"];
    let names: Vec<_> = links.iter().map(|link| link.replace(['/', '.'], "_")).collect();
    let root = links.iter().zip(&names).fold(root, |root, (link, name)| {
        let source = if *link == "1/weights.bin" { "external_data" } else { "add_sub" };
        let root = root.model_as(source, name);
        let folder = root.model(name);
        let config = match *link {
            "labels.txt" => "[[output]]\nname = \"OUTPUT0\"\nlabels = \"labels.txt\"\n",
            "golden.json" => "[[golden]]\nfile = \"golden.json\"\n",
            _ => "",
        };
        write(&folder.join("model.toml"), config.as_bytes());
        let _ = std::fs::remove_file(folder.join(link));
        std::os::unix::fs::symlink(secret.path(), folder.join(link)).unwrap();
        root
    });
    // A link within the folder, and a folder that is a link itself, are an owner's own.
    write(&root.model("own").join("data/labels.txt"), "sum\n".repeat(16).as_bytes());
    write(&root.model("own").join("model.toml"), b"[[output]]\nname = \"OUTPUT0\"\nlabels = \"labels.txt\"\n");
    std::os::unix::fs::symlink("data/labels.txt", root.model("own").join("labels.txt")).unwrap();
    std::os::unix::fs::symlink(add_sub.join("1"), root.model("own").join("1")).unwrap();
    std::os::unix::fs::symlink(&add_sub, root.model("linked")).unwrap();
    let daemon = root.start();
    let client = &mut daemon.client();
    for name in &names {
        let reason = client.refusal(name);
        assert!(reason.contains("a link that leads out of the model's folder"), "{name}: {reason}");
    }
    for model in ["add_sub", "own", "linked"] {
        assert_eq!(client.get(&format!("/v2/models/{model}/ready")).status, 200, "{model}");
    }
}

#[test]
fn broken_files_are_listed_with_their_reason_and_disturb_nothing() {
    let daemon = TestRoot::new()
        .models(&["add_sub", "broken_cut", "broken_empty", "broken_ir", "broken_no_bin", "broken_png", "broken_tflite"])
        .models(&["broken_versions", "external_absolute", "external_address", "external_escape", "external_data"])
        .model_as("efficientnet_lite0", "crop_of_another_size")
        .file("crop_of_another_size/model.toml", "[pipeline.image_classification]\ncrop = [128, 128]\n")
        .file("broken_config/model.toml", "runtime = \"tensorrt\"\nbatch = 3\n")
        .file("broken_config/1/model.onnx", "x")
        .file("labels_gone/model.toml", "[[output]]\nname = \"OUTPUT0\"\nlabels = \"labels.txt\"\n")
        .file("labels_gone/1/model.onnx", std::fs::read(model_folder("add_sub").join("1/model.onnx")).unwrap())
        .start();
    let client = &mut daemon.client();
    for (model, words) in [
        ("broken_cut", "is not an ONNX model, or is cut off"),
        ("broken_empty", "is empty"),
        ("broken_ir", "its XML cannot be checked"),
        ("broken_no_bin", "model.bin cannot be read"),
        ("broken_png", "is not an ONNX model"),
        ("broken_tflite", "its graph cannot be checked"),
        ("broken_versions", "no version folder"),
        ("external_absolute", "outside its own folder"),
        ("external_address", "outside its own folder"),
        ("external_escape", "outside its own folder"),
        ("broken_config", "tensorrt"),
        ("broken_config", "batch"),
        ("labels_gone", "labels.txt cannot be read"),
        ("crop_of_another_size", "makes tensors of shape [1, 3, 128, 128]"),
    ] {
        let reason = client.refusal(model);
        assert!(reason.contains(words) && !reason.contains('\n'), "{model}: {reason}");
        assert_eq!(client.get(&format!("/v2/models/{model}/ready")).status, 503);
    }
    for model in ["add_sub", "external_data"] {
        assert_eq!(client.get(&format!("/v2/models/{model}/ready")).status, 200);
        run_on_zeros(client, model);
    }
}

#[test]
fn a_missing_runtime_is_not_fatal_and_its_models_say_so() {
    let root = TestRoot::new().models(&["add_sub", "ir_add"]);
    let runtimes = root.folder.path().join("only-one");
    std::fs::create_dir(&runtimes).unwrap();
    let library = "libonnxruntime.so.1.31.1";
    std::os::unix::fs::symlink(setup_root().join("runtimes").join(library), runtimes.join(library)).unwrap();
    let daemon = root.set("runtimes.dir=\"only-one\"").start();
    let client = &mut daemon.client();
    assert_eq!(client.get("/v2/models/add_sub/ready").status, 200);
    let reason = client.refusal("ir_add");
    assert!(reason.contains("libopenvino_c.so"), "{reason}");
}

#[test]
fn shapes_may_vary_be_fixed_or_be_none_at_all() {
    let daemon = TestRoot::new().models(&["dynamic_sum", "fixed_shape", "scalar_out"]).start();
    let client = &mut daemon.client();
    let infer = |client: &mut Client, model: &str, shape: &[usize]| {
        let input = client.get(&format!("/v2/models/{model}")).json()["inputs"][0]["name"].clone();
        let count: usize = shape.iter().product();
        let request =
            json!({"inputs": [{"name": input, "datatype": "FP32", "shape": shape, "data": vec![1.0; count]}]});
        client.post_json(&format!("/v2/models/{model}/infer"), &request)
    };
    for (rows, columns) in [(1, 1), (3, 7), (64, 2), (1, 0)] {
        let answer = infer(client, "dynamic_sum", &[rows, columns]);
        assert_eq!(answer.status, 200, "{answer:?}");
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let expected = vec![columns as f64; rows];
        assert_eq!(answer.json()["outputs"][0]["data"], json!(expected));
    }
    assert_eq!(infer(client, "fixed_shape", &[3, 4]).json()["outputs"][0]["shape"], json!([3, 4]));
    assert_eq!(infer(client, "fixed_shape", &[4, 4]).status, 400);
    assert_eq!(infer(client, "scalar_out", &[2, 4]).json()["outputs"][0]["shape"], json!([]));
}

#[test]
fn a_model_that_fails_on_an_input_answers_500_and_goes_on() {
    let daemon = TestRoot::new().models(&["bad_at_runtime"]).start();
    let client = &mut daemon.client();
    let request =
        |value| json!({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, value]}]});
    let answer = client.post_json("/v2/models/bad_at_runtime/infer", &request(-1));
    assert_eq!(answer.status, 500, "{answer:?}");
    assert!(answer.error().contains("onnxruntime"), "{}", answer.error());
    let answer = client.post_json("/v2/models/bad_at_runtime/infer", &request(2));
    assert_eq!(answer.json()["outputs"][0]["data"], json!([1.0, 1.0, 1.0, 2.0]));
}

fn efficientnet(runtime: &str) -> TestDaemon {
    let text = std::fs::read_to_string(setup_root().join("models/efficientnet_lite0/model.toml")).unwrap();
    let pinned = text.replace("runtime = \"auto\"", &format!("runtime = \"{runtime}\""));
    assert_ne!(text, pinned);
    TestRoot::new().models(&["efficientnet_lite0"]).file("efficientnet_lite0/model.toml", pinned).start()
}

#[test]
fn both_runtimes_name_the_same_first_class_for_every_photograph() {
    let photographs: Vec<(String, &str, Vec<u8>)> =
        std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/photos"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter_map(|name| {
                let kind = match name.rsplit('.').next()? {
                    "png" => "image/png",
                    "jpg" => "image/jpeg",
                    "webp" => "image/webp",
                    _ => return None,
                };
                let content = data(&format!("photos/{name}"));
                Some((name, kind, content))
            })
            .collect();
    assert!(photographs.len() >= 4, "{photographs:?}");
    let answers = ["onnxruntime", "openvino"].map(|runtime| {
        let daemon = efficientnet(runtime);
        let client = &mut daemon.client();
        let mut scores = Vec::new();
        for (name, kind, content) in &photographs {
            let answer = client.post("/v2/models/efficientnet_lite0/infer", &[("content-type", kind)], content);
            assert_eq!(answer.status, 200, "{name}: {answer:?}");
            let answer = answer.json();
            assert_eq!(answer["runtime"], runtime);
            assert_eq!(answer["labels"].as_array().unwrap().len(), 5);
            let labels = answer["labels"].as_array().unwrap().iter();
            let score = |label: &Value| (label["label"].as_str().unwrap().to_owned(), label["score"].as_f64().unwrap());
            let labels: Vec<_> = labels.map(score).collect();
            let label = &labels[0].0;
            if name.starts_with("coffee") {
                assert_eq!(label, "espresso");
                assert!(answer["labels"][0]["score"].as_f64().unwrap() > 0.5, "{answer}");
            }
            if name.starts_with("camera") {
                assert_eq!(label, "tripod");
            }
            scores.push(labels);
        }
        scores
    });
    // Of two cats that look alike each runtime may put another one first.
    for ((name, ..), (one, other)) in photographs.iter().zip(answers[0].iter().zip(&answers[1])) {
        let there = other.iter().find(|(label, _)| *label == one[0].0).unwrap_or_else(|| panic!("{name}: {other:?}"));
        assert!((there.1 - one[0].1).abs() < 0.05, "{name}: {one:?} and {other:?}");
    }
}

#[test]
fn a_wrong_golden_answer_keeps_a_model_from_serving() {
    let text = std::fs::read_to_string(setup_root().join("models/efficientnet_lite0/model.toml")).unwrap();
    let wrong = text.replace("label = \"espresso\"", "label = \"tabby\"");
    assert_ne!(text, wrong);
    let daemon = TestRoot::new().models(&["efficientnet_lite0"]).file("efficientnet_lite0/model.toml", wrong).start();
    let reason = daemon.client().refusal("efficientnet_lite0");
    assert!(reason.contains("expected \"tabby\" first, got \"espresso\""), "{reason}");
    assert!(reason.contains("onnxruntime") && reason.contains("openvino"), "{reason}");
}

/// The ONNX files below a folder.
fn onnx_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let found = entries.flat_map(|path| if path.is_dir() { onnx_files(&path) } else { vec![path] });
    found.filter(|path| path.extension().is_some_and(|extension| extension == "onnx")).collect()
}

#[test]
fn every_model_of_the_setup_passes_the_checks_before_a_runtime() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let folders = [setup_root().join("models"), setup_root().join("test-models"), data.join("tables")];
    let files: Vec<_> = folders.iter().flat_map(|folder| onnx_files(folder)).collect();
    assert!(files.len() > 50, "{files:?}");
    for file in files {
        let name = file.display().to_string();
        // These are bad on purpose.
        let bad =
            ["broken_cut", "broken_empty", "broken_png", "external_absolute", "external_address", "external_escape"];
        let read = files::read(ModelFormat::Onnx, &std::fs::read(&file).unwrap());
        assert_eq!(read.is_err(), bad.iter().any(|bad| name.contains(bad)), "{name}: {read:?}");
    }
}

#[test]
fn what_an_onnx_file_must_not_have_is_refused_before_a_runtime_sees_it() {
    let model = |name: &str| std::fs::read(model_folder(name).join("1/model.onnx")).unwrap();
    // The following is added to the existing graph.
    let with = |graph: &[u8]| [&model("add_sub")[..], &[0x3a, u8::try_from(graph.len()).unwrap()], graph].concat();
    let output = b"\x62\x09\x0a\x01q\x12\x04\x0a\x02\x08\x01";
    let cut_off = b"\x0a\x10\x12\x01q\x22\x05Swirl\x3a\x04acme";
    let unknown = with(&[&cut_off[..], output].concat());
    let of_openvino = with(&[&b"\x0a\x1f\x12\x01q\x22\x05Swirl\x3a\x13org.openvinotoolkit"[..], output].concat());
    // Floats of the shapes [9, -1], [9, 4] without data, and [2^40, 2^40].
    let negative = with(b"\x2a\x0f\x08\x09\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x10\x01");
    let missing = with(b"\x2a\x09\x08\x09\x08\x04\x10\x01\x42\x01w");
    let large = with(b"\x2a\x10\x08\x80\x80\x80\x80\x80\x20\x08\x80\x80\x80\x80\x80\x20\x10\x01");
    let mut external = std::fs::read(model_folder("external_data").join("1/weights.bin")).unwrap();
    let whole = external.len();
    external.pop();
    let files = [unknown, of_openvino, negative, missing, large, model("external_data")];
    let names = ["unknown", "of_openvino", "negative", "missing", "large", "short"];
    let root = TestRoot::new().models(&["add_sub"]);
    let root = names
        .iter()
        .zip(&files)
        .fold(root, |root, (name, content)| root.file(&format!("{name}/1/model.onnx"), content));
    let root = root.file("short/1/weights.bin", &external).file("cut_off/1/model.onnx", with(cut_off));
    let daemon = root.start();
    let client = &mut daemon.client();
    for (name, words) in [
        ("unknown", "has the operator \"Swirl\" of the domain \"acme\", which no runtime knows"),
        (
            "of_openvino",
            "onnxruntime is not used for this model: it does not know the operator \"Swirl\" of the domain",
        ),
        ("negative", "cannot be used: a tensor has a negative dimension in its shape [9, -1]"),
        ("missing", "cannot be used: its tensor \"w\" has the shape [9, 4], and 0 of its 144 bytes"),
        ("large", "cannot be used: a tensor has more elements than fit into 63 bits"),
        ("short", &format!("bytes of external data in weights.bin, which has only {}", whole - 1)),
    ] {
        let reason = client.refusal(name);
        assert!(reason.contains(words), "{name}: {reason}");
    }
    for model in ["add_sub", "cut_off"] {
        run_on_zeros(client, model);
    }
    assert_eq!(platform(client, "cut_off"), "OpenVINO", "which does not look at what no output needs");
}
