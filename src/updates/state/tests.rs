//! Every rule of the states, including known complaints about other updaters.

mod faults;
mod random;
mod superseded;

use ledge_base::names::DeviceName;

use super::delays::WORK_DEADLINE_S;
use super::*;
use crate::plan::{QuietStagePolicy, RolloutGate, StagePlan};

fn step(share: f64) -> StagePlan {
    StagePlan { share, min_s: 0, min_requests: 10, max_s: 3_600, quiet: QuietStagePolicy::Pass }
}

fn plan(rollout: &str, version: u64) -> RolloutPlan {
    RolloutPlan {
        rollout: rollout.parse().unwrap(),
        target: format!("models/wine/{version}/model.onnx").parse().unwrap(),
        shadow: step(0.5),
        canary: step(0.1),
        soak: step(0.0),
        gate: RolloutGate::OPEN,
        max_attempts: 3,
        byte_budget: Some(1_000),
        allow_downgrade: false,
    }
}

/// A check of the platform, on a box without a model of that name by its owner.
fn heard(desired_state: DesiredState) -> UpdateEvent {
    UpdateEvent::Wanted { desired_state, has_own: false }
}

fn desired_state(plan: RolloutPlan, allow: RolloutAllowance) -> UpdateEvent {
    heard(DesiredState { desired: Some((plan, allow)), ..DesiredState::default() })
}

fn want(rollout: &str, version: u64) -> UpdateEvent {
    desired_state(plan(rollout, version), RolloutAllowance::Everything)
}

fn nothing() -> UpdateEvent {
    heard(DesiredState::default())
}

fn revoke(versions: &[u64]) -> UpdateEvent {
    let revoked = versions.iter().map(|version| version.to_string().parse().unwrap()).collect();
    heard(DesiredState { revoked, ..DesiredState::default() })
}

fn described(version: u64) -> UpdateEvent {
    UpdateEvent::Described { package: Arc::default(), digest: format!("digest of {version}") }
}

fn failed(cause: RollbackCause) -> UpdateEvent {
    UpdateEvent::Failed(RollbackReason::new(cause, "because"))
}

fn interrupted() -> UpdateEvent {
    UpdateEvent::Interrupted(RollbackReason::new(RollbackCause::Download, "the link is gone"))
}

/// Returns the state after all these events, for a model.
fn after(state: SubjectState, events: impl IntoIterator<Item = UpdateEvent>) -> SubjectState {
    events.into_iter().fold(state, |state, event| state.after(event, ArtifactKind::Model))
}

fn from_nothing(events: impl IntoIterator<Item = UpdateEvent>) -> SubjectState {
    after(SubjectState::default(), events)
}

/// Returns the state with the release of `version` by `rollout` committed.
fn commit(state: SubjectState, rollout: &str, version: u64) -> SubjectState {
    let begun = after(state, [want(rollout, version), described(version)]);
    after(begun, std::iter::repeat_n(UpdateEvent::Passed, 6))
}

/// Returns a state with version 1 committed and version 2 on trial in `reached`.
fn at(reached: RolloutPhase) -> SubjectState {
    let mut tried = after(commit(SubjectState::default(), "r1", 1), [want("r2", 2), described(2)]);
    while stage(&tried) != Some(reached) {
        tried = after(tried, [UpdateEvent::Passed]);
    }
    tried
}

fn stage(state: &SubjectState) -> Option<RolloutPhase> {
    state.trial.as_ref().map(|trial| trial.stage)
}

fn live(state: &SubjectState) -> Option<u64> {
    state.live().map(|release| release.version.get())
}

/// Returns the stage and cause of the last rollback.
fn rolled_back(state: &SubjectState) -> Option<(RolloutPhase, RollbackCause)> {
    let (reached, reason) = state.outcome.as_ref()?.rolled_back.as_ref()?;
    Some((*reached, reason.cause))
}

const STAGES: [RolloutPhase; 6] = [
    RolloutPhase::Downloading,
    RolloutPhase::Verified,
    RolloutPhase::Staged,
    RolloutPhase::Shadow,
    RolloutPhase::Canary,
    RolloutPhase::Active,
];

#[test]
fn a_release_passes_every_stage_and_is_committed_after_the_soak() {
    let mut state = commit(SubjectState::default(), "r1", 1);
    state = after(state, [want("r2", 2), described(2)]);
    let duties = [
        UpdateAction::Download,
        UpdateAction::Preflight,
        UpdateAction::LoadCandidate,
        UpdateAction::Mirror,
        UpdateAction::Share,
        UpdateAction::Soak,
    ];
    for (expected, next_action) in STAGES.into_iter().zip(duties) {
        assert_eq!((stage(&state), state.next_action()), (Some(expected), next_action));
        assert_eq!(live(&state), Some(if expected == RolloutPhase::Active { 2 } else { 1 }), "{expected}");
        // No success is reported before the soak is over.
        assert_eq!(state.outcome.as_ref().map(|outcome| outcome.version.get()), Some(1));
        state = after(state, [UpdateEvent::Passed]);
    }
    assert_eq!((stage(&state), live(&state), state.next_action()), (None, Some(2), UpdateAction::Rest));
    assert_eq!(state.previous.as_ref().map(|release| release.version.get()), Some(1));
    let outcome = state.outcome.unwrap();
    assert_eq!((outcome.rollout.as_str(), outcome.version.get(), outcome.rolled_back), ("r2", 2, None));
}

#[test]
fn stages_without_a_share_are_left_out() {
    let staged = |plan: RolloutPlan, kind| {
        let begun = SubjectState::default().after(desired_state(plan, RolloutAllowance::Everything), kind);
        [UpdateEvent::Passed, UpdateEvent::Passed].into_iter().fold(begun, |state, event| state.after(event, kind))
    };
    let next = |plan: RolloutPlan, kind| stage(&staged(plan, kind).after(UpdateEvent::Passed, kind)).unwrap();
    let quiet = RolloutPlan { shadow: step(0.0), canary: step(0.0), ..plan("r1", 1) };
    assert_eq!(next(quiet.clone(), ArtifactKind::Model), RolloutPhase::Active);
    assert_eq!(next(RolloutPlan { canary: step(0.2), ..quiet }, ArtifactKind::Model), RolloutPhase::Canary);
    // A configuration answers no requests: there is nothing to mirror.
    assert_eq!(next(plan("r1", 1), ArtifactKind::Configuration), RolloutPhase::Active);
    assert_eq!(next(plan("r1", 1), ArtifactKind::Runtime), RolloutPhase::Active);
}

#[test]
fn what_fails_anywhere_is_rolled_back_with_its_reason_and_not_tried_again() {
    for reached in STAGES {
        let state = after(at(reached), [failed(RollbackCause::Errors)]);
        assert_eq!((live(&state), stage(&state)), (Some(1), None), "{reached}");
        assert_eq!(rolled_back(&state), Some((reached, RollbackCause::Errors)));
        // The manifest still lists it, every five minutes and after every start.
        let state = after(state, [want("r2", 2), start(true), want("r2", 2)]);
        assert_eq!(stage(&state), None, "{reached}");
        assert_eq!(rolled_back(&state), Some((reached, RollbackCause::Errors)), "the report stays");
        // Another rollout may try the same version again, and the same rollout another version.
        assert_eq!(stage(&after(state.clone(), [want("r3", 2)])), Some(RolloutPhase::Downloading));
        assert_eq!(stage(&after(state, [want("r2", 3)])), Some(RolloutPhase::Downloading));
    }
}

#[test]
fn a_refused_digest_under_another_number_is_refused_before_anything_is_fetched() {
    let state = after(at(RolloutPhase::Staged), [failed(RollbackCause::Golden), want("r2", 3), described(2)]);
    assert_eq!((stage(&state), live(&state)), (None, Some(1)));
    assert_eq!(stage(&after(state, [want("r2", 3)])), None, "and it does not begin again");
}

#[test]
fn only_so_many_refusals_are_remembered() {
    let state = (0..200).fold(SubjectState::default(), |state, number| {
        after(state, [want(&format!("r{number}"), 1), failed(RollbackCause::Load)])
    });
    assert_eq!(state.refused.len(), REFUSED_MAX);
    assert_eq!(stage(&after(state, [want("r199", 1)])), None, "the newest are");
}

#[test]
fn a_newer_manifest_supersedes_a_stuck_trial_in_every_stage() {
    for reached in STAGES {
        let state = after(at(reached), [want("r3", 3)]);
        let trial = state.trial.as_ref().unwrap();
        assert_eq!((trial.release.version.get(), trial.stage, trial.fetched_bytes), (3, RolloutPhase::Downloading, 0));
        assert_eq!(rolled_back(&state), Some((reached, RollbackCause::Superseded)));
        assert_eq!(live(&state), Some(1), "{reached}");
        // It was not at fault.
        assert_eq!(stage(&after(state, [nothing(), want("r2", 2)])), Some(RolloutPhase::Downloading));
    }
}

#[test]
fn a_rollout_that_is_gone_ends_its_trial_and_may_come_back() {
    for reached in STAGES {
        let state = after(at(reached), [nothing()]);
        assert_eq!((live(&state), rolled_back(&state)), (Some(1), Some((reached, RollbackCause::Withdrawn))));
        assert_eq!(stage(&after(state, [want("r2", 2)])), Some(RolloutPhase::Downloading));
    }
}

#[test]
fn the_same_manifest_again_changes_nothing() {
    for reached in STAGES {
        assert_eq!(after(at(reached), [want("r2", 2)]), at(reached));
    }
    let committed = commit(SubjectState::default(), "r1", 1);
    assert_eq!(after(committed.clone(), [want("r1", 1)]), committed);
}

#[test]
fn a_changed_gate_reaches_a_trial_under_way() {
    let changed = RolloutPlan { gate: RolloutGate { psi_max: Some(0.1), ..RolloutGate::default() }, ..plan("r2", 2) };
    let state = after(at(RolloutPhase::Shadow), [desired_state(changed.clone(), RolloutAllowance::Everything)]);
    assert_eq!((stage(&state), state.trial.unwrap().plan), (Some(RolloutPhase::Shadow), changed));
}

/// A start of the daemon, after work of the trial or not.
fn start(under_way: bool) -> UpdateEvent {
    UpdateEvent::Started { under_way }
}

#[test]
fn a_box_that_does_not_come_up_falls_back_by_itself() {
    for reached in
        [RolloutPhase::Verified, RolloutPhase::Staged, RolloutPhase::Shadow, RolloutPhase::Canary, RolloutPhase::Active]
    {
        let mut state = at(reached);
        for number in 1..=STARTS_MAX {
            state = after(state, [start(true)]);
            assert!(state.trial.is_some(), "{reached}: start {number}");
        }
        state = after(state, [start(true)]);
        assert_eq!((live(&state), stage(&state)), (Some(1), None), "{reached}");
        assert_eq!(rolled_back(&state).unwrap().1, RollbackCause::Restarts);
    }
}

#[test]
fn starts_that_found_nothing_of_it_under_way_never_end_a_trial() {
    for reached in STAGES {
        // A start that did find something is forgiven with the next that did not.
        let state = (0..100).fold(at(reached), |state, number| after(state, [start(number % 4 != 3)]));
        assert!(state.trial.is_some(), "{reached}: {:?}", state.outcome);
        let state = after(state, [start(false)]);
        assert_eq!(state.trial.unwrap().starts_left, STARTS_MAX, "{reached}");
    }
}

#[test]
fn a_start_while_files_are_fetched_counts_for_nothing() {
    let state = after(at(RolloutPhase::Downloading), std::iter::repeat_n(start(true), 100));
    assert_eq!(state, at(RolloutPhase::Downloading));
}

#[test]
fn a_start_while_it_waits_for_its_window_counts_for_nothing() {
    let waiting = after(at(RolloutPhase::Staged), [desired_state(plan("r2", 2), RolloutAllowance::Prepare)]);
    assert_eq!(after(waiting.clone(), std::iter::repeat_n(start(false), 100)), waiting);
}

#[test]
fn a_start_takes_what_was_loaded_beside_back_to_staged_and_leaves_a_soak() {
    for reached in [RolloutPhase::Shadow, RolloutPhase::Canary] {
        let state = after(at(reached), [UpdateEvent::Waited { seconds: 100 }, start(false)]);
        assert_eq!((stage(&state), state.trial.unwrap().in_stage_s), (Some(RolloutPhase::Staged), 0));
    }
    let state = after(at(RolloutPhase::Active), [UpdateEvent::Waited { seconds: 100 }, start(false)]);
    assert_eq!(
        (stage(&state), live(&state), state.trial.unwrap().in_stage_s),
        (Some(RolloutPhase::Active), Some(2), 100)
    );
}

#[test]
fn a_box_that_is_switched_off_every_night_passes_a_soak_of_weeks_and_one_that_falls_every_hour_does_not() {
    let weeks = RolloutPlan { soak: StagePlan { max_s: 30 * 86_400, ..step(0.0) }, ..plan("r2", 2) };
    let soaking = after(at(RolloutPhase::Active), [desired_state(weeks, RolloutAllowance::Everything)]);
    let starts = |every_s: u64| {
        (0..20).fold(soaking.clone(), |state, _| {
            let ticks =
                std::iter::repeat_n(UpdateEvent::Waited { seconds: 60 }, usize::try_from(every_s / 60).unwrap());
            after(after(state, ticks), [start(true)])
        })
    };
    assert_eq!(stage(&starts(14 * 3_600)), Some(RolloutPhase::Active));
    assert_eq!(rolled_back(&starts(3_600)), Some((RolloutPhase::Active, RollbackCause::Restarts)));
}

#[test]
fn every_stage_has_a_deadline_of_the_box_itself() {
    for (reached, limit) in [
        (RolloutPhase::Verified, WORK_DEADLINE_S),
        (RolloutPhase::Staged, WORK_DEADLINE_S),
        (RolloutPhase::Shadow, 3_600 + WORK_DEADLINE_S),
        (RolloutPhase::Canary, 3_600 + WORK_DEADLINE_S),
        (RolloutPhase::Active, 3_600 + WORK_DEADLINE_S),
    ] {
        let state = after(at(reached), [UpdateEvent::Waited { seconds: limit }]);
        assert_eq!(stage(&state), Some(reached));
        let state = after(state, [UpdateEvent::Waited { seconds: 1 }]);
        assert_eq!((live(&state), rolled_back(&state)), (Some(1), Some((reached, RollbackCause::Deadline))));
    }
}

#[test]
fn a_paused_rollout_stands_still_and_its_deadline_with_it_but_a_soak_goes_on() {
    for reached in STAGES {
        let state = after(at(reached), [desired_state(plan("r2", 2), RolloutAllowance::Nothing)]);
        let soaks = reached == RolloutPhase::Active;
        assert_eq!(state.trial.as_ref().unwrap().held, !soaks, "{reached}");
        assert_eq!(state.next_action() == UpdateAction::Rest, !soaks);
        if !soaks {
            let later = after(state.clone(), [UpdateEvent::Passed, UpdateEvent::Waited { seconds: 365 * 86_400 }]);
            assert_eq!(later, state, "{reached}");
            assert_eq!(after(state, [want("r2", 2)]), at(reached), "and goes on where it stood");
        }
    }
    let state = commit(SubjectState::default(), "r1", 1);
    assert_eq!(
        after(state.clone(), [desired_state(plan("r2", 2), RolloutAllowance::Nothing)]),
        state,
        "and none begins"
    );
}

#[test]
fn outside_its_window_a_box_prepares_and_goes_no_further() {
    let prepare = desired_state(plan("r2", 2), RolloutAllowance::Prepare);
    let mut state = after(commit(SubjectState::default(), "r1", 1), [prepare.clone(), described(2)]);
    for expected in [UpdateAction::Download, UpdateAction::Preflight] {
        assert_eq!(state.next_action(), expected);
        state = after(state, [UpdateEvent::Passed]);
    }
    // Though nothing was heard since.
    assert_eq!((stage(&state), state.next_action()), (Some(RolloutPhase::Staged), UpdateAction::Rest));
    assert_eq!(after(state, [want("r2", 2)]).next_action(), UpdateAction::LoadCandidate);
    for reached in [RolloutPhase::Staged, RolloutPhase::Shadow, RolloutPhase::Canary] {
        assert_eq!(after(at(reached), [prepare.clone()]).next_action(), UpdateAction::Rest, "{reached}");
    }
    assert_eq!(after(at(RolloutPhase::Active), [prepare]).next_action(), UpdateAction::Soak);
}

#[test]
fn attempts_are_counted_and_their_number_is_bounded() {
    let state = after(at(RolloutPhase::Downloading), [interrupted(), interrupted()]);
    assert_eq!((stage(&state), state.trial.as_ref().unwrap().failures), (Some(RolloutPhase::Downloading), 2));
    let state = after(state, [interrupted()]);
    assert_eq!(rolled_back(&state), Some((RolloutPhase::Downloading, RollbackCause::Attempts)));
    assert!(state.outcome.as_ref().unwrap().rolled_back.as_ref().unwrap().1.detail.contains("the link is gone"));
    assert_eq!(stage(&after(state, [want("r2", 2)])), None);
}

#[test]
fn a_plan_of_no_attempts_still_has_one() {
    let none = RolloutPlan { max_attempts: 0, ..plan("r1", 1) };
    let begun = from_nothing([desired_state(none, RolloutAllowance::Everything)]);
    assert_eq!(rolled_back(&after(begun, [interrupted()])), Some((RolloutPhase::Downloading, RollbackCause::Attempts)));
}

#[test]
fn what_a_rollout_has_used_up_counts_on_when_it_comes_back() {
    let fetched = || UpdateEvent::Fetched { bytes: 600 };
    let state = from_nothing([want("r1", 1), fetched(), interrupted(), nothing()]);
    assert_eq!(rolled_back(&state), Some((RolloutPhase::Downloading, RollbackCause::Withdrawn)));
    let again = after(state.clone(), [want("r1", 1)]);
    let trial = again.trial.clone().unwrap();
    assert_eq!((trial.fetched_bytes, trial.failures), (600, 1));
    assert_eq!(rolled_back(&after(again, [fetched()])), Some((RolloutPhase::Downloading, RollbackCause::Budget)));
    // Another rollout has a separate budget.
    let other = after(state, [want("r2", 1), fetched()]);
    assert_eq!(other.trial.unwrap().fetched_bytes, 600);
}

#[test]
fn a_release_is_loaded_with_the_share_of_golden_inputs_that_it_was_taken_with() {
    let gated = |rollout: &str, version: u64, golden_min: f64| {
        let gate = RolloutGate { golden_min: Some(golden_min), ..RolloutGate::default() };
        desired_state(
            RolloutPlan { gate, shadow: step(0.0), canary: step(0.0), ..plan(rollout, version) },
            RolloutAllowance::Everything,
        )
    };
    let passed = || (0..4).map(|_| UpdateEvent::Passed);
    let mut state = from_nothing([gated("r1", 1, 0.7), described(1)]);
    assert_eq!(state.golden_min(&state.trial.as_ref().unwrap().release), Some(0.7));
    state = after(state, passed());
    assert_eq!(state.golden_min(state.live().unwrap()), Some(0.7));
    state = after(after(state, [gated("r2", 2, 0.9), described(2)]), passed());
    assert_eq!(state.golden_min(state.live().unwrap()), Some(0.9));
    state = after(state, [UpdateEvent::RollBack]);
    assert_eq!(state.golden_min(state.live().unwrap()), Some(0.7));
}

#[test]
fn the_byte_budget_holds_over_all_attempts() {
    let state = after(at(RolloutPhase::Downloading), [UpdateEvent::Fetched { bytes: 600 }, interrupted(), start(true)]);
    let state = after(state, [UpdateEvent::Fetched { bytes: 400 }]);
    assert_eq!((stage(&state), state.trial.as_ref().unwrap().fetched_bytes), (Some(RolloutPhase::Downloading), 1_000));
    let state = after(state, [UpdateEvent::Fetched { bytes: 1 }]);
    assert_eq!(rolled_back(&state), Some((RolloutPhase::Downloading, RollbackCause::Budget)));
    let free = RolloutPlan { byte_budget: None, ..plan("r1", 1) };
    let state =
        from_nothing([desired_state(free, RolloutAllowance::Everything), UpdateEvent::Fetched { bytes: u64::MAX }]);
    assert_eq!(stage(&after(state, [UpdateEvent::Fetched { bytes: 1 }])), Some(RolloutPhase::Downloading));
}

#[test]
fn a_pinned_box_begins_nothing_and_may_end_what_it_began() {
    let state = after(commit(SubjectState::default(), "r1", 1), [UpdateEvent::Pin, want("r2", 2)]);
    assert_eq!((state.pinned, stage(&state), live(&state)), (true, None, Some(1)));
    assert_eq!(stage(&after(state, [UpdateEvent::Unpin, want("r2", 2)])), Some(RolloutPhase::Downloading));
    for reached in STAGES {
        let state = after(at(reached), [UpdateEvent::Pin, want("r3", 3), nothing()]);
        assert_eq!((stage(&state), live(&state)), (Some(reached), live(&at(reached))), "{reached}");
    }
    assert_eq!(live(&after(at(RolloutPhase::Active), [UpdateEvent::Pin, UpdateEvent::Passed])), Some(2));
}

#[test]
fn a_revoked_version_runs_no_more() {
    let two = commit(commit(SubjectState::default(), "r1", 1), "r2", 2);
    let state = after(two.clone(), [revoke(&[2])]);
    assert_eq!((live(&state), rolled_back(&state)), (Some(1), Some((RolloutPhase::Active, RollbackCause::Revoked))));
    // Nor when it is wanted at the same time, or pinned.
    let both = DesiredState {
        desired: Some((plan("r9", 2), RolloutAllowance::Everything)),
        revoked: two.kept().map(|r| r.version).collect(),
        ..DesiredState::default()
    };
    let state = after(two.clone(), [heard(both)]);
    assert_eq!((live(&state), stage(&state)), (None, None));
    assert_eq!(live(&after(two.clone(), [UpdateEvent::Pin, revoke(&[2])])), Some(1));
    // The previous version does not run either when it is revoked as well: the owner's model is left.
    let state = after(two, [revoke(&[1, 2])]);
    assert_eq!((live(&state), &state.previous), (None, &None));
    for reached in STAGES {
        let state = after(at(reached), [revoke(&[2])]);
        assert_eq!((live(&state), rolled_back(&state)), (Some(1), Some((reached, RollbackCause::Revoked))));
    }
}

#[test]
fn what_is_below_the_minimum_runs_no_more() {
    let two = commit(commit(SubjectState::default(), "r1", 1), "r2", 2);
    let below =
        |version: u64| DesiredState { minimum: Some(version.to_string().parse().unwrap()), ..DesiredState::default() };
    let state = after(two.clone(), [heard(below(2))]);
    assert_eq!((live(&state), &state.previous), (Some(2), &None), "and it is no way back either");
    assert_eq!(live(&after(two, [heard(below(3))])), None);
    let state = after(at(RolloutPhase::Canary), [heard(below(3))]);
    assert_eq!((live(&state), rolled_back(&state)), (None, Some((RolloutPhase::Canary, RollbackCause::Revoked))));
}

#[test]
fn a_trial_goes_on_when_the_version_before_it_is_revoked() {
    let desired_state = DesiredState {
        desired: Some((plan("r2", 2), RolloutAllowance::Everything)),
        revoked: ["1".parse().unwrap()].into(),
        ..DesiredState::default()
    };
    let state = after(at(RolloutPhase::Active), [heard(desired_state)]);
    assert_eq!((live(&state), stage(&state), &state.committed), (Some(2), Some(RolloutPhase::Active), &None));
    assert_eq!(live(&after(state, [UpdateEvent::Passed])), Some(2));
}

#[test]
fn the_operator_gets_the_version_before_without_anybody_else() {
    for reached in STAGES {
        for order in [UpdateEvent::RollBack, UpdateEvent::Cancel] {
            let state = after(at(reached), [order]);
            assert_eq!((live(&state), rolled_back(&state)), (Some(1), Some((reached, RollbackCause::Operator))));
            assert_eq!(stage(&after(state, [want("r2", 2)])), None);
        }
    }
    let two = commit(commit(SubjectState::default(), "r1", 1), "r2", 2);
    let state = after(two, [UpdateEvent::RollBack]);
    assert_eq!((live(&state), &state.previous), (Some(1), &None));
    assert_eq!(stage(&after(state.clone(), [want("r2", 2)])), None, "the rollout that brought it is over");
    // There is no version before that.
    assert_eq!(after(state.clone(), [UpdateEvent::RollBack]), state);
    assert_eq!(after(state.clone(), [UpdateEvent::Cancel]), state);
}

#[test]
fn a_rollback_names_the_rollout_that_brought_the_version_and_no_later_one() {
    let two = commit(commit(SubjectState::default(), "r1", 1), "r2", 2);
    let state = after(two, [want("r3", 3), failed(RollbackCause::Load), UpdateEvent::RollBack]);
    let outcome = state.outcome.as_ref().unwrap();
    assert_eq!((outcome.rollout.as_str(), outcome.version.get()), ("r2", 2));
    assert_eq!(stage(&after(state, [want("r2", 2)])), None);
}

#[test]
fn a_lower_version_is_taken_only_when_the_rollout_says_so() {
    let two = commit(SubjectState::default(), "r2", 2);
    assert_eq!(after(two.clone(), [want("r3", 1)]), two);
    let down = RolloutPlan { allow_downgrade: true, ..plan("r3", 1) };
    assert_eq!(
        stage(&after(two, [desired_state(down, RolloutAllowance::Everything)])),
        Some(RolloutPhase::Downloading)
    );
}

#[test]
fn another_rollout_of_what_runs_is_a_success_without_work() {
    let state = after(commit(SubjectState::default(), "r1", 1), [want("r5", 1)]);
    let outcome = state.outcome.as_ref().unwrap();
    assert_eq!((stage(&state), outcome.rollout.as_str(), &outcome.rolled_back), (None, "r5", &None));
    // From now on it is that rollout's.
    assert_eq!(state.committed_by.as_ref().map(DeviceName::as_str), Some("r5"));
}

#[test]
fn what_is_verified_is_described_no_more() {
    let state = after(
        at(RolloutPhase::Verified),
        [UpdateEvent::Described { package: Arc::default(), digest: "another".to_owned() }],
    );
    assert_eq!(state, at(RolloutPhase::Verified));
}

#[test]
fn everything_that_may_run_again_stays_on_disk() {
    let versions = |state: &SubjectState| state.kept().map(|release| release.version.get()).collect::<Vec<_>>();
    let two = commit(commit(SubjectState::default(), "r1", 1), "r2", 2);
    assert_eq!(versions(&after(two.clone(), [want("r3", 3)])), [2, 1, 3]);
    assert_eq!(versions(&commit(two, "r3", 3)), [3, 2]);
}
