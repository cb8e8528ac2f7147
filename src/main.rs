//! The `ledge` command: arguments in, exit code out.

use std::process::ExitCode;

use ledge::cli::{self, Exit, Output};
use ledge::sys;

#[global_allocator]
static ALLOCATOR: sys::SpareAllocator = sys::SpareAllocator;

fn main() -> ExitCode {
    cli::prepare_process();
    let exit = cli::run(&mut Output::stdout());
    exit.unwrap_or_else(|error| Exit::of(&error)).into()
}
