//! The only file with unsafe code: what the system offers and no safe crate wraps.
#![expect(unsafe_code, reason = "the one place for it; each block says why it is sound")]

use std::mem::ManuallyDrop;

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

/// Asks the allocator to give free memory back to the system. Without it glibc keeps most of what an unloaded model had
/// taken. It walks all of the heap: some milliseconds, so not for a hot path.
pub fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim(3) takes no pointer, is thread-safe (MT-Safe), and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
