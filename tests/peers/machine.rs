//! `Machine`: a Debian with systemd, booted in a container without a network, and the daemon in it as its package has
//! it, or nothing yet.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::daemon::setup_root;
use crate::tools::{interpreter, path_of, run};

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
    disk: Option<Disk>,
    /// The arguments that show it folders of this machine.
    binds: Vec<String>,
    /// One at a time: they share the files that they begin with.
    _turn: File,
}

/// A disk of a machine: an ext4 file system in a file. Only the processes of the machine have it mounted.
struct Disk {
    folder: TempDir,
}

/// The request `FS_IOC_SHUTDOWN` of Linux with `NOLOGFLUSH`: from then on nothing reaches the disk, and what was not written
/// to it is lost. So file systems are tested for power cuts.
const CUT_POWER: &str = "import fcntl, os, struct, sys
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587D, struct.pack('I', 2))";

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
        let (root, turn) = debian();
        Self::start(&root, turn, None, binds)
    }

    /// The same with a disk whose power can be cut.
    pub fn with_disk(binds: &[(&Path, &str)]) -> Self {
        let (root, turn) = debian();
        let disk = Disk::new(&root);
        Self::start(&root, turn, Some(disk), binds)
    }

    fn start(root: &Path, turn: File, disk: Option<Disk>, binds: &[(&Path, &str)]) -> Self {
        assert!(rustix::process::geteuid().is_root(), "systemd-nspawn and debootstrap need root: run this as root");
        let binds: Vec<_> = binds.iter().map(|(from, to)| format!("--bind-ro={}:{to}", from.display())).collect();
        let container = boot(root, disk.as_ref(), &binds);
        let mut machine = Self { container, init: 0, disk, binds, _turn: turn };
        machine.until("the system boots", |machine| machine.has_booted() && machine.state() == "running");
        machine
    }

    /// Cuts the power of a machine with a disk at once, and boots it again from what is on the disk. It may have units that
    /// are still starting, or failed.
    pub fn cut_power(&mut self) {
        let disk_file = self.disk.as_ref().expect("a machine with a disk").file();
        run(interpreter().args(["-c", CUT_POWER, &format!("/proc/{}/root/", self.init)]));
        self.end();
        // The next mount must not see a disk that the last one still has.
        while !run(Command::new(path_of("losetup")).arg("-j").arg(&disk_file)).is_empty() {
            std::thread::sleep(Duration::from_millis(50));
        }
        (self.container, self.init) = (boot(Path::new(""), self.disk.as_ref(), &self.binds), 0);
        self.until("the system boots after a power cut", |machine| {
            machine.has_booted() && ["running", "starting", "degraded"].contains(&machine.state().as_str())
        });
    }

    fn has_booted(&mut self) -> bool {
        self.init = self.find_init().unwrap_or(0);
        self.init > 0
    }

    /// The state of its systemd.
    fn state(&self) -> String {
        self.ask(&["systemctl", "is-system-running"]).trim().to_owned()
    }

    fn end(&mut self) {
        if let Some(init) = i32::try_from(self.init).ok().and_then(rustix::process::Pid::from_raw) {
            // The end of its process 1 is the end of all others in there.
            let _ = rustix::process::kill_process(init, rustix::process::Signal::KILL);
        } else {
            let _ = self.container.kill();
        }
        let _ = self.container.wait();
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
        self.end();
    }
}

impl Disk {
    /// A disk with the files of a folder.
    fn new(files: &Path) -> Self {
        let disk = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::create_dir(disk.folder.path().join("mounted")).unwrap();
        run(Command::new(path_of("mkfs.ext4")).args(["-q", "-d"]).arg(files).arg(disk.file()).arg("6G"));
        disk
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("disk")
    }
}

/// Boots a system: from a folder, above which its files are in memory, or from a disk.
fn boot(root: &Path, disk: Option<&Disk>, binds: &[String]) -> Child {
    let nspawn = path_of("systemd-nspawn");
    let mut command = match disk {
        None => {
            let mut command = Command::new(nspawn);
            command.args(["--volatile=overlay", "-D"]).arg(root);
            command
        }
        Some(disk) => {
            let mut command = Command::new("unshare");
            let inside = r#"mount -o loop "$0" "$1"; shift; exec "$@""#;
            command.args(["--mount", "sh", "-ec", inside]).arg(disk.file());
            let mounted = disk.folder.path().join("mounted");
            command.arg(&mounted).arg(nspawn).arg("-D").arg(&mounted);
            command
        }
    };
    command.args(["--register=no", "--keep-unit", "--private-network", "--boot", "--quiet"]).args(binds);
    // Nothing that would look for a network.
    command.args(["systemd.mask=apt-daily.timer", "systemd.mask=apt-daily-upgrade.timer"]);
    let quiet = || Stdio::null();
    command.stdin(quiet()).stdout(quiet()).stderr(Stdio::inherit()).spawn().unwrap()
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
