//! Inference requests that are all JSON.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ledge::protocol::fuzz::fuzz_json(data));
