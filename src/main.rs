//! The `ledge` command: arguments in, exit code out.

use std::process::ExitCode;

use ledge::cli::{self, Exit, Output};
use ledge::sys;

#[global_allocator]
static ALLOCATOR: sys::SpareAllocator = sys::SpareAllocator;

fn main() -> ExitCode {
    // Must come first, while the process has only one thread.
    sys::switch_runtime_telemetry_off();
    sys::share_memory_arenas();
    sys::keep_files_private();
    sys::close_other_files_on_exec();
    // Before Linux 6.4 the kernel tells this only by a file, which a process that has closed its memory to others cannot open.
    // Read once, rustix keeps it; read too late, it panics.
    let _ = rustix::param::page_size();
    let exit = cli::run(&mut Output::stdout());
    exit.unwrap_or_else(|error| Exit::of(&error)).into()
}
