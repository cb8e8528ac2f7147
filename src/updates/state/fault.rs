//! What keeps a trial from going on for now, and lies elsewhere; and when that has lasted too long.

use std::cmp::Ordering;
use std::fmt;

use ledge_base::clock;
use serde::{Deserialize, Serialize};

use super::{Cause, Reason, STARTS, Stage, SubjectState};
use crate::plan::Plan;

/// After so many seconds in the soak one start is forgiven: a box that is switched off every night is not at fault, one
/// that falls every hour is.
const START_FORGIVEN_S: u64 = 12 * 3_600;

/// Days of bad links and broken servers, from the first fault of a download.
pub(super) const DOWNLOAD_DEADLINE_S: u64 = 14 * 86_400;

/// For a stage that has nothing to wait for but the machine.
pub(super) const WORK_DEADLINE_S: u64 = 3_600;

/// The longest pause between two attempts.
pub const LONGEST_PAUSE_MS: u64 = 6 * 3_600_000;

/// A server, a link or a disk that is at fault, and may be put right: no attempt is counted for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Why the last attempt failed.
    pub reason: Reason,
    /// When the first one did by the clock of this box, in milliseconds since the Unix epoch. For people.
    pub since_ms: u64,
    /// Seconds since then during which the trial could move: the deadline goes by them, whatever the clock does.
    pub lasted_s: u64,
    pub attempts: u32,
    /// When the next one is due, in milliseconds since the Unix epoch.
    pub next_ms: u64,
    /// Bytes that came since the last attempt failed.
    #[serde(default)]
    pub came: u64,
    /// Seconds of the faults before this one, between which bytes came. They count again when such bytes turn out wrong.
    #[serde(default)]
    pub before_s: u64,
}

impl Fault {
    pub(super) fn new(reason: Reason, now_ms: u64, next_ms: u64) -> Self {
        Self { reason, since_ms: now_ms, lasted_s: 0, attempts: 1, next_ms, came: 0, before_s: 0 }
    }

    /// After another attempt that failed, of whose bytes `wasted` were thrown away.
    fn again(self, reason: Reason, now_ms: u64, next_ms: u64, wasted: u64) -> Self {
        let all_s = self.lasted_s.saturating_add(self.before_s);
        match self.came.cmp(&wasted) {
            // It had passed, and this is another one.
            Ordering::Greater => Self { before_s: all_s, ..Self::new(reason, now_ms, next_ms) },
            Ordering::Equal => Self { reason, attempts: self.attempts.saturating_add(1), next_ms, came: 0, ..self },
            // What came after earlier faults was wrong too.
            Ordering::Less => {
                let attempts = self.attempts.saturating_add(1);
                Self { reason, attempts, next_ms, came: 0, lasted_s: all_s, before_s: 0, ..self }
            }
        }
    }

    /// Attempts that failed before the next one, of whose bytes `wasted` were thrown away.
    pub fn attempts_before(&self, wasted: u64) -> u32 {
        if self.came > wasted { 0 } else { self.attempts }
    }

    /// Whether the pause is over. A clock that was set back makes no pause longer than the longest.
    pub fn is_due(&self, now_ms: u64) -> bool {
        now_ms >= self.next_ms || self.next_ms - now_ms > LONGEST_PAUSE_MS
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, since_ms, attempts, .. } = self;
        write!(f, "{attempts} attempts failed since {}, the last one: {reason}", clock::rfc3339(*since_ms))
    }
}

impl SubjectState {
    pub(super) fn hindered(&mut self, reason: Reason, now_ms: u64, next_ms: u64, wasted: u64) {
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
        if trial.stage == Stage::Active && before / START_FORGIVEN_S < trial.in_stage_s / START_FORGIVEN_S {
            trial.starts_left = (trial.starts_left + 1).min(STARTS);
        }
        // A stage that sees requests ends by itself at its longest; the deadline is for one that does not. A download has
        // none as long as it comes: what does not come is a fault.
        let lasted_s = trial.present_fault().map_or(0, |fault| fault.lasted_s);
        let (passed, limit) = match trial.stage {
            Stage::Downloading => (lasted_s, DOWNLOAD_DEADLINE_S),
            stage => (trial.in_stage_s, Self::work_deadline(stage, &trial.plan)),
        };
        if passed > limit {
            let last = trial.fault.as_ref().map_or_else(String::new, |fault| format!("; {fault}"));
            let detail = match trial.stage {
                Stage::Downloading => format!("not downloaded {} days after the first fault{last}", limit / 86_400),
                stage => format!("{stage} took longer than {limit} s{last}"),
            };
            self.roll_back(Reason::new(Cause::Deadline, detail));
        }
    }

    fn work_deadline(stage: Stage, plan: &Plan) -> u64 {
        let seen_s = match stage {
            Stage::Downloading | Stage::Verified | Stage::Staged => 0,
            Stage::Shadow => plan.shadow.max_s,
            Stage::Canary => plan.canary.max_s,
            Stage::Active => plan.soak.max_s,
        };
        seen_s.saturating_add(WORK_DEADLINE_S)
    }
}
