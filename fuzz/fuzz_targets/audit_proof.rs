//! A proof that a record is in an audit log.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ledge::audit::fuzz::fuzz_audit_proof(data);
});
