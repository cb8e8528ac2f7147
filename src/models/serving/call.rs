//! One call, from its pin to its place in the statistics.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ledge_base::clock;
use ledge_base::principal::Principal;
use ledge_base::tensor::Tensor;
use ledge_engine::backend::ComputeTime;
use ledge_service::audit_event::AuditSink;
use ledge_service::audit_event::inference::{AuditCallGroup, CallOutcome, DigestPrefix, Taggable};
use ledge_service::audit_event::tag::TagContent;

use super::usage::{EndedCall, UsageMeter};
use crate::repository::LoadedModel;
use crate::repository::statistics::RefusalReason;

/// The largest inputs that are searched for values that are not finite, in bytes: some microseconds.
const READ_INPUT_BYTES_MAX: usize = 64 << 10;

/// One call in progress. Dropping it counts and audits it, once: as a failure unless it succeeded, so a call is counted
/// also when its caller hung up.
pub(super) struct CountedCall<'a> {
    pub model: Arc<LoadedModel>,
    pub started: Instant,
    audit: &'a AuditSink,
    usage: &'a UsageMeter,
    pub principal: &'a Principal,
    counted: Option<CallStatistics>,
    failure: CallOutcome,
    /// Set unless this box is the reason why the call has no answer: its caller hung up, or was refused for its own use
    /// or request.
    is_callers_fault: bool,
    input: OnceLock<Taggable>,
    output: OnceLock<Taggable>,
    /// Set when the caller sent values that are not finite: the answer may have some then.
    is_input_odd: AtomicBool,
    /// Set when its values make it a failure, though the caller has them.
    is_wrong: AtomicBool,
    bytes_in: u64,
    bytes_out: AtomicU64,
}

/// Figures that an answered call adds to the statistics.
#[derive(Debug)]
pub(super) enum CallStatistics {
    Run {
        batch: usize,
        queue: Duration,
        compute: ComputeTime,
        /// The call's part of the CPU time of its run.
        cpu: Duration,
        /// Time of the cache look-up, and of caching this answer.
        missed: Option<(Duration, Duration)>,
    },
    /// The answer was cached or shared; the look-up took this long.
    Hit { lookup: Duration },
}

impl<'a> CountedCall<'a> {
    /// `bytes_in` is the length of the inputs as they came.
    pub fn new(
        (audit, usage): (&'a AuditSink, &'a UsageMeter),
        model: Arc<LoadedModel>,
        principal: &'a Principal,
        started: Instant,
        bytes_in: usize,
    ) -> Self {
        let (input, output) = (OnceLock::new(), OnceLock::new());
        let (is_input_odd, is_wrong) = (AtomicBool::new(false), AtomicBool::new(false));
        Self {
            model,
            started,
            audit,
            usage,
            principal,
            counted: None,
            failure: CallOutcome::Failed,
            is_callers_fault: true,
            input,
            output,
            is_input_odd,
            is_wrong,
            bytes_in: bytes_in as u64,
            bytes_out: AtomicU64::new(0),
        }
    }

    pub fn succeed(mut self, counted: CallStatistics) {
        self.counted = Some(counted);
    }

    /// Counts the refusal; the call itself counts as failed.
    pub fn refuse(&mut self, why: RefusalReason) {
        self.model.statistics.refused(why);
        self.failure = if why == RefusalReason::Deadline { CallOutcome::Late } else { CallOutcome::Refused };
        self.is_callers_fault = matches!(why, RefusalReason::Quota | RefusalReason::Blame);
    }

    /// Notes whether the failure of the call is its caller's fault.
    pub fn blame(&mut self, is_callers_fault: bool) {
        self.is_callers_fault = is_callers_fault;
    }

    /// Notes whether the inputs of the run have values that are not finite. Large inputs, such as pictures, are not
    /// examined.
    pub fn takes(&self, inputs: &[Tensor]) {
        let bytes = inputs.iter().map(|tensor| tensor.data().len()).sum::<usize>();
        if bytes <= READ_INPUT_BYTES_MAX && inputs.iter().any(Tensor::has_non_finite) {
            self.is_input_odd.store(true, Ordering::Relaxed);
        }
    }

    /// True when the caller sent values that are not finite.
    pub fn is_input_odd(&self) -> bool {
        self.is_input_odd.load(Ordering::Relaxed)
    }

    /// Tags the input of the model, where each call is a record.
    pub fn given(&self, content: impl FnOnce() -> TagContent) {
        self.tag(&self.input, content);
    }

    /// Tags the output of the model, where each call is a record, and counts its bytes and values that are not finite.
    pub fn answered(&self, outputs: &[(String, Tensor)]) {
        self.sends(outputs.iter().map(|(_, tensor)| tensor.data().len()).sum());
        if !self.is_input_odd() && outputs.iter().any(|(_, tensor)| tensor.has_non_finite()) {
            self.is_wrong.store(self.model.statistics.not_finite(), Ordering::Relaxed);
        }
        self.tag(&self.output, || TagContent::Tensors(outputs.to_vec()));
    }

    /// Counts bytes of the answer.
    pub fn sends(&self, bytes: usize) {
        self.bytes_out.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn tag(&self, place: &OnceLock<Taggable>, content: impl FnOnce() -> TagContent) {
        if self.audit.wants_tags(&self.model.name)
            && let Some(taggable) = self.audit.taggable(content())
        {
            // Tagged once: the answer to a request that is repeated for an update does not reach the caller.
            let _ = place.set(taggable);
        }
    }
}

impl Drop for CountedCall<'_> {
    fn drop(&mut self) {
        let (statistics, total) = (&self.model.statistics, self.started.elapsed());
        match self.counted.as_ref().filter(|_| !self.is_wrong.load(Ordering::Relaxed)) {
            Some(CallStatistics::Run { batch, queue, compute, missed, .. }) => {
                statistics.succeeded(clock::unix_millis(), *batch, total, *queue, *compute);
                if let Some((lookup, insert)) = missed {
                    statistics.cache_miss(*lookup, *insert);
                }
            }
            Some(CallStatistics::Hit { lookup }) => statistics.cache_hit(clock::unix_millis(), total, *lookup),
            None => statistics.failed(total),
        }
        let outcome = if self.counted.is_some() { CallOutcome::Ok } else { self.failure };
        let (queue, cpu) = match &self.counted {
            Some(CallStatistics::Run { queue, cpu, .. }) => (*queue, *cpu),
            Some(CallStatistics::Hit { .. }) | None => (Duration::ZERO, Duration::ZERO),
        };
        let (bytes_in, bytes_out) = (self.bytes_in, self.bytes_out.load(Ordering::Relaxed));
        let is_callers_fault = self.is_callers_fault;
        let ended = EndedCall { outcome, is_callers_fault, time: total, queue, cpu, bytes_in, bytes_out };
        self.usage.count(self.principal, &self.model.name, &ended);
        let key = AuditCallGroup {
            model: Some(self.model.name.clone()),
            version: Some(self.model.version),
            digest: DigestPrefix::of(&self.model.digest),
            principal: self.principal.clone(),
            outcome,
        };
        let us = u64::try_from(total.as_micros()).unwrap_or(u64::MAX);
        self.audit.record_call(key, us, self.input.take(), self.output.take());
    }
}
