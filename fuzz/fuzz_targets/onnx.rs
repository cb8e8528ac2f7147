//! An ONNX file, before a runtime sees it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = ledge::repository::onnx::summarize(data);
});
