//! Releases the memory that runs have left in the runtimes: both keep that of their largest run, hundreds of megabytes
//! after one page of a document.
//!
//! A thread sleeps until a model has run. Then it looks for models without a run for some seconds, while the process
//! has more memory than after the last release. An idle process is not woken.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ledge_base::sys;
use ledge_base::telemetry::process;

use crate::job_channel;

/// The time without a run after which a model releases memory, and the interval in which models are looked at.
const IDLE: Duration = Duration::from_secs(5);

/// The growth of the resident memory that is worth a release, in bytes.
const GROWTH_MIN: u64 = 16 << 20;

const ASLEEP: u32 = 0;
const AWAKE: u32 = 1;

/// The models that have released memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReleasedMemory {
    pub any: bool,
    /// None has run since its last release.
    pub all: bool,
}

/// The state of the thread that releases memory.
#[derive(Debug, Default)]
pub struct IdleMemory(AtomicU32);

impl IdleMemory {
    /// A model has run.
    pub fn ran(&self) {
        if self.0.load(Ordering::Relaxed) == ASLEEP && self.0.swap(AWAKE, Ordering::AcqRel) == ASLEEP {
            job_channel::wake(&self.0);
        }
    }

    /// Releases memory for ever, by calls of `release_since` for models that have not run since a time.
    pub fn release(&self, release_since: impl Fn(Instant) -> ReleasedMemory) -> ! {
        // The resident memory after the last release of all models, and after the last return of free memory.
        let (mut least, mut returned) = (0, 0);
        loop {
            while self.0.load(Ordering::Acquire) == ASLEEP {
                job_channel::sleep(&self.0, ASLEEP, None);
            }
            std::thread::sleep(IDLE);
            // A run from here on wakes the thread again.
            self.0.store(ASLEEP, Ordering::Release);
            if process::resident_bytes() < least + GROWTH_MIN {
                continue;
            }
            let idle_since = Instant::now().checked_sub(IDLE);
            let released = idle_since.map_or_else(ReleasedMemory::default, &release_since);
            if released.any || process::resident_bytes() > returned + GROWTH_MIN {
                sys::return_free_memory();
                returned = process::resident_bytes();
            }
            if released.all {
                least = returned;
            } else {
                // One has run meanwhile, or runs now.
                self.0.store(AWAKE, Ordering::Release);
            }
        }
    }
}
