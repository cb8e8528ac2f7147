//! The faults of one model in its processes: when it gets a process of its own, and when it is not loaded any more.
//!
//! A model that ends its process gets one of its own, where its next fault costs nobody else anything; so does a suspect,
//! which was in its process at several ends whose cause is not known. A model is on probation for a time after each
//! fault: several faults within one probation unload it. It returns to the process of all models when
//! it is loaded anew.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ledge_isolation::Isolation;

/// The time without a fault after which earlier faults do not count any more.
pub const PROBATION: Duration = Duration::from_mins(10);

/// The faults within one probation that unload a model.
pub const FAULTS_MAX: u32 = 3;

/// The faults of a model.
#[derive(Debug, Default)]
pub struct Faults(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    count: u32,
    last: Option<Instant>,
    unloaded: Option<String>,
    is_suspect: bool,
}

impl Faults {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a fault. Returns the reason why the model is not loaded again, if that is so now.
    pub fn count(&self, reason: &str, now: Instant) -> Option<String> {
        let mut state = self.state();
        state.count = if state.is_on_probation(now) { state.count + 1 } else { 1 };
        state.last = Some(now);
        if state.count >= FAULTS_MAX && state.unloaded.is_none() {
            let minutes = PROBATION.as_secs() / 60;
            state.unloaded = Some(format!(
                "it was unloaded because it ended its process {FAULTS_MAX} times within {minutes} minutes, the last time: \
                 {reason}"
            ));
        }
        state.unloaded.clone()
    }

    /// Gives its next instance a process of its own, which shows if it is the cause. No fault is counted.
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
        self.state().unloaded.clone()
    }
}

impl State {
    fn needs_own_process(&self) -> bool {
        self.is_suspect || self.last.is_some()
    }

    fn is_on_probation(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.saturating_duration_since(last) < PROBATION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_with_a_fault_gets_its_own_process() {
        let faults = Faults::default();
        assert_eq!(faults.isolation(Isolation::Process), Isolation::Process);
        assert_eq!(faults.count("crashed", Instant::now()), None);
        assert_eq!(faults.isolation(Isolation::Process), Isolation::Own);
    }

    #[test]
    fn a_suspect_gets_its_own_process_and_has_no_fault() {
        let faults = Faults::default();
        faults.suspect();
        assert_eq!(faults.isolation(Isolation::Process), Isolation::Own);
        let now = Instant::now();
        assert_eq!([faults.count("crashed", now), faults.count("crashed", now)], [None, None]);
    }

    #[test]
    fn faults_within_one_probation_unload_it_and_rare_ones_do_not() {
        let (faults, now) = (Faults::default(), Instant::now());
        for count in 0..10 {
            assert_eq!(faults.count("crashed", now + PROBATION * count), None);
        }
        let now = now + PROBATION * 20;
        assert_eq!(faults.count("crashed", now), None);
        assert_eq!(faults.count("crashed", now), None);
        assert!(faults.count("SIGSEGV", now).unwrap().contains("SIGSEGV"));
        assert!(faults.unloaded().unwrap().contains("3 times within 10 minutes"));
    }
}
