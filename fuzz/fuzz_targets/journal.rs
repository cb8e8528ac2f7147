//! A segment of the feature store's journal, or what is in a group.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ledge::features::journal::fuzz::fuzz(data);
});
