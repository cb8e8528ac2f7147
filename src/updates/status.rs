//! How updates do, as plain data: the poller and the updater fill it, HTTP, metrics, the report and the command line read it.

use std::collections::BTreeMap;

use ledge_base::names::{DeviceName, ModelVersion};

use super::state::{Installed, Outcome, Stage, SubjectState};
use super::subject::Subject;

/// Everything that is known of updates at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UpdatesStatus {
    /// What is known of the platform: the poller's part.
    pub look: LookStatus,
    /// Everything that is updated: the updater's part, as is what follows.
    pub subjects: BTreeMap<Subject, SubjectState>,
    /// Why the last attempt at a step failed, in words for people, until another goes well.
    pub errors: BTreeMap<Subject, String>,
    /// Bytes fetched since the start.
    pub fetched_bytes: u64,
    /// What was rolled back since the start, by the name of the cause.
    pub rollbacks: BTreeMap<&'static str, u64>,
}

/// What is known of the platform.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LookStatus {
    /// The repository, as configured.
    pub repository: String,
    /// When the platform was last heard, in milliseconds since the Unix epoch.
    pub checked_ms: Option<u64>,
    /// Why the last look failed, in words for people; `None` when it did not.
    pub error: Option<String>,
    /// The roles of the trusted metadata by their names.
    pub roles: BTreeMap<String, RoleStatus>,
    /// When the rollout manifest that is followed was published, in milliseconds since the Unix epoch.
    pub published_ms: Option<u64>,
    /// What is wanted and may not go on now.
    pub waiting: BTreeMap<Subject, Waiting>,
}

/// One role of the trusted metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoleStatus {
    pub version: u64,
    /// When it expires, in milliseconds since the Unix epoch; `None` before it was looked at since the start.
    pub expires_ms: Option<u64>,
}

/// A rollout that is meant for this box and may not go on, or not to its end, now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    pub rollout: DeviceName,
    /// The version that it brings.
    pub version: ModelVersion,
    /// What it waits for, in words for people.
    pub reason: String,
}

/// How far a subject is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Milestone {
    subject: Subject,
    live: Option<Installed>,
    stage: Option<Stage>,
    outcome: Option<Outcome>,
    pinned: bool,
}

impl LookStatus {
    /// When the first role expires.
    pub fn earliest_expiry_ms(&self) -> Option<u64> {
        self.roles.values().filter_map(|role| role.expires_ms).min()
    }
}

impl UpdatesStatus {
    /// What the platform should learn at once when it changes: what runs, how far trials are, and how they ended. The rest
    /// of a status changes all the time.
    pub fn milestones(&self) -> Vec<Milestone> {
        let of = |(subject, state): (&Subject, &SubjectState)| Milestone {
            subject: subject.clone(),
            live: state.live().cloned(),
            stage: state.trial.as_ref().map(|trial| trial.stage),
            outcome: state.outcome.clone(),
            pinned: state.pinned,
        };
        self.subjects.iter().map(of).collect()
    }

    /// Every subject that is known, by its state or because something is wanted of it.
    pub fn known(&self) -> impl Iterator<Item = &Subject> {
        let waiting = self.look.waiting.keys().filter(|subject| !self.subjects.contains_key(subject));
        let mut known: Vec<&Subject> = self.subjects.keys().chain(waiting).collect();
        known.sort_unstable();
        known.into_iter()
    }
}
