//! Faults on demand, for tests of the daemon's reaction, and attempts of operations that the sandbox denies. Only in
//! builds with the feature `fault-injection`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use ledge_base::sys;
use ledge_engine::backend::ModelPortNames;
use ledge_engine::files::{ExternalDataFile, ModelFileFacts};
use ledge_sandbox::Sandbox;
use ledge_sandbox::probe::{self as sandbox_probe, ProbeTargets};
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::Signal;

use crate::job_channel::{JobChannel, JobChannelError};
use crate::wire::ChildSetup;

/// The bytes at the begin of an input that ask for a fault; the next one says which.
pub const MAGIC: &[u8; 7] = b"!FAULT:";

/// The lines of an attack on the log: half a gigabyte.
const LINES_OF_ATTACK: usize = 1 << 17;

/// A string of a `BYTES` tensor begins with its length.
const LENGTH_BYTES: usize = 4;

/// The objects of the probe, made before the sandbox is entered.
static TARGETS: Mutex<Option<ProbeTargets>> = Mutex::new(None);

/// Prepares the probe of the sandbox.
pub fn before_the_sandbox(setup: &ChildSetup, sandbox: &Sandbox) {
    let Ok(unconnected) = socket(AddressFamily::UNIX, SocketType::STREAM, None) else { return };
    let folder = |folders: &[PathBuf]| folders.first().cloned().unwrap_or_default();
    *TARGETS.lock().unwrap_or_else(PoisonError::into_inner) = Some(ProbeTargets {
        outside: PathBuf::new(),
        readable: folder(&setup.readable),
        writable: folder(&setup.writable),
        unconnected,
        abstract_name: Vec::new(),
        limits: sandbox.limits,
    });
}

/// Attempts operations that the sandbox denies, and prints each result as a line of JSON. `name` is the path of a file
/// outside, and the abstract name of a socket on which a process outside listens.
fn probe(name: &[u8]) {
    let Some(mut targets) = TARGETS.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    targets.outside = PathBuf::from(OsStr::from_bytes(name));
    targets.abstract_name = name.to_vec();
    // Any file of any model.
    let instances = std::fs::read_dir(&targets.readable).into_iter().flatten().flatten();
    let files = instances.filter_map(|instance| std::fs::read_dir(instance.path()).ok()).flatten().flatten();
    targets.readable = files.map(|file| file.path()).find(|path| path.is_file()).unwrap_or_default();
    sandbox_probe::run(&targets, |result| {
        let (attempt, outcome) = (&result.attempt, &result.outcome);
        let line = serde_json::json!({ "message": "probe", "attempt": attempt, "outcome": outcome });
        super::threads::complain(format_args!("{line}"));
    });
    super::threads::complain(format_args!("{}", serde_json::json!({ "message": "probed" })));
}

/// Prints the open files of this process, each as a line of JSON.
fn list_files() {
    for entry in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let (number, target) = (entry.file_name(), std::fs::read_link(entry.path()).unwrap_or_default());
        let line = serde_json::json!({ "message": "file", "number": number.to_string_lossy(), "target": target });
        super::threads::complain(format_args!("{line}"));
    }
    super::threads::complain(format_args!("{}", serde_json::json!({ "message": "files" })));
}

/// Attacks the log as a hostile process would: forges lines, cuts it off, and writes without end.
fn attack_log() {
    let forged = serde_json::json!({ "timestamp": "2026-01-01T00:00:00Z", "level": "ERROR", "message": "forged" });
    super::threads::complain(format_args!("{forged}\r\n\x1b[2J\u{202e}{forged}\n{forged}"));
    let _ = rustix::fs::ftruncate(std::io::stderr(), 0);
    let line = [b"x".repeat(4000), b"\n".to_vec()].concat();
    for _ in 0..LINES_OF_ATTACK {
        // Words without room are lost.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), &line);
    }
}

/// Allocates until memory has run out, in blocks of this size.
fn use_up_memory(block_bytes: usize) -> Vec<Vec<u8>> {
    let mut all = vec![vec![1_u8; block_bytes]];
    loop {
        let mut block = Vec::new();
        if block.try_reserve_exact(block_bytes).is_err() || all.try_reserve(1).is_err() {
            return all;
        }
        if let Some(first) = all.first() {
            block.extend_from_slice(first);
        }
        all.push(block);
    }
}

/// Uses up the memory, and has another thread crash then, as one of a runtime does.
fn crash_elsewhere(block_bytes: usize) {
    let (sender, wait) = std::sync::mpsc::sync_channel::<()>(1);
    let _ = std::thread::Builder::new().spawn(move || {
        let _ = wait.recv();
        sys::raise(libc::SIGSEGV);
    });
    let _all = use_up_memory(block_bytes);
    let _ = sender.send(());
    loop {
        std::thread::park();
    }
}

/// A way to go wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InjectedFault {
    Segv,
    Fpe,
    Abort,
    /// A loop without end.
    Loop,
    /// Allocation without end.
    Memory,
    /// The same in blocks of this many bytes, and then the crash of another thread.
    MemoryElsewhere(usize),
    /// Prints its open files.
    Files,
    /// Attacks the log.
    Log,
    StackOverflow,
    /// Overwrites the shared memory, and then answers.
    Scribble,
    /// Answers with an invalid head.
    Nonsense,
    /// Ends as after a SIGKILL from outside.
    Kill,
    /// Threads without end.
    Threads,
    /// Attempts operations that the sandbox denies, with this name.
    Probe(Vec<u8>),
}

impl InjectedFault {
    /// The fault that an input asks for.
    pub fn wanted<'b>(mut inputs: impl Iterator<Item = &'b Bytes>) -> Option<Self> {
        let (kind, rest) = inputs.find_map(|input| {
            let mut begins = [0, LENGTH_BYTES].into_iter();
            begins.find_map(|begin| input.get(begin..)?.strip_prefix(MAGIC)?.split_first())
        })?;
        Some(match kind {
            b'p' => Self::Probe(rest.iter().copied().take_while(|byte| *byte != 0).collect()),
            b's' => Self::Segv,
            b'f' => Self::Fpe,
            b'a' => Self::Abort,
            b'l' => Self::Loop,
            b'm' => Self::Memory,
            b'e' => Self::MemoryElsewhere(64 << 20),
            // Blocks of a size that is not counted for any thread.
            b'u' => Self::MemoryElsewhere(512 << 10),
            b'd' => Self::Files,
            b'w' => Self::Log,
            b'o' => Self::StackOverflow,
            b'c' => Self::Scribble,
            b'n' => Self::Nonsense,
            b'k' => Self::Kill,
            b't' => Self::Threads,
            _ => return None,
        })
    }

    /// Injects a fault that needs no channel. Returns for those that do.
    fn happen_anywhere(&self) {
        match self {
            Self::Segv => sys::raise(libc::SIGSEGV),
            Self::Fpe => sys::raise(libc::SIGFPE),
            Self::Abort => std::process::abort(),
            Self::Loop => loop {
                std::hint::spin_loop();
            },
            Self::Memory => {
                let mut all = Vec::new();
                loop {
                    all.push(vec![1_u8; 64 << 20]);
                }
            }
            Self::MemoryElsewhere(block_bytes) => crash_elsewhere(*block_bytes),
            Self::StackOverflow => drop(std::hint::black_box(overflow(1))),
            Self::Kill => {
                let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
            }
            Self::Probe(_) | Self::Scribble | Self::Nonsense | Self::Files | Self::Log | Self::Threads => {}
        }
    }

    /// Goes wrong. Returns where that leaves the process alive.
    pub fn happen(self, channel: &JobChannel, number: u32) -> Result<(), JobChannelError> {
        match self {
            Self::Probe(name) => {
                probe(&name);
                return Ok(());
            }
            Self::Threads => {
                start_threads();
                return Ok(());
            }
            Self::Scribble => {
                channel.scribble(0xa5);
                return Ok(());
            }
            Self::Files => {
                list_files();
                return Ok(());
            }
            Self::Log => {
                attack_log();
                return Ok(());
            }
            Self::Nonsense => {
                channel.reply(number, channel.answer(0), &vec![255_u8; 64])?;
            }
            fault => fault.happen_anywhere(),
        }
        // The end is on its way, or the answer is there: this thread is of no use any more.
        loop {
            std::thread::park();
        }
    }
}

/// Goes wrong if the last bytes of a model file ask for that: as an input can, by a panic (`x`), or by facts that are a
/// lie (`n`), which are returned.
///
/// # Panics
/// When the file asks for that.
pub fn read(file: &[u8]) -> Option<ModelFileFacts> {
    let asked = file.get(file.len().checked_sub(MAGIC.len() + 1)?..)?;
    assert!(asked.strip_prefix(MAGIC) != Some(b"x"), "as the file asks for");
    match InjectedFault::wanted([&Bytes::copy_from_slice(asked)].into_iter())? {
        InjectedFault::Nonsense => {
            let port_names = Some(ModelPortNames { inputs: Vec::new(), outputs: Vec::new() });
            let external = vec![ExternalDataFile { path: "../outside.bin".into(), bytes: 1 }];
            Some(ModelFileFacts { external, port_names, ..ModelFileFacts::default() })
        }
        fault => {
            fault.happen_anywhere();
            None
        }
    }
}

/// Starts threads that stay, until the system allows no more of them, and prints their number as a line of JSON.
fn start_threads() {
    let wait = || loop {
        std::thread::park();
    };
    let mut count = 0;
    let reason = loop {
        match std::thread::Builder::new().stack_size(64 << 10).spawn(wait) {
            Ok(_) => count += 1,
            Err(error) => break error.to_string(),
        }
    };
    eprintln!("{}", serde_json::json!({ "message": "threads", "count": count, "reason": reason }));
}

#[expect(unconditional_recursion, reason = "that is the fault")]
fn overflow(depth: usize) -> [usize; 1024] {
    let frame = std::hint::black_box([depth; 1024]);
    let [deeper, ..] = overflow(depth + 1);
    std::hint::black_box(frame.map(|word| word + deeper))
}
