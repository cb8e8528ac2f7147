//! A report of the thread that crashes, for the daemon: its job channel or load, and the signal.
//!
//! When memory has run out, the thread that crashes is not the cause: any thread may be the first that does not get a
//! block, and much of the runtimes' code does not expect that. Therefore the report states that memory had run out, and
//! which work held most of it.
use std::cell::Cell;
use std::fs::File;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ledge_base::sys::{self, LargeBlocks};
use rustix::process::Resource;

use crate::shared_memory::SharedMemory;

/// The bytes of the report.
pub const LENGTH: usize = 4096;

/// Places of the words of the report. Those of the heartbeat come behind them.
const SIGNAL: usize = 0;
const WORK: usize = 4;
const JOB: usize = 8;
/// Not 0 when memory had run out.
const IS_OUT_OF_MEMORY: usize = 12;
/// The work that held most of it, and its job.
const USER: usize = 16;
const USER_JOB: usize = 20;
/// The limit of memory, in MiB.
const LIMIT: usize = 24;

/// Memory has run out when no more than a sixteenth of the limit is left, within these two bounds in bytes: a thread
/// that asks for that much at a time finds too little.
const LEFT_SHARE: u64 = 16;
const LEFT_MIN: u64 = 96 << 20;
const LEFT_MAX: u64 = 512 << 20;

const SECOND: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };

/// The most threads with watched memory: more than a child may have.
const THREADS_MAX: usize = 512;

/// The work of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadWork {
    /// None that is known.
    None,
    /// The job of this number in the channel with this index. An earlier job of the channel may be to blame for an end,
    /// and a later one may have been added before the end was known.
    Lane { index: usize, job: u32 },
    /// The load of the model with this number.
    Load(u64),
}

/// A bit that distinguishes a load from a job of a channel.
const IS_LOAD: u32 = 1 << 31;

impl ThreadWork {
    /// The words of the work and of its job.
    fn words(self) -> [u32; 2] {
        let number = |number: u64| u32::try_from(number % u64::from(IS_LOAD - 1)).unwrap_or(0) + 1;
        match self {
            Self::None => [0, 0],
            Self::Lane { index, job } => [number(index as u64), job],
            Self::Load(model) => [number(model) | IS_LOAD, 0],
        }
    }

    fn of([word, job]: [u32; 2]) -> Option<Self> {
        let number = (word & !IS_LOAD).checked_sub(1)?;
        let index = number as usize;
        Some(if word & IS_LOAD == 0 { Self::Lane { index, job } } else { Self::Load(u64::from(number)) })
    }
}

/// The report, where the handler finds it.
static REPORT: OnceLock<SharedMemory> = OnceLock::new();

/// The memory of this process, where the handler finds it.
static MEMORY: OnceLock<ProcessMemory> = OnceLock::new();

/// The threads with watched memory.
static THREADS: [WatchedThread; THREADS_MAX] = [const { WatchedThread::new() }; THREADS_MAX];

thread_local! {
    /// The work of this thread as words of the report; 0: no work. Without a destructor, so that a handler may read it.
    static WORK_HERE: Cell<[u32; 2]> = const { Cell::new([0; 2]) };
    /// The entry of this thread among those with watched memory.
    static WATCHED_HERE: Cell<Option<&'static WatchedThread>> = const { Cell::new(None) };
}

/// Sets the present work of the calling thread.
pub fn works_at(work: ThreadWork) {
    let words = work.words();
    WORK_HERE.set(words);
    if let Some(watched) = WATCHED_HERE.get() {
        watched.work_at(words);
    }
}

/// A thread with watched memory.
struct WatchedThread {
    is_taken: AtomicBool,
    work: [AtomicU32; 2],
    blocks: LargeBlocks,
}

impl WatchedThread {
    const fn new() -> Self {
        let work = [const { AtomicU32::new(0) }; 2];
        Self { is_taken: AtomicBool::new(false), work, blocks: LargeBlocks::new() }
    }

    fn work_at(&self, [work, job]: [u32; 2]) {
        self.blocks.reset();
        let [own_work, own_job] = &self.work;
        own_job.store(job, Ordering::Relaxed);
        own_work.store(work, Ordering::Relaxed);
    }

    fn work(&self) -> [u32; 2] {
        self.work.each_ref().map(|word| word.load(Ordering::Relaxed))
    }
}

/// Prepares the calling thread for its crash, until this is dropped: its signal stack is large enough, and its memory
/// is watched.
pub struct CrashGuard {
    watched: Option<&'static WatchedThread>,
    _stack: Option<sys::SignalStack>,
}

/// Prepares the calling thread for its crash.
pub fn prepare() -> CrashGuard {
    let take = |watched: &&WatchedThread| !watched.is_taken.swap(true, Ordering::AcqRel);
    let watched = THREADS.iter().find(take);
    WATCHED_HERE.set(watched);
    LargeBlocks::count_here(watched.map(|watched| &watched.blocks));
    // Without memory for it the thread keeps the stack that it has.
    CrashGuard { watched, _stack: sys::SignalStack::for_this_thread().ok() }
}

impl Drop for CrashGuard {
    fn drop(&mut self) {
        LargeBlocks::count_here(None);
        WATCHED_HERE.set(None);
        if let Some(watched) = self.watched {
            watched.work_at([0; 2]);
            watched.is_taken.store(false, Ordering::Release);
        }
    }
}

/// The memory of this process.
struct ProcessMemory {
    /// See statm of proc(5).
    statm: File,
    limit_bytes: u64,
    page_bytes: u64,
}

impl ProcessMemory {
    /// The bytes that count against the limit. Runs in a signal handler: it allocates nothing.
    fn used(&self) -> Option<u64> {
        let mut text = [0; 128];
        let length = rustix::io::pread(&self.statm, &mut text, 0).ok()?;
        // The sixth number: data and stacks, in pages.
        let mut numbers = text.get(..length)?.split(|byte| *byte == b' ');
        let pages = numbers.nth(5)?.iter().try_fold(0_u64, |number, digit| {
            let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
            number.checked_mul(10)?.checked_add(u64::from(digit))
        })?;
        pages.checked_mul(self.page_bytes)
    }

    /// True when it has run out.
    fn is_used_up(&self) -> bool {
        let left = (self.limit_bytes / LEFT_SHARE).clamp(LEFT_MIN, LEFT_MAX);
        self.used().is_some_and(|used| used.saturating_add(left) >= self.limit_bytes)
    }

    /// The thread that holds most of it, or asked for it in vain, if it is more than half.
    fn user(&self) -> Option<&'static WatchedThread> {
        let most = THREADS.iter().max_by_key(|watched| watched.blocks.wanted())?;
        (most.blocks.wanted() > self.limit_bytes / 2).then_some(most)
    }
}

/// Opens the file that the handler reads. Call it before the process enters its sandbox, because the file cannot be
/// opened afterwards.
pub fn open_memory() -> std::io::Result<File> {
    File::open("/proc/self/statm")
}

/// Writes each crash of this process into `report`. Call it while the process has one thread, and after it has entered
/// its sandbox, which sets the limit of memory. `statm` is from [`open_memory`].
pub fn report_to(report: SharedMemory, statm: Option<File>) {
    let limit_bytes = rustix::process::getrlimit(Resource::Data).current.unwrap_or(u64::MAX);
    report.word(LIMIT).store(u32::try_from(limit_bytes >> 20).unwrap_or(u32::MAX), Ordering::Relaxed);
    if let Some(statm) = statm {
        let _ = MEMORY.set(ProcessMemory { statm, limit_bytes, page_bytes: rustix::param::page_size() as u64 });
    }
    if REPORT.set(report).is_ok() {
        sys::handle_crashes(handle);
    }
}

/// True when other work than that of the calling thread holds most of the memory.
pub fn others_hold_memory() -> bool {
    MEMORY.get().and_then(ProcessMemory::user).is_some_and(|user| user.work() != WORK_HERE.get())
}

/// The report of this process.
pub fn report() -> Option<&'static SharedMemory> {
    REPORT.get()
}

/// Runs in a signal handler: it reads thread-locals without destructors and a file that is open, and stores to atomic
/// words of a mapping that is never unmapped.
extern "C" fn handle(signal: std::ffi::c_int) {
    if let Some(report) = REPORT.get() {
        let signal = u32::try_from(signal).unwrap_or(u32::MAX);
        // The first crash counts: others may follow from it.
        let first = report.word(SIGNAL).compare_exchange(0, signal, Ordering::AcqRel, Ordering::Relaxed);
        if first.is_ok() {
            if let Some(memory) = MEMORY.get() {
                let user = memory.user();
                let has_failed = WATCHED_HERE.get().into_iter().chain(user).any(|watched| watched.blocks.failed() > 0);
                if has_failed || memory.is_used_up() {
                    let [user, job] = user.map(WatchedThread::work).unwrap_or_default();
                    report.word(USER).store(user, Ordering::Relaxed);
                    report.word(USER_JOB).store(job, Ordering::Relaxed);
                    report.word(IS_OUT_OF_MEMORY).store(1, Ordering::Relaxed);
                }
            }
            let [work, job] = WORK_HERE.get();
            report.word(JOB).store(job, Ordering::Relaxed);
            report.word(WORK).store(work, Ordering::Release);
        } else {
            // Another thread writes the report, and ends the process when it has.
            let _ = rustix::thread::nanosleep(&SECOND);
        }
    }
    sys::end_by(signal);
}

/// The crash of a child, as it reported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrashReport {
    /// The work of the thread that crashed, if the child knew it.
    pub work: Option<ThreadWork>,
    /// Set when memory had run out.
    pub out_of_memory: Option<OutOfMemory>,
    /// The limit of memory.
    pub limit_bytes: u64,
}

/// Memory had run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The work that held most of the memory, if there is one.
    pub user: Option<ThreadWork>,
}

/// Of the daemon, after the end of the child: its crash, if it had one.
pub fn crashed(report: &SharedMemory) -> Option<CrashReport> {
    let word = |place| report.word(place).load(Ordering::Acquire);
    if word(SIGNAL) == 0 {
        return None;
    }
    let limit_bytes = u64::from(word(LIMIT)) << 20;
    let user = ThreadWork::of([word(USER), word(USER_JOB)]);
    let out_of_memory = (word(IS_OUT_OF_MEMORY) != 0).then_some(OutOfMemory { user });
    Some(CrashReport { work: ThreadWork::of([word(WORK), word(JOB)]), out_of_memory, limit_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in the program.
    #[global_allocator]
    static ALLOCATOR: sys::SpareAllocator = sys::SpareAllocator;

    #[test]
    fn the_memory_of_this_process_is_known_and_used_up_only_near_its_limit() {
        let memory = |limit_bytes| ProcessMemory { statm: open_memory().unwrap(), limit_bytes, page_bytes: 4096 };
        let used = memory(0).used().unwrap();
        assert!(used > 0);
        assert!(memory(used + LEFT_MIN / 2).is_used_up());
        assert!(!memory(used * 2 + (4 << 30)).is_used_up());
    }

    #[test]
    fn the_work_that_holds_most_of_the_memory_is_found_whichever_thread_crashes() {
        let memory = ProcessMemory { statm: open_memory().unwrap(), limit_bytes: 1 << 40, page_bytes: 4096 };
        let work = ThreadWork::Lane { index: 3, job: 7 };
        let _prepared = prepare();
        works_at(work);
        assert!(memory.user().is_none());
        // The allocation fails, as that of a call that asks for too much.
        assert!(Vec::<u8>::new().try_reserve_exact(1 << 46).is_err());
        std::thread::scope(|scope| {
            let found = scope.spawn(|| memory.user().map(WatchedThread::work)).join().unwrap();
            assert_eq!(found.and_then(ThreadWork::of), Some(work));
        });
        works_at(ThreadWork::None);
        assert!(memory.user().is_none());
    }

    #[test]
    fn work_is_told_in_two_words() {
        let jobs = [(0, 0), (63, 1), (1, u32::MAX)].map(|(index, job)| ThreadWork::Lane { index, job });
        for work in jobs.into_iter().chain([ThreadWork::Load(0), ThreadWork::Load(123_456)]) {
            assert_eq!(ThreadWork::of(work.words()), Some(work));
        }
        assert_eq!(ThreadWork::of(ThreadWork::None.words()), None);
        assert_eq!(ThreadWork::of([IS_LOAD, 7]), None);
    }
}
