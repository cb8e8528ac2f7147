//! The resources that callers use, by caller and model, until the part that keeps accounts takes them.
//!
//! One lock for each call, held for some additions. Without a part that takes the figures nothing is counted.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_service::audit_event::inference::CallOutcome;

use crate::repository::statistics::TimeHistogram;

/// The most pairs of a caller and a model that are counted apart before they are taken. Beyond them the caller is not
/// distinguished.
const PAIRS_MAX: usize = 2048;

/// A caller and the model that it called.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UsageKey {
    pub principal: Principal,
    pub model: ModelName,
}

/// The use of one caller of one model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallUsage {
    /// All calls; those that failed and those that were refused are among them.
    pub calls: u64,
    /// Calls that failed for another reason than a refusal.
    pub failed: u64,
    /// Calls that were refused or came too late: a full queue, a quota, a deadline.
    pub refused: u64,
    /// CPU time of the runs: preparation, the model, results. A run that several calls share counts for each by its
    /// rows.
    pub cpu: Duration,
    /// Time in the queue of the calls that were answered.
    pub queue: Duration,
    /// Bytes of inputs, as the call sent them: tensors, or the file.
    pub bytes_in: u64,
    /// Bytes of outputs and results.
    pub bytes_out: u64,
    /// Times from arrival to the answer of the calls that were answered.
    pub times: TimeHistogram,
}

/// One call that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedCall {
    pub outcome: CallOutcome,
    pub time: Duration,
    pub queue: Duration,
    pub cpu: Duration,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

impl CallUsage {
    fn count(&mut self, call: &EndedCall) {
        self.calls += 1;
        match call.outcome {
            CallOutcome::Ok => {
                self.queue += call.queue;
                self.times.add(call.time);
            }
            CallOutcome::Refused | CallOutcome::Late => self.refused += 1,
            CallOutcome::Failed | CallOutcome::Unavailable => self.failed += 1,
        }
        self.cpu += call.cpu;
        self.bytes_in += call.bytes_in;
        self.bytes_out += call.bytes_out;
    }

    /// Adds the use of others.
    pub fn merge(&mut self, other: &Self) {
        self.calls += other.calls;
        self.failed += other.failed;
        self.refused += other.refused;
        self.cpu += other.cpu;
        self.queue += other.queue;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.times.merge(&other.times);
    }
}

/// The use of callers in an interval.
#[derive(Debug)]
pub struct UsageInterval {
    /// Its end, in milliseconds since the Unix epoch.
    pub end_ms: u64,
    pub elapsed: Duration,
    pub used: HashMap<UsageKey, CallUsage>,
    /// The CPU time of all processes of the service in the interval; `None` where it is not known.
    pub service_cpu: Option<Duration>,
}

/// A part that is given each interval. It must return within a millisecond, and neither waits nor panics.
pub trait UsageSink: fmt::Debug + Send + Sync {
    fn add(&self, interval: &UsageInterval);
}

/// Counts the use of callers.
#[derive(Debug, Default)]
pub struct UsageMeter {
    is_taken: AtomicBool,
    used: Mutex<HashMap<UsageKey, CallUsage>>,
    sinks: OnceLock<Vec<Arc<dyn UsageSink>>>,
}

impl UsageMeter {
    /// Sets the parts that are given each interval. Called once, at the start.
    pub fn give_to(&self, sinks: Vec<Arc<dyn UsageSink>>) {
        // A second call would be a mistake of the program; the first sinks stay.
        let _ = self.sinks.set(sinks);
    }

    /// Ends an interval: gives it to the sinks, and returns it. Only one task does.
    pub fn end_interval(&self, end_ms: u64, elapsed: Duration, service_cpu: Option<Duration>) -> UsageInterval {
        let interval = UsageInterval { end_ms, elapsed, used: self.take(), service_cpu };
        self.sinks.get().into_iter().flatten().for_each(|sink| sink.add(&interval));
        interval
    }

    /// The use since the last time that it was taken. The first time begins the counting.
    fn take(&self) -> HashMap<UsageKey, CallUsage> {
        self.is_taken.store(true, Ordering::Relaxed);
        std::mem::take(&mut *self.used())
    }

    pub(super) fn count(&self, principal: &Principal, model: &ModelName, call: &EndedCall) {
        if !self.is_taken.load(Ordering::Relaxed) {
            return;
        }
        let mut used = self.used();
        let mut key = UsageKey { principal: principal.clone(), model: model.clone() };
        if used.len() >= PAIRS_MAX && !used.contains_key(&key) {
            key.principal = Principal::Others;
        }
        used.entry(key).or_default().count(call);
    }

    fn used(&self) -> MutexGuard<'_, HashMap<UsageKey, CallUsage>> {
        // Nothing panics under this lock.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(outcome: CallOutcome) -> EndedCall {
        let ms = Duration::from_millis;
        EndedCall { outcome, time: ms(4), queue: ms(1), cpu: ms(2), bytes_in: 100, bytes_out: 10 }
    }

    fn key(name: String) -> Principal {
        Principal::Key(name.into())
    }

    #[test]
    fn nothing_is_counted_before_it_is_taken_for_the_first_time() {
        let (meter, model) = (UsageMeter::default(), ModelName::constant("wine"));
        meter.count(&Principal::Local, &model, &call(CallOutcome::Ok));
        assert!(meter.take().is_empty());
        meter.count(&Principal::Local, &model, &call(CallOutcome::Ok));
        assert_eq!(meter.take().len(), 1);
        assert!(meter.take().is_empty());
    }

    #[test]
    fn each_outcome_is_counted_once_and_only_answers_have_times() {
        let (meter, model) = (UsageMeter::default(), ModelName::constant("wine"));
        meter.take();
        for outcome in [CallOutcome::Ok, CallOutcome::Ok, CallOutcome::Failed, CallOutcome::Refused, CallOutcome::Late]
        {
            meter.count(&Principal::Local, &model, &call(outcome));
        }
        let used = meter.take().remove(&UsageKey { principal: Principal::Local, model }).unwrap();
        assert_eq!((used.calls, used.failed, used.refused, used.times.count()), (5, 1, 2, 2));
        assert_eq!((used.bytes_in, used.bytes_out, used.queue), (500, 50, Duration::from_millis(2)));
        assert_eq!(used.cpu, Duration::from_millis(10));
        let mut twice = used.clone();
        twice.merge(&used);
        assert_eq!((twice.calls, twice.times.count(), twice.cpu), (10, 4, 2 * used.cpu));
    }

    #[test]
    fn callers_beyond_the_bound_are_counted_together() {
        let (meter, model) = (UsageMeter::default(), ModelName::constant("wine"));
        meter.take();
        for number in 0..PAIRS_MAX + 50 {
            meter.count(&key(format!("till-{number}")), &model, &call(CallOutcome::Ok));
        }
        meter.count(&key("till-0".to_owned()), &model, &call(CallOutcome::Ok));
        let used = meter.take();
        let of = |principal| used.get(&UsageKey { principal, model: model.clone() }).map(|used| used.calls);
        assert_eq!(
            (used.len(), of(Principal::Others), of(key("till-0".to_owned()))),
            (PAIRS_MAX + 1, Some(50), Some(2))
        );
        assert_eq!(used.values().map(|used| used.calls).sum::<u64>(), PAIRS_MAX as u64 + 51);
    }
}
