//! Rollouts that later ones took the place of on this box.

use std::collections::BTreeSet;

use ledge_base::names::{DeviceName, ModelVersion};
use serde::{Deserialize, Deserializer, Serialize};

use super::SubjectState;
use crate::plan::{Allow, Plan, Wish};

/// So many are remembered, the newest: as many as two manifests may have.
const REMEMBERED: usize = 512;

/// Of so many later versions it is remembered that they took the place of one rollout, the highest.
const VERSIONS_REMEMBERED: usize = 64;

/// A rollout that later ones took the place of.
///
/// It comes back when the platform takes the later rollouts back. A revocation of a later version forbids that version, and
/// says nothing for the one that had been replaced: perhaps for its defects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Superseded {
    pub rollout: DeviceName,
    /// The versions of the later ones.
    #[serde(deserialize_with = "one_or_more")]
    pub by: BTreeSet<ModelVersion>,
    /// Whether it was a success here before: it is no risk, and comes back.
    #[serde(default)]
    pub was_committed: bool,
}

/// Reads also what an earlier build wrote: the last version alone.
fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<ModelVersion>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Versions {
        One(ModelVersion),
        More(BTreeSet<ModelVersion>),
    }
    Ok(match Versions::deserialize(deserializer)? {
        Versions::One(version) => BTreeSet::from([version]),
        Versions::More(versions) => versions,
    })
}

impl SubjectState {
    /// Notes which rollouts the wanted one stands above. A rollout that may not move yet has taken no place.
    pub(super) fn note_superseded(&mut self, wish: &Wish) {
        let Some((plan, allow)) = &wish.desired else { return };
        let version = plan.target.version;
        // Where things are kept as they are nothing is replaced.
        let may_begin = !self.pinned && *allow != Allow::Nothing && !wish.revokes(version);
        if may_begin && !self.stays_superseded(plan, wish) {
            self.remember_superseded(&wish.supersedes, version);
        }
    }

    /// Notes that the rollout of version `by` took the place of `rollouts`.
    pub(super) fn remember_superseded<'a>(
        &mut self,
        rollouts: impl IntoIterator<Item = &'a DeviceName>,
        by: ModelVersion,
    ) {
        for rollout in rollouts {
            let mut successes = self.committed_by.iter().chain(&self.previous_by);
            let was_committed = successes.any(|success| success == rollout);
            let known = self.superseded.iter_mut().find(|known| known.rollout == *rollout);
            if let Some(known) = known {
                known.was_committed |= was_committed;
                known.by.insert(by);
                if known.by.len() > VERSIONS_REMEMBERED {
                    known.by.pop_first();
                }
            } else {
                let (rollout, by) = (rollout.clone(), BTreeSet::from([by]));
                self.superseded.push(Superseded { rollout, by, was_committed });
            }
        }
        let surplus = self.superseded.len().saturating_sub(REMEMBERED);
        self.superseded.drain(..surplus);
    }

    /// Whether a rollout is not begun because a version that took its place was revoked.
    pub(super) fn stays_superseded(&self, plan: &Plan, wish: &Wish) -> bool {
        let known = self.superseded.iter().find(|superseded| superseded.rollout == plan.rollout);
        known.is_some_and(|known| !known.was_committed && known.by.iter().any(|by| wish.revokes(*by)))
    }
}
