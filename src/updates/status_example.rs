//! A status for the tests of this crate, and of those that show one: they include this file.

use ledge_updates::plan::{RolloutAllowance, RolloutGate, RolloutPlan, StagePlan};
use ledge_updates::state::{
    Fault, InstalledRelease, ReleaseTrial, RollbackCause, RollbackReason, RolloutOutcome, RolloutPhase, SubjectState,
};
use ledge_updates::status::{CheckStatus, RoleStatus, UpdatesStatus, WaitingRollout};

/// A status with one subject in the middle of a trial, and one that has only something to wait for.
pub fn status() -> UpdatesStatus {
    let version = |number: u64| number.try_into().unwrap();
    let installed = |number, digest: &str| InstalledRelease { version: version(number), digest: digest.repeat(32) };
    let plan = RolloutPlan {
        rollout: "r-3".parse().unwrap(),
        target: "models/m/3/model.onnx".parse().unwrap(),
        shadow: StagePlan::SHADOW,
        canary: StagePlan::CANARY,
        soak: StagePlan::SOAK,
        gate: RolloutGate::default(),
        max_attempts: 5,
        byte_budget: None,
        allow_downgrade: false,
    };
    let trial = ReleaseTrial {
        plan,
        release: installed(3, "cd"),
        package: None,
        stage: RolloutPhase::Staged,
        in_stage_s: 7,
        starts_left: 3,
        failures: 1,
        fetched_bytes: 9,
        fault: Some(Fault {
            reason: RollbackReason::new(RollbackCause::Download, "status 404"),
            since_ms: 1_795_132_800_000,
            lasted_s: 7,
            attempts: 2,
            next_ms: 1_795_136_400_000,
            came: 0,
            before_s: 0,
        }),
        allow: RolloutAllowance::Prepare,
        held: true,
    };
    let reason = RollbackReason::new(RollbackCause::Golden, "7 of 10");
    let state = SubjectState {
        committed: Some(installed(2, "ab")),
        previous: Some(installed(1, "00")),
        trial: Some(trial),
        outcome: Some(RolloutOutcome {
            rollout: "r-2".parse().unwrap(),
            version: version(4),
            rolled_back: Some((RolloutPhase::Verified, reason)),
        }),
        ..SubjectState::default()
    };
    let waiting = |rollout: &str, number, reason: &str| WaitingRollout {
        rollout: rollout.parse().unwrap(),
        version: version(number),
        reason: reason.into(),
    };
    let roles = [("root", 3, None), ("timestamp", 41, Some(1_795_136_400_000))];
    let roles = roles.map(|(role, version, expires_ms)| (role.to_owned(), RoleStatus { version, expires_ms }));
    UpdatesStatus {
        check: CheckStatus {
            repository: "https://updates.example/ledge/".into(),
            checked_ms: Some(1_795_132_800_000),
            error: Some("no way".into()),
            roles: roles.into(),
            published_ms: Some(1_795_132_800_000),
            waiting: [
                ("models/m".parse().unwrap(), waiting("r-3", 3, "paused by the platform")),
                ("models/a".parse().unwrap(), waiting("r-9", 1, "needs Ledge 9.0.0")),
            ]
            .into(),
        },
        subjects: [("models/m".parse().unwrap(), state)].into(),
        errors: [("models/m".parse().unwrap(), "disk: no room".to_owned())].into(),
        package: None,
        fetched_bytes: 1234,
        rollbacks: [("golden", 2)].into(),
    }
}
