//! The resources that this process uses, and the cores that it may use.

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System};

/// The resources that this process uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProcessUsage {
    /// Resident memory in bytes, shared pages included.
    pub resident_bytes: u64,
    /// CPU time since the start, in seconds.
    pub cpu_seconds: f64,
    pub threads: usize,
    /// The time of its start, in seconds since the Unix epoch.
    pub started_at: u64,
}

/// The current use of this process; `None` if the system does not report it.
pub fn usage() -> Option<ProcessUsage> {
    let pid = sysinfo::get_current_pid().ok()?;
    let mut system = System::new().ok()?;
    let kind = ProcessRefreshKind::nothing().with_memory().with_cpu().with_tasks();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), false, kind);
    let process = system.process(pid)?;
    #[expect(clippy::cast_precision_loss, reason = "exact for 285,000 years of milliseconds")]
    let cpu_seconds = process.accumulated_cpu_time() as f64 / 1e3;
    let threads = process.tasks().map_or(1, std::collections::HashSet::len);
    Some(ProcessUsage { resident_bytes: process.memory(), cpu_seconds, threads, started_at: process.start_time() })
}

/// The CPU time of this process since its start. It costs one system call.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Raises the limit of open files to the hard limit, and returns it. The soft limit is lower by default because of
/// programs that use `select`.
pub fn raise_open_files() -> u64 {
    let most = getrlimit(Resource::Nofile).maximum;
    // If this is refused, the old limit stays.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Limits the memory of this process to seven eighths of `memory` bytes. A call that needs more than the machine has
/// then fails by itself; otherwise the system would kill the process once the memory is touched. The last eighth is for
/// Ledge's own allocations: see [`SpareAllocator`](crate::sys::SpareAllocator).
pub fn bound_memory(memory: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Data);
    let most = (memory / 8 * 7).min(current.unwrap_or(u64::MAX));
    // If this is refused, the old limit stays.
    if setrlimit(Resource::Data, Rlimit { current: Some(most), maximum }).is_ok() {
        let spare = memory.saturating_sub(most).min(most / 7);
        let beyond = most.saturating_add(spare);
        let beyond = Rlimit { current: Some(maximum.map_or(beyond, |maximum| maximum.min(beyond))), maximum };
        crate::sys::SpareAllocator::lend(Rlimit { current: Some(most), maximum }, beyond);
        tracing::debug!(most_mb = most >> 20, "the memory of the runtimes is limited");
    }
}

/// Resident memory of this process in bytes, shared pages included; 0 if the system does not report it.
pub fn resident_bytes() -> u64 {
    resident("self").unwrap_or(0)
}

/// Resident memory of another process; `None` when it has ended.
pub fn resident_bytes_of(pid: u32) -> Option<u64> {
    resident(&pid.to_string())
}

/// The resident memory of another process, now and at most, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidentMemory {
    pub bytes: u64,
    pub peak_bytes: u64,
}

/// Reads the memory of another process. It can do so after the process has made itself unreadable for debuggers, which
/// hides its folder in /proc from a service with `ProtectProc=invisible`.
#[derive(Debug)]
pub struct ProcessMemoryReader {
    /// See `/proc/pid/status` in proc(5).
    status: File,
}

impl ProcessMemoryReader {
    /// Of a process that is readable now.
    pub fn open(pid: u32) -> io::Result<Self> {
        Ok(Self { status: File::open(format!("/proc/{pid}/status"))? })
    }

    /// `None` when the process has ended.
    pub fn read(&self) -> Option<ResidentMemory> {
        let text = text_of(&self.status)?;
        Some(ResidentMemory { bytes: bytes_of_line(&text, "VmRSS:")?, peak_bytes: bytes_of_line(&text, "VmHWM:")? })
    }
}

/// The first bytes of a file: all of a file of `/proc` that is read here. `None` when its process has ended.
pub(super) fn text_of(file: &File) -> Option<String> {
    let mut text = [0; 4096];
    let length = file.read_at(&mut text, 0).ok().filter(|length| *length > 0)?;
    Some(String::from_utf8_lossy(text.get(..length)?).into_owned())
}

/// The figure of the line that begins with `name`, which is in kB, in bytes.
pub fn bytes_of_line(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The time of a number of ticks of the clock of `/proc`.
pub(super) fn time_of(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second().max(1))
}

/// True if a process runs. Its folder in /proc is not used, because `hidepid` may hide it from a service.
pub fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(Errno::SRCH))
}

fn resident(process: &str) -> Option<u64> {
    // statm(5): total and resident pages first.
    let statm = std::fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages.saturating_mul(rustix::param::page_size() as u64))
}

/// The state of a thread of a process, and the CPU time that it has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadActivity {
    /// The letter of proc(5): `R` runs or waits for a core, `S` waits for something else, `T` is stopped.
    pub state: char,
    pub cpu: Duration,
}

/// The activity of a thread of another process, by their numbers; `None` when either has ended, or is hidden.
pub fn thread_activity(pid: u32, thread: u32) -> Option<ThreadActivity> {
    activity_of(&std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).ok()?)
}

fn activity_of(stat: &str) -> Option<ThreadActivity> {
    // stat(5): a name in parentheses, which may hold any character, the state, and the 14th and 15th fields are CPU
    // time.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    let mut ticks = fields.skip(10).map_while(|field| field.parse::<u64>().ok());
    let ticks = ticks.next()?.saturating_add(ticks.next()?);
    Some(ThreadActivity { state, cpu: time_of(ticks) })
}

/// The number of cores that this process may use, by its affinity mask and the cgroup's quota.
pub fn usable_cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_memory_and_a_thread() {
        let usage = usage().unwrap();
        assert!(usage.resident_bytes > 1 << 20 && usage.threads >= 1, "{usage:?}");
        let now = crate::clock::unix_millis() / 1000;
        assert!(usage.started_at > now - 24 * 3600 && usage.started_at <= now + 1, "{usage:?}");
        assert!(usable_cores() >= 1);
        assert!(resident_bytes_of(std::process::id()).is_some_and(|now| now > 1 << 20));
        assert_eq!(resident_bytes_of(u32::MAX), None);
    }

    #[test]
    fn the_memory_of_a_process_is_read_until_its_end() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let memory = ProcessMemoryReader::open(child.id()).unwrap();
        let seen = memory.read().unwrap();
        assert!(seen.bytes > 0 && seen.peak_bytes >= seen.bytes, "{seen:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(memory.read(), None);
        assert!(ProcessMemoryReader::open(u32::MAX).is_err());
    }

    #[test]
    fn the_activity_of_a_thread_is_read_whatever_its_name_is() {
        let pid = std::process::id();
        let own = thread_activity(pid, rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
        assert_eq!(own.state, 'R', "{own:?}");
        assert_eq!((thread_activity(pid, 0), thread_activity(pid, u32::MAX)), (None, None));
        let stat = "7 (a) S 9) R 1 2 3 4 5 6 7 8 9 10 30 12 13 14\n";
        let ticks = rustix::param::clock_ticks_per_second();
        let read = activity_of(stat).unwrap();
        assert_eq!((read.state, read.cpu), ('R', Duration::from_millis(42 * 1000 / ticks)));
        assert_eq!(activity_of("7 (a) S 1 2"), None);
    }

    #[test]
    fn a_process_that_is_gone_is_not_alive() {
        assert!(is_alive(std::process::id()) && is_alive(1) && !is_alive(u32::MAX) && !is_alive(0));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(!is_alive(child.id()));
    }

    #[test]
    fn it_may_open_as_many_files_as_it_ever_may() {
        let most = raise_open_files();
        assert_eq!(most, getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX));
    }
}
