//! Inference requests with binary data behind their JSON.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ledge::protocol::fuzz::fuzz_binary(data));
