//! What the platform wants of this box: plain data, made by `fleet/` from the signed rollout manifest.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::subject::{Subject, TargetPath};
use crate::names::{DeviceName, ModelVersion};

/// What is wanted of everything that is updated. A subject that is not in it is left as it is, a trial of it withdrawn.
pub type Wishes = BTreeMap<Subject, Wish>;

/// What is wanted of one subject.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Wish {
    /// The release that this box is to run, and how far it may go towards it now.
    pub desired: Option<(Plan, Allow)>,
    /// Versions that must not run any more.
    pub revoked: BTreeSet<ModelVersion>,
    /// What is below it must not run any more either.
    pub minimum: Option<ModelVersion>,
}

impl Wish {
    /// Whether a version must not run any more.
    pub fn revokes(&self, version: ModelVersion) -> bool {
        self.minimum.is_some_and(|minimum| version < minimum) || self.revoked.contains(&version)
    }
}

/// How far a box may go now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Allow {
    /// Nothing moves: the rollout is paused, or this box's wave has not come. A soak goes on.
    Nothing,
    /// Up to a release that is on disk and tried in a process of its own: outside the maintenance window.
    Prepare,
    /// Everything.
    Everything,
}

/// One rollout as far as this box is concerned. It is kept on disk with the trial it leads to: a soak goes on without a
/// network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The rollout: with the digest of the release it names what was refused once.
    pub rollout: DeviceName,
    /// The release, by its first file, which carries the signed description of the whole.
    pub target: TargetPath,
    /// Requests mirrored to the new version, whose answers nobody gets.
    pub shadow: Step,
    /// Requests answered by the new version.
    pub canary: Step,
    /// All requests, before it is called a success. Its share does not count.
    pub soak: Step,
    /// What the new version must hold.
    pub gate: Gate,
    /// How often loading it beside the live version may fail for passing reasons, such as memory that others hold. A bad
    /// link or a full disk does not count: a download has its deadline and its byte budget.
    pub max_attempts: u32,
    /// The most bytes fetched for this rollout, all attempts together, also when it is withdrawn and comes back; `None` is
    /// no limit.
    pub byte_budget: Option<u64>,
    /// Whether a version below the one that runs may be taken.
    pub allow_downgrade: bool,
}

/// One stage in which the new version sees requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Step {
    /// The share of requests, from 0 to 1. With 0 the stage is left out.
    pub share: f64,
    /// It lasts at least so long, in seconds.
    pub min_s: u64,
    /// It needs so many requests.
    pub min_requests: u64,
    /// It lasts at most so long, in seconds; what comes then without enough requests, `quiet` says.
    pub max_s: u64,
    /// What a stage without enough requests leads to.
    pub quiet: Quiet,
}

/// What a stage without enough requests leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quiet {
    /// The gate is asked about what there was.
    #[default]
    Pass,
    /// The release is rolled back.
    RollBack,
}

impl Default for Step {
    fn default() -> Self {
        Self { share: 0.0, min_s: 0, min_requests: 0, max_s: 86_400, quiet: Quiet::Pass }
    }
}

/// What a new version must hold, where it can be judged. Each limit may be left out.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gate {
    /// The least share of the golden inputs answered right, from 0 to 1. Left out, all of them.
    pub golden_min: Option<f64>,
    /// The least share of mirrored requests on which both versions agree: the same best class, or the same numbers within
    /// the tolerance of the package.
    pub agreement_min: Option<f64>,
    /// The 95th percentile of the time of a request, over that of the version before.
    pub p95_ratio_max: Option<f64>,
    /// The share of requests that the new version fails.
    pub error_rate_max: Option<f64>,
    /// The memory of the loaded model, over that of the version before.
    pub memory_ratio_max: Option<f64>,
    /// The drift of the answered classes against the reference of the package (population stability index).
    pub psi_max: Option<f64>,
}
