//! A row, a record or a catalog, as they are on disk.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ledge::features::fuzz::fuzz_feature_records(data));
