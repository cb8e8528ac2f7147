//! `Platform`: a repository made and steered by `ledge-platform`, as a platform team does it; and a box that it looks
//! after.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::certificates::Authority;
use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot, setup_root, write};
use crate::nginx::Nginx;
use crate::tools::run;

/// A rollout with a short soak and without a shadow stage: boxes of a test have no requests to mirror.
pub const SHORT: [&str; 6] = ["--waves", "all", "--shadow", "off", "--soak", "min_s=1,min_requests=0,max_s=30"];

/// A platform: its keys, and the folder that a web server gives out.
pub struct Platform {
    folder: TempDir,
    environment: Vec<(&'static str, OsString)>,
}

impl Platform {
    /// A new one, with nothing in it.
    pub fn new() -> Self {
        let platform = Self { folder: tempfile::tempdir().unwrap(), environment: Vec::new() };
        platform.run(&["repository", "init"], &["--encrypt", "none"]);
        platform
    }

    /// The folder of the repository.
    pub fn repository(&self) -> PathBuf {
        self.folder.path().join("repository")
    }

    /// The root metadata that boxes are given.
    pub fn root_file(&self) -> PathBuf {
        self.repository().join("metadata/1.root.json")
    }

    /// The folder of all keys.
    pub fn keys(&self) -> PathBuf {
        self.folder.path().join("keys")
    }

    /// Variables of the environment of what follows.
    pub fn set_environment(&mut self, environment: Vec<(&'static str, OsString)>) {
        self.environment = environment;
    }

    /// Runs a verb on the repository, with all keys.
    #[track_caller]
    pub fn run(&self, verb: &[&str], arguments: &[&str]) -> String {
        run(self.command(verb).arg("--keys").arg(self.keys()).args(arguments))
    }

    /// A verb on the repository.
    pub fn command(&self, verb: &[&str]) -> Command {
        let mut command = self.python();
        command.args(["-m", "ledge_platform"]).args(verb).arg(self.repository());
        command
    }

    /// Python with the package.
    pub fn python(&self) -> Command {
        let python = setup_root().join("platform/bin/python");
        assert!(python.exists(), "{} is missing: `make setup-platform` makes it", python.display());
        let mut command = Command::new(python);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/platform");
        command.env("PYTHONPATH", package).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// The same with a check of the tool replaced: a statement of Python in which its modules `release` and `upgrades` are
    /// known. So a thief of the keys signs, whom nothing hinders.
    #[track_caller]
    pub fn run_without(&self, check: &str, verb: &[&str], arguments: &[&str]) -> String {
        let program = format!(
            "import sys; from ledge_platform import __main__, release, upgrades; {check}; sys.exit(__main__.main(sys.argv[1:]))"
        );
        let mut command = self.python();
        command.args(["-c", &program]).args(verb).arg(self.repository()).args(arguments);
        run(command.arg("--keys").arg(self.keys()))
    }

    /// Signs a version of a model. Its golden inputs are not run: the tests see to what boxes do with bad ones.
    #[track_caller]
    pub fn add_model(&self, name: &str, version: u64, source: &Path, more: &[&str]) {
        self.add_with(&["model", "add"], name, version, source, &[&["--without-check"], more].concat());
    }

    /// Signs a version of settings or of a runtime's libraries.
    #[track_caller]
    pub fn add(&self, verb: &[&str], name: &str, version: u64, source: &Path) {
        self.add_with(verb, name, version, source, &[]);
    }

    #[track_caller]
    fn add_with(&self, verb: &[&str], name: &str, version: u64, source: &Path, more: &[&str]) {
        let (version, source) = (version.to_string(), source.display().to_string());
        // The positional arguments follow the repository.
        let output = run(self.command(verb).args([name, &version, &source]).arg("--keys").arg(self.keys()).args(more));
        assert!(output.contains(name), "{output}");
    }

    /// Enrols a box with this platform at `address`.
    pub fn enrol(&self, root: TestRoot, address: &str) -> TestRoot {
        root.set(&format!("updates.repository={address:?}"))
            .set(&format!("updates.root_file={:?}", self.root_file().display().to_string()))
            .set("updates.min_free_mb=0")
            .set("updates.poll_interval_s=5")
            // Under load the debug log is a line a request.
            .set("log.level=\"ledge=debug,audit=info\"")
            .set("device.id=\"box-1\"")
    }

    /// Starts a rollout to every box at once, with a short soak.
    #[track_caller]
    pub fn start(&self, id: &str, target: &str, more: &[&str]) {
        let arguments: Vec<&str> =
            ["--id", id, "--target", target].into_iter().chain(SHORT).chain(more.iter().copied()).collect();
        self.run(&["rollout", "start"], &arguments);
    }
}

/// A box with a platform behind a web server that wants client certificates.
pub struct Fleet {
    pub platform: Platform,
    pub nginx: Nginx,
    pub authority: Authority,
}

impl Fleet {
    /// A platform and its web server. `lines` go into the server's `location` block.
    pub fn new(lines: &str) -> Self {
        let (platform, authority) = (Platform::new(), Authority::new());
        let nginx = Nginx::start(&platform.repository(), &authority, lines);
        Self { platform, nginx, authority }
    }

    /// Enrols a box with this platform.
    pub fn enrol(&self, root: TestRoot) -> TestRoot {
        let identity = self.authority.issue("box-1");
        let folder = root.folder.path().join("tls");
        write(&folder.join("ca.pem"), self.authority.pem().as_bytes());
        write(&folder.join("box.pem"), identity.certificate.as_bytes());
        write(&folder.join("box.key"), identity.key.as_bytes());
        self.platform
            .enrol(root, &self.nginx.url())
            .set("updates.tls.ca_file=\"tls/ca.pem\"")
            .set("updates.tls.certificate_file=\"tls/box.pem\"")
            .set("updates.tls.key_file=\"tls/box.key\"")
    }
}

/// The status of a box's updates.
pub fn status(daemon: &TestDaemon) -> Value {
    daemon.client().get("/updates").json()
}

/// The status of one subject. A box that has just started has none yet, and is asked again.
#[track_caller]
pub fn subject(daemon: &TestDaemon, name: &str) -> Value {
    let begun = std::time::Instant::now();
    loop {
        let status = status(daemon);
        let subjects = status["subjects"].as_array().unwrap_or_else(|| panic!("{status}"));
        if let Some(subject) = subjects.iter().find(|subject| subject["subject"] == name) {
            return subject.clone();
        }
        let has_begun = status["repository"] != "" || begun.elapsed().as_secs() > 60;
        assert!(!has_begun, "no {name} in {status}");
    }
}

/// Waits until the status of the model satisfies `is`, and returns the status.
#[track_caller]
pub fn until(daemon: &TestDaemon, is: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..600 {
        let told = subject(daemon, "models/shapes");
        if is(&told) {
            return told;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("{}", status(daemon));
}

/// Has it look at the repository now.
#[track_caller]
pub fn look(daemon: &TestDaemon) {
    let answer = daemon.client().post_json("/updates/check", &json!({}));
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
}

/// The versions of a model that it serves.
pub fn versions(daemon: &TestDaemon, model: &str) -> Value {
    daemon.client().get(&format!("/v2/models/{model}")).json()["versions"].clone()
}

/// Has it look at the repository now, which must fail, and says why it did.
#[track_caller]
pub fn look_in_vain(daemon: &TestDaemon) -> String {
    let answer = daemon.client().post_json("/updates/check", &json!({}));
    assert_eq!(answer.status, 502, "{}", String::from_utf8_lossy(&answer.body));
    assert!(status(daemon)["error"].is_string());
    answer.error()
}

/// Callers that call a model again and again until they are stopped.
pub struct Callers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Answers>>,
}

/// The answers that callers got.
#[derive(Debug, Default)]
pub struct Answers {
    /// The versions that answered, in their order, each run of one version once.
    pub versions: Vec<String>,
    pub answered: u64,
    /// The longest that one waited for an answer, a new connection included.
    pub longest: Duration,
    pub failures: Vec<String>,
}

impl Callers {
    /// A number of callers, each with a separate connection, that send `request` to `model`.
    pub fn start(daemon: &TestDaemon, count: usize, model: &str, request: &Value) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..count)
            .map(|_| {
                let (stop, address) = (stop.clone(), daemon.address);
                let (path, request) = (format!("/v2/models/{model}/infer"), request.clone());
                std::thread::spawn(move || ask(address, &path, &request, &stop))
            })
            .collect();
        Self { stop, threads }
    }

    /// Stops them, and returns all of their answers.
    pub fn stop(self) -> Vec<Answers> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    /// Stops them; none may have gone without an answer.
    #[track_caller]
    pub fn stop_unharmed(self) -> Vec<Answers> {
        let all = self.stop();
        for answers in &all {
            assert!(answers.failures.is_empty() && answers.answered > 0, "{answers:?}");
        }
        all
    }
}

fn ask(address: SocketAddr, path: &str, request: &Value, stop: &AtomicBool) -> Answers {
    let mut answers = Answers::default();
    let mut client = None;
    while !stop.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let mut connection = match client.take().map_or_else(|| Client::try_tcp(address), Ok) {
            Ok(connection) => connection,
            Err(error) => {
                answers.failures.push(error.to_string());
                break;
            }
        };
        let answer = connection.try_post_json(path, request);
        answers.longest = answers.longest.max(asked.elapsed());
        match answer {
            Ok(response) if response.status == 200 => {
                answers.answered += 1;
                // After the last answer on a connection, use another.
                client = (response.header("connection") != Some("close")).then_some(connection);
                let version = response.json()["model_version"].as_str().unwrap_or_default().to_owned();
                if answers.versions.last() != Some(&version) {
                    answers.versions.push(version);
                }
            }
            Ok(response) => answers.failures.push(String::from_utf8_lossy(&response.body).into_owned()),
            Err(error) => {
                answers.failures.push(error.to_string());
                break;
            }
        }
    }
    answers
}

/// A request to the model `wine_mlp`, of its golden rows.
pub fn wine() -> Value {
    let text = std::fs::read(crate::daemon::model_folder("wine_mlp").join("golden/rows.json")).unwrap();
    let golden: Value = serde_json::from_slice(&text).unwrap();
    json!({ "inputs": golden["inputs"] })
}

/// The small classifier of `tests/models/releases.py`.
pub const SHAPES: &str = "shapes";

/// A request to it.
pub fn shapes() -> Value {
    json!({ "inputs": [{ "name": "IN", "datatype": "FP32", "shape": [1, 4], "data": [2.0, 1.0, 0.0, 1.0] }] })
}
