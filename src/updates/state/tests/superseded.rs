//! The rollouts that come back when a later one ends.

use super::*;

/// Returns the desired state by a manifest with the rollouts r1 to `desired`, each of the version of its number, when
/// these versions are revoked.
fn list(desired: u64, revoked: &[u64]) -> DesiredState {
    DesiredState {
        desired: Some((plan(&format!("r{desired}"), desired), RolloutAllowance::Everything)),
        revoked: revoked.iter().map(|version| version.to_string().parse().unwrap()).collect(),
        minimum: None,
        supersedes: (1..desired).map(|number| format!("r{number}").parse().unwrap()).collect(),
    }
}

/// Returns a state with version 1 committed, then a trial of version 2 that the rollout of version 3 replaced, which is
/// committed.
fn superseded_in(reached: RolloutPhase) -> SubjectState {
    let state = after(at(reached), [heard(list(2, &[])), heard(list(3, &[])), described(3)]);
    let state = after(state, std::iter::repeat_n(UpdateEvent::Passed, 6));
    assert_eq!((live(&state), state.previous.as_ref().map(|release| release.version.get())), (Some(3), Some(1)));
    state
}

#[test]
fn a_superseded_rollout_does_not_come_back_to_life_when_the_newer_version_is_revoked() {
    for reached in STAGES {
        let state = after(superseded_in(reached), [heard(list(2, &[3])), start(true), heard(list(2, &[3]))]);
        assert_eq!((live(&state), stage(&state)), (Some(1), None), "{reached}");
        assert_eq!(rolled_back(&state), Some((RolloutPhase::Active, RollbackCause::Revoked)));
        // A new rollout of the same version is a new decision of the platform.
        let anew = DesiredState { desired: Some((plan("r4", 2), RolloutAllowance::Everything)), ..list(4, &[3]) };
        assert_eq!(stage(&after(state, [heard(anew)])), Some(RolloutPhase::Downloading));
    }
    // Nor one that was never tried here: the box was away while both were published.
    let both = after(commit(SubjectState::default(), "r1", 1), [heard(list(3, &[])), described(3)]);
    for state in [both.clone(), after(both, std::iter::repeat_n(UpdateEvent::Passed, 6))] {
        let state = after(state, [heard(list(2, &[3]))]);
        assert_eq!((live(&state), stage(&state)), (Some(1), None));
    }
    // Nor when the newer rollout was cleared away before its version was revoked.
    let state = after(superseded_in(RolloutPhase::Canary), [heard(list(2, &[])), heard(list(2, &[3]))]);
    assert_eq!((live(&state), stage(&state)), (Some(1), None));
    // Nor in place of the owner's model.
    let first = from_nothing([heard(list(2, &[])), heard(list(3, &[])), described(3)]);
    let state = after(first, std::iter::repeat_n(UpdateEvent::Passed, 6));
    let state = after(state, [UpdateEvent::Wanted { desired_state: list(2, &[3]), has_own: true }]);
    assert_eq!((live(&state), stage(&state)), (None, None));
}

/// Returns a desired state with the rollout `desired` that supersedes `others`; each has the version after its own
/// number.
fn above(desired: u64, others: &[u64], revoked: &[u64]) -> DesiredState {
    DesiredState {
        desired: Some((plan(&format!("r{desired}"), desired + 1), RolloutAllowance::Everything)),
        supersedes: others.iter().map(|number| format!("r{number}").parse().unwrap()).collect(),
        ..list(1, revoked)
    }
}

#[test]
fn a_revocation_of_any_version_that_took_its_place_revives_no_rollout() {
    // r2 with version 3 replaces r1, then r3 with version 4 does, which the platform stops before it is committed.
    let first = commit(SubjectState::default(), "r0", 1);
    let state = after(first, [heard(above(1, &[], &[])), heard(above(2, &[1], &[])), described(3)]);
    let state = after(state, std::iter::repeat_n(UpdateEvent::Passed, 6));
    let state = after(state, [heard(above(3, &[1, 2], &[])), heard(above(2, &[1], &[]))]);
    assert_eq!((live(&state), stage(&state)), (Some(3), None));
    let state = after(state, [heard(above(1, &[], &[3]))]);
    assert_eq!((live(&state), stage(&state)), (Some(1), None), "version 2 comes back to life");
    assert_eq!(state.superseded[0].by.iter().map(|version| version.get()).collect::<Vec<_>>(), [3, 4]);
}

#[test]
fn what_is_published_while_a_box_is_pinned_replaces_nothing_there() {
    let first = commit(SubjectState::default(), "r0", 1);
    let state = after(first, [UpdateEvent::Pin, heard(above(2, &[1], &[])), UpdateEvent::Unpin]);
    assert_eq!(state.superseded, []);
    assert_eq!(stage(&after(state, [heard(above(1, &[], &[3]))])), Some(RolloutPhase::Downloading));
}

#[test]
fn a_rollout_that_was_a_success_here_comes_back_when_all_that_replaced_it_is_revoked() {
    let mut state = SubjectState::default();
    for desired in 1..=3 {
        let others: Vec<u64> = (1..desired).collect();
        state = after(state, [heard(above(desired, &others, &[])), described(desired + 1)]);
        state = after(state, std::iter::repeat_n(UpdateEvent::Passed, 6));
    }
    assert_eq!((live(&state), state.previous.as_ref().map(|release| release.version.get())), (Some(4), Some(3)));
    // On a box with a model of that name by its owner as well.
    let state = after(state, [UpdateEvent::Wanted { desired_state: above(1, &[], &[3, 4]), has_own: true }]);
    assert_eq!((live(&state), stage(&state)), (None, Some(RolloutPhase::Downloading)));
    assert_eq!(state.trial.unwrap().release.version.get(), 2);
}

#[test]
fn what_an_earlier_build_remembered_is_read() {
    let read: Superseded = serde_json::from_str(r#"{"rollout": "r1", "by": 3}"#).unwrap();
    assert_eq!((read.by.len(), read.was_committed), (1, false));
    assert_eq!(serde_json::from_str::<Superseded>(&serde_json::to_string(&read).unwrap()).unwrap(), read);
}

#[test]
fn a_superseded_rollout_comes_back_when_the_platform_takes_the_newer_one_back() {
    for reached in STAGES {
        let state = after(at(reached), [heard(list(2, &[])), heard(list(3, &[])), heard(list(2, &[]))]);
        assert_eq!(state.trial.as_ref().map(|trial| trial.release.version.get()), Some(2), "{reached}");
    }
    // One that has not moved yet has replaced none.
    let waits = DesiredState { desired: Some((plan("r3", 3), RolloutAllowance::Nothing)), ..list(3, &[]) };
    let state = after(commit(SubjectState::default(), "r1", 1), [heard(waits), heard(list(2, &[3]))]);
    assert_eq!(stage(&state), Some(RolloutPhase::Downloading));
}

#[test]
fn a_revocation_that_leaves_a_box_without_any_release_brings_the_newest_that_is_allowed() {
    let state = after(superseded_in(RolloutPhase::Shadow), [heard(list(2, &[1, 3]))]);
    assert_eq!((live(&state), stage(&state)), (None, Some(RolloutPhase::Downloading)));
    assert_eq!(state.trial.unwrap().release.version.get(), 2);
}
