//! The time that loads of one version may take, and the turns of loads with measured memory.

use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// The longest wait of a load for another one with measured memory. After it the figure may be inexact.
const TURN_WAIT_MAX: Duration = Duration::from_secs(10);

/// The terms of the loads of one version, which share them.
#[derive(Debug)]
pub struct InstanceLoadLimit {
    /// The longest time of the load of an instance, regardless of what it waits for.
    limit: Duration,
    given_up: OnceLock<String>,
}

impl InstanceLoadLimit {
    /// Loads of at most `limit` each.
    pub fn new(limit: Duration) -> Self {
        Self { limit, given_up: OnceLock::new() }
    }

    /// The longest time of the load of an instance.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Lets no load begin from now on, for this reason.
    pub fn give_up(&self, reason: String) {
        let _ = self.given_up.set(reason);
    }

    /// The reason why no load begins any more.
    pub fn given_up(&self) -> Option<&str> {
        self.given_up.get().map(String::as_str)
    }
}

/// Loads take turns, so that the memory that each adds to its process can be measured. One that takes long holds no
/// other up.
#[derive(Debug, Default)]
pub(super) struct LoadTurns {
    is_taken: Mutex<bool>,
    freed: Condvar,
}

/// The turn of a load; the next one begins when it is dropped.
#[derive(Debug)]
pub(super) struct LoadTurn<'t>(&'t LoadTurns);

impl LoadTurns {
    /// Waits for the turn. Blocks.
    pub fn take(&self) -> LoadTurn<'_> {
        self.take_within(TURN_WAIT_MAX)
    }

    fn take_within(&self, wait: Duration) -> LoadTurn<'_> {
        let is_taken = self.is_taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.freed.wait_timeout_while(is_taken, wait, |is_taken| *is_taken);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = true;
        LoadTurn(self)
    }
}

impl Drop for LoadTurn<'_> {
    fn drop(&mut self) {
        *self.0.is_taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_never_ends_holds_no_other_up() {
        let turns = LoadTurns::default();
        let endless = turns.take();
        drop(turns.take_within(Duration::from_millis(1)));
        drop(endless);
        assert!(!*turns.is_taken.lock().unwrap());
    }

    #[test]
    fn a_reason_to_give_up_stays() {
        let terms = InstanceLoadLimit::new(Duration::from_secs(1));
        assert_eq!(terms.given_up(), None);
        terms.give_up("first".to_owned());
        terms.give_up("second".to_owned());
        assert_eq!(terms.given_up(), Some("first"));
    }
}
