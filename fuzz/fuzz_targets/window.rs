//! The aggregates of an entity, as a record has them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ledge::features::window::fuzz_window(data);
});
