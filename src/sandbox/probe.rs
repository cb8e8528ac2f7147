//! Attempts of operations that the sandbox denies, for tests. Each really tries, and reports whether it succeeded.
//!
//! Only through safe functions, so `ptrace`, `process_vm_readv` and `kcmp` are not among them: the tests of
//! `system_calls.rs` run the filter on those. Opening `/proc/<parent>/mem` is the same access in another way.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::{fmt, thread};

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket, socketpair};
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, Resource, Rlimit, Signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use serde::{Deserialize, Serialize};

use crate::SandboxLimits;

/// The largest number of programs that the probe tries to start at once.
const PROGRAMS_MAX: usize = 64;

/// Threads that the probe starts beyond the limit at most.
const THREADS_BEYOND: u64 = 16;

/// The largest limit of threads that the probe tries out, where it is another than the one that was asked for.
const THREADS_TRIED_MAX: u64 = 4096;

/// The objects of the attempts. The process that started this one is another.
#[derive(Debug)]
pub struct ProbeTargets {
    /// A file outside, which this user may read and write, in a folder that it may write to.
    pub outside: PathBuf,
    /// A file in a folder that the sandbox allows to read.
    pub readable: PathBuf,
    /// A folder that the sandbox allows to write to.
    pub writable: PathBuf,
    /// A Unix socket without a peer, made before the sandbox is entered.
    pub unconnected: OwnedFd,
    /// The abstract name on which a process outside listens.
    pub abstract_name: Vec<u8>,
    pub limits: SandboxLimits,
}

/// The end of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeOutcome {
    Allowed,
    Denied(String),
    /// It failed, but perhaps not because it was denied.
    Failed(String),
}

/// One attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeResult {
    pub attempt: String,
    pub outcome: ProbeOutcome,
}

impl fmt::Display for ProbeResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            ProbeOutcome::Allowed => write!(f, "{}: ALLOWED", self.attempt),
            ProbeOutcome::Denied(error) => write!(f, "{}: denied: {error}", self.attempt),
            ProbeOutcome::Failed(error) => write!(f, "{}: failed: {error}", self.attempt),
        }
    }
}

/// Attempts everything. In a process without a sandbox, the last attempt replaces this program, so each result is
/// passed to `tell` at once.
pub fn run(targets: &ProbeTargets, mut tell: impl FnMut(ProbeResult)) {
    let mut probe = SandboxProbe { tell: &mut tell };
    probe.files(targets);
    probe.connections(targets);
    probe.processes();
    probe.privileges();
    probe.resources(targets.limits);
    probe.programs();
}

/// Writes a file that is one byte larger than allowed. A process that does not ignore SIGXFSZ ends by it.
pub fn write_beyond_limit(folder: &Path, file_bytes: u64) -> io::Result<()> {
    let mut file = File::create(folder.join("large"))?;
    file.set_len(file_bytes)?;
    io::Seek::seek(&mut file, io::SeekFrom::End(0))?;
    file.write_all(b"x")
}

struct SandboxProbe<'t> {
    tell: &'t mut dyn FnMut(ProbeResult),
}

impl SandboxProbe<'_> {
    fn attempt<T, E: Into<io::Error>>(&mut self, name: impl Into<String>, result: Result<T, E>) {
        self.attempt_unless(&[io::ErrorKind::PermissionDenied], name, result);
    }

    /// Notes an attempt that is denied with one of these errors.
    fn attempt_unless<T, E: Into<io::Error>>(
        &mut self,
        denials: &[io::ErrorKind],
        name: impl Into<String>,
        result: Result<T, E>,
    ) {
        let outcome = match result.map_err(Into::into) {
            Ok(_) => ProbeOutcome::Allowed,
            Err(error) if denials.contains(&error.kind()) => ProbeOutcome::Denied(error.to_string()),
            Err(error) => ProbeOutcome::Failed(error.to_string()),
        };
        (self.tell)(ProbeResult { attempt: name.into(), outcome });
    }

    fn files(&mut self, targets: &ProbeTargets) {
        let ProbeTargets { outside, readable, writable, .. } = targets;
        let (outside_folder, readable_folder) = (folder_of(outside), folder_of(readable));
        let write = |path: &Path| OpenOptions::new().write(true).open(path);

        self.attempt("read a file outside", File::open(outside));
        self.attempt("write a file outside", write(outside));
        self.attempt("truncate a file outside", OpenOptions::new().write(true).truncate(true).open(outside));
        // Neither to read nor to write: see `OPEN_FLAGS`.
        let truncate = |path: &Path, access| rustix::fs::open(path, access | OFlags::TRUNC, Mode::empty());
        self.attempt("truncate a file outside without access", truncate(outside, OFlags::from_bits_retain(3)));
        self.attempt("truncate a file to read", truncate(readable, OFlags::RDONLY));
        self.attempt("create a file outside", File::create(outside_folder.join("created")));
        self.attempt("list a folder outside", std::fs::read_dir(outside_folder));
        self.attempt("list /", std::fs::read_dir("/"));
        self.attempt("read /etc/passwd", File::open("/etc/passwd"));
        self.attempt("open /dev/null", File::open("/dev/null"));
        self.attempt("write a file to read", write(readable));
        self.attempt("create a file in a folder to read", File::create(readable_folder.join("created")));
        self.attempt("remove a file to read", std::fs::remove_file(readable));
        self.attempt("link to a file outside", symlink(outside, writable.join("link")));
        self.attempt("link a file outside", std::fs::hard_link(outside, writable.join("hard")));
        self.attempt("change the mode of a file to read", changed_mode(readable));
        self.attempt("write its own memory as a file", write(Path::new("/proc/self/mem")));
        self.attempt("make shared memory", rustix::fs::memfd_create("probe", MemfdFlags::CLOEXEC));
    }

    fn connections(&mut self, targets: &ProbeTargets) {
        for (name, family) in
            [("IPv4", AddressFamily::INET), ("IPv6", AddressFamily::INET6), ("Unix", AddressFamily::UNIX)]
        {
            self.attempt(format!("make a socket: {name}"), socket(family, SocketType::STREAM, None));
        }
        for (name, family) in [("netlink", AddressFamily::NETLINK), ("packet", AddressFamily::PACKET)] {
            self.attempt(format!("make a socket: {name}"), socket(family, SocketType::RAW, None));
        }
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        self.attempt("make a pair of sockets", pair);

        let address = SocketAddrUnix::new_abstract_name(&targets.abstract_name);
        self.attempt(
            "connect to an abstract socket",
            address.and_then(|name| rustix::net::connect(&targets.unconnected, &name)),
        );
        let address = SocketAddrUnix::new_abstract_name(format!("probe {}", std::process::id()).as_bytes());
        self.attempt("bind a socket", address.and_then(|name| bind(&targets.unconnected, &name)));
    }

    fn processes(&mut self) {
        let Some(parent) = rustix::process::getppid() else { return };
        let folder = PathBuf::from(format!("/proc/{parent}"));
        for name in ["mem", "environ", "maps", "cmdline", "status", "auxv"] {
            self.attempt(format!("read {name} of its parent"), File::open(folder.join(name)));
        }
        for name in ["fd", "task", "root"] {
            self.attempt(format!("list {name} of its parent"), std::fs::read_dir(folder.join(name)));
        }
        self.attempt("find the program of its parent", std::fs::read_link(folder.join("exe")));
        self.attempt("list processes", std::fs::read_dir("/proc"));

        self.attempt("ask if its parent runs", rustix::process::test_kill_process(parent));
        self.attempt("signal its parent", rustix::process::kill_process(parent, Signal::CONT));
        self.attempt("signal process 1", rustix::process::kill_process(Pid::INIT, Signal::CONT));
        self.attempt("open its parent", rustix::process::pidfd_open(parent, PidfdFlags::empty()));
        let cores = rustix::thread::sched_getaffinity(Some(parent));
        let pinned = cores.and_then(|cores| rustix::thread::sched_setaffinity(Some(parent), &cores));
        self.attempt("pin its parent", pinned);
        self.attempt("change the priority of its parent", rustix::process::setpriority_process(Some(parent), 0));
    }

    fn privileges(&mut self) {
        let own = File::open("/proc/self/ns/uts").and_then(|own| {
            Ok(rustix::thread::move_into_link_name_space(
                own.as_fd(),
                Some(LinkNameSpaceType::HostNameAndNISDomainName),
            )?)
        });
        self.attempt("enter a namespace", own);
        #[expect(deprecated, reason = "the safe form; file descriptors stay shared")]
        let unshare = rustix::thread::unshare;
        self.attempt("make a user namespace", unshare(UnshareFlags::NEWUSER));
        self.attempt("make a mount namespace", unshare(UnshareFlags::NEWNS));
        self.attempt("change a mount", mount_change("/proc/self", MountPropagationFlags::PRIVATE));
        self.attempt("be dumped", rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable));
    }

    fn resources(&mut self, limits: SandboxLimits) {
        for (name, resource) in
            [("memory", Resource::Data), ("file size", Resource::Fsize), ("core files", Resource::Core)]
        {
            let unlimited = Rlimit { current: None, maximum: None };
            self.attempt(format!("raise its limit of {name}"), rustix::process::setrlimit(resource, unlimited));
        }

        let bytes = usize::try_from(limits.data_bytes).unwrap_or(usize::MAX);
        let mut memory: Vec<u8> = Vec::new();
        let reserved = memory.try_reserve_exact(bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory));
        self.attempt_unless(&[io::ErrorKind::OutOfMemory], "reserve all its memory at once", reserved);
        drop(memory);

        self.attempt_unless(&[io::ErrorKind::Other], "open more files than allowed", open_files(limits.open_files));
        // Without a user namespace it is another one, of all processes of this user.
        let own = rustix::process::getrlimit(Resource::Nproc).current.filter(|own| *own <= THREADS_TRIED_MAX);
        let started = start_threads(own.unwrap_or_default().max(limits.threads));
        self.attempt_unless(&[io::ErrorKind::WouldBlock], "start more threads than allowed", started);
    }

    fn programs(&mut self) {
        let (mut started, mut last) = (Vec::new(), None);
        for _ in 0..PROGRAMS_MAX {
            match Command::new("/bin/true").stdin(Stdio::null()).spawn() {
                Ok(child) => started.push(child),
                Err(error) => last = Some(error),
            }
        }
        let result = match last {
            Some(error) if started.is_empty() => Err(error),
            _ => Ok(()),
        };
        for mut child in started {
            drop(child.wait());
        }
        self.attempt(format!("start {PROGRAMS_MAX} programs"), result);

        // Where it is allowed, this is the end of this program.
        let error = Command::new("/bin/true").exec();
        self.attempt("become another program", Err::<(), _>(error));
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

/// Makes a file executable, and looks if it is: a filter may report success without doing it.
fn changed_mode(path: &Path) -> io::Result<()> {
    let before = path.metadata()?.permissions();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(before.mode() | 0o111))?;
    if path.metadata()?.permissions() == before { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
}

/// Opens one file more than `most` at a time. The error of the limit has no separate kind.
fn open_files(most: u64) -> io::Result<()> {
    let open = |_| File::open("/proc/self/stat").map_err(|error| io::Error::other(error.to_string()));
    (0..=most).map(open).collect::<io::Result<Vec<_>>>().map(drop)
}

/// Starts more threads than `most`, which run until all are started.
fn start_threads(most: u64) -> io::Result<()> {
    let gate = Arc::new(Mutex::new(()));
    let held = gate.lock();
    let mut threads = Vec::new();
    let mut result = Ok(());
    for _ in 0..most + THREADS_BEYOND {
        let gate = Arc::clone(&gate);
        match thread::Builder::new().stack_size(64 << 10).spawn(move || drop(gate.lock())) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    drop(held);
    for thread in threads {
        drop(thread.join());
    }
    result
}
