//! The text of a model.toml.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ledge::repository::model_config::fuzz(data));
