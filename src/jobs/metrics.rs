//! The metrics of jobs.

use std::fmt::Error;
use std::sync::atomic::Ordering;

use ledge_part::metrics::{family, gauge_value, label, single};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::http::JobDocument;
use crate::queue::JobQueue;

/// The states of a job, as its document has them.
const STATES: [&str; 6] = ["waiting", "running", "paused", "stuck", "done", "failed"];

/// Writes the metrics of the queue.
pub fn encode(encoder: &mut DescriptorEncoder<'_>, queue: &JobQueue) -> Result<(), Error> {
    let jobs: Vec<_> = queue.jobs().iter().map(|job| JobDocument::new(job, queue)).collect();
    let states = STATES.iter().map(|state| {
        let count = jobs.iter().filter(|job| job.state == **state).count();
        (label("state", state), ConstGauge::new(gauge_value(count)))
    });
    family(encoder, "jobs", "Jobs by state; those that have ended are kept for their retention", states)?;
    let figures = queue.figures();
    let outcomes = [("answered", &figures.answered), ("failed", &figures.failed)];
    let items = outcomes
        .iter()
        .map(|(outcome, count)| (label("outcome", outcome), ConstCounter::new(count.load(Ordering::Relaxed))));
    family(encoder, "job_items", "Files and rows of jobs by outcome", items)?;
    let pauses = ConstCounter::new(figures.pauses.load(Ordering::Relaxed));
    single(encoder, "job_pauses", "Times at which a job paused because calls waited", &pauses)
}
