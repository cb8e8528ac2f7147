//! What every thread of the process needs: a line on standard error, and its end with a panic.

use std::io::{self, Write as _};

/// Writes a line to standard error. `eprintln!` would panic where the daemon does not read so fast.
pub(super) fn complain(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Ends the process when its thread panics: nobody would answer the daemon, and the crash report tells whose fault it was.
pub(super) struct EndOnPanic;

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
