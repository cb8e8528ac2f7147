//! One call on its way, from its pin to its place in the statistics.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::audit_event::{AuditEvent, AuditSink};
use crate::clock;
use crate::inference::backend::ComputeTime;
use crate::principal::Principal;
use crate::repository::LoadedModel;
use crate::repository::statistics::Refusal;

/// One call on its way. When it is dropped it is counted and audited, once: as a failure unless it succeeded, so a
/// caller that hung up leaves its trace too.
pub(super) struct Call<'a> {
    pub model: Arc<LoadedModel>,
    pub started: Instant,
    audit: &'a AuditSink,
    pub principal: &'a Principal,
    counted: Option<Counted>,
}

/// What an answered call adds to the statistics.
#[derive(Debug)]
pub(super) enum Counted {
    /// The model ran.
    Run {
        batch: usize,
        queue: Duration,
        compute: ComputeTime,
        /// How long it took to look for a kept answer, and to keep this one.
        missed: Option<(Duration, Duration)>,
    },
    /// The answer was kept or shared; looking for it took this long.
    Hit { lookup: Duration },
}

impl<'a> Call<'a> {
    pub fn new(audit: &'a AuditSink, model: Arc<LoadedModel>, principal: &'a Principal, started: Instant) -> Self {
        Self { model, started, audit, principal, counted: None }
    }

    pub fn succeed(mut self, counted: Counted) {
        self.counted = Some(counted);
    }

    /// It was refused, and goes on to count as failed.
    pub fn refuse(&self, why: Refusal) {
        self.model.statistics.refused(why);
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let (statistics, total) = (&self.model.statistics, self.started.elapsed());
        match &self.counted {
            Some(Counted::Run { batch, queue, compute, missed }) => {
                statistics.succeeded(clock::unix_millis(), *batch, total, *queue, *compute);
                if let Some((lookup, insert)) = missed {
                    statistics.cache_miss(*lookup, *insert);
                }
            }
            Some(Counted::Hit { lookup }) => statistics.cache_hit(clock::unix_millis(), total, *lookup),
            None => statistics.failed(total),
        }
        self.audit.record(AuditEvent::Inference {
            model: self.model.name.clone(),
            version: Some(self.model.version),
            principal: self.principal.clone(),
            ok: self.counted.is_some(),
        });
    }
}
