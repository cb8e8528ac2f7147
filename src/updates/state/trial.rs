//! A release on trial, and the consequences of its stage.

use std::sync::Arc;

use ledge_base::names::DeviceName;
use serde::{Deserialize, Serialize};

use super::{Fault, InstalledRelease, RolloutPhase, STARTS_MAX};
use crate::package::Package;
use crate::plan::{RolloutAllowance, RolloutPlan};

/// A release on trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReleaseTrial {
    /// The rollout that led to it.
    pub plan: RolloutPlan,
    /// The release; the digest is empty until its description was read.
    pub release: InstalledRelease,
    /// Its signed description, once it was read. It is kept here because it is needed without a network.
    pub package: Option<Arc<Package>>,
    /// Its stage.
    pub stage: RolloutPhase,
    /// Seconds in this stage during which it could move.
    pub in_stage_s: u64,
    /// Further starts of the daemon that may find its work under way before it falls back.
    pub starts_left: u32,
    pub failures: u32,
    /// Bytes fetched so far.
    pub fetched_bytes: u64,
    /// The fault that delays it for now. Removed when the stage is passed.
    pub fault: Option<Fault>,
    /// The limit up to which it may go now.
    pub allow: RolloutAllowance,
    /// True while it stands still: follows from the stage and `allow`.
    pub held: bool,
}

/// The used budget of a trial that ended without a verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedBudget {
    pub rollout: DeviceName,
    pub failures: u32,
    /// Bytes fetched.
    pub fetched_bytes: u64,
    /// The fault of its download.
    pub fault: Option<Fault>,
}

/// The most rollouts for which the used budget is remembered: the newest ones.
const USED_BUDGETS_MAX: usize = 8;

impl UsedBudget {
    /// Notes the used budget of a trial, for when its rollout comes back.
    pub(super) fn remember(all: &mut Vec<Self>, trial: &ReleaseTrial) {
        let (rollout, failures, fetched_bytes) = (trial.plan.rollout.clone(), trial.failures, trial.fetched_bytes);
        let fault = trial.fault.clone().filter(|_| trial.stage == RolloutPhase::Downloading);
        all.retain(|used| used.rollout != rollout);
        if failures > 0 || fetched_bytes > 0 || fault.is_some() {
            all.push(Self { rollout, failures, fetched_bytes, fault });
        }
        let surplus = all.len().saturating_sub(USED_BUDGETS_MAX);
        all.drain(..surplus);
    }
}

impl ReleaseTrial {
    pub(super) fn new(plan: RolloutPlan, allow: RolloutAllowance, used: &[UsedBudget]) -> Self {
        let used = used.iter().find(|used| used.rollout == plan.rollout);
        let (failures, fetched_bytes) = used.map_or((0, 0), |used| (used.failures, used.fetched_bytes));
        let fault = used.and_then(|used| used.fault.clone());
        let release = InstalledRelease { version: plan.target.version, digest: String::new() };
        Self {
            plan,
            release,
            package: None,
            stage: RolloutPhase::Downloading,
            in_stage_s: 0,
            starts_left: STARTS_MAX,
            failures,
            fetched_bytes,
            fault,
            allow,
            held: false,
        }
    }

    pub(super) fn is_of(&self, plan: &RolloutPlan) -> bool {
        self.plan.rollout == plan.rollout && self.plan.target == plan.target
    }

    /// Updates `held`; to be called after each change of the stage or of `allow`. A soak goes on: stopping half-way
    /// through a switch is worse.
    pub(super) fn hold(&mut self) {
        self.held = match self.allow {
            _ if self.stage == RolloutPhase::Active => false,
            RolloutAllowance::Everything => false,
            RolloutAllowance::Prepare => self.stage >= RolloutPhase::Staged,
            RolloutAllowance::Nothing => true,
        };
    }

    /// Returns the fault that delays it; `None` while bytes come.
    pub fn present_fault(&self) -> Option<&Fault> {
        self.fault.as_ref().filter(|fault| fault.came == 0)
    }

    /// Returns true if an attempt at its stage may be made now.
    pub fn is_due(&self, now_ms: u64) -> bool {
        self.fault.as_ref().is_none_or(|fault| fault.is_due(now_ms))
    }

    pub(super) fn enter(&mut self, stage: RolloutPhase) {
        self.stage = stage;
        self.in_stage_s = 0;
        self.fault = None;
        self.hold();
    }
}
