//! The status of updates, as plain data: the poller and the updater fill it; HTTP, metrics, the report and the command
//! line read it.

use std::collections::BTreeMap;

use ledge_base::names::{DeviceName, ModelVersion};

use super::artifact::{Artifact, ArtifactKind};
use super::state::{InstalledRelease, RolloutOutcome, RolloutPhase, SubjectState};
use super::status_report::SubjectReport;

/// The status of updates at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UpdatesStatus {
    /// The state of the platform: the poller's part.
    pub check: CheckStatus,
    /// The subjects of updates: the updater's part, like the fields below.
    pub subjects: BTreeMap<Artifact, SubjectState>,
    /// Reasons why the last attempt at a step failed, in words, until another succeeds.
    pub errors: BTreeMap<Artifact, String>,
    /// The package of Ledge itself: the courier's part.
    pub package: Option<SubjectReport>,
    /// Bytes fetched since the start.
    pub fetched_bytes: u64,
    /// Rollbacks since the start, by the name of the cause.
    pub rollbacks: BTreeMap<&'static str, u64>,
}

/// The state of the platform, by the checks of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CheckStatus {
    /// The repository, as configured.
    pub repository: String,
    /// The time of the last successful check, in milliseconds since the Unix epoch.
    pub checked_ms: Option<u64>,
    /// The reason why the last check failed, in words; `None` when it did not.
    pub error: Option<String>,
    /// The roles of the trusted metadata by their names.
    pub roles: BTreeMap<String, RoleStatus>,
    /// The time at which the current rollout manifest was published, in milliseconds since the Unix epoch.
    pub published_ms: Option<u64>,
    /// Wanted rollouts that must not continue now.
    pub waiting: BTreeMap<Artifact, WaitingRollout>,
}

/// One role of the trusted metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoleStatus {
    pub version: u64,
    /// The time at which it expires, in milliseconds since the Unix epoch; `None` before the first check since the
    /// start.
    pub expires_ms: Option<u64>,
}

/// A rollout for this box that must not continue now, or not to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingRollout {
    pub rollout: DeviceName,
    /// The version that it brings.
    pub version: ModelVersion,
    /// The condition that it waits for, in words.
    pub reason: String,
}

/// The progress of a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubjectProgress {
    subject: Artifact,
    live: Option<InstalledRelease>,
    stage: Option<RolloutPhase>,
    outcome: Option<RolloutOutcome>,
    pinned: bool,
}

impl CheckStatus {
    /// Returns the time at which the first role expires.
    pub fn earliest_expiry_ms(&self) -> Option<u64> {
        self.roles.values().filter_map(|role| role.expires_ms).min()
    }
}

impl UpdatesStatus {
    /// Returns the facts that the platform should learn at once when they change: the running versions, the stages of
    /// trials, and their outcomes. The rest of a status changes all the time.
    pub fn milestones(&self) -> Vec<SubjectProgress> {
        let of = |(subject, state): (&Artifact, &SubjectState)| SubjectProgress {
            subject: subject.clone(),
            live: state.live().cloned(),
            stage: state.trial.as_ref().map(|trial| trial.stage),
            outcome: state.outcome.clone(),
            pinned: state.pinned,
        };
        self.subjects.iter().map(of).collect()
    }

    /// Returns every subject that has a state or a waiting rollout.
    pub fn known(&self) -> impl Iterator<Item = &Artifact> {
        let is_reported = |subject: &Artifact| subject.kind == ArtifactKind::Package && self.package.is_some();
        let waiting =
            self.check.waiting.keys().filter(|subject| !self.subjects.contains_key(subject) && !is_reported(subject));
        let mut known: Vec<&Artifact> = self.subjects.keys().chain(waiting).collect();
        known.sort_unstable();
        known.into_iter()
    }
}
