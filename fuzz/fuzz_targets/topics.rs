//! Topics, filters and templates, a line each.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ledge::mqtt::fuzz::fuzz_topics(data));
