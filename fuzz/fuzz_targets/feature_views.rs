//! The text of a file of feature_views.d.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ledge::features::fuzz::fuzz_feature_views(data));
