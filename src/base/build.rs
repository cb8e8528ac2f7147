//! Records the time of the build: the clock of a box is never before it.

use std::time::{SystemTime, UNIX_EPOCH};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    // Reproducible builds set it: https://reproducible-builds.org/specs/source-date-epoch/
    let given = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|seconds| seconds.trim().parse::<u64>().ok());
    #[expect(clippy::disallowed_methods, reason = "a build script has no clock of its own to be given")]
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    println!("cargo::rustc-env=BUILT_AT_UNIX_SECONDS={}", given.unwrap_or_else(now));
}
