//! Key files of the feature store, below their seal.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ledge::features::fuzz::fuzz_feature_keys(data);
});
