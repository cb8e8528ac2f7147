//! Releases that take a while to come: the small classifier of `tests/models/releases.py`, with some MB of
//! documentation.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::client::Client;
use crate::daemon::{model_folder, write};
use crate::platform::{Platform, SHAPES, shapes};

/// The field `doc_string` of an ONNX model: its number, and that its length follows.
const DOC_STRING: u8 = 6 << 3 | 2;

/// Signs a version that answers as every other, with a model file of some `kilobytes`.
#[track_caller]
pub fn add(platform: &Platform, version: u64, kilobytes: usize) {
    let source = tempfile::tempdir().unwrap();
    fill(&source, version, kilobytes);
    platform.add_model(SHAPES, version, source.path(), &[]);
}

fn fill(folder: &TempDir, version: u64, kilobytes: usize) {
    let (from, to) = (model_folder("release_good"), folder.path());
    let mut model = std::fs::read(from.join("model.onnx")).unwrap();
    let text = digits(version, kilobytes << 10);
    model.push(DOC_STRING);
    model.extend(varint(text.len()));
    model.extend(text);
    write(&to.join("model.onnx"), &model);
    write(&to.join("golden_0.json"), &std::fs::read(from.join("golden_0.json")).unwrap());
    let toml = "max_batch_size = 8\n\n[[golden]]\nfile = \"golden_0.json\"\ntolerance = 0.45\n";
    write(&to.join("model.toml"), format!("description = \"version {version}\"\n{toml}").as_bytes());
}

/// A number of digits, different ones for each version.
fn digits(version: u64, length: usize) -> Vec<u8> {
    let salt = usize::try_from(version).unwrap() << 32;
    let mixed = |n: usize| (n ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[1];
    (0..length).map(|n| b"0123456789abcdef"[usize::from(mixed(n) % 16)]).collect()
}

fn varint(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 127 {
        bytes.push(number.to_le_bytes()[0] | 128);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
    bytes
}

/// The files of a version by their hashes, with their lengths, as they lie in the repository.
pub fn files(platform: &Platform, version: u64) -> Vec<(String, u64)> {
    let folder = platform.repository().join(format!("targets/models/{SHAPES}/{version}"));
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name.split('.').next().unwrap().to_owned(), entry.metadata().unwrap().len())
        })
        .collect()
}

/// The bytes of the files that a version has and the one before has not.
pub fn new_bytes(platform: &Platform, version: u64) -> u64 {
    let before = files(platform, version - 1);
    files(platform, version).iter().filter(|file| !before.contains(file)).map(|(_, length)| length).sum()
}

/// The model file of a version, as the repository has it.
pub fn model_file(platform: &Platform, version: u64) -> std::path::PathBuf {
    let folder = platform.repository().join(format!("targets/models/{SHAPES}/{version}"));
    let mut paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.find(|path| is_model(path)).unwrap()
}

fn is_model(path: &Path) -> bool {
    path.to_string_lossy().ends_with(".model.onnx")
}

/// Asks, and checks the answer; which version gave it.
#[track_caller]
pub fn answered(client: &mut Client) -> u64 {
    let answer = client.post_json(&format!("/v2/models/{SHAPES}/infer"), &shapes());
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    let answer = answer.json();
    let scores: Vec<f64> = answer["outputs"][0]["data"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    assert!(scores.len() == 3 && scores[0] > 0.9, "{answer}");
    answer["model_version"].as_str().unwrap().parse().unwrap()
}
