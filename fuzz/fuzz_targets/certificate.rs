//! A certificate, or a list of revoked ones.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ledge::http::fuzz::fuzz_certificate(data);
});
