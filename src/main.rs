//! The `ledge` command: arguments in, exit code out.

use std::process::ExitCode;

use clap::Parser as _;
use ledge::cli::{Cli, Exit, Output};

fn main() -> ExitCode {
    let exit = Cli::parse().run(&mut Output::stdout());
    exit.unwrap_or_else(|error| Exit::of(&error)).into()
}
