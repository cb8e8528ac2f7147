//! A lane: the shared memory of one core, through which the daemon gives the child one job at a time.
//!
//! ```text
//! words   REQUEST  the number of the last job asked for; the child sleeps until it changes
//!         ANSWER   the number of the last job answered; the daemon sleeps until it is that of its job
//!         HEADS    where the heads of the job and of the answer lie
//!         THREAD   the thread of the child behind the lane, by the kernel's number
//! inputs  head and large bytes of the job       written by the daemon
//! outputs large bytes and head of the answer    written by the child
//! ```
//!
//! The daemon believes nothing of what the child left: lengths and places are checked against the memory, and everything
//! is copied before it is looked at.

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

/// Places of the words, each in a cache line of its own where both sides use it at a time.
const REQUEST: usize = 0;
const ANSWER: usize = 64;
const REQUEST_HEAD: usize = 128;
const ANSWER_HEAD: usize = 192;
const THREAD: usize = 256;
/// Where the inputs begin.
const INPUTS: usize = 4096;
/// The most bytes of inputs of one job, and of the outputs: eight times the largest body that is allowed by default.
const AREA_BYTES: usize = 512 << 20;
const OUTPUTS: usize = INPUTS + AREA_BYTES;
const LENGTH: usize = OUTPUTS + AREA_BYTES;
/// The bytes of each area that a lane keeps between jobs.
const KEPT_BYTES: usize = 8 << 20;
/// Alignment of large bytes: that of the widest vectors of a CPU.
const ALIGNMENT: usize = 64;
/// The most bytes of the head of an answer. Errors and shapes take some hundred.
const HEAD_BYTES_MAX: usize = 1 << 20;

/// Large bytes of a job or an answer, in its area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub offset: usize,
    pub length: usize,
}

/// The way an answer did not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAnswer {
    /// The child has ended, or this lane was closed.
    Closed,
    /// The time is over; the child is still at work.
    Late,
}

/// The reason why a job or an answer is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LaneError {
    #[error("it has more than {AREA_BYTES} bytes")]
    TooLarge,
    #[error("its head cannot be read")]
    Head,
    #[error("it does not lie within the shared memory")]
    Outside,
}

/// The memory of one lane, as either side sees it.
#[derive(Debug, Clone)]
pub struct Lane {
    memory: Arc<SharedMemory>,
}

/// Writes large bytes into an area, one after the other.
#[derive(Debug)]
pub struct Writer<'l> {
    lane: &'l Lane,
    start: usize,
    used: usize,
}

impl Writer<'_> {
    /// Copies `bytes`, and tells where they are.
    pub fn put(&mut self, bytes: &[u8]) -> Result<Place, LaneError> {
        let offset = self.used.next_multiple_of(ALIGNMENT);
        let end = offset.checked_add(bytes.len()).filter(|end| *end <= AREA_BYTES).ok_or(LaneError::TooLarge)?;
        if !self.lane.memory.write(self.start + offset, bytes) {
            return Err(LaneError::Outside);
        }
        self.used = end;
        Ok(Place { offset, length: bytes.len() })
    }

    /// The bytes of the area that are in use.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Writes the head behind them, and notes its place in the words at `words`.
    fn finish(mut self, head: &impl Serialize, words: usize) -> Result<usize, LaneError> {
        let head = postcard::to_allocvec(head).map_err(|_| LaneError::Head)?;
        let Place { offset, length } = self.put(&head)?;
        let word = |number: usize| u32::try_from(number).map_err(|_| LaneError::TooLarge);
        self.lane.memory.word(words).store(word(offset)?, Ordering::Relaxed);
        self.lane.memory.word(words + 4).store(word(length)?, Ordering::Relaxed);
        Ok(self.used)
    }
}

impl Lane {
    /// The bytes of one lane.
    pub const LENGTH: usize = LENGTH;

    pub fn new(memory: SharedMemory) -> Self {
        Self { memory: Arc::new(memory) }
    }

    /// Of the daemon: the writer of a job's large bytes.
    pub fn job(&self) -> Writer<'_> {
        Writer { lane: self, start: INPUTS, used: 0 }
    }

    /// Of the daemon: gives the job to the child. Returns its number.
    pub fn ask(&self, writer: Writer<'_>, head: &impl Serialize) -> Result<u32, LaneError> {
        writer.finish(head, REQUEST_HEAD)?;
        // Only the daemon writes this word; what a child made of it makes no difference but to the child.
        let number = self.memory.word(REQUEST).load(Ordering::Relaxed).wrapping_add(1);
        self.memory.word(REQUEST).store(number, Ordering::Release);
        wake(self.memory.word(REQUEST));
        Ok(number)
    }

    /// Of the daemon: waits until the answer to the job is there, `until` at most.
    pub fn wait(&self, number: u32, until: Instant, is_closed: impl Fn() -> bool) -> Result<(), NoAnswer> {
        let answer = self.memory.word(ANSWER);
        loop {
            // Read before the state of the child: when it ends, the word is changed after the state.
            let seen = answer.load(Ordering::Acquire);
            if is_closed() {
                return Err(NoAnswer::Closed);
            }
            if seen == number {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NoAnswer::Late);
            }
            sleep(answer, seen, Some(left));
        }
    }

    /// Of the daemon: the number of the job that has no answer yet.
    pub fn pending(&self) -> Option<u32> {
        let asked = self.memory.word(REQUEST).load(Ordering::Relaxed);
        (self.memory.word(ANSWER).load(Ordering::Relaxed) != asked).then_some(asked)
    }

    /// Of the daemon: wakes whoever waits for an answer, after the child was marked as closed.
    pub fn close(&self) {
        self.memory.word(ANSWER).fetch_add(1 << 31, Ordering::Release);
        wake(self.memory.word(ANSWER));
    }

    /// Of the daemon: the number of the child's thread behind this lane, as the child says.
    pub fn thread(&self) -> u32 {
        self.memory.word(THREAD).load(Ordering::Relaxed)
    }

    /// Of the child: tells the number of the calling thread, which serves this lane.
    pub fn serve_on(&self, thread: u32) {
        self.memory.word(THREAD).store(thread, Ordering::Relaxed);
    }

    /// Of the daemon: the head of the answer.
    pub fn answer_head<T: DeserializeOwned>(&self) -> Result<T, LaneError> {
        let place = self.place(ANSWER_HEAD);
        if place.length > HEAD_BYTES_MAX {
            return Err(LaneError::Head);
        }
        let head = self.answer_bytes(place)?;
        postcard::from_bytes(&head).map_err(|_| LaneError::Head)
    }

    /// Of the daemon: a copy of large bytes of the answer.
    pub fn answer_bytes(&self, Place { offset, length }: Place) -> Result<Vec<u8>, LaneError> {
        let is_within = offset.checked_add(length).is_some_and(|end| end <= AREA_BYTES);
        is_within.then(|| self.memory.read(OUTPUTS + offset, length)).flatten().ok_or(LaneError::Outside)
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

    /// Of the child: sleeps until there is a job with another number than `last`, and returns its number.
    pub fn next(&self, last: u32) -> u32 {
        let request = self.memory.word(REQUEST);
        loop {
            let seen = request.load(Ordering::Acquire);
            if seen != last {
                return seen;
            }
            sleep(request, seen, None);
        }
    }

    /// Of the child: the head of the job.
    pub fn job_head<T: DeserializeOwned>(&self) -> Result<T, LaneError> {
        let Place { offset, length } = self.place(REQUEST_HEAD);
        let head = self.memory.read(INPUTS + offset, length).ok_or(LaneError::Outside)?;
        postcard::from_bytes(&head).map_err(|_| LaneError::Head)
    }

    /// Of the child: large bytes of the job in place. They must be dropped before the answer is given.
    pub fn job_bytes(&self, Place { offset, length }: Place) -> Result<Bytes, LaneError> {
        self.memory.view(INPUTS + offset, length).ok_or(LaneError::Outside)
    }

    /// Of the child: the writer of an answer's large bytes.
    pub fn answer(&self) -> Writer<'_> {
        Writer { lane: self, start: OUTPUTS, used: 0 }
    }

    /// Of the child: gives the answer to the job of this number.
    pub fn reply(&self, number: u32, writer: Writer<'_>, head: &impl Serialize) -> Result<(), LaneError> {
        writer.finish(head, ANSWER_HEAD)?;
        self.memory.word(ANSWER).store(number, Ordering::Release);
        wake(self.memory.word(ANSWER));
        Ok(())
    }

    fn place(&self, words: usize) -> Place {
        let word = |offset| self.memory.word(offset).load(Ordering::Relaxed) as usize;
        Place { offset: word(words), length: word(words + 4) }
    }

    /// Fills everything that the child may write with these bytes, as a hostile child could.
    #[cfg(any(test, feature = "fault-injection"))]
    pub fn scribble(&self, byte: u8) {
        let _ = self.memory.write(ANSWER + 4, &[byte; INPUTS - ANSWER - 4]);
        let _ = self.memory.write(INPUTS, &vec![byte; KEPT_BYTES]);
        let _ = self.memory.write(OUTPUTS, &vec![byte; KEPT_BYTES]);
    }
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
