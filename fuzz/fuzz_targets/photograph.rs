//! A photograph in any format.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ledge::pipeline::image::fuzz_image(data));
