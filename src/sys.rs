//! The only file with unsafe code: what the system offers and no safe crate wraps.
#![expect(unsafe_code, reason = "the one place for it; each block says why it is sound")]

/// Asks the allocator to give free memory back to the system. Without it glibc keeps most of what an unloaded model had
/// taken. It walks all of the heap: some milliseconds, so not for a hot path.
pub fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim(3) takes no pointer, is thread-safe (MT-Safe), and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
