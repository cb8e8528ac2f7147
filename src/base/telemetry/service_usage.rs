//! The resources of the whole service: this process and those that it started, such as the fork server, the processes
//! of models, trials of releases and the process that draws pages.
//!
//! Memory is the proportional set size: a page that several of these processes share counts once. The kernel walks
//! through all page tables to compute it, some 30 ms for a gigabyte. So it is read once a minute, and when the resident
//! memory has changed; in between, the shared part of the resident memory counts as unchanged. CPU time includes that
//! of processes that have ended, once their parent has waited for them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::process::{self, text_of};
use crate::sys;

/// The time for which the shared part of a process's memory counts as unchanged.
const WALK_INTERVAL: Duration = Duration::from_mins(1);

/// The part of its resident memory by which a process may change within that time.
const WALK_CHANGE_PARTS: u64 = 64;

/// The resources that this process and its counted processes use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServiceUsage {
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// CPU time since the start.
    pub cpu: Duration,
    pub processes: u64,
    pub threads: u64,
}

/// The open files in `/proc` of one process. They can still be read after the process has entered its sandbox, which
/// hides its folder from a service with `ProtectProc=invisible`.
#[derive(Debug)]
pub struct ProcessFiles {
    /// See `/proc/pid/stat` in proc(5).
    stat: File,
    /// `/proc/pid/smaps_rollup`, or `/proc/pid/status` if the kernel does not have that.
    memory: File,
    walked: Mutex<Option<MemoryWalk>>,
}

/// The memory of a process when its page tables were last walked through, in bytes.
#[derive(Debug, Clone, Copy)]
struct MemoryWalk {
    at: Instant,
    resident: u64,
    /// The part of it that counts for other processes.
    shared: u64,
}

/// Figures of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessFigures {
    /// Its CPU time, in ticks of the kernel.
    own: Duration,
    /// CPU time of its children that have ended and were waited for, including that of their own ended children.
    waited: Duration,
    threads: u64,
    /// Resident memory with shared pages, in bytes.
    resident: u64,
}

impl ProcessFiles {
    /// Of a process that is readable now.
    pub fn open(pid: u32) -> io::Result<Self> {
        Self::open_in(&format!("/proc/{pid}"))
    }

    fn open_in(folder: &str) -> io::Result<Self> {
        let memory = File::open(format!("{folder}/smaps_rollup"));
        let memory = memory.or_else(|_| File::open(format!("{folder}/status")))?;
        Ok(Self::inherited(File::open(format!("{folder}/stat"))?, memory))
    }

    /// Files that an earlier program of this process opened.
    pub fn inherited(stat: File, memory: File) -> Self {
        Self { stat, memory, walked: Mutex::default() }
    }

    /// The file of CPU times, and that of memory.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.stat.as_fd(), self.memory.as_fd()]
    }

    /// `None` when the process has ended and was waited for.
    fn figures(&self) -> Option<ProcessFigures> {
        figures_of(&text_of(&self.stat)?)
    }

    fn walked(&self) -> MutexGuard<'_, Option<MemoryWalk>> {
        // Nothing panics under this lock.
        self.walked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True while the shared part that the last walk found still holds for this resident memory.
    fn is_walked(&self, resident: u64, now: Instant) -> bool {
        self.walked().is_some_and(|walk| {
            let is_like = walk.resident.abs_diff(resident) <= walk.resident / WALK_CHANGE_PARTS;
            is_like && now.saturating_duration_since(walk.at) < WALK_INTERVAL
        })
    }

    /// Memory in bytes of a process with this much resident memory, from a new walk or from the last one.
    fn memory_bytes(&self, resident: u64, now: Instant, walks: bool) -> u64 {
        let mut walked = self.walked();
        let walk = walked.filter(|_| !walks).unwrap_or_else(|| {
            let proportional = text_of(&self.memory).and_then(|text| memory_of(&text));
            MemoryWalk { at: now, resident, shared: resident.saturating_sub(proportional.unwrap_or(resident)) }
        });
        *walked = Some(walk);
        resident.saturating_sub(walk.shared)
    }
}

fn figures_of(stat: &str) -> Option<ProcessFigures> {
    // The name may contain any character. The first field after it is the third of proc(5), the state.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let time = |user: usize, system: usize| Some(process::time_of(field(user)?.saturating_add(field(system)?)));
    let resident = field(24)?.saturating_mul(rustix::param::page_size() as u64);
    Some(ProcessFigures { own: time(14, 15)?, waited: time(16, 17)?, threads: field(20)?, resident })
}

fn memory_of(text: &str) -> Option<u64> {
    process::bytes_of_line(text, "Pss:").or_else(|| process::bytes_of_line(text, "VmRSS:"))
}

/// A process that counts in [`usage`] until this is dropped.
#[derive(Debug)]
pub struct CountedProcess {
    number: u64,
    entry: Arc<ProcessEntry>,
}

#[derive(Debug)]
struct ProcessEntry {
    pid: u32,
    /// `None` when they could not be opened: the process had ended, or is hidden.
    files: Option<ProcessFiles>,
}

/// The counted processes in the order in which they began to count: the parent of others before those.
static COUNTED: Mutex<BTreeMap<u64, Arc<ProcessEntry>>> = Mutex::new(BTreeMap::new());

fn counted() -> MutexGuard<'static, BTreeMap<u64, Arc<ProcessEntry>>> {
    // Nothing panics under this lock.
    COUNTED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CountedProcess {
    /// Counts a process that was just started.
    pub fn new(pid: u32) -> Self {
        Self::with_files(pid, ProcessFiles::open(pid).ok())
    }

    /// As [`Self::new`], with files that were opened before the process entered its sandbox.
    pub fn with_files(pid: u32, files: Option<ProcessFiles>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (number, entry) = (NEXT.fetch_add(1, Ordering::Relaxed), Arc::new(ProcessEntry { pid, files }));
        counted().insert(number, entry.clone());
        Self { number, entry }
    }

    /// Its open files.
    pub fn files(&self) -> Option<&ProcessFiles> {
        self.entry.files.as_ref()
    }
}

impl Drop for CountedProcess {
    fn drop(&mut self) {
        counted().remove(&self.number);
    }
}

/// The CPU time of this process and of all that it started. `None` while one of them cannot be read: a part of the
/// whole would look like the whole.
pub fn cpu_time() -> Option<Duration> {
    Some(sum(own()?, &entries(), None)?.cpu)
}

/// The resources of this process and of all that it started; `None` as for [`cpu_time`]. It may take some milliseconds.
pub fn usage() -> Option<ServiceUsage> {
    sum(own()?, &entries(), Some(Instant::now()))
}

fn own() -> Option<&'static ProcessFiles> {
    static OWN: OnceLock<Option<ProcessFiles>> = OnceLock::new();
    OWN.get_or_init(|| ProcessFiles::open_in("/proc/self").ok()).as_ref()
}

fn entries() -> Vec<Arc<ProcessEntry>> {
    counted().values().cloned().collect()
}

/// Adds up the processes; their memory at `now`, and none without it.
fn sum(own: &ProcessFiles, entries: &[Arc<ProcessEntry>], now: Option<Instant>) -> Option<ServiceUsage> {
    /// The highest CPU time that was reported so far, in nanoseconds.
    static TOLD: AtomicU64 = AtomicU64::new(0);

    // Parents come first. A child that ends meanwhile is missing once, because its parent was read before; it is never
    // counted twice.
    let ProcessFigures { waited, threads, resident, .. } = own.figures()?;
    let mut residents = vec![(own, resident)];
    let mut whole = ServiceUsage { memory_bytes: 0, cpu: process::cpu_time() + waited, processes: 1, threads };
    for ProcessEntry { pid, files } in entries.iter().map(|entry| &**entry) {
        let Some(files) = files else {
            if process::is_alive(*pid) {
                return None;
            }
            continue;
        };
        let Some(figures) = files.figures() else { continue };
        // The clock of the process is finer than ticks.
        let own = sys::process_cpu_time(*pid).unwrap_or(figures.own);
        whole.cpu += own + figures.waited;
        residents.push((files, figures.resident));
        whole.processes += 1;
        whole.threads += figures.threads;
    }

    if let Some(now) = now {
        whole.memory_bytes = memory_of_all(&residents, now);
    }

    // A counter that falls would look like a restart.
    let now = u64::try_from(whole.cpu.as_nanos()).unwrap_or(u64::MAX);
    whole.cpu = Duration::from_nanos(TOLD.fetch_max(now, Ordering::Relaxed).max(now));
    Some(whole)
}

/// The memory of processes, each with its resident memory. The shared part of one process changes with the others, so
/// all are walked through when one has changed, or when their number has.
fn memory_of_all(residents: &[(&ProcessFiles, u64)], now: Instant) -> u64 {
    static WALKED: AtomicUsize = AtomicUsize::new(0);
    let is_same_number = WALKED.swap(residents.len(), Ordering::Relaxed) == residents.len();
    let walks = !is_same_number || !residents.iter().all(|(files, resident)| files.is_walked(*resident, now));
    residents.iter().map(|(files, resident)| files.memory_bytes(*resident, now, walks)).sum()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A child that waits for the end of its standard input.
    fn waiting() -> std::process::Child {
        Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap()
    }

    #[test]
    fn a_started_process_counts_while_it_is_counted() {
        let mut child = waiting();
        let counted = CountedProcess::new(child.id());
        let (own, entries, now) = (own().unwrap(), [counted.entry.clone()], Some(Instant::now()));
        let (alone, both) = (sum(own, &[], now).unwrap(), sum(own, &entries, now).unwrap());
        assert_eq!((alone.processes, both.processes), (1, 2));
        assert!(both.threads > alone.threads, "{alone:?} {both:?}");
        assert!(both.memory_bytes > alone.memory_bytes, "{alone:?} {both:?}");

        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(sum(own, &entries, now).unwrap().processes, 1);
        let number = counted.number;
        assert!(super::counted().contains_key(&number));
        drop(counted);
        assert!(!super::counted().contains_key(&number));
    }

    #[test]
    fn a_process_that_cannot_be_read_leaves_the_whole_unknown() {
        let mut child = waiting();
        let hidden = [Arc::new(ProcessEntry { pid: child.id(), files: None })];
        assert_eq!(sum(own().unwrap(), &hidden, None), None);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(sum(own().unwrap(), &hidden, None).is_some());
    }

    #[test]
    fn the_shared_part_of_memory_is_looked_at_once_a_minute_and_after_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let write = |pss: u64| {
            crate::durable::replace(&folder.path().join("smaps_rollup"), format!("Pss: {pss} kB\n").as_bytes())
                .unwrap();
            crate::durable::replace(&folder.path().join("stat"), b"").unwrap();
            ProcessFiles::open_in(folder.path().to_str().unwrap()).unwrap()
        };
        let (files, start) = (write(60 << 10), Instant::now());
        let mib = |files: &ProcessFiles, resident: u64, seconds| {
            memory_of_all(&[(files, resident << 20)], start + Duration::from_secs(seconds)) >> 20
        };
        assert_eq!(mib(&files, 100, 0), 60);
        // The file is the same; only a walk reads it.
        assert_eq!((mib(&files, 101, 59), mib(&files, 99, 59)), (61, 59));
        assert_eq!((mib(&files, 101, 60), mib(&files, 200, 61)), (60, 60));
        let without = ProcessFiles { memory: files.stat.try_clone().unwrap(), ..write(1) };
        assert_eq!(mib(&without, 100, 0), 100, "without the file all of it counts");
    }

    #[test]
    fn cpu_time_of_a_process_that_has_ended_stays() {
        let before = cpu_time().unwrap();
        let script = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        assert!(Command::new("sh").args(["-c", script]).status().unwrap().success());
        let after = cpu_time().unwrap();
        assert!(after > before + Duration::from_millis(10), "{before:?} {after:?}");
    }

    #[test]
    fn fields_are_found_whatever_the_name_is() {
        let stat = "7 (a) S 9) R 1 2 3 4 5 6 7 8 9 10 30 12 400 50 20 0 21 0 1 9 3\n";
        let tick = Duration::from_secs(1) / u32::try_from(rustix::param::clock_ticks_per_second()).unwrap();
        let resident = 3 * rustix::param::page_size() as u64;
        let expected = ProcessFigures { own: 42 * tick, waited: 450 * tick, threads: 21, resident };
        assert_eq!(figures_of(stat), Some(expected));
        assert_eq!(figures_of("7 (a) S 1 2"), None);
        assert_eq!(
            memory_of("00400000-7fff [rollup]\nRss:  9 kB\nPss:       512 kB\nPss_Dirty:  8 kB\n"),
            Some(512 << 10)
        );
        assert_eq!(memory_of("VmHWM:\t 9 kB\nVmRSS:\t     300 kB\n"), Some(300 << 10));
        assert_eq!(memory_of(""), None);
    }
}
