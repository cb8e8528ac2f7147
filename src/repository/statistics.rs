//! What one version of a model has done since the daemon started. Kept when the version is loaded again.
//!
//! The fields are those of Triton's statistics extension.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::inference::backend::ComputeTime;

/// How often something happened and how long it took in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Total {
    /// Occurrences.
    pub count: u64,
    /// Their time together.
    pub time: Duration,
}

impl Total {
    fn add(&mut self, time: Duration) {
        self.count += 1;
        self.time += time;
    }
}

/// Totals of the runs of one batch size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchTotals {
    /// Handing inputs to the runtime.
    pub compute_input: Total,
    /// Running the model.
    pub compute_infer: Total,
    /// Taking outputs from the runtime.
    pub compute_output: Total,
}

impl BatchTotals {
    fn add(&mut self, time: ComputeTime) {
        self.compute_input.add(time.input);
        self.compute_infer.add(time.infer);
        self.compute_output.add(time.output);
    }
}

/// A snapshot of the counters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// When the last request was answered, in milliseconds since the Unix epoch; 0 for never.
    pub last_inference_ms: u64,
    /// Batch elements inferred.
    pub inference_count: u64,
    /// Runs of the model.
    pub execution_count: u64,
    /// Requests answered; time from arrival to answer.
    pub success: Total,
    /// Requests that failed; time from arrival to failure.
    pub fail: Total,
    /// Time in the queue of answered requests.
    pub queue: Total,
    /// Compute time of all runs.
    pub compute: BatchTotals,
    /// Compute time by batch size.
    pub batches: BTreeMap<usize, BatchTotals>,
    /// Requests answered from the response cache; time of the look-up.
    pub cache_hit: Total,
    /// Requests whose answer was not kept; time of the look-up and of keeping it.
    pub cache_miss: Total,
    /// Calls that a full queue refused.
    pub queue_full: u64,
    /// Calls whose deadline passed.
    pub deadline: u64,
    /// Calls that a quota refused.
    pub quota: u64,
}

/// Why a call was refused or given up, rather than failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The model's queue was full.
    QueueFull,
    /// The deadline passed.
    Deadline,
    /// A quota, a limit of the model, or a closed window.
    Quota,
}

/// The counters of one version.
#[derive(Debug, Default)]
pub struct Statistics {
    counters: Mutex<Counters>,
}

impl Statistics {
    /// Counts an answered request of `batch` elements.
    pub fn succeeded(&self, now_ms: u64, batch: usize, total: Duration, queue: Duration, compute: ComputeTime) {
        let mut counters = self.lock();
        counters.last_inference_ms = now_ms;
        counters.inference_count += batch as u64;
        counters.success.add(total);
        counters.queue.add(queue);
        counters.compute.add(compute);
    }

    /// Counts one run of the model over `batch` elements, whoever asked for them.
    pub fn executed(&self, batch: usize, compute: ComputeTime) {
        let mut counters = self.lock();
        counters.execution_count += 1;
        counters.batches.entry(batch).or_default().add(compute);
    }

    /// Counts a request that failed after `total`.
    pub fn failed(&self, total: Duration) {
        self.lock().fail.add(total);
    }

    /// Counts a request of which the answer was kept, or was being computed already: it took `total`, of which the
    /// look-up took `lookup`.
    pub fn cache_hit(&self, now_ms: u64, total: Duration, lookup: Duration) {
        let mut counters = self.lock();
        counters.last_inference_ms = now_ms;
        counters.success.add(total);
        counters.queue.add(Duration::ZERO);
        counters.cache_hit.add(lookup);
    }

    /// Counts a request of which the answer was not kept, beside its run: looking it up took `lookup`, keeping it
    /// `insert`.
    pub fn cache_miss(&self, lookup: Duration, insert: Duration) {
        self.lock().cache_miss.add(lookup + insert);
    }

    /// Counts why a call was refused or given up; it counts as failed too.
    pub fn refused(&self, why: Refusal) {
        let mut counters = self.lock();
        match why {
            Refusal::QueueFull => counters.queue_full += 1,
            Refusal::Deadline => counters.deadline += 1,
            Refusal::Quota => counters.quota += 1,
        }
    }

    /// The counters now.
    pub fn snapshot(&self) -> Counters {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Counters> {
        // Nothing panics under this lock; counters that a panic left behind are still counters.
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
