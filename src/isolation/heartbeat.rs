//! Signs of life of processes that may be frozen from outside: by SIGSTOP, a debugger, or the freezer of a control
//! group.
//!
//! The parent of a process reports at once when a signal stops it. Other ways to freeze a process show in its silence,
//! and only while it has work: then the daemon asks every second, and a dedicated thread of the child answers through
//! their shared memory. An idle child is not woken, and a run that takes long or never ends does not count as silence.
//! Nor does a child that uses CPU time count as frozen, however late its answer comes on a busy machine.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::job_channel;
use crate::shared_memory::SharedMemory;

/// Places of the words in the memory of the crash report, each in a separate cache line.
const ASKED: usize = 64;
const ANSWERED: usize = 128;

/// The interval of questions.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// The intervals of silence after which a process gets SIGCONT, and after which it is ended.
const CONTINUE_AFTER: u32 = 2;
const END_AFTER: u32 = 10;

/// A process that is stopped again within this time is ended, because it would be stopped again and again.
const STOPPED_AGAIN: Duration = Duration::from_secs(10);

/// Looks for signs of life of a process, once in each [`INTERVAL`].
pub trait HeartbeatProbe: Send + Sync + std::fmt::Debug {
    fn beat(&self);
}

/// The remedy for a process that is stopped or silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StallRemedy {
    /// Nothing: it lives, or there is no need yet.
    None,
    /// Send SIGCONT.
    Continue,
    /// End it.
    End,
}

/// The stops of one process by a signal.
#[derive(Debug, Default)]
pub struct ProcessStops(Option<Instant>);

impl ProcessStops {
    /// It was stopped.
    pub fn stopped(&mut self, now: Instant) -> StallRemedy {
        match self.0.replace(now) {
            Some(last) if now.saturating_duration_since(last) < STOPPED_AGAIN => StallRemedy::End,
            _ => StallRemedy::Continue,
        }
    }
}

/// The silence of one process.
#[derive(Debug, Default)]
pub struct HeartbeatSilence {
    intervals: u32,
    /// The CPU time that it had used.
    cpu: Duration,
}

impl HeartbeatSilence {
    /// An interval is over. `is_owed` says that the process has not answered, `cpu` is the CPU time that it has used.
    pub fn interval(&mut self, is_owed: bool, cpu: Duration) -> StallRemedy {
        if !is_owed || cpu > self.cpu {
            *self = Self { intervals: 0, cpu };
            return StallRemedy::None;
        }
        self.intervals += 1;
        match self.intervals {
            CONTINUE_AFTER => StallRemedy::Continue,
            END_AFTER.. => StallRemedy::End,
            _ => StallRemedy::None,
        }
    }
}

/// Of the daemon: asks for the next answer if the last question was answered. Returns true if it was not.
pub fn ask(memory: &SharedMemory) -> bool {
    let asked = memory.word(ASKED).load(Ordering::Relaxed);
    if memory.word(ANSWERED).load(Ordering::Acquire) != asked {
        return true;
    }
    memory.word(ASKED).store(asked.wrapping_add(1), Ordering::Release);
    job_channel::wake(memory.word(ASKED));
    false
}

/// Of the child: answers each question, for ever.
pub fn answer(memory: &SharedMemory) -> ! {
    let asked = memory.word(ASKED);
    let mut last = 0;
    loop {
        job_channel::sleep(asked, last, None);
        last = asked.load(Ordering::Acquire);
        memory.word(ANSWERED).store(last, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_process_that_is_stopped_goes_on_and_one_that_is_stopped_again_at_once_is_ended() {
        let (mut stops, now) = (ProcessStops::default(), Instant::now());
        assert_eq!(stops.stopped(now), StallRemedy::Continue);
        assert_eq!(stops.stopped(now + STOPPED_AGAIN), StallRemedy::Continue);
        assert_eq!(stops.stopped(now + STOPPED_AGAIN + SECOND), StallRemedy::End);
    }

    #[test]
    fn a_silent_process_without_cpu_time_goes_on_and_is_ended_in_the_end() {
        let mut silence = HeartbeatSilence::default();
        assert_eq!(silence.interval(true, SECOND), StallRemedy::None);
        let remedies: Vec<_> = (0..END_AFTER).map(|_| silence.interval(true, SECOND)).collect();
        let expected = |at| match at {
            1 => StallRemedy::Continue,
            9 => StallRemedy::End,
            _ => StallRemedy::None,
        };
        assert_eq!(remedies, (0..10).map(expected).collect::<Vec<_>>());
    }

    #[test]
    fn a_process_that_answers_or_uses_cpu_time_is_not_frozen() {
        let mut silence = HeartbeatSilence::default();
        for second in 1..100 {
            assert_eq!(silence.interval(true, SECOND * second), StallRemedy::None);
        }
        for _ in 1..100 {
            assert_eq!(silence.interval(false, SECOND), StallRemedy::None);
        }
    }

    #[test]
    fn a_question_is_owed_until_the_child_answers() {
        let (memory, file) = SharedMemory::create("test", 4096).unwrap();
        assert!(!ask(&memory), "nothing was asked before");
        assert!(ask(&memory));
        let other = SharedMemory::map(&file, 4096).unwrap();
        std::thread::spawn(move || answer(&other));
        while ask(&memory) {
            std::thread::yield_now();
        }
    }
}
