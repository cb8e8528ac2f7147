//! A file of an audit log, or the path of one. The first byte chooses which.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ledge::audit::fuzz::fuzz_audit_files(data));
