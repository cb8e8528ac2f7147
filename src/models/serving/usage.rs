//! The resources that callers use, by caller and model, until the part that keeps accounts takes them.
//!
//! One lock for each call, held for some additions. Without a part that takes the figures nothing is counted.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    /// Set where a call without an answer does not speak against this box: its caller hung up, sent what no model can
    /// answer, or was refused for its own use.
    pub is_callers_fault: bool,
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

/// Counts good and bad calls of a caller and a model, for an objective.
#[derive(Debug)]
pub struct CallWatch {
    /// `None` is all callers.
    pub principal: Option<Principal>,
    /// `None` is all models.
    pub model: Option<ModelName>,
    /// An answer that takes longer is bad. `None`: only a call without an answer is.
    pub time_max: Option<Duration>,
    good: AtomicU64,
    bad: AtomicU64,
}

impl CallWatch {
    pub fn new(principal: Option<Principal>, model: Option<ModelName>, time_max: Option<Duration>) -> Self {
        Self { principal, model, time_max, good: AtomicU64::new(0), bad: AtomicU64::new(0) }
    }

    /// Good and bad calls since the last time that they were taken.
    pub fn take(&self) -> (u64, u64) {
        (self.good.swap(0, Ordering::Relaxed), self.bad.swap(0, Ordering::Relaxed))
    }

    fn count(&self, principal: &Principal, model: &ModelName, call: &EndedCall) {
        let is_watched = self.principal.as_ref().is_none_or(|watched| watched == principal)
            && self.model.as_ref().is_none_or(|watched| watched == model);
        if !is_watched {
            return;
        }
        let is_answered = call.outcome == CallOutcome::Ok;
        if call.is_callers_fault && !is_answered && call.outcome != CallOutcome::Late {
            return;
        }
        let is_good = is_answered && self.time_max.is_none_or(|most| call.time <= most);
        let counter = if is_good { &self.good } else { &self.bad };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts the use of callers.
#[derive(Debug, Default)]
pub struct UsageMeter {
    is_taken: AtomicBool,
    used: Mutex<HashMap<UsageKey, CallUsage>>,
    sinks: OnceLock<Vec<Arc<dyn UsageSink>>>,
    watches: OnceLock<Vec<Arc<CallWatch>>>,
}

impl UsageMeter {
    /// Sets the parts that are given each interval. Called once, at the start.
    pub fn give_to(&self, sinks: Vec<Arc<dyn UsageSink>>) {
        if !sinks.is_empty() {
            self.is_taken.store(true, Ordering::Relaxed);
        }
        // A second call would be a mistake of the program; the first sinks stay.
        let _ = self.sinks.set(sinks);
    }

    /// Sets the calls that are counted as good or bad. Called once, at the start.
    pub fn watch(&self, watches: Vec<Arc<CallWatch>>) {
        // As in `give_to`.
        let _ = self.watches.set(watches);
    }

    /// Ends an interval: gives it to the sinks, and returns it. Only one task does.
    pub fn end_interval(&self, end_ms: u64, elapsed: Duration, service_cpu: Option<Duration>) -> UsageInterval {
        let interval = UsageInterval { end_ms, elapsed, used: self.take(), service_cpu };
        self.sinks.get().into_iter().flatten().for_each(|sink| sink.add(&interval));
        interval
    }

    /// The use since the last time that it was taken. Without sinks, the first time begins the counting.
    fn take(&self) -> HashMap<UsageKey, CallUsage> {
        self.is_taken.store(true, Ordering::Relaxed);
        std::mem::take(&mut *self.used())
    }

    pub(super) fn count(&self, principal: &Principal, model: &ModelName, call: &EndedCall) {
        // Without objectives a read of one pointer.
        self.watches.get().into_iter().flatten().for_each(|watch| watch.count(principal, model, call));
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
        EndedCall {
            outcome,
            is_callers_fault: false,
            time: ms(4),
            queue: ms(1),
            cpu: ms(2),
            bytes_in: 100,
            bytes_out: 10,
        }
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
    fn a_watch_counts_its_calls_as_good_or_bad_and_leaves_out_those_that_failed_by_their_caller() {
        let (meter, wine, other) = (UsageMeter::default(), ModelName::constant("wine"), ModelName::constant("other"));
        let within =
            |ms| Arc::new(CallWatch::new(None, Some(ModelName::constant("wine")), Some(Duration::from_millis(ms))));
        let till = Arc::new(CallWatch::new(Some(key("till".to_owned())), None, None));
        let watches = [within(4), within(3), till];
        meter.watch(watches.to_vec());
        for outcome in [CallOutcome::Ok, CallOutcome::Failed, CallOutcome::Late, CallOutcome::Refused] {
            meter.count(&Principal::Local, &wine, &call(outcome));
            meter.count(&Principal::Local, &other, &call(outcome));
            meter.count(&key("till".to_owned()), &wine, &EndedCall { is_callers_fault: true, ..call(outcome) });
        }
        assert_eq!(watches.each_ref().map(|watch| watch.take()), [(2, 4), (0, 6), (1, 1)]);
        assert_eq!(watches.each_ref().map(|watch| watch.take()), [(0, 0); 3]);
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
