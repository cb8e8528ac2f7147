//! `Machine`: a Debian with systemd, booted in a container without a network, and the daemon in it as its package has
//! it, or nothing yet.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::daemon::setup_root;
use crate::tools::{path_of, run};

/// The folder of the unit.
pub const UNITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/systemd");

/// A booted Debian with systemd, and the operations of a test on it.
pub trait Booted: Sized {
    /// Timeout for booting and for starting the daemon, on a busy machine.
    const LIMIT: Duration;

    /// Runs a program in there to its end.
    fn output(&self, words: &[&str]) -> Output;

    /// Installs the daemon, which is not started yet, from [`own_folders`].
    fn install(&self) {
        self.shell(
            "useradd --system --home /var/lib/ledge ledge && install -m 755 /mnt/bin/ledge /usr/bin/ledge && \
             cp /mnt/units/ledge.service /etc/systemd/system/ && systemctl daemon-reload",
        );
    }

    /// Gives the box models of the set-up.
    fn models(&self, names: &[&str]) {
        for name in names {
            self.shell(&format!("mkdir -p /var/lib/ledge/models && cp -r /mnt/models/{name} /var/lib/ledge/models/"));
        }
    }

    /// Runs a program in there, which must succeed, and returns its output.
    #[track_caller]
    fn run(&self, words: &[&str]) -> String {
        let output = self.output(words);
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(output.status.success(), "{words:?}: {}\n{out}{err}", output.status);
        out.into_owned()
    }

    /// The same for a line of shell.
    #[track_caller]
    fn shell(&self, line: &str) -> String {
        self.run(&["sh", "-ec", line])
    }

    /// Runs a program in there, with any result, and returns its output.
    fn ask(&self, words: &[&str]) -> String {
        String::from_utf8_lossy(&self.output(words).stdout).into_owned()
    }

    /// Runs a line of shell in there, with any exit code.
    fn try_shell(&self, line: &str) -> Output {
        self.output(&["sh", "-ec", line])
    }

    /// A property of the service, such as `StatusText`.
    fn property(&self, name: &str) -> String {
        self.ask(&["systemctl", "show", "ledge", "--value", "-p", name]).trim().to_owned()
    }

    /// A drop-in of the service, which takes effect at its next start.
    fn drop_in(&self, text: &str) {
        let folder = "/etc/systemd/system/ledge.service.d";
        self.shell(&format!(
            "mkdir -p {folder} && printf '%s' '{text}' > {folder}/test.conf && systemctl daemon-reload"
        ));
    }

    /// Waits until something is so.
    #[track_caller]
    fn until(&mut self, what: &str, mut is: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + Self::LIMIT;
        while !is(self) {
            if Instant::now() > deadline {
                let journal = self.ask(&["journalctl", "-u", "ledge", "--no-pager"]);
                panic!("{what}: not within {:?}; the journal:\n{journal}", Self::LIMIT);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// The folders that [`Booted::install`] needs, and their places in there.
pub fn own_folders() -> [(PathBuf, &'static str); 4] {
    let bin = Path::new(env!("CARGO_BIN_EXE_ledge")).parent().unwrap();
    [
        (bin.to_owned(), "/mnt/bin"),
        (UNITS.into(), "/mnt/units"),
        (setup_root().join("runtimes").canonicalize().unwrap(), "/usr/lib/ledge/runtimes"),
        (setup_root().join("models"), "/mnt/models"),
    ]
}

/// A booted system. Its files are as new, and gone with it.
pub struct Machine {
    container: Child,
    /// Its process 1, as this machine sees it.
    init: u32,
    /// One at a time: they share the files that they begin with.
    _turn: File,
}

impl Machine {
    /// Boots one with a daemon that is not started yet; `binds` are folders of this machine and where they are to be
    /// seen in there.
    pub fn boot(binds: &[(&Path, &str)]) -> Self {
        let own = own_folders();
        let own: Vec<_> = own.iter().map(|(from, to)| (from.as_path(), *to)).collect();
        let machine = Self::bare(&[&own, binds].concat());
        machine.install();
        machine
    }

    /// Boots one that has nothing of Ledge.
    pub fn bare(binds: &[(&Path, &str)]) -> Self {
        assert!(rustix::process::geteuid().is_root(), "systemd-nspawn and debootstrap need root: run this as root");
        let (root, turn) = debian();
        let mut command = Command::new(path_of("systemd-nspawn"));
        command.arg("-D").arg(&root);
        command.args(["--register=no", "--keep-unit", "--private-network", "--volatile=overlay", "--boot", "--quiet"]);
        for (from, to) in binds {
            command.arg(format!("--bind-ro={}:{to}", from.display()));
        }
        // Nothing that would look for a network.
        command.args(["systemd.mask=apt-daily.timer", "systemd.mask=apt-daily-upgrade.timer"]);
        let quiet = || Stdio::null();
        let container = command.stdin(quiet()).stdout(quiet()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut machine = Self { container, init: 0, _turn: turn };
        machine.until("the system boots", |machine| {
            machine.init = machine.find_init().unwrap_or(0);
            machine.init > 0 && machine.ask(&["systemctl", "is-system-running"]).trim() == "running"
        });
        machine
    }

    /// Gives it an address that is not loopback: who comes from there comes from elsewhere.
    pub fn address(&self, address: &str) {
        let mut command = Command::new(path_of("nsenter"));
        command.args(["--net", "--target", &self.init.to_string(), "--"]).arg(path_of("ip"));
        run(command.args(["address", "add", address, "dev", "lo"]));
    }

    /// Begins to run a line of shell in there, which reads what this test writes.
    pub fn begin(&self, line: &str) -> Child {
        let mut command = self.command(&["sh", "-ec", line]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// A thread of a program in there, by its name, as this machine numbers it.
    #[track_caller]
    pub fn thread(&self, program: &str, name: &str) -> u32 {
        let comm = |path: &Path| std::fs::read_to_string(path.join("comm")).unwrap_or_default().trim().to_owned();
        let numbered = |folder: &Path| -> Vec<PathBuf> {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
            entries.filter(|path| number(path).is_some()).collect()
        };
        let space = |process: &Path| std::fs::read_link(process.join("ns/pid")).ok();
        let own = space(&PathBuf::from(format!("/proc/{}", self.init)));
        let processes = numbered(Path::new("/proc")).into_iter();
        let processes = processes.filter(|process| comm(process) == program && space(process) == own);
        let mut threads = processes.flat_map(|process| numbered(&process.join("task")));
        let found = threads.find(|thread| comm(thread) == name);
        found.as_deref().and_then(number).unwrap_or_else(|| panic!("{program} has no thread {name}"))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(path_of("nsenter"));
        command.args(["--all", "--target", &self.init.to_string(), "--"]).args(words);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
    }

    fn find_init(&self) -> Option<u32> {
        let children = format!("/proc/{0}/task/{0}/children", self.container.id());
        std::fs::read_to_string(children).ok()?.split_whitespace().next()?.parse().ok()
    }
}

impl Booted for Machine {
    const LIMIT: Duration = Duration::from_secs(90);

    fn output(&self, words: &[&str]) -> Output {
        self.command(words).stdin(Stdio::null()).output().unwrap()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(init) = i32::try_from(self.init).ok().and_then(rustix::process::Pid::from_raw) {
            // The end of its process 1 is the end of all others in there.
            let _ = rustix::process::kill_process(init, rustix::process::Signal::KILL);
        } else {
            let _ = self.container.kill();
        }
        let _ = self.container.wait();
    }
}

/// The files of a small Debian with systemd, made once, and a lock on them.
fn debian() -> (PathBuf, File) {
    let folder = setup_root().join("peers");
    std::fs::create_dir_all(&folder).unwrap();
    let turn = File::create(folder.join("debian-systemd.lock")).unwrap();
    turn.lock().unwrap();
    let root = folder.join("debian-systemd");
    if !root.join("usr/bin/curl").is_file() {
        let fresh = folder.join("debian-systemd.new");
        let _ = std::fs::remove_dir_all(&fresh);
        let mut command = Command::new(path_of("debootstrap"));
        command.args(["--variant=minbase", "--include=systemd,systemd-sysv,dbus,curl", &suite()]).arg(&fresh);
        run(&mut command);
        let _ = std::fs::remove_dir_all(&root);
        run(Command::new("mv").args([&fresh, &root]));
    }
    (root, turn)
}

/// The release of Debian of this machine, because its programs run in there; on other systems one that is old enough.
fn suite() -> String {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |key: &str| release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    match value("ID") {
        Some("debian") => value("VERSION_CODENAME").unwrap_or("bookworm").to_owned(),
        _ => "bookworm".to_owned(),
    }
}

fn number(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.parse().ok()
}
