//! Rollouts that later ones took the place of on this box.

use serde::{Deserialize, Serialize};

use super::SubjectState;
use crate::names::{DeviceName, ModelVersion};
use crate::updates::plan::{Allow, Plan, Wish};

/// So many are remembered, the newest: as many as two manifests may have.
const REMEMBERED: usize = 512;

/// A rollout that a later one took the place of.
///
/// It comes back when the platform takes the later rollout back. A revocation of the later version forbids that version, and
/// says nothing for the one that had been replaced: perhaps for its defects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Superseded {
    /// The rollout.
    pub rollout: DeviceName,
    /// The version of the later one.
    pub by: ModelVersion,
}

impl Superseded {
    /// Notes that the rollout of version `by` took the place of `rollouts`.
    pub(super) fn remember<'a>(
        all: &mut Vec<Self>,
        rollouts: impl IntoIterator<Item = &'a DeviceName>,
        by: ModelVersion,
    ) {
        for rollout in rollouts {
            match all.iter_mut().find(|known| known.rollout == *rollout) {
                Some(known) => known.by = by,
                None => all.push(Self { rollout: rollout.clone(), by }),
            }
        }
        let surplus = all.len().saturating_sub(REMEMBERED);
        all.drain(..surplus);
    }
}

impl SubjectState {
    /// Notes which rollouts the wanted one stands above. A rollout that may not move yet has taken no place.
    pub(super) fn note_superseded(&mut self, wish: &Wish) {
        let Some((plan, allow)) = &wish.desired else { return };
        let version = plan.target.version;
        if *allow != Allow::Nothing && !wish.revokes(version) && !self.stays_superseded(plan, wish) {
            Superseded::remember(&mut self.superseded, &wish.supersedes, version);
        }
    }

    /// Whether a rollout is not begun because the version that took its place was revoked.
    pub(super) fn stays_superseded(&self, plan: &Plan, wish: &Wish) -> bool {
        let mut superseded = self.superseded.iter();
        superseded.any(|superseded| superseded.rollout == plan.rollout && wish.revokes(superseded.by))
    }
}
