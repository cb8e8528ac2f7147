//! The attempts on disk: one file, and its only owner.
//!
//! The first line has the suspects; behind it each attempt appends a mark when it begins and one when it ends, and once
//! none is in progress the marks are truncated. Marks are appended without an fsync, so a start with many models pays
//! for none: they have to outlive the process, as any write does, and not the machine, since after another boot no
//! model is blamed. The first line must outlive both, is replaced as a whole, and changes only when a process has died
//! or a suspect is tried.
//!
//! A disk that is full or read-only stops no load. Then a suspect is loaded only after a trial, since its death would
//! leave no trace.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ledge_base::clock;
use ledge_base::durable;
use ledge_base::names::ModelName;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::{Attempt, AttemptKey, Attempts, Suspect, TrialFailure, Verdict};
use crate::repository::LoadMode;

/// Name of the file in the box's state folder.
const FILE_NAME: &str = "load_attempts.jsonl";

/// A line after the first.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mark {
    Began(Attempt),
    Ended(Attempt),
}

/// A handle to the file. Clones share it.
#[derive(Debug, Clone)]
pub struct AttemptLog {
    state: Arc<Mutex<AttemptLogState>>,
    /// Notified when a trial is postponed, and when a suspect is cleared.
    changed: Arc<Notify>,
}

#[derive(Debug)]
struct AttemptLogState {
    attempts: Attempts,
    path: PathBuf,
    /// `None` while it cannot be written.
    file: Option<OpenLogFile>,
    is_reported: bool,
    /// The process is about to end in order.
    is_stopped: bool,
}

#[derive(Debug)]
struct OpenLogFile {
    file: File,
    /// The length of the first line.
    first_line: u64,
}

/// An attempt in progress. Dropping it records that it has ended and the process is alive.
#[derive(Debug)]
pub struct AttemptInProgress {
    log: AttemptLog,
    attempt: Attempt,
}

impl Drop for AttemptInProgress {
    fn drop(&mut self) {
        if self.log.lock().end(&self.attempt) {
            self.log.changed.notify_one();
        }
    }
}

impl AttemptLog {
    /// Reads the file that the last process left in `folder`, in this boot of the machine, and returns the suspects
    /// that ended that process.
    pub fn open(folder: &Path, boot: &str) -> (Self, Vec<Suspect>) {
        let path = folder.join(FILE_NAME);
        let (mut attempts, first_line) = match read(&path) {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(path = %path.display(), %error,
                    "the record of loads that ended the process cannot be read; it is set aside");
                let _ = durable::rename(&path, &path.with_extension("jsonl.damaged"));
                (Attempts::default(), 0)
            }
        };
        let known = attempts.clone();
        let to_blame = attempts.start(boot, clock::unix_millis());
        let mut state = AttemptLogState { attempts, path, file: None, is_reported: false, is_stopped: false };
        // The marks of the last process are removed in either case.
        let is_known =
            first_line > 0 && (&known.boot, &known.suspects) == (&state.attempts.boot, &state.attempts.suspects);
        let cut_off = is_known && state.reopen(first_line).and_then(|()| state.cut_off_marks()).is_ok();
        if !cut_off {
            state.write_all();
        }
        (Self { state: Arc::new(Mutex::new(state)), changed: Arc::default() }, to_blame)
    }

    /// Decides how the version may be loaded.
    pub fn verdict(&self, key: &AttemptKey, mode: LoadMode) -> Verdict {
        let state = self.lock();
        match state.attempts.verdict(key, mode, clock::unix_millis()) {
            Verdict::Alone if state.file.is_none() => Verdict::AfterTrial,
            verdict => verdict,
        }
    }

    /// Records that the attempt begins. Dropping the returned value records its end.
    pub fn begin(&self, attempt: Attempt) -> AttemptInProgress {
        self.lock().begin(attempt.clone());
        AttemptInProgress { log: self.clone(), attempt }
    }

    /// Records a failed trial. Returns the reason why the model is not loaded.
    pub fn record_failed_trial(&self, key: &AttemptKey, finding: &TrialFailure) -> String {
        let mut state = self.lock();
        let reason = state.attempts.record_failed_trial(key, finding, clock::unix_millis());
        state.write_all();
        self.changed.notify_one();
        reason
    }

    /// Records that the process ends in order from here on: no attempt is to blame for it.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.is_stopped = true;
        state.attempts.stop();
        if state.file.is_some() && state.cut_off_marks().is_err() {
            state.write_all();
        }
    }

    /// The models whose next trial is due.
    pub fn due(&self) -> Vec<(AttemptKey, ModelName)> {
        self.lock().attempts.due(clock::unix_millis())
    }

    /// Waits until a trial is due, or a suspect is cleared. It may be too early, never too late.
    pub async fn trial_due(&self) {
        let next_due_ms = self.lock().attempts.next_due_ms(clock::unix_millis());
        let due = async {
            match next_due_ms {
                Some(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {}
            () = self.changed.notified() => {}
        }
    }

    /// Removes a suspect whose files no longer exist.
    pub fn forget(&self, key: &AttemptKey) {
        let mut state = self.lock();
        if state.attempts.forget(key) {
            state.write_all();
        }
    }

    /// The models that are to blame, or may be.
    pub fn suspects(&self) -> Vec<Suspect> {
        self.lock().attempts.suspects().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, AttemptLogState> {
        // Nothing panics under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The models in the file of `folder` that ended a process, or may have; none when it cannot be read.
pub fn suspects(folder: &Path) -> Vec<Suspect> {
    let attempts = read(&folder.join(FILE_NAME)).map(|(attempts, _)| attempts).unwrap_or_default();
    attempts.suspects().cloned().collect()
}

impl AttemptLogState {
    fn begin(&mut self, attempt: Attempt) {
        if self.is_stopped {
            return;
        }
        self.attempts.begin(attempt.clone());
        // There may be free space again.
        if self.file.is_none() {
            self.write_all();
        } else if let Err(error) = self.append(&Mark::Began(attempt)) {
            self.give_up(&error);
        }
    }

    /// Records the end of an attempt; returns whether that changed what is known of a suspect.
    fn end(&mut self, attempt: &Attempt) -> bool {
        if self.is_stopped {
            return false;
        }
        if self.attempts.end(attempt) {
            self.write_all();
            return true;
        }
        if self.file.is_none() {
            return false;
        }
        let noted = match self.attempts.under_way() {
            [] => self.cut_off_marks(),
            // Without this mark a later death would be blamed on it: forget all attempts in progress instead.
            _ => self.append(&Mark::Ended(attempt.clone())).or_else(|_| self.cut_off_marks()),
        };
        if let Err(error) = noted {
            self.give_up(&error);
        }
        false
    }

    fn append(&mut self, mark: &Mark) -> io::Result<()> {
        let Some(OpenLogFile { file, .. }) = &mut self.file else { return Ok(()) };
        let mut line = serde_json::to_vec(mark)?;
        line.push(b'\n');
        let length = file.metadata()?.len();
        let written = file.write_all(&line);
        if written.is_err() {
            // Half a line would damage the next one.
            file.set_len(length)?;
        }
        written
    }

    fn cut_off_marks(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |kept| kept.file.set_len(kept.first_line))
    }

    /// Writes the whole file again. Its content survives a power cut.
    fn write_all(&mut self) {
        if let Err(error) = self.replace() {
            self.give_up(&error);
        }
    }

    fn replace(&mut self) -> io::Result<()> {
        let (content, first_line) = encode(&self.attempts)?;
        durable::replace(&self.path, &content)?;
        self.reopen(first_line)
    }

    fn reopen(&mut self, first_line: u64) -> io::Result<()> {
        let file = OpenOptions::new().append(true).open(&self.path)?;
        self.file = Some(OpenLogFile { file, first_line });
        self.is_reported = false;
        Ok(())
    }

    fn give_up(&mut self, error: &io::Error) {
        // The attempts that have a mark will not get one for their end.
        let _ = self.cut_off_marks();
        self.file = None;
        if !std::mem::replace(&mut self.is_reported, true) {
            tracing::warn!(path = %self.path.display(), %error,
                "cannot record loads: a model that ends the process will be loaded again at the next start");
        }
    }
}

/// The content of the file, with the length of its first line.
fn encode(attempts: &Attempts) -> serde_json::Result<(Vec<u8>, u64)> {
    let mut content = serde_json::to_vec(attempts)?;
    content.push(b'\n');
    let first_line = content.len() as u64;
    for attempt in attempts.under_way() {
        serde_json::to_writer(&mut content, &Mark::Began(attempt.clone()))?;
        content.push(b'\n');
    }
    Ok((content, first_line))
}

/// Reads the file, and the length of its first line; empty when there is none. A line that is cut off is ignored.
fn read(path: &Path) -> io::Result<(Attempts, u64)> {
    match std::fs::read(path) {
        Ok(content) => parse(&content).map_err(io::Error::from),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((Attempts::default(), 0)),
        Err(error) => Err(error),
    }
}

fn parse(content: &[u8]) -> serde_json::Result<(Attempts, u64)> {
    let mut lines = content.split_inclusive(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let mut attempts: Attempts = serde_json::from_slice(first)?;
    for line in lines {
        match serde_json::from_slice(line) {
            Ok(Mark::Began(attempt)) => attempts.begin(attempt),
            Ok(Mark::Ended(attempt)) => drop(attempts.end(&attempt)),
            Err(_) => {}
        }
    }
    // No mark is appended to a line without an end.
    Ok((attempts, if first.ends_with(b"\n") { first.len() as u64 } else { 0 }))
}

/// Reads the record of attempts; true when it is one. It is the same after it was written and read again, and appending
/// begins behind a whole line. The folder `fuzz/` and `tests/it/fuzz.rs` feed it.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_load_attempts(data: &[u8]) -> bool {
    let Ok((attempts, first_line)) = parse(data) else { return false };
    let (first, _) = data.split_at(usize::try_from(first_line).unwrap_or(usize::MAX));
    assert!(first.is_empty() || first.ends_with(b"\n"));
    let (written, first_line) = encode(&attempts).unwrap_or_default();
    assert!(parse(&written).is_ok_and(|again| again == (attempts, first_line)), "{}", written.escape_ascii());
    true
}

#[cfg(test)]
mod tests;
