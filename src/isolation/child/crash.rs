//! A note of the thread that crashes, for the daemon: which lane or load it was in, and the signal.
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use ledge_base::sys;

use crate::shared_memory::SharedMemory;

/// The bytes of the report.
pub const LENGTH: usize = 4096;

/// Places of the words of the report.
const SIGNAL: usize = 0;
const WORK: usize = 4;
const JOB: usize = 8;

/// The work of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// None that is known.
    None,
    /// The job of this number in the lane with this index. An earlier job of the lane may be to blame for an end, and a
    /// later one may have been put there before the end was known.
    Lane { index: usize, job: u32 },
    /// The load of the model with this number.
    Load(u64),
}

/// A bit that tells a load from a lane.
const IS_LOAD: u32 = 1 << 31;

impl Work {
    /// The words of the work and of its job.
    fn words(self) -> [u32; 2] {
        let number = |number: u64| u32::try_from(number % u64::from(IS_LOAD - 1)).unwrap_or(0) + 1;
        match self {
            Self::None => [0, 0],
            Self::Lane { index, job } => [number(index as u64), job],
            Self::Load(model) => [number(model) | IS_LOAD, 0],
        }
    }

    fn of([word, job]: [u32; 2]) -> Option<Self> {
        let number = (word & !IS_LOAD).checked_sub(1)?;
        let index = number as usize;
        Some(if word & IS_LOAD == 0 { Self::Lane { index, job } } else { Self::Load(u64::from(number)) })
    }
}

/// The report, where the handler finds it.
static REPORT: OnceLock<SharedMemory> = OnceLock::new();

thread_local! {
    /// The work of this thread as words of the report; 0 is none. Without a destructor, so that a handler may read it.
    static WORK_HERE: Cell<[u32; 2]> = const { Cell::new([0; 2]) };
}

/// Says what the calling thread does from now on.
pub fn works_at(work: Work) {
    WORK_HERE.set(work.words());
}

/// Writes each crash of this process into `report`. To be called while there is one thread.
pub fn report_to(report: SharedMemory) {
    if REPORT.set(report).is_ok() {
        sys::handle_crashes(handle);
    }
}

/// Runs in a signal handler: it reads a thread-local without a destructor, and stores to atomic words of a mapping that is
/// never unmapped.
extern "C" fn handle(signal: std::ffi::c_int) {
    if let Some(report) = REPORT.get() {
        let signal = u32::try_from(signal).unwrap_or(u32::MAX);
        // The first crash counts: others may follow from it.
        let first = report.word(SIGNAL).compare_exchange(0, signal, Ordering::AcqRel, Ordering::Relaxed);
        if first.is_ok() {
            let [work, job] = WORK_HERE.get();
            report.word(JOB).store(job, Ordering::Relaxed);
            report.word(WORK).store(work, Ordering::Release);
        }
    }
    sys::end_by(signal);
}

/// Of the daemon, after the end of the child: the work that crashed, if the child knew it.
pub fn crashed(report: &SharedMemory) -> Option<Work> {
    let work = report.word(WORK).load(Ordering::Acquire);
    Work::of([work, report.word(JOB).load(Ordering::Relaxed)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_told_in_two_words() {
        let jobs = [(0, 0), (63, 1), (1, u32::MAX)].map(|(index, job)| Work::Lane { index, job });
        for work in jobs.into_iter().chain([Work::Load(0), Work::Load(123_456)]) {
            assert_eq!(Work::of(work.words()), Some(work));
        }
        assert_eq!(Work::of(Work::None.words()), None);
        assert_eq!(Work::of([IS_LOAD, 7]), None);
    }
}
