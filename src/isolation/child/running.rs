//! The runs of a child that can be cancelled: one for each channel.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ledge_engine::backend::CancelRun;

/// The run of each channel.
pub struct RunningJobs(Vec<Mutex<Option<CancellableRun>>>);

struct CancellableRun {
    job: u32,
    canceller: Arc<dyn CancelRun>,
    is_cancelled: bool,
}

impl RunningJobs {
    /// Has no run for any of the `channels` channels.
    pub fn new(channels: usize) -> Self {
        Self((0..channels).map(|_| Mutex::default()).collect())
    }

    /// Notes that a channel runs a job, which can be cancelled until [`Self::end`].
    pub fn begin(&self, channel: usize, job: u32, canceller: Option<Arc<dyn CancelRun>>) {
        if let Some(mut run) = self.lock(channel) {
            *run = canceller.map(|canceller| CancellableRun { job, canceller, is_cancelled: false });
        }
    }

    /// Notes that the run of a channel has ended.
    pub fn end(&self, channel: usize) {
        if let Some(mut run) = self.lock(channel)
            && let Some(CancellableRun { canceller, is_cancelled: true, .. }) = run.take()
        {
            canceller.reset();
        }
    }

    /// Cancels the run of this job. The lock ensures that it does not cancel the next run of the channel, perhaps of
    /// the same model.
    pub fn cancel(&self, channel: usize, job: u32) {
        if let Some(mut run) = self.lock(channel)
            && let Some(run) = run.as_mut().filter(|run| run.job == job)
        {
            run.is_cancelled = true;
            run.canceller.cancel();
        }
    }

    fn lock(&self, channel: usize) -> Option<MutexGuard<'_, Option<CancellableRun>>> {
        // Nothing panics under this lock.
        Some(self.0.get(channel)?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts the calls of `cancel` and `reset`.
    #[derive(Default)]
    struct CountingCanceller(AtomicUsize, AtomicUsize);

    impl CancelRun for CountingCanceller {
        fn cancel(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn reset(&self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn cancel_reaches_only_the_run_of_its_job() {
        let (running, counted) = (RunningJobs::new(2), Arc::<CountingCanceller>::default());
        let cancelled = |channel, job| {
            running.cancel(channel, job);
            counted.0.load(Ordering::Relaxed)
        };
        assert_eq!(cancelled(0, 0), 0);
        running.begin(0, 7, Some(counted.clone()));
        assert_eq!((cancelled(0, 6), cancelled(1, 7), cancelled(9, 7)), (0, 0, 0));
        assert_eq!(cancelled(0, 7), 1);
        running.end(0);
        assert_eq!(cancelled(0, 7), 1);
        running.begin(0, 8, Some(counted.clone()));
        assert_eq!((cancelled(0, 7), cancelled(0, 8)), (1, 2));
        running.end(0);
        running.begin(0, 9, Some(counted.clone()));
        running.end(0);
        assert_eq!(counted.1.load(Ordering::Relaxed), 2, "the last run was not cancelled");
    }
}
