//! What the system offers and no safe crate wraps. The only unsafe code besides `engine/foreign.rs`.
#![expect(unsafe_code, reason = "the one place for it; each block says why it is sound")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, setrlimit};

/// What ONNX Runtime looks for before it sends telemetry.
pub const NO_TELEMETRY: &str = "ORT_DISABLE_TELEMETRY";

/// Keeps ONNX Runtime from telling its maker about this box. From 1.31 on its Linux library looks up
/// `mobile.events.data.microsoft.com` seconds after it is loaded, and its own switch (`DisableTelemetryEvents`) comes too
/// late. To be called before any thread is started; `onnxruntime.rs` refuses to load the library without it.
#[expect(clippy::disallowed_methods, reason = "the library reads the environment, and there is one thread yet")]
pub fn switch_runtime_telemetry_off() {
    // SAFETY: set_var(3) must not run while another thread reads the environment; main calls this before it does anything
    // else, so there is no other thread.
    unsafe { std::env::set_var(NO_TELEMETRY, "1") };
}

/// Takes over the listening socket of this number, which the program before left open in this process for this one; `None`
/// when there is none. To be called once for a number that it named.
pub fn adopt_listener(number: RawFd) -> Option<OwnedFd> {
    let (mut listening, mut size): (libc::c_int, libc::socklen_t) = (0, size_of::<libc::c_int>().try_into().ok()?);
    // SAFETY: getsockopt(2) answers a number that is not open with an error, and writes at most `size` bytes to a live local
    // of that size.
    let asked = unsafe {
        let place = (&raw mut listening).cast();
        libc::getsockopt(number, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, place, &raw mut size)
    };
    // SAFETY: the number is open, as it was just asked. It is nobody else's: only what the program before cleared of
    // FD_CLOEXEC for this purpose outlived it, it named this number, and the caller asks once for each.
    (asked == 0 && listening == 1).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// Keeps the allocator from making an arena for every other thread. What one thread makes and another frees stays in the
/// arena of the first: with glibc's eight arenas a core, a store of 300,000 records held 214 MB, and 98 MB with one. Two
/// still let two threads allocate at a time; small blocks are cached by each thread anyway. To be called before any thread
/// is started.
pub fn share_memory_arenas() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt(3) takes no pointer; it must not run while another thread allocates, and there is none yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Has every file and folder that this process makes be for its user alone, as the unit's `UMask=` has, whoever starts it.
/// What others are to read gets its mode when it is made.
pub fn keep_files_private() {
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
}

/// Gives the signals that stop the daemon their default action, and ignores SIGHUP: for a process that has closed its stores
/// and is about to replace its program. A handler would take a signal that nobody reads any more, and it would be lost.
pub fn reset_signals() {
    for (signal, action) in
        [(libc::SIGTERM, libc::SIG_DFL), (libc::SIGINT, libc::SIG_DFL), (libc::SIGHUP, libc::SIG_IGN)]
    {
        // SAFETY: signal(2) takes numbers alone here; both actions are the kernel's, so no code of this process runs.
        unsafe { libc::signal(signal, action) };
    }
}

/// The system's allocator, which Ledge's own code may use a little beyond the bound that the runtimes have
/// (`telemetry::process::bound_memory`). Where a runtime's allocation fails, a call fails; where one of Rust's does, the
/// process ends. After a runtime has taken all that the bound leaves, that would be the next one of anybody.
#[derive(Debug, Clone, Copy, Default)]
pub struct SpareAllocator;

/// The bound, and what allocations of Rust's may have. Set once.
static BOUND: OnceLock<[Rlimit; 2]> = OnceLock::new();

/// Nothing larger is given beyond the bound: whoever wants so much has to take a refusal.
const SPARE_MAX: usize = 128 << 20;

impl SpareAllocator {
    /// Lends allocations of Rust's what lies between the two limits of `RLIMIT_DATA`, of which the first is set.
    pub fn lend(bound: Rlimit, beyond: Rlimit) {
        let _ = BOUND.set([bound, beyond]);
    }

    /// Tries an allocation that failed once more, beyond the bound. Another thread's may come through as well.
    fn beyond(size: usize, allocate: impl Fn() -> *mut u8) -> *mut u8 {
        match BOUND.get() {
            Some([bound, beyond]) if size <= SPARE_MAX => {
                let _ = setrlimit(Resource::Data, *beyond);
                let made = allocate();
                let _ = setrlimit(Resource::Data, *bound);
                made
            }
            _ => std::ptr::null_mut(),
        }
    }
}

// SAFETY: every call is passed on to the system's allocator as it came, perhaps twice when the first one gave nothing.
// Nothing here allocates or panics.
unsafe impl GlobalAlloc for SpareAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`.
        let allocate = || unsafe { System.alloc(layout) };
        let made = allocate();
        if made.is_null() { Self::beyond(layout.size(), allocate) } else { made }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        let allocate = || unsafe { System.alloc_zeroed(layout) };
        let made = allocate();
        if made.is_null() { Self::beyond(layout.size(), allocate) } else { made }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `realloc`. When it gives nothing, the block is as it was.
        let allocate = || unsafe { System.realloc(block, layout, size) };
        let made = allocate();
        if made.is_null() { Self::beyond(size, allocate) } else { made }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Asks the allocator to give free memory back to the system. Without it glibc keeps most of what an unloaded model had
/// taken. It walks all of the heap: some milliseconds, so not for a hot path.
pub fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim(3) takes no pointer, is thread-safe (MT-Safe), and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// For how long the machine has been running, suspended or not; `None` where the system does not say.
pub fn uptime() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime(2) writes to the place that it is given, which is a live local of the type that it expects, and
    // tells by its result whether it did. It does not keep the pointer.
    let known = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) == 0 };
    known.then_some(())?;
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
}

/// The CPU time of a process, of all its threads, ended ones included; `None` when it is gone or may not be looked at.
pub fn process_cpu_time(pid: u32) -> Option<Duration> {
    let pid = libc::pid_t::try_from(pid).ok()?;
    let mut clock: libc::clockid_t = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both functions write to the place that they are given, which is a live local of the type that they expect,
    // and tell by their result whether they did. Neither keeps the pointer.
    let known = unsafe {
        libc::clock_getcpuclockid(pid, &raw mut clock) == 0 && libc::clock_gettime(clock, &raw mut time) == 0
    };
    known.then_some(())?;
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
}
