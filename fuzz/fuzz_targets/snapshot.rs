//! A snapshot of the feature store, or what is in a block.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ledge::features::snapshot::fuzz::fuzz(data);
});
