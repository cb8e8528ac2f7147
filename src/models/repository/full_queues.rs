//! The findings about queues that have no room.

use std::time::{Duration, Instant};

use ledge_part::check::Finding;

use super::Repository;

/// The time of refusals from which they are reported: a burst that the queue is too short for is not.
const REPORTED_AFTER: Duration = Duration::from_secs(10);

impl Repository {
    /// The models with queues that are full again and again.
    pub fn full_queues(&self) -> Vec<Finding> {
        let now = Instant::now();
        let mut checks = Vec::new();
        for model in self.models() {
            for (version, statistics) in &model.states().statistics {
                let full = statistics.full_queue.full(now).filter(|(lasting, _)| *lasting >= REPORTED_AFTER);
                let Some((lasting, refusals)) = full else { continue };
                let detail = format!(
                    "version {version}: {refusals} requests were refused in {} s, because the queue was full",
                    lasting.as_secs()
                );
                let advice = "send fewer requests at a time, raise max_queue_size, or give the model more instances or \
                              a larger batch: see docs/performance.md";
                checks.push(Finding::fail(&format!("queue {}", model.name), detail, advice));
            }
        }
        checks
    }
}
