//! Signed metadata, and the file of what is trusted. The first byte chooses which.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ledge::updates::trust::fuzz::fuzz_metadata(data));
