//! `TestDaemon`: the real binary on port 0 over a temporary folder.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::client::Client;
use crate::{CHECKOUT, PROGRAM};

/// Starting, loading and stopping stay far below this, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(100);

/// The field of a log line that has the name of its event.
const EVENT_NAME: &str = "event_name";

/// The folder that `make setup` fills; `LEDGE_TEST_ROOT` names another.
pub fn setup_root() -> PathBuf {
    let root = std::env::var_os("LEDGE_TEST_ROOT").map_or_else(|| Path::new(CHECKOUT).join(".ledge"), PathBuf::from);
    for needed in ["runtimes", "models", "test-models"] {
        assert!(
            root.join(needed).is_dir(),
            "{} is missing: `make test` prepares it (or `make setup-test` alone)",
            root.join(needed).display()
        );
    }
    root
}

/// The folder of a model that ships or that only tests use.
pub fn model_folder(name: &str) -> PathBuf {
    let root = setup_root();
    ["test-models", "models"]
        .iter()
        .map(|folder| root.join(folder).join(name))
        .find(|path| path.is_dir())
        .unwrap_or_else(|| panic!("no model {name} in {}: run `make test`", root.display()))
}

/// A file of `tests/data`.
pub fn data(path: &str) -> Vec<u8> {
    let path = Path::new(CHECKOUT).join("tests/data").join(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Any free port; everybody on this machine may do everything, as far as a test is not about that; and the first
/// runtime that accepts a model, since compiling each model in both takes its time.
const SETTINGS: [&str; 3] =
    ["http.listen=[\"127.0.0.1:0\", \"unix:ledge.sock\"]", "runtimes.measure=false", "access.loopback=[\"admin\"]"];

/// A root folder with a model repository, before a daemon runs on it.
pub struct TestRoot {
    pub folder: TempDir,
    settings: Vec<String>,
    environment: Vec<(String, OsString)>,
    /// A program and its arguments, which runs the binary.
    runner: Vec<OsString>,
}

impl TestRoot {
    /// A root without models.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("models")).unwrap();
        symlink(setup_root().join("runtimes"), folder.path().join("runtimes")).unwrap();
        Self { folder, settings: SETTINGS.map(str::to_owned).into(), environment: Vec::new(), runner: Vec::new() }
    }

    /// A root with the permissions of a new installation.
    pub fn closed() -> Self {
        let mut root = Self::new();
        root.settings.retain(|setting| !setting.starts_with("access."));
        root
    }

    /// Adds models of the set-up, under their own names.
    pub fn models(self, names: &[&str]) -> Self {
        for name in names {
            copy(&model_folder(name), &self.model(name));
        }
        self
    }

    /// Adds a model under another name.
    pub fn model_as(self, source: &str, name: &str) -> Self {
        copy(&model_folder(source), &self.model(name));
        self
    }

    /// Writes a file of the model repository, such as `add_sub/model.toml`.
    pub fn file(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        write(&self.folder.path().join("models").join(path), content.as_ref());
        self
    }

    /// Declares entities, feature views and feature services.
    pub fn views(self, text: &str) -> Self {
        write(&self.folder.path().join("feature_views.d/test.toml"), text.as_bytes());
        self
    }

    /// A setting, as for `--set`.
    pub fn set(mut self, setting: &str) -> Self {
        self.settings.push(setting.to_owned());
        self
    }

    /// A variable of the environment of its commands; the last one of a name counts.
    pub fn variable(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    /// A program, with arguments, that becomes the binary once it has put itself where the test wants it.
    pub fn runner(mut self, program: &[&str]) -> Self {
        self.runner = program.iter().map(OsString::from).collect();
        self
    }

    /// The folder of a model.
    pub fn model(&self, name: &str) -> PathBuf {
        self.folder.path().join("models").join(name)
    }

    /// A command of the binary on this root.
    pub fn command(&self, verb: &[&str]) -> Command {
        let binary = OsString::from(PROGRAM);
        let words: Vec<_> = self.runner.iter().chain([&binary]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(verb).arg("--root").arg(self.folder.path());
        // The whole suite may run with each model in a separate process.
        if let Ok(isolation) = std::env::var("LEDGE_TEST_ISOLATION") {
            command.arg("--set").arg(format!("runtimes.isolation={isolation}"));
        }
        for setting in &self.settings {
            command.arg("--set").arg(setting);
        }
        // The tests' own environment must not configure the daemon.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LEDGE_")) {
            command.env_remove(name);
        }
        command.env_remove("JOURNAL_STREAM").env_remove("NOTIFY_SOCKET");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// The places that `ledge config check` finds wrong, as `FILE:LINE KEY` or `SOURCE KEY`.
    #[track_caller]
    pub fn mistakes(&self) -> Vec<String> {
        self.checked("mistakes", 78)
    }

    /// The places that `ledge config check` warns of, in a configuration without mistakes.
    #[track_caller]
    pub fn warnings(&self) -> Vec<String> {
        self.checked("warnings", 0)
    }

    #[track_caller]
    fn checked(&self, kind: &str, code: i32) -> Vec<String> {
        let output = self.command(&["config", "check", "--json"]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let place = |mistake: &Value| {
            let source = mistake["source"].as_str().unwrap().rsplit('/').next().unwrap();
            let line = mistake["line"].as_u64().map_or_else(String::new, |line| format!(":{line}"));
            format!("{source}{line} {}", mistake["key"].as_str().unwrap())
        };
        report[kind].as_array().unwrap().iter().map(place).collect()
    }

    /// The finding of this name among those of `ledge doctor`.
    #[track_caller]
    pub fn finding(&self, name: &str) -> Value {
        let output = self.command(&["doctor", "--json"]).output().unwrap();
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let mut checks = report["checks"].as_array().unwrap().iter();
        checks.find(|check| check["name"] == name).unwrap_or_else(|| panic!("no finding {name}: {report:#}")).clone()
    }

    /// Starts the daemon and waits until it is ready and each model has loaded or failed. Without the latter, a box
    /// that has not served its models before is ready with the first of them.
    pub fn start(self) -> TestDaemon {
        let daemon = self.start_ready();
        daemon.log.wait_for_both("daemon.ready", "repository.read");
        daemon
    }

    /// Starts the daemon and waits until it is ready; models that it has not served before may load for long.
    pub fn start_ready(self) -> TestDaemon {
        let daemon = self.start_unready();
        daemon.wait_for_event_since_start("daemon.ready");
        daemon
    }

    /// Starts the daemon and waits until it listens.
    pub fn start_unready(self) -> TestDaemon {
        let mut command = self.command(&["serve"]);
        command.args(["--set", "log.format=\"json\""]);
        if !self.settings.iter().any(|setting| setting.starts_with("log.level=")) {
            command.args(["--set", "log.level=\"debug\""]);
        }
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).stdin(Stdio::null()).spawn().unwrap();
        let log = Arc::new(Log::default());
        let (stderr, writer) = (child.stderr.take().unwrap(), log.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                writer.push(line);
            }
            writer.end();
        });
        let mut daemon = TestDaemon { root: self, child, log, address: ([127, 0, 0, 1], 0).into() };
        let line = daemon.wait_for_event("listener.listening");
        daemon.address = line["address"].as_str().unwrap().parse().unwrap();
        daemon
    }
}

/// Copies a folder: a test may change it.
pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Writes a file and the folders above it.
pub fn write(path: &Path, content: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::File::create(path).unwrap().write_all(content).unwrap();
}

/// A running daemon; killed when dropped.
pub struct TestDaemon {
    pub root: TestRoot,
    pub address: SocketAddr,
    child: Child,
    log: Arc<Log>,
}

impl TestDaemon {
    /// A new connection over TCP.
    pub fn client(&self) -> Client {
        Client::tcp(self.address)
    }

    /// A new connection over the Unix socket.
    pub fn unix_client(&self) -> Client {
        Client::unix(&self.root.folder.path().join("ledge.sock"))
    }

    /// The numbers of requests to a model that were answered, and that failed.
    pub fn counted(&self, model: &str) -> (Option<u64>, Option<u64>) {
        let statistics = self.client().get(&format!("/v2/models/{model}/stats")).json();
        let statistics = &statistics["model_stats"][0]["inference_stats"];
        (statistics["success"]["count"].as_u64(), statistics["fail"]["count"].as_u64())
    }

    /// A figure of `GET /metrics` by its name, with its labels if it has some.
    #[track_caller]
    pub fn metric<T: FromStr>(&self, series: &str) -> T {
        self.client().metric(series)
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for an event by its name, such as `update.committed`; fails with the whole log when the daemon ends first.
    #[track_caller]
    pub fn wait_for_event(&self, name: &str) -> Value {
        self.log.wait_for(name)
    }

    /// Waits for an event, which may have come before the daemon was ready.
    #[track_caller]
    pub fn wait_for_event_since_start(&self, name: &str) -> Value {
        self.log.state.lock().unwrap().seen = 0;
        self.log.wait_for(name)
    }

    /// The events of this name so far.
    pub fn events(&self, name: &str) -> Vec<Value> {
        self.log_lines().into_iter().filter(|line| line[EVENT_NAME] == name).collect()
    }

    /// The warnings and errors so far.
    pub fn complaints(&self) -> Vec<Value> {
        self.log_lines().into_iter().filter(|line| line["level"] == "WARN" || line["level"] == "ERROR").collect()
    }

    /// The lines of the log so far.
    pub fn log_lines(&self) -> Vec<Value> {
        let state = self.log.state.lock().unwrap();
        state.lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The log so far, as text.
    pub fn log(&self) -> String {
        self.log.state.lock().unwrap().lines.join("\n")
    }

    /// Sends a signal by its name, such as `HUP`.
    pub fn signal(&self, name: &str) {
        send_signal(self.pid(), name);
    }

    /// Kills the daemon like a power cut, and returns the files that it leaves.
    pub fn kill(mut self) -> TestRoot {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::mem::replace(&mut self.root, TestRoot::new())
    }

    /// Waits for the daemon's end.
    pub fn wait(&mut self) -> ExitStatus {
        self.log.wait_for_end();
        self.child.wait().unwrap()
    }
}

impl Drop for TestDaemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the daemon's log ---\n{}", self.log());
        }
    }
}

#[derive(Default)]
struct Log {
    state: Mutex<LogState>,
    changed: Condvar,
}

#[derive(Default)]
struct LogState {
    lines: Vec<String>,
    ended: bool,
    /// Lines that a wait has passed: the next wait looks behind them.
    seen: usize,
}

impl Log {
    fn push(&self, line: String) {
        self.state.lock().unwrap().lines.push(line);
        self.changed.notify_all();
    }

    fn end(&self) {
        self.state.lock().unwrap().ended = true;
        self.changed.notify_all();
    }

    #[track_caller]
    fn wait_for(&self, name: &str) -> Value {
        let deadline = Instant::now() + LIMIT;
        let mut state = self.state.lock().unwrap();
        loop {
            while state.seen < state.lines.len() {
                let line: Value = serde_json::from_str(&state.lines[state.seen]).unwrap_or_default();
                state.seen += 1;
                if line[EVENT_NAME] == name {
                    return line;
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.ended || left.is_zero() {
                // Released first: the panic's own clean-up reads the log again.
                let lines = state.lines.join("\n");
                drop(state);
                panic!("no event {name:?} in:\n{lines}");
            }
            state = self.changed.wait_timeout(state, left).unwrap().0;
        }
    }

    /// Waits for two events since the start, in any order. The next wait looks behind both.
    #[track_caller]
    fn wait_for_both(&self, one: &str, other: &str) {
        let last = [one, other].map(|name| {
            self.state.lock().unwrap().seen = 0;
            self.wait_for(name);
            self.state.lock().unwrap().seen
        });
        self.state.lock().unwrap().seen = last.into_iter().max().unwrap_or_default();
    }

    fn wait_for_end(&self) {
        let state = self.state.lock().unwrap();
        let (state, timeout) = self.changed.wait_timeout_while(state, LIMIT, |state| !state.ended).unwrap();
        let lines = state.lines.join("\n");
        // Released first, as above.
        drop(state);
        assert!(!timeout.timed_out(), "the daemon did not end:\n{lines}");
    }
}

/// The children of a process that run a verb of the binary.
pub fn processes(parent: u32, verb: &str) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).unwrap();
    let of_task = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let all = tasks.flatten().map(of_task).collect::<String>();
    let word = format!("\0{verb}\0");
    let runs =
        |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains(&word));
    all.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(runs).collect()
}

/// True when a process has mapped a library of a runtime.
pub fn has_runtime(pid: u32) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.contains("libonnxruntime") || maps.contains("libopenvino")
}

/// Sends a signal to a process. Not every machine has the program `kill`.
pub fn send_signal(pid: u32, name: &str) {
    use rustix::process::{Pid, Signal, kill_process};
    let signal = match name {
        "CONT" => Signal::CONT,
        "HUP" => Signal::HUP,
        "INT" => Signal::INT,
        "KILL" => Signal::KILL,
        "STOP" => Signal::STOP,
        "TERM" => Signal::TERM,
        other => panic!("{other}: say here which signal that is"),
    };
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}
