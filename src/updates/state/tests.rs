//! Every rule of the states, including known complaints about other updaters.

mod faults;
mod random;
mod superseded;

use super::fault::WORK_DEADLINE_S;
use super::*;
use crate::plan::{Gate, Quiet, StagePlan};

fn step(share: f64) -> StagePlan {
    StagePlan { share, min_s: 0, min_requests: 10, max_s: 3_600, quiet: Quiet::Pass }
}

fn plan(rollout: &str, version: u64) -> Plan {
    Plan {
        rollout: rollout.parse().unwrap(),
        target: format!("models/wine/{version}/model.onnx").parse().unwrap(),
        shadow: step(0.5),
        canary: step(0.1),
        soak: step(0.0),
        gate: Gate::OPEN,
        max_attempts: 3,
        byte_budget: Some(1_000),
        allow_downgrade: false,
    }
}

/// A check of the platform, at a box whose owner has no such model.
fn heard(wish: Wish) -> Event {
    Event::Wanted { wish, has_own: false }
}

fn wish(plan: Plan, allow: Allow) -> Event {
    heard(Wish { desired: Some((plan, allow)), ..Wish::default() })
}

fn want(rollout: &str, version: u64) -> Event {
    wish(plan(rollout, version), Allow::Everything)
}

fn nothing() -> Event {
    heard(Wish::default())
}

fn revoke(versions: &[u64]) -> Event {
    let revoked = versions.iter().map(|version| version.to_string().parse().unwrap()).collect();
    heard(Wish { revoked, ..Wish::default() })
}

fn described(version: u64) -> Event {
    Event::Described { package: Arc::default(), digest: format!("digest of {version}") }
}

fn failed(cause: Cause) -> Event {
    Event::Failed(Reason::new(cause, "because"))
}

fn interrupted() -> Event {
    Event::Interrupted(Reason::new(Cause::Download, "the link is gone"))
}

/// Returns the state after all these events, for a model.
fn after(state: SubjectState, events: impl IntoIterator<Item = Event>) -> SubjectState {
    events.into_iter().fold(state, |state, event| state.after(event, Kind::Model))
}

fn from_nothing(events: impl IntoIterator<Item = Event>) -> SubjectState {
    after(SubjectState::default(), events)
}

/// Returns the state with the release of `version` by `rollout` committed.
fn commit(state: SubjectState, rollout: &str, version: u64) -> SubjectState {
    let begun = after(state, [want(rollout, version), described(version)]);
    after(begun, std::iter::repeat_n(Event::Passed, 6))
}

/// Returns a state with version 1 committed and version 2 on trial in `reached`.
fn at(reached: Stage) -> SubjectState {
    let mut tried = after(commit(SubjectState::default(), "r1", 1), [want("r2", 2), described(2)]);
    while stage(&tried) != Some(reached) {
        tried = after(tried, [Event::Passed]);
    }
    tried
}

fn stage(state: &SubjectState) -> Option<Stage> {
    state.trial.as_ref().map(|trial| trial.stage)
}

fn live(state: &SubjectState) -> Option<u64> {
    state.live().map(|release| release.version.get())
}

/// Returns the stage and cause of the last rollback.
fn rolled_back(state: &SubjectState) -> Option<(Stage, Cause)> {
    let (reached, reason) = state.outcome.as_ref()?.rolled_back.as_ref()?;
    Some((*reached, reason.cause))
}

const STAGES: [Stage; 6] =
    [Stage::Downloading, Stage::Verified, Stage::Staged, Stage::Shadow, Stage::Canary, Stage::Active];

#[test]
fn a_release_passes_every_stage_and_is_committed_after_the_soak() {
    let mut state = commit(SubjectState::default(), "r1", 1);
    state = after(state, [want("r2", 2), described(2)]);
    let duties = [Duty::Download, Duty::Preflight, Duty::LoadCandidate, Duty::Mirror, Duty::Share, Duty::Soak];
    for (expected, duty) in STAGES.into_iter().zip(duties) {
        assert_eq!((stage(&state), state.duty()), (Some(expected), duty));
        assert_eq!(live(&state), Some(if expected == Stage::Active { 2 } else { 1 }), "{expected}");
        // No success is reported before the soak is over.
        assert_eq!(state.outcome.as_ref().map(|outcome| outcome.version.get()), Some(1));
        state = after(state, [Event::Passed]);
    }
    assert_eq!((stage(&state), live(&state), state.duty()), (None, Some(2), Duty::Rest));
    assert_eq!(state.previous.as_ref().map(|release| release.version.get()), Some(1));
    let outcome = state.outcome.unwrap();
    assert_eq!((outcome.rollout.as_str(), outcome.version.get(), outcome.rolled_back), ("r2", 2, None));
}

#[test]
fn stages_without_a_share_are_left_out() {
    let staged = |plan: Plan, kind| {
        let begun = SubjectState::default().after(wish(plan, Allow::Everything), kind);
        [Event::Passed, Event::Passed].into_iter().fold(begun, |state, event| state.after(event, kind))
    };
    let next = |plan: Plan, kind| stage(&staged(plan, kind).after(Event::Passed, kind)).unwrap();
    let quiet = Plan { shadow: step(0.0), canary: step(0.0), ..plan("r1", 1) };
    assert_eq!(next(quiet.clone(), Kind::Model), Stage::Active);
    assert_eq!(next(Plan { canary: step(0.2), ..quiet }, Kind::Model), Stage::Canary);
    // A configuration answers no requests: there is nothing to mirror.
    assert_eq!(next(plan("r1", 1), Kind::Configuration), Stage::Active);
    assert_eq!(next(plan("r1", 1), Kind::Runtime), Stage::Active);
}

#[test]
fn what_fails_anywhere_is_rolled_back_with_its_reason_and_not_tried_again() {
    for reached in STAGES {
        let state = after(at(reached), [failed(Cause::Errors)]);
        assert_eq!((live(&state), stage(&state)), (Some(1), None), "{reached}");
        assert_eq!(rolled_back(&state), Some((reached, Cause::Errors)));
        // The manifest still lists it, every five minutes and after every start.
        let state = after(state, [want("r2", 2), start(true), want("r2", 2)]);
        assert_eq!(stage(&state), None, "{reached}");
        assert_eq!(rolled_back(&state), Some((reached, Cause::Errors)), "the report stays");
        // Another rollout may try the same version again, and the same rollout another version.
        assert_eq!(stage(&after(state.clone(), [want("r3", 2)])), Some(Stage::Downloading));
        assert_eq!(stage(&after(state, [want("r2", 3)])), Some(Stage::Downloading));
    }
}

#[test]
fn a_refused_digest_under_another_number_is_refused_before_anything_is_fetched() {
    let state = after(at(Stage::Staged), [failed(Cause::Golden), want("r2", 3), described(2)]);
    assert_eq!((stage(&state), live(&state)), (None, Some(1)));
    assert_eq!(stage(&after(state, [want("r2", 3)])), None, "and it does not begin again");
}

#[test]
fn only_so_many_refusals_are_remembered() {
    let state = (0..200).fold(SubjectState::default(), |state, number| {
        after(state, [want(&format!("r{number}"), 1), failed(Cause::Load)])
    });
    assert_eq!(state.refused.len(), REFUSED_MAX);
    assert_eq!(stage(&after(state, [want("r199", 1)])), None, "the newest are");
}

#[test]
fn a_newer_manifest_supersedes_a_stuck_trial_in_every_stage() {
    for reached in STAGES {
        let state = after(at(reached), [want("r3", 3)]);
        let trial = state.trial.as_ref().unwrap();
        assert_eq!((trial.release.version.get(), trial.stage, trial.fetched_bytes), (3, Stage::Downloading, 0));
        assert_eq!(rolled_back(&state), Some((reached, Cause::Superseded)));
        assert_eq!(live(&state), Some(1), "{reached}");
        // It was not at fault.
        assert_eq!(stage(&after(state, [nothing(), want("r2", 2)])), Some(Stage::Downloading));
    }
}

#[test]
fn a_rollout_that_is_gone_ends_its_trial_and_may_come_back() {
    for reached in STAGES {
        let state = after(at(reached), [nothing()]);
        assert_eq!((live(&state), rolled_back(&state)), (Some(1), Some((reached, Cause::Withdrawn))));
        assert_eq!(stage(&after(state, [want("r2", 2)])), Some(Stage::Downloading));
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
    let changed = Plan { gate: Gate { psi_max: Some(0.1), ..Gate::default() }, ..plan("r2", 2) };
    let state = after(at(Stage::Shadow), [wish(changed.clone(), Allow::Everything)]);
    assert_eq!((stage(&state), state.trial.unwrap().plan), (Some(Stage::Shadow), changed));
}

/// A start of the daemon, after work of the trial or not.
fn start(under_way: bool) -> Event {
    Event::Started { under_way }
}

#[test]
fn a_box_that_does_not_come_up_falls_back_by_itself() {
    for reached in [Stage::Verified, Stage::Staged, Stage::Shadow, Stage::Canary, Stage::Active] {
        let mut state = at(reached);
        for number in 1..=STARTS_MAX {
            state = after(state, [start(true)]);
            assert!(state.trial.is_some(), "{reached}: start {number}");
        }
        state = after(state, [start(true)]);
        assert_eq!((live(&state), stage(&state)), (Some(1), None), "{reached}");
        assert_eq!(rolled_back(&state).unwrap().1, Cause::Restarts);
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
    let state = after(at(Stage::Downloading), std::iter::repeat_n(start(true), 100));
    assert_eq!(state, at(Stage::Downloading));
}

#[test]
fn a_start_while_it_waits_for_its_window_counts_for_nothing() {
    let waiting = after(at(Stage::Staged), [wish(plan("r2", 2), Allow::Prepare)]);
    assert_eq!(after(waiting.clone(), std::iter::repeat_n(start(false), 100)), waiting);
}

#[test]
fn a_start_takes_what_was_loaded_beside_back_to_staged_and_leaves_a_soak() {
    for reached in [Stage::Shadow, Stage::Canary] {
        let state = after(at(reached), [Event::Waited { seconds: 100 }, start(false)]);
        assert_eq!((stage(&state), state.trial.unwrap().in_stage_s), (Some(Stage::Staged), 0));
    }
    let state = after(at(Stage::Active), [Event::Waited { seconds: 100 }, start(false)]);
    assert_eq!((stage(&state), live(&state), state.trial.unwrap().in_stage_s), (Some(Stage::Active), Some(2), 100));
}

#[test]
fn a_box_that_is_switched_off_every_night_passes_a_soak_of_weeks_and_one_that_falls_every_hour_does_not() {
    let weeks = Plan { soak: StagePlan { max_s: 30 * 86_400, ..step(0.0) }, ..plan("r2", 2) };
    let soaking = after(at(Stage::Active), [wish(weeks, Allow::Everything)]);
    let starts = |every_s: u64| {
        (0..20).fold(soaking.clone(), |state, _| {
            let ticks = std::iter::repeat_n(Event::Waited { seconds: 60 }, usize::try_from(every_s / 60).unwrap());
            after(after(state, ticks), [start(true)])
        })
    };
    assert_eq!(stage(&starts(14 * 3_600)), Some(Stage::Active));
    assert_eq!(rolled_back(&starts(3_600)), Some((Stage::Active, Cause::Restarts)));
}

#[test]
fn every_stage_has_a_deadline_of_the_box_itself() {
    for (reached, limit) in [
        (Stage::Verified, WORK_DEADLINE_S),
        (Stage::Staged, WORK_DEADLINE_S),
        (Stage::Shadow, 3_600 + WORK_DEADLINE_S),
        (Stage::Canary, 3_600 + WORK_DEADLINE_S),
        (Stage::Active, 3_600 + WORK_DEADLINE_S),
    ] {
        let state = after(at(reached), [Event::Waited { seconds: limit }]);
        assert_eq!(stage(&state), Some(reached));
        let state = after(state, [Event::Waited { seconds: 1 }]);
        assert_eq!((live(&state), rolled_back(&state)), (Some(1), Some((reached, Cause::Deadline))));
    }
}

#[test]
fn a_paused_rollout_stands_still_and_its_deadline_with_it_but_a_soak_goes_on() {
    for reached in STAGES {
        let state = after(at(reached), [wish(plan("r2", 2), Allow::Nothing)]);
        let soaks = reached == Stage::Active;
        assert_eq!(state.trial.as_ref().unwrap().held, !soaks, "{reached}");
        assert_eq!(state.duty() == Duty::Rest, !soaks);
        if !soaks {
            let later = after(state.clone(), [Event::Passed, Event::Waited { seconds: 365 * 86_400 }]);
            assert_eq!(later, state, "{reached}");
            assert_eq!(after(state, [want("r2", 2)]), at(reached), "and goes on where it stood");
        }
    }
    let state = commit(SubjectState::default(), "r1", 1);
    assert_eq!(after(state.clone(), [wish(plan("r2", 2), Allow::Nothing)]), state, "and none begins");
}

#[test]
fn outside_its_window_a_box_prepares_and_goes_no_further() {
    let prepare = wish(plan("r2", 2), Allow::Prepare);
    let mut state = after(commit(SubjectState::default(), "r1", 1), [prepare.clone(), described(2)]);
    for expected in [Duty::Download, Duty::Preflight] {
        assert_eq!(state.duty(), expected);
        state = after(state, [Event::Passed]);
    }
    // Though nothing was heard since.
    assert_eq!((stage(&state), state.duty()), (Some(Stage::Staged), Duty::Rest));
    assert_eq!(after(state, [want("r2", 2)]).duty(), Duty::LoadCandidate);
    for reached in [Stage::Staged, Stage::Shadow, Stage::Canary] {
        assert_eq!(after(at(reached), [prepare.clone()]).duty(), Duty::Rest, "{reached}");
    }
    assert_eq!(after(at(Stage::Active), [prepare]).duty(), Duty::Soak);
}

#[test]
fn attempts_are_counted_and_their_number_is_bounded() {
    let state = after(at(Stage::Downloading), [interrupted(), interrupted()]);
    assert_eq!((stage(&state), state.trial.as_ref().unwrap().failures), (Some(Stage::Downloading), 2));
    let state = after(state, [interrupted()]);
    assert_eq!(rolled_back(&state), Some((Stage::Downloading, Cause::Attempts)));
    assert!(state.outcome.as_ref().unwrap().rolled_back.as_ref().unwrap().1.detail.contains("the link is gone"));
    assert_eq!(stage(&after(state, [want("r2", 2)])), None);
}

#[test]
fn a_plan_of_no_attempts_still_has_one() {
    let none = Plan { max_attempts: 0, ..plan("r1", 1) };
    let begun = from_nothing([wish(none, Allow::Everything)]);
    assert_eq!(rolled_back(&after(begun, [interrupted()])), Some((Stage::Downloading, Cause::Attempts)));
}

#[test]
fn what_a_rollout_has_used_up_counts_on_when_it_comes_back() {
    let fetched = || Event::Fetched { bytes: 600 };
    let state = from_nothing([want("r1", 1), fetched(), interrupted(), nothing()]);
    assert_eq!(rolled_back(&state), Some((Stage::Downloading, Cause::Withdrawn)));
    let again = after(state.clone(), [want("r1", 1)]);
    let trial = again.trial.clone().unwrap();
    assert_eq!((trial.fetched_bytes, trial.failures), (600, 1));
    assert_eq!(rolled_back(&after(again, [fetched()])), Some((Stage::Downloading, Cause::Budget)));
    // Another rollout has a budget of its own.
    let other = after(state, [want("r2", 1), fetched()]);
    assert_eq!(other.trial.unwrap().fetched_bytes, 600);
}

#[test]
fn a_release_is_loaded_with_the_share_of_golden_inputs_that_it_was_taken_with() {
    let gated = |rollout: &str, version: u64, golden_min: f64| {
        let gate = Gate { golden_min: Some(golden_min), ..Gate::default() };
        wish(Plan { gate, shadow: step(0.0), canary: step(0.0), ..plan(rollout, version) }, Allow::Everything)
    };
    let passed = || (0..4).map(|_| Event::Passed);
    let mut state = from_nothing([gated("r1", 1, 0.7), described(1)]);
    assert_eq!(state.golden_min(&state.trial.as_ref().unwrap().release), Some(0.7));
    state = after(state, passed());
    assert_eq!(state.golden_min(state.live().unwrap()), Some(0.7));
    state = after(after(state, [gated("r2", 2, 0.9), described(2)]), passed());
    assert_eq!(state.golden_min(state.live().unwrap()), Some(0.9));
    state = after(state, [Event::RollBack]);
    assert_eq!(state.golden_min(state.live().unwrap()), Some(0.7));
}

#[test]
fn the_byte_budget_holds_over_all_attempts() {
    let state = after(at(Stage::Downloading), [Event::Fetched { bytes: 600 }, interrupted(), start(true)]);
    let state = after(state, [Event::Fetched { bytes: 400 }]);
    assert_eq!((stage(&state), state.trial.as_ref().unwrap().fetched_bytes), (Some(Stage::Downloading), 1_000));
    let state = after(state, [Event::Fetched { bytes: 1 }]);
    assert_eq!(rolled_back(&state), Some((Stage::Downloading, Cause::Budget)));
    let free = Plan { byte_budget: None, ..plan("r1", 1) };
    let state = from_nothing([wish(free, Allow::Everything), Event::Fetched { bytes: u64::MAX }]);
    assert_eq!(stage(&after(state, [Event::Fetched { bytes: 1 }])), Some(Stage::Downloading));
}

#[test]
fn a_pinned_box_begins_nothing_and_may_end_what_it_began() {
    let state = after(commit(SubjectState::default(), "r1", 1), [Event::Pin, want("r2", 2)]);
    assert_eq!((state.pinned, stage(&state), live(&state)), (true, None, Some(1)));
    assert_eq!(stage(&after(state, [Event::Unpin, want("r2", 2)])), Some(Stage::Downloading));
    for reached in STAGES {
        let state = after(at(reached), [Event::Pin, want("r3", 3), nothing()]);
        assert_eq!((stage(&state), live(&state)), (Some(reached), live(&at(reached))), "{reached}");
    }
    assert_eq!(live(&after(at(Stage::Active), [Event::Pin, Event::Passed])), Some(2));
}

#[test]
fn a_revoked_version_runs_no_more() {
    let two = commit(commit(SubjectState::default(), "r1", 1), "r2", 2);
    let state = after(two.clone(), [revoke(&[2])]);
    assert_eq!((live(&state), rolled_back(&state)), (Some(1), Some((Stage::Active, Cause::Revoked))));
    // Nor when it is wanted at the same time, or pinned.
    let both = Wish {
        desired: Some((plan("r9", 2), Allow::Everything)),
        revoked: two.kept().map(|r| r.version).collect(),
        ..Wish::default()
    };
    let state = after(two.clone(), [heard(both)]);
    assert_eq!((live(&state), stage(&state)), (None, None));
    assert_eq!(live(&after(two.clone(), [Event::Pin, revoke(&[2])])), Some(1));
    // The previous version does not run either when it is revoked as well: the owner's model is left.
    let state = after(two, [revoke(&[1, 2])]);
    assert_eq!((live(&state), &state.previous), (None, &None));
    for reached in STAGES {
        let state = after(at(reached), [revoke(&[2])]);
        assert_eq!((live(&state), rolled_back(&state)), (Some(1), Some((reached, Cause::Revoked))));
    }
}

#[test]
fn what_is_below_the_minimum_runs_no_more() {
    let two = commit(commit(SubjectState::default(), "r1", 1), "r2", 2);
    let below = |version: u64| Wish { minimum: Some(version.to_string().parse().unwrap()), ..Wish::default() };
    let state = after(two.clone(), [heard(below(2))]);
    assert_eq!((live(&state), &state.previous), (Some(2), &None), "and it is no way back either");
    assert_eq!(live(&after(two, [heard(below(3))])), None);
    let state = after(at(Stage::Canary), [heard(below(3))]);
    assert_eq!((live(&state), rolled_back(&state)), (None, Some((Stage::Canary, Cause::Revoked))));
}

#[test]
fn a_trial_goes_on_when_the_version_before_it_is_revoked() {
    let wish = Wish {
        desired: Some((plan("r2", 2), Allow::Everything)),
        revoked: ["1".parse().unwrap()].into(),
        ..Wish::default()
    };
    let state = after(at(Stage::Active), [heard(wish)]);
    assert_eq!((live(&state), stage(&state), &state.committed), (Some(2), Some(Stage::Active), &None));
    assert_eq!(live(&after(state, [Event::Passed])), Some(2));
}

#[test]
fn the_operator_gets_the_version_before_without_anybody_else() {
    for reached in STAGES {
        for order in [Event::RollBack, Event::Cancel] {
            let state = after(at(reached), [order]);
            assert_eq!((live(&state), rolled_back(&state)), (Some(1), Some((reached, Cause::Operator))));
            assert_eq!(stage(&after(state, [want("r2", 2)])), None);
        }
    }
    let two = commit(commit(SubjectState::default(), "r1", 1), "r2", 2);
    let state = after(two, [Event::RollBack]);
    assert_eq!((live(&state), &state.previous), (Some(1), &None));
    assert_eq!(stage(&after(state.clone(), [want("r2", 2)])), None, "the rollout that brought it is over");
    // There is no version before that.
    assert_eq!(after(state.clone(), [Event::RollBack]), state);
    assert_eq!(after(state.clone(), [Event::Cancel]), state);
}

#[test]
fn a_rollback_names_the_rollout_that_brought_the_version_and_no_later_one() {
    let two = commit(commit(SubjectState::default(), "r1", 1), "r2", 2);
    let state = after(two, [want("r3", 3), failed(Cause::Load), Event::RollBack]);
    let outcome = state.outcome.as_ref().unwrap();
    assert_eq!((outcome.rollout.as_str(), outcome.version.get()), ("r2", 2));
    assert_eq!(stage(&after(state, [want("r2", 2)])), None);
}

#[test]
fn a_lower_version_is_taken_only_when_the_rollout_says_so() {
    let two = commit(SubjectState::default(), "r2", 2);
    assert_eq!(after(two.clone(), [want("r3", 1)]), two);
    let down = Plan { allow_downgrade: true, ..plan("r3", 1) };
    assert_eq!(stage(&after(two, [wish(down, Allow::Everything)])), Some(Stage::Downloading));
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
    let state =
        after(at(Stage::Verified), [Event::Described { package: Arc::default(), digest: "another".to_owned() }]);
    assert_eq!(state, at(Stage::Verified));
}

#[test]
fn everything_that_may_run_again_stays_on_disk() {
    let versions = |state: &SubjectState| state.kept().map(|release| release.version.get()).collect::<Vec<_>>();
    let two = commit(commit(SubjectState::default(), "r1", 1), "r2", 2);
    assert_eq!(versions(&after(two.clone(), [want("r3", 3)])), [2, 1, 3]);
    assert_eq!(versions(&commit(two, "r3", 3)), [3, 2]);
}
