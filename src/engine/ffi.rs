//! Functions of the runtimes that the Rust crates do not wrap. The only unsafe code besides `base/sys.rs`.
#![expect(unsafe_code, reason = "the only file of the crate with it; each block says why it is sound")]

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

/// Frees a port of a model, which the crate `openvino` 0.11.1 leaves allocated. The node must not be used afterwards.
pub fn free_openvino_port(node: &mut ManuallyDrop<openvino::Node>) {
    type Pointer = *mut openvino_sys::ov_output_const_port_t;
    const { assert!(size_of::<openvino::Node>() == size_of::<Pointer>()) };
    // SAFETY: the version is pinned, and in it `Node` is a struct of one field, this pointer, without a `Drop`
    // implementation; the assertion above fails to compile when that changes its size. The caller wrapped the node in
    // `ManuallyDrop` and does not use it again, so the pointer is freed once. It came from the library of OpenVINO,
    // which is loaded and never unloaded.
    unsafe {
        let pointer: Pointer = *std::ptr::from_mut::<openvino::Node>(&mut *node).cast();
        openvino_sys::ov_output_const_port_free(pointer);
    }
}

/// Cancels the run of one request at a time. The crate `openvino` cancels only through the handle that the run holds.
#[derive(Debug, Default)]
pub struct OpenVinoCanceller(Mutex<Option<RunningInferRequest>>);

/// A request of OpenVINO that is running.
#[derive(Debug)]
struct RunningInferRequest(NonNull<openvino_sys::ov_infer_request_t>);

// SAFETY: OpenVINO locks the state of a request itself: another thread may cancel it while it runs.
unsafe impl Send for RunningInferRequest {}

impl OpenVinoCanceller {
    /// Calls `run`, during which the request can be cancelled.
    pub fn while_running<T>(
        &self,
        request: &mut openvino::InferRequest,
        run: impl FnOnce(&mut openvino::InferRequest) -> T,
    ) -> T {
        /// Forgets the request also where `run` panics.
        struct RunningRequestGuard<'c>(&'c OpenVinoCanceller);
        impl Drop for RunningRequestGuard<'_> {
            fn drop(&mut self) {
                *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
        }
        type Pointer = *mut openvino_sys::ov_infer_request_t;
        const { assert!(size_of::<openvino::InferRequest>() == size_of::<Pointer>()) };
        // SAFETY: the version is pinned, and in it `InferRequest` is a struct of one field, this pointer; the assertion
        // above fails to compile when its size changes. The pointer is only copied.
        let pointer: Pointer = unsafe { *std::ptr::from_mut(request).cast() };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = NonNull::new(pointer).map(RunningInferRequest);
        let _forget = RunningRequestGuard(self);
        run(request)
    }

    /// Cancels the run in progress, if there is one.
    pub fn cancel_run(&self) {
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(RunningInferRequest(request)) = &*running {
            // SAFETY: the request lives until it is forgotten, for which `while_running` waits for this lock. OpenVINO
            // allows this call at any time and on any thread. Its status says only that there was nothing to cancel.
            unsafe { openvino_sys::ov_infer_request_cancel(request.as_ptr()) };
        }
    }
}

/// Makes a tensor of these strings for ONNX Runtime. The crate `ort` accepts only UTF-8 without a NUL; the runtime
/// accepts any bytes, and each operator interprets them.
pub fn onnxruntime_strings<'s>(
    shape: &[usize],
    strings: impl ExactSizeIterator<Item = &'s [u8]>,
) -> Result<ort::value::DynTensor, String> {
    use ort::AsPointer as _;
    use ort::value::{DynTensor, TensorElementType};
    let allocator = ort::memory::Allocator::default();
    let message = |error: ort::Error| error.message().to_owned();
    let mut tensor = DynTensor::new(&allocator, TensorElementType::String, shape).map_err(message)?;
    if ledge_base::tensor::element_count(shape) != Some(strings.len()) {
        return Err(format!("has {} strings for the shape {shape:?}", strings.len()));
    }
    for (index, string) in strings.enumerate() {
        let mut place = std::ptr::null_mut();
        // SAFETY: the tensor was made above, of strings and with as many elements as there are strings, and nothing
        // else refers to it. On success the runtime points `place` to `string.len()` bytes of that element, which
        // nothing moves before the next call, and which do not overlap `string`. On failure it returns an error and
        // nothing is written.
        unsafe {
            let made = ort::api().GetResizedStringTensorElementBuffer;
            onnxruntime_result(made(tensor.ptr_mut(), index, string.len(), &raw mut place))?;
            place.cast::<u8>().copy_from_nonoverlapping(string.as_ptr(), string.len());
        }
    }
    Ok(tensor)
}

/// The strings of a tensor of ONNX Runtime, one after the other, and the position where each begins. `count` is the
/// number of elements of its shape.
pub fn onnxruntime_string_bytes(value: &ort::value::DynValue, count: usize) -> Result<(Vec<u8>, Vec<usize>), String> {
    use ort::AsPointer as _;
    let mut length = 0;
    // SAFETY: the value lives while it is borrowed. The runtime checks that it holds strings, and writes one number.
    unsafe { onnxruntime_result((ort::api().GetStringTensorDataLength)(value.ptr(), &raw mut length))? };
    let (mut bytes, mut starts) = (zeros::<u8>(length)?, zeros::<usize>(count)?);
    // SAFETY: as above. The runtime compares both lengths with the tensor's before it writes, and writes no more than
    // that, to live buffers of that size.
    unsafe {
        let content = ort::api().GetStringTensorContent;
        let copied = content(value.ptr(), bytes.as_mut_ptr().cast(), length, starts.as_mut_ptr(), count);
        onnxruntime_result(copied)?;
    }
    Ok((bytes, starts))
}

fn zeros<T: Copy + Default>(count: usize) -> Result<Vec<T>, String> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(count).map_err(|_| format!("does not fit into memory: it has {count} elements"))?;
    zeros.resize(count, T::default());
    Ok(zeros)
}

/// The result of a call of ONNX Runtime, from its status.
///
/// # Safety
///
/// A call just returned this status, and nothing else refers to it.
unsafe fn onnxruntime_result(status: ort::sys::OrtStatusPtr) -> Result<(), String> {
    if status.0.is_null() {
        return Ok(());
    }
    // SAFETY: a status that is not null lives until it is released, which happens once, here. Its message ends with a
    // NUL and lives as long.
    unsafe {
        let message = std::ffi::CStr::from_ptr((ort::api().GetErrorMessage)(status.0)).to_string_lossy().into_owned();
        (ort::api().ReleaseStatus)(status.0);
        Err(message)
    }
}
