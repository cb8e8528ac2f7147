//! Numbers by which callers would end the daemon, or read and write its memory, through a runtime.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ledge::engine::backend::ModelFormat;
use ledge::engine::files;
use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::daemon::{TestDaemon, TestRoot, data};
use crate::fault_rounds::{runtime_processes, wait_until};

/// The models in one runtime, or in the one that is chosen.
fn serving(runtime: &str, models: &[&str]) -> TestDaemon {
    let root = TestRoot::new().models(models);
    let config = format!("runtime = \"{runtime}\"\nmax_batch_size = 0\n");
    models.iter().fold(root, |root, model| root.file(&format!("{model}/model.toml"), &config)).start()
}

fn ask(client: &mut Client, model: &str, inputs: &[(&str, &str, Value)]) -> Response {
    let input = |(name, datatype, data): &(&str, &str, Value)| json!({"name": name, "datatype": datatype, "shape": [data.as_array().unwrap().len()], "data": data});
    let inputs: Vec<Value> = inputs.iter().map(input).collect();
    client.post_json(&format!("/v2/models/{model}/infer"), &json!({"inputs": inputs}))
}

#[track_caller]
fn answers(response: &Response, expected: &Value) {
    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(response.json()["outputs"][0]["data"], *expected, "{response:?}");
}

/// The reason why a model is not served.
#[test]
fn whole_numbers_are_divided_right_or_refused_and_never_end_the_daemon() {
    let daemon = serving("auto", &["hostile_divide"]);
    let client = &mut daemon.client();
    let mut divide = |dividend: i64, divisor: i64| {
        let inputs = [("dividend", "INT64", json!([dividend])), ("divisor", "INT64", json!([divisor]))];
        ask(client, "hostile_divide", &inputs)
    };
    for (dividend, divisor, quotient) in [
        (7, 2, 3),
        (16_777_217, 1, 16_777_217),
        (i64::MAX, 10, i64::MAX / 10),
        (5, -1, -5),
        (i64::MIN, 2, i64::MIN / 2),
    ] {
        answers(&divide(dividend, divisor), &json!([quotient]));
        let refused = divide(i64::MIN, -1);
        assert!(refused.status == 400 && refused.error().contains("divisor"), "{refused:?}");
        assert!(divide(dividend, 0).status >= 400);
    }

    let daemon = serving("auto", &["hostile_divide_computed"]);
    let reason = daemon.client().refusal("hostile_divide_computed");
    assert!(reason.contains("ends the process") && reason.contains("in float32"), "{reason}");
}

#[test]
fn no_index_leads_out_of_its_tensor() {
    let models = ["hostile_masked", "hostile_scatter", "hostile_steps"];
    let daemon = serving("auto", &models);
    let client = &mut daemon.client();
    let x = || ("x", "FP32", json!([0, 1, 2, 3]));
    for places in [5, 1000, 100_000] {
        let mut mask = vec![false; places];
        mask[places - 1] = true;
        assert!(ask(client, models[0], &[x(), ("mask", "BOOL", json!(mask))]).status >= 400, "{places}");
    }
    answers(&ask(client, models[0], &[x(), ("mask", "BOOL", json!([true, false, false, true]))]), &json!([0.0, 3.0]));

    let mut scatter = |index: i64| {
        ask(client, models[1], &[x(), ("indices", "INT64", json!([index])), ("updates", "FP32", json!([9]))])
    };
    for index in [4, -5, -1000, -1_000_000, i64::from(i32::MIN), 1 << 40] {
        assert!(scatter(index).status >= 400, "{index}");
    }
    answers(&scatter(-1), &json!([0.0, 1.0, 2.0, 9.0]));

    assert!(ask(client, models[2], &[("step", "INT64", json!([0]))]).status >= 400);
    answers(&ask(client, models[2], &[("step", "INT64", json!([4]))]), &json!([0, 4, 8]));

    let daemon = serving("openvino", &models);
    for (model, words) in models.into_iter().zip(["memory", "memory", "process"]) {
        let reason = daemon.client().refusal(model);
        assert!(reason.contains(words), "{model}: {reason}");
    }
}

#[test]
fn a_call_for_more_memory_than_there_is_fails_alone() {
    for runtime in ["onnxruntime", "openvino"] {
        let root = TestRoot::new().models(&["hostile_expand"]);
        let root = root.file("hostile_expand/model.toml", format!("runtime = \"{runtime}\"\nmax_batch_size = 0\n"));
        // The bound of a box with little memory, beyond which Ledge has an eighth for itself.
        let daemon = root.runner(&["prlimit", "--data=1500000000:4000000000"]).start();
        let client = &mut daemon.client();
        let mut copies = |count: u64| {
            let inputs = [("x", "FP32", json!([7])), ("shape", "INT64", json!([count]))];
            ask(client, "hostile_expand", &inputs)
        };
        // Memory that no runtime gets; memory that it gets, without room for a copy; and no answer at all.
        for count in [4_000_000_000, 1_000_000_000, 230_000_000, 120_000_000] {
            let refused = copies(count);
            assert!(refused.status >= 400 && !refused.error().is_empty(), "{runtime}, {count}: {}", refused.status);
            answers(&copies(3), &json!([7.0, 7.0, 7.0]));
        }
    }
}

#[test]
fn a_failure_in_a_branch_leaves_no_answer_behind() {
    for (runtime, threads) in [("openvino", 1), ("openvino", 2), ("onnxruntime", 1)] {
        let config = format!("runtime = \"{runtime}\"\nmax_batch_size = 0\n[instance_group]\nthreads = {threads}\n");
        let root = TestRoot::new().models(&["hostile_branch"]).file("hostile_branch/model.toml", config);
        let daemon = root.set("runtimes.threads=2").start();
        let client = &mut daemon.client();
        let mut sum = |shape: [u64; 2], element: u64| {
            let inputs = [
                ("is_summed", "BOOL", json!([true])),
                ("x", "FP32", json!(vec![element; 8])),
                ("shape", "INT64", json!(shape)),
            ];
            ask(client, "hostile_branch", &inputs)
        };
        for element in 1..4 {
            answers(&sum([2, 4], element), &json!([8.0 * f64::from(u32::try_from(element).unwrap())]));
            for _ in 0..2 {
                let failed = sum([3, 3], 5);
                assert!(failed.status >= 400, "{runtime} with {threads}: {failed:?}");
            }
            answers(&sum([4, 2], 2 * element), &json!([16.0 * f64::from(u32::try_from(element).unwrap())]));
        }
    }
}

#[test]
fn known_hostile_numbers_get_a_right_answer_or_an_error_and_end_no_process() {
    let numbers = |name: &'static str, datatype: &'static str, values: &[i64]| (name, datatype, json!(values));
    let x = || ("x", "FP32", json!([1, 2, 3, 4, 5, 6, 7, 8]));
    let rows = json!({"name": "x", "datatype": "FP32", "shape": [8, 2], "data": (0..16).collect::<Vec<_>>()});
    for runtime in ["auto", "openvino"] {
        let mut root = TestRoot::new().models(&["add_sub"]).set("runtimes.isolation=process");
        let config = format!("runtime = \"{runtime}\"\nmax_batch_size = 0\n");
        for (model, files) in [
            ("pad", &["model.onnx"][..]),
            ("slice", &["model.onnx"]),
            ("pad_ir", &["model.xml", "model.bin"]),
            ("gather_nd_ir", &["model.xml", "model.bin"]),
            ("shift_ir", &["model.xml", "model.bin"]),
        ] {
            root = root.file(&format!("{model}/model.toml"), &config);
            for file in files {
                root = root.file(&format!("{model}/1/{file}"), data(&format!("hostile/{model}/1/{file}")));
            }
        }
        let daemon = root.start();
        // A process that tried a model ends soon after the model is ready.
        wait_until("one process", Duration::from_mins(1), || runtime_processes(&daemon).len() == 1);
        let before = runtime_processes(&daemon);
        let client = &mut daemon.client();
        let answers = |response: &Response, right: &dyn Fn(f64) -> bool| {
            let answer = response.json();
            let of = |answer: &Value| answer["outputs"][0]["data"].as_array().cloned().unwrap_or_default();
            let is_right =
                response.status == 200 && of(&answer).iter().all(|number| number.as_f64().is_some_and(right));
            assert!(response.status >= 400 || is_right, "{runtime}: {response:?}");
        };
        for pads in [[20, -9], [-9, 20], [200, -100], [-100, 200]] {
            let padded = ask(client, "pad", &[x(), numbers("pads", "INT64", &pads)]);
            answers(&padded, &|number| number == 0.0);
            let [begin, end] = pads.map(|pad| vec![pad]);
            let ir = [x(), numbers("begin", "INT64", &begin), numbers("end", "INT64", &end)];
            answers(&ask(client, "pad_ir", &ir), &|number| number == 0.0);
        }
        for (start, end) in [(7, -9), (0, 8), (7, -2_147_483_648)] {
            let one = |name, value| numbers(name, "INT64", &[value]);
            let inputs = [x(), one("starts", start), one("ends", end), one("steps", -2_147_483_648)];
            answers(&ask(client, "slice", &inputs), &|number| (number - 8.0).abs() < f64::EPSILON);
        }
        for index in [8, -9, 1 << 20, i64::from(i32::MIN)] {
            let indices = json!({"name": "indices", "datatype": "INT32", "shape": [1, 1], "data": [index]});
            let gathered = client.post_json("/v2/models/gather_nd_ir/infer", &json!({"inputs": [rows, indices]}));
            answers(&gathered, &|number| number == 0.0);
        }
        for by in [32, 33, 64, -1, i64::from(i32::MIN)] {
            let inputs = [numbers("x", "INT32", &[1]), numbers("by", "INT32", &[by])];
            answers(&ask(client, "shift_ir", &inputs), &|number| number == 0.0);
        }
        assert_eq!(runtime_processes(&daemon), before, "{runtime}");
    }
}

/// The models that callers could harm a runtime with, made for that, and files that cannot be read.
const REFUSED: [&str; 12] = [
    // OpenVINO lacks its operator OneHotEncoder.
    "bike_demand openvino",
    "broken_ir openvino",
    "broken_tflite openvino",
    "hostile_divide openvino",
    "hostile_divide_computed onnxruntime",
    "hostile_divide_computed openvino",
    "hostile_masked openvino",
    "hostile_scatter openvino",
    "hostile_steps openvino",
    // They choose rows by the caller's numbers, and OpenVINO runs them.
    "release_nan onnxruntime",
    "release_negated onnxruntime",
    "release_wrong onnxruntime",
];

/// The model files in a folder, and in those within it.
fn model_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    let of = |path: PathBuf| if path.is_dir() { model_files(&path) } else { vec![path] };
    let is_model = |path: &PathBuf| {
        path.extension().is_some_and(|kind| ["onnx", "xml", "tflite"].iter().any(|known| kind == *known))
    };
    paths.flat_map(of).filter(is_model).collect()
}

#[test]
fn shipped_and_test_models_keep_their_runtimes() {
    let (mut refused, mut read) = (Vec::new(), 0);
    for folder in ["add_sub", "wine_mlp"].map(|name| crate::daemon::model_folder(name).parent().unwrap().to_owned()) {
        for path in model_files(&folder) {
            let format = match path.extension().unwrap().to_str().unwrap() {
                "onnx" => ModelFormat::Onnx,
                "xml" => ModelFormat::OpenVinoIr,
                _ => ModelFormat::TfLite,
            };
            let Ok(facts) = files::read(format, &std::fs::read(&path).unwrap()) else { continue };
            read += 1;
            let name = path.strip_prefix(&folder).unwrap().iter().next().unwrap().to_str().unwrap().to_owned();
            for (runtime, reason) in facts.dangers.refused {
                println!("{name}: {runtime}: {reason}");
                refused.push(format!("{name} {runtime}"));
            }
        }
    }
    refused.sort();
    assert!(read > 40, "{read} models");
    assert_eq!(refused, REFUSED);
}
