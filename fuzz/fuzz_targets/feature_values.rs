//! The JSON of a value.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ledge::features::fuzz::fuzz_feature_values(data));
