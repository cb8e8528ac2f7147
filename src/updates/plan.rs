//! What the platform wants of this box: plain data, made by `fleet/` from the signed rollout manifest.

use std::collections::{BTreeMap, BTreeSet};

use ledge_base::names::{DeviceName, ModelVersion};
use serde::{Deserialize, Serialize};

use super::subject::{Subject, TargetPath};

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
    /// The rollouts for this box that stand before the desired one, which takes their place.
    pub supersedes: BTreeSet<DeviceName>,
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

impl Step {
    /// The shadow of a rollout that says nothing of one. A hundred requests are as many as a 95th percentile needs; a box
    /// without them waits an hour.
    pub const SHADOW: Self = Self { share: 0.1, min_s: 0, min_requests: 100, max_s: 3_600, quiet: Quiet::Pass };

    /// The canary: none, for it answers callers. One that is asked for lasts like the shadow.
    pub const CANARY: Self = Self { share: 0.0, ..Self::SHADOW };

    /// The soak: ten minutes at least, in which the version before is one step away.
    pub const SOAK: Self = Self { share: 1.0, min_s: 600, ..Self::SHADOW };
}

/// What a rollout says of a [`Step`]: each part may be left out.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StepForm {
    share: Option<f64>,
    min_s: Option<u64>,
    min_requests: Option<u64>,
    max_s: Option<u64>,
    quiet: Option<Quiet>,
}

impl StepForm {
    /// What was said, and what `default` has where nothing was. One bound in time moves the other with it.
    pub fn over(self, default: Step) -> Step {
        let (min_s, max_s) = match (self.min_s, self.max_s) {
            (Some(min_s), Some(max_s)) => (min_s, max_s),
            (Some(min_s), None) => (min_s, default.max_s.max(min_s)),
            (None, Some(max_s)) => (default.min_s.min(max_s), max_s),
            (None, None) => (default.min_s, default.max_s),
        };
        Step {
            share: self.share.unwrap_or(default.share),
            min_s,
            min_requests: self.min_requests.unwrap_or(default.min_requests),
            max_s,
            quiet: self.quiet.unwrap_or(default.quiet),
        }
    }
}

/// What a new version must hold, where it can be judged. A rollout that says nothing of a limit has its default, and one
/// that says `null` has none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gate {
    /// The least share of the golden inputs answered right, from 0 to 1. `None` is all of them.
    pub golden_min: Option<f64>,
    /// The least share of mirrored requests on which both versions agree: the same best class, or the same numbers within
    /// the tolerance of the package. None by default: a version that was trained anew may well answer otherwise.
    pub agreement_min: Option<f64>,
    /// The 95th percentile of the time of a request, over that of the version before.
    pub p95_ratio_max: Option<f64>,
    /// The share of requests that the new version fails.
    pub error_rate_max: Option<f64>,
    /// The memory of one instance of the loaded model, over that of the version before.
    pub memory_ratio_max: Option<f64>,
    /// The drift of the answered classes against the reference of the package (population stability index). None by
    /// default: the reference is of a fleet, and what one box sees may be another.
    pub psi_max: Option<f64>,
}

impl Default for Gate {
    fn default() -> Self {
        Self { p95_ratio_max: Some(2.0), error_rate_max: Some(0.02), memory_ratio_max: Some(2.0), ..Self::OPEN }
    }
}

impl Gate {
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
