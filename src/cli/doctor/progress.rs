//! The step that `ledge doctor` is at, on a terminal: to load every model takes a while.

use std::time::Duration;

use indicatif::ProgressBar;

use crate::cli::progress;

/// A line on standard error, which is removed at the end. Without a terminal, nothing is written.
pub struct DoctorProgress(ProgressBar);

impl DoctorProgress {
    pub fn new() -> Self {
        let bar = progress::bar(None, "{spinner} {wide_msg} {elapsed}");
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// Shows the step that begins.
    pub fn step(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }
}

impl Drop for DoctorProgress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
