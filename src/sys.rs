//! The only file with unsafe code: what the system offers and no safe crate wraps.
#![expect(unsafe_code, reason = "the one place for it; each block says why it is sound")]

use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

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

/// Frees a port of a model, which the crate `openvino` 0.11.1 leaves allocated. The node must not be used afterwards.
pub fn free_openvino_port(node: &mut ManuallyDrop<openvino::Node>) {
    type Pointer = *mut openvino_sys::ov_output_const_port_t;
    const { assert!(size_of::<openvino::Node>() == size_of::<Pointer>()) };
    // SAFETY: the version is pinned, and in it `Node` is a struct of one field, this pointer, without a `Drop` of its own;
    // the assertion above fails to compile when that changes its size. The caller took the node out of circulation by
    // wrapping it, so the pointer is freed once. It came from OpenVINO, whose library is loaded and never unloaded.
    unsafe {
        let pointer: Pointer = *std::ptr::from_mut::<openvino::Node>(&mut *node).cast();
        openvino_sys::ov_output_const_port_free(pointer);
    }
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

/// Asks the allocator to give free memory back to the system. Without it glibc keeps most of what an unloaded model had
/// taken. It walks all of the heap: some milliseconds, so not for a hot path.
pub fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim(3) takes no pointer, is thread-safe (MT-Safe), and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
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
