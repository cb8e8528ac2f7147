//! Random events in random order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::faults::wasted;
use super::*;

fn any_event() -> impl Strategy<Value = UpdateEvent> {
    let allow = prop_oneof![1 => Just(RolloutAllowance::Nothing), 1 => Just(RolloutAllowance::Prepare), 3 => Just(RolloutAllowance::Everything)];
    let desired =
        (0_u64..4, 1_u64..5, allow, any::<bool>(), any::<bool>()).prop_map(|(rollout, version, allow, down, quick)| {
            let mut plan = RolloutPlan { allow_downgrade: down, ..plan(&format!("r{rollout}"), version) };
            if quick {
                (plan.shadow.share, plan.canary.share) = (0.0, 0.0);
            }
            (plan, allow)
        });
    let revoked = proptest::collection::btree_set(1_u64..5, 0..3)
        .prop_map(|versions| versions.iter().map(|version| version.to_string().parse().unwrap()).collect());
    let none = Just(std::collections::BTreeSet::new());
    let wanted = (proptest::option::weighted(0.8, desired), prop_oneof![6 => none, 1 => revoked]);
    // Some of the other rollouts stand before it in the manifest.
    let before = proptest::collection::btree_set((0_u64..4).prop_map(|number| format!("r{number}")), 0..4);
    let wanted = (wanted, before, any::<bool>()).prop_map(|((desired, revoked), before, has_own)| {
        let others = before.iter().map(|rollout| rollout.parse().unwrap());
        let chosen = desired.as_ref().map(|(plan, _): &(RolloutPlan, RolloutAllowance)| plan.rollout.clone());
        let supersedes = others.filter(|rollout| Some(rollout) != chosen.as_ref()).collect();
        UpdateEvent::Wanted { desired_state: DesiredState { desired, revoked, minimum: None, supersedes }, has_own }
    });
    prop_oneof![
        6 => wanted,
        4 => (1_u64..5).prop_map(described),
        12 => Just(UpdateEvent::Passed),
        1 => (0_u64..700).prop_map(|bytes| UpdateEvent::Fetched { bytes }),
        1 => Just(failed(RollbackCause::Errors)),
        1 => Just(interrupted()),
        1 => (0_u64..8_000).prop_map(|seconds| UpdateEvent::Waited { seconds }),
        2 => (0_u64..8_000, 0_u64..700).prop_map(|(now_ms, bytes)| wasted("503", now_ms, bytes)),
        1 => (0_u64..8_000).prop_map(|now_ms| UpdateEvent::Retry { now_ms }),
        2 => any::<bool>().prop_map(start),
        1 => Just(UpdateEvent::Pin),
        1 => Just(UpdateEvent::Unpin),
        1 => Just(UpdateEvent::RollBack),
        1 => Just(UpdateEvent::Cancel),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_something_runs_nothing_refused_begins_and_no_trial_jumps(
        events in proptest::collection::vec(any_event(), 1..80),
    ) {
        let mut state = SubjectState::default();
        // The versions that replaced each rollout, and the committed rollouts, by the events only.
        let (mut replaced, mut committed) = (BTreeMap::<DeviceName, BTreeSet<_>>::new(), BTreeSet::new());
        for event in events {
            let before = state.clone();
            state = state.after(event.clone(), ArtifactKind::Model);

            let revokes = matches!(&event, UpdateEvent::Wanted { desired_state, .. } if !desired_state.revoked.is_empty());
            // A trial without a committed version falls back to none. A committed version may disappear only by
            // revocation.
            if before.committed.is_some() && !revokes {
                prop_assert!(state.committed.is_some(), "{event:?}");
            }
            if state.committed.is_some() {
                prop_assert!(state.live().is_some());
            }
            if let UpdateEvent::Wanted { desired_state, has_own } = &event {
                prop_assert!(state.kept().all(|release| !desired_state.revoked.contains(&release.version)));
                let begun = state.trial.as_ref().filter(|new| !before.trial.as_ref().is_some_and(|old| old.is_of(&new.plan)));
                if let Some(trial) = begun {
                    let by = replaced.remove(&trial.plan.rollout).unwrap_or_default();
                    let stays = !committed.contains(&trial.plan.rollout) && by.iter().any(|by| desired_state.revokes(*by));
                    let serves = *has_own || state.committed.is_some();
                    prop_assert!(!(stays && serves), "{event:?} revived what was superseded");
                    // It began, so it has replaced those before it.
                    for rollout in &desired_state.supersedes {
                        replaced.entry(rollout.clone()).or_default().insert(trial.release.version);
                    }
                }
            }
            committed.extend(state.committed_by.clone());
            if let UpdateEvent::Deferred { .. } = &event {
                let counted = |state: &SubjectState| state.trial.as_ref().map(|trial| (trial.stage, trial.failures));
                prop_assert_eq!(counted(&state), counted(&before), "a fault that lies elsewhere ends and counts nothing");
            }

            if let Some(trial) = &state.trial {
                let refused = |refused: &RefusedRelease| {
                    refused.rollout == trial.plan.rollout
                        && (refused.version == trial.release.version
                            || (!trial.release.digest.is_empty() && refused.digest == trial.release.digest))
                };
                prop_assert!(!state.refused.iter().any(refused), "{event:?}");
                prop_assert!(trial.failures < trial.plan.max_attempts);
                let mut again = trial.clone();
                again.hold();
                prop_assert_eq!(&again, trial, "held follows from the rest");
            }
            match (&before.trial, &state.trial) {
                (Some(old), Some(new)) if old.is_of(&new.plan) => {
                    let back = matches!(event, UpdateEvent::Started { .. }) && new.stage == RolloutPhase::Staged;
                    prop_assert!(new.stage >= old.stage || back, "{event:?}: {} -> {}", old.stage, new.stage);
                    prop_assert!(!old.held || new.stage <= old.stage, "{event:?} moved what is held");
                    prop_assert!(new.fetched_bytes >= old.fetched_bytes);
                }
                (_, Some(new)) => prop_assert_eq!(new.stage, RolloutPhase::Downloading),
                (Some(old), None) if state.committed == before.committed => {
                    let rollout = &old.plan.rollout;
                    let told = state.outcome.as_ref().is_some_and(|it| it.rolled_back.is_some() && it.rollout == *rollout)
                        || state.refused.iter().any(|refused| refused.rollout == *rollout);
                    // Or the version that replaced it runs already, which is the later outcome.
                    let wanted = match &event {
                        UpdateEvent::Wanted { desired_state, .. } => desired_state.desired.as_ref().map(|(plan, _)| &plan.rollout),
                        _ => None,
                    };
                    let told = told || (wanted.is_some() && state.outcome.as_ref().map(|it| &it.rollout) == wanted);
                    prop_assert!(told, "{event:?} ended a trial silently");
                }
                _ => {}
            }

            let text = serde_json::to_string(&state).unwrap();
            prop_assert_eq!(serde_json::from_str::<SubjectState>(&text).unwrap(), state.clone());
        }
    }
}
