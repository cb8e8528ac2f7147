//! One call on its way, from its pin to its place in the statistics.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ledge_base::clock;
use ledge_base::principal::Principal;
use ledge_engine::backend::ComputeTime;
use ledge_service::audit_event::AuditSink;
use ledge_service::audit_event::inference::{CallKey, DigestPrefix, Outcome, Taggable};
use ledge_service::audit_event::tag::Content;

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
    failure: Outcome,
    input: OnceLock<Taggable>,
    output: OnceLock<Taggable>,
}

/// What an answered call adds to the statistics.
#[derive(Debug)]
pub(super) enum Counted {
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
        let (input, output) = (OnceLock::new(), OnceLock::new());
        Self { model, started, audit, principal, counted: None, failure: Outcome::Failed, input, output }
    }

    pub fn succeed(mut self, counted: Counted) {
        self.counted = Some(counted);
    }

    /// It was refused, and goes on to count as failed.
    pub fn refuse(&mut self, why: Refusal) {
        self.model.statistics.refused(why);
        self.failure = if why == Refusal::Deadline { Outcome::Late } else { Outcome::Refused };
    }

    /// Has what the model is given tagged, where each call is a record.
    pub fn given(&self, content: impl FnOnce() -> Content) {
        self.tag(&self.input, content);
    }

    /// Has what the model answered tagged, where each call is a record.
    pub fn answered(&self, content: impl FnOnce() -> Content) {
        self.tag(&self.output, content);
    }

    fn tag(&self, place: &OnceLock<Taggable>, content: impl FnOnce() -> Content) {
        if self.audit.wants_tags(&self.model.name)
            && let Some(taggable) = self.audit.taggable(content())
        {
            // Tagged once: what was asked again for an update is not what the caller gets.
            let _ = place.set(taggable);
        }
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
        let key = CallKey {
            model: Some(self.model.name.clone()),
            version: Some(self.model.version),
            digest: DigestPrefix::of(&self.model.digest),
            principal: self.principal.clone(),
            outcome: if self.counted.is_some() { Outcome::Ok } else { self.failure },
        };
        let us = u64::try_from(total.as_micros()).unwrap_or(u64::MAX);
        self.audit.record_call(key, us, self.input.take(), self.output.take());
    }
}
