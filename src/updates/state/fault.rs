//! Faults of a server, a link or a disk that delay a trial, and the deadline after which they end it.

use std::cmp::Ordering;
use std::fmt;

use ledge_base::clock;
use serde::{Deserialize, Serialize};

use super::{RollbackCause, RollbackReason, RolloutPhase, STARTS_MAX, SubjectState};
use crate::plan::RolloutPlan;

/// Seconds in the soak after which one start is forgiven: a box that is switched off every night is not at fault, one
/// that crashes every hour is.
const START_FORGIVEN_S: u64 = 12 * 3_600;

/// Deadline of a download, in seconds of faults since the first one: days of bad links and broken servers.
pub(super) const DOWNLOAD_DEADLINE_S: u64 = 14 * 86_400;

/// Deadline of a stage that waits only for the machine, in seconds.
pub(super) const WORK_DEADLINE_S: u64 = 3_600;

/// Longest pause between two attempts, in milliseconds.
pub const PAUSE_MAX_MS: u64 = 6 * 3_600_000;

/// A fault of a server, a link or a disk that may be repaired: its attempts do not count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The reason why the last attempt failed.
    pub reason: RollbackReason,
    /// The time of the first failure by the clock of this box, in milliseconds since the Unix epoch, for display.
    pub since_ms: u64,
    /// Seconds since then during which the trial could move: the deadline counts these, whatever the clock does.
    pub lasted_s: u64,
    pub attempts: u32,
    /// The time at which the next attempt is due, in milliseconds since the Unix epoch.
    pub next_ms: u64,
    /// Bytes fetched since the last attempt failed.
    #[serde(default)]
    pub came: u64,
    /// Seconds of the faults before this one, between which bytes were fetched. They count again when such bytes turn
    /// out wrong.
    #[serde(default)]
    pub before_s: u64,
}

impl Fault {
    pub(super) fn new(reason: RollbackReason, now_ms: u64, next_ms: u64) -> Self {
        Self { reason, since_ms: now_ms, lasted_s: 0, attempts: 1, next_ms, came: 0, before_s: 0 }
    }

    /// Returns the fault after another failed attempt, of whose bytes `wasted` were thrown away.
    fn again(self, reason: RollbackReason, now_ms: u64, next_ms: u64, wasted: u64) -> Self {
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

    /// Returns the failed attempts before another one, of whose bytes `wasted` were thrown away.
    pub fn attempts_before(&self, wasted: u64) -> u32 {
        if self.came > wasted { 0 } else { self.attempts }
    }

    /// Returns whether the pause is over. A clock that was set back makes no pause longer than [`PAUSE_MAX_MS`].
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

impl SubjectState {
    pub(super) fn deferred(&mut self, reason: RollbackReason, now_ms: u64, next_ms: u64, wasted: u64) {
        let Some(trial) = &mut self.trial else { return };
        trial.fault = Some(match trial.fault.take() {
            Some(fault) => fault.again(reason, now_ms, next_ms, wasted),
            None => Fault::new(reason, now_ms, next_ms),
        });
    }

    pub(super) fn retry(&mut self, now_ms: u64) {
        if let Some(fault) = self.trial.as_mut().and_then(|trial| trial.fault.as_mut()) {
            fault.next_ms = fault.next_ms.min(now_ms);
        }
    }

    pub(super) fn waited(&mut self, seconds: u64) {
        let Some(trial) = self.trial.as_mut().filter(|trial| !trial.held) else { return };
        if let Some(fault) = &mut trial.fault {
            fault.lasted_s = fault.lasted_s.saturating_add(seconds);
        }
        let before = trial.in_stage_s;
        trial.in_stage_s = before.saturating_add(seconds);
        if trial.stage == RolloutPhase::Active && before / START_FORGIVEN_S < trial.in_stage_s / START_FORGIVEN_S {
            trial.starts_left = (trial.starts_left + 1).min(STARTS_MAX);
        }
        // A stage that sees requests ends by itself at its longest; the deadline is for one that does not. A download
        // has none as long as bytes come: a stop is a fault.
        let lasted_s = trial.present_fault().map_or(0, |fault| fault.lasted_s);
        let (passed, limit) = match trial.stage {
            RolloutPhase::Downloading => (lasted_s, DOWNLOAD_DEADLINE_S),
            stage => (trial.in_stage_s, Self::work_deadline(stage, &trial.plan)),
        };
        if passed > limit {
            let last = trial.fault.as_ref().map_or_else(String::new, |fault| format!("; {fault}"));
            let detail = match trial.stage {
                RolloutPhase::Downloading => {
                    format!("not downloaded {} days after the first fault{last}", limit / 86_400)
                }
                stage => format!("{stage} took longer than {limit} s{last}"),
            };
            self.roll_back(RollbackReason::new(RollbackCause::Deadline, detail));
        }
    }

    fn work_deadline(stage: RolloutPhase, plan: &RolloutPlan) -> u64 {
        let seen_s = match stage {
            RolloutPhase::Downloading | RolloutPhase::Verified | RolloutPhase::Staged => 0,
            RolloutPhase::Shadow => plan.shadow.max_s,
            RolloutPhase::Canary => plan.canary.max_s,
            RolloutPhase::Active => plan.soak.max_s,
        };
        seen_s.saturating_add(WORK_DEADLINE_S)
    }
}
