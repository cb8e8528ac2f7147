//! System calls that no safe crate wraps. The only unsafe code besides `engine/ffi.rs`.
#![expect(unsafe_code, reason = "the one place for it; each block says why it is sound")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU64, Ordering};
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

/// The first file descriptor behind standard input, output and error.
const FIRST_OTHER_FILE: libc::c_uint = 3;

/// Closes every open file but standard input, output and error at the next start of a program in this process or in a
/// child of it, also those that other code left open. Call it before this program opens its own: those are closed then
/// anyway.
pub fn close_other_files_on_exec() {
    if !close_range(libc::CLOSE_RANGE_CLOEXEC) {
        for number in other_files() {
            // SAFETY: fcntl(2) takes only numbers here. A number that is not open is an error that changes nothing.
            unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}

/// Closes every open file but standard input, output and error. Call it before this program opens a file: it would
/// close files that somebody uses.
pub fn close_other_files() {
    if !close_range(0) {
        for number in other_files() {
            // SAFETY: close(2) takes only a number. Nothing in this program owns one of them yet.
            unsafe { libc::close(number) };
        }
    }
}

/// Calls `close_range(2)` on the files behind standard error. False in a kernel without it (5.9, with this flag 5.11),
/// or where a filter denies it.
fn close_range(flags: libc::c_uint) -> bool {
    // SAFETY: `close_range(2)` takes only numbers. The callers say why these files may be closed.
    unsafe { libc::syscall(libc::SYS_close_range, FIRST_OTHER_FILE, libc::c_uint::MAX, flags) == 0 }
}

/// The numbers of the open files behind standard error.
fn other_files() -> Vec<RawFd> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    numbers.filter(|number| number.cast_unsigned() >= FIRST_OTHER_FILE).collect()
}

/// Takes over the listening socket with this file descriptor, which the previous program of this process left open;
/// `None` for anything but a listening socket. Call it once for each descriptor that the previous program named.
pub fn adopt_listener(number: RawFd) -> Option<OwnedFd> {
    adopt_socket(number, (libc::SO_ACCEPTCONN, 1))
}

/// As [`adopt_listener`], for a connected socket of packets.
pub fn adopt_packet_socket(number: RawFd) -> Option<OwnedFd> {
    adopt_socket(number, (libc::SO_TYPE, libc::SOCK_SEQPACKET))
}

/// As [`adopt_listener`], for the reading end of a pipe.
pub fn adopt_pipe(number: RawFd) -> Option<OwnedFd> {
    adopt_of_type(number, libc::S_IFIFO)
}

/// As [`adopt_listener`], for a file.
pub fn adopt_file(number: RawFd) -> Option<OwnedFd> {
    adopt_of_type(number, libc::S_IFREG)
}

/// Takes over the open file with this number if it has this type of inode(7).
fn adopt_of_type(number: RawFd, kind: libc::mode_t) -> Option<OwnedFd> {
    // SAFETY: fstat(2) answers a number that is not open with an error, and writes to the given pointer, a live local
    // of the type that it expects, which is valid when it is zeroed.
    let is_it = unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        libc::fstat(number, &raw mut found) == 0 && found.st_mode & libc::S_IFMT == kind
    };
    // SAFETY: the number is open, as fstat(2) has just shown. Nothing else owns it: see `adopt_socket`.
    is_it.then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// Takes over a socket with this value of an option.
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
/// two threads allocate at a time; each thread caches small blocks anyway. Call it before any thread is started.
pub fn share_memory_arenas() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt(3) takes no pointer; it must not run while another thread allocates, and no other exists yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Makes the allocator return every block of a mebibyte and more to the system when it is freed, and the end of its
/// heap above two. By default glibc keeps blocks of up to 32 MiB for later calls, and twice as much at the end of its
/// heap: with many callers, tens of MiB more than their bodies and answers take. Call it before any thread is started.
pub fn return_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt(3) takes no pointer; it must not run while another thread allocates, and no other exists yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 2 << 20);
    }
}

/// Limits the number of heaps of the allocator, because each heap keeps its own free memory. By default there are eight
/// for each core, and threads that come and go leave memory in all of them. Call it before any thread is started.
pub fn limit_heaps(most: usize) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt(3) takes no pointer; it must not run while another thread allocates, and no other exists yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, i32::try_from(most).unwrap_or(i32::MAX));
    }
}

/// Makes every file and folder that this process creates accessible only to its user, as the unit's `UMask=` does,
/// however the process is started. Files for others get their mode when they are created.
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

/// Ignores the signals that stop a daemon, in this process and in the programs that it starts: the daemon ends them
/// when it has drained, also where a service manager or a terminal signals every process.
pub fn ignore_stop_signals() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
        // SAFETY: as in `reset_signals`.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// The writing end of the pipe of [`child_signals`]; -1 for none.
static CHILD_SIGNALS: AtomicI32 = AtomicI32::new(-1);

/// Returns the reading end of a pipe that is readable after a child of this process has ended, stopped or continued. To
/// be called once.
pub fn child_signals() -> io::Result<OwnedFd> {
    /// Runs in a signal handler: write(2) is on the list of signal-safety(7), and the pipe never blocks.
    extern "C" fn handle(_: libc::c_int) {
        let pipe = CHILD_SIGNALS.load(Ordering::Relaxed);
        // SAFETY: errno is this thread's own, and whatever the signal interrupted must find it as it was. The byte is a
        // local. The pipe is never closed.
        unsafe {
            let errno = libc::__errno_location();
            let before = *errno;
            libc::write(pipe, (&raw const pipe).cast(), 1);
            *errno = before;
        }
    }
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK)?;
    CHILD_SIGNALS.store(write.as_raw_fd(), Ordering::Relaxed);
    // Stays open while the process lives.
    std::mem::forget(write);
    handle_signal(libc::SIGCHLD, handle, 0);
    Ok(read)
}

/// Has `handler` called for a signal.
fn handle_signal(signal: libc::c_int, handler: extern "C" fn(libc::c_int), flags: libc::c_int) {
    // SAFETY: the struct is valid when it is zeroed: no flags, an empty mask. The handler has the type that the kernel
    // calls without SA_SIGINFO, and its author keeps to signal-safety(7).
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}

/// The signals by which the CPU, the C library or Rust end a process that went wrong.
const CRASH_SIGNALS: [libc::c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGABRT];

/// Calls `handler` on the thread that crashes, with the number of the signal. It runs in a signal handler, so it must
/// only call functions that signal-safety(7) lists, and it ends with [`end_by`].
///
/// After an overflow of the stack it needs another one: Rust gives one to the main thread and to each thread that it
/// starts, and [`SignalStack`] a larger one.
pub fn handle_crashes(handler: extern "C" fn(libc::c_int)) {
    for signal in CRASH_SIGNALS {
        handle_signal(signal, handler, libc::SA_ONSTACK);
    }
}

/// The bytes of a signal stack beyond the processor's state that the kernel puts there.
const HANDLER_BYTES: usize = 64 << 10;

/// A stack for the signal handlers of the calling thread, in place of the one that it had, until this is dropped.
///
/// The kernel saves the state of the processor there first. With AMX that takes some 11 KiB, which is all that the
/// stack from Rust has then (`AT_MINSIGSTKSZ`), so a handler overflows it, and the process ends by another signal.
#[derive(Debug)]
pub struct SignalStack {
    former: libc::stack_t,
    start: *mut libc::c_void,
    length: usize,
    /// It belongs to one thread.
    _of_thread: PhantomData<*const ()>,
}

impl SignalStack {
    /// Gives the calling thread a stack that is large enough on every processor.
    pub fn for_this_thread() -> io::Result<Self> {
        let page = rustix::param::page_size();
        // SAFETY: getauxval(3) takes a number, and returns 0 for an entry that the kernel does not provide.
        let frame = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) };
        let frame = usize::try_from(frame).unwrap_or(0).max(libc::SIGSTKSZ);
        let length = page + (frame + HANDLER_BYTES).next_multiple_of(page);
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: mmap(2) chooses a range of addresses that nothing uses. The first page of it becomes a guard below
        // the stack. sigaltstack(2) reads and writes live locals; the range outlives its use as a stack, because `drop`
        // takes it from the thread first.
        unsafe {
            let start = libc::mmap(std::ptr::null_mut(), length, access, kind | libc::MAP_STACK, -1, 0);
            if start == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            libc::mprotect(start, page, libc::PROT_NONE);
            let stack = libc::stack_t { ss_sp: start.byte_add(page), ss_flags: 0, ss_size: length - page };
            let mut former: libc::stack_t = std::mem::zeroed();
            if libc::sigaltstack(&raw const stack, &raw mut former) != 0 {
                let error = io::Error::last_os_error();
                libc::munmap(start, length);
                return Err(error);
            }
            Ok(Self { former, start, length, _of_thread: PhantomData })
        }
    }
}

impl Drop for SignalStack {
    fn drop(&mut self) {
        // SAFETY: this is the thread that has the stack, and no handler runs on it now. `former` is the stack that the
        // kernel reported; its maker does not know that it was replaced, so it is still valid. The range is the one
        // that was mapped.
        unsafe {
            libc::sigaltstack(&raw const self.former, std::ptr::null_mut());
            libc::munmap(self.start, self.length);
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

/// The least bytes of a block that [`LargeBlocks`] count: blocks of this size are made so seldom that counting costs
/// nothing.
const LARGE_BYTES_MIN: usize = 1 << 20;

/// The large blocks of Rust's memory that one thread holds, and the allocation that failed there.
#[derive(Debug)]
pub struct LargeBlocks {
    /// Below 0 after the thread freed blocks that other threads allocated.
    bytes: AtomicI64,
    failed: AtomicU64,
}

thread_local! {
    /// Without a destructor, so that the allocator and a signal handler may read it.
    static BLOCKS_HERE: Cell<Option<&'static LargeBlocks>> = const { Cell::new(None) };
}

impl LargeBlocks {
    /// None.
    pub const fn new() -> Self {
        Self { bytes: AtomicI64::new(0), failed: AtomicU64::new(0) }
    }

    /// Counts those of the calling thread from now on; `None` counts none.
    pub fn count_here(blocks: Option<&'static Self>) {
        BLOCKS_HERE.set(blocks);
    }

    /// Forgets those from before.
    pub fn reset(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.failed.store(0, Ordering::Relaxed);
    }

    /// The bytes that the thread holds, with those of an allocation that failed.
    pub fn wanted(&self) -> u64 {
        let held = u64::try_from(self.bytes.load(Ordering::Relaxed)).unwrap_or(0);
        held.saturating_add(self.failed())
    }

    /// The bytes of the last allocation of any size that failed; 0 for none.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    fn here() -> Option<&'static Self> {
        // The last code of a thread may run when it has no thread-locals any more.
        BLOCKS_HERE.try_with(Cell::get).ok().flatten()
    }

    fn allocated(size: usize, made: *mut u8) {
        if made.is_null() {
            if let Some(blocks) = Self::here() {
                blocks.failed.store(size as u64, Ordering::Relaxed);
            }
        } else if size >= LARGE_BYTES_MIN {
            Self::add(size.cast_signed() as i64);
        }
    }

    fn freed(size: usize) {
        if size >= LARGE_BYTES_MIN {
            Self::add(-(size.cast_signed() as i64));
        }
    }

    fn add(bytes: i64) {
        if let Some(blocks) = Self::here() {
            blocks.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

impl Default for LargeBlocks {
    fn default() -> Self {
        Self::new()
    }
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
// Nothing here allocates or panics, and the counts are atomic.
unsafe impl GlobalAlloc for SpareAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`.
        let allocate = || unsafe { System.alloc(layout) };
        let mut made = allocate();
        if made.is_null() {
            made = Self::beyond(layout.size(), allocate);
        }
        LargeBlocks::allocated(layout.size(), made);
        made
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        let allocate = || unsafe { System.alloc_zeroed(layout) };
        let mut made = allocate();
        if made.is_null() {
            made = Self::beyond(layout.size(), allocate);
        }
        LargeBlocks::allocated(layout.size(), made);
        made
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `realloc`. When it returns null, the block is unchanged.
        let allocate = || unsafe { System.realloc(block, layout, size) };
        let mut made = allocate();
        if made.is_null() {
            made = Self::beyond(size, allocate);
        }
        LargeBlocks::allocated(size, made);
        if !made.is_null() {
            LargeBlocks::freed(layout.size());
        }
        made
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LargeBlocks::freed(layout.size());
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

/// The CPU time of all threads of a process, ended ones included; `None` when it has ended or must not be inspected.
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
