//! A job channel: the shared memory through which the daemon gives the child the jobs of one core. A hand-over has one
//! job, or a few brief ones, which the child does one after the other.
//!
//! ```text
//! words   REQUEST  the number of the last job asked for; the child sleeps until it changes
//!         TAKEN    the number of the last job that the child has begun
//!         ANSWER   the number of the last job answered; the daemon sleeps until it is that of its job
//!         AWAITED  the number of the job for whose answer the daemon wants to be woken
//!         THREAD   the thread of the child that serves the channel, by the kernel's number
//!         HEADS    for each job of a hand-over where its head lies, and where that of its answer lies
//! inputs  large bytes and heads of the jobs       written by the daemon
//! outputs large bytes and heads of the answers    written by the child
//! ```
//!
//! The daemon does not trust the content that the child left: lengths and places are checked against the memory, and
//! everything is copied before it is examined.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::Timespec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::shared_memory::SharedMemory;

/// Places of the words. Words that both sides use at the same time are in separate cache lines.
const REQUEST: usize = 0;
const ANSWER: usize = 64;
const TAKEN: usize = 128;
const AWAITED: usize = 192;
const THREAD: usize = 256;
/// For each job of a hand-over: offset and length of a head, and the position of the job in the hand-over.
const REQUEST_HEADS: usize = 512;
const ANSWER_HEADS: usize = REQUEST_HEADS + JOBS_MAX * HEAD_WORDS_BYTES;
const HEAD_WORDS_BYTES: usize = 12;
/// The most jobs of one hand-over.
pub const JOBS_MAX: usize = 16;
/// The bit that the daemon changes in [`TAKEN`] so that the child begins no further job.
const WITHDRAWN: u32 = 1 << 31;
/// Where the inputs begin.
const INPUTS: usize = 4096;
/// The most bytes of inputs of one job, and of the outputs: eight times the largest body that is allowed by default.
const AREA_BYTES: usize = 512 << 20;
const OUTPUTS: usize = INPUTS + AREA_BYTES;
const LENGTH: usize = OUTPUTS + AREA_BYTES;
/// The bytes of each area that a channel keeps between jobs.
const KEPT_BYTES: usize = 8 << 20;
/// Alignment of large bytes: that of the widest vectors of a CPU.
const ALIGNMENT: usize = 64;
/// The most bytes of the head of an answer. Errors and shapes take some hundred.
const HEAD_BYTES_MAX: usize = 1 << 20;

/// Large bytes of a job or an answer, in its area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteRange {
    pub offset: usize,
    pub length: usize,
}

/// The way an answer did not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobAnswerError {
    /// The child has ended, or this channel was closed.
    Closed,
    /// The time is over; the child is still at work.
    Late,
}

/// The reason why a job or an answer is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JobChannelError {
    #[error("it has more than {AREA_BYTES} bytes")]
    TooLarge,
    #[error("its head cannot be read")]
    Head,
    #[error("it does not lie within the shared memory")]
    Outside,
}

/// The memory of one channel, as either side sees it.
#[derive(Debug, Clone)]
pub struct JobChannel {
    memory: Arc<SharedMemory>,
}

/// Writes large bytes into an area, one after the other.
#[derive(Debug)]
pub struct AreaWriter<'l> {
    channel: &'l JobChannel,
    start: usize,
    used: usize,
}

impl AreaWriter<'_> {
    /// Copies `bytes`, and returns their place.
    pub fn put(&mut self, bytes: &[u8]) -> Result<ByteRange, JobChannelError> {
        let offset = self.used.next_multiple_of(ALIGNMENT);
        let end = offset.checked_add(bytes.len()).filter(|end| *end <= AREA_BYTES).ok_or(JobChannelError::TooLarge)?;
        if !self.channel.memory.write(self.start + offset, bytes) {
            return Err(JobChannelError::Outside);
        }
        self.used = end;
        Ok(ByteRange { offset, length: bytes.len() })
    }

    /// The bytes of the area that are in use.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Writes a head behind them, and notes its place and the position of its job in the words at `words`.
    fn put_head(&mut self, head: &impl Serialize, words: usize, position: usize) -> Result<(), JobChannelError> {
        let head = postcard::to_allocvec(head).map_err(|_| JobChannelError::Head)?;
        let ByteRange { offset, length } = self.put(&head)?;
        for (at, number) in [offset, length, position].into_iter().enumerate() {
            let number = u32::try_from(number).map_err(|_| JobChannelError::TooLarge)?;
            self.channel.memory.word(words + 4 * at).store(number, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl JobChannel {
    /// The bytes of one channel.
    pub const LENGTH: usize = LENGTH;

    pub fn new(memory: SharedMemory) -> Self {
        Self { memory: Arc::new(memory) }
    }

    /// Of the daemon: the writer of the large bytes of a hand-over.
    pub fn jobs(&self) -> AreaWriter<'_> {
        AreaWriter { channel: self, start: INPUTS, used: 0 }
    }

    /// Of the daemon: adds the next job of a hand-over, behind its large bytes. Returns its number. There may be
    /// [`JOBS_MAX`] of them; the child gets them with [`Self::ask`].
    pub fn add(
        &self,
        area: &mut AreaWriter<'_>,
        position: usize,
        head: &impl Serialize,
    ) -> Result<u32, JobChannelError> {
        let behind = u32::try_from(position).ok().filter(|_| position < JOBS_MAX).ok_or(JobChannelError::TooLarge)?;
        // Only the daemon needs this word to be right. A child that changes it harms only itself.
        let number = self.memory.word(REQUEST).load(Ordering::Relaxed).wrapping_add(behind + 1);
        area.put_head(head, head_words(REQUEST_HEADS, number), position)?;
        Ok(number)
    }

    /// Of the daemon: gives the child the jobs that were added, the last of which has this number.
    pub fn ask(&self, last: u32) {
        let before = self.memory.word(REQUEST).load(Ordering::Relaxed);
        // It differs after a withdrawal.
        self.memory.word(TAKEN).store(before, Ordering::Release);
        self.memory.word(REQUEST).store(last, Ordering::Release);
        wake(self.memory.word(REQUEST));
    }

    /// Of the daemon: waits until the answer to the job `number` is there, `until` at most. `last` is the last job of
    /// its hand-over.
    pub fn wait(
        &self,
        number: u32,
        last: u32,
        until: Instant,
        is_closed: impl Fn() -> bool,
    ) -> Result<(), JobAnswerError> {
        let answer = self.memory.word(ANSWER);
        loop {
            // Read before the state of the child: when it ends, the word is changed after the state.
            let seen = answer.load(Ordering::SeqCst);
            if is_closed() {
                return Err(JobAnswerError::Closed);
            }
            if is_at_or_behind(seen, number, last) {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(JobAnswerError::Late);
            }
            // Stored before the kernel reads the answer for the last time, so that at least one side sees the other's
            // write.
            self.memory.word(AWAITED).store(number, Ordering::SeqCst);
            if answer.load(Ordering::SeqCst) == seen {
                sleep(answer, seen, Some(left));
            }
        }
    }

    /// Of the daemon: takes back the jobs that the child has not begun, of a hand-over of `count` jobs that ends with
    /// `last`. Returns the number of the last one that it keeps, perhaps that of the job before the hand-over.
    pub fn withdraw(&self, last: u32, count: u32) -> u32 {
        // From here on the child cannot take another one, until the next hand-over sets the word again.
        let taken = self.memory.word(TAKEN).fetch_xor(WITHDRAWN, Ordering::AcqRel);
        let kept = if last.wrapping_sub(taken) <= count { taken } else { last };
        self.memory.word(REQUEST).store(kept, Ordering::Release);
        // It may sleep until this word changes.
        wake(self.memory.word(REQUEST));
        kept
    }

    /// Of the daemon: the number of the job that the child is at, or is to begin.
    pub fn pending(&self) -> Option<u32> {
        let asked = self.memory.word(REQUEST).load(Ordering::Relaxed);
        let answered = self.memory.word(ANSWER).load(Ordering::Relaxed);
        // In a closed channel the difference is not a number of jobs.
        let is_number = usize::try_from(asked.wrapping_sub(answered)).is_ok_and(|behind| behind <= JOBS_MAX);
        (answered != asked).then(|| if is_number { answered.wrapping_add(1) } else { asked })
    }

    /// Of the daemon: wakes the threads that wait for an answer, after the child was marked as closed.
    pub fn close(&self) {
        self.memory.word(ANSWER).fetch_add(1 << 31, Ordering::Release);
        wake(self.memory.word(ANSWER));
    }

    /// Of the daemon: the number of the child's thread that serves this channel, as the child states it.
    pub fn thread(&self) -> u32 {
        self.memory.word(THREAD).load(Ordering::Relaxed)
    }

    /// Of the child: states the number of the calling thread, which serves this channel.
    pub fn serve_on(&self, thread: u32) {
        self.memory.word(THREAD).store(thread, Ordering::Relaxed);
    }

    /// Of the daemon: the head of the answer to this job.
    pub fn answer_head<T: DeserializeOwned>(&self, number: u32) -> Result<T, JobChannelError> {
        let place = self.place(head_words(ANSWER_HEADS, number));
        if place.length > HEAD_BYTES_MAX {
            return Err(JobChannelError::Head);
        }
        let head = self.answer_bytes(place)?;
        postcard::from_bytes(&head).map_err(|_| JobChannelError::Head)
    }

    /// Of the daemon: a copy of large bytes of the answer.
    pub fn answer_bytes(&self, ByteRange { offset, length }: ByteRange) -> Result<Vec<u8>, JobChannelError> {
        let is_within = offset.checked_add(length).is_some_and(|end| end <= AREA_BYTES);
        is_within.then(|| self.memory.read(OUTPUTS + offset, length)).flatten().ok_or(JobChannelError::Outside)
    }

    /// Of the daemon, after the answer was read: gives back the memory of large bytes.
    pub fn release(&self, inputs: usize, outputs: usize) {
        for (start, used) in [(INPUTS, inputs), (OUTPUTS, outputs)] {
            if used > KEPT_BYTES {
                // The head and its alignment come behind the large bytes.
                let end = used.saturating_add(HEAD_BYTES_MAX).min(AREA_BYTES);
                self.memory.release(start + KEPT_BYTES, start + end);
            }
        }
    }

    /// Of the child: sleeps until there is a job behind the job `last`, takes it, and returns its number.
    pub fn next(&self, last: u32) -> u32 {
        let (request, taken) = (self.memory.word(REQUEST), self.memory.word(TAKEN));
        let next = last.wrapping_add(1);
        loop {
            let seen = request.load(Ordering::Acquire);
            let is_there = seen != last;
            if is_there && taken.compare_exchange(last, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return next;
            }
            // For a job that was withdrawn the daemon is about to change the word.
            sleep(request, seen, None);
        }
    }

    /// Of the child: the head of this job, and if it is the first of its hand-over.
    pub fn job_head<T: DeserializeOwned>(&self, number: u32) -> Result<(T, bool), JobChannelError> {
        let words = head_words(REQUEST_HEADS, number);
        let ByteRange { offset, length } = self.place(words);
        let is_first = self.memory.word(words + 8).load(Ordering::Relaxed) == 0;
        let head = self.memory.read(INPUTS + offset, length).ok_or(JobChannelError::Outside)?;
        Ok((postcard::from_bytes(&head).map_err(|_| JobChannelError::Head)?, is_first))
    }

    /// Of the child: large bytes of the job in place. They must be dropped before the answer is given.
    pub fn job_bytes(&self, ByteRange { offset, length }: ByteRange) -> Result<Bytes, JobChannelError> {
        self.memory.view(INPUTS + offset, length).ok_or(JobChannelError::Outside)
    }

    /// Of the child: the writer of an answer's large bytes, behind the bytes that the answers before it in its
    /// hand-over use.
    pub fn answer(&self, used: usize) -> AreaWriter<'_> {
        AreaWriter { channel: self, start: OUTPUTS, used }
    }

    /// Of the child: gives the answer to the job of this number. Returns the bytes of the area that are in use.
    pub fn reply(
        &self,
        number: u32,
        mut writer: AreaWriter<'_>,
        head: &impl Serialize,
    ) -> Result<usize, JobChannelError> {
        writer.put_head(head, head_words(ANSWER_HEADS, number), 0)?;
        self.memory.word(ANSWER).store(number, Ordering::SeqCst);
        // The daemon wants nothing of the other answers of a hand-over before the last is there.
        if self.memory.word(AWAITED).load(Ordering::SeqCst) == number {
            wake(self.memory.word(ANSWER));
        }
        Ok(writer.used)
    }

    fn place(&self, words: usize) -> ByteRange {
        let word = |offset| self.memory.word(offset).load(Ordering::Relaxed) as usize;
        ByteRange { offset: word(words), length: word(words + 4) }
    }

    /// Fills everything that the child may write with these bytes, as a hostile child could.
    #[cfg(any(test, feature = "fault-injection"))]
    pub fn scribble(&self, byte: u8) {
        let _ = self.memory.write(ANSWER + 4, &[byte; INPUTS - ANSWER - 4]);
        let _ = self.memory.write(INPUTS, &vec![byte; KEPT_BYTES]);
        let _ = self.memory.write(OUTPUTS, &vec![byte; KEPT_BYTES]);
    }
}

/// The words for the head of this job at `heads`.
fn head_words(heads: usize, number: u32) -> usize {
    heads + number as usize % JOBS_MAX * HEAD_WORDS_BYTES
}

/// True when the job `number` is not behind the job `seen`, in a hand-over that ends with the job `last`.
fn is_at_or_behind(seen: u32, number: u32, last: u32) -> bool {
    last.wrapping_sub(seen) <= last.wrapping_sub(number)
}

/// Sleeps until the word is woken, if it is still `seen`.
pub(crate) fn sleep(word: &AtomicU32, seen: u32, time: Option<Duration>) {
    let time = time.and_then(|time| Timespec::try_from(time).ok());
    match futex::wait(word, futex::Flags::empty(), seen, time.as_ref()) {
        // Changed meanwhile, interrupted by a signal, or the time is over: the caller looks again.
        Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
        // Nothing else is possible for a word that is mapped; without a pause the caller would spin.
        Err(_) => std::thread::sleep(Duration::from_millis(1)),
    }
}

pub(crate) fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

#[cfg(test)]
mod tests;
