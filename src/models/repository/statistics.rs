//! Statistics of one version of a model since the daemon started. They are kept when the version is loaded again.
//!
//! The fields are those of Triton's statistics extension, and distributions of the same figures.

mod failing_calls;
mod full_queue;
mod histogram;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ledge_engine::backend::ComputeTime;

use super::observations::FINITE_ANSWERS_MIN;
pub use failing_calls::{FailingCalls, FailureCounts};
pub use full_queue::QueueRefusals;
pub use histogram::{Histogram, SizeHistogram, TimeHistogram};

/// Count of an event, and its total time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CountAndTime {
    pub count: u64,
    pub time: Duration,
}

impl CountAndTime {
    fn add(&mut self, time: Duration) {
        self.count += 1;
        self.time += time;
    }
}

/// Totals of the runs of one batch size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchTotals {
    /// Handing inputs to the runtime.
    pub compute_input: CountAndTime,
    pub compute_infer: CountAndTime,
    /// Taking outputs from the runtime.
    pub compute_output: CountAndTime,
}

impl BatchTotals {
    fn add(&mut self, time: ComputeTime) {
        self.compute_input.add(time.input);
        self.compute_infer.add(time.infer);
        self.compute_output.add(time.output);
    }
}

/// Reason why a request was refused, or timed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    QueueFull,
    /// Its deadline passed while it waited.
    Deadline,
    /// The caller has had its share.
    Quota,
    /// Calls like it ended the process of the model.
    Blame,
}

impl RefusalReason {
    /// Every reason.
    pub const ALL: [Self; 4] = [Self::QueueFull, Self::Deadline, Self::Quota, Self::Blame];

    /// The name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Deadline => "deadline",
            Self::Quota => "quota",
            Self::Blame => "blame",
        }
    }
}

/// Number of refused requests, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refusals {
    pub queue_full: u64,
    /// The deadline passed in the queue.
    pub deadline: u64,
    /// The caller's quota was used up.
    pub quota: u64,
    /// Calls like it ended the process of the model.
    pub blame: u64,
}

impl Refusals {
    /// Number of requests refused for this reason.
    pub fn of(&self, why: RefusalReason) -> u64 {
        match why {
            RefusalReason::QueueFull => self.queue_full,
            RefusalReason::Deadline => self.deadline,
            RefusalReason::Quota => self.quota,
            RefusalReason::Blame => self.blame,
        }
    }

    fn add(&mut self, why: RefusalReason) {
        *match why {
            RefusalReason::QueueFull => &mut self.queue_full,
            RefusalReason::Deadline => &mut self.deadline,
            RefusalReason::Quota => &mut self.quota,
            RefusalReason::Blame => &mut self.blame,
        } += 1;
    }
}

/// A snapshot of the counters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VersionCounters {
    /// Time of the last answer, in milliseconds since the Unix epoch; 0 for never.
    pub last_inference_ms: u64,
    /// Batch elements inferred; cache hits left out.
    pub inference_count: u64,
    pub execution_count: u64,
    /// Requests answered, including those from the cache; time from arrival to answer.
    pub success: CountAndTime,
    /// Requests that failed; time from arrival to failure.
    pub fail: CountAndTime,
    /// Time in the queue of answered requests; one answered from the cache waited for no time.
    pub queue: CountAndTime,
    /// Compute time of answered requests, those from the cache left out. Each request that shared a run counts its
    /// whole time.
    pub compute: BatchTotals,
    /// Compute time of the runs by batch size.
    pub batches: BTreeMap<usize, BatchTotals>,
    /// Requests answered from the cache; time of the look-up.
    pub cache_hit: CountAndTime,
    /// Requests that the cache had no answer for; time to look it up and to insert it later.
    pub cache_miss: CountAndTime,
    /// Requests answered with values that are not finite. They count as failed where the version before answered with
    /// none, else as answered.
    pub non_finite: u64,
    /// Requests refused; each is also counted as failed.
    pub refusals: Refusals,
    /// CPU time of the runs on their worker's core; a runtime's own threads are not in it.
    pub cpu: Duration,
    /// CPU time of making the inputs: decoding photographs.
    pub prepare_cpu: Duration,
    /// Runs and loads that ended the process that they were in.
    pub process_crashes: u64,
    /// Runs that were cancelled because they went on after their deadlines.
    pub cancelled_runs: u64,
    /// `success`, distributed.
    pub end_to_end_times: TimeHistogram,
    /// `queue`, distributed.
    pub queue_times: TimeHistogram,
    /// `compute`, its phases together, distributed.
    pub compute_times: TimeHistogram,
    /// Elements of each run.
    pub batch_sizes: SizeHistogram,
}

/// The counters of one version.
///
/// One lock, held for some additions; only the first run of a batch size allocates.
#[derive(Debug, Default)]
pub struct VersionStatistics {
    counters: Mutex<VersionCounters>,
    pub full_queue: QueueRefusals,
    pub failing_calls: FailingCalls,
    /// Set when the version before answered with finite values only.
    must_be_finite: AtomicBool,
}

impl VersionStatistics {
    /// Counts a request of `elements` batch elements that a run answered, at `now_ms` since the Unix epoch. `compute`
    /// is the time of the run, even if others shared it.
    pub fn succeeded(&self, now_ms: u64, elements: usize, total: Duration, queue: Duration, compute: ComputeTime) {
        let counters = &mut *self.lock();
        counters.last_inference_ms = now_ms;
        counters.inference_count += elements as u64;
        counters.answered(total, queue);
        counters.compute.add(compute);
        counters.compute_times.add(compute.total());
    }

    /// Counts one run of the model over `batch` elements, of any number of requests, and its CPU time.
    pub fn executed(&self, batch: usize, compute: ComputeTime, cpu: Duration) {
        let counters = &mut *self.lock();
        counters.execution_count += 1;
        counters.batches.entry(batch).or_default().add(compute);
        counters.batch_sizes.record(batch as u64);
        counters.cpu += cpu;
    }

    /// Counts a run or a load that ended the process that it was in.
    pub fn crashed(&self) {
        self.lock().process_crashes += 1;
    }

    /// Counts a run that was cancelled because it went on after its deadline.
    pub fn cancelled(&self) {
        self.lock().cancelled_runs += 1;
    }

    /// Counts the CPU time of making the inputs of a request.
    pub fn prepared(&self, cpu: Duration) {
        self.lock().prepare_cpu += cpu;
    }

    /// Counts a request that was answered from the cache, at `now_ms` since the Unix epoch, after a `lookup` in it.
    pub fn cache_hit(&self, now_ms: u64, total: Duration, lookup: Duration) {
        let counters = &mut *self.lock();
        counters.last_inference_ms = now_ms;
        counters.answered(total, Duration::ZERO);
        counters.cache_hit.add(lookup);
    }

    /// Counts a request that the cache had no answer for. Its result is counted separately.
    pub fn cache_miss(&self, lookup: Duration, insert: Duration) {
        self.lock().cache_miss.add(lookup + insert);
    }

    /// Counts an answer with values that are not finite. Returns true when it counts as a failure.
    pub fn not_finite(&self) -> bool {
        self.lock().non_finite += 1;
        self.must_be_finite.load(Ordering::Relaxed)
    }

    /// Answers with values that are not finite count as failures from here on, if the version `before` gave none.
    pub fn follow(&self, before: &Self) {
        if before.must_be_finite.load(Ordering::Relaxed) || before.lock().is_finite() {
            self.must_be_finite.store(true, Ordering::Relaxed);
        }
    }

    /// The number of answers with values that are not finite, and the number of all answers, if the version also gives
    /// finite ones.
    pub fn rarely_not_finite(&self) -> Option<(u64, u64)> {
        let (counters, must) = (self.lock(), self.must_be_finite.load(Ordering::Relaxed));
        let (found, all) = (counters.non_finite, counters.success.count + if must { counters.non_finite } else { 0 });
        (found > 0 && (must || found < all)).then_some((found, all))
    }

    /// Counts a request that failed after `total`.
    pub fn failed(&self, total: Duration) {
        self.lock().fail.add(total);
    }

    /// Counts a request that was refused. It is also counted as failed: [`VersionStatistics::failed`].
    pub fn refused(&self, why: RefusalReason) {
        self.lock().refusals.add(why);
        if why == RefusalReason::QueueFull {
            self.full_queue.refused(Instant::now());
        }
    }

    /// The counters now.
    pub fn snapshot(&self) -> VersionCounters {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, VersionCounters> {
        // Nothing panics under this lock; counters that a panic left behind are still counters.
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VersionCounters {
    fn is_finite(&self) -> bool {
        self.success.count >= FINITE_ANSWERS_MIN && self.non_finite == 0
    }

    fn answered(&mut self, total: Duration, queue: Duration) {
        self.success.add(total);
        self.queue.add(queue);
        self.end_to_end_times.add(total);
        self.queue_times.add(queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    const COMPUTE: ComputeTime = ComputeTime { input: ms(1), infer: ms(7), output: ms(2) };

    #[test]
    fn two_requests_that_share_a_run_are_one_execution() {
        let statistics = VersionStatistics::default();
        statistics.executed(3, COMPUTE, ms(20));
        statistics.succeeded(5, 1, ms(30), ms(10), COMPUTE);
        statistics.succeeded(6, 2, ms(40), ms(20), COMPUTE);
        let counters = statistics.snapshot();
        assert_eq!((counters.inference_count, counters.execution_count, counters.last_inference_ms), (3, 1, 6));
        assert_eq!(counters.compute.compute_infer, CountAndTime { count: 2, time: ms(14) });
        assert_eq!(counters.batches[&3].compute_infer, CountAndTime { count: 1, time: ms(7) });
        assert_eq!((counters.batch_sizes.count(), counters.batch_sizes.sum()), (1, 3));
        assert_eq!(counters.cpu, ms(20));
    }

    #[test]
    fn a_cache_hit_is_a_success_that_waited_and_computed_nothing() {
        let statistics = VersionStatistics::default();
        statistics.cache_miss(ms(1), ms(2));
        statistics.cache_hit(9, ms(4), ms(3));
        let counters = statistics.snapshot();
        assert_eq!(counters.success, CountAndTime { count: 1, time: ms(4) });
        assert_eq!(counters.queue, CountAndTime { count: 1, time: Duration::ZERO });
        assert_eq!((counters.inference_count, counters.execution_count, counters.last_inference_ms), (0, 0, 9));
        assert_eq!((counters.compute, counters.compute_times.count()), (BatchTotals::default(), 0));
        let (hit, miss) = (counters.cache_hit, counters.cache_miss);
        assert_eq!((hit, miss), (CountAndTime { count: 1, time: ms(3) }, CountAndTime { count: 1, time: ms(3) }));
    }

    #[test]
    fn a_distribution_adds_up_to_its_total() {
        let statistics = VersionStatistics::default();
        for step in 1..20 {
            statistics.succeeded(step, 1, ms(step * 3), ms(step), COMPUTE);
            statistics.cache_hit(step, ms(1), ms(1));
        }
        let VersionCounters { success, queue, compute, end_to_end_times, queue_times, compute_times, .. } =
            statistics.snapshot();
        let same = |times: TimeHistogram, total: CountAndTime| {
            assert_eq!((times.count(), u128::from(times.sum())), (total.count, total.time.as_nanos()));
        };
        same(end_to_end_times, success);
        same(queue_times, queue);
        let together = compute.compute_input.time + compute.compute_infer.time + compute.compute_output.time;
        same(compute_times, CountAndTime { count: compute.compute_infer.count, time: together });
    }

    #[test]
    fn answers_that_are_not_finite_are_failures_after_a_version_without_any() {
        let (before, now) = (VersionStatistics::default(), VersionStatistics::default());
        assert!(!now.not_finite(), "nothing is known of a version before");
        now.follow(&before);
        assert!(!now.not_finite(), "it has answered too little");
        for _ in 0..FINITE_ANSWERS_MIN {
            before.succeeded(1, 1, ms(1), ms(0), COMPUTE);
        }
        now.follow(&before);
        assert!(now.not_finite());
        // And so for the version after that.
        let next = VersionStatistics::default();
        next.follow(&now);
        assert!(next.not_finite());
        // A version that always gave answers that are not finite is not faulted for them.
        let (always, after) = (VersionStatistics::default(), VersionStatistics::default());
        for _ in 0..FINITE_ANSWERS_MIN {
            always.not_finite();
            always.succeeded(1, 1, ms(1), ms(0), COMPUTE);
        }
        assert_eq!(always.rarely_not_finite(), None);
        always.succeeded(1, 1, ms(1), ms(0), COMPUTE);
        assert_eq!(always.rarely_not_finite(), Some((FINITE_ANSWERS_MIN, FINITE_ANSWERS_MIN + 1)));
        after.follow(&always);
        assert!(!after.not_finite());
    }

    #[test]
    fn refusals_are_told_apart() {
        let statistics = VersionStatistics::default();
        for (times, why) in (1..).zip(RefusalReason::ALL) {
            (0..times).for_each(|_| statistics.refused(why));
        }
        let refusals = statistics.snapshot().refusals;
        assert_eq!(refusals, Refusals { queue_full: 1, deadline: 2, quota: 3, blame: 4 });
        assert_eq!(RefusalReason::ALL.map(|why| refusals.of(why)), [1, 2, 3, 4]);
    }
}
