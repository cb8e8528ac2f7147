//! The status of updates in its one form: for HTTP, for the platform and for the command line.

use std::collections::BTreeMap;

use ledge_base::clock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::artifact::Artifact;
use super::state::{Fault, ReleaseTrial, RolloutOutcome, SubjectState};
use super::status::{UpdatesStatus, WaitingRollout};

/// The stage of a subject without a trial.
pub const IDLE_STAGE: &str = "idle";

/// The result of a rollout that was taken back.
pub const ROLLED_BACK: &str = "rolled_back";

/// The status of updates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdatesReport {
    /// The repository, as configured.
    pub repository: String,
    /// The time of the last successful check.
    pub checked: Option<String>,
    /// The reason why the last check failed.
    pub error: Option<String>,
    /// The time at which the current rollout manifest was published.
    pub published: Option<String>,
    /// The roles of the trusted metadata.
    pub roles: BTreeMap<String, RoleReport>,
    /// Bytes fetched since the start.
    pub fetched_bytes: u64,
    pub subjects: Vec<SubjectReport>,
}

/// A role of the trusted metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleReport {
    pub version: u64,
    /// The time at which it expires; `None` before the first check since the start.
    pub expires: Option<String>,
}

/// A subject of updates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SubjectReport {
    /// Its name, such as `models/minilm`.
    pub subject: String,
    /// The version that answers; `None` is the owner's model, if there is one.
    pub version: Option<u64>,
    /// The digest of its release.
    pub digest: Option<String>,
    /// The version that a rollback would return to, which is kept.
    pub previous: Option<u64>,
    /// True when the administrator of this box keeps it as it is.
    pub pinned: bool,
    /// The stage of the trial, or `idle`.
    pub stage: String,
    /// The release on trial.
    pub trial: Option<TrialReport>,
    /// The rollout that must not continue now.
    pub waiting: Option<WaitingRolloutReport>,
    /// The reason why the last attempt at a step failed, when another follows.
    pub error: Option<String>,
    /// The outcome of the last rollout.
    pub last: Option<LastReport>,
}

/// A release on trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrialReport {
    /// The rollout.
    pub rollout: String,
    /// Its version.
    pub version: u64,
    /// Seconds in this stage during which it could move.
    pub since_s: u64,
    /// The reason why it stands still, if it does.
    pub held: Option<String>,
    /// The fault that delays it for now: a server, a link, a full disk.
    pub fault: Option<FaultReport>,
}

/// A fault that delays a trial for now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FaultReport {
    /// The reason why the last attempt failed.
    pub reason: String,
    /// The time of the first failed attempt.
    pub since: String,
    /// The number of failed attempts.
    pub attempts: u32,
    /// The time at which the next attempt is due.
    pub next: String,
}

/// A rollout that must not continue now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaitingRolloutReport {
    /// The rollout.
    pub rollout: String,
    /// The version that it brings.
    pub version: u64,
    /// The condition that it waits for.
    pub reason: String,
}

/// The outcome of a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LastReport {
    /// The rollout.
    pub rollout: String,
    /// The version that it brought.
    pub version: u64,
    /// `committed` or `rolled_back`.
    pub result: String,
    /// The stage in which it was rolled back.
    pub stage: Option<String>,
    /// The cause of a rollback, as one word.
    pub cause: Option<String>,
    /// The cause in words.
    pub detail: Option<String>,
}

impl From<&UpdatesStatus> for UpdatesReport {
    fn from(status: &UpdatesStatus) -> Self {
        let check = &status.check;
        let role = |(name, role): (&String, &super::status::RoleStatus)| {
            (name.clone(), RoleReport { version: role.version, expires: role.expires_ms.map(clock::rfc3339) })
        };
        let nothing = SubjectState::default();
        let subject = |subject: &Artifact| {
            let state = status.subjects.get(subject).unwrap_or(&nothing);
            SubjectReport::new(subject, state, check.waiting.get(subject), status.errors.get(subject))
        };
        Self {
            repository: check.repository.clone(),
            checked: check.checked_ms.map(clock::rfc3339),
            error: check.error.clone(),
            published: check.published_ms.map(clock::rfc3339),
            roles: check.roles.iter().map(role).collect(),
            fetched_bytes: status.fetched_bytes,
            subjects: status.known().map(subject).chain(status.package.clone()).collect(),
        }
    }
}

impl SubjectReport {
    fn new(subject: &Artifact, state: &SubjectState, waiting: Option<&WaitingRollout>, error: Option<&String>) -> Self {
        let live = state.live();
        let waiting = waiting.map(WaitingRolloutReport::from);
        Self {
            subject: subject.to_string(),
            version: live.map(|release| release.version.get()),
            digest: live.map(|release| release.digest.clone()),
            previous: state.way_back().map(|release| release.version.get()),
            pinned: state.pinned,
            stage: state.trial.as_ref().map_or(IDLE_STAGE, |trial| trial.stage.name()).to_owned(),
            trial: state.trial.as_ref().map(|trial| TrialReport::new(trial, waiting.as_ref())),
            waiting,
            error: error.cloned().or_else(|| Some(state.trial.as_ref()?.present_fault()?.reason.to_string())),
            last: state.outcome.as_ref().map(Into::into),
        }
    }
}

impl From<&WaitingRollout> for WaitingRolloutReport {
    fn from(WaitingRollout { rollout, version, reason }: &WaitingRollout) -> Self {
        Self { rollout: rollout.to_string(), version: version.get(), reason: reason.clone() }
    }
}

impl TrialReport {
    fn new(trial: &ReleaseTrial, waiting: Option<&WaitingRolloutReport>) -> Self {
        let rollout = trial.plan.rollout.to_string();
        let reason = waiting.filter(|waiting| waiting.rollout == rollout).map(|waiting| waiting.reason.clone());
        let held = trial.held.then(|| reason.unwrap_or_else(|| "held".to_owned()));
        let fault = trial.present_fault().map(FaultReport::from);
        Self { rollout, version: trial.release.version.get(), since_s: trial.in_stage_s, held, fault }
    }
}

impl From<&Fault> for FaultReport {
    fn from(fault: &Fault) -> Self {
        Self {
            reason: fault.reason.to_string(),
            since: clock::rfc3339(fault.since_ms),
            attempts: fault.attempts,
            next: clock::rfc3339(fault.next_ms),
        }
    }
}

impl From<&RolloutOutcome> for LastReport {
    fn from(outcome: &RolloutOutcome) -> Self {
        let rolled_back = outcome.rolled_back.as_ref();
        Self {
            rollout: outcome.rollout.to_string(),
            version: outcome.version.get(),
            result: if rolled_back.is_some() { ROLLED_BACK } else { "committed" }.to_owned(),
            stage: rolled_back.map(|(stage, _)| stage.name().to_owned()),
            cause: rolled_back.map(|(_, reason)| reason.cause.name().to_owned()),
            detail: rolled_back.map(|(_, reason)| reason.detail.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::state::RolloutPhase;
    use crate::status_example::status;

    #[test]
    fn a_report_says_what_runs_what_is_tried_and_what_waits() {
        let report = UpdatesReport::from(&status());
        let expected = json!({
            "repository": "https://updates.example/ledge/",
            "checked": "2026-11-20T00:00:00Z", "error": "no way", "published": "2026-11-20T00:00:00Z",
            "roles": {
                "root": {"version": 3, "expires": null},
                "timestamp": {"version": 41, "expires": "2026-11-20T01:00:00Z"},
            },
            "fetched_bytes": 1234,
            "subjects": [
                {"subject": "models/a", "version": null, "digest": null, "previous": null, "pinned": false,
                 "stage": "idle", "trial": null,
                 "waiting": {"rollout": "r-9", "version": 1, "reason": "needs Ledge 9.0.0"},
                 "error": null, "last": null},
                {"subject": "models/m", "version": 2, "digest": "ab".repeat(32), "previous": 1, "pinned": false,
                 "stage": "staged",
                 "trial": {"rollout": "r-3", "version": 3, "since_s": 7, "held": "paused by the platform",
                           "fault": {"reason": "download: status 404", "since": "2026-11-20T00:00:00Z", "attempts": 2,
                                     "next": "2026-11-20T01:00:00Z"}},
                 "waiting": {"rollout": "r-3", "version": 3, "reason": "paused by the platform"},
                 "error": "disk: no room",
                 "last": {"rollout": "r-2", "version": 4, "result": "rolled_back", "stage": "verified",
                          "cause": "golden", "detail": "7 of 10"}},
            ],
        });
        assert_eq!(serde_json::to_value(&report).unwrap(), expected);
        assert_eq!(serde_json::from_value::<UpdatesReport>(expected).unwrap(), report);
    }

    #[test]
    fn while_a_version_is_tried_the_way_back_is_what_ran_until_then() {
        let mut status = status();
        let state = status.subjects.values_mut().next().unwrap();
        state.trial.as_mut().unwrap().stage = RolloutPhase::Active;
        let report = UpdatesReport::from(&status);
        let subject = report.subjects.iter().find(|subject| subject.subject == "models/m").unwrap();
        assert_eq!((subject.version, subject.previous), (Some(3), Some(2)));
    }
}
