//! Every binary of `Cargo.toml` is this file: it runs the target with the name of the binary.
#![no_main]

mod targets;

use std::sync::LazyLock;

static RUN: LazyLock<targets::Run> = LazyLock::new(|| targets::run(env!("CARGO_BIN_NAME")));

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    (*RUN)(data);
});
