//! Faults of a server, a link or a disk that delay a trial, and the deadline after which they end it.

use std::cmp::Ordering;
use std::fmt;

use ledge_base::clock;
use serde::{Deserialize, Serialize};

use super::RollbackReason;

/// Longest pause between two attempts, in milliseconds.
pub const PAUSE_MAX_MS: u64 = 6 * 3_600_000;

/// A fault of a server, a link or a disk that may be repaired: its attempts do not count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The reason why the last attempt failed.
    pub reason: RollbackReason,
    /// The time of the first failure by the clock of this box, in milliseconds since the Unix epoch, for display.
    pub since_ms: u64,
    /// Seconds since then during which the trial could move: the deadline counts these, regardless of the clock.
    pub lasted_s: u64,
    pub attempts: u32,
    /// The time at which the next attempt is due, in milliseconds since the Unix epoch.
    pub next_ms: u64,
    /// Bytes fetched since the last attempt failed.
    #[serde(default)]
    pub came: u64,
    /// Seconds of the faults before this one, if bytes were fetched in between. They count again when those bytes turn
    /// out wrong.
    #[serde(default)]
    pub before_s: u64,
}

impl Fault {
    pub(super) fn new(reason: RollbackReason, now_ms: u64, next_ms: u64) -> Self {
        Self { reason, since_ms: now_ms, lasted_s: 0, attempts: 1, next_ms, came: 0, before_s: 0 }
    }

    /// Returns the fault after another failed attempt, which had to discard `wasted` bytes.
    pub(super) fn again(self, reason: RollbackReason, now_ms: u64, next_ms: u64, wasted: u64) -> Self {
        let all_s = self.lasted_s.saturating_add(self.before_s);
        match self.came.cmp(&wasted) {
            // The fault had passed, and this is another one.
            Ordering::Greater => Self { before_s: all_s, ..Self::new(reason, now_ms, next_ms) },
            Ordering::Equal => Self { reason, attempts: self.attempts.saturating_add(1), next_ms, came: 0, ..self },
            // Bytes fetched after earlier faults were wrong too.
            Ordering::Less => {
                let attempts = self.attempts.saturating_add(1);
                Self { reason, attempts, next_ms, came: 0, lasted_s: all_s, before_s: 0, ..self }
            }
        }
    }

    /// Returns the failed attempts before another one, which had to discard `wasted` bytes.
    pub fn attempts_before(&self, wasted: u64) -> u32 {
        if self.came > wasted { 0 } else { self.attempts }
    }

    /// Returns true if the pause is over. A clock that was set back makes no pause longer than [`PAUSE_MAX_MS`].
    pub fn is_due(&self, now_ms: u64) -> bool {
        now_ms >= self.next_ms || self.next_ms - now_ms > PAUSE_MAX_MS
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, since_ms, attempts, .. } = self;
        write!(f, "{attempts} attempts failed since {}, the last one: {reason}", clock::rfc3339(*since_ms))
    }
}
