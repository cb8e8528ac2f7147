//! System calls that no safe crate wraps. The only unsafe code besides `engine/foreign.rs`.
#![expect(unsafe_code, reason = "the one place for it; each block says why it is sound")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, setrlimit};

/// The environment variable that turns ONNX Runtime's telemetry off.
pub const NO_TELEMETRY_VARIABLE: &str = "ORT_DISABLE_TELEMETRY";

/// Turns ONNX Runtime's telemetry off. From 1.31 on its Linux library looks up `mobile.events.data.microsoft.com`
/// seconds after it is loaded, and its own switch (`DisableTelemetryEvents`) comes too late. To be called before any
/// thread is started; `onnxruntime.rs` refuses to load the library without it.
#[expect(clippy::disallowed_methods, reason = "the library reads the environment, and there is one thread yet")]
pub fn switch_runtime_telemetry_off() {
    // SAFETY: set_var(3) must not run while another thread reads the environment; main calls this before it does
    // anything else, so there is no other thread.
    unsafe { std::env::set_var(NO_TELEMETRY_VARIABLE, "1") };
}

/// Takes over the listening socket with this file descriptor, which the previous program of this process left open;
/// `None` when there is none. To be called once for each descriptor that it named.
pub fn adopt_listener(number: RawFd) -> Option<OwnedFd> {
    adopt_socket(number, (libc::SO_ACCEPTCONN, 1))
}

/// As [`adopt_listener`], for a connected socket of packets.
pub fn adopt_packet_socket(number: RawFd) -> Option<OwnedFd> {
    adopt_socket(number, (libc::SO_TYPE, libc::SOCK_SEQPACKET))
}

/// Takes over a socket whose option has this value.
fn adopt_socket(number: RawFd, (option, value): (libc::c_int, libc::c_int)) -> Option<OwnedFd> {
    let (mut found, mut size): (libc::c_int, libc::socklen_t) = (0, size_of::<libc::c_int>().try_into().ok()?);
    // SAFETY: getsockopt(2) answers a number that is not open with an error, and writes at most `size` bytes to a live
    // local of that size.
    let asked = unsafe {
        let place = (&raw mut found).cast();
        libc::getsockopt(number, libc::SOL_SOCKET, option, place, &raw mut size)
    };
    // SAFETY: the number is open, as getsockopt(2) has just shown. Nothing else owns it: only descriptors that the
    // previous program cleared of FD_CLOEXEC for this purpose outlived it, it named this one, and the caller asks once
    // for each.
    (asked == 0 && found == value).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// Limits the allocator to two arenas. Memory that one thread allocates and another frees stays in the arena of the
/// first: with glibc's eight arenas a core, a store of 300,000 records held 214 MB, and 98 MB with one. Two still let
/// two threads allocate at a time; each thread caches small blocks anyway. To be called before any thread is started.
pub fn share_memory_arenas() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt(3) takes no pointer; it must not run while another thread allocates, and there is none yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Makes the allocator return every block of a mebibyte and more to the system when it is freed, and the end of its heap
/// above two. On its own glibc keeps blocks of up to 32 MiB for later calls, and twice as much at the end of its heap: of
/// the bodies and answers of many callers, tens of MiB beyond what they take together. To be called before any thread is
/// started.
pub fn return_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt(3) takes no pointer; it must not run while another thread allocates, and there is none yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 2 << 20);
    }
}

/// Gives memory that was freed back to the kernel: glibc keeps it for later, also after work that needed much for a
/// moment. It takes milliseconds.
pub fn give_back_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim(3) takes a number, and locks the arenas itself.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes every file and folder that this process creates accessible only to its user, as the unit's `UMask=` does,
/// whoever starts it. Files for others get their mode when they are created.
pub fn keep_files_private() {
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
}

/// Gives the signals that stop the daemon their default action, and ignores SIGHUP. For a process that has closed its
/// stores and is about to replace its program: a handler would take a signal that is not read any more, and it would be
/// lost.
pub fn reset_signals() {
    for (signal, action) in
        [(libc::SIGTERM, libc::SIG_DFL), (libc::SIGINT, libc::SIG_DFL), (libc::SIGHUP, libc::SIG_IGN)]
    {
        // SAFETY: signal(2) takes only numbers here; both actions are the kernel's, so no code of this process runs.
        unsafe { libc::signal(signal, action) };
    }
}

/// Ignores the signals that stop a daemon, in this process and in the programs that it starts: the daemon ends them when it
/// has drained, also where a service manager or a terminal signals every process.
pub fn ignore_stop_signals() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
        // SAFETY: as in `reset_signals`.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// The signals by which the CPU, the C library or Rust end a process that went wrong.
const CRASH_SIGNALS: [libc::c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGABRT];

/// Calls `handler` on the thread that crashes, with the number of the signal. It runs in a signal handler, so it may only
/// do what signal-safety(7) allows, and it ends with [`end_by`].
pub fn handle_crashes(handler: extern "C" fn(libc::c_int)) {
    for signal in CRASH_SIGNALS {
        // SAFETY: the struct is valid when it is zeroed: no flags, an empty mask. The handler has the type that the kernel
        // calls without SA_SIGINFO. After an overflow of the stack it needs another one, which Rust's runtime gave to the
        // main thread and to each thread that Rust started.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_ONSTACK;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// Ends the process by a signal that was handled, when its handler returns.
pub fn end_by(signal: libc::c_int) {
    // SAFETY: both take only numbers, and may be called in a handler. The signal is blocked until the handler returns.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// Sends a signal to the calling thread.
pub fn raise(signal: libc::c_int) {
    // SAFETY: raise(3) takes only a number.
    unsafe { libc::raise(signal) };
}

/// The system's allocator, with a reserve for Ledge's own code beyond the memory limit of the runtimes
/// (`telemetry::process::bound_memory`). When a runtime's allocation fails, a call fails; when one of Rust's fails, the
/// process ends. Without the reserve the next allocation of Rust's would fail after a runtime has used up the limit.
#[derive(Debug, Clone, Copy, Default)]
pub struct SpareAllocator;

/// The limit of the runtimes, and that of Rust's allocations. Set once.
static DATA_LIMITS: OnceLock<[Rlimit; 2]> = OnceLock::new();

/// The largest allocation from the reserve, in bytes. A larger one has to fail.
const SPARE_BYTES_MAX: usize = 128 << 20;

impl SpareAllocator {
    /// Reserves the memory between two limits of `RLIMIT_DATA` for Rust's allocations. The first limit is set already.
    pub fn lend(bound: Rlimit, beyond: Rlimit) {
        let _ = DATA_LIMITS.set([bound, beyond]);
    }

    /// Retries a failed allocation beyond the limit. An allocation of another thread may succeed meanwhile too.
    fn beyond(size: usize, allocate: impl Fn() -> *mut u8) -> *mut u8 {
        match DATA_LIMITS.get() {
            Some([bound, beyond]) if size <= SPARE_BYTES_MAX => {
                let _ = setrlimit(Resource::Data, *beyond);
                let made = allocate();
                let _ = setrlimit(Resource::Data, *bound);
                made
            }
            _ => std::ptr::null_mut(),
        }
    }
}

// SAFETY: every call is passed on unchanged to the system's allocator, a second time if the first returned null.
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
        // SAFETY: the caller keeps the contract of `realloc`. When it returns null, the block is unchanged.
        let allocate = || unsafe { System.realloc(block, layout, size) };
        let made = allocate();
        if made.is_null() { Self::beyond(size, allocate) } else { made }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Asks the allocator to return free memory to the system. Without it glibc keeps most of the memory of an unloaded
/// model. It walks the whole heap, which takes some milliseconds, so it is not for a hot path.
pub fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim(3) takes no pointer, is thread-safe (MT-Safe), and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The time since the boot of the machine, suspended time included; `None` if the system does not report it.
pub fn uptime() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime(2) writes to the given pointer, a live local of the type that it expects, and its result
    // says if it did. It does not keep the pointer.
    let known = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) == 0 };
    known.then_some(())?;
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
}

/// The CPU time of all threads of a process, ended ones included; `None` when it has ended or may not be inspected.
pub fn process_cpu_time(pid: u32) -> Option<Duration> {
    let pid = libc::pid_t::try_from(pid).ok()?;
    let mut clock: libc::clockid_t = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both functions write to the given pointers, live locals of the types that they expect, and their results
    // say if they did. Neither keeps the pointer.
    let known = unsafe {
        libc::clock_getcpuclockid(pid, &raw mut clock) == 0 && libc::clock_gettime(clock, &raw mut time) == 0
    };
    known.then_some(())?;
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
}
