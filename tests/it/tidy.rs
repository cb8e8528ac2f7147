//! The picture in ARCHITECTURE.md stays true: a file uses only the layers below it, unsafe code stays in one file, and
//! what only one file may know, only that file names.

use std::path::{Path, PathBuf};

/// The layers, top first. Modules of one layer do not use each other.
const LAYERS: &[&[&str]] = &[
    &["cli"],
    &["daemon"],
    &["config"],
    &["http", "mqtt", "fleet"],
    &["protocol"],
    &["serving", "updates"],
    &["repository"],
    &["pipeline", "inference", "features", "audit"],
    &["egress", "identity", "telemetry"],
];

/// The values and tools at the bottom, which may use each other.
const BOTTOM: &[&str] = &[
    "names",
    "tensor",
    "principal",
    "audit_event",
    "secret",
    "toml_check",
    "sys",
    "clock",
    "durable",
    "readiness",
    "shutdown",
];

/// A crate, or a call, and the only files that may name it.
const KNOWN_ONLY_TO: &[(&str, &[&str])] = &[
    ("ort::", &["inference/onnxruntime.rs"]),
    ("openvino::", &["inference/openvino.rs", "sys.rs"]),
    ("openvino_sys::", &["inference/openvino.rs", "sys.rs"]),
    ("axum::", &["http/"]),
    ("rumqttc::", &["mqtt/client/codec.rs", "mqtt/client/codec/"]),
    ("rustls::", &["egress/tls.rs"]),
    ("tokio_rustls::", &["egress/"]),
    ("sysinfo::", &["telemetry/"]),
    ("jiff::", &["clock.rs"]),
    ("quick_cache::", &["serving/"]),
    ("systemd_journal_logger::", &["telemetry/"]),
    ("TcpStream::connect", &["egress.rs", "egress/"]),
    // The listener asks a left-over socket whether anybody still answers; nothing leaves the box.
    ("UnixStream::connect", &["egress.rs", "egress/", "http/connection.rs"]),
];

fn sources() -> Vec<(String, String)> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    walk(&root, &mut found);
    found.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        (path.strip_prefix(&root).unwrap().display().to_string(), text)
    };
    found.into_iter().map(read).collect()
}

/// The lines of a source without comments, and without its inline tests.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let tests = text.find("#[cfg(test)]\nmod tests").unwrap_or(text.len());
    text[..tests].lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")).map(|(n, l)| (n + 1, l))
}

fn module(file: &str) -> &str {
    file.split(['/', '.']).next().unwrap()
}

fn layer(module: &str) -> usize {
    match LAYERS.iter().position(|layer| layer.contains(&module)) {
        Some(layer) => layer,
        None if BOTTOM.contains(&module) => LAYERS.len(),
        None => panic!("module {module} is in no layer: add it to LAYERS or BOTTOM, and to ARCHITECTURE.md"),
    }
}

#[test]
fn no_file_uses_a_layer_above_or_beside_it() {
    let mut upward = Vec::new();
    for (file, text) in sources().iter().filter(|(file, _)| file != "lib.rs" && file != "main.rs") {
        let own = module(file);
        for (number, line) in code(text) {
            for used in line.split("crate::").skip(1) {
                let names: Vec<&str> = match used.strip_prefix('{') {
                    Some(group) => group.split([',', '}']).map(str::trim).collect(),
                    None => vec![used],
                };
                for name in names {
                    let used = name.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap();
                    let allowed =
                        used.is_empty() || used == own || layer(used) > layer(own) || layer(used) == LAYERS.len();
                    if !allowed {
                        upward.push(format!("src/{file}:{number} uses {used}"));
                    }
                }
            }
        }
    }
    assert!(upward.is_empty(), "{}", upward.join("\n"));
}

#[test]
fn unsafe_code_stays_in_sys() {
    let found: Vec<_> = sources()
        .iter()
        .filter(|(file, _)| file != "sys.rs")
        .flat_map(|(file, text)| {
            code(text).map(|(n, line)| (n, line.to_owned())).map(move |(n, l)| (file.clone(), n, l)).collect::<Vec<_>>()
        })
        .filter(|(_, _, line)| line.contains("unsafe ") || line.contains("unsafe{") || line.contains("(unsafe_code"))
        .map(|(file, number, _)| format!("src/{file}:{number}"))
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_foreign_crate_is_known_to_the_files_that_wrap_it_only() {
    let mut strays = Vec::new();
    for (file, text) in sources() {
        for (number, line) in code(&text) {
            for (name, files) in KNOWN_ONLY_TO {
                let named = line.match_indices(name).any(|(at, _)| {
                    // `crate::inference::openvino::` and `super::openvino::` are our own modules.
                    let before = &line[..at];
                    !before.ends_with("::") && !before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
                });
                let own_module = name.trim_end_matches("::") == "openvino" && file == "inference/mod.rs";
                if named && !own_module && !files.iter().any(|allowed| file.starts_with(allowed)) {
                    strays.push(format!("src/{file}:{number} names {name}"));
                }
            }
        }
    }
    assert!(strays.is_empty(), "{}", strays.join("\n"));
}

#[test]
fn a_file_over_500_lines_gives_a_reason_at_its_top() {
    let long: Vec<_> = sources()
        .into_iter()
        .filter(|(_, text)| text.lines().count() > 500)
        .filter(|(_, text)| !text.lines().take(12).any(|line| line.contains("Long because")))
        .map(|(file, text)| format!("src/{file}: {} lines", text.lines().count()))
        .collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}
