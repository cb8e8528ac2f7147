//! Sealed bytes, a sealed file, or a file of master keys. The first byte chooses which.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ledge::identity::sealing::fuzz::fuzz_sealed(data);
});
