//! Delays of a trial, and the deadline after which they end it.

use super::super::plan::RolloutPlan;
use super::fault::Fault;
use super::{RollbackCause, RollbackReason, RolloutPhase, STARTS_MAX, SubjectState};

/// Seconds in the soak after which one start is forgiven: a box that is switched off every night is not at fault, one
/// that crashes every hour is.
const START_FORGIVEN_S: u64 = 12 * 3_600;

/// Deadline of a download, in seconds of faults since the first one: days of bad links and broken servers.
pub(super) const DOWNLOAD_DEADLINE_S: u64 = 14 * 86_400;

/// Deadline of a stage that waits only for the machine, in seconds.
pub(super) const WORK_DEADLINE_S: u64 = 3_600;

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
