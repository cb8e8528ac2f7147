//! A second process of this program, for work that may crash or ask for too much. It limits itself before it reads
//! anything foreign, inherits no setting and no secret, and ends with the process that started it.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use ledge_base::sys::NO_TELEMETRY_VARIABLE;
use rustix::process::{Resource, Rlimit, Signal};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

use crate::child_errors::ChildStderr;

/// This program. Through the kernel: the file may have been replaced since it was started.
pub const THIS_PROGRAM: &str = "/proc/self/exe";

/// Largest file that the process may write, in bytes: it has no reason to write at all.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// Most characters shown of the last line of its standard error.
const COMPLAINT_CHARS: usize = 300;

/// Environment variables that it inherits: those by which libraries are found.
const INHERITED_VARIABLES: [&str; 2] = ["LD_LIBRARY_PATH", "PATH"];

/// The niceness of a trial of something new. It gets a tenth of the CPU time of a thread that answers requests, where
/// both want the same core.
pub const TRIAL_NICENESS: i32 = 10;

/// The score of a trial, and of other processes that may end without harm, by which the kernel chooses the process to
/// end when memory is short: see [`go_first_without_memory`].
pub const FIRST_WITHOUT_MEMORY: u16 = 1000;

/// The limits of the process.
#[derive(Debug, Clone, Copy)]
pub struct ProcessLimits {
    /// Memory that it may reserve, in bytes. Reserved memory is more than resident memory.
    pub data_bytes: u64,
    /// CPU time of all its threads, in seconds.
    pub cpu_seconds: u64,
    /// Its niceness. With 5 it gets a third of the CPU time of a thread that answers requests, where both want the same
    /// core; see [`TRIAL_NICENESS`] for 10.
    pub niceness: i32,
}

/// Starts `program` with this verb, from outside, as a process of the kind `name`. Its standard input and output are
/// pipes. Its errors are logged; the receiver gets the last lines of them at its end. It is killed when the handle is
/// dropped.
pub fn start(program: &Path, verb: &[&str], name: &'static str) -> std::io::Result<(Child, oneshot::Receiver<String>)> {
    let (reader, errors) = ChildStderr::pipe()?;
    let mut command = Command::new(program);
    command.args(verb).env_clear().envs(environment());
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors).kill_on_drop(true).spawn()?;
    let (sender, last_lines) = oneshot::channel();
    reader.pass_on(name, child.id().unwrap_or_default(), move |lines| drop(sender.send(lines)))?;
    Ok((child, last_lines))
}

/// Turns off the cache of oneDNN, which OpenVINO uses, in addition to OpenVINO's own: it kept 20 MiB of unloaded
/// models, and saved no measurable time.
const NO_PRIMITIVE_CACHE: (&str, &str) = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "0");

/// The variables of a process of this program that others start: no setting and no secret.
pub fn environment() -> impl Iterator<Item = (&'static str, OsString)> {
    let inherited = INHERITED_VARIABLES.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let own = [(NO_TELEMETRY_VARIABLE, "1"), NO_PRIMITIVE_CACHE];
    inherited.chain(own.map(|(name, value)| (name, value.into())))
}

/// Limits this process, from inside. To be called while there is one thread.
pub fn limit_this_process(limits: ProcessLimits) -> rustix::io::Result<()> {
    let set = |resource, most: u64| {
        let hard = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let most = most.min(hard);
        // The hard limit of CPU time is one more, or SIGKILL would come before SIGXCPU.
        let above = most.saturating_add(1).min(hard);
        rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(above) })
    };
    // No core file: it would contain the data that the process reads, and could fill the disk.
    set(Resource::Core, 0)?;
    set(Resource::Fsize, FILE_MAX_BYTES)?;
    set(Resource::Data, limits.data_bytes)?;
    set(Resource::Cpu, limits.cpu_seconds)?;
    // A signal to the daemon's group, such as Ctrl-C, must reach only the daemon, which ends this process by closing
    // its input. Not `setsid`: the kernel may divide the CPU by sessions first, and niceness counts only within one.
    rustix::process::setpgid(None, None)?;
    rustix::process::nice(limits.niceness)?;
    go_first_without_memory(FIRST_WITHOUT_MEMORY);
    Ok(())
}

/// Makes the kernel end this process before others when the machine runs out of memory: before those with a lower
/// `score`, which is `oom_score_adj` of proc(5), at most 1000.
pub fn go_first_without_memory(score: u16) {
    let file = std::fs::OpenOptions::new().write(true).open("/proc/self/oom_score_adj");
    // Where the file is not there, the kernel takes the largest process.
    let _ = file.and_then(|mut file| file.write_all(score.to_string().as_bytes()));
}

/// Ends this process when its input ends: its parent keeps the other end open while it wants the result.
pub fn end_with(mut input: impl Read + Send + 'static) {
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut input, &mut std::io::sink());
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
    });
}

/// The signal that ended the process; `None` when it ended by itself.
pub fn signal(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

/// The name of a signal, with its meaning.
pub fn signal_name(number: i32) -> String {
    let name = match Signal::from_named_raw(number) {
        Some(Signal::SEGV) => "SIGSEGV (segmentation fault)",
        Some(Signal::ABORT) => "SIGABRT (aborted)",
        Some(Signal::BUS) => "SIGBUS (bus error)",
        Some(Signal::FPE) => "SIGFPE (arithmetic error)",
        Some(Signal::ILL) => "SIGILL (illegal instruction)",
        Some(Signal::SYS) => "SIGSYS (forbidden system call)",
        Some(Signal::XFSZ) => "SIGXFSZ (file too large)",
        _ => return format!("signal {number}"),
    };
    name.to_owned()
}

/// The last line of its standard error, shortened and without control characters.
pub fn complaint(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    last.chars().map(|c| if c.is_control() { ' ' } else { c }).take(COMPLAINT_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_one_short_line_without_control_characters() {
        assert_eq!(complaint(b"first\n\x1b[31mlast\x07\n  \n"), " [31mlast ");
        assert_eq!(complaint("é".repeat(1000).as_bytes()).chars().count(), COMPLAINT_CHARS);
        assert_eq!(complaint(b""), "");
    }

    #[tokio::test]
    async fn a_process_inherits_no_variable_but_those_of_libraries() {
        let (child, _) = start(Path::new("/usr/bin/env"), &[], "env").unwrap();
        let output = String::from_utf8(child.wait_with_output().await.unwrap().stdout).unwrap();
        let names: Vec<_> = output.lines().filter_map(|line| line.split('=').next()).collect();
        assert!(names.contains(&"PATH") && names.contains(&NO_TELEMETRY_VARIABLE), "{names:?}");
        assert!(names.len() <= 4, "{names:?}");
    }
}
