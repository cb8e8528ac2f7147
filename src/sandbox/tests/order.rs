//! The process that a test starts: this binary, with an order.

use std::fs::Permissions;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ledge_sandbox::probe::{self, ProbeResult, ProbeTargets};
use ledge_sandbox::{Sandbox, SandboxLimits, SandboxReport, deny_writable_code};
use rustix::net::{AddressFamily, SocketType, socket};
use serde::{Deserialize, Serialize};

use crate::{models, refusals};

/// The variable with the order.
const VARIABLE: &str = "LEDGE_SANDBOX_ORDER";

pub const LIMITS: SandboxLimits =
    SandboxLimits { data_bytes: 2 << 30, open_files: 200, file_bytes: 64 << 20, threads: 24 };

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ProbeOrder {
    /// Attempts everything.
    Probe { folders: Folders, is_sandboxed: bool },
    /// Writes a file that is too large.
    WriteBeyondLimit { folders: Folders },
    /// Reports the sandbox, on a system that denies these calls with this error.
    Report { denied: Vec<i64>, error: i32 },
    /// Loads and runs models, with this many threads for each.
    Run { models: Vec<PathBuf>, threads: usize, runtimes: PathBuf, cache: PathBuf, is_sandboxed: bool },
    /// Denies memory that is writable and executable, and runs a model.
    WriteCode { model: PathBuf, runtimes: PathBuf, cache: PathBuf },
}

/// The folders of a probe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Folders {
    pub outside: PathBuf,
    pub readable: PathBuf,
    pub writable: PathBuf,
    pub abstract_name: String,
}

impl ProbeOrder {
    pub fn of_this_process() -> Option<Self> {
        let order = std::env::var(VARIABLE).ok()?;
        Some(serde_json::from_str(&order).unwrap())
    }

    pub fn obey(self) {
        match self {
            Self::Probe { folders, is_sandboxed } => {
                let unconnected = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
                let targets = ProbeTargets {
                    outside: folders.outside.join("file"),
                    readable: folders.readable.join("file"),
                    writable: folders.writable.clone(),
                    unconnected,
                    abstract_name: folders.abstract_name.clone().into_bytes(),
                    limits: LIMITS,
                };
                if is_sandboxed {
                    say(&sandbox(&folders).apply());
                }
                probe::run(&targets, |result| say(&result));
            }
            Self::WriteBeyondLimit { folders } => {
                sandbox(&folders).apply();
                probe::write_beyond_limit(&folders.writable, LIMITS.file_bytes).unwrap();
            }
            Self::Report { denied, error } => {
                refusals::deny(&denied, error);
                let sandbox =
                    Sandbox { readable: Vec::new(), writable: Vec::new(), system_files: false, limits: LIMITS };
                say(&sandbox.apply());
            }
            Self::Run { models, threads, runtimes, cache, is_sandboxed } => {
                if is_sandboxed {
                    let readable = models.iter().chain([&runtimes]).cloned().collect();
                    let sandbox =
                        Sandbox { readable, writable: vec![cache.clone()], system_files: true, limits: LIMITS };
                    let report = sandbox.apply();
                    assert!(report.is_tight(), "{report:?}");
                }
                models::run(&models, threads, &runtimes, &cache, |answer| say(&answer));
            }
            Self::WriteCode { model, runtimes, cache } => {
                say(&deny_writable_code());
                models::run(&[model], 1, &runtimes, &cache, |answer| say(&answer));
            }
        }
    }

    /// Starts a process that obeys this order, and returns the lines of JSON that it wrote.
    pub fn lines<T: for<'j> Deserialize<'j>>(&self) -> Vec<T> {
        let output = self.output(None);
        assert!(output.status.success(), "{output:?}");
        parse(&output)
    }

    /// Starts a process that obeys this order, as this user if there is one.
    pub fn output(&self, user: Option<u32>) -> Output {
        let own = std::env::current_exe().unwrap();
        // This checkout may be where no other user can enter.
        let open = user.map(|_| tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir().unwrap());
        let program = open.as_ref().map_or(own.clone(), |folder| folder.path().join("sandboxed"));
        if open.is_some() {
            std::fs::copy(own, &program).unwrap();
        }
        let mut command = Command::new(program);
        command.env(VARIABLE, serde_json::to_string(self).unwrap()).env("ORT_DISABLE_TELEMETRY", "1");
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        command.output().unwrap()
    }
}

/// The lines of JSON that a process wrote.
pub fn parse<T: for<'j> Deserialize<'j>>(output: &Output) -> Vec<T> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// The report of a sandbox, and the attempts in it.
pub fn report_and_attempts(output: &Output) -> (SandboxReport, Vec<ProbeResult>) {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    let (report, attempts) = text.split_once('\n').unwrap_or_else(|| panic!("{output:?}"));
    (serde_json::from_str(report).unwrap(), attempts.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn sandbox(folders: &Folders) -> Sandbox {
    Sandbox {
        readable: vec![folders.readable.clone()],
        writable: vec![folders.writable.clone()],
        system_files: true,
        limits: LIMITS,
    }
}

fn say(message: &impl Serialize) {
    println!("{}", serde_json::to_string(message).unwrap());
}

/// A folder with one file, which every user may change.
fn open_folder(root: &Path, name: &str) -> PathBuf {
    let folder = root.join(name);
    std::fs::create_dir(&folder).unwrap();
    ledge_base::durable::replace(&folder.join("file"), b"content").unwrap();
    for (path, mode) in [(root, 0o755), (&folder, 0o777), (&folder.join("file"), 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    folder
}

/// Calls `with` with folders that every user may change, while somebody listens on the abstract name.
pub fn with_folders<T>(with: impl FnOnce(Folders) -> T) -> T {
    let root = tempfile::tempdir().unwrap();
    let abstract_name = root.path().display().to_string();
    let address = SocketAddr::from_abstract_name(abstract_name.as_bytes()).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let [outside, readable, writable] = ["outside", "readable", "writable"].map(|name| open_folder(root.path(), name));
    with(Folders { outside, readable, writable, abstract_name })
}
