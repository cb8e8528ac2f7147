//! Permits for runs in other processes. All run at the same time, except a run that was in a process when that ended
//! without a known cause: nothing runs concurrently with it, so that it is the cause if the process ends again.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest time that others wait for an exclusive run, and that it waits for them: one of them may never end.
const EXCLUSIVE_MAX: Duration = Duration::from_secs(1);

/// The permits of all runs in other processes.
#[derive(Debug, Default)]
pub struct ExclusiveGate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    running: usize,
    /// The end of the time that belongs to an exclusive run.
    exclusive_until: Option<Instant>,
}

/// The permit of one run; dropping it returns the permit.
#[derive(Debug)]
pub struct GatePermit<'t> {
    gate: &'t ExclusiveGate,
    is_exclusive: bool,
}

impl ExclusiveGate {
    fn lock(&self) -> MutexGuard<'_, GateState> {
        // Nothing panics under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The permit of a run concurrent with others; `None` if it would have to wait.
    pub fn try_shared(&self) -> Option<GatePermit<'_>> {
        let mut state = self.lock();
        if state.exclusive_until.is_some() {
            return None;
        }
        state.running += 1;
        Some(GatePermit { gate: self, is_exclusive: false })
    }

    /// Waits for the permit of a run concurrent with others.
    pub fn shared(&self) -> GatePermit<'_> {
        let mut state = self.wait_for_exclusive(self.lock());
        state.running += 1;
        GatePermit { gate: self, is_exclusive: false }
    }

    /// Waits for the permit of an exclusive run.
    pub fn exclusive(&self) -> GatePermit<'_> {
        let mut state = self.wait_for_exclusive(self.lock());
        let until = Instant::now() + EXCLUSIVE_MAX;
        state.exclusive_until = Some(until);
        while state.running > 0 && Instant::now() < until {
            state = self.wait(state, until);
        }
        state.running += 1;
        GatePermit { gate: self, is_exclusive: true }
    }

    fn wait_for_exclusive<'t>(&self, mut state: MutexGuard<'t, GateState>) -> MutexGuard<'t, GateState> {
        while let Some(until) = state.exclusive_until.filter(|until| Instant::now() < *until) {
            state = self.wait(state, until);
        }
        state
    }

    fn wait<'t>(&self, state: MutexGuard<'t, GateState>, until: Instant) -> MutexGuard<'t, GateState> {
        let time = until.saturating_duration_since(Instant::now());
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Drop for GatePermit<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.lock();
        state.running -= 1;
        if self.is_exclusive {
            state.exclusive_until = None;
        }
        if self.is_exclusive || state.exclusive_until.is_some() {
            self.gate.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_runs_beside_an_exclusive_run() {
        let gate = ExclusiveGate::default();
        let (first, second) = (gate.shared(), gate.try_shared());
        assert!(second.is_some());
        drop((first, second));
        let alone = gate.exclusive();
        assert!(gate.try_shared().is_none());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| drop(gate.shared()));
            drop(alone);
            waits.join().unwrap();
        });
        assert!(gate.try_shared().is_some());
    }

    #[test]
    fn a_run_that_never_ends_holds_nobody_up_for_long() {
        let gate = ExclusiveGate::default();
        let since = Instant::now();
        let endless = gate.shared();
        let alone = gate.exclusive();
        let beside = gate.shared();
        assert!(since.elapsed() >= EXCLUSIVE_MAX);
        drop((endless, alone, beside));
        assert_eq!(gate.lock().running, 0);
    }
}
