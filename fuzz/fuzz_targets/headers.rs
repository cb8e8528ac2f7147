//! The headers of a call, a line each.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ledge::http::fuzz::fuzz_headers(data);
});
