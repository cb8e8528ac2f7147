//! The desired states of the platform for this box: plain data, made by `rollout/` from the signed rollout manifest.

use std::collections::{BTreeMap, BTreeSet};

use ledge_base::names::{DeviceName, ModelVersion};
use serde::{Deserialize, Serialize};

use super::artifact::{Artifact, TargetPath};

/// The desired states of all artifacts. An artifact that is not in it keeps its version, and a trial of it is
/// withdrawn.
pub type DesiredStates = BTreeMap<Artifact, DesiredState>;

/// The desired state of one artifact.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DesiredState {
    /// The release that this box should run, and how far it may go towards it now.
    pub desired: Option<(RolloutPlan, RolloutAllowance)>,
    /// Versions that must not run any more.
    pub revoked: BTreeSet<ModelVersion>,
    /// The lowest version that may run.
    pub minimum: Option<ModelVersion>,
    /// The earlier rollouts for this box, which the desired one replaces.
    pub supersedes: BTreeSet<DeviceName>,
}

impl DesiredState {
    /// Returns true if a version must not run any more.
    pub fn revokes(&self, version: ModelVersion) -> bool {
        self.minimum.is_some_and(|minimum| version < minimum) || self.revoked.contains(&version)
    }
}

/// The limit up to which a box may go now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RolloutAllowance {
    /// Nothing moves: the rollout is paused, or this box's wave has not come. A soak goes on.
    Nothing,
    /// Up to a release that is on disk and has passed its preflight: outside the maintenance window.
    Prepare,
    Everything,
}

/// One rollout, as far as it concerns this box. It is kept on disk with its trial, so that a soak goes on without a
/// network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutPlan {
    /// The rollout. Together with the digest of the release it identifies a refusal.
    pub rollout: DeviceName,
    /// The release, by its first file, which carries the signed description of all.
    pub target: TargetPath,
    /// Requests mirrored to the new version. Its answers are dropped.
    pub shadow: StagePlan,
    /// Requests answered by the new version.
    pub canary: StagePlan,
    /// All requests, before the commit. Its share does not count.
    pub soak: StagePlan,
    /// The limits that the new version must keep.
    pub gate: RolloutGate,
    /// Number of times that loading it next to the live version may fail for passing reasons, such as memory that
    /// others hold. A bad link or a full disk does not count: a download has its deadline and its byte budget.
    pub max_attempts: u32,
    /// The most bytes fetched for this rollout, all attempts together, also when it is withdrawn and comes back; `None`
    /// is no limit.
    pub byte_budget: Option<u64>,
    /// Set when a version below the running one may be taken.
    pub allow_downgrade: bool,
}

/// One stage in which the new version sees requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StagePlan {
    /// The share of requests, from 0 to 1. With 0 the stage is left out.
    pub share: f64,
    /// The least duration, in seconds.
    pub min_s: u64,
    /// The least number of requests.
    pub min_requests: u64,
    /// The longest duration, in seconds; `quiet` defines what follows without enough requests.
    pub max_s: u64,
    /// The result of a stage without enough requests.
    pub quiet: QuietStagePolicy,
}

/// The result of a stage without enough requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuietStagePolicy {
    /// The gate judges the requests there were.
    #[default]
    Pass,
    /// The release is rolled back.
    RollBack,
}

impl StagePlan {
    /// Default of the shadow stage. A hundred requests are as many as a 95th percentile needs; a box without them waits
    /// an hour.
    pub const SHADOW: Self =
        Self { share: 0.1, min_s: 0, min_requests: 100, max_s: 3_600, quiet: QuietStagePolicy::Pass };

    /// Default of the canary stage: without a share, because it answers callers. A canary with a share lasts as long as
    /// the shadow does.
    pub const CANARY: Self = Self { share: 0.0, ..Self::SHADOW };

    /// Default of the soak: ten minutes at least, in which the previous version is one step away.
    pub const SOAK: Self = Self { share: 1.0, min_s: 600, ..Self::SHADOW };
}

/// A [`StagePlan`] as a rollout has it: each field may be left out.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StagePlanForm {
    share: Option<f64>,
    min_s: Option<u64>,
    min_requests: Option<u64>,
    max_s: Option<u64>,
    quiet: Option<QuietStagePolicy>,
}

impl StagePlanForm {
    /// Fills missing fields from `default`. One bound in time moves the other with it.
    pub fn over(self, default: StagePlan) -> StagePlan {
        let (min_s, max_s) = match (self.min_s, self.max_s) {
            (Some(min_s), Some(max_s)) => (min_s, max_s),
            (Some(min_s), None) => (min_s, default.max_s.max(min_s)),
            (None, Some(max_s)) => (default.min_s.min(max_s), max_s),
            (None, None) => (default.min_s, default.max_s),
        };
        StagePlan {
            share: self.share.unwrap_or(default.share),
            min_s,
            min_requests: self.min_requests.unwrap_or(default.min_requests),
            max_s,
            quiet: self.quiet.unwrap_or(default.quiet),
        }
    }
}

/// The limits that a new version must keep, where it can be judged. A limit that a rollout leaves out has its default,
/// and one that is `null` does not apply.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RolloutGate {
    /// The least share of the golden inputs answered right, from 0 to 1. `None` is all of them.
    pub golden_min: Option<f64>,
    /// The least share of mirrored requests on which both versions agree: the same best class, or the same numbers
    /// within the tolerance of the package. None by default: a version that was trained again may well answer
    /// otherwise.
    pub agreement_min: Option<f64>,
    /// The time of a run, over that of the previous version on the same input at the same moment. A 95th percentile of
    /// the requests above it is a reason to measure.
    pub p95_ratio_max: Option<f64>,
    /// The share of requests that the new version fails.
    pub error_rate_max: Option<f64>,
    /// The memory of one instance of the loaded model, over that of the previous version.
    pub memory_ratio_max: Option<f64>,
    /// The drift of the answered classes against the reference of the package (population stability index). None by
    /// default: the reference is of a fleet, and one box may see another distribution.
    pub psi_max: Option<f64>,
}

impl Default for RolloutGate {
    fn default() -> Self {
        Self { p95_ratio_max: Some(1.5), error_rate_max: Some(0.02), memory_ratio_max: Some(1.5), ..Self::OPEN }
    }
}

impl RolloutGate {
    /// No limit but the golden inputs.
    pub const OPEN: Self = Self {
        golden_min: None,
        agreement_min: None,
        p95_ratio_max: None,
        error_rate_max: None,
        memory_ratio_max: None,
        psi_max: None,
    };
}
