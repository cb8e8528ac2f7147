//! A certificate, or a list of revoked ones.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ledge::http::tls::fuzz_certificate(data);
});
