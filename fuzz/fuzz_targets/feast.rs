//! Calls of Feast's routes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ledge::protocol::fuzz::fuzz_feast(data);
});
