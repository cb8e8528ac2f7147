//! The progress of a run on standard error: a bar on a terminal, elsewhere a line from time to time.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar};

use crate::cli::progress;

/// The time between two lines where there is no terminal, and between two notes about a server that keeps the run
/// waiting.
const LINE_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct InferProgress {
    bar: ProgressBar,
    has_terminal: bool,
    started: Instant,
    files: u64,
    state: Mutex<ProgressState>,
}

#[derive(Debug)]
struct ProgressState {
    failed: usize,
    last_line: Instant,
    last_note: Option<Instant>,
}

impl InferProgress {
    /// The progress of a run over this many files; a run over one file shows none.
    pub fn new(files: usize) -> Self {
        let has_terminal = std::io::stderr().is_terminal();
        let bar = match files {
            ..=1 => ProgressBar::hidden(),
            _ => progress::bar(Some(files as u64), "{bar:30} {pos}/{len} files, {per_sec}, {eta} left{msg}"),
        };
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(500));
        }
        let started = Instant::now();
        let state = ProgressState { failed: 0, last_line: started, last_note: None };
        Self { bar, has_terminal, started, files: files as u64, state: Mutex::new(state) }
    }

    /// Writes something while the bar is not drawn.
    pub fn suspend<T>(&self, write: impl FnOnce() -> T) -> T {
        self.bar.suspend(write)
    }

    /// Counts a file.
    pub fn advance(&self, is_answered: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.bar.inc(1);
        if !is_answered {
            state.failed += 1;
            self.bar.set_message(format!(", {} failed", state.failed));
        }
        if !self.has_terminal && state.last_line.elapsed() >= LINE_INTERVAL {
            state.last_line = Instant::now();
            let done = self.bar.position();
            let rate = rate(done, self.started.elapsed());
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let left = Duration::try_from_secs_f64(self.files.saturating_sub(done) as f64 / rate).unwrap_or_default();
            note(&format!(
                "{done} of {} files, {rate:.1}/s, {} left, {} failed",
                self.files,
                HumanDuration(left),
                state.failed
            ));
        }
    }

    /// Says why the run waits, unless it said so a moment ago.
    pub fn waiting(&self, reason: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.last_note.is_none_or(|last| last.elapsed() >= LINE_INTERVAL) {
            state.last_note = Some(Instant::now());
            self.suspend(|| note(&format!("waiting: {reason}")));
        }
    }

    /// Removes the bar; returns the time of the run.
    pub fn finish(&self) -> Duration {
        self.bar.finish_and_clear();
        self.started.elapsed()
    }
}

/// Files per second.
pub fn rate(files: u64, time: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a figure to be read")]
    let files = files as f64;
    files / time.as_secs_f64().max(1e-3)
}

/// Writes a line to standard error, which may be closed.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "ledge: {text}");
}
