//! A path in the first line, and a message behind it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ledge::mqtt::fuzz::fuzz_message(data));
