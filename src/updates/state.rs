//! The state of one artifact, and every step it can take. Pure: no clock, no disk, no network; time is passed in as
//! elapsed seconds.
//!
//! ```text
//! idle -> downloading -> verified -> staged -> shadow -> canary -> active -> committed (idle again)
//!             any of them -> rolled back (idle again, with the reason; the previous version goes on)
//! ```
//!
//! A stage names the progress so far. The next action of a box follows only from the state
//! ([`SubjectState::next_action`]), so a box that was cut off anywhere reads its state and continues. The updater
//! writes the state to disk before it acts on it.

mod delays;
mod fault;
mod installed;
mod phase;
mod reason;
mod subject;
mod superseded;
mod trial;

use std::sync::Arc;

use super::artifact::ArtifactKind;
use super::package::Package;
use super::plan::{DesiredState, RolloutAllowance, RolloutPlan};
pub use fault::{Fault, PAUSE_MAX_MS};
pub use installed::InstalledRelease;
pub use phase::RolloutPhase;
use phase::STARTS_MAX;
pub use reason::{RollbackCause, RollbackReason};
pub use subject::Superseded;
pub use subject::{RefusedRelease, RolloutOutcome, SubjectState};
pub use trial::{ReleaseTrial, UsedBudget};

/// Most refused releases that are remembered, the newest.
const REFUSED_MAX: usize = 64;

/// An event of a subject.
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
#[derive(Debug, Clone, PartialEq)]
pub enum UpdateEvent {
    /// The state that the platform desires, after a check.
    Wanted {
        desired_state: DesiredState,
        /// True when the owner's model or settings serve where no release does.
        has_own: bool,
    },
    /// The description of the release was read.
    Described {
        digest: String,
        package: Arc<Package>,
    },
    /// Bytes were fetched.
    Fetched {
        bytes: u64,
    },
    /// The work or the gate of the stage was passed.
    Passed,
    /// It failed, and would fail again.
    Failed(RollbackReason),
    /// It failed, and may succeed the next time. The attempt counts.
    Interrupted(RollbackReason),
    /// It cannot be done now, for a reason outside of the release: a server, a link, a full disk. The attempt does not
    /// count.
    Deferred {
        reason: RollbackReason,
        /// The time, in milliseconds since the Unix epoch.
        now_ms: u64,
        /// The time of the next attempt, in milliseconds since the Unix epoch.
        next_ms: u64,
        /// Bytes that were thrown away, now or in earlier attempts.
        wasted: u64,
    },
    /// The administrator of this box wants it tried now.
    Retry {
        /// The time, in milliseconds since the Unix epoch.
        now_ms: u64,
    },
    /// Time passed. It does not count while the trial is held.
    Waited {
        seconds: u64,
    },
    /// The daemon started.
    Started {
        /// True when a load or the first run of the release on trial was under way as the last process ended.
        under_way: bool,
    },
    /// A release is damaged on disk.
    Damaged(InstalledRelease),
    /// The administrator keeps the version that runs.
    Pin,
    Unpin,
    /// The administrator wants the previous version: the one before the trial, else the one before the last commit.
    /// Without either nothing happens, because then no release would run.
    RollBack,
    /// The administrator wants the owner's model, and no release.
    LeaveToOwner,
    /// The administrator ends the trial.
    Cancel,
}

/// The work of a box for a subject now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateAction {
    Rest,
    /// Fetch the files of the trial.
    Download,
    /// Run the release in a separate process.
    Preflight,
    /// Load it next to the live version, and compare.
    LoadCandidate,
    /// Mirror requests, and watch.
    Mirror,
    /// Let it answer a share of the requests, and watch.
    Share,
    /// Let it answer all of them, and watch.
    Soak,
}

impl SubjectState {
    /// Returns the least share of the golden inputs that a release must answer right to be loaded; `None` is all of
    /// them.
    pub fn golden_min(&self, release: &InstalledRelease) -> Option<f64> {
        match &self.trial {
            Some(trial) if trial.release == *release => trial.plan.gate.golden_min,
            _ if self.committed.as_ref() == Some(release) => self.committed_golden_min,
            _ if self.previous.as_ref() == Some(release) => self.previous_golden_min,
            _ => None,
        }
    }

    /// Returns the release that answers requests according to this state. `None`: the owner's model.
    pub fn live(&self) -> Option<&InstalledRelease> {
        match &self.trial {
            Some(trial) if trial.stage == RolloutPhase::Active => Some(&trial.release),
            _ => self.committed.as_ref(),
        }
    }

    /// Returns the release that a rollback would return to. `None`: the owner's model, or none.
    pub fn way_back(&self) -> Option<&InstalledRelease> {
        match &self.trial {
            Some(trial) if trial.stage == RolloutPhase::Active => self.committed.as_ref(),
            _ => self.previous.as_ref(),
        }
    }

    /// Returns every release that must stay on disk.
    pub fn kept(&self) -> impl Iterator<Item = &InstalledRelease> {
        let trial = self.trial.as_ref().map(|trial| &trial.release);
        [self.committed.as_ref(), self.previous.as_ref(), trial].into_iter().flatten()
    }

    /// Returns the work to do now.
    pub fn next_action(&self) -> UpdateAction {
        match &self.trial {
            Some(trial) if !trial.held => match trial.stage {
                RolloutPhase::Downloading => UpdateAction::Download,
                RolloutPhase::Verified => UpdateAction::Preflight,
                RolloutPhase::Staged => UpdateAction::LoadCandidate,
                RolloutPhase::Shadow => UpdateAction::Mirror,
                RolloutPhase::Canary => UpdateAction::Share,
                RolloutPhase::Active => UpdateAction::Soak,
            },
            _ => UpdateAction::Rest,
        }
    }

    /// Returns the state after `event`.
    #[must_use]
    pub fn after(mut self, event: UpdateEvent, kind: ArtifactKind) -> Self {
        match event {
            UpdateEvent::Wanted { desired_state, has_own } => self.wanted(&desired_state, has_own),
            UpdateEvent::Described { digest, package } => self.described(digest, package),
            UpdateEvent::Damaged(release) => self.damaged(&release),
            UpdateEvent::Fetched { bytes } => self.fetched(bytes),
            UpdateEvent::Passed => self.passed(kind),
            UpdateEvent::Failed(reason) => self.roll_back(reason),
            UpdateEvent::Interrupted(reason) => self.interrupted(&reason),
            UpdateEvent::Deferred { reason, now_ms, next_ms, wasted } => self.deferred(reason, now_ms, next_ms, wasted),
            UpdateEvent::Retry { now_ms } => self.retry(now_ms),
            UpdateEvent::Waited { seconds } => self.waited(seconds),
            UpdateEvent::Started { under_way } => self.started(under_way),
            UpdateEvent::Pin => self.pinned = true,
            UpdateEvent::Unpin => self.pinned = false,
            UpdateEvent::RollBack if self.trial.is_none() => {
                if self.previous.is_some() {
                    self.leave_committed(RollbackReason::new(
                        RollbackCause::Operator,
                        "rolled back by the administrator of this box",
                    ));
                }
            }
            UpdateEvent::LeaveToOwner => {
                self.roll_back(RollbackReason::new(RollbackCause::Operator, "ended by the administrator of this box"));
                (self.previous, self.previous_by) = (None, None);
                self.leave_committed(RollbackReason::new(
                    RollbackCause::Operator,
                    "the administrator of this box returned to the owner's model",
                ));
            }
            UpdateEvent::RollBack | UpdateEvent::Cancel => {
                self.roll_back(RollbackReason::new(RollbackCause::Operator, "ended by the administrator of this box"));
            }
        }
        self
    }

    fn wanted(&mut self, desired_state: &DesiredState, has_own: bool) {
        self.note_superseded(desired_state);
        self.revoke(desired_state);

        let desired = desired_state.desired.clone().filter(|(plan, _)| !desired_state.revokes(plan.target.version));

        match (&mut self.trial, desired) {
            (Some(trial), Some((plan, allow))) if trial.is_of(&plan) => {
                (trial.plan, trial.allow) = (plan, allow);
                trial.hold();
            }
            // A pinned subject stays as it is, a trial under way included: it may end, but nothing new begins.
            _ if self.pinned => {}
            (_, None) => {
                self.roll_back(RollbackReason::new(RollbackCause::Withdrawn, "no rollout is for this box any more"));
            }
            (_, Some((plan, allow))) => {
                let ended = self.trial.as_ref().map(|trial| trial.plan.rollout.clone());
                let ended = ended.filter(|rollout| desired_state.supersedes.contains(rollout));
                self.remember_superseded(&ended, plan.target.version);
                self.roll_back(RollbackReason::new(
                    RollbackCause::Superseded,
                    format!("replaced by rollout {}", plan.rollout),
                ));
                let serves = has_own || self.committed.is_some();
                if !(serves && self.stays_superseded(&plan, desired_state)) {
                    if allow != RolloutAllowance::Nothing {
                        // Also one that begins only because nothing serves.
                        self.remember_superseded(&desired_state.supersedes, plan.target.version);
                    }
                    self.begin(plan, allow);
                }
            }
        }
    }

    /// Removes revoked versions, even from a pinned subject: the platform that allowed them no longer does. With no
    /// version left in the update store that leaves the owner's, or no version at all: an order, not a failure.
    fn revoke(&mut self, desired_state: &DesiredState) {
        if self.previous.take_if(|previous| desired_state.revokes(previous.version)).is_some() {
            self.previous_by = None;
        }
        let committed = self.committed.as_ref().map(|committed| committed.version);
        if let Some(version) = committed.filter(|version| desired_state.revokes(*version)) {
            self.leave_committed(RollbackReason::new(RollbackCause::Revoked, format!("version {version} was revoked")));
        }
        let tried = self.trial.as_ref().map(|trial| trial.release.version);
        if let Some(version) = tried.filter(|version| desired_state.revokes(*version)) {
            self.roll_back(RollbackReason::new(RollbackCause::Revoked, format!("version {version} was revoked")));
        }
    }

    fn begin(&mut self, plan: RolloutPlan, allow: RolloutAllowance) {
        let version = plan.target.version;
        let running = self.committed.as_ref().map(|committed| committed.version);
        if running == Some(version) {
            if self.committed_by.as_ref() == Some(&plan.rollout) {
                // The outcome of a later rollout stays.
                return;
            }
            // A rollout of the running version is a success without work.
            self.committed_by = Some(plan.rollout.clone());
            self.outcome = Some(RolloutOutcome { rollout: plan.rollout, version, rolled_back: None });
            return;
        }
        let upward = running.is_none_or(|running| running < version) || plan.allow_downgrade;
        let known = |refused: &RefusedRelease| refused.rollout == plan.rollout && refused.version == version;
        if allow != RolloutAllowance::Nothing && upward && !self.refused.iter().any(known) {
            self.superseded.retain(|superseded| superseded.rollout != plan.rollout);
            self.trial = Some(ReleaseTrial::new(plan, allow, &self.used));
        }
    }

    fn described(&mut self, digest: String, package: Arc<Package>) {
        let Some(trial) = &mut self.trial else { return };
        if trial.stage > RolloutPhase::Downloading {
            // A verified release is not described again.
            return;
        }
        trial.release.digest = digest;
        trial.package = Some(package);
        if self.is_refused() {
            // Refuse it by the number of this version as well, or it would begin again.
            let Some(ReleaseTrial { plan, release, .. }) = self.trial.take() else { return };
            self.refuse(RefusedRelease { rollout: plan.rollout, digest: release.digest, version: release.version });
        }
    }

    fn is_refused(&self) -> bool {
        let Some(trial) = &self.trial else { return false };
        let same = |refused: &RefusedRelease| {
            refused.rollout == trial.plan.rollout
                && !refused.digest.is_empty()
                && refused.digest == trial.release.digest
        };
        self.refused.iter().any(same)
    }

    fn fetched(&mut self, bytes: u64) {
        let Some(trial) = &mut self.trial else { return };
        trial.fetched_bytes = trial.fetched_bytes.saturating_add(bytes);
        if let Some(fault) = &mut trial.fault {
            fault.came = fault.came.saturating_add(bytes);
        }
        let (fetched, budget) = (trial.fetched_bytes, trial.plan.byte_budget);
        if let Some(budget) = budget.filter(|budget| fetched > *budget) {
            self.roll_back(RollbackReason::new(
                RollbackCause::Budget,
                format!("{fetched} bytes fetched, {budget} allowed"),
            ));
        }
    }

    fn passed(&mut self, kind: ArtifactKind) {
        let Some(trial) = self.trial.as_mut().filter(|trial| !trial.held) else { return };
        let sees_requests = kind == ArtifactKind::Model;
        let (shadow, canary) =
            (sees_requests && trial.plan.shadow.share > 0.0, sees_requests && trial.plan.canary.share > 0.0);
        trial.enter(match trial.stage {
            RolloutPhase::Downloading => RolloutPhase::Verified,
            RolloutPhase::Verified => RolloutPhase::Staged,
            RolloutPhase::Staged if shadow => RolloutPhase::Shadow,
            RolloutPhase::Staged | RolloutPhase::Shadow if canary => RolloutPhase::Canary,
            RolloutPhase::Staged | RolloutPhase::Shadow | RolloutPhase::Canary => RolloutPhase::Active,
            RolloutPhase::Active => return self.commit(),
        });
    }

    fn commit(&mut self) {
        let Some(ReleaseTrial { plan, release, .. }) = self.trial.take() else { return };
        let (rollout, version) = (plan.rollout, release.version);
        self.previous = self.committed.replace(release);
        self.previous_by = self.committed_by.replace(rollout.clone());
        self.previous_golden_min = std::mem::replace(&mut self.committed_golden_min, plan.gate.golden_min);
        self.outcome = Some(RolloutOutcome { rollout, version, rolled_back: None });
    }

    /// Returns to the version before the last commit, or to the owner's.
    fn leave_committed(&mut self, reason: RollbackReason) {
        let Some(left) = self.committed.take() else { return };
        let rollout = self.committed_by.take();
        self.take_previous();
        if let Some(rollout) = rollout {
            let version = left.version;
            self.refuse(RefusedRelease { rollout: rollout.clone(), digest: left.digest, version });
            self.outcome = Some(RolloutOutcome { rollout, version, rolled_back: Some((RolloutPhase::Active, reason)) });
        }
    }

    fn take_previous(&mut self) {
        (self.committed, self.committed_by) = (self.previous.take(), self.previous_by.take());
        self.committed_golden_min = self.previous_golden_min.take();
    }

    fn roll_back(&mut self, reason: RollbackReason) {
        let Some(trial) = self.trial.take() else { return };
        let (rollout, version) = (trial.plan.rollout.clone(), trial.release.version);
        if reason.cause.is_final() {
            self.refuse(RefusedRelease { rollout: rollout.clone(), digest: trial.release.digest.clone(), version });
        } else {
            UsedBudget::remember(&mut self.used, &trial);
        }
        self.outcome = Some(RolloutOutcome { rollout, version, rolled_back: Some((trial.stage, reason)) });
    }

    fn refuse(&mut self, refused: RefusedRelease) {
        if !self.refused.contains(&refused) {
            self.refused.push(refused);
        }
        let surplus = self.refused.len().saturating_sub(REFUSED_MAX);
        self.refused.drain(..surplus);
    }

    fn interrupted(&mut self, reason: &RollbackReason) {
        let Some(trial) = &mut self.trial else { return };
        trial.failures += 1;
        if trial.failures >= trial.plan.max_attempts.max(1) {
            let detail = format!("{} attempts failed, the last one: {reason}", trial.failures);
            self.roll_back(RollbackReason::new(RollbackCause::Attempts, detail));
        }
    }

    /// Handles a damaged release. It is not refused: it may be fetched again.
    fn damaged(&mut self, release: &InstalledRelease) {
        if let Some(trial) = self.trial.as_mut().filter(|trial| trial.release == *release) {
            trial.enter(RolloutPhase::Downloading);
        }
        if self.committed.as_ref() == Some(release) {
            self.take_previous();
            self.outcome = None;
        }
    }

    fn started(&mut self, under_way: bool) {
        let Some(trial) = self.trial.as_mut().filter(|trial| trial.stage > RolloutPhase::Downloading) else { return };
        if !under_way {
            // Something else ended the process: the release had done its work well until then.
            trial.starts_left = STARTS_MAX;
        } else if let Some(left) = trial.starts_left.checked_sub(1) {
            trial.starts_left = left;
        } else {
            let detail = format!(
                "{} starts of the daemon in a row found a load or the first run of it under way while it was {}",
                STARTS_MAX + 1,
                trial.stage
            );
            self.roll_back(RollbackReason::new(RollbackCause::Restarts, detail));
            return;
        }
        if (RolloutPhase::Shadow..RolloutPhase::Active).contains(&trial.stage) {
            // It was loaded next to the live version, in memory that is gone: load and judge it again.
            trial.enter(RolloutPhase::Staged);
        }
    }
}

#[cfg(test)]
mod tests;
