//! Rules that cargo cannot check: each foreign library is named only in the files listed here. The manifests say which
//! crate may use which.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use ledge::updates::sha256::sha256_hex;

/// The one crate that opens outbound connections.
const EGRESS: &[&str] = &["egress/"];

/// A crate, or a call, and the only files that may name it.
const KNOWN_ONLY_TO: &[(&str, &[&str])] = &[
    ("ort::", &["engine/onnxruntime.rs", "engine/ffi.rs"]),
    ("openvino::", &["engine/openvino.rs", "engine/ffi.rs"]),
    ("openvino_sys::", &["engine/openvino.rs", "engine/ffi.rs"]),
    ("rumqttc::", &["mqtt/client/codec.rs", "mqtt/client/codec/"]),
    ("rustls::", &["egress/tls.rs", "egress/tls/", "listener/tls/", "membership/certificates.rs"]),
    ("webpki::", &["membership/certificates.rs"]),
    ("tokio_rustls::", &["egress/", "listener/tls/"]),
    ("rcgen::", &["listener/tls/self_signed.rs", "egress/tests/", "membership/"]),
    ("x509_cert::", &["listener/tls/certificate.rs"]),
    ("sysinfo::", &["base/telemetry/"]),
    ("jiff::", &["base/clock.rs", "updates/trust/"]),
    ("sigstore_tuf::", &["updates/trust/"]),
    (
        "aws_lc_rs::",
        &["updates/", "egress/", "listener/tls/", "identity/sealing.rs", "features/seal.rs", "membership/"],
    ),
    ("tokenizers::", &["engine/pipeline/tokenizer.rs"]),
    ("hyper::client", EGRESS),
    ("qrcode::", &["cli/login.rs"]),
    ("quick_cache::", &["models/serving/"]),
    ("signed_note::", &["audit/key.rs"]),
    ("ed25519_dalek::", &["audit/key.rs"]),
    ("rusty_s3::", &["audit/sync/"]),
    ("sled::", &["features/mem_table.rs"]),
    ("fax::", &["documents/picture_page.rs"]),
    ("gif::", &["documents/bitmap.rs", "documents/bitmap/"]),
    ("http_auth::", &["cameras/login.rs"]),
    ("age::", &["features/backup_cipher.rs"]),
    ("systemd_journal_logger::", &["base/telemetry/"]),
    ("tar::", &["updates/catalogue/upload.rs", "cli/backup/archive.rs"]),
    ("sd_notify::", &["daemon/notify.rs"]),
    ("clap_mangen::", &["cli/assets.rs"]),
    ("clap_complete::", &["cli/assets.rs"]),
    ("roff::", &["cli/assets.rs"]),
    ("landlock::", &["sandbox/files.rs"]),
    ("seccompiler::", &["sandbox/filter.rs", "sandbox/tests/refusals.rs"]),
    ("rustls_native_certs::", &["egress/tls.rs"]),
    // Model files are read in the process that runs the model. `repository/reader.rs` reads them itself only for tests.
    ("files::read(", &["engine/", "isolation/child/reading.rs", "models/repository/reader.rs"]),
    ("in_process::", &["models/scheduling/", "daemon/own_sandbox.rs"]),
    // Calls that open a connection or resolve a name.
    ("TcpStream::connect", EGRESS),
    // The listener asks a left-over socket whether anybody still answers; nothing leaves the box.
    ("UnixStream::connect", &["egress/", "listener/listeners.rs"]),
    ("TcpSocket", EGRESS),
    ("UnixSocket", EGRESS),
    ("UdpSocket", EGRESS),
    ("UnixDatagram", EGRESS),
    ("lookup_host", EGRESS),
    ("ToSocketAddrs", EGRESS),
    ("TlsConnector", EGRESS),
    ("ClientConnection", EGRESS),
    // The probe attempts operations that a sandbox denies, and is in no release.
    ("net::connect", &["egress/", "sandbox/probe.rs"]),
    ("libc::connect", EGRESS),
    ("socket2::", EGRESS),
    ("client::legacy", EGRESS),
    // Under another name the rules above would not know them.
    ("TcpStream as", EGRESS),
    ("UnixStream as", EGRESS),
];

/// The Rust files below a folder of the checkout, by their paths from there.
fn rust_files(folder: &str) -> Vec<String> {
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut found = Vec::new();
    walk(&root, &mut found);
    found.sort();
    found.into_iter().map(|path| path.strip_prefix(&root).unwrap().display().to_string()).collect()
}

/// The Rust files below `src/`, by their paths from there, with their texts.
pub fn sources() -> Vec<(String, String)> {
    rust_files("src").into_iter().map(|file| (file.clone(), read(&format!("src/{file}")))).collect()
}

/// A text file of the checkout.
fn read(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// The lines of a source without comments, and without its inline tests.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let tests = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    text[..tests].lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")).map(|(n, l)| (n + 1, l))
}

#[test]
fn architecture_md_has_a_row_for_each_crate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let folders = std::fs::read_dir(root.join("src")).unwrap().map(|entry| entry.unwrap());
    let crates: Vec<String> = folders
        .filter(|folder| folder.path().join("Cargo.toml").exists())
        .map(|folder| folder.file_name().into_string().unwrap())
        .collect();
    assert!(crates.len() > 5, "{crates:?}");
    for name in crates {
        assert!(text.lines().any(|line| line.starts_with(&format!("| `{name}/` |"))), "{name} has no row");
    }
}

#[test]
fn maps_name_only_files_that_exist() {
    let below =
        |folder: &str| rust_files(folder).into_iter().map(|file| format!("{folder}/{file}")).collect::<Vec<_>>();
    let files = ["src", "tests", "benches", "fuzz"].map(below).concat();
    let exists = |name: &str| files.iter().any(|file| file.ends_with(&format!("/{name}")) || file == name);
    let documents = ["ARCHITECTURE.md", "SECURITY.md", "tests/README.md"].map(|file| (file.to_owned(), read(file)));
    // The map of a crate is the comment on top. Code may contain backticks, too.
    let comment = |text: &str| text.lines().take_while(|line| line.starts_with("//!")).collect::<Vec<_>>().join("\n");
    let is_map = |file: &&String| file.starts_with("src/") && file.ends_with("lib.rs");
    let crates = files.iter().filter(is_map).map(|file| (file.clone(), comment(&read(file))));

    let (mut count, mut missing) = (0, Vec::new());
    for (map, text) in documents.into_iter().chain(crates) {
        let is_rust = |name: &str| Path::new(name).extension().is_some_and(|extension| extension == "rs");
        let is_path = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_/.".contains(&byte));
        let names = text.split('`').skip(1).step_by(2).filter(|name| is_rust(name) && is_path(name));
        for name in names {
            count += 1;
            if !exists(name) {
                missing.push(format!("{map} names {name}"));
            }
        }
    }
    assert_eq!(missing, [""; 0]);
    assert!(count > 500, "{count}");
}

/// The names in backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The modules that a file declares in files of their own, without its tests.
fn declared_modules(text: &str) -> Vec<&str> {
    fn declared(line: &str) -> Option<&str> {
        let (before, declaration) = line.split_once("mod ")?;
        let name = declaration.strip_suffix(';')?;
        let is_item = ["", "pub ", "pub(crate) ", "pub(super) "].contains(&before);
        (is_item && name != "tests").then_some(name)
    }
    text.lines().filter_map(declared).collect()
}

/// The lists of files in the comment on top of a file: that of the file itself under "", and those of folders whose
/// files have entries of their own.
fn lists_of_files(text: &str) -> BTreeMap<&str, String> {
    let mut lists = BTreeMap::from([("", String::new())]);
    let mut folder = None;
    for line in text.lines().take_while(|line| line.starts_with("//!") && *line != "//! Invariants:") {
        if !line.starts_with("//!   ") {
            let entry = line.strip_prefix("//! * ").unwrap_or_default();
            folder = quoted(entry).into_iter().find_map(|name| name.strip_suffix('/'));
        }
        let is_entry_of_folder = line.starts_with("//!   * ") || line.starts_with("//!     ");
        // A folder without entries of its own is described in that of the file.
        let list = if is_entry_of_folder { folder } else { Some("") };
        if let Some(list) = list {
            let text = lists.entry(list).or_default();
            text.push_str(line);
            text.push('\n');
        }
    }
    lists
}

#[test]
fn maps_name_each_module_of_their_crate_and_folders() {
    let sources: BTreeMap<String, String> = sources().into_iter().collect();
    let (mut count, mut missing) = (0, Vec::new());
    for (file, text) in &sources {
        let lists = lists_of_files(text);
        let is_list = lists[""].lines().any(|line| {
            let name = line.strip_prefix("//! * `").and_then(|entry| entry.split('`').next());
            name.is_some_and(|name| name.ends_with('/') || Path::new(name).extension().is_some_and(|it| it == "rs"))
        });
        if !is_list {
            continue;
        }
        let is_root = file.ends_with("lib.rs") || file.ends_with("mod.rs");
        let own_folder =
            if is_root { Path::new(file).parent().unwrap().to_owned() } else { file.trim_end_matches(".rs").into() };
        for (folder, list) in &lists {
            let at = own_folder.join(folder).display().to_string();
            let flat = format!("{at}.rs");
            let module = match *folder {
                "" => file.clone(),
                _ if sources.contains_key(&flat) => flat,
                _ => format!("{at}/mod.rs"),
            };
            let names = quoted(list);
            for name in declared_modules(&sources[&module]) {
                count += 1;
                let [as_file, as_folder, in_folder] = [format!("{name}.rs"), format!("{name}/"), format!("/{name}.rs")];
                if !names.iter().any(|named| *named == as_file || *named == as_folder || named.ends_with(&in_folder)) {
                    missing.push(format!("src/{file} does not name {name} of src/{module}"));
                }
            }
        }
    }
    assert_eq!(missing, [""; 0]);
    assert!(count > 500, "{count}");
}

#[test]
fn documents_name_each_file_with_unsafe_code() {
    let has_unsafe = |(_, text): &(String, String)| text.contains("#![expect(unsafe_code");
    let files: Vec<_> = sources().into_iter().filter(has_unsafe).map(|(file, _)| file).collect();
    assert!(files.len() > 2, "{files:?}");
    for document in ["ARCHITECTURE.md", "SECURITY.md", "Cargo.toml"] {
        let text = read(document);
        assert!(files.iter().all(|file| text.contains(file.as_str())), "{document} does not name all of {files:?}");
    }
}

#[test]
fn documents_count_the_models_of_the_package() {
    let list = read("packaging/models.list");
    // A second word is the name of another package.
    let is_in_it = |line: &&str| !line.starts_with('#') && line.split_whitespace().count() == 1;
    let count = list.lines().filter(is_in_it).count();
    let words = ["one model", "two models", "three models", "four models", "five models", "six models", "seven models"];
    for (file, before) in [
        ("README.md", "both runtimes, "),
        ("docs/install.md", "both runtimes, "),
        ("Cargo.toml", "ONNX Runtime, OpenVINO and "),
        ("CHANGELOG.md", "both runtimes and "),
    ] {
        let text = format!("{before}{}", words[count - 1]);
        assert!(read(file).contains(&text), "{file} does not say {text:?}");
    }
}

#[test]
fn the_table_of_events_has_each_name_of_the_source_with_its_levels() {
    const LEVELS: [&str; 4] = ["error", "warn", "info", "debug"];
    let mut events = BTreeMap::<String, BTreeSet<usize>>::new();
    for (_, text) in sources() {
        let code: String = code(&text).flat_map(|(_, line)| [line, "\n"]).collect();
        for call in code.split("tracing::").skip(1) {
            let Some((level, arguments)) = call.split_once("!(") else { continue };
            let Some(level) = LEVELS.iter().position(|known| *known == level) else { continue };
            let Some(named) = arguments.trim_start().strip_prefix("name: \"") else { continue };
            events.entry(named.split('"').next().unwrap().to_owned()).or_default().insert(level);
        }
    }
    for name in events.keys() {
        let is_word = |word: &str| word.starts_with(|c: char| c.is_ascii_lowercase());
        let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || b"._".contains(&byte));
        assert!(is_name && name.split('.').count() == 2 && name.split('.').all(is_word), "{name}");
    }

    let document = read("docs/operating.md");
    let (_, table) = document.split_once("| name | level | when |\n| --- | --- | --- |\n").unwrap();
    let rows: Vec<_> = table.lines().take_while(|line| line.starts_with('|')).collect();
    for (row, (name, levels)) in rows.iter().zip(&events) {
        let levels: Vec<_> = levels.iter().map(|level| LEVELS[*level]).collect();
        let begin = format!("| `{name}` | {} | ", levels.join(", "));
        assert!(row.starts_with(&begin), "docs/operating.md has {row:?}, the source {begin:?}");
    }
    assert_eq!(rows.len(), events.len());
}

/// The places where a file names something that only other files may name.
fn strays(file: &str, text: &str) -> Vec<String> {
    let mut strays = Vec::new();
    for (number, line) in code(text) {
        for (name, files) in KNOWN_ONLY_TO {
            let named = line.match_indices(name).any(|(at, _)| {
                // `crate::openvino::` and `super::openvino::` are our own modules. A type or a function is
                // the same one however long its path is.
                let before = &line[..at];
                let own = name.ends_with("::") && before.ends_with("::");
                !own && !before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
            });
            let own_module = name.trim_end_matches("::") == "openvino" && file == "engine/lib.rs";
            if named && !own_module && !files.iter().any(|allowed| file.starts_with(allowed)) {
                strays.push(format!("src/{file}:{number} names {name}"));
            }
        }
    }
    strays
}

#[test]
fn a_model_is_loaded_only_in_the_process_of_models_and_in_tests_that_ask_for_another() {
    let loads = |line: &str| line.contains("runtimes.load(") && !line.contains("runtimes.load()");
    let has_load = |(_, text): &(String, String)| code(text).any(|(_, line)| loads(line));
    let files: Vec<_> = sources().into_iter().filter(has_load).map(|(file, _)| file).collect();
    assert_eq!(files, ["isolation/child/models.rs", "models/scheduling/in_process.rs", "sandbox/tests/models.rs"]);
}

#[test]
fn no_package_has_a_feature_for_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest: toml::Table = std::fs::read_to_string(root.join("Cargo.toml")).unwrap().parse().unwrap();
    let features = manifest["features"].as_table().unwrap();
    let of_tests = ["fault-injection", "fuzzing", "in-process"];
    assert!(of_tests.iter().all(|feature| features.contains_key(*feature)));
    let mut brought: Vec<_> = ["default", "full"].iter().filter_map(|name| features.get(*name)).collect();
    brought.extend(manifest["dependencies"].as_table().unwrap().values());
    for value in brought {
        assert!(!of_tests.iter().any(|feature| value.to_string().contains(feature)), "{value}");
    }
    let text = std::fs::read_to_string(root.join("packaging/build/__main__.py")).unwrap();
    assert!(text.contains("full") && !text.contains("all-features"));
    assert!(!of_tests.iter().any(|feature| text.contains(feature)));
}

#[test]
fn each_crate_runtime_and_packaged_model_is_a_component_with_its_licence() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new("python3");
    command.arg(root.join("packaging/build")).arg("sbom").arg("--output").arg(folder.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let list = std::fs::read(folder.path().join("ledge.cdx.json")).unwrap();
    let list: serde_json::Value = serde_json::from_slice(&list).unwrap();
    let all = list["components"].as_array().unwrap();
    let is_crate = |component: &&serde_json::Value| component.to_string().contains("pkg:cargo/");
    let (crates, components): (Vec<_>, Vec<_>) = all.iter().partition(is_crate);
    assert!(crates.iter().any(|part| part["name"] == "tokio"), "{crates:?}");
    assert!(crates.iter().all(|part| part["licenses"][0]["expression"].is_string()), "{crates:?}");
    let of_kind = |kind: &str| components.iter().copied().filter(|part| part["type"] == kind).collect::<Vec<_>>();
    let models = std::fs::read_to_string(root.join("packaging/models.list")).unwrap();
    let packaged = models.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')).count();
    assert_eq!((of_kind("library").len(), of_kind("machine-learning-model").len()), (2, packaged));
    for part in [of_kind("library"), of_kind("data")].concat() {
        assert!(part["licenses"][0]["license"]["id"].is_string(), "{part}");
    }
}

#[test]
fn what_only_one_file_may_name_is_named_by_no_other() {
    let strays: Vec<_> = sources().iter().flat_map(|(file, text)| strays(file, text)).collect();
    assert!(strays.is_empty(), "{}", strays.join("\n"));
}

#[test]
fn a_file_that_connects_past_egress_is_found() {
    let found = |file: &str, line: &str| strays(file, &format!("use std::io;\n// TcpStream::connect\n    {line}\n"));
    for (line, name) in [
        ("let stream = TcpStream::connect(address).await?;", "TcpStream::connect"),
        ("let stream = std::net::TcpStream::connect_timeout(&address, limit)?;", "TcpStream::connect"),
        ("tokio::net::UnixStream::connect(path).await?;", "UnixStream::connect"),
        ("let socket = tokio::net::TcpSocket::new_v4()?;", "TcpSocket"),
        ("use std::net::UdpSocket;", "UdpSocket"),
        ("for address in tokio::net::lookup_host(name).await? {", "lookup_host"),
        ("use std::net::{TcpStream, ToSocketAddrs};", "ToSocketAddrs"),
        ("use tokio_rustls::client::TlsStream;", "tokio_rustls::"),
        ("let connector: TlsConnector = config.into();", "TlsConnector"),
        ("let config = rustls::ClientConfig::builder();", "rustls::"),
        ("rustix::net::connect(&socket, &address)?;", "net::connect"),
        ("use tokio::net::TcpStream as Stream;", "TcpStream as"),
    ] {
        assert_eq!(found("mqtt/client/connection.rs", line), [format!("src/mqtt/client/connection.rs:3 names {name}")]);
    }
    assert_eq!(found("egress/lib.rs", "TcpStream::connect(address).await"), [""; 0]);
    assert_eq!(found("mqtt/lib.rs", "// UdpSocket"), [""; 0]);
    assert_eq!(found("mqtt/lib.rs", "let stream = listener.accept().await; // a TcpStream"), [""; 0]);
}

#[test]
fn every_shell_script_parses() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut folders, mut scripts) = (vec![root.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                if ![".git", ".ledge", "target"].map(OsStr::new).contains(&name.as_os_str()) {
                    folders.push(path);
                }
            } else if let Ok(text) = std::fs::read_to_string(&path)
                && let Some(shell) = ["sh", "bash"].into_iter().find(|shell| runs_in(&text, shell))
            {
                scripts.push(path.clone());
                let parsed = Command::new(shell).arg("-n").arg(&path).output().unwrap();
                assert!(parsed.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&parsed.stderr));
            }
        }
    }
    assert!(scripts.len() >= 3, "only {scripts:?} are shell scripts");
}

/// Returns `true` if a file's first line names this shell.
fn runs_in(text: &str, shell: &str) -> bool {
    text.starts_with(&format!("#!/bin/{shell}\n")) || text.starts_with(&format!("#!/usr/bin/env {shell}\n"))
}

/// The constants with the form of each store, and of its parts.
const FORMS: &[(&str, &str)] = &[
    ("accounts/store.rs", "const FORMAT_VERSION: u16 = 1;"),
    // It is in no store of daemon/formats.rs: a new schema needs only a reader of the former one.
    ("alerts/store.rs", "const SCHEMA: u32 = 1;"),
    // A state of another form begins to learn anew.
    ("anomaly/codec.rs", "pub const FORMAT_VERSION: u8 = 2;"),
    ("audit/layout.rs", "pub const FORMAT_VERSION: u32 = 2;"),
    // A backup of a box says its form itself.
    ("cli/backup/archive.rs", "pub const FORMAT_VERSION: u32 = 1;"),
    ("audit/record.rs", "pub const VERSION: u32 = 1;"),
    // As that of alerts: a file of another form is set aside, and its version is learnt anew.
    ("drift/encoding.rs", "pub const MAGIC: &[u8; 4] = b\"LDR1\";"),
    ("features/engine/files.rs", "pub const FORMAT_VERSION: u32 = 4;"),
    ("features/entity_keys/form.rs", "const VERSION: u8 = 1;"),
    ("features/journal/format.rs", "const VERSION: u16 = 3;"),
    // A file of another form is set aside, and what is usual is learnt anew.
    ("features/profiles/file.rs", "const FILE_HEAD: &[u8] = b\"LFP1\";"),
    ("features/record.rs", "const FORM_2: u8 = 2;"),
    ("features/snapshot.rs", "const VERSION: u16 = 2;"),
    ("features/window/encoding.rs", "const VERSION: u8 = 1;"),
    // As that of profiles.
    ("history/unusual.rs", "const MAGIC: &[u8; 4] = b\"LUN2\";"),
    ("jobs/spec.rs", "pub const FORMAT_VERSION: u32 = 1;"),
    ("identity/keys/file.rs", "pub const FORMAT_VERSION: u32 = 1;"),
    ("identity/sealing.rs", "pub const MAGIC: &[u8; 4] = b\"LSE1\";"),
    ("identity/sealing/stream.rs", "const MAGIC: &[u8; 4] = b\"LSF1\";"),
    ("updates/persisted.rs", "const SCHEMA: u32 = 1;"),
    ("updates/store.rs", "pub const FORMAT_VERSION: u32 = 2;"),
];

#[test]
fn a_part_of_a_store_changes_its_form_only_with_the_form_of_the_store() {
    let sources = sources();
    for (file, line) in FORMS {
        let (_, text) = sources.iter().find(|(name, _)| name == file).unwrap();
        assert!(
            text.lines().any(|found| found == *line),
            "src/{file} has no {line:?} any more: raise the FORMAT_VERSION of each store that has such a part, and correct this list"
        );
    }
}

#[test]
fn the_settings_that_packages_install_never_change() {
    // dpkg would ask about it at every upgrade of a box with changed settings, and stop if there is no terminal.
    // Comments belong into configs/ledge.toml.
    let settings = include_bytes!("../../packaging/ledge.toml");
    assert_eq!(sha256_hex(settings), "847d4f439a6b0a9659b667426b094f2101d6dbbf62567c4c0958e04295f04278");
    let installs = include_str!("../../packaging/build/stage.py").lines().filter(|line| line.contains("\"etc/"));
    assert_eq!(installs.count(), 1, "packages install more than that below /etc");
}
