//! Tools for every thread of the process: a line on standard error, and the end of the process after a panic.

use std::io::{self, Write as _};

/// Writes a line to standard error. `eprintln!` would panic where the daemon does not read so fast.
pub(super) fn complain(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Ends the process when its thread panics. Otherwise the daemon would get no answer, and the crash report states which
/// work is to blame.
pub(super) struct EndOnPanic;

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
