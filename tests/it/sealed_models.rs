//! No file, no setting and no verb runs a model outside of a sandboxed process.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::{TestDaemon, TestRoot, has_runtime, processes, write};
use crate::fault_rounds::{assert_models_are_sealed, runtime_processes, wait_until};

const LIMIT: Duration = Duration::from_mins(1);

/// The model.toml of a model that wants to run in the daemon.
const IN_THE_DAEMON: &str = "isolation = \"none\"\nruntime = \"onnxruntime\"\n";

fn wine(daemon: &TestDaemon, model: &str) -> u16 {
    let input = json!({"name": "features", "datatype": "FP32", "shape": [1, 13], "data": vec![1.0; 13]});
    daemon.client().post_json(&format!("/v2/models/{model}/infer"), &json!({"inputs": [input]})).status
}

/// The archive of a folder, as the program `tar` makes it.
fn archive(folder: &Path) -> Vec<u8> {
    let output = Command::new("tar").arg("-C").arg(folder).args(["-c", "."]).output().unwrap();
    assert!(output.status.success());
    output.stdout
}

/// The finding of this name among those of `ledge doctor`.
fn finding(root: &TestRoot, name: &str) -> Value {
    let doctor = root.command(&["doctor", "--json"]).output().unwrap();
    assert!(doctor.status.success(), "{doctor:?}");
    let found: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let all = found["checks"].as_array().unwrap();
    all.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no finding {name}: {found:#}")).clone()
}

#[test]
fn a_model_that_asks_for_the_daemon_is_uploaded_into_a_sealed_process() {
    let other = TestRoot::new().model_as("wine_mlp", "wine").file("wine/model.toml", IN_THE_DAEMON);
    // Of the set-up, and of no model.
    std::fs::remove_file(other.model("wine").join(".made.json")).unwrap();
    for isolation in ["process", "own"] {
        let root = TestRoot::new()
            .set("updates.min_free_mb=0")
            .set("catalogue.upload_max_mb=1")
            .set(&format!("runtimes.isolation={isolation}"));
        let daemon = root.start();
        let kind = [("content-type", "application/x-tar")];
        let uploaded = daemon.client().post("/catalogue/models/wine/upload", &kind, &archive(&other.model("wine")));
        assert_eq!(uploaded.status, 201, "{uploaded:?}");
        assert_eq!(wine(&daemon, "wine"), 200);
        assert_models_are_sealed(&daemon);
        assert!(daemon.log().contains("isolation in model.toml: \\\"none\\\" no longer exists"), "{}", daemon.log());

        // After the next start, too.
        let daemon = daemon.kill().start();
        assert_eq!(wine(&daemon, "wine"), 200);
        assert_models_are_sealed(&daemon);
    }
}

#[test]
fn a_model_may_raise_the_isolation_of_the_box_and_not_lower_it() {
    for (of_box, of_model, expected) in
        [("own", "process", 2), ("own", "none", 2), ("process", "none", 1), ("process", "own", 2)]
    {
        let root = TestRoot::new().model_as("wine_mlp", "one").model_as("wine_mlp", "two");
        let daemon = root
            .file("two/model.toml", format!("isolation = \"{of_model}\""))
            .set(&format!("runtimes.isolation={of_box}"))
            .start();
        wait_until(&format!("{expected} processes with {of_box} and {of_model}"), LIMIT, || {
            runtime_processes(&daemon).len() == expected
        });
        assert_eq!((wine(&daemon, "one"), wine(&daemon, "two")), (200, 200));
    }
}

#[test]
fn an_old_configuration_starts_with_a_finding_and_a_line_in_the_log() {
    let root = TestRoot::new().models(&["wine_mlp"]).file("wine_mlp/model.toml", IN_THE_DAEMON);
    write(&root.folder.path().join("ledge.toml"), b"[runtimes]\nisolation = \"none\"\n");

    let checked = root.command(&["config", "check"]).output().unwrap();
    let warned = String::from_utf8(checked.stderr).unwrap();
    assert_eq!((checked.status.code(), checked.stdout.as_slice()), (Some(0), &b"ok\n"[..]), "{warned}");
    assert!(warned.contains("ledge.toml:2: runtimes.isolation: \"none\" no longer exists"), "{warned}");
    let shown = root.command(&["config", "show"]).output().unwrap();
    assert!(String::from_utf8(shown.stdout).unwrap().contains("isolation = \"process\"  # from "));

    let checked = root.command(&["models", "check"]).output().unwrap();
    let told = String::from_utf8(checked.stdout).unwrap();
    assert!(checked.status.success() && told.contains("wine_mlp: isolation in model.toml: \"none\""), "{told}");

    let found = finding(&root, "runtimes.isolation");
    assert!(found["status"] == "warn" && found["advice"].is_string(), "{found}");
    let found = finding(&root, "model wine_mlp");
    assert!(found["status"] == "warn" && found["detail"].as_str().unwrap().contains("isolation"), "{found}");

    let daemon = root.start();
    let line = daemon.wait_for_event_since_start("setting.ignored");
    assert!(line["warning"].as_str().unwrap().contains("runtimes.isolation: \"none\" no longer exists"), "{line}");
    assert_eq!(wine(&daemon, "wine_mlp"), 200);
    assert_models_are_sealed(&daemon);
}

#[test]
fn a_value_that_never_existed_is_a_mistake_that_names_those_that_do() {
    let refused = TestRoot::new().set("runtimes.isolation=no").command(&["config", "check"]).output().unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(78), "{told}");
    assert!(told.contains("process") && told.contains("own") && !told.contains("none"), "{told}");
}

/// A model with a golden input that injects the fault `kind` into its process: see `src/isolation/child/faults.rs`.
pub fn faulty(kind: u8) -> TestRoot {
    let begin = [&b"!FAULT:"[..], &[kind]].concat();
    let mut data: Vec<f32> = begin.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    data.resize(13, 0.0);
    let input = json!({"name": "features", "datatype": "FP32", "shape": [1, 13], "data": data});
    let output = json!({"name": "probabilities", "datatype": "FP32", "shape": [1, 3], "data": [1, 0, 0]});
    let golden = "\n[[golden]]\nfile = \"golden/fault.json\"\n";
    TestRoot::new()
        .models(&["wine_mlp"])
        .file("wine_mlp/model.toml", format!("runtime = \"onnxruntime\"\n{golden}"))
        .file("wine_mlp/golden/fault.json", json!({"inputs": [input], "outputs": [output]}).to_string())
        .set("device.id=\"box\"")
}

/// Every verb that runs models by itself, with its arguments.
fn verbs(root: &TestRoot) -> Vec<Vec<String>> {
    let rows: PathBuf = root.folder.path().join("rows.json");
    let input = json!({"name": "features", "datatype": "FP32", "shape": [1, 13], "data": vec![1.0; 13]});
    write(&rows, json!({"inputs": [input]}).to_string().as_bytes());
    write(&root.folder.path().join("classes/0/rows.json"), &std::fs::read(&rows).unwrap());
    let rows = rows.to_str().unwrap();
    let classes = root.folder.path().join("classes").display().to_string();
    let all: [&[&str]; 7] = [
        &["infer", "wine_mlp", rows],
        &["models", "check"],
        &["models", "show", "wine_mlp"],
        &["tune", "wine_mlp", "--dry-run", "--slice", "20", "--rounds", "1"],
        &["doctor"],
        &["models", "evaluate", "wine_mlp", &classes],
        &["mqtt", "try", "ledge/v1/box/infer/wine_mlp", rows],
    ];
    all.iter().map(|verb| verb.iter().map(|word| (*word).to_owned()).collect()).collect()
}

/// The value of a line of `/proc/PID/status`, such as `Seccomp`.
pub fn status_field(pid: u32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("no {name} in {status}")).trim().to_owned()
}

/// A running verb, killed when dropped.
pub struct Verb(Child);

impl Verb {
    pub fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits until it has loaded a model, and returns the process that the model is in.
    #[track_caller]
    pub fn model_process(&self) -> u32 {
        let loaded = || processes(self.pid(), "runtime").into_iter().find(|child| has_runtime(*child));
        wait_until("the model is loaded in another process", LIMIT, || loaded().is_some());
        loaded().unwrap()
    }
}

impl Drop for Verb {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn every_verb_runs_models_in_a_sealed_process() {
    // The golden input is never answered, so each verb waits for it while it is looked at.
    let root = faulty(b'l').set("serving.default_timeout_ms=600000");
    for verb in verbs(&root) {
        let words: Vec<_> = verb.iter().map(String::as_str).collect();
        println!("{words:?}");
        let verb = Verb::start(&mut root.command(&words));
        let child = verb.model_process();
        assert_eq!(status_field(child, "Seccomp"), "2", "{words:?}");
        assert_eq!(status_field(child, "NoNewPrivs"), "1", "{words:?}");
        assert_eq!(status_field(child, "CapEff"), "0000000000000000", "{words:?}");
        assert!(!has_runtime(verb.pid()), "{words:?}");
    }
}

#[test]
fn a_model_that_crashes_ends_no_verb() {
    let root = faulty(b's');
    for verb in verbs(&root) {
        let words: Vec<_> = verb.iter().map(String::as_str).collect();
        let Output { status, stdout, stderr } = root.command(&words).stdin(Stdio::null()).output().unwrap();
        let told = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
        // A model that does not run is a warning of doctor: the others serve.
        let expected = i32::from(words[0] != "doctor");
        assert_eq!(status.code(), Some(expected), "{words:?}: {told}");
        assert!(told.contains("SIGSEGV"), "{words:?}: {told}");
    }
}

#[test]
fn a_call_that_crashes_the_process_fails_alone_and_the_next_file_is_answered() {
    let root = TestRoot::new().models(&["wine_mlp"]);
    let request = |data: Vec<f32>| {
        let input = json!({"name": "features", "datatype": "FP32", "shape": [1, 13], "data": data});
        json!({"inputs": [input]}).to_string()
    };
    let mut fault: Vec<f32> =
        b"!FAULT:s".chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    fault.resize(13, 0.0);
    let file = |name: &str| root.folder.path().join(name);
    write(&file("1.json"), request(fault).as_bytes());
    write(&file("2.json"), request(vec![1.0; 13]).as_bytes());
    let files = [file("1.json"), file("2.json")].map(|path| path.display().to_string());
    let verb = ["infer", "wine_mlp", &files[0], &files[1], "--json", "--concurrency", "1"];
    let Output { status, stdout, stderr } = root.command(&verb).output().unwrap();
    assert_eq!(status.code(), Some(1), "{}", String::from_utf8_lossy(&stderr));
    let lines: Vec<Value> = stdout.split(|byte| *byte == b'\n').flat_map(serde_json::from_slice).collect();
    assert!(lines[0]["error"].as_str().unwrap().contains("SIGSEGV"), "{lines:?}");
    assert!(lines[1]["outputs"][0]["data"].is_array(), "{lines:?}");
}

#[test]
fn config_check_reads_model_files_in_a_sealed_process() {
    // The file makes its reader go wrong, as `src/isolation/child/faults.rs` has it.
    let root = TestRoot::new().model_as("wine_mlp", "crashes");
    let file = root.model("crashes").join("1/model.onnx");
    let mut content = std::fs::read(&file).unwrap();
    content.extend(b"\x32\x08!FAULT:s");
    write(&file, &content);
    let root = root.set("mqtt.bindings=[{topic=\"a\", model=\"crashes\", publish=\"b\"}]");
    let checked = root.command(&["config", "check"]).output().unwrap();
    let warned = String::from_utf8(checked.stderr).unwrap();
    assert_eq!(checked.status.code(), Some(0), "{warned}");
    assert!(warned.contains("crashes") && warned.contains("SIGSEGV"), "{warned}");
}
