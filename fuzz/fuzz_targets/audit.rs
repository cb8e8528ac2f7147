//! Parts of an audit log: a proof, a checkpoint, an entry bundle, a record, a path, as the first byte says.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ledge::audit::fuzz::fuzz_audit(data);
});
