//! The state of one subject, as it is kept on the disk.

use std::collections::BTreeSet;

use ledge_base::names::{DeviceName, ModelVersion};
use serde::{Deserialize, Deserializer, Serialize};

use super::installed::InstalledRelease;
use super::phase::RolloutPhase;
use super::reason::RollbackReason;
use super::trial::{ReleaseTrial, UsedBudget};

/// The outcome of the last rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutOutcome {
    pub rollout: DeviceName,
    pub version: ModelVersion,
    /// The stage in which it was rolled back, and the reason; `None` is a success.
    pub rolled_back: Option<(RolloutPhase, RollbackReason)>,
}

/// A release that is not tried again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRelease {
    pub rollout: DeviceName,
    /// The digest of the release; empty when its description was not read.
    pub digest: String,
    pub version: ModelVersion,
}

/// A rollout that later ones replaced.
///
/// It comes back when the platform removes the later rollouts. A revocation of a later version forbids that version,
/// but does not bring back the replaced one, which may have been replaced for its defects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Superseded {
    pub rollout: DeviceName,
    /// The versions of the later rollouts.
    #[serde(deserialize_with = "one_or_more")]
    pub by: BTreeSet<ModelVersion>,
    /// True when it was committed here before: it is no risk, and comes back.
    #[serde(default)]
    pub was_committed: bool,
}

/// Reads a set of versions, or the single version that an earlier build wrote.
fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<ModelVersion>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum StoredVersions {
        One(ModelVersion),
        More(BTreeSet<ModelVersion>),
    }
    Ok(match StoredVersions::deserialize(deserializer)? {
        StoredVersions::One(version) => BTreeSet::from([version]),
        StoredVersions::More(versions) => versions,
    })
}

/// The state of one subject.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SubjectState {
    /// The version that runs when no trial is active. `None`: the owner's model, if there is one.
    pub committed: Option<InstalledRelease>,
    /// The rollout that installed it.
    pub committed_by: Option<DeviceName>,
    /// The least share of golden inputs that it had to answer right; `None` is all of them.
    pub committed_golden_min: Option<f64>,
    /// The version that ran before it, kept until the next commit.
    pub previous: Option<InstalledRelease>,
    /// The rollout that installed that.
    pub previous_by: Option<DeviceName>,
    /// The least share of golden inputs that it had to answer right.
    pub previous_golden_min: Option<f64>,
    /// The release on trial.
    pub trial: Option<ReleaseTrial>,
    /// The used budgets of trials that were withdrawn or superseded, by their rollouts: they count on when these come
    /// back.
    pub used: Vec<UsedBudget>,
    /// Releases that are not tried again.
    pub refused: Vec<RefusedRelease>,
    /// Rollouts that later ones replaced.
    pub superseded: Vec<Superseded>,
    /// True when the administrator of this box keeps its version.
    pub pinned: bool,
    /// The outcome of the last rollout.
    pub outcome: Option<RolloutOutcome>,
}
