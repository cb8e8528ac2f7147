//! Models in separate processes: the same answers, and a fault there affects only the call that caused it.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge::engine::Runtimes;
use ledge::engine::backend::{
    Backend, CompiledModelCache, InputDangers, LoadOptions, ModelFiles, ModelFormat, ModelLoadError, ModelRunError,
    RunContext, Runtime,
};
use ledge::isolation::{Children, Isolation, JobChannelThread, ModelLoadRequest, RemoteBackend};
use ledge::tensor::{DataType, Tensor};
use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::daemon::{TestDaemon, TestRoot, data, has_runtime, model_folder, setup_root, write};
use crate::failing_models::endless;
use crate::fault_rounds::{runtime_processes, send_fault, wait_until};
use crate::trial::children;

const LIMIT: Duration = Duration::from_mins(1);

#[test]
fn a_process_that_could_not_be_started_is_started_the_next_time() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let children = Children::new(
        children(folder.path(), program.clone()),
        vec![JobChannelThread::foreground(0)],
        Arc::new(|_, _| {}),
    );
    let version = || children.version(&Runtimes::new(setup_root().join("runtimes")), Runtime::OnnxRuntime);
    let reason = version().unwrap_err();
    assert!(reason.contains("No such file"), "{reason}");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ledge"), &program).unwrap();
    assert_eq!(version().as_deref(), Ok("1.31.1"));
}

#[test]
fn a_run_that_follows_the_one_that_ended_its_process_is_not_blamed_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_ledge").into();
    let children =
        Children::new(children(folder.path(), program), vec![JobChannelThread::foreground(0)], Arc::new(|_, _| {}));
    let files = ModelFiles {
        format: ModelFormat::Onnx,
        model: setup_root().join("models/wine_mlp/1/model.onnx"),
        weights: None,
        external: Vec::new(),
        port_names: None,
        dangers: InputDangers::default(),
        class_maps: Vec::new(),
    };
    let order = ModelLoadRequest {
        name: "wine",
        runtimes: &Runtimes::new(setup_root().join("runtimes")),
        runtime: Runtime::OnnxRuntime,
        files: &files,
        is_secret: false,
        options: &LoadOptions { threads: 1, cache: CompiledModelCache::None, exact_int8: false, is_part: false },
        cache: None,
        cores: &[0],
        warm_up: None,
        time_limit: LIMIT,
        load_limit: LIMIT,
    };
    let [mut first, mut second] = [(); 2].map(|()| children.load(Isolation::Process, &order).unwrap().0);
    let run = |backend: &mut RemoteBackend, begin: &[u8]| {
        let bytes = [begin, &vec![0; 13 * 4 - begin.len()]].concat();
        let input = Tensor::new(DataType::Fp32, vec![1, 13], bytes.into()).unwrap();
        let place = RunContext { core: 0, is_wide: false, deadline: Instant::now() + LIMIT, patience: None };
        backend.run(&[input], &[0], place).unwrap_err()
    };
    let blamed = run(&mut first, b"!FAULT:n");
    assert!(matches!(blamed, ModelRunError::Crashed { .. }), "{blamed}");
    // On the same core, before any caller learns of the end.
    let other = run(&mut second, b"");
    assert!(matches!(other, ModelRunError::Interrupted { is_explained: true, .. }), "{other:?}");
}

/// A call of a model that takes [1, 13] numbers.
fn wine(client: &mut Client, model: &str, numbers: &[u8]) -> Response {
    let input = json!({"name": "features", "datatype": "FP32", "shape": [1, 13],
                       "parameters": {"binary_data_size": numbers.len()}});
    let head = serde_json::to_vec(&json!({"inputs": [input]})).unwrap();
    let length = head.len().to_string();
    let headers = [("inference-header-content-length", length.as_str())];
    client.post(&format!("/v2/models/{model}/infer"), &headers, &[&head, numbers].concat())
}

fn well(client: &mut Client, model: &str) -> Response {
    wine(client, model, &[0; 13 * 4])
}

fn index(client: &mut Client, model: &str) -> Value {
    let rows = client.post("/v2/repository/index", &[], b"").json();
    rows.as_array().unwrap().iter().find(|row| row["name"] == model).unwrap().clone()
}

/// Calls a model until it answers.
fn answers_again(client: &mut Client, model: &str) {
    let since = Instant::now();
    loop {
        let answer = well(client, model);
        if answer.status == 200 {
            return;
        }
        assert!(since.elapsed() < LIMIT, "{model}: {answer:?}");
        std::thread::yield_now();
    }
}

fn isolated() -> TestRoot {
    TestRoot::new().set("runtimes.isolation=process")
}

fn two_wines(root: TestRoot) -> TestRoot {
    root.model_as("wine_mlp", "healthy").model_as("wine_mlp", "faulty")
}

#[test]
fn the_daemon_loads_no_runtime_and_answers_the_same() {
    let models = ["efficientnet_lite0", "wine_mlp", "bike_demand", "document_reader"];
    // A picture, which the models read; the PDF has its text.
    let receipt = std::fs::read(model_folder("document_reader").join("golden/receipt.png")).unwrap();
    let calls: [(&str, &str, Vec<u8>); 3] = [
        ("efficientnet_lite0", "image/jpeg", data("photos/chelsea.jpg")),
        ("document_reader", "application/pdf", data("documents/invoice.pdf")),
        ("document_reader", "image/png", receipt),
    ];
    let mut answers = Vec::new();
    for isolation in ["process", "own"] {
        let root = TestRoot::new().models(&models).set(&format!("runtimes.isolation={isolation}"));
        let daemon = root.start();
        let mut client = daemon.client();
        let call = |(model, kind, body): &(&str, &str, Vec<u8>)| {
            let answer = client.post(&format!("/v2/models/{model}/infer"), &[("content-type", kind)], body);
            assert_eq!(answer.status, 200, "{isolation} {model}: {answer:?}");
            answer.json()
        };
        let mut answered: Vec<Value> = calls.iter().map(call).collect();
        answered.push(well(&mut daemon.client(), "wine_mlp").json());
        for answer in &mut answered {
            // Not the times.
            answer.as_object_mut().unwrap().retain(|key, _| ["labels", "document", "outputs"].contains(&key.as_str()));
        }
        answers.push(answered);

        let expected = if isolation == "process" { 1 } else { models.len() };
        wait_until("the processes of the models", LIMIT, || runtime_processes(&daemon).len() == expected);
        assert!(!has_runtime(daemon.pid()));
        assert!(runtime_processes(&daemon).into_iter().all(has_runtime));
    }
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn a_crash_costs_only_the_call_that_caused_it() {
    for (kind, reason) in [
        (b's', "SIGSEGV"),
        (b'f', "SIGFPE"),
        (b'a', "SIGABRT"),
        (b'o', "SIGSEGV"),
        (b'n', "returned an invalid answer"),
    ] {
        let daemon = two_wines(isolated()).start();
        let mut client = daemon.client();
        let others = std::thread::spawn({
            let mut client = daemon.client();
            move || (0..300).map(|_| well(&mut client, "healthy").status).collect::<Vec<_>>()
        });
        let answer = send_fault(&mut client, "faulty", kind);
        assert_eq!((answer.status, answer.header("retry-after")), (502, Some("1")), "{answer:?}");
        assert!(answer.error().contains(reason), "{answer:?}");
        assert!(others.join().unwrap().iter().all(|status| *status == 200));
        answers_again(&mut client, "faulty");
        // The next fault is in a separate process.
        wait_until("two processes", LIMIT, || runtime_processes(&daemon).len() == 2);
        assert_eq!(index(&mut client, "faulty")["state"], "READY");
    }
}

#[test]
fn a_model_that_calls_go_on_crashing_stays_with_its_reason_until_it_is_loaded_anew() {
    let daemon = two_wines(isolated()).start();
    let mut client = daemon.client();
    for fault in *b"sfa" {
        answers_again(&mut client, "faulty");
        assert_eq!(send_fault(&mut client, "faulty", fault).status, 502);
    }
    let row = index(&mut client, "faulty");
    let reason = row["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("SIGABRT"), "{reason}");
    assert_eq!(row["state"], "READY");
    assert_eq!(client.get("/v2/models/faulty/ready").status, 200);
    answers_again(&mut client, "faulty");
    assert_eq!(well(&mut client, "healthy").status, 200);
    assert!(daemon.log().contains("model_crashed"));

    assert_eq!(client.post("/v2/repository/models/faulty/load", &[], b"").status, 200);
    // Nothing is held against its callers any more.
    assert!((0..20).all(|_| well(&mut client, "faulty").status == 200));
    assert_eq!(index(&mut client, "faulty")["reason"], Value::Null);
}

#[test]
fn a_run_without_end_is_ended() {
    let root = two_wines(isolated()).file("faulty/model.toml", "[queue]\ndefault_timeout_ms = 100\n");
    let daemon = root.start();
    let mut client = daemon.client();
    let answer = send_fault(&mut client, "faulty", b'l');
    // The caller is not kept waiting.
    assert_eq!(answer.status, 504, "{answer:?}");
    assert_eq!(well(&mut client, "healthy").status, 200);
    daemon.wait_for_event("model.crashed");
    answers_again(&mut client, "faulty");
    assert_eq!(well(&mut client, "healthy").status, 200);
}

#[test]
fn calls_go_on_when_somebody_kills_the_process_of_the_models() {
    let daemon = two_wines(isolated()).start();
    let mut client = daemon.client();
    for _ in 0..3 {
        let others = std::thread::spawn({
            let mut client = daemon.client();
            move || (0..300).map(|_| well(&mut client, "faulty").status).collect::<Vec<_>>()
        });
        for child in runtime_processes(&daemon) {
            crate::daemon::send_signal(child, "KILL");
        }
        assert!(others.join().unwrap().iter().all(|status| *status == 200));
        assert_eq!(well(&mut client, "healthy").status, 200);
    }
}

fn instances(root: &Path) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(root.join("cache/.instances"));
    folder.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[test]
fn a_child_ends_with_its_daemon_and_leaves_nothing() {
    let daemon = two_wines(isolated()).start();
    wait_until("one child", LIMIT, || {
        runtime_processes(&daemon).len() == 1 && instances(daemon.root.folder.path()).len() == 1
    });
    let own = runtime_processes(&daemon);
    let root = daemon.kill();
    wait_until("the child ends", LIMIT, || !Path::new(&format!("/proc/{}", own[0])).exists());
    assert_eq!(instances(root.folder.path()).len(), 1);
    let mut daemon = root.start();
    wait_until("one folder", LIMIT, || instances(daemon.root.folder.path()).len() == 1);
    daemon.signal("TERM");
    assert!(daemon.wait().success());
    assert!(instances(daemon.root.folder.path()).is_empty());
}

#[test]
fn a_child_is_denied_everything_but_its_models() {
    let outside = tempfile::tempdir_in("/tmp").unwrap();
    let file = outside.path().join("f");
    write(&file, b"secret");
    let name = file.to_str().unwrap();
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let daemon = two_wines(isolated()).start();
    let mut bytes = b"!FAULT:p".to_vec();
    bytes.extend(name.bytes());
    assert!(bytes.len() <= 52, "{name} is too long");
    bytes.resize(52, 0);
    let answer = wine(&mut daemon.client(), "faulty", &bytes);
    assert_eq!(answer.status, 200, "{answer:?}");
    let said =
        || said_by_workers(&daemon).iter().filter_map(|line| serde_json::from_str(line).ok()).collect::<Vec<Value>>();
    wait_until("the end of the probe", LIMIT, || said().iter().any(|line| line["message"] == "probed"));

    let log = daemon.log();
    let results: Vec<Value> = said().into_iter().filter(|line| line["message"] == "probe").collect();
    assert!(results.len() > 40, "{results:?}");
    let is_root = rustix::process::geteuid().is_root();
    for result in &results {
        let attempt = result["attempt"].as_str().unwrap();
        // The kernel limits no threads of root, and a service is not run as root.
        let is_denied = !result["outcome"]["denied"].is_null() || is_root && attempt.contains("thread");
        assert!(is_denied, "{result}");
    }
    for word in ["make a socket", "another program", "of its parent", "raise its limit", "programs", "file outside"] {
        assert!(log.contains(word), "no attempt of {word}: {results:?}");
    }
}

#[test]
fn worker_stderr_is_a_pipe_that_the_daemon_reads_bounds_and_marks() {
    let daemon = two_wines(isolated()).start();
    let mut client = daemon.client();
    // It forges lines, truncates, and writes half a gigabyte.
    assert_eq!(send_fault(&mut client, "faulty", b'w').status, 200);
    wait_until("what it wrote", LIMIT, || said_by_workers(&daemon).iter().any(|line| line.contains("forged")));
    assert_eq!(well(&mut client, "healthy").status, 200);

    let log = daemon.log();
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_ne!(line["message"], "forged", "{line}");
    }
    let said = said_by_workers(&daemon);
    assert!(said.len() < 1000, "{} lines", said.len());
    for line in said {
        assert!(line.chars().count() <= 501 && !line.contains(['\u{1b}', '\r', '\u{202e}']), "{line:?}");
    }
}

/// The lines that processes of models wrote to their standard error.
fn said_by_workers(daemon: &TestDaemon) -> Vec<String> {
    let log = daemon.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["process"] == "worker").filter_map(|line| Some(line["said"].as_str()?.into())).collect()
}

/// The open files of a process, by their numbers. Only root sees those of a process that is not dumpable.
fn open_files(pid: u32) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let target = |entry: std::fs::DirEntry| {
        Some((entry.file_name().into_string().unwrap(), std::fs::read_link(entry.path()).ok()?))
    };
    entries.filter_map(target).collect()
}

#[test]
fn worker_spawner_and_pages_have_no_file_that_whoever_started_ledge_left_open() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("left");
    let script = format!("exec 7>{0} 8<{0} 9>>{0}; exec \"$@\"", file.display());
    let runner = ["sh", "-c", &script, "sh"];
    let left = |pid| open_files(pid).into_iter().filter(|(_, target)| *target == file).collect::<Vec<_>>();
    let daemon = two_wines(isolated()).runner(&runner).start();
    assert_eq!(left(daemon.pid()).len(), 3, "the test leaves none open: {:?}", open_files(daemon.pid()));
    for number in 7..10 {
        let info = std::fs::read_to_string(format!("/proc/{}/fdinfo/{number}", daemon.pid())).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
        let is_closed_on_exec = i32::from_str_radix(flags, 8).unwrap() & 0o2_000_000 != 0;
        assert!(is_closed_on_exec, "a process that the daemon starts gets {number}: {info}");
    }

    wait_until("one child", LIMIT, || runtime_processes(&daemon).len() == 1);
    let spawners = crate::daemon::processes(daemon.pid(), "spawner");
    let own_log = std::fs::read_link(format!("/proc/{}/fd/2", daemon.pid())).unwrap();
    for pid in runtime_processes(&daemon).into_iter().chain(spawners) {
        let files = open_files(pid);
        let target = |number: &str| files.iter().find(|(own, _)| own == number).map(|(_, target)| target.clone());
        assert_eq!(target("1"), Some("/dev/null".into()), "{files:?}");
        let errors = target("2").unwrap();
        assert!(errors.to_string_lossy().starts_with("pipe:") && errors != own_log, "{files:?}");
        assert_eq!(left(pid), []);
        let state = daemon.root.folder.path().canonicalize().unwrap();
        let own = state.join("cache");
        let stray = files.iter().find(|(_, target)| target.starts_with(&state) && !target.starts_with(&own));
        assert_eq!(stray, None);
    }
    // The worker sees the same from inside.
    assert_eq!(send_fault(&mut daemon.client(), "faulty", b'd').status, 200);
    let said = |word: &str| said_by_workers(&daemon).into_iter().filter(|line| line.contains(word)).collect::<Vec<_>>();
    wait_until("its list", LIMIT, || !said("\"files\"").is_empty());
    assert!(said("\"file\"").len() > 3);
    assert_eq!(said(&file.display().to_string()), [""; 0]);

    // Waits for its order while its input is open.
    let mut pages = std::process::Command::new("sh");
    pages.args(&runner[1..]).arg(env!("CARGO_BIN_EXE_ledge")).arg("pages").stdin(std::process::Stdio::piped());
    let mut pages = pages.spawn().unwrap();
    wait_until("pages closes what it does not know", LIMIT, || {
        let files = open_files(pages.id());
        let program = std::fs::read_link(format!("/proc/{}/exe", pages.id())).unwrap_or_default();
        program.ends_with("ledge") && files.iter().all(|(number, _)| ["0", "1", "2"].contains(&number.as_str()))
    });
    pages.kill().unwrap();
    pages.wait().unwrap();
}

/// The most memory of the daemon and its processes, each.
const DATA: &str = "--data=800000000:800000000";

#[test]
fn memory_that_runs_out_costs_the_call_that_used_it_whichever_thread_crashes() {
    // Its own allocation fails; another thread crashes because of it; the same, without a count of whose memory it is.
    for kind in [b'm', b'e', b'u'] {
        // Using up the memory three times may take a busy machine long.
        let root = two_wines(isolated()).set("serving.default_timeout_ms=300000");
        let daemon = root.runner(&["prlimit", DATA]).start();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let others = scope.spawn(|| {
                let mut client = daemon.client();
                let mut seen = Vec::new();
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let answer = well(&mut client, "healthy");
                    if answer.status != 200 {
                        seen.push(answer);
                    }
                }
                seen
            });
            let answer = send_fault(&mut daemon.client(), "faulty", kind);
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            let wrong = others.join().unwrap();
            assert_eq!(answer.status, 502, "{}: {answer:?}", char::from(kind));
            let error = answer.error();
            assert!(error.contains("762"), "{}: {error}", char::from(kind));
            assert!(wrong.is_empty(), "{}: {wrong:?}", char::from(kind));
        });
        answers_again(&mut daemon.client(), "faulty");
        assert_eq!(index(&mut daemon.client(), "healthy")["state"], "READY");
    }
}

/// Adds a model with a good file, and injects a fault into the process that reads it.
fn with_fault_in_file(root: TestRoot, name: &str, kind: u8) -> TestRoot {
    let root = root.model_as("wine_mlp", name);
    let file = root.model(name).join("1/model.onnx");
    let mut content = std::fs::read(&file).unwrap();
    // A text about the model, which no runtime uses.
    content.extend(b"\x32\x08!FAULT:");
    content.push(kind);
    write(&file, &content);
    root
}

#[test]
fn a_file_that_ends_its_reader_is_refused_with_its_reason_and_no_other() {
    let faults = [
        ("panics", b'x', "panicked: as the file asks for"),
        ("crashes", b's', "ended the process that read it: the process of the runtimes crashed with SIGSEGV"),
        ("overflows", b'o', "ended the process that read it: the process of the runtimes crashed with SIGSEGV"),
        ("lies", b'n', "says of a file that it refers to external data at \"../outside.bin\", outside its own folder"),
        ("killed", b'k', "was not read: the process of the runtimes was killed with SIGKILL"),
        ("endless", b'l', "ended the process that read it: it was not read within 20 seconds"),
    ];
    let root = |isolation: &str, faults: &[(&str, u8, &str)]| {
        let root = TestRoot::new().model_as("wine_mlp", "healthy").set(&format!("runtimes.isolation={isolation}"));
        faults.iter().fold(root, |root, (name, kind, _)| with_fault_in_file(root, name, *kind))
    };
    // The last one takes long.
    for (isolation, faults) in [("process", &faults[..]), ("own", &faults[..5])] {
        let daemon = root(isolation, faults).start();
        let mut client = daemon.client();
        for (name, _, reason) in faults {
            let refusal = client.refusal(name);
            assert!(refusal.contains(reason) && refusal.contains(&format!("{name}/1/model.onnx ")), "{refusal}");
        }
        answers_again(&mut client, "healthy");
        if isolation == "process" {
            // A file that ended the process of all models is read in a separate one from then on.
            wait_until("one process", LIMIT, || runtime_processes(&daemon).len() == 1);
            let shared = runtime_processes(&daemon);
            let again = client.post("/v2/repository/models/crashes/load", &[], b"");
            assert!(again.error().contains("SIGSEGV"), "{again:?}");
            assert_eq!(runtime_processes(&daemon), shared);
        }
        assert_eq!(well(&mut client, "healthy").status, 200);
    }
}

#[test]
fn files_have_the_same_digests_names_and_reasons_whoever_reads_them() {
    let good = ["efficientnet_lite0", "external_data", "ir_add", "quantized_colours", "wine_mlp"];
    let bad = ["broken_cut", "broken_png", "broken_empty", "external_escape", "external_address"];
    let mut seen = Vec::new();
    for isolation in ["process", "own"] {
        let root = TestRoot::new().models(&good).models(&bad).set(&format!("runtimes.isolation={isolation}"));
        let classifier = data("tables/machine_condition/1/model.onnx");
        // It has maps of classes.
        let daemon = root.file("machine_condition/1/model.onnx", classifier).start();
        let mut client = daemon.client();
        let folder = daemon.root.folder.path().display().to_string();
        let mut facts: Vec<String> = bad.iter().map(|name| client.refusal(name).replace(&folder, "")).collect();
        // Not the time of the next try.
        for fact in &mut facts {
            fact.truncate(fact.find("; the next try").unwrap_or(fact.len()));
        }
        for name in good.iter().chain(&["machine_condition"]) {
            facts.push(client.get(&format!("/v2/models/{name}")).json().to_string());
        }
        let loads = || {
            let shown = daemon.root.command(&["audit", "show", "--json", "--action", "model_loaded"]).output().unwrap();
            let text = String::from_utf8(shown.stdout).unwrap();
            let records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["event"].to_string());
            let mut records: Vec<_> = records.filter(|record| record.contains("digest")).collect();
            records.sort();
            records
        };
        wait_until("the records of the loads", LIMIT, || loads().len() == good.len() + 1);
        facts.extend(loads());
        seen.push(facts);
    }
    assert_eq!(seen[0], seen[1]);
}

#[test]
fn a_load_over_its_limit_ends_its_process_and_is_blamed() {
    let folder = tempfile::tempdir().unwrap();
    let children = Children::new(
        children(folder.path(), env!("CARGO_BIN_EXE_ledge").into()),
        vec![JobChannelThread::foreground(0)],
        Arc::new(|_, _| {}),
    );
    let model = folder.path().join("model.onnx");
    write(&model, &endless::model());
    let files = ModelFiles {
        format: ModelFormat::Onnx,
        model,
        weights: None,
        external: Vec::new(),
        port_names: None,
        dangers: InputDangers::default(),
        class_maps: Vec::new(),
    };
    let order = ModelLoadRequest {
        name: "endless",
        runtimes: &Runtimes::new(setup_root().join("runtimes")),
        runtime: Runtime::OnnxRuntime,
        files: &files,
        is_secret: false,
        options: &LoadOptions { threads: 1, cache: CompiledModelCache::None, exact_int8: false, is_part: false },
        cache: None,
        cores: &[0],
        warm_up: None,
        time_limit: LIMIT,
        load_limit: Duration::from_secs(1),
    };
    let error = children.load(Isolation::Own, &order).unwrap_err();
    assert!(matches!(error, ModelLoadError::Crashed { .. }), "{error:?}");
}
