//! The standard error of another process of this program: a pipe that this process reads, bounds and logs.
//!
//! The process reads foreign bytes, so an attacker who controls it can write any text. Each line becomes a field of a
//! line in this process's own log, with the name and the id of the other process. It cannot look like a line of Ledge,
//! truncate the log, or fill the disk. Reading is bounded too, and the writing end never blocks: text without room in
//! the pipe is lost.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ledge_base::token_bucket::{BucketRefill, TokenBucket};
use rustix::fs::OFlags;
use rustix::pipe::PipeFlags;

/// The most bytes of a line. The rest of a longer one is dropped.
const LINE_BYTES_MAX: usize = 500;

/// The lines of one process that are logged: at once, then one in each interval.
const LINES: BucketRefill = BucketRefill { interval: Duration::from_secs(10), burst: 100 };

/// The most lines of one process.
const LINES_MAX: u32 = 2000;

/// The lines of all processes together: a process may be started for each document.
const LINES_OF_ALL: BucketRefill = BucketRefill { interval: Duration::from_secs(5), burst: 400 };

/// The reads of one process, each of at most `CHUNK_BYTES`: 64 KiB a second.
const READS: BucketRefill = BucketRefill { interval: Duration::from_millis(62), burst: 64 };
const CHUNK_BYTES: usize = 4096;

/// The pause when there were too many reads. Its writer finds the pipe full meanwhile.
const READ_PAUSE: Duration = Duration::from_secs(1);

/// The last lines that are kept for the reason of an end.
const LAST_LINES: usize = 4;

/// The bytes of the stack of the thread that reads.
const STACK_BYTES: usize = 256 << 10;

/// The bucket of [`LINES_OF_ALL`].
static OF_ALL: Mutex<Option<TokenBucket>> = Mutex::new(None);

/// The reading end of the standard error of another process.
#[derive(Debug)]
pub struct ChildStderr(OwnedFd);

impl ChildStderr {
    /// Makes a pipe: this end, and the standard error of a process to be started.
    pub fn pipe() -> io::Result<(Self, OwnedFd)> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        rustix::fs::fcntl_setfl(&write, OFlags::WRONLY | OFlags::NONBLOCK)?;
        Ok((Self(read), write))
    }

    /// The reading end that the previous program of this process left open.
    pub fn left(pipe: OwnedFd) -> Self {
        Self(pipe)
    }

    /// Another handle of this end.
    pub fn file(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Logs its lines on a separate thread until its writers have ended. In a program without a log, passes them on to
    /// standard error. At the end calls `on_end` with the last lines. `process` is the name of its kind.
    pub fn pass_on(
        self,
        process: &'static str,
        pid: u32,
        on_end: impl FnOnce(String) + Send + 'static,
    ) -> io::Result<()> {
        let mut log = ChildLog::new(process, pid, Instant::now());
        let pass_on = move || {
            read(self.0.into(), |bytes| log.take(bytes, Instant::now()));
            on_end(log.end());
        };
        let thread = std::thread::Builder::new().name(format!("{process}-errors")).stack_size(STACK_BYTES);
        thread.spawn(pass_on).map(drop)
    }
}

/// Reads a pipe to its end, slowly enough to cost little for any content.
fn read(mut pipe: File, mut take: impl FnMut(&[u8])) {
    let mut reads = TokenBucket::new(Instant::now());
    let mut chunk = [0; CHUNK_BYTES];
    loop {
        match pipe.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => return,
            Ok(count) => take(chunk.get(..count).unwrap_or_default()),
        }
        if reads.take(READS, Instant::now()).is_err() {
            std::thread::sleep(READ_PAUSE);
        }
    }
}

/// The lines of one process.
struct ChildLog {
    process: &'static str,
    pid: u32,
    /// The beginning of a line that has not ended yet.
    line: Vec<u8>,
    /// True when more of that line came.
    is_cut: bool,
    bucket: TokenBucket,
    left: u32,
    /// Lines since the last one that was logged.
    suppressed: u64,
    last: Vec<String>,
}

impl ChildLog {
    fn new(process: &'static str, pid: u32, now: Instant) -> Self {
        let bucket = TokenBucket::new(now);
        Self { process, pid, line: Vec::new(), is_cut: false, bucket, left: LINES_MAX, suppressed: 0, last: Vec::new() }
    }

    fn take(&mut self, bytes: &[u8], now: Instant) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (part, is_whole) = part.strip_suffix(b"\n").map_or((part, false), |part| (part, true));
            let room = LINE_BYTES_MAX - self.line.len();
            self.is_cut |= part.len() > room;
            self.line.extend(part.iter().take(room));
            if is_whole {
                self.finish_line(now);
            }
        }
    }

    fn finish_line(&mut self, now: Instant) {
        let mut said = printable(&std::mem::take(&mut self.line));
        if std::mem::take(&mut self.is_cut) {
            said.push('…');
        }
        if said.is_empty() {
            return;
        }
        if self.may_log(now) {
            self.log(&said);
            self.suppressed = 0;
        } else {
            self.suppressed += 1;
        }
        if self.last.len() == LAST_LINES {
            self.last.remove(0);
        }
        self.last.push(said);
    }

    fn may_log(&mut self, now: Instant) -> bool {
        if self.left == 0 || self.bucket.take(LINES, now).is_err() {
            return false;
        }
        let mut of_all = OF_ALL.lock().unwrap_or_else(PoisonError::into_inner);
        if of_all.get_or_insert_with(|| TokenBucket::new(now)).take(LINES_OF_ALL, now).is_err() {
            return false;
        }
        self.left -= 1;
        true
    }

    fn log(&self, said: &str) {
        let Self { process, pid, suppressed, .. } = self;
        if tracing::dispatcher::has_been_set() {
            // Last, as text, so that its content cannot imitate text of Ledge after it.
            tracing::warn!(process, pid, suppressed, said, "another process of Ledge wrote to its standard error");
        } else {
            let _ = writeln!(io::stderr(), "{process} {pid}: {said}");
        }
    }

    /// The last lines.
    fn end(mut self) -> String {
        self.finish_line(Instant::now());
        if self.suppressed > 0 {
            self.log("(the last lines were too many to be logged)");
        }
        self.last.join("\n")
    }
}

/// The text without characters that would change how others are shown.
fn printable(bytes: &[u8]) -> String {
    let is_shown = |letter: char| {
        !letter.is_control()
            // Line separators, and marks that change the direction of the following text.
            && !matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}')
    };
    let text = String::from_utf8_lossy(bytes);
    text.trim_end().chars().map(|letter| if is_shown(letter) { letter } else { ' ' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_of(bytes: &[u8]) -> ChildLog {
        let now = Instant::now();
        let mut log = ChildLog::new("worker", 1, now);
        log.take(bytes, now);
        log
    }

    #[test]
    fn a_line_is_cut_and_has_no_control_characters() {
        let said = log_of(b"a\x1b[2J\rb\xff\xe2\x80\xaec\n\n  \n").end();
        assert_eq!(said, "a [2J b\u{fffd} c");
        let said = log_of(&[b'x'; 5000]).end();
        assert_eq!((said.chars().count(), said.ends_with("x…")), (LINE_BYTES_MAX + 1, true));
    }

    #[test]
    fn a_line_that_comes_in_parts_is_one_and_the_last_lines_are_kept() {
        let now = Instant::now();
        let mut log = ChildLog::new("worker", 1, now);
        for part in ["one\ntw", "o", "\nthree\nfour\nfi", "ve"] {
            log.take(part.as_bytes(), now);
        }
        assert_eq!(log.end(), "two\nthree\nfour\nfive");
    }

    #[test]
    fn lines_are_logged_at_a_bounded_rate_and_in_a_bounded_number() {
        let now = Instant::now();
        let mut log = ChildLog::new("worker", 1, now);
        let mut logged = |at: Instant| u32::try_from((0..10_000).filter(|_| log.may_log(at)).count()).unwrap();
        assert_eq!(logged(now), LINES.burst);
        assert_eq!(logged(now + LINES.interval * 3), 3);
        let total: u32 = (1..100).map(|round| logged(now + LINES.interval * 1000 * round)).sum();
        assert_eq!(total, LINES_MAX - LINES.burst - 3);
    }

    #[test]
    fn a_writer_is_not_blocked_by_a_pipe_that_is_full() {
        let (reader, writer) = ChildStderr::pipe().unwrap();
        let refused = loop {
            match rustix::io::write(&writer, &[b'x'; CHUNK_BYTES]) {
                Ok(_) => {}
                Err(error) => break io::Error::from(error),
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(writer);
        let (sender, ended) = std::sync::mpsc::channel();
        reader.pass_on("worker", 1, move |last| sender.send(last).unwrap()).unwrap();
        assert!(ended.recv().unwrap().starts_with("xxx"));
    }
}
