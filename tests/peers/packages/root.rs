//! `Root`: a separate Debian root with its own network and processes, in which packages are installed and run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::daemon::{data, send_signal, setup_root};
use crate::tools::{path_of, run};

/// Loading the models takes seconds, on a busy machine too.
const LIMIT: Duration = Duration::from_mins(1);

/// Files that installing and removing leaves behind by design: the records of dpkg, apt and useradd, and scratch.
const RECORDS: [&str; 10] = [
    "proc",
    "tmp",
    "etc/passwd-",
    "etc/shadow-",
    "etc/group-",
    "etc/gshadow-",
    "var/lib/dpkg",
    "var/lib/apt",
    "var/cache/apt",
    "var/log",
];

/// A root; removed when dropped.
pub struct Root {
    folder: TempDir,
}

impl Root {
    /// As debootstrap made it.
    pub fn debian() -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "packages are installed as root: run `make test-peers-all` as root"
        );
        let archive = setup_root().join("peers/root.tar.gz");
        assert!(archive.is_file(), "{} is missing: `make setup-root` makes it", archive.display());
        let folder = tempfile::tempdir().unwrap();
        run(Command::new("tar").arg("-C").arg(folder.path()).arg("-xzf").arg(archive));
        Self { folder }
    }

    /// The path of a file of the root.
    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path.trim_start_matches('/'))
    }

    /// A program in the root, with its own processes and network.
    fn command(&self, user: &str, program: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "--pid", "--fork", "--kill-child"]);
        command.arg(format!("--mount-proc={}", self.path("proc").display()));
        let inside = r#"ip link set lo up; root=$1 user=$2; shift 2; exec chroot --userspec="$user" "$root" "$@""#;
        command.args(["sh", "-c", inside, "sh"]).arg(self.folder.path()).arg(format!("{user}:{user}")).args(program);
        command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C").stdin(Stdio::null());
        command
    }

    /// Runs it to its end.
    pub fn output(&self, program: &[&str]) -> Output {
        self.command("root", program).output().unwrap()
    }

    /// Runs it to its end, which must be a good one.
    #[track_caller]
    pub fn run(&self, program: &[&str]) -> String {
        run(&mut self.command("root", program))
    }

    /// Puts a file there, so that programs of the root see it as `/tmp/NAME`.
    #[track_caller]
    pub fn bring(&self, file: &Path) -> String {
        let name = format!("/tmp/{}", file.file_name().unwrap().to_str().unwrap());
        std::fs::copy(file, self.path(&name)).unwrap();
        name
    }

    /// The daemon, as its user, ready to answer.
    pub fn serve(&self) -> Serving<'_> {
        let state = self.path("/var/lib/ledge").metadata().unwrap();
        // As systemd would make it.
        let runtime = self.path("/run/ledge");
        if !runtime.exists() {
            std::fs::DirBuilder::new().mode(0o750).create(&runtime).unwrap();
            std::os::unix::fs::chown(&runtime, Some(state.uid()), Some(state.gid())).unwrap();
        }
        let log = std::fs::File::create(self.path("/tmp/serve.log")).unwrap();
        let mut command = self.command("ledge", &["/usr/bin/ledge", "serve"]);
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let serving = Serving { root: self, child };
        serving.wait();
        serving
    }

    /// The paths of all files, without [`RECORDS`].
    pub fn files(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        self.walk(Path::new(""), &mut |path| {
            let name = path.to_str().unwrap().to_owned();
            let is_record = RECORDS.iter().any(|record| path.starts_with(record));
            if !is_record {
                found.insert(name);
            }
        });
        found
    }

    /// The content of every file below a folder.
    pub fn content(&self, below: &str) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        self.walk(Path::new(below.trim_start_matches('/')), &mut |path| {
            let full = self.folder.path().join(path);
            if full.is_file() {
                found.insert(path.to_str().unwrap().to_owned(), std::fs::read(full).unwrap());
            }
        });
        found
    }

    fn walk(&self, below: &Path, each: &mut impl FnMut(&Path)) {
        for entry in std::fs::read_dir(self.folder.path().join(below)).unwrap() {
            let entry = entry.unwrap();
            let path = below.join(entry.file_name());
            each(&path);
            if entry.file_type().unwrap().is_dir() {
                self.walk(&path, each);
            }
        }
    }
}

impl Debug for Root {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.folder.fmt(f)
    }
}

/// A daemon in a root; ended when dropped.
pub struct Serving<'r> {
    root: &'r Root,
    child: Child,
}

impl Serving<'_> {
    fn curl(&self, path: &str) -> Command {
        let mut command = Command::new(path_of("curl"));
        command.args(["--silent", "--show-error", "--fail-with-body", "--max-time", "20", "--unix-socket"]);
        command.arg(self.root.path("/run/ledge/ledge.sock")).arg(format!("http://box{path}"));
        command
    }

    fn wait(&self) {
        let since = Instant::now();
        let is_loading = || {
            let index = self.curl("/v2/repository/index").args(["--data-binary", ""]).output().unwrap();
            String::from_utf8_lossy(&index.stdout).contains("LOADING")
        };
        // The first start is ready with the first model.
        while !self.curl("/v2/health/ready").output().unwrap().status.success() || is_loading() {
            assert!(since.elapsed() < LIMIT, "not ready: {}", self.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.root.path("/tmp/serve.log")).unwrap()
    }

    /// Asks it with a body of JSON.
    #[track_caller]
    pub fn post(&self, path: &str, body: &str) -> String {
        run(self.curl(path).args(["--data-binary", body]))
    }

    /// The answer about the photograph of a cup of coffee.
    #[track_caller]
    pub fn classify(&self) -> String {
        let photograph = self.root.path("/tmp/coffee.png");
        crate::daemon::write(&photograph, &data("photos/coffee.png"));
        let body = format!("@{}", photograph.display());
        let mut command = self.curl("/v2/models/efficientnet_lite0/infer");
        run(command.args(["--header", "Content-Type: image/png", "--data-binary", &body]))
    }

    /// The process that `unshare` has started; `None` after its end.
    fn daemon(&self) -> Option<u32> {
        let parent = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
        children.trim().parse().ok()
    }

    /// Asks it to end, as systemd does, and waits until it has.
    #[track_caller]
    pub fn stop(mut self) {
        send_signal(self.daemon().unwrap(), "TERM");
        let ended = self.child.wait().unwrap();
        assert!(ended.success(), "{ended}: {}", self.log());
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        // It has another user than `unshare`, with which it would end otherwise.
        if let Some(daemon) = self.daemon() {
            send_signal(daemon, "KILL");
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
