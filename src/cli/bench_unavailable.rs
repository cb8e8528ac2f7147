//! Replaces `bench.rs` in a build without the feature `bench`: the verb is an error that says why.

use anyhow::bail;
use clap::Args;

use super::{Exit, Globals, Output};

/// The arguments of `ledge bench`, which this build does not read.
#[derive(Debug, Args)]
#[command(
    after_help = "This build of ledge cannot measure: build it with `make build FEATURES=full`, or install a package."
)]
pub struct BenchArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub arguments: Vec<String>,
}

/// Runs the verb, which always fails.
pub fn run(_: &Globals, _: &BenchArgs, _: &mut Output) -> anyhow::Result<Exit> {
    bail!(
        "this build of ledge cannot measure: build it with the feature `bench` (make build FEATURES=full), or install a \
         package"
    )
}
