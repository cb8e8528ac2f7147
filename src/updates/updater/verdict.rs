//! The judgement on a stage that sees requests: it continues, is passed, or has failed.

use super::trial_runtime::{StageVerdict, TrialRuntime};
use crate::artifact::ArtifactKind;
use crate::gates;
use crate::plan::{QuietStagePolicy, StagePlan};
use crate::state::{RollbackCause, RollbackReason, RolloutPhase, SubjectState};

/// Judges the stage that a subject is in.
pub(super) fn judge(kind: ArtifactKind, state: &SubjectState, trial_runtime: &mut TrialRuntime) -> StageVerdict {
    let Some(trial) = state.trial.as_ref().filter(|trial| !trial.held) else { return StageVerdict::Wait };
    let step = match trial.stage {
        RolloutPhase::Shadow => &trial.plan.shadow,
        RolloutPhase::Canary => &trial.plan.canary,
        RolloutPhase::Active => &trial.plan.soak,
        RolloutPhase::Downloading | RolloutPhase::Verified | RolloutPhase::Staged => return StageVerdict::Wait,
    };
    let (requests, observed) = trial_runtime.seen(trial);
    let (gate, package) = (&trial.plan.gate, trial.package.as_deref());
    let reference = package.and_then(|package| package.reference.as_ref());
    // The signed figures are of one earlier release.
    let expected = package.and_then(|package| package.agreement.as_ref());
    let incumbent = state.committed.as_ref().map(|committed| committed.version);
    let expected = expected.filter(|expected| incumbent == Some(expected.version));
    let judged = if trial.stage == RolloutPhase::Active {
        gates::judge_soak(gate, &observed, reference)
    } else {
        gates::judge(gate, &observed, reference)
    };
    let judged = judged.and_then(|()| expected.map_or(Ok(()), |expected| gates::judge_expected(expected, &observed)));
    // At every interval, so that a clearly bad version ends at once.
    if let Err(reason) = judged {
        return StageVerdict::Fail(reason);
    }
    if gates::is_suspect(gate, &observed) && !trial_runtime.paces.are_trusted() {
        return StageVerdict::Measure;
    }
    // Settings and libraries answer no requests.
    let min_requests = if kind == ArtifactKind::Model { step.min_requests } else { 0 };
    let over = stage_is_over(&StagePlan { min_requests, ..*step }, trial.stage, trial.in_stage_s, requests);
    let needed = expected.filter(|_| trial.stage == RolloutPhase::Shadow).map_or(0, gates::answers_needed);
    let compared = observed.agreed.saturating_add(observed.disagreed);
    match over {
        // Rare wrong answers do not show yet.
        StageVerdict::Pass if compared < needed && trial.in_stage_s < step.max_s.max(step.min_s) => StageVerdict::Wait,
        over => over,
    }
}

/// Judges whether a stage has lasted long enough and seen enough requests. Pure.
fn stage_is_over(step: &StagePlan, stage: RolloutPhase, in_stage_s: u64, requests: u64) -> StageVerdict {
    if in_stage_s >= step.min_s && requests >= step.min_requests {
        return StageVerdict::Pass;
    }
    if in_stage_s < step.max_s.max(step.min_s) {
        return StageVerdict::Wait;
    }
    match step.quiet {
        QuietStagePolicy::Pass => StageVerdict::Pass,
        QuietStagePolicy::RollBack => {
            let needed = step.min_requests;
            let detail = format!("too few requests: {requests} in {in_stage_s} s of {stage}, {needed} are needed");
            StageVerdict::Fail(RollbackReason::new(RollbackCause::Quiet, detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(step: StagePlan, in_stage_s: u64, requests: u64) -> &'static str {
        match stage_is_over(&step, RolloutPhase::Canary, in_stage_s, requests) {
            StageVerdict::Wait => "wait",
            StageVerdict::Pass => "pass",
            StageVerdict::Fail(_) => "fail",
            StageVerdict::Measure => "measure",
        }
    }

    #[test]
    fn a_stage_needs_its_time_and_its_requests_and_ends_at_its_longest() {
        let step = StagePlan { share: 0.1, min_s: 60, min_requests: 100, max_s: 600, quiet: QuietStagePolicy::Pass };
        assert_eq!(over(step, 59, 1_000), "wait");
        assert_eq!(over(step, 60, 99), "wait");
        assert_eq!(over(step, 60, 100), "pass");
        assert_eq!(over(step, 600, 3), "pass");
        assert_eq!(over(StagePlan { quiet: QuietStagePolicy::RollBack, ..step }, 600, 3), "fail");
        assert_eq!(over(StagePlan { quiet: QuietStagePolicy::RollBack, ..step }, 600, 100), "pass");
    }
}
