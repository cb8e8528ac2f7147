//! `VirtualMachine`: a Debian with its own kernel and systemd, booted by QEMU: limits and the network filter of the
//! unit need cgroups as on the kernel of a box, which a container may lack. `tests/peers/setup-root` makes its disk.
//!
//! With KVM where this machine has it, emulated elsewhere; so no test that uses it may depend on time.

use std::fs::OpenOptions;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::daemon::setup_root;
use crate::machine::{Booted, own_folders};
use crate::tools::path_of;

/// The longest wait for an answer of the agent before it is asked again, while the system boots.
const AGENT_PATIENCE: Duration = Duration::from_secs(2);

/// The machine to boot.
#[derive(Debug, Clone, Copy)]
pub struct Hardware {
    pub memory_mib: u32,
    pub cores: u32,
    /// Further parameters of the kernel.
    pub kernel: &'static str,
}

impl Default for Hardware {
    fn default() -> Self {
        Self { memory_mib: 1024, cores: 2, kernel: "" }
    }
}

/// A booted system. Its files are as new, and gone with it.
pub struct VirtualMachine {
    qemu: Child,
    agent: Mutex<Agent>,
    /// The console, and the socket of the agent.
    folder: TempDir,
}

impl VirtualMachine {
    /// Boots one with a daemon that is not started yet.
    pub fn boot(hardware: Hardware) -> Self {
        let folders = own_folders();
        let folders: Vec<_> = folders.iter().map(|(from, to)| (from.as_path(), *to)).collect();
        let machine = Self::bare(hardware, &folders);
        machine.install();
        machine
    }

    /// Boots one that has nothing of Ledge; `binds` are folders of this machine and where they are to be seen in there,
    /// to be read.
    pub fn bare(hardware: Hardware, binds: &[(&Path, &str)]) -> Self {
        let Hardware { memory_mib, cores, kernel } = hardware;
        let files = setup_root().join("peers/machine");
        let file = |name: &str| files.join(name).display().to_string();
        assert!(files.join("disk.img").is_file(), "{} is missing: `make setup-root` makes it", files.display());
        let folder = tempfile::tempdir().unwrap();
        let own = |name: &str| folder.path().join(name).display().to_string();

        let mut command = Command::new(path_of("qemu-system-x86_64"));
        // Not all that KVM offers: nested in another machine, QEMU cannot set some of it.
        let (accelerator, cpu, timer) = if has_kvm() {
            ("kvm", "host,arch-capabilities=off", "")
        } else {
            // Emulated on a busy machine the timer is late, for which the kernel would not boot.
            ("tcg,thread=multi", "max", "no_timer_check")
        };
        command.args(["-nodefaults", "-display", "none", "-no-reboot", "-machine", "q35", "-accel", accelerator]);
        command.args(["-cpu", cpu, "-m", &memory_mib.to_string(), "-smp", &cores.to_string()]);
        command.args(["-kernel", &file("vmlinuz"), "-initrd", &file("initrd.img")]);
        command.args(["-append", &format!("root=LABEL=root rw quiet console=ttyS0 {timer} {kernel}")]);
        // Writes go to a private file, which is gone afterwards.
        command.args(["-drive", &format!("file={},if=virtio,format=raw,snapshot=on", file("disk.img"))]);
        command.args(["-serial", &format!("file:{}", own("console")), "-device", "virtio-rng-pci"]);
        command.args(["-chardev", &format!("socket,id=agent,server=on,wait=off,path={}", own("agent"))]);
        command.args(["-device", "virtio-serial", "-device"]);
        command.arg("virtserialport,chardev=agent,name=org.qemu.guest_agent.0");
        for (index, (from, _)) in binds.iter().enumerate() {
            let from = from.display();
            command.arg("-fsdev").arg(format!("local,id=bind{index},path={from},security_model=none,readonly=on"));
            command.args(["-device", &format!("virtio-9p-pci,fsdev=bind{index},mount_tag=bind{index}")]);
        }
        let qemu = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap();

        let machine = Self { qemu, agent: Mutex::default(), folder };
        let mut machine = machine.with_agent();
        machine.until("the system is up", |machine| {
            ["running", "degraded"].contains(&machine.ask(&["systemctl", "is-system-running"]).trim())
        });
        for (index, (_, to)) in binds.iter().enumerate() {
            let options = "trans=virtio,ro,cache=loose,msize=262144";
            machine.shell(&format!("mkdir -p {to} && mount -t 9p -o {options} bind{index} {to}"));
        }
        machine
    }

    /// Waits until the agent in there answers.
    fn with_agent(mut self) -> Self {
        let deadline = Instant::now() + Self::LIMIT;
        let mut attempt = 0;
        loop {
            attempt += 1;
            match Agent::connect(&self.folder.path().join("agent"), attempt) {
                Ok(agent) => {
                    self.agent = Mutex::new(agent);
                    return self;
                }
                Err(error) => {
                    let console = std::fs::read_to_string(self.folder.path().join("console")).unwrap_or_default();
                    let ended = self.qemu.try_wait().unwrap();
                    let is_over = ended.is_some() || Instant::now() > deadline;
                    assert!(!is_over, "the system does not boot ({error}; QEMU: {ended:?}); its console:\n{console}");
                }
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Booted for VirtualMachine {
    /// Emulated, on a busy machine.
    const LIMIT: Duration = Duration::from_mins(10);

    fn output(&self, words: &[&str]) -> Output {
        self.agent.lock().unwrap().run(words).unwrap()
    }
}

impl Drop for VirtualMachine {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// True if this machine runs another system's kernel at full speed. A virtual machine may show the device without the
/// processor's support.
fn has_kvm() -> bool {
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let is_supported = processor.split_whitespace().any(|flag| flag == "vmx" || flag == "svm");
    is_supported && OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok()
}

/// QEMU's guest agent, which runs programs in there. See its protocol, `qga/qapi-schema.json` of QEMU.
#[derive(Default)]
struct Agent(Option<BufReader<UnixStream>>);

impl Agent {
    /// Connects for the `attempt`th time. Answers to earlier ones may come first.
    fn connect(path: &Path, attempt: u32) -> io::Result<Self> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(AGENT_PATIENCE))?;
        let mut agent = Self(Some(BufReader::new(socket)));
        let mut answered = agent.call("guest-sync", &json!({ "id": attempt }))?;
        while answered != attempt {
            answered = agent.answer()?;
        }
        agent.socket()?.get_ref().set_read_timeout(None)?;
        Ok(agent)
    }

    fn socket(&mut self) -> io::Result<&mut BufReader<UnixStream>> {
        self.0.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn call(&mut self, command: &str, arguments: &Value) -> io::Result<Value> {
        let order = json!({ "execute": command, "arguments": arguments });
        writeln!(self.socket()?.get_mut(), "{order}")?;
        self.answer()
    }

    fn answer(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        self.socket()?.read_line(&mut line)?;
        let mut answer: Value = serde_json::from_str(&line)?;
        match answer.get_mut("return") {
            Some(result) => Ok(result.take()),
            None => Err(io::Error::other(line)),
        }
    }

    fn run(&mut self, words: &[&str]) -> io::Result<Output> {
        let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let order = json!({ "path": program, "arg": arguments, "capture-output": true });
        let pid = self.call("guest-exec", &order)?["pid"].take();
        loop {
            let state = self.call("guest-exec-status", &json!({ "pid": pid }))?;
            if state["exited"] == true {
                let printed = |name: &str| BASE64.decode(state[name].as_str().unwrap_or_default()).unwrap();
                let number = |name: &str| state[name].as_i64().and_then(|number| i32::try_from(number).ok());
                // As wait(2) has them: the exit code above the signal.
                let status = number("signal").unwrap_or(number("exitcode").unwrap_or_default() << 8);
                return Ok(Output {
                    status: ExitStatus::from_raw(status),
                    stdout: printed("out-data"),
                    stderr: printed("err-data"),
                });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
