//! OpenVINO's cache of compiled models is kept between starts: a start survives any content of the cache, and several
//! copies of a model that are compiled at once.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::daemon::{TestDaemon, TestRoot, write};
use crate::feature_faults::seed::Random;

/// Four copies of a model, one of them with two instances.
fn copies(model: &str) -> TestRoot {
    ["a", "b", "c", "d"].iter().fold(TestRoot::new(), |root, name| {
        let count = if *name == "a" { 2 } else { 1 };
        let config = format!("runtime = \"openvino\"\n[instance_group]\ncount = {count}\n");
        root.model_as(model, name).file(&format!("{name}/model.toml"), config)
    })
}

fn all_serve(daemon: &TestDaemon) {
    let index = daemon.client().post("/v2/repository/index", &[], b"").json();
    let rows = index.as_array().unwrap();
    assert!(rows.len() == 4 && rows.iter().all(|row| row["state"] == "READY"), "{index}");
}

/// Starts with no cache at all, so that every copy is compiled or waits for it.
fn cold_starts(model: &str, rounds: usize) {
    let mut root = copies(model);
    for round in 0..rounds {
        let _ = std::fs::remove_dir_all(root.folder.path().join("cache"));
        let daemon = root.start();
        all_serve(&daemon);
        println!("cold start {} of {rounds}", round + 1);
        root = daemon.kill();
    }
}

#[test]
fn copies_of_a_model_are_compiled_at_one_start() {
    cold_starts("tflite_blazeface", 3);
}

#[test]
#[ignore = "minutes: make soak"]
fn copies_of_a_model_are_compiled_at_thirty_starts() {
    cold_starts("efficientnet_lite0", 30);
}

/// The compiled models below a folder, which a daemon may make, fill or rename meanwhile.
fn blobs(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        // Where a process of models reads them they have a second name.
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if path.is_dir() && !is_hidden {
            blobs(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "blob") {
            found.push(path);
        }
    }
}

#[test]
fn a_start_survives_a_damaged_cache() {
    let mut random = Random::new("compiled_cache");
    let mut root = copies("ir_add");
    for damage in ["none", "cut", "empty", "overwritten", "strange"] {
        let daemon = root.start();
        all_serve(&daemon);
        let input = json!({"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]});
        let answer = daemon.client().post_json("/v2/models/a/infer", &json!({"inputs": [input]})).json();
        assert_eq!(answer["outputs"][0]["data"], json!([11.0, 22.0, 33.0, 44.0]), "after the damage before {damage:?}");
        root = daemon.kill();

        let mut found = Vec::new();
        blobs(&root.folder.path().join("cache"), &mut found);
        assert!(!found.is_empty(), "nothing was kept");
        for path in found {
            let whole = std::fs::read(&path).unwrap();
            let at = random.below(whole.len());
            let changed = whole.iter().enumerate().map(|(place, byte)| if place >= at { !byte } else { *byte });
            match damage {
                "cut" => write(&path, &whole[..at]),
                "empty" => write(&path, b""),
                "overwritten" => write(&path, &changed.collect::<Vec<u8>>()),
                "strange" => write(&path.with_file_name("strange.blob"), b"of nobody"),
                _ => {}
            }
        }
    }
    all_serve(&root.start());
}

#[test]
fn each_part_of_a_chain_is_kept() {
    let root = TestRoot::new().models(&["document_reader"]);
    let config = std::fs::read_to_string(root.model("document_reader").join("model.toml")).unwrap();
    let config = config.replace("runtime = \"auto\"", "runtime = \"openvino\"");
    let daemon = root.file("document_reader/model.toml", config).start();
    let mut found = Vec::new();
    blobs(&daemon.root.folder.path().join("cache"), &mut found);
    let folders: Vec<_> = found.iter().map(|path| path.parent().unwrap().to_string_lossy()).collect();
    for part in ["find", "page_turn", "line_turn", "read"] {
        let of_part = folders.iter().filter(|folder| folder.contains(&format!("-{part}.onnx-1"))).count();
        assert_eq!(of_part, 1, "{part} of {folders:?}");
    }
}

#[test]
fn a_start_survives_a_kill_while_a_model_is_compiled() {
    let mut root = copies("tflite_blazeface");
    for _ in 0..3 {
        let daemon = root.start_unready();
        let cache = daemon.root.folder.path().join("cache");
        let mut found = Vec::new();
        while found.is_empty() {
            blobs(&cache, &mut found);
            std::thread::yield_now();
        }
        root = daemon.kill();
    }
    let (daemon, begun) = (root.start(), Instant::now());
    let client = &mut daemon.client();
    while ["a", "b", "c", "d"].iter().any(|model| client.state(model).0 != "READY") {
        assert!(begun.elapsed() < Duration::from_mins(1), "{}", daemon.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}
