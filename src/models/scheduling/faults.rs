//! The faults of one model in its processes, and the blame for them. Pure: the time is passed in.
//!
//! A model that ends its process gets a separate one, where its next fault affects no other model. So does a suspect,
//! which was in its process at several ends without a known cause. It returns to the process of all models when it is
//! loaded again, and then all faults are forgotten.
//!
//! A fault that a caller's run caused counts against the input, which is refused after two, and against the caller, who
//! is refused after three. Callers that cannot be distinguished are not refused, but limited to one call in a while.
//!
//! The model itself is unloaded for faults that no caller caused, several within one probation, or when it answers its
//! golden inputs wrong after a fault. One with golden inputs is tried again with growing pauses, and comes back.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ledge_base::principal::Principal;
use ledge_isolation::Isolation;

use super::input_digest::InputDigest;

/// The time without a fault after which earlier faults of a model do not count any more.
pub const PROBATION: Duration = Duration::from_mins(10);

/// The faults within one probation that unload a model, if no caller caused them, and from which it is reported.
pub const FAULTS_MAX: u32 = 3;

/// The faults from which an input is refused.
const FAULTS_OF_INPUT_MAX: u32 = 2;

/// The number of faults from which a caller is refused, or callers that cannot be distinguished are slowed down.
const FAULTS_OF_CALLER_MAX: u32 = 3;

/// The time that a caller is refused for after its last fault. It doubles with each further fault, up to [`HELD_FOR`].
const REFUSED_FOR: Duration = Duration::from_mins(10);

/// The time without a fault after which nothing is held against a caller or an input any more.
const HELD_FOR: Duration = Duration::from_hours(1);

/// The time between two calls of callers that cannot be distinguished. It doubles with each further fault, at most
/// [`SLOW_DOUBLINGS_MAX`] times.
const SLOW_INTERVAL: Duration = Duration::from_secs(1);
const SLOW_DOUBLINGS_MAX: u32 = 6;

/// The most inputs, and the most callers, that are remembered for one model. The one with the oldest last fault is
/// forgotten first.
const REMEMBERED_MAX: usize = 256;

/// The pauses between two trials of golden inputs. Each is double the one before.
const TRIAL_PAUSE_MIN: Duration = Duration::from_secs(5);
const TRIAL_PAUSE_MAX: Duration = Duration::from_hours(1);

/// The cause of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultCause<'c> {
    /// No caller: a load, a warm-up, a golden input, or the daemon itself.
    Own,
    /// A run of several callers. Each of their calls runs separately next.
    Several,
    Caller(&'c FaultingCaller),
}

/// The caller of a run that ended a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultingCaller {
    pub principal: Principal,
    /// Its input; `None` for one that is different in every call.
    pub input: Option<InputDigest>,
}

impl FaultingCaller {
    /// The cause of a fault in its run.
    pub fn cause(&self) -> FaultCause<'_> {
        if self.principal == Principal::Local { FaultCause::Own } else { FaultCause::Caller(self) }
    }
}

/// Reason why a call of a model is refused that had faults.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FaultRefusal {
    #[error("this input ended the process of the model {FAULTS_OF_INPUT_MAX} times and is refused: send another")]
    Input,
    #[error(
        "calls of '{caller}' ended the process of the model {faults} times, so its calls of the model are refused for {} s",
        seconds(*wait)
    )]
    Caller { caller: Principal, faults: u32, wait: Duration },
    #[error(
        "calls without an API key, a certificate or a user id ended the process of the model {faults} times, so there is one \
         such call of it in {} s: call with an API key, or again in {} s",
        seconds(*interval),
        seconds(*wait)
    )]
    Unknown { faults: u32, interval: Duration, wait: Duration },
}

impl FaultRefusal {
    /// The time after which the call may be admitted; `None` for one that will be refused again.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Input => None,
            Self::Caller { wait, .. } | Self::Unknown { wait, .. } => Some(*wait),
        }
    }
}

/// Whole seconds, at least one.
fn seconds(time: Duration) -> u64 {
    time.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX).max(1)
}

/// The consequences of a fault.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FaultConsequences {
    /// The reason why the model is not loaded again, if that is so now.
    pub unloaded: Option<String>,
    /// The time for which its caller is refused.
    pub refused_for: Option<Duration>,
}

/// The end of a trial of golden inputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GoldenTrialResult {
    Passed,
    /// They were answered wrong.
    Failed(String),
    /// Some could not be run or read.
    Unknown(String),
}

/// A change by a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoldenTrialChange {
    None,
    Unloaded,
    Back,
}

/// The faults of a model.
#[derive(Debug, Default)]
pub struct ModelFaults {
    has_goldens: bool,
    /// Set with the first fault: until then a call costs no more than reading this.
    has_any: AtomicBool,
    state: Mutex<FaultState>,
}

#[derive(Debug, Default)]
struct FaultState {
    /// All faults within the current probation, and the reason of the last one.
    all: Option<FaultCount>,
    reason: String,
    /// Those of them that no caller caused.
    own: Option<FaultCount>,
    unloaded: Option<String>,
    is_suspect: bool,
    inputs: HashMap<InputDigest, FaultCount>,
    callers: HashMap<Principal, FaultCount>,
    /// The faults of callers that cannot be distinguished, and the time of their next call.
    unknown: Option<FaultCount>,
    next_unknown: Option<Instant>,
    trial: GoldenTrialPlan,
}

/// Faults, the last one at a time.
#[derive(Debug, Clone, Copy)]
struct FaultCount {
    faults: u32,
    last: Instant,
}

/// The next trial of the golden inputs.
#[derive(Debug)]
struct GoldenTrialPlan {
    due: Option<Instant>,
    pause: Duration,
    is_in_progress: bool,
    /// Set when the model ended its process meanwhile without a caller.
    has_crashed: bool,
}

impl Default for GoldenTrialPlan {
    fn default() -> Self {
        Self { due: None, pause: TRIAL_PAUSE_MIN, is_in_progress: false, has_crashed: false }
    }
}

impl FaultCount {
    /// One more fault, after those of `before` if they were less than `memory` ago.
    fn next(before: Option<Self>, memory: Duration, now: Instant) -> Self {
        let faults = before.filter(|before| before.is_held(memory, now)).map_or(0, |before| before.faults);
        Self { faults: faults.saturating_add(1), last: now }
    }

    fn is_held(&self, memory: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.last) < memory
    }

    /// The time for which a caller with these faults is refused after the last one.
    fn refused_for(&self) -> Option<Duration> {
        let further = self.faults.checked_sub(FAULTS_OF_CALLER_MAX)?;
        Some(REFUSED_FOR.saturating_mul(2_u32.saturating_pow(further)).min(HELD_FOR))
    }
}

/// Counts a fault of `key`. Returns all of them.
fn count<K: Hash + Eq + Clone>(table: &mut HashMap<K, FaultCount>, key: &K, now: Instant) -> FaultCount {
    table.retain(|_, count| count.is_held(HELD_FOR, now));
    if !table.contains_key(key) && table.len() >= REMEMBERED_MAX {
        let oldest = table.iter().min_by_key(|(_, count)| count.last).map(|(key, _)| key.clone());
        oldest.map(|oldest| table.remove(&oldest));
    }
    let count = FaultCount::next(table.get(key).copied(), HELD_FOR, now);
    table.insert(key.clone(), count);
    count
}

/// True for a caller that is the same one at each call: by a credential or a user id, not by an address or a topic,
/// which others have too.
fn is_told_apart(principal: &Principal) -> bool {
    match principal {
        Principal::User(_)
        | Principal::Key(_)
        | Principal::Certificate(_)
        | Principal::Person(_)
        | Principal::Camera(_)
        | Principal::Inbox(_) => true,
        Principal::Peer(_) | Principal::Mqtt(_) | Principal::Local | Principal::Others => false,
    }
}

impl ModelFaults {
    /// No faults yet, of a model with or without golden inputs.
    pub fn new(has_goldens: bool) -> Self {
        Self { has_goldens, ..Self::default() }
    }

    fn state(&self) -> MutexGuard<'_, FaultState> {
        // Nothing panics under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True when there was a fault since the model was loaded, so that [`Self::admit`] may refuse a call.
    pub fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Relaxed)
    }

    /// Counts a fault.
    pub fn count(&self, reason: &str, cause: FaultCause<'_>, now: Instant) -> FaultConsequences {
        self.has_any.store(true, Ordering::Relaxed);
        let mut state = self.state();
        state.all = Some(FaultCount::next(state.all, PROBATION, now));
        reason.clone_into(&mut state.reason);
        let refused_for = match cause {
            FaultCause::Several => None,
            FaultCause::Own => {
                state.trial.has_crashed |= state.trial.is_in_progress;
                let own = FaultCount::next(state.own, PROBATION, now);
                state.own = Some(own);
                if own.faults >= FAULTS_MAX && state.unloaded.is_none() {
                    let minutes = PROBATION.as_secs() / 60;
                    state.unloaded = Some(format!(
                        "it was unloaded because it ended its process {FAULTS_MAX} times within {minutes} minutes, the last \
                         time: {reason}"
                    ));
                }
                None
            }
            FaultCause::Caller(FaultingCaller { principal, input }) => {
                if let Some(input) = input {
                    count(&mut state.inputs, input, now);
                }
                if is_told_apart(principal) {
                    count(&mut state.callers, principal, now).refused_for()
                } else {
                    state.unknown = Some(FaultCount::next(state.unknown, PROBATION, now));
                    None
                }
            }
        };
        if self.has_goldens && !state.trial.is_in_progress && state.trial.due.is_none() {
            state.trial.due = Some(now);
        }
        FaultConsequences { unloaded: state.unloaded.clone(), refused_for }
    }

    /// True when the input of a call decides if it is admitted.
    pub fn needs_input(&self) -> bool {
        self.has_any() && !self.state().inputs.is_empty()
    }

    /// Admits a call, or returns why not.
    pub fn admit(&self, caller: &Principal, input: Option<&InputDigest>, now: Instant) -> Result<(), FaultRefusal> {
        if *caller == Principal::Local {
            return Ok(());
        }
        let mut state = self.state();
        state.refusal(caller, now).map_or(Ok(()), Err)?;
        let is_refused = |count: &FaultCount| count.faults >= FAULTS_OF_INPUT_MAX && count.is_held(HELD_FOR, now);
        if input.and_then(|input| state.inputs.get(input)).is_some_and(is_refused) {
            return Err(FaultRefusal::Input);
        }
        if is_told_apart(caller) {
            return Ok(());
        }
        let slowed = state.unknown.filter(|count| count.is_held(PROBATION, now));
        let Some((FaultCount { faults, .. }, further)) =
            slowed.and_then(|count| Some((count, count.faults.checked_sub(FAULTS_OF_CALLER_MAX)?)))
        else {
            return Ok(());
        };
        let interval = SLOW_INTERVAL * 2_u32.pow(further.min(SLOW_DOUBLINGS_MAX));
        if let Some(next) = state.next_unknown.filter(|next| *next > now) {
            return Err(FaultRefusal::Unknown { faults, interval, wait: next.saturating_duration_since(now) });
        }
        state.next_unknown = Some(now + interval);
        Ok(())
    }

    /// Admits a call that was admitted at `since` and waited: faults since then count.
    pub fn admit_again(
        &self,
        caller: &Principal,
        input: Option<&InputDigest>,
        since: Instant,
        now: Instant,
    ) -> Result<(), FaultRefusal> {
        if self.state().all.is_none_or(|all| all.last < since) {
            return Ok(());
        }
        self.admit(caller, input, now)
    }

    /// The reason why every call of this caller is refused now, with any input.
    pub fn refusal(&self, caller: &Principal, now: Instant) -> Option<FaultRefusal> {
        if self.has_any() { self.state().refusal(caller, now) } else { None }
    }

    /// Gives its next instance a separate process, which shows whether it is the cause. No fault is counted.
    pub fn suspect(&self) {
        self.state().is_suspect = true;
    }

    /// The process of its next instance, if `wanted` is where it runs without faults.
    pub fn isolation(&self, wanted: Isolation) -> Isolation {
        match wanted {
            // All its instances have faults in common, so all of them move.
            Isolation::Process if self.state().needs_own_process() => Isolation::Own,
            wanted => wanted,
        }
    }

    /// The reason why the model is not loaded any more.
    pub fn unloaded(&self) -> Option<String> {
        if self.has_any() { self.state().unloaded.clone() } else { None }
    }

    /// The same, but `None` while its golden inputs are tried.
    pub fn unloadable(&self) -> Option<String> {
        let state = self.state();
        state.unloaded.clone().filter(|_| !state.trial.is_in_progress)
    }

    /// The report about the model: calls end its process again and again, and it goes on.
    pub fn crashing(&self, now: Instant) -> Option<String> {
        if !self.has_any() {
            return None;
        }
        let state = self.state();
        let all = state.all.filter(|all| all.faults >= FAULTS_MAX && all.is_held(PROBATION, now))?;
        let (faults, reason, minutes) = (all.faults, &state.reason, PROBATION.as_secs() / 60);
        Some(format!(
            "calls ended its process {faults} times, with less than {minutes} minutes between them, the last time: {reason}"
        ))
    }

    /// The time of the next trial of its golden inputs.
    pub fn next_trial(&self) -> Option<Instant> {
        if self.has_any() { self.state().trial.due } else { None }
    }

    /// Begins a trial of the golden inputs, if one is due. Until [`Self::end_trial`] it may be loaded.
    pub fn begin_trial(&self, now: Instant) -> bool {
        let mut state = self.state();
        let is_due = !state.trial.is_in_progress && state.trial.due.is_some_and(|due| due <= now);
        if is_due {
            state.trial = GoldenTrialPlan { due: None, is_in_progress: true, has_crashed: false, ..state.trial };
        }
        is_due
    }

    /// Ends a trial. Golden inputs that ended the process have failed.
    pub fn end_trial(&self, trial: GoldenTrialResult, now: Instant) -> GoldenTrialChange {
        let mut state = self.state();
        state.trial.is_in_progress = false;
        let failed = match trial {
            GoldenTrialResult::Passed => {
                state.trial.pause = TRIAL_PAUSE_MIN;
                state.own = None;
                return if state.unloaded.take().is_some() { GoldenTrialChange::Back } else { GoldenTrialChange::None };
            }
            GoldenTrialResult::Failed(reason) => Some(reason),
            GoldenTrialResult::Unknown(reason) => state.trial.has_crashed.then_some(reason),
        };
        state.trial.due = Some(now + state.trial.pause);
        state.trial.pause = (state.trial.pause * 2).min(TRIAL_PAUSE_MAX);
        let Some(failed) = failed else { return GoldenTrialChange::None };
        let reason = format!("it was unloaded because its golden inputs fail after a crash: {failed}");
        let is_new = state.unloaded.replace(reason).is_none();
        if is_new { GoldenTrialChange::Unloaded } else { GoldenTrialChange::None }
    }
}

impl FaultState {
    fn needs_own_process(&self) -> bool {
        self.is_suspect || self.all.is_some()
    }

    fn refusal(&self, caller: &Principal, now: Instant) -> Option<FaultRefusal> {
        let count = self.callers.get(caller)?;
        let until = count.last + count.refused_for()?;
        let wait = until.checked_duration_since(now).filter(|wait| !wait.is_zero())?;
        Some(FaultRefusal::Caller { caller: caller.clone(), faults: count.faults, wait })
    }
}

#[cfg(test)]
mod tests;
